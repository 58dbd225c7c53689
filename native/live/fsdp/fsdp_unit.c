/* One unit: its slice in the memory of the host, and its originals as tensors. */
#include "live/fsdp/fsdp_model.h"

#include "tessera/sys/optim_load.h"
#include "tessera/sys/try.h"

/* ---- memory ---- */

uint64_t tsr_fsdp_slice_bytes(const tsr_fsdp_node *node)
{
    return node->layout.slice_numel * node->itemsize;
}

tsr_status tsr_fsdp_stage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, bool copy_in, void **slice, void **staged,
                          tsr_error *err)
{
    const uint64_t bytes = tsr_fsdp_slice_bytes(node);
    tsr_device *device = node->unit->device;
    *slice = node->unit->slice;
    *staged = NULL;
    TSR_FAIL_IF(bytes && !*slice, err, TSR_E_USAGE, "unit '%.*s' has no memory", TSR_STR_ARG(node->fqn));
    if (!device || bytes == 0) return TSR_OK;
    *slice = *staged = tsr_alloc(model->host->allocator, (size_t)bytes, 1, err);
    if (!*staged) return TSR_E_NOMEM;
    return copy_in ? tsr_device_download(device, *staged, node->unit->slice, bytes, err) : TSR_OK;
}

tsr_status tsr_fsdp_unstage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, void *staged, bool copy_out,
                            tsr_error *err)
{
    const uint64_t bytes = tsr_fsdp_slice_bytes(node);
    tsr_status status = TSR_OK;
    if (staged && copy_out) status = tsr_device_upload(node->unit->device, node->unit->slice, staged, bytes, err);
    tsr_free(model->host->allocator, staged, (size_t)bytes, 1);
    return status;
}

/* ---- originals ---- */

tsr_tensor tsr_fsdp_original(const tsr_fsdp_node *node, uint32_t original)
{
    const tsr_flat_original *o = &node->flat->params[original];
    tsr_tensor tensor = tsr_tensor_whole(node->unit->dtype, o->ndim, o->shape, NULL);
    tensor.device = node->unit->device;
    return tensor;
}

void tsr_fsdp_rows_here(const tsr_fsdp_node *node, uint32_t original, uint64_t *begin, uint64_t *end)
{
    tsr_rows_of_rank(node->flat->params[original].shape[0], node->unit->comm->size, node->unit->comm->rank, true, begin,
                     end);
}

tsr_span tsr_fsdp_valid(const tsr_fsdp_node *node)
{
    uint64_t begin, end;
    tsr_flat_shard_range(&node->cut, node->unit->comm->size, node->unit->comm->rank, &begin, &end);
    return (tsr_span){begin, end - begin};
}

tsr_status tsr_fsdp_placements(const tsr_mesh *mesh, tsr_arena *arena, tsr_placement **out, tsr_error *err)
{
    *out = tsr_arena_array(arena, mesh->dim_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < mesh->dim_count; i++)
        (*out)[i] = (tsr_placement){.kind = i + 1 == mesh->dim_count ? TSR_SHARD : TSR_REPLICATE};
    return TSR_OK;
}
