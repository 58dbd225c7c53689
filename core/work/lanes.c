#include "work/lanes.h"

static uint32_t group_of(const tsr_stage *stage, const tsr_unit *unit)
{
    return tsr_stage_blit(stage, unit->first)->file / stage->order.group_files;
}

static uint64_t weight_left(tsr_unit *const *units, size_t first, size_t end)
{
    uint64_t weight = 0;
    for (size_t u = first; u < end; u++) weight += units[u]->done ? 0 : tsr_unit_weight(units[u]);
    return weight;
}

size_t tsr_lanes_cut(const tsr_stage *stage, tsr_unit *const *units, size_t first, size_t end, size_t most, tsr_lane *lanes)
{
    size_t count = 1, grouped = first;
    if (first == end) return 0;
    while (grouped < end && units[grouped]->first < stage->order.grouped) grouped++;
    lanes[0] = (tsr_lane){first, grouped};
    if (grouped > first) return 1;
    const uint64_t each = weight_left(units, first, end) / most;
    uint64_t weight = 0;
    for (size_t u = first; u < end; lanes[count - 1].end = ++u) {
        const bool other = u > first && group_of(stage, units[u]) != group_of(stage, units[u - 1]);
        if (other && count < most && weight >= count * each - each / 8) lanes[count++] = (tsr_lane){u, u};
        weight += units[u]->done ? 0 : tsr_unit_weight(units[u]);
    }
    return count;
}

tsr_lane tsr_lane_take(tsr_lane *lane, tsr_unit *const *units, size_t most)
{
    while (lane->first < lane->end && units[lane->first]->done) lane->first++;
    tsr_lane taken = {lane->first, lane->first};
    while (taken.end < lane->end && taken.end - taken.first < most && !units[taken.end]->done) taken.end++;
    lane->first = taken.end;
    return taken;
}
