/* The read items of a plan one by one, the bytes that they touch, and who writes what.
 *
 * Example:
 *
 *     tsr_plan_cursor *cursor;
 *     const tsr_read_item *item;
 *     status = tsr_plan_cursor_new(plan, 0, 1, &cursor, &err);
 *     if (status == TSR_OK) status = tsr_plan_cursor_next(cursor, &item, &err);
 *     if (status == TSR_OK && item) printf("rank 0 begins with tensor %llu\n", (unsigned long long)item->tensor);
 *     tsr_plan_cursor_free(cursor); */
#ifndef TESSERA_SYS_PLAN_ITEMS_H
#define TESSERA_SYS_PLAN_ITEMS_H

#include "tessera/plan.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/target_fsdp1.h"

TSR_API_BEGIN

/* The units whose flat ranges the ranks hold (tsr_plan_options.flat_units); NULL and 0: no flat ranges. */
const tsr_fsdp1_unit *tsr_plan_flat_units(const tsr_plan *plan, uint64_t *count);

/* The items of ranks [first, first + ranks), rank after rank, each rank's as tsr_plan_rank has them; holds one rank's items
 * at a time. *item is NULL at the end, and valid until the next call. */
typedef struct tsr_plan_cursor tsr_plan_cursor;
tsr_status tsr_plan_cursor_new(const tsr_plan *plan, uint64_t first, uint64_t ranks, tsr_plan_cursor **out, tsr_error *err);
tsr_status tsr_plan_cursor_next(tsr_plan_cursor *cursor, const tsr_read_item **item, tsr_error *err);
void tsr_plan_cursor_free(tsr_plan_cursor *cursor); /* accepts NULL */

/* The bytes of a file that an item touches: from its first to its last where the chunk is contiguous raw bytes, the whole
 * chunk (for DCP: the item's blob) where that is only known after a look inside. */
typedef struct tsr_byte_range {
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
} tsr_byte_range;
tsr_byte_range tsr_read_item_bytes(const tsr_plan *plan, const tsr_read_item *item);

/* Who writes what: every distinct shard once, by the least loaded of the ranks that hold it, ties to the lowest; load is
 * what a rank holds alone plus the shared shards it was given before. In order of (tensor, lowest holder). Shards without
 * elements are left out; a tensor without elements is one box, the whole of it, of the lowest rank that holds it. `shard` is
 * valid during the call. A non-zero status of `each` stops and is returned. */
typedef tsr_status tsr_each_write(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err);
tsr_status tsr_plan_each_write(const tsr_plan *plan, tsr_each_write *each, void *ctx, tsr_error *err);

/* The ranks of the target, at least 1. */
uint64_t tsr_plan_ranks(const tsr_plan *plan);

/* Bytes of tensors, by rank of the target. */
typedef struct tsr_rank_load {
    uint64_t held;     /* of all its shards */
    uint64_t read;     /* from storage, when every distinct shard is read once, by its owner as above */
    uint64_t received; /* from other ranks then: held - read */
} tsr_rank_load;

typedef struct tsr_file_load {
    uint64_t reads; /* items, when every distinct shard is read once */
    uint64_t bytes; /* that they need */
} tsr_file_load;

typedef struct tsr_plan_totals {
    uint64_t ranks;
    const tsr_rank_load *per_rank;
    uint32_t file_count;
    const tsr_file_load *per_file; /* by number in the store; files above have no reads */
    uint64_t classes;              /* distinct (shape, chunk boxes, placements) */
    uint64_t reads;                /* of all files */
    uint64_t bytes;                /* of all reads, each distinct shard once */
    uint64_t span_bytes;           /* from the first to the last byte of every read: what one request an item would fetch */
    uint64_t largest_read;         /* bytes of one item */
    uint64_t held_max;
    double imbalance;     /* largest share held by a rank over the mean; 1 is even, 0 when nothing is held */
    double amplification; /* span_bytes / bytes; 1 when nothing is read */
} tsr_plan_totals;
/* O(classes × ranks + shared shards × their holders); everything lives in `arena`. */
tsr_status tsr_plan_count_totals(const tsr_plan *plan, tsr_arena *arena, tsr_plan_totals *out, tsr_error *err);

/* All items of one rank, sorted by (file, byte_offset of the chunk, tensor, storage offsets). With a storage they are sorted by
 * server first, and each rank begins at another server. They and their arrays live in `arena`. O(items × log items). */
tsr_status tsr_plan_rank(const tsr_plan *plan, uint64_t dest_rank, tsr_arena *arena, const tsr_read_item **items,
                         uint64_t *count, tsr_error *err);

TSR_API_END

#endif
