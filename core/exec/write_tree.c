/* Value trees to torch.save files. */
#include "tessera/write_tree.h"

#include "base/try.h"
#include "exec/torch_plan.h"

static tsr_status write_planned(tsr_torch_plan *plan, tsr_output *output, tsr_str name, tsr_ring *ring,
                                const tsr_progress *progress, uint32_t *file, uint64_t *bytes, tsr_error *err)
{
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    TSR_TRY(tsr_torch_plan_write(plan, output, name, ring, progress, file, err));
    *bytes += plan->archive.size;
    return TSR_OK;
}

tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_output *output, tsr_str name,
                          tsr_ring *ring, const tsr_progress *progress, uint32_t *file, uint64_t *bytes, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_torch_plan plan;
    tsr_arena *arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_torch_plan_open(checkpoint, root, arena, &plan, err);
    if (status == TSR_OK) status = write_planned(&plan, output, name, ring, progress, file, bytes, err);
    tsr_arena_free(arena);
    return status;
}
