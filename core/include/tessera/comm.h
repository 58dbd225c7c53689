/* Ranks that talk to each other: a small set of collectives as a vtable. Back ends: one rank (core/io/comm.c), ranks
 * simulated by threads of one process (native/comm/comm_threads.h), MPI (native/comm/comm_mpi.h).
 *
 * Every function is called by all ranks of a communicator, in the same order; it returns when the caller's buffers may be used
 * again. A rank never waits forever for one that failed:
 *
 *   - A rank whose own work failed either continues calling until tsr_comm_agree informs all ranks (the communicator stays
 *     good), or calls `poison` in place of its next call, whichever that is.
 *   - If ranks contradict each other (kind of call, root, sizes), all ranks get TSR_E_USAGE, which names two of them
 *     and what each does. No data has moved then.
 *   - If a rank has closed the communicator or ended, the others get TSR_E_IO.
 *
 * After any of these failures except one reported by agree, the communicator is unusable: each further call fails immediately
 * with the same error on all ranks. Thread rule: one thread per rank.
 *
 * Example:
 *
 *     uint64_t tokens = 1000 + comm->rank;
 *     status = comm->largest(comm, &tokens, &err);
 *     if (status == TSR_OK && comm->rank == 0) printf("the busiest rank has %llu tokens\n", (unsigned long long)tokens); */
#ifndef TESSERA_COMM_H
#define TESSERA_COMM_H

#include "tessera/host.h"

TSR_API_BEGIN

#define TSR_COMM_NO_GROUP UINT32_MAX

/* Bytes to or from a rank. Messages between two ranks match in the order in which both list them. */
typedef struct tsr_message {
    uint32_t peer;
    void *data; /* only read when sent */
    size_t size;
} tsr_message;

/* Something that a module keeps with a communicator between calls. `free` concerns this rank only. */
typedef struct tsr_comm_kept tsr_comm_kept;
struct tsr_comm_kept {
    void (*free)(tsr_comm_kept *kept);
};

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
    /* Groups: the ranks that give the same `group` get a communicator of their own, ranked by (order, rank here).
     * TSR_COMM_NO_GROUP: `*out` is NULL. Errors: also TSR_E_NOMEM, everywhere. */
    tsr_status (*split)(tsr_comm *comm, uint32_t group, uint32_t order, tsr_comm **out, tsr_error *err);
    /* In place of whichever call the others are in or come to next: that call fails on every rank with the status and
     * message of the lowest rank that poisons, behind "rank 3: "; so does this one. `mine` is not TSR_OK; `err` holds
     * the caller's error and becomes the common one. */
    tsr_status (*poison)(tsr_comm *comm, tsr_status mine, tsr_error *err);
    /* Collective too where there are other processes; a group is closed before what it was split from. */
    void (*close)(tsr_comm *comm);
    /* Addresses of device memory (tessera/sys/gpu.h) are accepted wherever host addresses are. The same on all ranks. */
    bool takes_devices;
    /* Where tsr_redistribute and the other functions on state dicts keep the memory that ranks of one machine exchange data
     * through, for the next call. `close` frees it (tsr_comm_drop_kept, tessera/sys/collectives.h). NULL: nothing is kept. */
    tsr_comm_kept **kept;
};

/* ---- made of the above; errors as theirs (tessera/sys/collectives.h has more of these) ---- */

/* All ranks learn whether one of them failed: returns TSR_OK everywhere, or everywhere the status of the lowest rank that
 * failed, with its message behind "rank 3: " in `err` (once: of a failure that was agreed on before as it is). `mine` and `err`
 * are the caller's own result so far. Needs no memory. */
tsr_status tsr_comm_agree(tsr_comm *comm, tsr_status mine, tsr_error *err);

TSR_API_END

#endif
