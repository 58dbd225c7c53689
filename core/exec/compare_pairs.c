/* The values of all pairs of a diff. */
#include "tessera/compare.h"

bool tsr_pair_is_comparable(const tsr_diff_pair *pair)
{
    return pair->a->kind == TSR_ENTRY_TENSOR && pair->b->kind == TSR_ENTRY_TENSOR &&
           !(pair->what & (TSR_DIFF_DTYPE | TSR_DIFF_SHAPE | TSR_DIFF_OBJECT));
}

tsr_status tsr_diff_values(tsr_checkpoint *checkpoint_a, tsr_checkpoint *checkpoint_b, tsr_diff *diff,
                           const tsr_tolerance *tolerance, tsr_ring *ring, const tsr_progress *progress,
                           tsr_difference *differences, tsr_error *err)
{
    uint64_t total = 0, done = 0, bytes;
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        if (tsr_pair_is_comparable(&diff->pairs[i]) && tsr_entry_bytes(diff->pairs[i].a, &bytes)) total += bytes;
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < diff->pair_count && status == TSR_OK; i++) {
        tsr_diff_pair *pair = &diff->pairs[i];
        if (!tsr_pair_is_comparable(pair)) continue;
        status = tsr_compare_tensors(checkpoint_a, pair->a, checkpoint_b, pair->b, tolerance, ring, &differences[i], err);
        if (status == TSR_OK && differences[i].differing) pair->what |= TSR_DIFF_VALUE;
        if (tsr_entry_bytes(pair->a, &bytes)) done += bytes;
        bool go_on = !progress || !progress->step || progress->step(progress->ctx, done, total);
        if (status == TSR_OK && !go_on) status = tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "interrupted");
    }
    return status;
}
