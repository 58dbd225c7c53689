/* Sharded optimizer state into memory: the reads that tsr_optim_load plans for a rank, carried out. (core/stream)
 *
 * Example:
 *
 *     const tsr_optim_sink into_memory = {.buffer = give_buffer, .ctx = arena};
 *     status = tsr_optim_read_all(checkpoint, reads, read_count, &into_memory, NULL, &err); */
#ifndef TESSERA_SYS_OPTIM_READ_H
#define TESSERA_SYS_OPTIM_READ_H

#include "tessera/read.h"
#include "tessera/sys/optim_load.h"

TSR_API_BEGIN

/* Where the elements go. `buffer` is called once per tensor, in order and by the calling thread, before anything is read; it
 * gives `bytes` bytes for the rank's part, contiguous row-major (`read->sizes`, or the one element), or NULL: TSR_E_NOMEM.
 * It is not called for boxes without elements, nor for objects, whose value is entry->value. */
typedef struct tsr_optim_sink {
    void *(*buffer)(void *ctx, const tsr_optim_read *read, size_t bytes);
    void *ctx;
} tsr_optim_sink;

/* Reads with the host's threads, each box straight into its buffer, from whatever chunks the checkpoint has. `progress` may
 * be NULL. Errors as tsr_read_box, of the first read in order that failed; TSR_E_CANCELLED. Source:
 * load_sharded_optimizer_state_dict of torch/distributed/checkpoint/optimizer.py, PyTorch 2.13. */
tsr_status tsr_optim_read_all(tsr_checkpoint *checkpoint, const tsr_optim_read *reads, size_t count,
                              const tsr_optim_sink *sink, const tsr_progress *progress, tsr_error *err);

TSR_API_END

#endif
