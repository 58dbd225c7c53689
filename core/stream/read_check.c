/* See tessera/sys/read.h. */
#include "tessera/sys/read.h"

#include <stdlib.h>

#include "stream/gather.h"
#include "stream/tile_job.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

/* Bytes that are read before they are summed up: few enough to be in the cache still. */
enum { TILE_BYTES = 512 << 10 };

/* Bytes of a chunk that were read, in the order in which the chunk is stored. */
typedef struct summed {
    const tsr_chunk *chunk;
    const tsr_entry *entry;
    tsr_stated_crc stated; /* of the whole chunk */
    uint64_t at, size, whole;
    uint32_t crc;
} summed;

/* A run of bytes that the checksum of a file covers: a chunk, or bytes of no entry. */
typedef struct covered {
    const tsr_chunk *chunk;
    uint64_t byte_offset, byte_length;
} covered;

/* A file that states a checksum of all of its bytes. */
typedef struct summed_file {
    tsr_file_sum sum;
    size_t first, count; /* of what it covers */
} summed_file;

struct tsr_read_check {
    tsr_checkpoint *checkpoint;
    const tsr_host *host;
    uint32_t threads;
    tsr_vec *sums;            /* for each thread, of summed */
    tsr_vec files;            /* of summed_file */
    tsr_vec covers;           /* of covered */
    tsr_map *in_files;        /* the chunks in `covers`; NULL: there are none */
    const tsr_file_sum *last; /* while they are collected */
};

static tsr_str key_of(const tsr_chunk *const *chunk)
{
    return (tsr_str){(const char *)chunk, sizeof *chunk};
}

/* ---- files with a checksum ---- */

static tsr_status add_covered(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    tsr_read_check *check = ctx;
    if (extent->skips) *extent->skips = true; /* what is wrong with an item is for validate to say */
    if (!extent->sum || extent->sum->is_misspelt) return TSR_OK;
    if (extent->sum != check->last || !check->files.count) {
        summed_file *file = tsr_vec_push(&check->files, err);
        if (!file) return TSR_E_NOMEM;
        *file = (summed_file){.sum = *extent->sum, .first = check->covers.count};
    }
    summed_file *file = (summed_file *)check->files.items + check->files.count - 1;
    covered *one = tsr_vec_push(&check->covers, err);
    if (!one) return TSR_E_NOMEM;
    *one = (covered){extent->entry ? extent->chunk : NULL, extent->byte_offset, extent->byte_length};
    file->count++;
    check->last = extent->ends ? NULL : extent->sum; /* the next file may have its sum in the same place */
    return TSR_OK;
}

/* Only safetensors files state such checksums; the walk of other containers would open every item. */
static tsr_status find_files(tsr_read_check *check, tsr_error *err)
{
    if (tsr_checkpoint_has_crcs(check->checkpoint)) return TSR_OK;
    TSR_TRY(tsr_checkpoint_extents(check->checkpoint, add_covered, check, err));
    covered *covers = check->covers.items;
    if (!check->covers.count) return TSR_OK;
    check->in_files = tsr_map_new(check->host->allocator, check->covers.count, err);
    if (!check->in_files) return TSR_E_NOMEM;
    for (size_t i = 0; i < check->covers.count; i++)
        if (covers[i].chunk) TSR_TRY(tsr_map_put(check->in_files, key_of(&covers[i].chunk), (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

tsr_status tsr_read_check_new(tsr_checkpoint *checkpoint, uint32_t threads, tsr_read_check **out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_read_check *check = tsr_alloc(host->allocator, 1, sizeof *check, err);
    if (!check) return TSR_E_NOMEM;
    *check = (tsr_read_check){.checkpoint = checkpoint,
                              .host = host,
                              .threads = threads,
                              .files = tsr_vec_of(host->allocator, sizeof(summed_file)),
                              .covers = tsr_vec_of(host->allocator, sizeof(covered))};
    check->sums = tsr_alloc(host->allocator, threads, sizeof *check->sums, err);
    for (uint32_t t = 0; check->sums && t < threads; t++) check->sums[t] = tsr_vec_of(host->allocator, sizeof(summed));
    const tsr_status status = check->sums ? find_files(check, err) : TSR_E_NOMEM;
    *out = status == TSR_OK ? check : NULL;
    if (status != TSR_OK) tsr_read_check_free(check);
    return status;
}

void tsr_read_check_free(tsr_read_check *check)
{
    if (!check) return;
    for (uint32_t t = 0; check->sums && t < check->threads; t++) tsr_vec_free(&check->sums[t]);
    tsr_free(check->host->allocator, check->sums, check->threads, sizeof *check->sums);
    tsr_vec_free(&check->files);
    tsr_vec_free(&check->covers);
    tsr_map_free(check->in_files);
    tsr_free(check->host->allocator, check, 1, sizeof *check);
}

/* ---- reading ---- */

static tsr_status compare(const tsr_entry *entry, uint32_t crc, uint32_t stated, tsr_error *err)
{
    if (crc == stated) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
                     "'%.*s' is damaged: its bytes have CRC-32 %08x, but had %08x when they were saved",
                     TSR_STR_ARG(entry->fqn), (unsigned)crc, (unsigned)stated);
}

/* Keeps the sum of bytes of a chunk, or compares it if they are the whole chunk. Bytes that follow those of the sum before are added to it, so
 * that reading in order needs no memory. */
static tsr_status keep(tsr_vec *sums, const summed *sum, tsr_error *err)
{
    if (!sum->size) return TSR_OK;
    if (sum->stated.is_stated && sum->size == sum->whole) return compare(sum->entry, sum->crc, sum->stated.crc32, err);
    summed *before = sums->count ? (summed *)sums->items + sums->count - 1 : NULL;
    if (before && before->chunk == sum->chunk && before->at + before->size == sum->at) {
        before->crc = tsr_crc32_join(before->crc, sum->crc, sum->size);
        before->size += sum->size;
        return TSR_OK;
    }
    summed *kept = tsr_vec_push(sums, err);
    if (!kept) return TSR_E_NOMEM;
    *kept = *sum;
    return TSR_OK;
}

/* Adds the bytes of a chunk that are in a box, which was read to `data`. */
static tsr_status add(const tsr_read_check *check, const tsr_gather *gather, const tsr_located *part, tsr_box box,
                      const uint8_t *data, tsr_vec *sums, summed *sum, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], first, length;
    const tsr_box whole = {gather->ndim, part->offsets, part->sizes}, inner = {gather->ndim, offsets, sizes};
    tsr_box_walk walk;
    if (!tsr_box_intersect(whole, box, offsets, sizes)) return TSR_OK;
    if (!tsr_find_run(gather->dtype, whole, inner, &first, &length)) return TSR_OK;
    if (!sum->size || sum->at + sum->size != first) {
        TSR_TRY(keep(sums, sum, err));
        sum->at = first;
        sum->size = 0;
        sum->crc = 0;
    }
    for (tsr_box_walk_start(&walk, inner, whole, box); walk.runs_left; tsr_box_walk_next(&walk))
        sum->crc =
            tsr_crc32(check->host, sum->crc, data + walk.index_b * gather->itemsize, (size_t)walk.run * gather->itemsize);
    sum->size += length;
    return TSR_OK;
}

/* Prepares the sums of the chunks of a gather. *count is how many of them there is something to compare with. */
static tsr_status begin(const tsr_read_check *check, const tsr_gather *gather, summed **out, size_t *count, tsr_error *err)
{
    *count = 0;
    *out = tsr_arena_array(gather->arena, gather->part_count ? gather->part_count : 1, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < gather->part_count; i++) {
        const tsr_located *part = &gather->parts[i];
        uint64_t elements;
        if (!tsr_box_volume((tsr_box){gather->ndim, part->offsets, part->sizes}, &elements)) continue;
        const bool in_file = check->in_files && tsr_map_get(check->in_files, key_of(&part->chunk), UINT32_MAX) != UINT32_MAX;
        if (!part->crc.is_stated && !in_file) continue;
        (*out)[i] = (summed){part->chunk, gather->entry, part->crc, 0, 0, elements * gather->itemsize, 0};
        ++*count;
    }
    return TSR_OK;
}

/* Reads the box in tiles, and adds up each while it is in the cache. */
static tsr_status read_tiles(const tsr_read_check *check, const tsr_gather *gather, tsr_box box, uint8_t *buffer,
                             uint8_t *scratch, size_t scratch_size, tsr_vec *sums, tsr_error *err)
{
    summed *parts;
    size_t count;
    tsr_tiles tiles;
    TSR_TRY(begin(check, gather, &parts, &count, err));
    if (!count) return tsr_gather_box(gather, box, buffer, scratch, scratch_size, err);
    for (tsr_tiles_start(&tiles, box, TILE_BYTES / gather->itemsize); !tiles.done; tsr_tiles_next(&tiles)) {
        const tsr_box tile = {gather->ndim, tiles.offsets, tiles.sizes};
        uint8_t *to = buffer + tiles.first * gather->itemsize;
        TSR_TRY(tsr_gather_box(gather, tile, to, scratch, scratch_size, err));
        for (size_t i = 0; i < gather->part_count; i++)
            if (parts[i].chunk) TSR_TRY(add(check, gather, &gather->parts[i], tile, to, sums, &parts[i], err));
    }
    for (size_t i = 0; i < gather->part_count; i++)
        if (parts[i].chunk) TSR_TRY(keep(sums, &parts[i], err));
    return TSR_OK;
}

tsr_status tsr_read_box_checked(tsr_read_check *check, uint32_t thread, const tsr_entry *entry, tsr_box box, void *buffer,
                                size_t buffer_size, tsr_error *err)
{
    const tsr_allocator *allocator = check->host->allocator;
    tsr_gather *gather;
    TSR_TRY(tsr_box_must_fit(entry, box, buffer_size, err));
    const bool has_crcs = tsr_checkpoint_has_crcs(check->checkpoint) || check->in_files;
    /* The CRC of a compressed item is at its end, so finding it takes as long as reading the item. */
    if (!has_crcs || tsr_checkpoint_catalog(check->checkpoint)->compressed)
        return tsr_read_box(check->checkpoint, entry, box, buffer, buffer_size, err);
    TSR_TRY(tsr_gather_open_crcs(check->checkpoint, entry, &box, &gather, err));
    const size_t scratch_size = tsr_tile_memory(buffer_size) - buffer_size;
    uint8_t *scratch = tsr_alloc(allocator, scratch_size, 1, err);
    const tsr_status status =
        scratch ? read_tiles(check, gather, box, buffer, scratch, scratch_size, &check->sums[thread], err) : TSR_E_NOMEM;
    tsr_free(allocator, scratch, scratch_size, 1);
    tsr_gather_close(gather);
    return status;
}

/* ---- the end ---- */

static int by_place(const void *a, const void *b)
{
    const summed *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->chunk, q = (uintptr_t)y->chunk;
    return p != q ? (p > q) - (p < q) : (x->at > y->at) - (x->at < y->at);
}

/* Joins the sums of each chunk, which are sorted. Keeps those of whole chunks, which are compared if the chunk has a CRC. Bytes that were
 * read twice count once. */
static tsr_status join(tsr_vec *all, tsr_error *err)
{
    summed *sums = all->items;
    size_t kept = 0;
    for (size_t i = 0, next; i < all->count; i = next) {
        summed joined = sums[i];
        for (next = i + 1; next < all->count && sums[next].chunk == joined.chunk; next++) {
            if (sums[next].at != joined.at + joined.size) continue;
            joined.crc = tsr_crc32_join(joined.crc, sums[next].crc, sums[next].size);
            joined.size += sums[next].size;
        }
        if (joined.at != 0 || joined.size != joined.whole) continue;
        if (joined.stated.is_stated) TSR_TRY(compare(joined.entry, joined.crc, joined.stated.crc32, err));
        sums[kept++] = joined;
    }
    all->count = kept;
    return TSR_OK;
}

static tsr_status add_gap(const tsr_read_check *check, uint32_t file, covered gap, uint32_t *crc, tsr_error *err)
{
    uint8_t bytes[4096];
    while (gap.byte_length) {
        const size_t size = gap.byte_length < sizeof bytes ? (size_t)gap.byte_length : sizeof bytes;
        TSR_TRY(tsr_store_read(tsr_checkpoint_store(check->checkpoint), file, gap.byte_offset, bytes, size, err));
        *crc = tsr_crc32(check->host, *crc, bytes, size);
        gap.byte_offset += size;
        gap.byte_length -= size;
    }
    return TSR_OK;
}

/* The sum of the bytes of a covered chunk; NULL if they were not all read. */
static const summed *sum_of(const covered *one, const tsr_vec *whole)
{
    const summed key = {.chunk = one->chunk};
    const summed *found = whole->count ? bsearch(&key, whole->items, whole->count, sizeof key, by_place) : NULL;
    return found && found->size == one->byte_length ? found : NULL;
}

static tsr_status check_file(const tsr_read_check *check, const summed_file *file, const tsr_vec *whole, tsr_error *err)
{
    const covered *covers = (const covered *)check->covers.items + file->first;
    uint32_t crc = file->sum.before;
    for (size_t i = 0; i < file->count; i++)
        if (covers[i].chunk && covers[i].byte_length && !sum_of(&covers[i], whole)) return TSR_OK; /* not all was read */
    for (size_t i = 0; i < file->count; i++) {
        const summed *sum = covers[i].chunk && covers[i].byte_length ? sum_of(&covers[i], whole) : NULL;
        if (sum) crc = tsr_crc32_join(crc, sum->crc, sum->size);
        else TSR_TRY(add_gap(check, file->sum.file, covers[i], &crc, err));
    }
    const tsr_str name = tsr_checkpoint_store(check->checkpoint)->files[file->sum.file].name;
    if (crc == file->sum.crc32) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
                     "'%.*s' is damaged: the bytes of the file have CRC-32 %08x, but its header states %08x",
                     TSR_STR_ARG(name), (unsigned)crc, (unsigned)file->sum.crc32);
}

tsr_status tsr_read_check_end(tsr_read_check *check, tsr_error *err)
{
    tsr_vec all = tsr_vec_of(check->host->allocator, sizeof(summed));
    tsr_status status = TSR_OK;
    for (uint32_t t = 0; t < check->threads; t++) {
        if (status == TSR_OK) status = tsr_vec_append(&all, check->sums[t].items, check->sums[t].count, err);
        check->sums[t].count = 0;
    }
    if (all.count) qsort(all.items, all.count, sizeof(summed), by_place);
    if (status == TSR_OK) status = join(&all, err);
    const summed_file *files = check->files.items;
    for (size_t i = 0; i < check->files.count && status == TSR_OK; i++) status = check_file(check, &files[i], &all, err);
    tsr_vec_free(&all);
    return status;
}
