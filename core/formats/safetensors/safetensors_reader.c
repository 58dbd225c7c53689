/* Reads one safetensors file, or several without an index, as a catalog. Each tensor is an entry with one chunk. */
#include "formats/safetensors/safetensors_reader.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tessera/sys/try.h"

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
    return (tsr_chunk){
        .offsets = offsets,
        .sizes = tensor->shape,
        .byte_offset = opened->data_offset + tensor->begin,
        .byte_length = tensor->end - tensor->begin,
        .file = tensor->end <= opened->data_size ? opened->file : TSR_NO_FILE,
    };
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
        if (i % MOVED_AT_ONCE == 0) tsr_safetensors_cut(opened, i);
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

static tsr_status open_safetensors(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_safetensors *opened;
    uint32_t count = checkpoint->file_count;
    uint64_t *counts = tsr_arena_array(checkpoint->arena, count, sizeof *counts, err);
    if (!counts) return TSR_E_NOMEM;
    TSR_TRY(tsr_safetensors_open_all(checkpoint, checkpoint->files, count, &opened, err));
    tsr_status status = tsr_safetensors_are_parts(checkpoint, opened)
                            ? TSR_OK
                            : tsr_safetensors_settle_seconds(checkpoint, opened, count, err);
    for (uint32_t f = 0; f < count; f++) counts[f] = count_entries(&opened[f]);
    if (status == TSR_OK) status = fill_catalog(checkpoint, opened, counts, count, err);
    if (status == TSR_OK) status = warn_of_shards(checkpoint, opened, count, err);
    if (status == TSR_OK) status = tsr_safetensors_name_parts(checkpoint, opened, counts, err);
    if (status == TSR_OK) status = tsr_safetensors_keep_metadata(checkpoint, opened, count, err);
    tsr_safetensors_close_all(checkpoint, opened, count);
    if (status == TSR_OK && count > 1 && !checkpoint->catalog.part_count)
        status = tsr_finding_add(checkpoint->findings, "index/absent", TSR_NOWHERE, err,
                                 "%u safetensors files without an index are read as one checkpoint", (unsigned)count);
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
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        const tsr_chunk *chunk = items[i].chunk;
        tsr_extent extent = {.file = chunk->file,
                             .byte_offset = chunk->byte_offset,
                             .byte_length = chunk->byte_length,
                             .entry = items[i].entry,
                             .chunk = chunk,
                             .view = {.file = chunk->file, .byte_offset = chunk->byte_offset}};
        if (chunk->view) extent.entry = NULL; /* a strided part of a rank's tensor: the range also contains other elements */
        status = each(ctx, &extent, err);
    }
    tsr_free(allocator, items, total, sizeof *items);
    return status;
}

const tsr_reader tsr_reader_safetensors = {
    .format = TSR_FORMAT_SAFETENSORS, .open = open_safetensors, .extents = tsr_safetensors_extents};
