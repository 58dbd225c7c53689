/* How ranks divide the bytes of a deep check, and how they merge their findings.
 *
 *   bytes of all files    |file 0 ······|file 1 ·······························|file 2 ··|
 *   shares of 3 ranks     | rank 0                | rank 1            | rank 2            |
 *
 * Every rank walks all extents and checks their structure, but reads only the bytes in its own share. A single rank does the
 * whole check. */
#ifndef TSR_CHECK_CHECK_SHARE_H
#define TSR_CHECK_CHECK_SHARE_H

#include "tessera/comm.h"
#include "tessera/findings.h"
#include "tessera/store.h"
#include "tessera/sys/vec.h"

typedef struct tsr_share {
    tsr_comm *comm;
    const tsr_allocator *allocator;
    uint64_t *file_starts; /* where each file begins in the concatenation of all files */
    uint32_t file_count;
    uint64_t byte_total, byte_step; /* of all files; of one rank's share */
    tsr_findings *found;            /* findings of this rank since the last merge */
    tsr_vec orders;                 /* uint64_t per finding, by which all ranks' findings are sorted: lower for what a
                                     * single rank would have found earlier */
} tsr_share;

/* The rank whose share contains this byte. */
uint32_t tsr_share_owner(const tsr_share *share, uint32_t file, uint64_t byte_offset);

/* Agrees on a common result of what each rank did on its own. */
tsr_status tsr_share_agree(const tsr_share *share, tsr_status status, tsr_error *err);
/* Sets the order of all findings added since the last call. */
tsr_status tsr_share_order(tsr_share *share, uint64_t order, tsr_error *err);
/* Appends the findings since the last merge, with their orders, in the form that they are sent in. */
tsr_status tsr_share_pack(const tsr_share *share, tsr_vec *out, tsr_error *err);
/* Adds what some ranks have sent to `findings`, sorted by order; those of equal order as they are in `sent`. TSR_E_USAGE if it is
 * not what tsr_share_pack makes. */
tsr_status tsr_share_add(const tsr_allocator *allocator, const tsr_str *sent, size_t count, tsr_findings *findings,
                         tsr_error *err);
/* Adds the findings of all ranks to `findings`, sorted by their order and equal on all ranks, and clears share->found.
 * Collective. */
tsr_status tsr_share_merge(tsr_share *share, tsr_findings *findings, tsr_error *err);

#endif
