/* Collectives over MPI, for programs that an MPI launcher started.
 *
 *   tsr_mpi_start(&argc, &argv, &err)      or your own MPI_Init_thread
 *   tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, allocator, &comm, &err)
 *   … comm->broadcast(…) …
 *   comm->close(comm)                      on every rank
 *   tsr_mpi_end()                          or MPI_Finalize
 *
 * Before any data moves, all ranks compare the calls that they are about to make. Contradictions and poisoned ranks thus give
 * the same error everywhere (tessera/comm.h). Data of any size moves in messages of at most `round_bytes`. After an error of
 * MPI itself the ranks can no longer agree: the call returns TSR_E_IO, and `close` of such a communicator ends the job with
 * MPI_Abort.
 *
 * The watchdog is a thread on each rank. It reports to the rank's neighbor every second that the process is alive, even while
 * the rank is busy. A neighbor that has been silent for `peer_limit` seconds is dead or cut off, and MPI_Abort then ends the
 * job with a message. On the same machine a running process never counts as dead, and one that has ended is noticed after three
 * seconds. Under Slurm, `srun --kill-on-bad-exit=1` notices a dead rank of another node immediately. The watchdog needs
 * MPI_THREAD_MULTIPLE, which tsr_mpi_start requests, and is off without it.
 *
 * Example:
 *
 *     status = tsr_mpi_start(&argc, &argv, &err);
 *     if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err);
 *     if (status == TSR_OK) status = tsr_comm_agree(comm, TSR_OK, &err);
 *     if (comm) comm->close(comm);
 *     tsr_mpi_end(); */
#ifndef TESSERA_COMM_MPI_H
#define TESSERA_COMM_MPI_H

#include <mpi.h>

#include "tessera/comm.h"

TSR_API_BEGIN

#define TSR_MPI_ROUND_BYTES      ((size_t)64 << 20) /* MPI blocks other threads while it copies one message */
#define TSR_MPI_MOST_ROUND_BYTES ((size_t)1 << 30)
#define TSR_MPI_PEER_LIMIT       20.0 /* seconds */

typedef struct tsr_comm_mpi_options {
    size_t size;        /* TSR_OPTIONS sets it */
    size_t round_bytes; /* most bytes of one MPI call, up to TSR_MPI_MOST_ROUND_BYTES; 0: TSR_MPI_ROUND_BYTES */
    double peer_limit;  /* seconds; 0: TSR_MPI_PEER_LIMIT; negative: no watchdog */
} tsr_comm_mpi_options;

/* Opens a communicator over `ranks`, which is duplicated and still belongs to the caller. Collective. `options` may be NULL and
 * must be the same on all ranks. Errors: TSR_E_USAGE (MPI is not initialized, or finalized), TSR_E_NOMEM (everywhere),
 * TSR_E_IO. */
tsr_status tsr_comm_mpi_open(MPI_Comm ranks, const tsr_comm_mpi_options *options, const tsr_allocator *allocator,
                             tsr_comm **out, tsr_error *err);

/* Call MPI_Init_thread and MPI_Finalize, unless the program has already done so. */
tsr_status tsr_mpi_start(int *argc, char ***argv, tsr_error *err);
void tsr_mpi_end(void);

/* Returns true if this MPI reports that its buffers may be in CUDA device memory, and false if it cannot be asked. */
bool tsr_mpi_takes_device_memory(void);

TSR_API_END

#endif
