/* How ranks share the bytes of a deep check, and how they put together what each found.
 *
 *   bytes of all files    |file 0 ······|file 1 ·······························|file 2 ··|
 *   shares of 3 ranks     | rank 0                | rank 1            | rank 2            |
 *
 * Every rank walks all extents and checks their structure; only the bytes of its share are read by it. With one rank it is
 * the whole check. */
#ifndef TSR_CHECK_CHECK_SHARE_H
#define TSR_CHECK_CHECK_SHARE_H

#include "tessera/comm.h"
#include "tessera/findings.h"
#include "tessera/store.h"
#include "tessera/sys/vec.h"

typedef struct tsr_share {
    tsr_comm *comm;
    const tsr_allocator *allocator;
    uint64_t *file_starts; /* of each file in the row of all bytes */
    uint32_t file_count;
    uint64_t byte_total, byte_step; /* of all files; of a rank's share */
    tsr_findings *found;            /* by this rank since the last merge */
    tsr_vec orders;                 /* uint64_t, of those: what one rank would have found earlier is less */
} tsr_share;

/* Borrows `comm`. Also on failure to be closed. */
tsr_status tsr_share_open(const tsr_store *store, tsr_comm *comm, const tsr_allocator *allocator, tsr_share *out,
                          tsr_error *err);
void tsr_share_close(tsr_share *share); /* takes a zeroed one */

/* The rank that reads the bytes from here on. */
uint32_t tsr_share_owner(const tsr_share *share, uint32_t file, uint64_t byte_offset);
/* The rank that does what lies at `at` of a row of costs. */
uint32_t tsr_share_owner_of_cost(const tsr_share *share, uint64_t at, uint64_t total);

/* The common result of what each rank did alone. */
tsr_status tsr_share_agree(const tsr_share *share, tsr_status status, tsr_error *err);
/* What was found since the last time has this place in the order. */
tsr_status tsr_share_order(tsr_share *share, uint64_t order, tsr_error *err);
/* Adds what all ranks found to `findings`, in order, on all ranks alike, and starts afresh. Collective. */
tsr_status tsr_share_merge(tsr_share *share, tsr_findings *findings, tsr_error *err);

#endif
