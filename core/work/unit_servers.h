/* Finds the servers of a parallel file system that units read from, and the order in which a part accesses the servers. */
#ifndef TSR_WORK_UNIT_SERVERS_H
#define TSR_WORK_UNIT_SERVERS_H

#include "work/work_parts.h"

/* Sets `server` and `delay` of the units of a stage. TSR_E_NOMEM. */
tsr_status tsr_units_find_servers(const tsr_work *work, const tsr_stage *stage, tsr_unit *units, size_t count,
                                  tsr_error *err);

/* Orders `count` units of one stage so that a part moves from server to server. Units that the stage's order keeps together
 * (blit_order.h) stay first. TSR_E_NOMEM. */
tsr_status tsr_units_order(const tsr_work *work, const tsr_stage *stage, tsr_storage_reader part, tsr_unit **units,
                           size_t count, tsr_error *err);

#endif
