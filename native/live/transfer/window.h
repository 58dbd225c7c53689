/* Streams between processes of one machine through shared memory. A copy in and a copy out of a slot are quicker than a kernel
 * that copies pages from one process to another. */
#ifndef TSR_STATEDICT_WINDOW_H
#define TSR_STATEDICT_WINDOW_H

#include "live/tensor/pack.h"
#include "tessera/comm.h"

#define TSR_WINDOW_BYTES ((uint64_t)4 << 20) /* most that a rank's segment has for all others together */

typedef struct tsr_window tsr_window;

/* `*out` is NULL, and that no error, where ranks are on several machines or cannot share memory, and where `most_bytes`, of
 * each rank for one other, are too few. A window of the same size that the communicator has kept is used again. Collective,
 * with the same `most_bytes`. */
tsr_status tsr_window_open(tsr_comm *comm, uint64_t most_bytes, const tsr_allocator *allocator, tsr_window **out,
                           tsr_error *err);
/* After a run that all ranks agree went well, the communicator keeps the window if it can. Takes NULL. */
void tsr_window_close(tsr_comm *comm, tsr_window *window, bool went_well);

/* What a window of these ranks has for each pair of them. */
uint64_t tsr_window_bytes(uint32_t ranks, uint64_t most_bytes);

/* What a rank does while it cannot move anything, a little with every call, and the rest in the end. */
typedef struct tsr_idle {
    bool (*work)(void *ctx); /* whether something is left */
    void *ctx;
} tsr_idle;

/* Moves every byte of the streams, one each by peer, all of host memory, in both directions. What is sent to a rank is what
 * that rank receives. Returns when this rank is done. A rank that dies keeps the others waiting: the communicator's watchdog
 * ends them. Errors: TSR_E_IO when nothing has moved for a minute. */
tsr_status tsr_window_run(tsr_window *window, tsr_stream *out, tsr_stream *in, const tsr_idle *idle, tsr_error *err);

#endif
