/* Items of a plan in the order of servers. */
#ifndef TSR_PLAN_STORAGE_H
#define TSR_PLAN_STORAGE_H

#include "tessera/sys/storage.h"

/* Puts a rank's items, sorted by file, into the order of the plan's storage. TSR_E_NOMEM. */
tsr_status tsr_plan_order_items(const tsr_plan *plan, uint64_t dest_rank, tsr_read_item *items, uint64_t count,
                                tsr_error *err);

#endif
