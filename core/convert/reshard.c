/* Connects the rows of a conversion with the tensors of a plan. */
#include "convert/reshard_to.h"
#include "tessera/sys/try.h"

tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry)
{
    tsr_converted *row = &chosen->rows[entry - tsr_checkpoint_catalog(chosen->checkpoint)->entries];
    return row->written ? row : NULL;
}

tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err)
{
    bool *is_planned = tsr_arena_array(chosen->arena, (size_t)chosen->count, sizeof *is_planned, err);
    if (!is_planned) return TSR_E_NOMEM;
    const tsr_entry *first = tsr_checkpoint_catalog(chosen->checkpoint)->entries;
    for (uint64_t i = 0; i < tsr_plan_count(plan); i++) {
        const tsr_planned planned = tsr_plan_tensor_at(plan, i);
        is_planned[planned.entry - first] = true;
        chosen->rows[planned.entry - first].replicated = planned.replicated;
    }
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        if (is_planned[i] || !row->written || row->entry->kind != TSR_ENTRY_TENSOR) continue;
        row->written = false;
        row->left_out = "not in the plan";
    }
    return TSR_OK;
}
