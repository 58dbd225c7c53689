/* Makes the read items of one rank. The boxes of each class are computed once and shared by its tensors; then the items are
 * sorted by where they are read. */
#include <stdlib.h>

#include "base/cursor.h"
#include "layout/shard.h"
#include "plan/plan_room.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"

/* ---- storage ---- */

/* Computes how many bytes a plan reads from each server of a parallel file system, and orders each rank's items by
 * server. */

/* The byte range of a chunk's elements. All of a plan's reads together read every element once. */
static tsr_byte_range elements_of(const tsr_chunk *chunk, uint64_t bytes)
{
    const tsr_view *view = chunk->view;
    if (!view) return (tsr_byte_range){chunk->file, chunk->byte_offset, bytes};
    if (view->zstd || view->strides) return (tsr_byte_range){chunk->file, chunk->byte_offset, chunk->byte_length};
    return (tsr_byte_range){chunk->file, view->byte_offset, bytes};
}

static void add_tensor(const tsr_plan_tensor *tensor, const tsr_storage *storage, double *bytes)
{
    const tsr_entry *packed = tensor->packed;
    for (uint64_t i = 0; i < packed->chunk_count; i++) {
        uint64_t elements = 0;
        tsr_box_volume((tsr_box){packed->ndim, NULL, packed->chunks[i].sizes}, &elements);
        const uint64_t size = elements * tsr_plan_bits(tensor) / 8;
        if (size) tsr_storage_spread(storage, elements_of(tsr_plan_source(tensor, i), size), (double)size, bytes);
    }
}

tsr_status tsr_plan_count_servers(const tsr_plan *plan, const tsr_storage *storage, tsr_arena *arena,
                                  const tsr_server_load **out, tsr_error *err)
{
    double *bytes = tsr_arena_array(arena, storage->server_count, sizeof *bytes, err);
    tsr_server_load *loads = tsr_arena_array(arena, storage->server_count, sizeof *loads, err);
    if (!bytes || !loads) return TSR_E_NOMEM;
    for (uint64_t t = 0; t < plan->tensors.count; t++) add_tensor(&tsr_plan_tensors(plan)[t], storage, bytes);
    for (uint32_t s = 0; s < storage->server_count; s++)
        loads[s] = (tsr_server_load){(uint64_t)(bytes[s] + 0.5), bytes[s] / storage->servers[s].bandwidth};
    *out = loads;
    return TSR_OK;
}

uint32_t tsr_storage_assumed(const tsr_storage *storage, const tsr_plan_totals *totals)
{
    uint32_t count = 0;
    for (uint32_t f = 0; f < storage->file_count && f < totals->file_count; f++)
        count += storage->files[f].assumed && totals->per_file[f].reads;
    return count;
}

/* Reorders a rank's items, which are sorted by file, for the plan's storage. TSR_E_NOMEM. */
static tsr_status plan_order_items(const tsr_plan *plan, uint64_t dest_rank, tsr_read_item *items, uint64_t count,
                                   tsr_error *err)
{
    const tsr_allocator *allocator = plan->host->allocator;
    tsr_storage_item *order = count ? tsr_alloc(allocator, count, sizeof *order, err) : NULL;
    tsr_read_item *old = order ? tsr_alloc(allocator, count, sizeof *old, err) : NULL;
    for (uint64_t i = 0; old && i < count; i++) {
        const tsr_byte_range range = tsr_read_item_bytes(plan, &items[i]);
        order[i] = (tsr_storage_item){tsr_storage_server_at(plan->storage, range.file, range.byte_offset),
                                      tsr_storage_cost(plan->storage, range), i};
        old[i] = items[i];
    }
    if (old) tsr_storage_order(plan->storage, (tsr_storage_reader){dest_rank, plan->ranks}, order, count);
    for (uint64_t i = 0; old && i < count; i++) items[i] = old[order[i].number];
    const tsr_status status = old || !count ? TSR_OK : TSR_E_NOMEM;
    if (old) tsr_free(allocator, old, count, sizeof *old);
    if (order) tsr_free(allocator, order, count, sizeof *order);
    return status;
}

/* ---- rank ---- */

/* One box copy, which is the same for all tensors of a class. */
typedef struct piece {
    uint64_t chunk;
    const uint64_t *offsets, *dest_offsets, *storage_offsets, *lengths;
} piece;

typedef struct piece_list {
    piece *pieces;
    size_t count;
    bool made;
} piece_list;

/* Parameters for making the pieces of a class. */
typedef struct piece_maker {
    const tsr_plan_class *of;
    tsr_vec *pieces;
    tsr_arena *arena;
    tsr_error *err;
} piece_maker;

/* A chunk and a box of the destination that intersect. */
typedef struct meeting {
    uint64_t chunk;
    const tsr_shard_box *box;
} meeting;

static tsr_status add_piece(const piece_maker *m, meeting of, const uint64_t *offsets, const uint64_t *sizes)
{
    const uint32_t ndim = m->of->sample->ndim;
    const uint64_t *chunk_offsets = m->of->sample->chunks[of.chunk].offsets;
    uint64_t *numbers = tsr_arena_array(m->arena, ndim, 4 * sizeof *numbers, m->err);
    piece *p = numbers ? tsr_vec_push(m->pieces, m->err) : NULL;
    if (!p) return TSR_E_NOMEM;
    *p = (piece){of.chunk, numbers, numbers + ndim, numbers + 2 * ndim, numbers + 3 * ndim};
    for (uint32_t d = 0; d < ndim; d++) {
        numbers[d] = offsets[d];
        numbers[ndim + d] = of.box->local_offsets[d] + (offsets[d] - of.box->offsets[d]);
        numbers[2 * ndim + d] = offsets[d] - chunk_offsets[d];
        numbers[3 * ndim + d] = sizes[d];
    }
    return TSR_OK;
}

/* For a 1-d local tensor: adds a piece for each run that is contiguous there. */
static tsr_status add_flat_pieces(const piece_maker *m, meeting of, const uint64_t *offsets, const uint64_t *sizes)
{
    const tsr_shard_box *box = of.box;
    uint64_t runs, at[TSR_MAX_NDIM] = {0}, inner[TSR_MAX_NDIM] = {0}, place[TSR_MAX_NDIM];
    const uint32_t ndim = m->of->sample->ndim, split = tsr_flat_split(ndim, box->sizes, sizes, &runs);
    for (uint64_t run = 0; run < runs; run++) {
        uint64_t left = run;
        for (uint32_t d = ndim; d-- > 0;) {
            inner[d] = d < split ? 1 : sizes[d];
            at[d] = offsets[d] + (d < split ? left % sizes[d] : 0);
            if (d < split) left /= sizes[d];
            place[d] = at[d] - box->offsets[d];
        }
        TSR_TRY(add_piece(m, of, at, inner));
        const piece *p = (const piece *)m->pieces->items + m->pieces->count - 1;
        uint64_t *dest = (uint64_t *)(uintptr_t)p->dest_offsets;
        for (uint32_t d = 0; d < ndim; d++) dest[d] = 0;
        if (ndim) dest[0] = box->local_offsets[0] + tsr_box_index((tsr_box){ndim, NULL, box->sizes}, place);
    }
    return TSR_OK;
}

static tsr_status make_pieces(const tsr_plan_class *c, uint64_t holder, tsr_vec *scratch, tsr_arena *arena, piece_list *out,
                              tsr_error *err)
{
    tsr_shard shard;
    tsr_chunk_query query;
    uint64_t chunk, offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    const piece_maker maker = {c, scratch, arena, err};
    scratch->count = 0;
    TSR_TRY(tsr_layout_shard(c->layout, holder, arena, &shard, err));
    for (uint64_t b = 0; b < shard.box_count; b++) {
        const tsr_shard_box *box = &shard.boxes[b];
        tsr_chunk_query_start(&query, &c->index, (tsr_box){shard.ndim, box->offsets, box->sizes});
        while (tsr_chunk_query_next(&query, &chunk, offsets, sizes)) {
            TSR_TRY((c->layout->flat ? add_flat_pieces : add_piece)(&maker, (meeting){chunk, box}, offsets, sizes));
        }
    }
    out->pieces = tsr_arena_array(arena, scratch->count, sizeof *out->pieces, err);
    if (!out->pieces) return TSR_E_NOMEM;
    if (scratch->count) memcpy(out->pieces, scratch->items, scratch->count * sizeof *out->pieces);
    out->count = scratch->count;
    out->made = true;
    return TSR_OK;
}

static int compare_items(const void *left, const void *right)
{
    const tsr_read_item *a = left, *b = right;
    if (a->chunk->file != b->chunk->file) return a->chunk->file < b->chunk->file ? -1 : 1;
    if (a->chunk->byte_offset != b->chunk->byte_offset) return a->chunk->byte_offset < b->chunk->byte_offset ? -1 : 1;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    for (uint32_t d = 0; d < a->entry->ndim; d++) { /* pieces of one chunk, or of chunks without a file */
        if (a->offsets[d] != b->offsets[d]) return a->offsets[d] < b->offsets[d] ? -1 : 1;
    }
    return 0;
}

static tsr_status make_lists(const tsr_plan *plan, uint64_t dest_rank, piece_list *lists, uint64_t *total, tsr_arena *arena,
                             tsr_error *err)
{
    const tsr_plan_tensor *tensors = tsr_plan_tensors(plan);
    tsr_vec scratch = tsr_vec_of(plan->host->allocator, sizeof(piece));
    tsr_status status = TSR_OK;
    *total = 0;
    for (uint64_t t = 0; t < plan->tensors.count && status == TSR_OK; t++) {
        uint32_t number = tensors[t].class_number;
        if (!tsr_holders_have(&tsr_plan_classes(plan)[number].holders, dest_rank)) continue;
        if (!lists[number].made) {
            status = make_pieces(&tsr_plan_classes(plan)[number], dest_rank, &scratch, arena, &lists[number], err);
        }
        *total += lists[number].count;
    }
    tsr_vec_free(&scratch);
    return status;
}

tsr_status tsr_plan_rank(const tsr_plan *plan, uint64_t dest_rank, tsr_arena *arena, const tsr_read_item **items,
                         uint64_t *count, tsr_error *err)
{
    const tsr_plan_tensor *tensors = tsr_plan_tensors(plan);
    piece_list *lists = tsr_arena_array(arena, plan->classes.count, sizeof *lists, err);
    uint64_t total;
    bool sorted = true;
    TSR_FAIL_IF(dest_rank >= plan->ranks, err, TSR_E_USAGE, "rank %llu is not one of the target's %llu ranks",
                (unsigned long long)dest_rank, (unsigned long long)plan->ranks);
    if (!lists) return TSR_E_NOMEM;
    TSR_TRY(make_lists(plan, dest_rank, lists, &total, arena, err));
    tsr_read_item *list = tsr_arena_array(arena, total, sizeof *list, err), *next = list;
    if (!list) return TSR_E_NOMEM;
    for (uint64_t t = 0; t < plan->tensors.count; t++) {
        const piece_list *l = &lists[tensors[t].class_number];
        for (size_t i = 0; i < l->count; i++, next++) {
            const piece *p = &l->pieces[i];
            *next = (tsr_read_item){t,
                                    tensors[t].entry,
                                    tsr_plan_source(&tensors[t], p->chunk),
                                    dest_rank,
                                    p->offsets,
                                    p->dest_offsets,
                                    p->storage_offsets,
                                    p->lengths};
            sorted = sorted && (next == list || compare_items(next - 1, next) < 0);
        }
    }
    if (!sorted) qsort(list, total, sizeof *list, compare_items);
    if (plan->storage) TSR_TRY(plan_order_items(plan, dest_rank, list, total, err));
    *items = list;
    *count = total;
    return TSR_OK;
}

struct tsr_plan_cursor {
    const tsr_plan *plan;
    uint64_t rank, end;
    tsr_arena *arena; /* owns the items of the current rank */
    const tsr_read_item *items;
    uint64_t count, at;
};

tsr_status tsr_plan_cursor_new(const tsr_plan *plan, uint64_t first, uint64_t ranks, tsr_plan_cursor **out, tsr_error *err)
{
    TSR_FAIL_IF(first > plan->ranks || ranks > plan->ranks - first, err, TSR_E_USAGE,
                "ranks [%llu, +%llu) are not within the %llu ranks of the target", (unsigned long long)first,
                (unsigned long long)ranks, (unsigned long long)plan->ranks);
    *out = tsr_alloc(plan->host->allocator, 1, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    **out = (tsr_plan_cursor){.plan = plan, .rank = first, .end = first + ranks};
    return TSR_OK;
}

tsr_status tsr_plan_cursor_next(tsr_plan_cursor *cursor, const tsr_read_item **item, tsr_error *err)
{
    *item = NULL;
    while (cursor->at == cursor->count) {
        if (cursor->rank == cursor->end) return TSR_OK;
        tsr_arena_free(cursor->arena);
        cursor->at = cursor->count = 0;
        cursor->arena = tsr_arena_new(cursor->plan->host->allocator, 0, err);
        if (!cursor->arena) return TSR_E_NOMEM;
        TSR_TRY(tsr_plan_rank(cursor->plan, cursor->rank++, cursor->arena, &cursor->items, &cursor->count, err));
    }
    *item = &cursor->items[cursor->at++];
    return TSR_OK;
}

void tsr_plan_cursor_free(tsr_plan_cursor *cursor)
{
    if (!cursor) return;
    tsr_arena_free(cursor->arena);
    tsr_free(cursor->plan->host->allocator, cursor, 1, sizeof *cursor);
}

/* ---- reads ---- */

/* Turns items into byte ranges of files, and joins neighboring ranges into single reads. */

/* Whether chunks without a view are contiguous raw bytes. In other containers, they are items that must be opened first. */
static bool chunks_are_raw(tsr_format format)
{
    return format == TSR_FORMAT_SAFETENSORS || format == TSR_FORMAT_SAFETENSORS_INDEX ||
           format == TSR_FORMAT_DCP_SAFETENSORS;
}

/* Sets the position of the chunk's first element. Returns false if only the chunk's extent is known. */
static bool first_byte(const tsr_plan *plan, const tsr_chunk *chunk, uint64_t *byte_offset)
{
    const tsr_view *view = chunk->view;
    *byte_offset = view ? view->byte_offset : chunk->byte_offset;
    return view ? !view->strides && !view->zstd : chunks_are_raw(plan->catalog->format);
}

tsr_byte_range tsr_read_item_bytes(const tsr_plan *plan, const tsr_read_item *item)
{
    const tsr_plan_tensor *tensor = &tsr_plan_tensors(plan)[item->tensor];
    const tsr_chunk *chunk = item->chunk;
    tsr_byte_range whole = {chunk->file, chunk->byte_offset, chunk->byte_length};
    uint32_t size = tsr_dtype_size(tensor->packed->dtype), ndim = item->entry->ndim;
    uint64_t begin, first = 0, last = 0;
    if (size == 0 || !first_byte(plan, chunk, &begin)) return whole;
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t chunk_size = chunk->sizes[d];
        if (tensor->packed != tensor->entry && d + 1 == ndim) chunk_size /= 2; /* float4 counted in single elements */
        first = first * chunk_size + item->storage_offsets[d];
        last = last * chunk_size + item->storage_offsets[d] + item->lengths[d] - 1;
    }
    return (tsr_byte_range){chunk->file, begin + first * size, (last - first + 1) * size};
}
