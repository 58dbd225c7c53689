/* Which servers of a parallel file system units read from, and the order in which a part goes through them. */
#ifndef TSR_WORK_UNIT_SERVERS_H
#define TSR_WORK_UNIT_SERVERS_H

#include "work/work_parts.h"

/* Sets `server` and `delay` of the units that a stage was cut into. TSR_E_NOMEM. */
tsr_status tsr_units_find_servers(const tsr_work *work, const tsr_stage *stage, tsr_unit *units, size_t count,
                                  tsr_error *err);

/* Puts `count` units of one stage into the order in which a part goes from server to server; those that the stage's order
 * keeps together (blit_order.h) stay in front. TSR_E_NOMEM. */
tsr_status tsr_units_order(const tsr_work *work, const tsr_stage *stage, tsr_storage_reader part, tsr_unit **units,
                           size_t count, tsr_error *err);

#endif
