/* Rules that restrict a tensor to some ranks: experts by a list of ranks, layers by pipeline stages. */
#include "plan/holders.h"

#include "tessera/sys/holders.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

bool tsr_holders_have(const tsr_holders *holders, uint64_t rank)
{
    if (holders->at_coordinate) {
        uint64_t coordinate[TSR_MESH_MAX_DIMS];
        tsr_mesh_coordinate(holders->mesh, rank, coordinate);
        return coordinate[holders->mesh_dim] == holders->coordinate;
    }
    if (!holders->ranks) return true;
    uint64_t low = 0, high = holders->rank_count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (holders->ranks[middle] < rank) low = middle + 1;
        else high = middle;
    }
    return low < holders->rank_count && holders->ranks[low] == rank;
}

/* Finds the number of the layer that a name is in: the digits between `head`, which begins at a component, and `tail`. */
static bool layer_of(const tsr_target_stage *stage, tsr_str fqn, uint64_t *layer)
{
    for (size_t at = 0; at + stage->head.size < fqn.size; at++) {
        tsr_str rest = {fqn.data + at, fqn.size - at};
        if ((at && fqn.data[at - 1] != '.') || !tsr_str_starts(rest, stage->head)) continue;
        size_t end = stage->head.size;
        for (*layer = 0; end < rest.size && rest.data[end] >= '0' && rest.data[end] <= '9' && *layer <= UINT32_MAX; end++)
            *layer = *layer * 10 + (uint64_t)(rest.data[end] - '0');
        const tsr_str after = {rest.data + end, rest.size - end};
        if (end > stage->head.size && tsr_str_starts(after, stage->tail)) return true;
    }
    return false;
}

bool tsr_rule_matches(const tsr_target *target, const tsr_target_rule *rule, tsr_str fqn)
{
    uint64_t layer;
    return target->match(rule->match, fqn) && (!rule->stage || layer_of(rule->stage, fqn, &layer));
}

/* Finds the coordinate of the stage that has the entry's layer. */
static tsr_status find_stage(const tsr_target *target, const tsr_target_stage *stage, tsr_str fqn, tsr_holders *out,
                             tsr_error *err)
{
    uint64_t layer = 0;
    layer_of(stage, fqn, &layer);
    out->at_coordinate = true;
    out->mesh_dim = stage->mesh_dim;
    for (out->coordinate = 0; out->coordinate < target->mesh.shape[stage->mesh_dim]; out->coordinate++) {
        const tsr_span *range = &stage->ranges[out->coordinate];
        if (layer >= range->offset && layer - range->offset < range->size) return TSR_OK;
    }
    return tsr_fail(err, TSR_E_USAGE, "'%.*s' belongs to layer %llu, which is not in any range of its stage rule",
                    TSR_STR_ARG(fqn), (unsigned long long)layer);
}

tsr_status tsr_target_holders(const tsr_target *target, const tsr_entry *entry, tsr_holders *out, tsr_error *err)
{
    *out = (tsr_holders){.mesh = &target->mesh};
    for (uint32_t i = 0; i < target->rule_count; i++) {
        const tsr_target_rule *rule = &target->rules[i];
        if (!tsr_rule_matches(target, rule, entry->fqn)) continue;
        out->ranks = rule->ranks;
        out->rank_count = rule->rank_count;
        return rule->stage ? find_stage(target, rule->stage, entry->fqn, out, err) : TSR_OK;
    }
    return TSR_OK;
}
