/* Divides units into lanes that are processed at the same time, so that threads write into different files. */
#ifndef TSR_WORK_LANES_H
#define TSR_WORK_LANES_H

#include "work/work_parts.h"

/* Divides units [first, end) of one stage into at most `most` lanes that can be processed at the same time, because they
 * share no group of files. The lanes have similar numbers of bytes and follow each other without gaps; units after the last
 * lane must be processed after them. Returns the number of lanes, 0 if there are no units. */
size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes);

/* Removes up to `most` consecutive units that are not done from the front of a lane, and returns them as a lane. */
tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most);

#endif
