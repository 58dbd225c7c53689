/* Orders the items of a plan by server. */
#ifndef TSR_PLAN_STORAGE_H
#define TSR_PLAN_STORAGE_H

#include "tessera/sys/storage.h"

/* Reorders a rank's items, which are sorted by file, for the plan's storage. TSR_E_NOMEM. */
tsr_status tsr_plan_order_items(const tsr_plan *plan, uint64_t dest_rank, tsr_read_item *items, uint64_t count,
                                tsr_error *err);

#endif
