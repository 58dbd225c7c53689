/* Streams between processes of one machine through shared memory. A copy in and a copy out of a slot that stays in the cache
 * is quicker than a kernel that copies from one process to another. */
#ifndef TSR_STATEDICT_WINDOW_H
#define TSR_STATEDICT_WINDOW_H

#include "statedict/tensor/pack.h"
#include "tessera/comm.h"

typedef struct tsr_window tsr_window;

/* `*out` is NULL, and that no error, where ranks are on several machines or cannot share memory. Every rank has
 * `slots` × (ranks - 1) slots of `slot_bytes`. Collective. */
tsr_status tsr_window_open(tsr_comm *comm, uint64_t slot_bytes, uint64_t slots, const tsr_allocator *allocator,
                           tsr_window **out, tsr_error *err);
void tsr_window_close(tsr_window *window); /* takes NULL */

/* Moves every byte of the streams, one each by peer, all of host memory, in both directions. What is sent to a rank is what
 * that rank receives. Returns when this rank is done. A rank that dies keeps the others waiting: the communicator's watchdog
 * ends them. Errors: TSR_E_IO when nothing has moved for a minute. */
tsr_status tsr_window_run(tsr_window *window, tsr_stream *out, tsr_stream *in, tsr_error *err);

#endif
