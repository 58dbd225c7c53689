/* See copy_files.h. */
#include "cli/writing/copy_files.h"

#include "cli/program/term.h"
#include "io/file_name.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/remote.h"

enum { LEVELS = 64 };

tsr_status cli_copy_list_all_levels(tsr_store *from, const char *path, tsr_error *err)
{
    bool cut = false, deeper = false;
    if (from->primary != TSR_NO_FILE) return TSR_OK;
    if (tsr_is_address(path))
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "a server lists no directories over HTTP; name a single file");
    if (from->deepen) {
        const tsr_status status = from->deepen(from, LEVELS, &cut, &deeper, err);
        if (status != TSR_OK) return status;
    }
    if (cut || deeper)
        return tsr_raise(err, TSR_E_LIMIT, TSR_NO_POSITION,
                         "it holds too many files, or directories more than %d levels down", LEVELS);
    return TSR_OK;
}

static tsr_status list_directory(cli_copy_files *files, const char *path, tsr_error *err)
{
    const tsr_status status = cli_copy_list_all_levels(files->from, path, err);
    if (status != TSR_OK) return status;
    files->hidden = tsr_path_store_hidden(files->from);
    files->special = tsr_folder_store_unlisted(files->from).special;
    const tsr_hidden_names unreadable = tsr_folder_store_unlisted(files->from).unreadable;
    if (unreadable.count)
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION,
                         "%s cannot be read, such as '%s': permission denied, or the path is too long; nothing was copied",
                         cli_plural(unreadable.count, "name").text, unreadable.first);
    files->count = files->from->file_count;
    if (!files->count) return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "it contains no files");
    return TSR_OK;
}

static tsr_str base_name(tsr_str name)
{
    size_t start = name.size;
    while (start && name.data[start - 1] != '/') start--;
    return (tsr_str){name.data + start, name.size - start};
}

/* Whether a file lists the files of a checkpoint, or of several: it makes them a checkpoint. */
static bool is_list(tsr_str base)
{
    return tsr_str_ends(base, TSR_STR(".metadata")) || tsr_str_ends(base, TSR_STR(".index.json")) ||
           tsr_str_equal(base, TSR_STR("metadata.json")) || tsr_str_equal(base, TSR_STR("latest"));
}

/* 0 if the name of a file is not that of a marker; 1 for a marker in a subdirectory, 2 for one in the root. Besides lists,
 * markers are the files that the Trainer, Lightning, Megatron and DeepSpeed write last. */
static unsigned marker_level(tsr_str name)
{
    static const char *const last[] = {"trainer_state.json", "meta.pt", "latest_checkpointed_iteration.txt",
                                       "latest_universal"};
    const tsr_str base = base_name(name);
    bool is_marker = is_list(base);
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) is_marker |= tsr_str_equal(base, tsr_str_from(last[i]));
    return !is_marker ? 0 : base.size < name.size ? 1 : 2;
}

/* Orders the files of a directory: markers last, and those of the root after those of subdirectories. */
static tsr_status put_in_order(cli_copy_files *files, tsr_error *err)
{
    uint32_t count = 0;
    for (unsigned level = 0; level <= 2; level++) {
        if (level == 1) files->marker = count;
        for (uint32_t f = 0; f < files->count; f++)
            if (marker_level(files->from->files[f].name) == level) files->numbers[count++] = f;
    }
    for (uint32_t i = 0; i < files->count; i++) {
        files->names[i] = files->from->files[files->numbers[i]].name;
        if (!tsr_is_name_below(files->names[i], SIZE_MAX)) /* keys in object stores need not be valid file names */
            return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s' cannot be the name of a file here",
                             TSR_STR_ARG(files->names[i]));
    }
    return TSR_OK;
}

tsr_status cli_copy_list(tsr_store *from, const char *path, tsr_arena *arena, cli_copy_files *out, tsr_error *err)
{
    tsr_status status = TSR_OK;
    const bool is_single = from->primary != TSR_NO_FILE;
    *out = (cli_copy_files){.from = from, .count = 1};
    if (!is_single) status = list_directory(out, path, err);
    if (status != TSR_OK) return status;
    out->numbers = tsr_arena_array(arena, out->count, sizeof *out->numbers, err);
    out->names = tsr_arena_array(arena, out->count, sizeof *out->names, err);
    out->sizes = tsr_arena_array(arena, out->count, sizeof *out->sizes, err);
    if (!out->numbers || !out->names || !out->sizes) return TSR_E_NOMEM;
    if (is_single) {
        out->numbers[0] = from->primary;
        out->names[0] = TSR_STR("");
    } else {
        status = put_in_order(out, err);
    }
    for (uint32_t i = 0; i < out->count && status == TSR_OK; i++)
        out->byte_total += out->sizes[i] = from->files[out->numbers[i]].size;
    return status;
}

const char *cli_copy_last_list(const cli_copy_files *files)
{
    for (uint32_t i = files->count; i-- > files->marker;)
        if (is_list(base_name(files->names[i]))) return files->names[i].data;
    return NULL;
}
