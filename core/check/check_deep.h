/* The two passes of a deep check, which ranks or parts share. The first goes over the extents, the second over the entries. */
#ifndef TSR_CHECK_CHECK_DEEP_H
#define TSR_CHECK_CHECK_DEEP_H

#include "check/check_share.h"
#include "tessera/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/finding_add.h"

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

/* `c` has the checkpoint, the ring and perhaps `progress` and `walked`; the rest is zero. Must be closed even if this fails. */
tsr_status tsr_deep_open(tsr_deep *c, tsr_comm *comm, tsr_error *err);
void tsr_deep_close(tsr_deep *c);

/* The place of a finding in a file, or in none if no file has that number. */
tsr_place tsr_deep_place(const tsr_deep *c, uint32_t file, uint64_t offset, tsr_str fqn);
/* Turns an error of one tensor or range into a finding. Errors that stop the whole check are passed on. */
tsr_status tsr_deep_failure(tsr_deep *c, tsr_place place, const tsr_error *failure, tsr_error *err);
/* Adds what `bytes` bytes of whole elements of `dtype` contain to *out. */
void tsr_deep_count(const tsr_host *host, tsr_dtype dtype, const uint8_t *data, size_t bytes, tsr_deep_counts *out);
void tsr_deep_counts_add(tsr_deep_counts *sum, const tsr_deep_counts *more);

/* Appends the counts of all entries that have some, in the form in which they are sent. */
tsr_status tsr_deep_list_tallies(const tsr_deep *c, tsr_vec *out, tsr_error *err);
/* Adds counts that were sent. TSR_E_USAGE if they are not of this checkpoint. */
tsr_status tsr_deep_add_tallies(tsr_deep *c, tsr_str sent, tsr_error *err);
/* Checks the entries in this rank's share, once `tallies` has the counts of all ranks. */
tsr_status tsr_deep_entries(tsr_deep *c, tsr_error *err);

#endif
