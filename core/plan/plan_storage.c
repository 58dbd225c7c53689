/* Computes how many bytes a plan reads from each server of a parallel file system, and orders each rank's items by
 * server. */
#include "plan/plan_storage.h"
#include "plan/plan_room.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/box.h"
#include "tessera/sys/plan_items.h"

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

tsr_status tsr_plan_order_items(const tsr_plan *plan, uint64_t dest_rank, tsr_read_item *items, uint64_t count,
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
