/* Reads one safetensors file, or several without an index, as a catalog. Each tensor is an entry with one chunk. */
#include "formats/safetensors/safetensors_reader.h"

#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/common/metadata.h"
#include "formats/safetensors/safetensors.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

/* ---- checksums ---- */

/* What the header of a file states about its bytes. A checkpoint's state is a list of those that state something. */
typedef struct stated_sum {
    uint32_t file;
    uint64_t data_offset;
    tsr_safetensors_sum stated;
} stated_sum;

typedef struct stated_sums {
    stated_sum *items; /* sorted by file */
    uint32_t count;
} stated_sums;

static int by_file(const void *a, const void *b)
{
    const stated_sum *x = a, *y = b;
    return (x->file > y->file) - (x->file < y->file);
}

static tsr_status keep_sums(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count, tsr_error *err)
{
    stated_sums *kept = TSR_ARENA_NEW(checkpoint->arena, stated_sums, err);
    if (!kept) return TSR_E_NOMEM;
    *kept = (stated_sums){.items = tsr_arena_array(checkpoint->arena, count, sizeof *kept->items, err)};
    if (!kept->items) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count; f++)
        if (opened[f].sum.kind != TSR_SUM_NONE)
            kept->items[kept->count++] = (stated_sum){opened[f].file, opened[f].data_offset, opened[f].sum};
    if (kept->count) qsort(kept->items, kept->count, sizeof *kept->items, by_file);
    checkpoint->state = kept;
    return TSR_OK;
}

/* ---- metadata ---- */

/* What the files' __metadata__ says of the checkpoint: pairs of texts, and second names of tensors. */

/* The pairs of a file that describe the checkpoint: without second names, and without the places of shards if they are those
 * of one file of several. */
static tsr_status describe(const tsr_safetensors *opened, bool is_one_of_several, tsr_arena *arena, tsr_text_pairs *out,
                           tsr_error *err)
{
    const tsr_safetensors_second *second = opened->seconds;
    size_t left = opened->second_count;
    tsr_text_pair *kept = tsr_arena_array(arena, opened->metadata_count, sizeof *kept, err);
    if (!kept) return TSR_E_NOMEM;
    *out = (tsr_text_pairs){kept, 0};
    for (size_t i = 0; i < opened->metadata_count; i++) {
        const tsr_text_pair *pair = &opened->metadata[i];
        const bool is_second = left && second->pair == i, is_name = is_second && !second->is_text;
        if (is_second) second++, left--;
        if (is_name || tsr_safetensors_is_own_key(pair->key)) continue;
        if (is_one_of_several && tsr_str_equal(pair->key, TSR_STR(TSR_SAFETENSORS_SHARDING))) continue;
        kept[out->count++] = *pair;
    }
    return TSR_OK;
}

tsr_status tsr_safetensors_keep_metadata(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                         tsr_error *err)
{
    tsr_text_pairs *lists = tsr_arena_array(checkpoint->arena, count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    TSR_TRY(keep_sums(checkpoint, opened, count, err));
    for (uint32_t f = 0; f < count; f++) TSR_TRY(describe(&opened[f], count > 1, checkpoint->arena, &lists[f], err));
    tsr_part *parts = (tsr_part *)checkpoint->catalog.parts;
    for (uint32_t p = 0; p < checkpoint->catalog.part_count; p++) { /* one per file */
        parts[p].metadata = lists[p].pairs;
        parts[p].metadata_count = lists[p].count;
    }
    TSR_TRY(tsr_metadata_join(checkpoint, lists, count, "files", err));
    if (checkpoint->catalog.entry_count) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "safetensors/no-tensors", TSR_NOWHERE, err,
                           count == 1 ? "the file contains no tensors" : "the files contain no tensors");
}

static tsr_status settle(tsr_safetensors *opened, uint32_t count, tsr_map *names, tsr_error *err)
{
    for (uint32_t f = 0; f < count; f++)
        for (uint64_t i = 0; i < opened[f].count; i++)
            TSR_TRY(tsr_map_put(names, opened[f].tensors[i].name, f, NULL, NULL, err));
    for (uint32_t f = 0; f < count; f++) {
        for (size_t i = 0; i < opened[f].second_count; i++) {
            tsr_safetensors_second *second = &opened[f].seconds[i];
            bool is_new;
            TSR_TRY(tsr_map_put(names, opened[f].metadata[second->pair].key, f, NULL, &is_new, err));
            second->is_text = !is_new;
        }
    }
    return TSR_OK;
}

/* Decides for files whose tensors are listed together which second names no other file has as well. */
static tsr_status safetensors_settle_seconds(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count,
                                             tsr_error *err)
{
    size_t seconds = 0;
    for (uint32_t f = 0; f < count; f++) seconds += opened[f].second_count;
    if (count < 2 || !seconds) return TSR_OK;
    tsr_map *names = tsr_map_new(checkpoint->host->allocator, 0, err);
    const tsr_status status = names ? settle(opened, count, names, err) : TSR_E_NOMEM;
    tsr_map_free(names);
    return status;
}

tsr_entry tsr_safetensors_second_entry(tsr_entry *first, tsr_str name, uint32_t *storages)
{
    if (!first->storage_id) first->storage_id = ++*storages;
    tsr_entry entry = *first;
    entry.fqn = name;
    entry.is_second_name = true;
    entry.replicas = NULL; /* they are listed once */
    entry.replica_count = 0;
    return entry;
}

/* ---- parts ---- */

/* Restores the parts of a checkpoint that were written as one safetensors file per part.
 *
 *     model.safetensors       __metadata__: {"format": "pt", "tessera.part": "model"}        w        → model.w
 *     optim.safetensors       __metadata__: {"format": "pt", "tessera.part": "optim"}        state.…  → optim.state.… */

/* Whether the checkpoint's files are its parts: each states a part, and all are different. */
static bool safetensors_are_parts(const tsr_checkpoint *checkpoint, const tsr_safetensors *opened)
{
    const uint32_t count = checkpoint->file_count;
    if (checkpoint->store->primary != TSR_NO_FILE) return false; /* the user chose a file, and its names are its own */
    for (uint32_t f = 0; f < count; f++) {
        const tsr_str part = tsr_safetensors_metadata(&opened[f], TSR_STR(TSR_SAFETENSORS_PART));
        if (!part.data) return false;
        for (uint32_t other = 0; other < f; other++)
            if (tsr_str_equal(part, tsr_safetensors_metadata(&opened[other], TSR_STR(TSR_SAFETENSORS_PART)))) return false;
    }
    return true;
}

static tsr_status name_entry(tsr_entry *entry, tsr_str part, tsr_arena *arena, tsr_error *err)
{
    tsr_path_item *path = tsr_arena_array(arena, 2, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    path[0] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = part};
    path[1] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = entry->fqn};
    entry->path = path;
    entry->path_length = entry->fqn.size ? 2 : 1;
    entry->fqn =
        entry->fqn.size ? tsr_arena_format(arena, err, "%.*s.%.*s", TSR_STR_ARG(part), TSR_STR_ARG(entry->fqn)) : part;
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status name_part(tsr_entry *entries, const tsr_part *part, tsr_arena *arena, tsr_error *err)
{
    if (part->name.size == 0) return TSR_OK; /* entries of a format that belong to no part */
    for (uint64_t i = 0; i < part->entry_count; i++)
        TSR_TRY(name_entry(&entries[part->first_entry + i], part->name, arena, err));
    return TSR_OK;
}

/* If each of the checkpoint's files states which part it is, lists the parts and puts their names in front of the names of
 * the entries. The entries are in the order of the files, counts[f] of them per file. */
static tsr_status safetensors_name_parts(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, const uint64_t *counts,
                                         tsr_error *err)
{
    const uint32_t count = checkpoint->file_count;
    tsr_catalog *catalog = &checkpoint->catalog;
    uint64_t first = 0;
    if (!safetensors_are_parts(checkpoint, opened)) return TSR_OK;
    tsr_part *parts = tsr_arena_array(checkpoint->arena, count, sizeof *parts, err);
    if (!parts) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < count; first += counts[f++]) {
        parts[f] = (tsr_part){.name = tsr_safetensors_metadata(&opened[f], TSR_STR(TSR_SAFETENSORS_PART)),
                              .format = TSR_FORMAT_SAFETENSORS,
                              .files = 1,
                              .first_entry = first,
                              .entry_count = counts[f]};
        TSR_TRY(name_part((tsr_entry *)catalog->entries, &parts[f], checkpoint->arena, err));
    }
    catalog->parts = parts;
    catalog->part_count = count;
    return TSR_OK;
}

/* ---- reader ---- */

enum { MOVED_AT_ONCE = 1 << 16 }; /* tensors whose memory is freed together */

tsr_status tsr_safetensors_open_all(tsr_checkpoint *checkpoint, const uint32_t *files, uint32_t count, tsr_safetensors **out,
                                    tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    tsr_safetensors *opened = tsr_alloc(checkpoint->host->allocator, count, sizeof *opened, err);
    *out = NULL;
    if (!opened) return TSR_E_NOMEM;
    memset(opened, 0, count * sizeof *opened);
    for (uint32_t i = 0; i < count; i++) {
        tsr_status status = tsr_safetensors_open(tsr_whole_file(store, files[i]), checkpoint->host, checkpoint->arena,
                                                 checkpoint->findings, &opened[i], err);
        if (status == TSR_OK) continue;
        tsr_safetensors_close_all(checkpoint, opened, count);
        return status;
    }
    *out = opened;
    return TSR_OK;
}

void tsr_safetensors_close_all(tsr_checkpoint *checkpoint, tsr_safetensors *opened, uint32_t count)
{
    for (uint32_t i = 0; opened && i < count; i++) tsr_safetensors_close(&opened[i]);
    tsr_free(checkpoint->host->allocator, opened, count, sizeof *opened);
}

tsr_status tsr_safetensors_zeros(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count,
                                 const uint64_t **zeros, tsr_error *err)
{
    uint32_t ndim = 0;
    for (uint32_t f = 0; f < count; f++)
        for (uint64_t i = 0; i < opened[f].count; i++)
            if (opened[f].tensors[i].ndim > ndim) ndim = opened[f].tensors[i].ndim;
    *zeros = tsr_arena_array(checkpoint->arena, ndim, sizeof **zeros, err);
    return *zeros ? TSR_OK : TSR_E_NOMEM;
}

tsr_chunk tsr_safetensors_chunk(const tsr_safetensors *opened, const tsr_safetensors_tensor *tensor, const uint64_t *offsets)
{
    const uint64_t size = tensor->end - tensor->begin;
    /* A tensor without bytes cannot be lost: behind the end of a file that was cut short, it is at the end. */
    const uint64_t begin = size || tensor->begin <= opened->data_size ? tensor->begin : opened->data_size;
    return (tsr_chunk){
        .offsets = offsets,
        .sizes = tensor->shape,
        .byte_offset = opened->data_offset + begin,
        .byte_length = size,
        .file = begin + size <= opened->data_size ? opened->file : TSR_NO_FILE,
    };
}

/* Keeps the first `count` tensors, and frees the memory of the others and of the index of names. For a reader that moves a
 * million tensors elsewhere, the last ones first. */
static void safetensors_cut(tsr_safetensors *opened, uint64_t count)
{
    tsr_name_index_free(opened->names);
    opened->names = NULL;
    tsr_vec_cut(&opened->list, (size_t)count);
    opened->tensors = opened->list.items;
    opened->count = count;
}

/* Moves a file's tensors into entries, the last ones first, so that their memory can be freed while the entries are
 * written. */
static void move_tensors(tsr_safetensors *opened, const uint64_t *zeros, tsr_entry *entries, tsr_chunk *chunks)
{
    for (uint64_t i = opened->count; i-- > 0;) {
        const tsr_safetensors_tensor *t = &opened->tensors[i];
        chunks[i] = tsr_safetensors_chunk(opened, t, zeros);
        entries[i] = (tsr_entry){.fqn = t->name,
                                 .kind = TSR_ENTRY_TENSOR,
                                 .dtype = t->dtype,
                                 .ndim = t->ndim,
                                 .shape = t->shape,
                                 .chunks = &chunks[i],
                                 .chunk_count = 1};
        if (i % MOVED_AT_ONCE == 0) safetensors_cut(opened, i);
    }
}

/* Adds the second names of a file behind its `count` entries. */
static void add_seconds(const tsr_safetensors *opened, tsr_entry *entries, uint64_t count, uint32_t *storages)
{
    for (size_t i = 0; i < opened->second_count; i++) {
        const tsr_safetensors_second *second = &opened->seconds[i];
        if (second->is_text) continue;
        entries[count++] =
            tsr_safetensors_second_entry(&entries[second->tensor], opened->metadata[second->pair].key, storages);
    }
}

static uint64_t count_entries(const tsr_safetensors *opened)
{
    uint64_t count = opened->count;
    for (size_t i = 0; i < opened->second_count; i++) count += !opened->seconds[i].is_text;
    return count;
}

/* `counts` has the number of each file's entries. */
static tsr_status fill_catalog(tsr_checkpoint *checkpoint, tsr_safetensors *opened, const uint64_t *counts, uint32_t count,
                               tsr_error *err)
{
    const uint64_t *zeros;
    uint64_t total = 0, at;
    uint32_t storages = 0;
    for (uint32_t f = 0; f < count; f++) total += counts[f];
    TSR_TRY(tsr_safetensors_zeros(checkpoint, opened, count, &zeros, err));
    tsr_entry *entries = tsr_arena_room(checkpoint->arena, (size_t)total, sizeof *entries, err);
    tsr_chunk *chunks = entries ? tsr_arena_room(checkpoint->arena, (size_t)total, sizeof *chunks, err) : NULL;
    if (!chunks) return TSR_E_NOMEM;
    at = total;
    for (uint32_t f = count; f-- > 0;) {
        const uint64_t tensors = opened[f].count;
        at -= counts[f];
        move_tensors(&opened[f], zeros, entries + at, chunks + at);
        add_seconds(&opened[f], entries + at, tensors, &storages);
    }
    checkpoint->catalog.entries = entries;
    checkpoint->catalog.entry_count = total;
    return TSR_OK;
}

/* Leaves out the tensors that the file ends before. */
static tsr_status leave_out_lost(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_entry *entries = (tsr_entry *)checkpoint->catalog.entries;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        if (tsr_entry_lacks_bytes(&entries[i])) TSR_TRY(tsr_entry_report_lost(checkpoint, &entries[i], err));
        else entries[kept++] = entries[i];
    }
    checkpoint->catalog.entry_count = kept;
    return TSR_OK;
}

/* Warns about a file with one rank's shards of a sharded save, opened alone or with others: its shards look like whole
 * tensors. */
static tsr_status warn_of_shards(tsr_checkpoint *checkpoint, const tsr_safetensors *opened, uint32_t count, tsr_error *err)
{
    for (uint32_t f = 0; f < count; f++) {
        if (!tsr_safetensors_metadata(&opened[f], TSR_STR(TSR_SAFETENSORS_SHARDING)).data) continue;
        tsr_place place = {checkpoint->store->files[opened[f].file].name, TSR_NO_POSITION, {NULL, 0}};
        TSR_TRY(tsr_finding_add(
            checkpoint->findings, "dcp-safetensors/lone-shard", place, err,
            "the file contains one rank's shards of a sharded checkpoint; open its directory to see whole tensors"));
    }
    return TSR_OK;
}

/* save_pretrained writes config.json first and the index last, and from_pretrained loads no shards without it. Other programs do. */
static tsr_status report_absent_index(tsr_checkpoint *checkpoint, uint32_t count, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const tsr_str name = store->files[checkpoint->files[0]].name;
    const bool of_transformers = tsr_str_starts(name, TSR_STR("model-00001-of-")) && tsr_has_file(store, "config.json");
    if (!of_transformers)
        return tsr_finding_add(checkpoint->findings, "index/absent", TSR_NOWHERE, err,
                               "%u safetensors files without an index are read as one checkpoint", (unsigned)count);
    return tsr_finding_add_at(
        checkpoint->findings, (tsr_rated_rule){"index/absent", TSR_ERROR}, TSR_NOWHERE, err,
        "'model.safetensors.index.json' is missing next to 'config.json' and %u files of a model: transformers writes it last and does "
        "not load them without it, so the save was interrupted, or the file was not copied",
        (unsigned)count);
}

static tsr_status open_safetensors(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_safetensors *opened;
    uint32_t count = checkpoint->file_count;
    uint64_t *counts = tsr_arena_array(checkpoint->arena, count, sizeof *counts, err);
    if (!counts) return TSR_E_NOMEM;
    TSR_TRY(tsr_safetensors_open_all(checkpoint, checkpoint->files, count, &opened, err));
    tsr_status status =
        safetensors_are_parts(checkpoint, opened) ? TSR_OK : safetensors_settle_seconds(checkpoint, opened, count, err);
    for (uint32_t f = 0; f < count; f++) counts[f] = count_entries(&opened[f]);
    if (status == TSR_OK) status = fill_catalog(checkpoint, opened, counts, count, err);
    if (status == TSR_OK && count == 1 && checkpoint->options.salvage) status = leave_out_lost(checkpoint, err);
    if (status == TSR_OK) status = warn_of_shards(checkpoint, opened, count, err);
    if (status == TSR_OK) status = safetensors_name_parts(checkpoint, opened, counts, err);
    if (status == TSR_OK) status = tsr_safetensors_keep_metadata(checkpoint, opened, count, err);
    tsr_safetensors_close_all(checkpoint, opened, count);
    if (status == TSR_OK && count > 1 && !checkpoint->catalog.part_count)
        status = report_absent_index(checkpoint, count, err);
    return status;
}

typedef struct item {
    const tsr_entry *entry;
    const tsr_chunk *chunk;
} item;

static int compare_items(const void *left, const void *right)
{
    const tsr_chunk *a = ((const item *)left)->chunk, *b = ((const item *)right)->chunk;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->byte_offset != b->byte_offset) return a->byte_offset < b->byte_offset ? -1 : 1;
    return (a->byte_length > b->byte_length) - (a->byte_length < b->byte_length);
}

static size_t collect(const tsr_entry *entry, const tsr_chunk *chunks, uint64_t count, item *items)
{
    size_t kept = 0;
    if (entry && entry->is_second_name) return 0; /* the bytes are the first name's */
    for (uint64_t c = 0; c < count; c++)
        if (chunks[c].file != TSR_NO_FILE) items[kept++] = (item){entry, &chunks[c]};
    return kept;
}

/* Collects what each rank holds under one name. The entry only describes the ranks whose dtype is the entry's. */
static size_t collect_ranks(const tsr_entry *entry, item *items)
{
    size_t kept = 0;
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++) {
        const tsr_entry *held = entry->per_rank->tensors[r];
        if (held) kept += collect(held->dtype == entry->dtype ? entry : NULL, held->chunks, held->chunk_count, items + kept);
    }
    return kept;
}

/* ---- the extents ---- */

typedef struct walk {
    tsr_checkpoint *checkpoint;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
} walk;

/* Replaces what the sum does not cover as it is stored, and takes the digits. */
static void settle_header(uint8_t *header, const tsr_safetensors_sum *stated, tsr_file_sum *out)
{
    static const char key[] = "\"" TSR_SAFETENSORS_SUM "\":\"";
    uint8_t *digits = header + stated->position;
    if (out->is_misspelt) memcpy(digits - (sizeof key - 1), key, sizeof key - 1);
    for (size_t i = 0; i < sizeof TSR_SAFETENSORS_NO_SUM - 1; i++) {
        out->crc32 = out->crc32 << 4 | (uint32_t)(digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
        digits[i] = (uint8_t)TSR_SAFETENSORS_NO_SUM[i];
    }
}

static tsr_status read_sum(const tsr_checkpoint *checkpoint, const stated_sum *s, tsr_file_sum *out, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    const size_t size = (size_t)s->data_offset; /* a header has at most 100 MB */
    *out = (tsr_file_sum){.file = s->file,
                          .byte_offset = s->data_offset,
                          .byte_length = checkpoint->store->files[s->file].size - s->data_offset,
                          .is_misspelt = s->stated.kind == TSR_SUM_MISSPELT,
                          .position = s->stated.position};
    uint8_t *header = tsr_alloc(allocator, size, 1, err);
    if (!header) return TSR_E_NOMEM;
    const tsr_status status = tsr_store_read(checkpoint->store, s->file, 0, header, size, err);
    if (status == TSR_OK) {
        settle_header(header, &s->stated, out);
        out->before = tsr_crc32(checkpoint->host, 0, header, size);
    }
    tsr_free(allocator, header, size, 1);
    return status;
}

static tsr_status walk_item(const walk *w, const item *it, const tsr_file_sum *sum, tsr_error *err)
{
    const tsr_chunk *chunk = it->chunk;
    tsr_extent extent = {.file = chunk->file,
                         .byte_offset = chunk->byte_offset,
                         .byte_length = chunk->byte_length,
                         .entry = it->entry,
                         .chunk = chunk,
                         .view = {.file = chunk->file, .byte_offset = chunk->byte_offset},
                         .sum = sum};
    if (chunk->view) extent.entry = NULL; /* a strided part of a rank's tensor: the range also contains other elements */
    return w->each(w->ctx, &extent, err);
}

/* Bytes that belong to no entry. */
static tsr_status walk_gap(const walk *w, const tsr_file_sum *sum, uint64_t from, uint64_t to, tsr_error *err)
{
    const tsr_extent gap = {.file = sum->file,
                            .byte_offset = from,
                            .byte_length = to - from,
                            .sum = sum,
                            .ends = to == sum->byte_offset + sum->byte_length};
    return w->each(w->ctx, &gap, err);
}

/* The extents of a file that states its checksum. */
static tsr_status walk_summed(const walk *w, const stated_sum *s, const item *items, size_t count, tsr_error *err)
{
    tsr_file_sum sum;
    TSR_TRY(read_sum(w->checkpoint, s, &sum, err));
    uint64_t at = sum.byte_offset;
    for (size_t i = 0; i < count; i++) {
        const tsr_chunk *chunk = items[i].chunk;
        if (chunk->byte_offset > at) TSR_TRY(walk_gap(w, &sum, at, chunk->byte_offset, err));
        const bool overlaps = chunk->byte_offset < at;
        TSR_TRY(walk_item(w, &items[i], overlaps ? NULL : &sum, err));
        if (!overlaps) at = chunk->byte_offset + chunk->byte_length;
    }
    return walk_gap(w, &sum, at, sum.byte_offset + sum.byte_length, err); /* even if it is empty */
}

static tsr_status report_digits(const walk *w, const stated_sum *s, tsr_error *err)
{
    bool skips = false;
    const tsr_extent question = {.file = s->file, .byte_offset = s->stated.position, .skips = &skips};
    TSR_TRY(w->each(w->ctx, &question, err));
    if (skips) return TSR_OK;
    return tsr_finding_add(w->checkpoint->findings, "safetensors/crc",
                           (tsr_place){w->checkpoint->store->files[s->file].name, s->stated.position, {NULL, 0}}, err,
                           "the value of " TSR_SAFETENSORS_SUM
                           " is not eight lower-case hexadecimal digits, so the header is damaged");
}

static tsr_status walk_items(const walk *w, const item *items, size_t count, tsr_error *err)
{
    const stated_sums *sums = w->checkpoint->state;
    size_t i = 0;
    for (uint32_t s = 0; s < sums->count; s++) {
        const stated_sum *stated = &sums->items[s];
        for (; i < count && items[i].chunk->file < stated->file; i++) TSR_TRY(walk_item(w, &items[i], NULL, err));
        if (stated->stated.kind == TSR_SUM_NOT_DIGITS) {
            TSR_TRY(report_digits(w, stated, err));
            continue;
        }
        size_t of_file = i;
        while (of_file < count && items[of_file].chunk->file == stated->file) of_file++;
        TSR_TRY(walk_summed(w, stated, items + i, of_file - i, err));
        i = of_file;
    }
    for (; i < count; i++) TSR_TRY(walk_item(w, &items[i], NULL, err));
    return TSR_OK;
}

tsr_status tsr_safetensors_extents(tsr_checkpoint *checkpoint,
                                   tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                   tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_allocator *allocator = checkpoint->host->allocator;
    size_t total = 0, count = 0;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        const tsr_entry *entry = &catalog->entries[e];
        total += entry->chunk_count + entry->replica_count + (entry->per_rank ? entry->per_rank->count : 0);
    }
    item *items = tsr_alloc(allocator, total, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        const tsr_entry *entry = &catalog->entries[e];
        count += collect(entry, entry->chunks, entry->chunk_count, items + count);
        count += collect(entry, entry->replicas, entry->replica_count, items + count);
        count += collect_ranks(entry, items + count);
    }
    qsort(items, count, sizeof *items, compare_items);
    const walk w = {checkpoint, each, ctx};
    const tsr_status status = walk_items(&w, items, count, err);
    tsr_free(allocator, items, total, sizeof *items);
    return status;
}

const tsr_reader tsr_reader_safetensors = {
    .format = TSR_FORMAT_SAFETENSORS, .open = open_safetensors, .extents = tsr_safetensors_extents};
