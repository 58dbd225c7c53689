/* See unit_servers.h. */
#include "work/unit_servers.h"

#include "layout/chunk_index.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"

/* State for finding the servers of a stage's units. */
typedef struct server_finder {
    const tsr_storage *storage;
    tsr_arena *arena;
    double *bytes; /* of the current unit, by server */
    const tsr_entry *entry;
    tsr_chunk_index index; /* of its chunks */
    uint64_t delay;        /* of the current unit */
} server_finder;

static tsr_status know_entry(server_finder *f, const tsr_entry *entry, tsr_error *err)
{
    if (f->entry == entry) return TSR_OK;
    f->entry = entry;
    return tsr_chunk_index_build(entry->ndim, entry->chunks, entry->chunk_count, f->arena, &f->index, err);
}

/* Adds the cost of reading a box of a tensor that is inside one of its chunks. */
static void add_read(server_finder *f, uint64_t number, const uint64_t *offsets, const uint64_t *sizes)
{
    const tsr_entry *entry = f->entry;
    const tsr_chunk *chunk = &entry->chunks[number];
    const uint64_t bits = tsr_dtype_describe(entry->dtype)->bits;
    const bool plain = !chunk->view || (!chunk->view->strides && !chunk->view->zstd);
    uint64_t first = 0, last = 0, elements;
    tsr_byte_range range = {chunk->file, chunk->byte_offset, chunk->byte_length};
    tsr_box_volume((tsr_box){entry->ndim, NULL, sizes}, &elements);
    for (uint32_t d = 0; d < entry->ndim; d++) {
        first = first * chunk->sizes[d] + offsets[d] - chunk->offsets[d];
        last = last * chunk->sizes[d] + offsets[d] - chunk->offsets[d] + sizes[d] - 1;
    }
    if (plain) {
        range.byte_offset = (chunk->view ? chunk->view->byte_offset : chunk->byte_offset) + first * bits / 8;
        range.byte_length = (last - first + 1) * bits / 8;
    }
    const double bytes = (double)elements * (double)bits / 8, spanned = (double)range.byte_length;
    if (range.file >= f->storage->file_count || !range.byte_length) return; /* it is computed by a map, or missing */
    const double cost = (double)tsr_storage_cost(f->storage, range);
    tsr_storage_spread(f->storage, range, bytes, f->bytes);
    if (cost > spanned) f->delay += (uint64_t)((cost - spanned) * (bytes < spanned ? bytes / spanned : 1));
}

static tsr_status add_blit(server_finder *f, const tsr_blit *blit, tsr_error *err)
{
    const tsr_entry *entry = blit->entry;
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM], chunk;
    tsr_packed packed;
    if (blit->literal || !blit->byte_length) return TSR_OK;
    TSR_TRY(tsr_gather_pack(entry, &packed, err));
    if (packed.ndim != entry->ndim) return TSR_OK;
    TSR_TRY(know_entry(f, entry, err));
    for (uint32_t d = 0; d < packed.ndim; d++) { /* if two elements are packed into one, the entry counts both */
        const uint64_t each = packed.shape[d] && entry->shape[d] > packed.shape[d] ? entry->shape[d] / packed.shape[d] : 1;
        offsets[d] = blit->offsets ? blit->offsets[d] * each : 0;
        sizes[d] = blit->sizes ? blit->sizes[d] * each : entry->shape[d];
    }
    tsr_chunk_query query;
    uint64_t at[TSR_MAX_NDIM], extent[TSR_MAX_NDIM];
    tsr_chunk_query_start(&query, &f->index, (tsr_box){packed.ndim, offsets, sizes});
    while (tsr_chunk_query_next(&query, &chunk, at, extent)) add_read(f, chunk, at, extent);
    return TSR_OK;
}

static void conclude_unit(server_finder *f, tsr_unit *unit)
{
    double most = 0;
    unit->delay = f->delay;
    f->delay = 0;
    for (uint32_t s = 0; s < f->storage->server_count; s++) {
        if (f->bytes[s] > most) unit->server = s;
        if (f->bytes[s] > most) most = f->bytes[s];
        f->bytes[s] = 0;
    }
}

static tsr_status find_servers(server_finder *f, const tsr_unit_blits *of, tsr_unit *units, size_t count, tsr_error *err)
{
    size_t at = 0;
    for (size_t u = 0; u < count; u++) {
        for (uint32_t i = 0; i < units[u].count; i++) TSR_TRY(add_blit(f, &of->blits[at++], err));
        conclude_unit(f, &units[u]);
    }
    return TSR_OK;
}

/* Makes the blits of all units of the stage. `all` has no units yet. */
static tsr_status expand(const tsr_stage *stage, const tsr_lanes *all, tsr_unit *units, tsr_arena *arena,
                         tsr_unit_blits *out, tsr_error *err)
{
    const size_t count = all->lanes->end;
    tsr_unit **list = tsr_arena_array(arena, count, sizeof *list, err);
    tsr_lanes lanes = *all;
    if (!list) return TSR_E_NOMEM;
    for (size_t u = 0; u < count; u++) list[u] = &units[u];
    lanes.units = list;
    return tsr_units_blits(stage, &lanes, arena, out, err);
}

tsr_status tsr_units_find_servers(const tsr_work *work, const tsr_stage *stage, tsr_unit *units, size_t count,
                                  tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    server_finder f = {.storage = work->options.storage, .arena = arena};
    tsr_unit_blits of;
    f.bytes = tsr_arena_array(arena, f.storage->server_count, sizeof *f.bytes, err);
    const tsr_lane all = {0, count};
    const tsr_lanes lanes = {.unit_bytes = work->unit_bytes, .lanes = &all, .count = 1};
    tsr_status status = f.bytes ? expand(stage, &lanes, units, arena, &of, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = find_servers(&f, &of, units, count, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_units_order(const tsr_work *work, const tsr_stage *stage, tsr_storage_reader part, tsr_unit **units,
                           size_t count, tsr_error *err)
{
    size_t grouped = 0;
    tsr_arena *arena = tsr_arena_new(work->host->allocator, 0, err);
    tsr_storage_item *items = arena ? tsr_arena_array(arena, count, sizeof *items, err) : NULL;
    tsr_unit **old = items ? tsr_arena_array(arena, count, sizeof *old, err) : NULL;
    for (size_t u = 0; old && u < count; u++) {
        old[u] = units[u];
        items[u] = (tsr_storage_item){units[u]->server, tsr_unit_weight(units[u]), u};
    }
    while (grouped < count && units[grouped]->first < stage->order.grouped) grouped++;
    if (old) tsr_storage_order(work->options.storage, part, items, grouped);
    if (old) tsr_storage_order(work->options.storage, part, items + grouped, count - grouped);
    for (size_t u = 0; old && u < count; u++) units[u] = old[items[u].number];
    tsr_arena_free(arena);
    return old ? TSR_OK : TSR_E_NOMEM;
}
