/* Collectives over MPI, for programs that an MPI launcher started.
 *
 *   tsr_mpi_start(&argc, &argv, &err)      or MPI_Init_thread of your own
 *   tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, allocator, &comm, &err)
 *   … comm->broadcast(…) …
 *   comm->close(comm)                      on every rank
 *   tsr_mpi_end()                          or MPI_Finalize
 *
 * Before anything moves all ranks compare what they are about to do, so that contradictions and poisoned ranks end in the
 * same error everywhere (tessera/comm.h). Data of any size moves in pieces of at most `round_bytes`. An error of MPI itself
 * leaves ranks that cannot agree any more: the call returns TSR_E_IO, and `close` of such a communicator ends the job by
 * MPI_Abort.
 *
 * The watchdog: a thread of each rank tells its neighbour every second that the process lives, however long the rank works
 * on something else. A neighbour that has been silent for `peer_limit` seconds is dead or cut off (on the same machine: if
 * its process is not there any more, or stopped; that is seen after three seconds already); then MPI_Abort ends the job with
 * a message. Under Slurm, `srun --kill-on-bad-exit=1` notices a dead rank of another node immediately. It needs MPI_THREAD_MULTIPLE (which tsr_mpi_start asks for) and is off without.
 *
 * Example:
 *
 *     status = tsr_mpi_start(&argc, &argv, &err);
 *     if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err);
 *     if (status == TSR_OK) status = tsr_comm_barrier(comm, &err);
 *     if (comm) comm->close(comm);
 *     tsr_mpi_end(); */
#ifndef TESSERA_COMM_MPI_H
#define TESSERA_COMM_MPI_H

#include <mpi.h>

#include "tessera/comm.h"

TSR_API_BEGIN

#define TSR_MPI_ROUND_BYTES      ((size_t)64 << 20) /* MPI lets nobody else in while it copies one message */
#define TSR_MPI_MOST_ROUND_BYTES ((size_t)1 << 30)
#define TSR_MPI_PEER_LIMIT       20.0 /* seconds */

typedef struct tsr_comm_mpi_options {
    size_t size; /* TSR_OPTIONS sets it */
    size_t round_bytes; /* most bytes of one MPI call, up to TSR_MPI_MOST_ROUND_BYTES; 0: TSR_MPI_ROUND_BYTES */
    double peer_limit;  /* seconds; 0: TSR_MPI_PEER_LIMIT; negative: no watchdog */
} tsr_comm_mpi_options;

/* Collective over `ranks`, which is duplicated and stays the caller's. `options` may be NULL; they are the same on all
 * ranks. Errors: TSR_E_USAGE (MPI is not initialized, or finalized), TSR_E_NOMEM (everywhere), TSR_E_IO. */
tsr_status tsr_comm_mpi_open(MPI_Comm ranks, const tsr_comm_mpi_options *options, const tsr_allocator *allocator,
                             tsr_comm **out, tsr_error *err);

/* MPI_Init_thread and MPI_Finalize, unless the program has done it already. */
tsr_status tsr_mpi_start(int *argc, char ***argv, tsr_error *err);
void tsr_mpi_end(void);

/* Whether this MPI says that it takes addresses of CUDA devices where it takes buffers (asked, not assumed; false where it
 * cannot be asked). */
bool tsr_mpi_takes_device_memory(void);

TSR_API_END

#endif
