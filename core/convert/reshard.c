/* Rows of a conversion and tensors of a plan. */
#include "base/try.h"
#include "convert/reshard_to.h"

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
