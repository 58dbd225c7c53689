/* Opens a tensor for reading: locates its chunks, checks them against their files, and sorts them. */
#include <stdlib.h>

#include "base/cursor.h"
#include "formats/common/reader.h"
#include "stream/gather.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- ahead ---- */

#define MOST_KEPT 8192u /* in chunks; they take less than 2 MiB */
enum { WHOLE_ARCHIVE = 256 << 10, TAIL_OF_ARCHIVE = 16 << 10, LEAST_WHOLE = 128 << 10, KEPT_WHOLE = 16 << 20 };

typedef struct place {
    const tsr_chunk *chunk; /* the key */
    const tsr_entry *entry;
    bool is_found;
    tsr_found found;
    uint64_t *strides; /* place for the strides of the entry's dims */
} place;

struct tsr_ahead {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    tsr_map *by_chunk; /* chunk → index in `places` */
    tsr_vec places;    /* of place * */
    size_t sought;     /* how many of them have been looked for */
    size_t wanted;     /* chunks that were requested since then, found or not */
};

static tsr_str key_of(const tsr_chunk *const *chunk)
{
    return (tsr_str){(const char *)chunk, sizeof *chunk};
}

static place *place_at(const tsr_ahead *ahead, size_t i)
{
    return ((place **)ahead->places.items)[i];
}

static tsr_status clear(tsr_ahead *ahead, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(ahead->checkpoint)->allocator;
    tsr_arena_free(ahead->arena);
    tsr_map_free(ahead->by_chunk);
    ahead->places.count = ahead->sought = 0;
    ahead->by_chunk = NULL; /* in case there is no memory for a new one */
    ahead->arena = tsr_arena_new(allocator, 0, err);
    if (ahead->arena) ahead->by_chunk = tsr_map_new(allocator, 0, err);
    return ahead->by_chunk ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ahead_make_room(tsr_ahead *ahead, tsr_error *err)
{
    return ahead && ahead->places.count >= MOST_KEPT ? clear(ahead, err) : TSR_OK;
}

tsr_status tsr_ahead_new(tsr_checkpoint *checkpoint, tsr_ahead **out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    *out = NULL;
    if (!checkpoint->reader->find) return TSR_OK;
    tsr_ahead *ahead = tsr_alloc(allocator, 1, sizeof *ahead, err);
    if (!ahead) return TSR_E_NOMEM;
    *ahead = (tsr_ahead){.checkpoint = checkpoint, .places = tsr_vec_of(allocator, sizeof(place *))};
    if (clear(ahead, err) != TSR_OK) {
        tsr_ahead_free(ahead);
        return TSR_E_NOMEM;
    }
    *out = ahead;
    return TSR_OK;
}

void tsr_ahead_free(tsr_ahead *ahead)
{
    if (!ahead) return;
    tsr_vec_free(&ahead->places);
    tsr_map_free(ahead->by_chunk);
    tsr_arena_free(ahead->arena);
    tsr_free(tsr_checkpoint_host(ahead->checkpoint)->allocator, ahead, 1, sizeof *ahead);
}

/* Requests one chunk, which must not have a view, however many are kept. `ahead` must not be NULL. */
static tsr_status ahead_want_chunk(tsr_ahead *ahead, const tsr_entry *entry, const tsr_chunk *chunk, tsr_error *err)
{
    if (tsr_map_get(ahead->by_chunk, key_of(&chunk), UINT32_MAX) != UINT32_MAX) return TSR_OK;
    place *own = TSR_ARENA_NEW(ahead->arena, place, err);
    place **slot = own ? tsr_vec_push(&ahead->places, err) : NULL;
    if (!slot) return TSR_E_NOMEM;
    *own = (place){.chunk = chunk, .entry = entry};
    *slot = own;
    own->strides = tsr_arena_array(ahead->arena, entry->ndim ? entry->ndim : 1, sizeof *own->strides, err);
    if (!own->strides) return TSR_E_NOMEM;
    return tsr_map_put(ahead->by_chunk, key_of(&own->chunk), (uint32_t)(ahead->places.count - 1), NULL, NULL, err);
}

tsr_status tsr_ahead_want(tsr_ahead *ahead, const tsr_entry *entry, const tsr_box *box, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    if (!ahead || entry->kind != TSR_ENTRY_TENSOR || entry->ndim > TSR_MAX_NDIM) return TSR_OK;
    if (!tsr_catalog_has(tsr_checkpoint_catalog(ahead->checkpoint), entry)) return TSR_OK;
    const bool by_box = box && box->ndim == entry->ndim;
    for (uint64_t i = 0; i < entry->chunk_count && ahead->places.count < MOST_KEPT; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        const tsr_box own = {entry->ndim, chunk->offsets, chunk->sizes};
        const bool is_there = chunk->file < tsr_checkpoint_store(ahead->checkpoint)->file_count && chunk->byte_length;
        if (chunk->view || !is_there || (by_box && !tsr_box_intersect(own, *box, offsets, sizes))) continue;
        ahead->wanted++;
        TSR_TRY(ahead_want_chunk(ahead, entry, chunk, err));
    }
    return TSR_OK;
}

/* Finds one chunk. Called by tsr_parallel. */
static void seek_one(void *arg, size_t index)
{
    const tsr_ahead *ahead = arg;
    place *p = place_at(ahead, ahead->sought + index);
    tsr_error why = {0};
    tsr_arena *scratch = tsr_arena_new(tsr_checkpoint_host(ahead->checkpoint)->allocator, 0, &why);
    if (!scratch) return;
    p->is_found = tsr_checkpoint_find(ahead->checkpoint, p->entry, p->chunk, scratch, &p->found, &why) == TSR_OK;
    if (p->is_found && p->found.view.strides) {
        memcpy(p->strides, p->found.view.strides, p->entry->ndim * sizeof *p->strides);
        p->found.view.strides = p->strides;
    }
    tsr_arena_free(scratch);
}

/* Whether the store still has all waiting items when their elements are read, so that they can be fetched whole. Otherwise they would be
 * fetched twice, such as those of a tensor that hundreds of ranks hold a few columns of. */
static bool are_kept(const tsr_ahead *ahead)
{
    uint64_t bytes = 0;
    for (size_t i = ahead->sought; i < ahead->places.count; i++) bytes += place_at(ahead, i)->chunk->byte_length;
    return bytes <= KEPT_WHOLE;
}

/* To find a tensor in a DCP item, both ends of the item are read (codec/zip.c). This tells a store that fetches ahead about
 * the ends of the next `count` chunks, at most TSR_FETCHED_AT_ONCE. Items of at most `whole` bytes are fetched whole, for the reads of
 * their elements. */
static void prefetch_items(const tsr_ahead *ahead, size_t count, uint64_t whole)
{
    tsr_store *store = tsr_checkpoint_store(ahead->checkpoint);
    tsr_store_place places[2 * TSR_FETCHED_AT_ONCE];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_chunk *c = place_at(ahead, ahead->sought + i)->chunk;
        const bool is_small = c->byte_length <= whole;
        places[used++] = (tsr_store_place){c->file, c->byte_offset, is_small ? c->byte_length : 1};
        if (!is_small)
            places[used++] = (tsr_store_place){c->file, c->byte_offset + c->byte_length - TAIL_OF_ARCHIVE, TAIL_OF_ARCHIVE};
    }
    if (used > 1) store->prefetch(store, places, used);
}

void tsr_ahead_seek(tsr_ahead *ahead)
{
    if (!ahead) return;
    const bool fetches = tsr_checkpoint_store(ahead->checkpoint)->prefetch;
    const uint64_t whole = are_kept(ahead) ? WHOLE_ARCHIVE : LEAST_WHOLE;
    ahead->wanted = 0;
    for (size_t count; (count = tsr_ahead_waiting(ahead)) > 0; ahead->sought += count) {
        if (fetches && count > TSR_FETCHED_AT_ONCE) count = TSR_FETCHED_AT_ONCE;
        if (fetches) prefetch_items(ahead, count, whole);
        tsr_parallel(tsr_checkpoint_host(ahead->checkpoint), count, seek_one, ahead);
    }
}

bool tsr_ahead_fetches(const tsr_ahead *ahead)
{
    return ahead && tsr_checkpoint_store(ahead->checkpoint)->prefetch;
}

bool tsr_ahead_is_full(const tsr_ahead *ahead)
{
    return tsr_ahead_fetches(ahead) && ahead->wanted >= TSR_FETCHED_AT_ONCE;
}

size_t tsr_ahead_waiting(const tsr_ahead *ahead)
{
    return ahead ? ahead->places.count - ahead->sought : 0;
}

const tsr_found *tsr_ahead_find(const tsr_ahead *ahead, const tsr_chunk *chunk)
{
    const uint32_t i = ahead ? tsr_map_get(ahead->by_chunk, key_of(&chunk), UINT32_MAX) : UINT32_MAX;
    return i < (ahead ? ahead->sought : 0) && place_at(ahead, i)->is_found ? &place_at(ahead, i)->found : NULL;
}

/* ---- gather open ---- */

enum { FOUND_AT_ONCE = 256 };

/* ---- dtype and shape ---- */

tsr_status tsr_gather_pack(const tsr_entry *entry, tsr_packed *out, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR, err, TSR_E_UNSUPPORTED, "'%.*s' is not a dense tensor (%.*s)",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type));
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' has %u dimensions; at most %u are supported",
                TSR_STR_ARG(entry->fqn), (unsigned)entry->ndim, (unsigned)TSR_MAX_NDIM);
    out->dtype = entry->dtype;
    out->ndim = entry->ndim;
    for (uint32_t d = 0; d < entry->ndim; d++) out->shape[d] = entry->shape[d];
    bool whole = out->ndim == 0 ? out->dtype != TSR_FLOAT4_E2M1FN : tsr_dtype_pack(&out->dtype, &out->shape[out->ndim - 1]);
    if (tsr_dtype_describe(out->dtype)->bits == 6) {
        out->dtype = TSR_UINT8;
        out->ndim = 1;
        whole = tsr_entry_bytes(entry, &out->shape[0]);
    }
    uint64_t bytes;
    whole = whole && tsr_box_volume((tsr_box){out->ndim, NULL, out->shape}, &out->elements) &&
            tsr_dtype_bytes(out->dtype, out->elements, &bytes);
    TSR_FAIL_IF(!whole, err, TSR_E_FORMAT, "'%.*s': its size is not a whole number of bytes, or it is too large",
                TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

bool tsr_find_run(tsr_dtype dtype, tsr_box whole, tsr_box box, uint64_t *byte_first, uint64_t *byte_length)
{
    static const uint64_t zeros[TSR_MAX_NDIM];
    uint64_t elements;
    if (!tsr_box_is_contiguous(whole, box) || !tsr_box_volume(box, &elements)) return false;
    const uint64_t first = elements ? tsr_box_index(whole, box.offsets ? box.offsets : zeros) : 0;
    return tsr_dtype_bytes(dtype, first, byte_first) && tsr_dtype_bytes(dtype, elements, byte_length);
}

/* ---- one chunk ---- */

static const uint64_t *row_major(tsr_arena *arena, uint32_t ndim, const uint64_t *sizes, tsr_error *err)
{
    uint64_t *strides = tsr_arena_array(arena, ndim, sizeof *strides, err);
    if (!strides) return NULL;
    uint64_t step = 1;
    for (uint32_t d = ndim; d-- > 0;) {
        strides[d] = step;
        step *= sizes[d];
    }
    return strides;
}

/* Computes the number of bytes from the first element of the part to the end of its last one. Returns false if that
 * overflows. */
static bool part_span(const tsr_gather *gather, const tsr_located *part, uint64_t *span)
{
    uint64_t last = 0, step;
    for (uint32_t d = 0; d < gather->ndim; d++) {
        if (!tsr_mul_u64(part->sizes[d] - 1, part->strides[d], &step) || !tsr_add_u64(last, step, &last)) return false;
    }
    return tsr_add_u64(last, 1, &last) && tsr_mul_u64(last, gather->itemsize, span);
}

static tsr_status check_part(const tsr_gather *gather, tsr_located *part, tsr_error *err)
{
    const tsr_str fqn = gather->entry->fqn;
    const tsr_store *store = tsr_checkpoint_store(gather->checkpoint);
    uint64_t end;
    TSR_FAIL_AT(!part_span(gather, part, &part->span) || !tsr_add_u64(part->view.byte_offset, part->span, &end), err,
                TSR_E_FORMAT, part->view.byte_offset,
                "'%.*s': the strides of a chunk reach beyond the largest possible file", TSR_STR_ARG(fqn));
    if (part->view.file >= store->file_count) return tsr_checkpoint_raise_missing(gather->checkpoint, fqn, err);
    const tsr_store_file *file = &store->files[part->view.file];
    TSR_FAIL_AT(!part->view.zstd && end > file->size, err, TSR_E_FORMAT, part->view.byte_offset,
                "'%.*s': a chunk ends at %llu, beyond the end of %.*s (%llu bytes)", TSR_STR_ARG(fqn),
                (unsigned long long)end, TSR_STR_ARG(file->name), (unsigned long long)file->size);
    return TSR_OK;
}

/* Sets the offsets and sizes of a chunk, in the units of the gather's dtype and shape. */
static tsr_status set_box(tsr_gather *gather, const tsr_chunk *chunk, tsr_located *part, tsr_error *err)
{
    const tsr_entry *entry = gather->entry;
    part->offsets = chunk->offsets;
    part->sizes = chunk->sizes;
    if (gather->dtype == entry->dtype) return TSR_OK;
    uint64_t *box = tsr_arena_array(gather->arena, 2 * (size_t)gather->ndim, sizeof *box, err);
    if (!box) return TSR_E_NOMEM;
    uint64_t *offsets = box, *sizes = box + gather->ndim;
    bool fits = true;
    if (gather->dtype == TSR_FLOAT4_E2M1FN_X2) {
        memcpy(offsets, chunk->offsets, gather->ndim * sizeof *box);
        memcpy(sizes, chunk->sizes, gather->ndim * sizeof *box);
        fits = gather->ndim && offsets[gather->ndim - 1] % 2 == 0 && sizes[gather->ndim - 1] % 2 == 0;
        offsets[gather->ndim - 1] /= 2;
        sizes[gather->ndim - 1] /= 2;
    } else {
        fits =
            tsr_box_equal((tsr_box){entry->ndim, chunk->offsets, chunk->sizes}, (tsr_box){entry->ndim, NULL, entry->shape});
        sizes[0] = gather->elements;
    }
    TSR_FAIL_AT(!fits, err, TSR_E_UNSUPPORTED, chunk->byte_offset, "'%.*s': a chunk of %s is not byte-aligned",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    part->offsets = offsets;
    part->sizes = sizes;
    return TSR_OK;
}

static tsr_status set_strides(tsr_gather *gather, const tsr_chunk *chunk, tsr_located *part, tsr_error *err)
{
    TSR_FAIL_AT(part->view.strides && gather->dtype != gather->entry->dtype, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
                "'%.*s': %s with strides", TSR_STR_ARG(gather->entry->fqn), tsr_dtype_describe(gather->entry->dtype)->name);
    part->strides = part->view.strides ? part->view.strides : row_major(gather->arena, gather->ndim, part->sizes, err);
    return part->strides ? check_part(gather, part, err) : TSR_E_NOMEM;
}

/* Returns what was found of a chunk without a view, before the gather was opened or while it is being opened; otherwise
 * NULL. */
static const tsr_found *find_known(const tsr_gather *gather, const tsr_chunk *chunk)
{
    const tsr_found *found = chunk->view ? NULL : tsr_ahead_find(gather->ahead, chunk);
    return found || chunk->view ? found : tsr_ahead_find(gather->own_ahead, chunk);
}

/* Copies the strides, because own_ahead is freed once the gather is open. */
static tsr_status take_known(const tsr_gather *gather, const tsr_found *known, tsr_located *part, tsr_error *err)
{
    part->view = known->view;
    part->crc = known->crc;
    if (!known->view.strides) return TSR_OK;
    uint64_t *strides = tsr_arena_array(gather->arena, gather->entry->ndim, sizeof *strides, err);
    if (!strides) return TSR_E_NOMEM;
    memcpy(strides, known->view.strides, gather->entry->ndim * sizeof *strides);
    part->view.strides = strides;
    return TSR_OK;
}

static tsr_status find(const tsr_gather *gather, const tsr_chunk *chunk, tsr_located *part, tsr_error *err)
{
    tsr_found found;
    TSR_TRY(tsr_checkpoint_find(gather->checkpoint, gather->entry, chunk, gather->arena, &found, err));
    part->view = found.view;
    part->crc = found.crc;
    return TSR_OK;
}

static tsr_status add_part(tsr_gather *gather, const tsr_chunk *chunk, const tsr_box *box, tsr_error *err)
{
    tsr_located *part = &gather->parts[gather->part_count];
    const tsr_box whole = {gather->ndim, NULL, gather->shape};
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    *part = (tsr_located){0};
    TSR_TRY(set_box(gather, chunk, part, err));
    const tsr_box own = {gather->ndim, part->offsets, part->sizes};
    TSR_FAIL_AT(!tsr_box_contains(whole, own), err, TSR_E_FORMAT, chunk->byte_offset,
                "'%.*s': a chunk reaches beyond the tensor", TSR_STR_ARG(gather->entry->fqn));
    if (tsr_box_is_empty(own) || (box && !tsr_box_intersect(own, *box, offsets, sizes))) return TSR_OK;
    if (chunk->file == TSR_NO_FILE) return tsr_checkpoint_raise_missing(gather->checkpoint, gather->entry->fqn, err);
    const tsr_found *known = find_known(gather, chunk);
    part->chunk = chunk;
    if (known) TSR_TRY(take_known(gather, known, part, err));
    else if (gather->wants_crcs) TSR_TRY(find(gather, chunk, part, err));
    else TSR_TRY(tsr_checkpoint_locate(gather->checkpoint, gather->entry, chunk, gather->arena, &part->view, err));
    TSR_TRY(set_strides(gather, chunk, part, err));
    for (uint32_t d = 0; d < gather->ndim; d++) offsets[d] = part->offsets[d] + part->sizes[d] - 1;
    part->first = tsr_box_index(whole, part->offsets);
    part->last = tsr_box_index(whole, offsets);
    gather->serial = gather->serial || part->view.zstd;
    gather->part_count++;
    return TSR_OK;
}

/* ---- all chunks ---- */

static int by_first(const void *a, const void *b)
{
    const tsr_located *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Whether the chunk must be located, because elements of it are wanted. */
static bool is_sought(const tsr_gather *gather, const tsr_chunk *chunk, const tsr_box *box)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    const tsr_box own = {gather->ndim, chunk->offsets, chunk->sizes};
    const uint32_t file_count = tsr_checkpoint_store(gather->checkpoint)->file_count;
    if (chunk->view || chunk->file >= file_count || !chunk->byte_length || find_known(gather, chunk)) return false;
    return !box || gather->dtype != gather->entry->dtype || tsr_box_intersect(own, *box, offsets, sizes);
}

/* Finds the chunks together, as far as own_ahead can. */
static tsr_status find_together(tsr_gather *gather, const tsr_chunk *chunks, uint64_t count, const tsr_box *box,
                                tsr_error *err)
{
    TSR_TRY(tsr_ahead_make_room(gather->own_ahead, err));
    for (uint64_t i = 0; gather->own_ahead && i < count; i++)
        if (is_sought(gather, &chunks[i], box)) TSR_TRY(ahead_want_chunk(gather->own_ahead, gather->entry, &chunks[i], err));
    tsr_ahead_seek(gather->own_ahead);
    return TSR_OK;
}

static tsr_status add_parts(tsr_gather *gather, const tsr_chunk *chunks, uint64_t count, const tsr_box *box, tsr_error *err)
{
    for (uint64_t i = 0; i < count;) {
        const uint64_t end = count - i < FOUND_AT_ONCE ? count : i + FOUND_AT_ONCE;
        TSR_TRY(find_together(gather, &chunks[i], end - i, box, err));
        for (; i < end; i++) TSR_TRY(add_part(gather, &chunks[i], box, err));
    }
    return TSR_OK;
}

static tsr_status fill_parts(tsr_gather *gather, const tsr_chunk *chunks, uint64_t count, const tsr_box *box, tsr_error *err)
{
    const bool fetches = tsr_checkpoint_store(gather->checkpoint)->prefetch;
    const bool together = count > 1 && (fetches || tsr_threads(tsr_checkpoint_host(gather->checkpoint)) > 1);
    gather->parts = tsr_arena_array(gather->arena, count, sizeof *gather->parts, err);
    gather->furthest = tsr_arena_array(gather->arena, count, sizeof *gather->furthest, err);
    if (!gather->parts || !gather->furthest) return TSR_E_NOMEM;
    if (together) TSR_TRY(tsr_ahead_new(gather->checkpoint, &gather->own_ahead, err));
    const tsr_status status = add_parts(gather, chunks, count, box, err);
    tsr_ahead_free(gather->own_ahead);
    gather->own_ahead = NULL;
    TSR_TRY(status);
    qsort(gather->parts, gather->part_count, sizeof *gather->parts, by_first);
    for (size_t i = 0; i < gather->part_count; i++) {
        const uint64_t before = i ? gather->furthest[i - 1] : 0;
        gather->furthest[i] = gather->parts[i].last > before ? gather->parts[i].last : before;
    }
    return TSR_OK;
}

/* Refuses elements of the box that are in two parts. The number of elements read does not show them, because an element in
 * two parts may compensate for one in none. */
static tsr_status must_not_overlap(tsr_gather *gather, const tsr_box *box, tsr_error *err)
{
    const uint32_t ndim = gather->ndim;
    tsr_tiling tiling;
    uint64_t count = 0;
    tsr_chunk *inside = tsr_arena_array(gather->arena, gather->part_count, sizeof *inside, err);
    uint64_t *numbers = tsr_arena_array(gather->arena, gather->part_count, 2 * (size_t)ndim * sizeof *numbers, err);
    if (!inside || !numbers) return TSR_E_NOMEM;
    for (size_t i = 0; i < gather->part_count; i++, numbers += 2 * ndim) {
        const tsr_box part = {ndim, gather->parts[i].offsets, gather->parts[i].sizes};
        if (!tsr_box_intersect(part, *box, numbers, numbers + ndim)) continue;
        for (uint32_t d = 0; d < ndim; d++) numbers[d] -= tsr_box_offset(*box, d);
        inside[count++] = (tsr_chunk){.offsets = numbers, .sizes = numbers + ndim};
    }
    const tsr_allocator *allocator = tsr_checkpoint_host(gather->checkpoint)->allocator;
    TSR_TRY(tsr_tiling_check(allocator, (tsr_shape){ndim, box->sizes}, inside, count, &tiling, err));
    TSR_FAIL_IF(tiling.overlap[0] != TSR_NO_CHUNK, err, TSR_E_FORMAT, "'%.*s': its chunks overlap",
                TSR_STR_ARG(gather->entry->fqn));
    return TSR_OK;
}

/* ---- opening and closing ---- */

static tsr_status new_gather(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_gather **out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_gather *gather = arena ? TSR_ARENA_NEW(arena, tsr_gather, err) : NULL;
    uint64_t *shape = gather ? tsr_arena_array(arena, TSR_MAX_NDIM, sizeof *shape, err) : NULL;
    if (!shape) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *gather = (tsr_gather){.checkpoint = checkpoint, .entry = entry, .arena = arena, .shape = shape};
    *out = gather;
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    gather->dtype = packed.dtype;
    gather->ndim = packed.ndim;
    gather->elements = packed.elements;
    memcpy(shape, packed.shape, packed.ndim * sizeof *shape);
    gather->itemsize = tsr_dtype_size(gather->dtype);
    gather->bytes = gather->elements * gather->itemsize;
    return TSR_OK;
}

static tsr_status closed_on_failure(tsr_status status, tsr_gather *gather, tsr_gather **out)
{
    *out = status == TSR_OK ? gather : NULL;
    if (status != TSR_OK) tsr_gather_close(gather);
    return status;
}

static tsr_status open_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, const tsr_ahead *ahead,
                           bool wants_crcs, tsr_gather **out, tsr_error *err)
{
    tsr_gather *gather = NULL;
    tsr_status status = new_gather(checkpoint, entry, &gather, err);
    if (status == TSR_OK) {
        gather->ahead = ahead;
        gather->wants_crcs = wants_crcs;
    }
    if (status == TSR_OK && !box) status = tsr_entry_must_tile(entry, tsr_checkpoint_host(checkpoint)->allocator, err);
    if (status == TSR_OK) status = fill_parts(gather, entry->chunks, entry->chunk_count, box, err);
    if (status == TSR_OK && box && gather->part_count > 1) status = must_not_overlap(gather, box, err);
    return closed_on_failure(status, gather, out);
}

tsr_status tsr_gather_open(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, tsr_gather **out,
                           tsr_error *err)
{
    return open_box(checkpoint, entry, box, NULL, false, out, err);
}

tsr_status tsr_gather_open_found(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box,
                                 const tsr_ahead *ahead, tsr_gather **out, tsr_error *err)
{
    return open_box(checkpoint, entry, box, ahead, false, out, err);
}

tsr_status tsr_gather_open_crcs(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, tsr_gather **out,
                                tsr_error *err)
{
    return open_box(checkpoint, entry, box, NULL, true, out, err);
}

tsr_status tsr_gather_open_chunks(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunks,
                                  uint64_t count, tsr_gather **out, tsr_error *err)
{
    tsr_gather *gather = NULL;
    tsr_status status = new_gather(checkpoint, entry, &gather, err);
    if (status == TSR_OK) status = fill_parts(gather, chunks, count, NULL, err);
    return closed_on_failure(status, gather, out);
}

const tsr_entry *tsr_entry_readable(tsr_checkpoint *checkpoint, tsr_arena *arena, const tsr_entry *entry, tsr_error *err)
{
    if (tsr_catalog_has(tsr_checkpoint_catalog(checkpoint), entry)) return entry;
    tsr_entry *copy = TSR_ARENA_NEW(arena, tsr_entry, err);
    tsr_chunk *chunks = copy ? tsr_arena_array(arena, (size_t)entry->chunk_count, sizeof *chunks, err) : NULL;
    tsr_view *views = chunks ? tsr_arena_array(arena, (size_t)entry->chunk_count, sizeof *views, err) : NULL;
    if (!views) return NULL;
    *copy = *entry;
    copy->chunks = chunks;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        chunks[i] = entry->chunks[i];
        views[i] = (tsr_view){.file = chunks[i].file, .byte_offset = chunks[i].byte_offset};
        if (!chunks[i].view) chunks[i].view = &views[i];
    }
    return copy;
}
