/* Applies the rules that give every tensor its placements. */
#include "tessera/target.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/target_fsdp1.h"

#include "plan/holders.h"
#include "tessera/sys/holders.h"
#include "tessera/sys/try.h"

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
                "'%.*s' has %u placements, but the mesh '%.*s' has %u dims; give one placement per mesh dim",
                TSR_STR_ARG(placements), count, TSR_STR_ARG(mesh), out->mesh.dim_count);
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
        if (!tsr_rule_matches(target, rule, entry->fqn)) continue;
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
