/* Units that are under way at the same time, so that threads write into different files. */
#ifndef TSR_WORK_LANES_H
#define TSR_WORK_LANES_H

#include "work/units.h"

/* Cuts what of units [first, end) of one stage can be under way together into at most `most` lanes, even in bytes, that
 * share no group of files; they follow each other without gaps. What is behind the last lane comes after them. Returns their
 * number, 0 for no units. */
size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes);

/* Takes up to `most` undone units that follow each other from the front of a lane. */
tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most);

#endif
