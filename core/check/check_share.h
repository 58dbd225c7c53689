/* How ranks divide the bytes of a deep check, and how they merge their findings.
 *
 *   bytes of all files    |file 0 ······|file 1 ·······························|file 2 ··|
 *   shares of 3 ranks     | rank 0                | rank 1            | rank 2            |
 *
 * Every rank walks all extents and checks their structure, but reads only the bytes in its own share. A single rank does the
 * whole check. */
#ifndef TSR_CHECK_CHECK_SHARE_H
#define TSR_CHECK_CHECK_SHARE_H

#include "stream/gather.h"
#include "tessera/check.h"
#include "tessera/comm.h"
#include "tessera/compare.h"
#include "tessera/findings.h"
#include "tessera/store.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"

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

/* Divides the bytes of the store's files among the ranks of `comm`. Must be closed even if this fails. */
tsr_status tsr_share_open(const tsr_store *store, tsr_comm *comm, const tsr_allocator *allocator, tsr_share *out,
                          tsr_error *err);
void tsr_share_close(tsr_share *share); /* accepts a zeroed one */

/* The rank that does what begins at `at` of a total cost, if the cost is divided evenly. */
uint32_t tsr_share_owner_of_cost(const tsr_share *share, uint64_t at, uint64_t total);

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

/* The two passes of a deep check, which ranks or parts share. The first goes over the extents, the second over the entries. */

typedef struct tsr_deep_counts {
    uint64_t nan, inf;
    uint64_t odd; /* bools that are neither 0 nor 1 */
} tsr_deep_counts;

/* What is known so far about the values of one entry. */
typedef struct tsr_deep_tally {
    tsr_deep_counts counts;
    bool gather;  /* must be scanned by the second pass */
    bool repeats; /* its elements repeat stored ones so often that the second pass skips it */
} tsr_deep_tally;

/* What consecutive pieces have in common, up to the last drained one. */
typedef struct tsr_deep_run {
    uint32_t crc;
    uint64_t crc_bytes; /* number of bytes in that CRC */
    bool damaged;       /* they could not be read completely, because of: */
    tsr_error damage;
    uint64_t damaged_at; /* offset of the extent */
} tsr_deep_run;

typedef struct tsr_deep {
    tsr_checkpoint *checkpoint;
    tsr_ring *ring;
    tsr_store *scheduled; /* the store, while it fetches what is read next; otherwise NULL */
    const tsr_progress *progress;
    uint64_t byte_done;
    tsr_deep_tally *tallies; /* one per entry */
    uint64_t most;           /* the largest size of a piece in bytes, the same on all ranks */
    size_t slice;            /* bytes of a piece that are read at a time */
    uint64_t extents;        /* the number of the next extent */
    tsr_share share;         /* findings are first added to share.found */
    /* NULL if every rank walks all extents. Otherwise each walks its own items only, and the findings of the walk itself are
     * added here. */
    tsr_share *walked;
    tsr_vec partials;      /* what this rank read of extents that several ranks read parts of (check_extents.c) */
    tsr_deep_run extent;   /* of the current extent without a sum */
    tsr_deep_run sum;      /* of the current sum */
    bool in_sum;           /* the last extent with a sum did not end it */
    uint64_t sum_number;   /* the number of its first extent, which all of its pieces have */
    bool mine_before;      /* this rank read the last piece of that sum */
    bool overlapping;      /* all tensors together expand to far more than is stored, although no single one does */
    uint64_t replica_room; /* bytes of replicas that may still be compared; only overlapping replicas exceed it */
} tsr_deep;

/* The place of a finding in a file, or in none if no file has that number. */
tsr_place tsr_deep_place(const tsr_deep *c, uint32_t file, uint64_t offset, tsr_str fqn);
/* Turns an error of one tensor or range into a finding. Errors that stop the whole check are passed on. */
tsr_status tsr_deep_failure(tsr_deep *c, tsr_place place, const tsr_error *failure, tsr_error *err);
/* Compares a file with the checksum at its end. */
tsr_status tsr_deep_judge_file(tsr_deep *c, tsr_place place, uint32_t crc, uint32_t expected, tsr_error *err);
/* Adds what `bytes` bytes of whole elements of `dtype` contain to *out. */
void tsr_deep_count(const tsr_host *host, tsr_dtype dtype, const uint8_t *data, size_t bytes, tsr_deep_counts *out);
void tsr_deep_counts_add(tsr_deep_counts *sum, const tsr_deep_counts *more);

/* check_entries.c: checks the entries in this rank's share, once `tallies` has the counts of all ranks. */
tsr_status tsr_deep_entries(tsr_deep *c, tsr_error *err);

/* ---- A digest that is computed from bytes as they arrive. ---- */

typedef struct tsr_running_digest {
    const tsr_digest_ops *ops;
    void *state;
} tsr_running_digest;

/* ---- Compares the chunks of a tensor with a replica of them. ---- */

/* Compares a replica of the gathered entry with the elements that `chunks` has in the replica's box. TSR_OK and no
 * difference if no element of the replica can be read. `out->first` is relative to the box. Begins and ends its own work on
 * the ring. Fails like tsr_compare_tensors. */
tsr_status tsr_compare_copy(const tsr_gather *chunks, const tsr_chunk *replica, tsr_ring *ring, tsr_difference *out,
                            tsr_error *err);

#endif
