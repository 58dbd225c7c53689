/* The original shapes that Megatron-Core up to 0.14 records for tensors stored as flat ranges of fragments:
 *
 *   Metadata.mcore_data = {FQN: {"nd_reformulated_orig_global_shape": (20, 8)}, FQN: {}, …}      {}: stored in its shape
 *
 * Source: megatron/core/dist_checkpointing/strategies/torch.py of Megatron-Core 0.14. */
#include "formats/common/expansion.h"
#include "formats/dcp/dcp_state.h"
#include "tessera/sys/try.h"

/* The sizes in a tuple or a torch.Size, and their number; -1 for any other value. */
static int sizes_of(const tsr_dcp_metadata *metadata, tsr_ref ref, uint64_t sizes[TSR_DCP_MAX_NDIM])
{
    int64_t ints[TSR_DCP_MAX_NDIM];
    uint32_t ndim;
    const uint32_t folded =
        tsr_pickle_kind_of(metadata->pickle, ref) == TSR_PICKLE_FOLDED ? tsr_pickle_folded_index(ref) : 0;
    if (folded & TSR_DCP_DIMS_FLAG) {
        const uint64_t *dims = tsr_dcp_dims(metadata, folded & ~TSR_DCP_DIMS_FLAG, &ndim);
        for (uint32_t d = 0; d < ndim; d++) sizes[d] = dims[d];
        return (int)ndim;
    }
    const int count = tsr_pickle_ints(metadata->pickle, ref, ints, TSR_DCP_MAX_NDIM);
    for (int d = 0; d < count; d++) {
        if (ints[d] < 0) return -1;
        sizes[d] = (uint64_t)ints[d];
    }
    return count;
}

static tsr_status keep_one(tsr_checkpoint *checkpoint, const tsr_dcp_metadata *metadata, tsr_str fqn, tsr_ref facts,
                           tsr_dcp_original *out, tsr_error *err)
{
    uint64_t sizes[TSR_DCP_MAX_NDIM];
    const int ndim =
        sizes_of(metadata, tsr_pickle_get(metadata->pickle, facts, "nd_reformulated_orig_global_shape", NULL), sizes);
    TSR_FAIL_IF(ndim < 0, err, TSR_E_FORMAT, "dcp: mcore_data has no valid shape for '%.*s'", TSR_STR_ARG(fqn));
    TSR_TRY(tsr_expansion_take(&checkpoint->expansion, (uint64_t)ndim * sizeof *sizes, checkpoint->host, err));
    uint64_t *shape = tsr_arena_array(checkpoint->arena, (size_t)ndim, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    if (ndim) memcpy(shape, sizes, (size_t)ndim * sizeof *shape);
    out->shape = shape;
    out->ndim = (uint32_t)ndim;
    return TSR_OK;
}

tsr_status tsr_dcp_keep_originals(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_dcp_metadata *metadata = &source->metadata;
    size_t count;
    const tsr_ref *pairs = tsr_pickle_items(metadata->pickle, metadata->mcore_data, &count);
    state->is_megatron = metadata->is_megatron && state->source_count == 1;
    state->has_mcore_data = state->is_megatron && metadata->mcore_data != TSR_REF_NONE;
    if (!state->is_megatron || count == 0) return TSR_OK;
    tsr_dcp_original *originals = tsr_arena_array(checkpoint->arena, count / 2, sizeof *originals, err);
    if (!originals) return TSR_E_NOMEM;
    for (size_t i = 0; i + 1 < count; i += 2) {
        const tsr_str fqn = tsr_pickle_text(metadata->pickle, pairs[i]);
        const uint32_t entry = tsr_map_get(state->names, fqn, TSR_DCP_NO_ENTRY);
        bool reshaped;
        tsr_pickle_get(metadata->pickle, pairs[i + 1], "nd_reformulated_orig_global_shape", &reshaped);
        if (entry == TSR_DCP_NO_ENTRY || !reshaped) continue;
        tsr_dcp_original *out = &originals[state->original_count];
        TSR_TRY(keep_one(checkpoint, metadata, fqn, pairs[i + 1], out, err));
        out->entry = entry;
        state->original_count++;
    }
    state->originals = originals;
    return TSR_OK;
}
