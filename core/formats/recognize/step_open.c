/* Opens a step's directory as a store of its own, whatever it contains, for commands that read more than checkpoints. */
#include "formats/recognize/recognize.h"
#include "tessera/sys/steps.h"

tsr_status tsr_step_open(tsr_store *store, const tsr_host *host, tsr_str step, tsr_checkpoint **out, tsr_error *err)
{
    tsr_checkpoint *checkpoint = *out = tsr_alloc(host->allocator, 1, sizeof *checkpoint, err);
    if (!checkpoint) return TSR_E_NOMEM;
    *checkpoint = (tsr_checkpoint){.store = store,
                                   .given = store,
                                   .host = host,
                                   .options.step = step,
                                   .missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *))};
    checkpoint->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    const tsr_status status = checkpoint->arena ? tsr_enter_step(checkpoint, err) : TSR_E_NOMEM;
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(checkpoint);
    *out = NULL;
    return status;
}
