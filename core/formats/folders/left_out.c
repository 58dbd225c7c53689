/* Reports what is next to the parts of a training loop's directory and looks like a checkpoint, but is not among them. */
#include "formats/common/shown_names.h"
#include "formats/folders/folders.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

static bool is_checkpoint_file(tsr_str path)
{
    static const char *const endings[] = {".safetensors", ".bin", ".pt", ".pth", ".pkl", ".ckpt", ".distcp", ".index.json"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tsr_str_ends(path, tsr_str_from(endings[i]))) return true;
    return false;
}

/* The directory of a path, up to and including the first slash; empty for a file of the root. */
static tsr_str directory_of(tsr_str path)
{
    const char *slash = memchr(path.data, '/', path.size);
    return (tsr_str){path.data, slash ? (size_t)(slash + 1 - path.data) : 0};
}

/* Lists the files of the root that are not in use, and unless `only_files` the directories of which no file is. */
static void list_unused(const tsr_store *store, const bool *used, bool only_files, tsr_shown_names *names)
{
    for (uint32_t f = 0, end; f < store->file_count; f = end) {
        const tsr_str directory = directory_of(store->files[f].name);
        bool in_use = used[f], is_checkpoint = is_checkpoint_file(store->files[f].name);
        for (end = f + 1; directory.size && end < store->file_count && tsr_str_starts(store->files[end].name, directory);
             end++) {
            in_use = in_use || used[end];
            is_checkpoint = is_checkpoint || is_checkpoint_file(store->files[end].name);
        }
        if (is_checkpoint && !in_use && !(only_files && directory.size))
            tsr_shown_names_add(names, directory.size ? directory : store->files[f].name);
    }
}

tsr_status tsr_folder_report_left(tsr_checkpoint *checkpoint, bool only_files, tsr_error *err)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_store *store = checkpoint->store;
    const uint32_t *files = mounts->files.items;
    const uint32_t engine = tsr_store_find(store, TSR_STR("latest")); /* what it names is reported already */
    tsr_shown_names names = {.used = 0};
    if (checkpoint->options.part.data || engine != TSR_NO_FILE) return TSR_OK;
    bool *used = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *used, err);
    if (!used) return TSR_E_NOMEM;
    memset(used, 0, store->file_count * sizeof *used);
    for (size_t i = 0; i < mounts->files.count; i++) used[files[i]] = true;
    list_unused(store, used, only_files, &names);
    if (!names.count) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "parts/left-out", (tsr_place){{NULL, 0}, TSR_NO_POSITION, {NULL, 0}}, err,
                           "%s%s %s not among the parts; open %s by its path", names.text, tsr_shown_names_rest(&names),
                           names.count == 1 ? "is" : "are", names.count == 1 ? "it" : "each of them");
}
