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

TSR_API_END

#endif
