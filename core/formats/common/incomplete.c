/* See incomplete.h. */
#include "formats/common/incomplete.h"

#include "formats/common/file_names.h"
#include "layout/shard.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

enum { MOST_COUNTED = 1 << 20 };

static bool in_root(tsr_str path)
{
    return !memchr(path.data, '/', path.size);
}

/* Parses a decimal number of at most nine digits at `at`, and sets *end after it. False when there is no digit. */
static bool number_at(tsr_str text, size_t at, size_t *end, uint64_t *number)
{
    *number = 0;
    for (*end = at; *end < text.size && tsr_is_digit(text.data[*end]) && *end - at < 9; ++*end)
        *number = *number * 10 + (uint64_t)(text.data[*end] - '0');
    return *end > at;
}

/* ---- DCP ---- */

/* The R of __R.metadata or __R_N.distcp; UINT64_MAX for any other name. */
static uint64_t rank_of(tsr_str name, const char *suffix, bool has_file_number)
{
    size_t at;
    uint64_t rank, file;
    if (!in_root(name) || !tsr_str_starts(name, TSR_STR("__")) || !number_at(name, 2, &at, &rank)) return UINT64_MAX;
    if (has_file_number && (at == name.size || name.data[at++] != '_' || !number_at(name, at, &at, &file)))
        return UINT64_MAX;
    return tsr_str_equal(tsr_str_after(name, at), tsr_str_from(suffix)) ? rank : UINT64_MAX;
}

/* ---- numbered files ---- */

typedef struct counting {
    tsr_checkpoint *checkpoint;
    tsr_counted_name of; /* what the files of the current set have in common; its count is 0 before the first set */
    uint8_t *present;    /* one per number; 1 when that file exists */
    tsr_error *err;
} counting;

static tsr_counted_name of_total(tsr_str name)
{
    tsr_str of = TSR_STR("-of-");
    for (size_t at = 1; at + of.size < name.size; at++) {
        size_t from = at, end;
        uint64_t number, total;
        if (memcmp(name.data + at, of.data, of.size) != 0 || !number_at(name, at + of.size, &end, &total)) continue;
        while (from && tsr_is_digit(name.data[from - 1]) && at - from < 9) from--;
        if (!number_at(name, from, &end, &number) || end != at) continue;
        return (tsr_counted_name){{name.data, from}, {name.data + at, name.size - at}, number, total, 1, (int)(at - from)};
    }
    return (tsr_counted_name){.count = 0};
}

static tsr_counted_name of_world(tsr_str name)
{
    tsr_str world = TSR_STR("world_size_"), rank = TSR_STR("_rank_");
    for (size_t at = 0; at + world.size < name.size; at++) {
        size_t end, from;
        uint64_t number, total;
        if (memcmp(name.data + at, world.data, world.size) != 0 || !number_at(name, at + world.size, &end, &total)) continue;
        if (!tsr_str_starts(tsr_str_after(name, end), rank)) continue;
        from = end + rank.size;
        if (!number_at(name, from, &end, &number)) continue;
        return (tsr_counted_name){{name.data, from}, {name.data + end, name.size - end}, number, total, 0,
                                  (int)(end - from)};
    }
    return (tsr_counted_name){.count = 0};
}

tsr_counted_name tsr_counted_name_of(tsr_str name)
{
    tsr_counted_name counted = of_total(name);
    if (counted.count == 0) counted = of_world(name);
    const bool counts = counted.number >= counted.first && counted.number - counted.first < counted.count;
    if (!counts || counted.count > MOST_COUNTED) counted.count = 0;
    return counted;
}

bool tsr_rank_part_of(tsr_str name, uint64_t *rank, uint64_t *part)
{
    const tsr_str before = TSR_STR("-rank-"), between = TSR_STR("-part-"), after = TSR_STR(".safetensors");
    for (size_t at = 0; at + before.size < name.size; at++) {
        size_t end;
        if (memcmp(name.data + at, before.data, before.size) != 0 || !number_at(name, at + before.size, &end, rank))
            continue;
        if (!tsr_str_starts(tsr_str_after(name, end), between)) continue;
        if (number_at(name, end + between.size, &end, part) && tsr_str_equal(tsr_str_after(name, end), after)) return true;
    }
    return false;
}

tsr_status tsr_report_missing_files(tsr_checkpoint *checkpoint, tsr_str place, const tsr_shown_names *names, uint64_t of,
                                    tsr_error *err)
{
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err, "%llu of %llu files %s missing: %s%s; copy them from where the checkpoint was written",
        (unsigned long long)names->count, (unsigned long long)of, names->count == 1 ? "is" : "are", names->text,
        tsr_shown_names_rest(names));
    return tsr_checkpoint_is_incomplete(checkpoint, place, message, err);
}

static tsr_status report_lacking(counting *c)
{
    tsr_shown_names names = {.used = 0};
    const tsr_counted_name *of = &c->of;
    for (uint64_t i = 0; i < of->count; i++) {
        if (c->present[i]) continue;
        tsr_str name = {"", 0};
        const int padded = of->first ? of->width : 0; /* ranks are written without leading zeros */
        if (names.shown < TSR_NAMES_SHOWN)
            name = tsr_arena_format(c->checkpoint->arena, c->err, "%.*s%0*llu%.*s", TSR_STR_ARG(of->before), padded,
                                    (unsigned long long)(i + of->first), TSR_STR_ARG(of->after));
        if (!name.data) return TSR_E_NOMEM;
        tsr_shown_names_add(&names, name);
    }
    return names.count ? tsr_report_missing_files(c->checkpoint, (tsr_str){NULL, 0}, &names, of->count, c->err) : TSR_OK;
}

static tsr_status end_set(counting *c)
{
    tsr_status status = c->of.count ? report_lacking(c) : TSR_OK;
    tsr_free(c->checkpoint->host->allocator, c->present, (size_t)c->of.count, 1);
    c->present = NULL;
    c->of.count = 0;
    return status;
}

static tsr_status count_file(counting *c, tsr_str name)
{
    const tsr_counted_name next = tsr_counted_name_of(name);
    if (next.count == 0) return TSR_OK;
    if (!c->of.count || !tsr_str_equal(next.before, c->of.before) || !tsr_str_equal(next.after, c->of.after)) {
        TSR_TRY(end_set(c));
        c->present = tsr_alloc(c->checkpoint->host->allocator, (size_t)next.count, 1, c->err);
        if (!c->present) return TSR_E_NOMEM;
        memset(c->present, 0, (size_t)next.count);
        c->of = next;
    }
    c->present[next.number - next.first] = 1;
    return TSR_OK;
}

/* "model-00002-of-00003.safetensors" of "shard-00001-model-00002-of-00003.safetensors": a rank of DCP's HuggingFaceStorageWriter has files
 * only for its own tensors, but each file of the model has some. */
static tsr_str without_shard(tsr_str name)
{
    size_t end;
    uint64_t number;
    const tsr_str before = TSR_STR("shard-");
    if (!tsr_str_starts(name, before) || !number_at(name, before.size, &end, &number)) return name;
    return tsr_str_starts(tsr_str_after(name, end), TSR_STR("-")) ? tsr_str_after(name, end + 1) : name;
}

/* checkpoint->files is sorted by number or name, so the files of one set follow each other. */
static tsr_status check_counted(tsr_checkpoint *checkpoint, tsr_error *err)
{
    counting c = {.checkpoint = checkpoint, .err = err};
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < checkpoint->file_count && status == TSR_OK; i++)
        status = count_file(&c, without_shard(checkpoint->store->files[checkpoint->files[i]].name));
    if (status == TSR_OK) return end_set(&c);
    tsr_free(checkpoint->host->allocator, c.present, (size_t)c.of.count, 1);
    return status;
}

static tsr_status open_torch_without_index(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_shown_names names = {.used = 0};
    for (uint32_t i = 0; i < checkpoint->file_count; i++)
        tsr_shown_names_add(&names, store->files[checkpoint->files[i]].name);
    tsr_str stem = tsr_counted_name_of(store->files[checkpoint->files[0]].name).before;
    if (stem.size && stem.data[stem.size - 1] == '-') stem.size--;
    checkpoint->names_unknown = true;
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "'%.*s.bin.index.json' is missing next to the shards of one model (%s%s): the save was interrupted, "
        "or the file was not copied",
        TSR_STR_ARG(stem), names.text, tsr_shown_names_rest(&names));
    TSR_TRY(tsr_checkpoint_is_incomplete(checkpoint, (tsr_str){NULL, 0}, message, err));
    return check_counted(checkpoint, err);
}

const tsr_reader tsr_reader_torch_without_index = {
    .format = TSR_FORMAT_TORCH_INDEX, .is_rare = true, .is_interrupted = true, .open = open_torch_without_index};

/* ---- rank-local metadata ---- */

/* Every rank writes its own metadata file. Ranks below the highest one that have no file, and ranks that have only data
 * files, lack their metadata. */
static tsr_status check_rank_metadata(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    uint64_t ranks = 0;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const uint64_t described = rank_of(store->files[f].name, ".metadata", false),
                       held = rank_of(store->files[f].name, ".distcp", true);
        if (described < MOST_COUNTED && described >= ranks) ranks = described + 1;
        if (held < MOST_COUNTED && held >= ranks) ranks = held + 1;
    }
    counting c = {.checkpoint = checkpoint,
                  .of = {.before = TSR_STR("__"), .after = TSR_STR(".metadata"), .count = ranks},
                  .present = tsr_alloc(checkpoint->host->allocator, (size_t)ranks, 1, err),
                  .err = err};
    if (!c.present) return TSR_E_NOMEM;
    memset(c.present, 0, (size_t)ranks);
    for (uint32_t f = 0; f < store->file_count; f++) {
        const uint64_t rank = rank_of(store->files[f].name, ".metadata", false);
        if (rank < ranks && store->files[f].size) c.present[rank] = 1;
    }
    return end_set(&c);
}

/* Every rank must have every part that any rank has, and ranks are numbered from 0. */
static tsr_status check_rank_parts(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    uint64_t ranks = 0, parts = 0, rank, part;
    for (uint32_t i = 0; i < checkpoint->file_count; i++) {
        tsr_rank_part_of(store->files[checkpoint->files[i]].name, &rank, &part);
        if (rank >= ranks) ranks = rank + 1;
        if (part >= parts) parts = part + 1;
    }
    if (ranks * parts > MOST_COUNTED || ranks * parts == checkpoint->file_count) return TSR_OK;
    tsr_shown_names names = {.used = 0};
    uint32_t at = 0; /* the files are in order of ranks and parts */
    for (uint64_t n = 0; n < ranks * parts; n++) {
        if (at < checkpoint->file_count) tsr_rank_part_of(store->files[checkpoint->files[at]].name, &rank, &part);
        if (at < checkpoint->file_count && rank == n / parts && part == n % parts) {
            at++;
            continue;
        }
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "…-rank-%llu-part-%llu.safetensors",
                                              (unsigned long long)(n / parts), (unsigned long long)(n % parts));
        if (!name.data) return TSR_E_NOMEM;
        tsr_shown_names_add(&names, name);
    }
    return tsr_report_missing_files(checkpoint, (tsr_str){NULL, 0}, &names, ranks * parts, err);
}

/* Warns of a file that the user opened although its name says that it is one of several. */
static tsr_status report_one_of_several(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_str path = checkpoint->store->files[checkpoint->store->primary].name;
    size_t at = path.size;
    while (at && path.data[at - 1] != '/') at--;
    const tsr_str name = {path.data + at, path.size - at};
    const tsr_counted_name counted = tsr_counted_name_of(name);
    if (checkpoint->options.stay || counted.count < 2) return TSR_OK; /* mounted: the others are mounted as well */
    return tsr_finding_add(checkpoint->findings, "parts/one-of-several", (tsr_place){path, TSR_NO_POSITION, {NULL, 0}}, err,
                           "'%.*s' is one of %llu files, so it has only a part of the checkpoint; open their directory to "
                           "read them together",
                           TSR_STR_ARG(name), (unsigned long long)counted.count);
}

tsr_status tsr_check_files_complete(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    uint64_t rank, part;
    if (checkpoint->names_unknown || checkpoint->file_count == 0) return TSR_OK;
    if (store->primary != TSR_NO_FILE) return report_one_of_several(checkpoint, err);
    switch (checkpoint->catalog.format) {
    case TSR_FORMAT_DCP:
        if (tsr_str_equal(store->files[checkpoint->files[0]].name, TSR_STR(".metadata"))) return TSR_OK;
        if (checkpoint->options.metadata_rank) return TSR_OK; /* whatever the other ranks have */
        return check_rank_metadata(checkpoint, err);
    case TSR_FORMAT_SHARDS:
        if (tsr_rank_part_of(store->files[checkpoint->files[0]].name, &rank, &part))
            return check_rank_parts(checkpoint, err);
        return check_counted(checkpoint, err);
    case TSR_FORMAT_SAFETENSORS:
    case TSR_FORMAT_DCP_SAFETENSORS:
    case TSR_FORMAT_TORCH_ZIP:
    case TSR_FORMAT_TORCH_LEGACY:
    case TSR_FORMAT_TORCH_RANKS: return check_counted(checkpoint, err);
    default: return TSR_OK;
    }
}

/* ---- marker ---- */

enum { MOST_MARKED = 255 }; /* bytes of a file name */

tsr_status tsr_marker_read(tsr_checkpoint *checkpoint, uint32_t file, tsr_str *line, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    char text[MOST_MARKED];
    const uint64_t size = store->files[file].size;
    *line = (tsr_str){NULL, 0};
    if (size == 0 || size > sizeof text) return TSR_OK;
    TSR_TRY(tsr_store_read(store, file, 0, text, (size_t)size, err));
    size_t used = (size_t)size;
    while (used && (text[used - 1] == '\n' || text[used - 1] == '\r' || text[used - 1] == ' ')) used--;
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == '/') return TSR_OK;
    *line = tsr_arena_str(checkpoint->arena, (tsr_str){text, used}, err);
    return line->data ? TSR_OK : TSR_E_NOMEM;
}

/* Reports entries whose bytes are lost. */

bool tsr_entry_lacks_bytes(const tsr_entry *entry)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++)
        if (entry->chunks[i].file == TSR_NO_FILE) return true;
    return false;
}

tsr_status tsr_entry_report_lost(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err)
{
    const tsr_place place = {checkpoint->store->files[checkpoint->files[0]].name, TSR_NO_POSITION, entry->fqn};
    tsr_dims_buffer shape;
    if (entry->kind == TSR_ENTRY_TENSOR)
        return tsr_finding_add(checkpoint->findings, "repair/lost", place, err, "the bytes of '%.*s', %s %s, are lost",
                               TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name,
                               tsr_dims_text(&shape, entry->shape, entry->ndim));
    return tsr_finding_add(checkpoint->findings, "repair/lost", place, err,
                           "'%.*s', a %.*s, holds tensors whose bytes are lost", TSR_STR_ARG(entry->fqn),
                           TSR_STR_ARG(entry->type));
}

tsr_status tsr_report_lfs_pointer(tsr_checkpoint *checkpoint, uint32_t file, tsr_str fqn, bool *is, tsr_error *err)
{
    enum { TOO_LARGE = 1024 };
    char head[sizeof TSR_LFS_POINTER - 1];
    const tsr_store_file *of = &checkpoint->store->files[file];
    *is = false;
    if (TSR_IS_SMALL || of->size < sizeof head || of->size >= TOO_LARGE) return TSR_OK;
    TSR_TRY(tsr_store_read(checkpoint->store, file, 0, head, sizeof head, err));
    *is = memcmp(head, TSR_LFS_POINTER, sizeof head) == 0;
    if (!*is) return TSR_OK;
    TSR_TRY(tsr_checkpoint_lacks(checkpoint, of->name, err));
    return tsr_finding_add(checkpoint->findings, "dcp/missing-file", (tsr_place){of->name, TSR_NO_POSITION, fqn}, err,
                           "the data file '%.*s', which storage_data names, is " TSR_LFS_IS, TSR_STR_ARG(of->name));
}
