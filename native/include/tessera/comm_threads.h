/* Ranks simulated by threads of one process: every collective of tessera/comm.h, for tests and for single-machine jobs.
 *
 * Example:
 *
 *     status = tsr_comm_threads_run(&tsr_allocator_libc, 4, run_on_each_rank, NULL, &err); */
#ifndef TESSERA_COMM_THREADS_H
#define TESSERA_COMM_THREADS_H

#include "tessera/comm.h"

TSR_API_BEGIN

/* Runs `body` once per rank, each on its own thread with its own communicator, and waits for all of them. If a body fails, or
 * returns while other ranks still communicate, their calls return TSR_E_IO. Returns TSR_OK, or the status and message of the
 * lowest rank that failed by itself. Errors: TSR_E_NOMEM; TSR_E_IO when threads cannot be started. */
tsr_status tsr_comm_threads_run(const tsr_allocator *allocator, uint32_t ranks,
                                tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err), void *arg, tsr_error *err);

TSR_API_END

#endif
