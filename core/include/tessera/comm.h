/* Ranks that talk to each other: a small set of collectives as a vtable. Back ends: one rank (core/io/comm_self.c), ranks
 * simulated by threads of one process (native/comm), MPI (its own room).
 *
 * Every function is called by all ranks of a communicator, in the same order; it returns when the caller's buffers may be
 * used again. A rank that failed must not simply stay away: it keeps calling, and tsr_comm_agree tells everybody.
 * Errors: TSR_E_USAGE when ranks contradict each other (sizes, kind of call), TSR_E_IO when a rank is gone.
 * Thread rule: one thread a rank. */
#ifndef TESSERA_COMM_H
#define TESSERA_COMM_H

#include "tessera/host.h"

TSR_API_BEGIN

/* Bytes to or from a rank. Messages between two ranks match in the order in which both list them. */
typedef struct tsr_message {
    uint32_t peer;
    void *data; /* only read when sent */
    size_t size;
} tsr_message;

typedef struct tsr_comm tsr_comm;
struct tsr_comm {
    uint32_t rank, size;
    /* Rank r gives sizes[r] bytes (all ranks pass equal `sizes`); `all` receives them in rank order. */
    tsr_status (*all_gather)(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err);
    /* `size` bytes from `root` to all. */
    tsr_status (*broadcast)(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err);
    /* Point to point, also to oneself; a rank may have none. Buffers do not overlap. */
    tsr_status (*exchange)(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err);
    /* The largest of all ranks' values, everywhere. */
    tsr_status (*largest)(tsr_comm *comm, uint64_t *value, tsr_error *err);
    void (*close)(tsr_comm *comm);
};

/* A communicator of one rank. */
tsr_status tsr_comm_self(const tsr_allocator *allocator, tsr_comm **out, tsr_error *err);

/* ---- made of the above ---- */

tsr_status tsr_comm_barrier(tsr_comm *comm, tsr_error *err);

/* Blobs of any size from all ranks, in rank order. */
typedef struct tsr_comm_blobs {
    tsr_str *blobs; /* comm->size of them */
    uint32_t count;
    char *bytes;
    size_t byte_count;
    size_t *sizes;
    const tsr_allocator *allocator;
} tsr_comm_blobs;
tsr_status tsr_comm_gather_blobs(tsr_comm *comm, tsr_str mine, const tsr_allocator *allocator, tsr_comm_blobs *out,
                                 tsr_error *err);
void tsr_comm_blobs_free(tsr_comm_blobs *blobs); /* takes a zeroed one */

/* All ranks learn whether one of them failed: returns TSR_OK everywhere, or everywhere the status of the lowest rank that
 * failed, with its message behind "rank 3: " in `err`. `mine` and `err` are the caller's own result so far. */
tsr_status tsr_comm_agree(tsr_comm *comm, tsr_status mine, tsr_error *err);

TSR_API_END

#endif
