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

#endif
