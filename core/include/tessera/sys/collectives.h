/* Collectives that are built from those of a communicator (tessera/comm.h). Errors are those of the communicator.
 * TSR_E_NOMEM of one rank is reported on all ranks.
 *
 * Example:
 *
 *     tsr_comm_blobs names = {0};
 *     status = tsr_comm_gather_blobs((tsr_ranks){comm, host->allocator}, text, &names, &err);
 *     if (status == TSR_OK && comm->rank == 0) printf("the last rank says %.*s\n", TSR_STR_ARG(names.blobs[comm->size - 1]));
 *     tsr_comm_blobs_free(&names); */
#ifndef TESSERA_SYS_COLLECTIVES_H
#define TESSERA_SYS_COLLECTIVES_H

#include "tessera/comm.h"

TSR_API_BEGIN

/* The ranks that make a call together, and where this rank's memory for it comes from. */
typedef struct tsr_ranks {
    tsr_comm *comm;
    const tsr_allocator *allocator;
} tsr_ranks;

/* Frees what is kept with the communicator (comm->kept), if anything. Not collective. */
void tsr_comm_drop_kept(tsr_comm *comm);

/* As all_gather, but only `root` receives; elsewhere `all` is not used. */
tsr_status tsr_comm_gather(tsr_ranks ranks, const void *mine, const size_t *sizes, uint32_t root, void *all, tsr_error *err);

/* Rank p is sent the p-th of the pieces that are in `mine` one after another, of send_sizes[p] bytes; pieces from all
 * ranks arrive in `all` in rank order. */
tsr_status tsr_comm_all_to_all(tsr_ranks ranks, const void *mine, const size_t *send_sizes, void *all,
                               const size_t *receive_sizes, tsr_error *err);

/* A blob whose size only `root` knows; `mine` counts there alone. Everywhere `*out` is a copy of `size` bytes from
 * the allocator (NULL for none), which the caller frees. */
tsr_status tsr_comm_broadcast_blob(tsr_ranks ranks, tsr_str mine, uint32_t root, void **out, size_t *size, tsr_error *err);

/* Blobs of any size from all ranks, in rank order. */
typedef struct tsr_comm_blobs {
    tsr_str *blobs; /* comm->size of them */
    uint32_t count;
    char *bytes;
    size_t byte_count;
    size_t *sizes;
    const tsr_allocator *allocator;
} tsr_comm_blobs;
tsr_status tsr_comm_gather_blobs(tsr_ranks ranks, tsr_str mine, tsr_comm_blobs *out, tsr_error *err);
void tsr_comm_blobs_free(tsr_comm_blobs *blobs); /* accepts a zeroed one */

/* TSR_E_USAGE everywhere, naming the lowest rank that differs from rank 0, unless all ranks give the same bytes of
 * `value`; `what` (static text, the same everywhere) begins the message. The communicator stays good. */
tsr_status tsr_comm_same(tsr_comm *comm, tsr_str value, const char *what, tsr_error *err);

/* As tsr_comm_agree, for ranks that do the same, where rank 0 also does what is done once: a failure that all of them have, and one of
 * rank 0, are said without a rank. */
tsr_status tsr_comm_agree_as_one(tsr_comm *comm, tsr_status mine, tsr_error *err);

/* A communicator of one rank. */
tsr_status tsr_comm_self(const tsr_allocator *allocator, tsr_comm **out, tsr_error *err);

/* Returns when every rank has called it. */
tsr_status tsr_comm_barrier(tsr_comm *comm, tsr_error *err);

TSR_API_END

#endif
