/* A description of a collective call, which ranks compare before they move data. The implementations with several ranks
 * share it, so they detect the same mismatches and report them with the same messages. */
#ifndef TSR_NATIVE_COMM_CALL_H
#define TSR_NATIVE_COMM_CALL_H

#include "tessera/comm.h"

typedef enum tsr_call_kind {
    TSR_CALL_ALL_GATHER = 1,
    TSR_CALL_BROADCAST,
    TSR_CALL_EXCHANGE,
    TSR_CALL_LARGEST,
    TSR_CALL_SPLIT,
    TSR_CALL_POISON,
    TSR_CALL_CLOSE
} tsr_call_kind;

/* Must not contain padding, because it is sent as raw memory. */
typedef struct tsr_comm_call {
    uint32_t kind; /* tsr_call_kind */
    uint32_t root;
    uint64_t bytes;  /* the total number of bytes that are moved */
    uint64_t digest; /* a hash of the list of sizes */
} tsr_comm_call;

tsr_comm_call tsr_call_all_gather(const size_t *sizes, uint32_t ranks);
bool tsr_call_equal(const tsr_comm_call *a, const tsr_comm_call *b);
/* Returns TSR_E_USAGE with a message that states how the call of `rank` differs from that of rank 0. */
tsr_status tsr_call_raise(const tsr_comm_call *zero, uint32_t rank, const tsr_comm_call *other, tsr_error *err);
/* Returns TSR_E_IO with a message that the rank has left. */
tsr_status tsr_call_raise_left(uint32_t rank, tsr_error *err);
/* Check this rank's own arguments. Errors: TSR_E_USAGE. */
tsr_status tsr_call_check_root(uint32_t root, uint32_t ranks, tsr_error *err);
tsr_status tsr_call_check_peers(const tsr_message *messages, size_t count, uint32_t ranks, tsr_error *err);

/* A summary of all messages from one rank to another in one exchange. */
typedef struct tsr_traffic {
    uint64_t count, bytes, digest;
} tsr_traffic;

tsr_traffic tsr_traffic_with(const tsr_message *messages, size_t count, uint32_t peer);
/* Checks that `rank` expects exactly what `from` sends to it. TSR_E_USAGE if not. */
tsr_status tsr_traffic_check(uint32_t from, const tsr_traffic *sent, uint32_t rank, const tsr_traffic *expected,
                             tsr_error *err);

/* A communicator for tests whose ranks are late, fail or die as a list states. The faults are the same in every run and over
 * any implementation. */

typedef enum tsr_fault_kind {
    TSR_FAULT_FAIL = 1, /* the call fails with TSR_E_IO on this rank, which then poisons the others */
    TSR_FAULT_LEAVE,    /* this and all later calls of the rank fail with TSR_E_IO, and no other rank is told, as if it had
                         * died. The body that runs on simulated ranks must then return. */
    TSR_FAULT_KILL      /* SIGKILL; only for ranks that are processes */
} tsr_fault_kind;

typedef struct tsr_fault {
    tsr_fault_kind kind;
    uint32_t rank;   /* in the first communicator */
    uint64_t call;   /* counts from 0, over the communicator and all that are split off it */
    bool afterwards; /* the fault comes after the call instead of replacing it */
} tsr_fault;

/* The faults of one rank. The caller must keep it until the communicator is closed. */
typedef struct tsr_faults {
    const tsr_fault *list;
    size_t count;
    uint64_t delay_seed;         /* 0: no call is late */
    uint32_t delay_microseconds; /* the upper limit; each delay depends on the seed, the rank and the call */
    /* the communicator's own state */
    uint64_t calls;
    bool gone;
} tsr_faults;

/* Wraps `inner`. Closing *out also closes `inner`; on failure the caller still owns it. Errors: TSR_E_NOMEM. */
tsr_status tsr_comm_faulty(tsr_comm *inner, tsr_faults *faults, const tsr_allocator *allocator, tsr_comm **out,
                           tsr_error *err);

#endif
