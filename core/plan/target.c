/* Applies the rules that give every tensor its placements. */
#include "tessera/target.h"
#include "tessera/sys/plan.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

/* ---- holders ---- */

/* Rules that restrict a tensor to some ranks: experts by a list of ranks, layers by pipeline stages. */

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
        for (*layer = 0; end < rest.size && tsr_is_digit(rest.data[end]) && *layer <= UINT32_MAX; end++)
            *layer = *layer * 10 + (uint64_t)(rest.data[end] - '0');
        const tsr_str after = {rest.data + end, rest.size - end};
        if (end > stage->head.size && tsr_str_starts(after, stage->tail)) return true;
    }
    return false;
}

/* Whether a rule applies to a name: its GLOB matches, and if it has stages, the name is in a layer. */
static bool rule_matches(const tsr_target *target, const tsr_target_rule *rule, tsr_str fqn)
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
        if (!rule_matches(target, rule, entry->fqn)) continue;
        out->ranks = rule->ranks;
        out->rank_count = rule->rank_count;
        return rule->stage ? find_stage(target, rule->stage, entry->fqn, out, err) : TSR_OK;
    }
    return TSR_OK;
}

/* ---- target ---- */

static bool is_cut(const tsr_placement *placement)
{
    return placement->kind == TSR_SHARD || placement->kind == TSR_STRIDED_SHARD;
}

static tsr_status check_list(const tsr_target *target, const tsr_placement *placements, tsr_str rule, tsr_error *err)
{
    for (uint32_t i = 0; i < target->mesh.dim_count; i++) {
        TSR_FAIL_IF(placements[i].kind == TSR_PARTIAL, err, TSR_E_USAGE,
                    "the placements for '%.*s' contain partial: a checkpoint cannot store such values, which are parts of a "
                    "sum that only the running job can add up",
                    TSR_STR_ARG(rule));
    }
    return TSR_OK;
}

tsr_status tsr_target_check(const tsr_target *target, tsr_error *err)
{
    for (uint32_t i = 0; i < target->rule_count; i++) {
        TSR_TRY(check_list(target, target->rules[i].placements, target->rules[i].match, err));
    }
    return check_list(target, target->default_placements, TSR_STR("default"), err);
}

tsr_status tsr_target_parse(tsr_str mesh, tsr_str placements, tsr_arena *arena, tsr_target *out, tsr_error *err)
{
    tsr_placement *list;
    uint32_t count;
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr_mesh_parse(mesh, arena, &out->mesh, err));
    TSR_TRY(tsr_placements_parse(placements, arena, &list, &count, err));
    TSR_FAIL_IF(count != out->mesh.dim_count, err, TSR_E_USAGE,
                "expected one placement per dim of the mesh '%.*s' (%u), found %u in '%.*s'", TSR_STR_ARG(mesh),
                out->mesh.dim_count, count, TSR_STR_ARG(placements));
    out->default_placements = list;
    return tsr_target_check(out, err);
}

/* Adapts default placements to a tensor: replicates where they would shard a dimension that the tensor does not have. */
static tsr_status soften(const tsr_target *target, uint32_t ndim, tsr_arena *arena, const tsr_placement **list,
                         bool *replicated, tsr_error *err)
{
    tsr_placement *copy = NULL;
    for (uint32_t i = 0; i < target->mesh.dim_count; i++) {
        uint32_t dim;
        if (!is_cut(&(*list)[i]) || tsr_placement_dim(&(*list)[i], ndim, &dim)) continue;
        if (!copy) {
            copy = tsr_arena_array(arena, target->mesh.dim_count, sizeof *copy, err);
            if (!copy) return TSR_E_NOMEM;
            memcpy(copy, *list, target->mesh.dim_count * sizeof *copy);
        }
        copy[i] = (tsr_placement){TSR_REPLICATE, 0, 0};
    }
    *replicated = copy != NULL;
    if (copy) *list = copy;
    return TSR_OK;
}

tsr_status tsr_target_placements(const tsr_target *target, const tsr_entry *entry, tsr_arena *arena,
                                 const tsr_placement **out, bool *replicated, tsr_error *err)
{
    *replicated = false;
    for (uint32_t i = 0; i < target->rule_count; i++) {
        const tsr_target_rule *rule = &target->rules[i];
        if (!rule_matches(target, rule, entry->fqn)) continue;
        *out = rule->placements;
        for (uint32_t m = 0; m < target->mesh.dim_count; m++) {
            uint32_t dim;
            TSR_FAIL_IF(is_cut(&(*out)[m]) && !tsr_placement_dim(&(*out)[m], entry->ndim, &dim), err, TSR_E_USAGE,
                        "the rule '%.*s' splits dim %d of '%.*s', which has %u dims", TSR_STR_ARG(rule->match),
                        (int)(*out)[m].dim, TSR_STR_ARG(entry->fqn), entry->ndim);
        }
        return TSR_OK;
    }
    *out = target->default_placements;
    return soften(target, entry->ndim, arena, out, replicated, err);
}

static const tsr_placement replicate = {TSR_REPLICATE, 0, 0};

static tsr_placement shard(int32_t dim)
{
    return (tsr_placement){TSR_SHARD, dim, 0};
}

/* A list of two placements in the arena. The second one only counts if the mesh has two dimensions. */
static const tsr_placement *list_of(tsr_arena *arena, tsr_placement first, tsr_placement second, tsr_error *err)
{
    tsr_placement *list = tsr_arena_array(arena, 2, sizeof *list, err);
    if (list) {
        list[0] = first;
        list[1] = second;
    }
    return list;
}

tsr_status tsr_target_strategy(tsr_strategy strategy, tsr_mesh mesh, tsr_arena *arena, tsr_target *out, tsr_error *err)
{
    static const struct {
        const char *name;
        uint32_t dims;
    } strategies[] = {
        [TSR_STRATEGY_FSDP2] = {"fsdp2", 1}, [TSR_STRATEGY_HSDP] = {"hsdp", 2}, [TSR_STRATEGY_DDP] = {"ddp", 1}};
    TSR_FAIL_IF(mesh.dim_count != strategies[strategy].dims, err, TSR_E_USAGE,
                "%s needs a mesh of %u dims, but this one has %u", strategies[strategy].name, strategies[strategy].dims,
                mesh.dim_count);
    *out = (tsr_target){.mesh = mesh};
    out->default_placements = strategy == TSR_STRATEGY_FSDP2  ? list_of(arena, shard(0), replicate, err)
                              : strategy == TSR_STRATEGY_HSDP ? list_of(arena, replicate, shard(0), err)
                                                              : list_of(arena, replicate, replicate, err);
    return out->default_placements ? TSR_OK : TSR_E_NOMEM;
}

/* Makes the rule for tensors of this name; `tp` is their placement along the tp dimension. */
static tsr_status make_rule(const tsr_mesh *mesh, tsr_str name, tsr_placement tp, tsr_arena *arena, tsr_target_rule *rule,
                            tsr_error *err)
{
    tsr_placement dp = shard(0);
    uint64_t tp_size = mesh->shape[mesh->dim_count - 1];
    if (tp.kind == TSR_SHARD && tp.dim == 0 && tp_size > 1) dp = (tsr_placement){TSR_STRIDED_SHARD, 0, tp_size};
    rule->match = name;
    rule->placements = mesh->dim_count == 2 ? list_of(arena, dp, tp, err) : list_of(arena, tp, replicate, err);
    return name.data && rule->placements ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_target_tensor_parallel(tsr_mesh mesh, const tsr_tp_rule *rules, uint32_t rule_count, tsr_arena *arena,
                                      tsr_target *out, tsr_error *err)
{
    TSR_FAIL_IF(mesh.dim_count != 1 && mesh.dim_count != 2, err, TSR_E_USAGE,
                "tensor parallelism needs a mesh (tp) or (dp, tp), but this one has %u dims", mesh.dim_count);
    TSR_FAIL_IF(mesh.shape[mesh.dim_count - 1] > TSR_SPLIT_FACTOR_MAX, err, TSR_E_USAGE,
                "a tp dim of size %llu is greater than %llu", (unsigned long long)mesh.shape[mesh.dim_count - 1],
                (unsigned long long)TSR_SPLIT_FACTOR_MAX);
    tsr_target_rule *list = tsr_arena_array(arena, rule_count, 2 * sizeof *list, err);
    *out = (tsr_target){.mesh = mesh, .rules = list, .rule_count = 2 * rule_count};
    out->default_placements =
        mesh.dim_count == 2 ? list_of(arena, shard(0), replicate, err) : list_of(arena, replicate, replicate, err);
    if (!list || !out->default_placements) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < rule_count; i++) {
        bool rows = rules[i].style == TSR_TP_COLUMN || rules[i].style == TSR_TP_EMBEDDING_ROW;
        tsr_placement bias = rules[i].style == TSR_TP_COLUMN ? shard(0) : replicate;
        const tsr_str weight_name = tsr_arena_format(arena, err, "%.*s.weight", TSR_STR_ARG(rules[i].module));
        const tsr_str bias_name = tsr_arena_format(arena, err, "%.*s.bias", TSR_STR_ARG(rules[i].module));
        TSR_TRY(make_rule(&mesh, weight_name, shard(rows ? 0 : 1), arena, &list[2 * i], err));
        TSR_TRY(make_rule(&mesh, bias_name, bias, arena, &list[2 * i + 1], err));
    }
    return TSR_OK;
}
