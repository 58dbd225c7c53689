/* A checkpoint cut anew: each rank of the target gets what the plan gives it, in the container asked for. */
#include "base/try.h"
#include "exec/reshard_to.h"
#include "tessera/convert.h"

tsr_status tsr_reshard(tsr_checkpoint *checkpoint, const tsr_plan *plan, tsr_output *output,
                       const tsr_convert_options *options, tsr_arena *arena, tsr_conversion *out, tsr_error *err)
{
    *out = (tsr_conversion){.marker = TSR_NO_FILE};
    TSR_FAIL_IF(tsr_plan_ranks(plan) > UINT32_MAX / 2, err, TSR_E_LIMIT, TSR_NO_POSITION,
                "too many ranks to write files for");
    tsr_ring *ring;
    TSR_TRY(tsr_ring_new(tsr_checkpoint_host(checkpoint), options->max_memory, &ring, err));
    const tsr_conversion_job job = {checkpoint, output, options, ring, arena, out};
    tsr_status status = TSR_OK;
    switch (options->to) {
    case TSR_TO_DCP: status = tsr_reshard_to_dcp(&job, plan, err); break;
    case TSR_TO_SAFETENSORS: status = tsr_reshard_to_safetensors(&job, plan, err); break;
    case TSR_TO_TORCH: status = tsr_reshard_to_torch(&job, plan, err); break;
    }
    if (status == TSR_OK) status = tsr_put_objects_aside(&job, err);
    tsr_ring_free(ring);
    return status;
}

tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry)
{
    tsr_converted *row = &chosen->rows[entry - tsr_checkpoint_catalog(chosen->checkpoint)->entries];
    return row->written ? row : NULL;
}

tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err)
{
    bool *planned = tsr_arena_array(chosen->arena, (size_t)chosen->count, sizeof *planned, err);
    if (!planned) return TSR_E_NOMEM;
    const tsr_entry *first = tsr_checkpoint_catalog(chosen->checkpoint)->entries;
    for (uint64_t i = 0; i < tsr_plan_count(plan); i++) planned[tsr_plan_tensor_at(plan, i).entry - first] = true;
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        if (planned[i] || !row->written || row->entry->kind != TSR_ENTRY_TENSOR) continue;
        row->written = false;
        row->left_out = "not in the plan";
    }
    return TSR_OK;
}
