/* See framework.h. */
#include "formats/directories/framework.h"

#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

#include <string.h>

enum { MOST_RANKS = 1 << 20 };

typedef struct mounting {
    tsr_checkpoint *checkpoint;
    const tsr_framework *of;
    bool in_directories; /* a part was found in a directory, so the next ones are asked for there */
    tsr_error *err;
} mounting;

/* ---- patterns ---- */

/* The name that a pattern stands for, for the part with this number; '*' stays. {NULL, 0} without memory. */
static tsr_str name_for(const mounting *m, const char *pattern, unsigned number)
{
    const size_t head = strcspn(pattern, "#~");
    if (!pattern[head]) return tsr_str_from(pattern);
    if (!number)
        return tsr_arena_format(m->checkpoint->arena, m->err, "%.*s%s%s", (int)head, pattern,
                                pattern[head] == '#' ? "0" : "", pattern + head + 1);
    return tsr_arena_format(m->checkpoint->arena, m->err, "%.*s%s%u%s", (int)head, pattern, pattern[head] == '#' ? "" : "_",
                            number, pattern + head + 1);
}

static bool is_repeated(const char *pattern)
{
    return pattern[strcspn(pattern, "#~")];
}

/* The texts before and after the number in a name with '*'. */
static void split(tsr_str name, tsr_str *before, tsr_str *after)
{
    const char *star = memchr(name.data, '*', name.size);
    *before = (tsr_str){name.data, (size_t)(star - name.data)};
    *after = (tsr_str){star + 1, name.size - before->size - 1};
}

/* ---- ranks ---- */

/* How many ranks there were, as the names of all files that are one per rank show. */
static uint64_t count_ranks(const tsr_framework *of, const tsr_store *store)
{
    uint64_t count = 0;
    for (uint32_t f = 0; of->rank_of && f < store->file_count; f++) {
        const uint64_t rank = of->rank_of(store->files[f].name);
        if (rank < MOST_RANKS && rank >= count) count = rank + 1;
    }
    return count;
}

static tsr_status check_ranks(tsr_checkpoint *checkpoint, const tsr_numbered_files *files, const tsr_ranks_check *check,
                              tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    tsr_str first = {NULL, 0};
    uint64_t missing = check->ranks;
    uint32_t at = 0;
    for (uint32_t i = 0; i < files->count; i++)
        missing -= files->items[i].number < check->ranks && (i == 0 || files->items[i].number != files->items[i - 1].number);
    if (!missing) return TSR_OK;
    for (uint64_t rank = 0; rank < check->ranks && (check->implies || names.count < TSR_NAMES_SHOWN); rank++) {
        while (at < files->count && files->items[at].number < rank) at++;
        if (at < files->count && files->items[at].number == rank) continue;
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%.*s%llu%.*s", TSR_STR_ARG(check->before),
                                              (unsigned long long)rank, TSR_STR_ARG(check->after));
        if (!name.data) return TSR_E_NOMEM;
        if (!first.data) first = name;
        if (check->implies) TSR_TRY(tsr_checkpoint_implies(checkpoint, name, err));
        if (names.count < TSR_NAMES_SHOWN) tsr_shown_names_add(&names, name);
    }
    names.count = missing;
    if (!check->placed) first = (tsr_str){NULL, 0};
    if (!check->by_rank) return tsr_report_missing_files(checkpoint, first, &names, check->ranks, err);
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "the files of %llu of %llu ranks are missing: %s%s; copy them from where the checkpoint was written",
        (unsigned long long)missing, (unsigned long long)check->ranks, names.text, tsr_shown_names_rest(&names));
    return message.data ? tsr_checkpoint_is_incomplete(checkpoint, first, message, err) : TSR_E_NOMEM;
}

/* Begins the part `name`, and mounts the files of all ranks as one checkpoint, or each below "rank_N". */
static tsr_status mount_ranks(tsr_checkpoint *checkpoint, tsr_str name, tsr_source_form form,
                              const tsr_numbered_files *ranks, tsr_error *err)
{
    TSR_TRY(tsr_part_begin(checkpoint, name, false, err));
    if (form == TSR_SOURCE_JOINED) {
        uint32_t *numbers = tsr_arena_array(checkpoint->arena, ranks->count, sizeof *numbers, err);
        if (!numbers) return TSR_E_NOMEM;
        for (uint32_t i = 0; i < ranks->count; i++) numbers[i] = ranks->items[i].file;
        const tsr_form joined = {&tsr_reader_torch_ranks, numbers, ranks->count};
        const bool one = ranks->count == 1;
        const tsr_mount_place place = {.file = one ? numbers[0] : TSR_NO_FILE, .form = one ? NULL : &joined};
        return tsr_part_mount(checkpoint, &place, err);
    }
    for (uint32_t i = 0; i < ranks->count; i++) {
        const tsr_str below =
            tsr_arena_format(checkpoint->arena, err, "rank_%llu", (unsigned long long)ranks->items[i].number);
        if (!below.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_part_mount(checkpoint, &(tsr_mount_place){.below = below, .file = ranks->items[i].file}, err));
    }
    return TSR_OK;
}

tsr_status tsr_ranks_mount(tsr_checkpoint *checkpoint, tsr_str part, tsr_source_form form, tsr_ranks_check check,
                           tsr_error *err)
{
    tsr_numbered_files files;
    TSR_TRY(tsr_list_numbered(checkpoint, check.before, check.after, &files, err));
    if (!check.ranks && files.count) check.ranks = files.items[files.count - 1].number + 1;
    TSR_TRY(check_ranks(checkpoint, &files, &check, err));
    return files.count ? mount_ranks(checkpoint, part, form, &files, err) : TSR_OK;
}

/* ---- parts ---- */

static tsr_status mount_file(const mounting *m, tsr_str part, uint32_t file)
{
    TSR_TRY(tsr_part_begin(m->checkpoint, part, false, m->err));
    return tsr_part_mount(m->checkpoint, &(tsr_mount_place){.file = file}, m->err);
}

static tsr_status mount_root(const mounting *m, tsr_str part, uint32_t file)
{
    uint32_t *metadata = TSR_ARENA_NEW(m->checkpoint->arena, uint32_t, m->err);
    if (!metadata) return TSR_E_NOMEM;
    *metadata = file;
    const tsr_form form = {&tsr_reader_dcp, metadata, 1};
    TSR_TRY(tsr_part_begin(m->checkpoint, part, true, m->err));
    return tsr_part_mount(m->checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .form = &form}, m->err);
}

/* Mounts the files of a pattern with '*'. */
static tsr_status mount_numbered(const mounting *m, tsr_source_form form, tsr_str name, tsr_str part, bool *found)
{
    tsr_checkpoint *checkpoint = m->checkpoint;
    tsr_numbered_files files;
    tsr_ranks_check check = {.by_rank = true, .placed = true};
    split(name, &check.before, &check.after);
    TSR_TRY(tsr_list_numbered(checkpoint, check.before, check.after, &files, m->err));
    *found = files.count > 0;
    if (!*found) return TSR_OK;
    if (form != TSR_SOURCE_EACH) {
        TSR_TRY(mount_ranks(checkpoint, part, form, &files, m->err));
        check.ranks = count_ranks(m->of, checkpoint->store);
        return ((const tsr_mounts *)checkpoint->state)->skipped ? TSR_OK : check_ranks(checkpoint, &files, &check, m->err);
    }
    for (uint32_t i = 0; i < files.count; i++) {
        const tsr_str own = tsr_arena_format(checkpoint->arena, m->err, "%.*s_%llu", TSR_STR_ARG(part),
                                             (unsigned long long)files.items[i].number);
        if (!own.data) return TSR_E_NOMEM;
        TSR_TRY(mount_file(m, own, files.items[i].file));
    }
    return TSR_OK;
}

/* Mounts the part with this number from one of its sources, if that is there. */
static tsr_status mount_source(mounting *m, const tsr_source *from, unsigned number, tsr_str part, bool *found)
{
    tsr_checkpoint *checkpoint = m->checkpoint;
    const tsr_str name = name_for(m, from->pattern, number);
    *found = false;
    if (!name.data) return TSR_E_NOMEM;
    if (from->form == TSR_SOURCE_DCP || from->form == TSR_SOURCE_NAMED) {
        *found = tsr_has_directory(checkpoint->store, name);
        if (!*found) return TSR_OK;
        m->in_directories = true;
        TSR_TRY(tsr_part_begin(checkpoint, part, from->form == TSR_SOURCE_NAMED && !number, m->err));
        return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = name}, m->err);
    }
    if (from->form == TSR_SOURCE_EACH || from->form == TSR_SOURCE_RANKS || from->form == TSR_SOURCE_JOINED)
        return mount_numbered(m, from->form, name, part, found);
    const uint32_t file = tsr_store_find(checkpoint->store, name);
    *found = file != TSR_NO_FILE;
    if (!*found) return TSR_OK;
    if (from->form == TSR_SOURCE_FILE) return mount_file(m, part, file);
    if (from->form == TSR_SOURCE_ROOT) return mount_root(m, part, file);
    TSR_TRY(tsr_part_begin(checkpoint, part, false, m->err));
    return tsr_part_mount_value(checkpoint, file, from->form == TSR_SOURCE_JSON ? TSR_FORMAT_JSON : TSR_FORMAT_PICKLE,
                                m->err);
}

static tsr_status imply_name(const mounting *m, tsr_str name)
{
    return name.data ? tsr_checkpoint_implies(m->checkpoint, name, m->err) : TSR_E_NOMEM;
}

/* Records further numbers of files that are there: after a first one without a number, the next one. Otherwise as many as there are
 * files, so the files of many ranks are found in a few rounds, each of which doubles their number. */
static tsr_status imply_numbers(const mounting *m, const tsr_part_row *row, const tsr_source *from)
{
    tsr_str before, after;
    tsr_numbered_files files;
    split(tsr_str_from(from->pattern), &before, &after);
    TSR_TRY(tsr_list_numbered(m->checkpoint, before, after, &files, m->err));
    const uint64_t last = files.count ? files.items[files.count - 1].number : 0;
    uint64_t next = files.count, end = 2 * next;
    if (row->next) {
        if (!tsr_has_file(m->checkpoint->store, row->next)) return TSR_OK;
        next = last + 1;
        end = next + 1;
    } else if (last >= files.count) {
        return TSR_OK;
    }
    for (; next < end; next++)
        TSR_TRY(imply_name(m, tsr_arena_format(m->checkpoint->arena, m->err, "%.*s%llu%.*s", TSR_STR_ARG(before),
                                               (unsigned long long)next, TSR_STR_ARG(after))));
    return TSR_OK;
}

/* Mounts a part and those that are numbered after it, and records the name of the first that was not found. */
static tsr_status mount_row(mounting *m, const tsr_part_row *row)
{
    const char *next = row->next;
    bool repeated = false, found = true;
    unsigned number = 0;
    if (row->mounts) return row->mounts(m->checkpoint, m->err);
    for (const tsr_source *from = row->from; from->pattern; from++) {
        repeated = repeated || is_repeated(from->pattern);
        if (from->form == TSR_SOURCE_RANKS || from->form == TSR_SOURCE_EACH) TSR_TRY(imply_numbers(m, row, from));
    }
    for (; found && number < TSR_MOST_NUMBERED && (repeated || number == 0); number++) {
        const tsr_str part =
            number ? tsr_arena_format(m->checkpoint->arena, m->err, "%s_%u", row->part, number) : tsr_str_from(row->part);
        if (!part.data) return TSR_E_NOMEM;
        found = false;
        for (const tsr_source *from = row->from; from->pattern && !found; from++) {
            if (number && !is_repeated(from->pattern)) continue;
            TSR_TRY(mount_source(m, from, number, part, &found));
            if (found && from->form == TSR_SOURCE_FILE) next = from->pattern;
        }
    }
    if (!repeated || found) return TSR_OK;
    if (!m->in_directories) return next ? imply_name(m, name_for(m, next, number - 1)) : TSR_OK;
    const tsr_str directory = name_for(m, row->from[0].pattern, number - 1);
    if (!directory.data) return TSR_E_NOMEM;
    return imply_name(m, tsr_arena_format(m->checkpoint->arena, m->err, "%.*s/.metadata", TSR_STR_ARG(directory)));
}

tsr_status tsr_part_row_mount(tsr_checkpoint *checkpoint, const tsr_part_row *row, tsr_error *err)
{
    static const tsr_framework none = {.left = TSR_LEFT_IGNORED};
    return mount_row(&(mounting){.checkpoint = checkpoint, .of = &none, .err = err}, row);
}

/* ---- what is left out ---- */

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

/* Reports what looks like a checkpoint and was not mounted, unless a part was requested: files of the root, and unless `only_files`
 * directories of which no file is in use. */
static tsr_status report_left(tsr_checkpoint *checkpoint, bool only_files, tsr_error *err)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_store *store = checkpoint->store;
    const uint32_t *files = mounts->files.items;
    tsr_shown_names names = {.used = 0};
    /* What DeepSpeed's "latest" names is reported already. */
    if (checkpoint->options.part.data || tsr_has_file(store, "latest")) return TSR_OK;
    bool *used = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *used, err);
    if (!used) return TSR_E_NOMEM;
    memset(used, 0, store->file_count * sizeof *used);
    for (size_t i = 0; i < mounts->files.count; i++) used[files[i]] = true;
    for (uint32_t f = 0, end; f < store->file_count; f = end) {
        const tsr_str directory = directory_of(store->files[f].name);
        bool in_use = used[f], is_checkpoint = is_checkpoint_file(store->files[f].name);
        for (end = f + 1; directory.size && end < store->file_count && tsr_str_starts(store->files[end].name, directory);
             end++) {
            in_use = in_use || used[end];
            is_checkpoint = is_checkpoint || is_checkpoint_file(store->files[end].name);
        }
        if (is_checkpoint && !in_use && !(only_files && directory.size))
            tsr_shown_names_add(&names, directory.size ? directory : store->files[f].name);
    }
    if (!names.count) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "parts/left-out", (tsr_place){{NULL, 0}, TSR_NO_POSITION, {NULL, 0}}, err,
                           "%s%s %s not among the parts; open %s by its path", names.text, tsr_shown_names_rest(&names),
                           names.count == 1 ? "is" : "are", names.count == 1 ? "it" : "each of them");
}

tsr_status tsr_document_read(tsr_checkpoint *checkpoint, tsr_str name, cJSON **out, tsr_error *err)
{
    const uint32_t file = tsr_store_find(checkpoint->store, name);
    tsr_bytes text;
    tsr_error why = {0};
    *out = NULL;
    if (file == TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    const tsr_status status = tsr_json_parse(text.data, checkpoint->host, out, &why);
    tsr_bytes_free(&text);
    if (status != TSR_OK) *out = NULL;
    return status == TSR_E_NOMEM ? tsr_raise_again(err, status, &why) : TSR_OK;
}

/* ---- the whole directory ---- */

static tsr_status check_complete(tsr_checkpoint *checkpoint, const tsr_framework *of, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    for (const tsr_needed_file *needed = of->needs; needed && needed->file; needed++)
        if (tsr_has_file(store, needed->with) && !tsr_has_file(store, needed->file))
            TSR_TRY(
                tsr_checkpoint_is_incomplete(checkpoint, tsr_str_from(needed->file), tsr_str_from(needed->because), err));
    if (!of->unfinished || !tsr_has_file(store, of->unfinished)) return TSR_OK;
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "'%s' is there, which the framework removes once a save is complete: the save was interrupted", of->unfinished);
    return tsr_checkpoint_is_incomplete(checkpoint, tsr_str_from(of->unfinished), message, err);
}

static tsr_status mount_parts(tsr_checkpoint *checkpoint, const void *ctx, tsr_error *err)
{
    const tsr_framework *of = ctx;
    mounting m = {.checkpoint = checkpoint, .of = of, .err = err};
    for (const tsr_implied_row *row = of->implied; row && row->names; row++) {
        const bool with = !row->with || tsr_has_any(checkpoint->store, row->with),
                   without = row->without && tsr_has_any(checkpoint->store, row->without);
        for (const char *const *name = row->names; *name && with && !without; name++)
            TSR_TRY(tsr_checkpoint_implies(checkpoint, tsr_str_from(*name), err));
    }
    for (size_t i = 0; i < 2; i++)
        for (const tsr_part_row *row = of->parts[i]; row && (row->part || row->mounts); row++) TSR_TRY(mount_row(&m, row));
    if (of->left) TSR_TRY(report_left(checkpoint, of->left == TSR_LEFT_FILES, err));
    return check_complete(checkpoint, of, err);
}

tsr_status tsr_framework_open(tsr_checkpoint *checkpoint, const tsr_framework *of, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount_parts, of, err);
}
