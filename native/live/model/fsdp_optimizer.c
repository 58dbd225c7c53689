/* See fsdp_optimizer.h. What core is told about units, replicas and names; fsdp_optimizer_convert.c converts. */
#include "live/model/fsdp_optimizer.h"

#include <inttypes.h>

#include "live/model/fsdp_carry.h"

/* ---- the description ---- */

/* A name without the components of torch.compile: PyTorch takes them out of optimizers' names wherever they stand. */
static tsr_str without_compiler(tsr_str name, tsr_arena *arena, tsr_error *err)
{
    const tsr_str gone = TSR_STR("_orig_mod.");
    tsr_str copy = tsr_arena_str(arena, name, err);
    char *to = (char *)copy.data;
    for (size_t i = 0; to && i < name.size;) {
        const tsr_str rest = {name.data + i, name.size - i};
        if (tsr_str_starts(rest, gone)) i += gone.size;
        else *to++ = name.data[i++];
    }
    if (copy.data) copy.size = (size_t)(to - copy.data);
    return copy;
}

/* The name of an original from the root. */
static tsr_str global_name(const tsr_fsdp_node *node, tsr_str fqn, tsr_arena *arena, tsr_error *err)
{
    const tsr_str clean = tsr_fsdp_clean(fqn, arena, err);
    if (!clean.data) return clean;
    const tsr_str name =
        tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(node->fqn), node->fqn.size ? "." : "", TSR_STR_ARG(clean));
    return name.data ? without_compiler(name, arena, err) : name;
}

static tsr_str flat_name(const tsr_fsdp_node *node, tsr_arena *arena, tsr_error *err)
{
    return tsr_arena_format(arena, err, "%.*s%s_flat_param", TSR_STR_ARG(node->fqn), node->fqn.size ? "." : "");
}

static tsr_status describe_unit(const tsr_fsdp_optimizers *f, const tsr_fsdp_node *node, tsr_flat_unit *out, tsr_error *err)
{
    const tsr_module_flat *flat = node->flat;
    tsr_flat_param *params = tsr_arena_array(f->arena, flat->param_count, sizeof *params, err);
    tsr_flat_shared *shared = tsr_arena_array(f->arena, flat->shared_count, sizeof *shared, err);
    if (!params || !shared) return TSR_E_NOMEM;
    for (size_t i = 0; i < flat->param_count; i++) {
        params[i] = node->cut.params[i];
        params[i].fqn = global_name(node, flat->params[i].fqn, f->arena, err);
        if (!params[i].fqn.data) return TSR_E_NOMEM;
    }
    for (size_t i = 0; i < flat->shared_count; i++) {
        shared[i].fqn = global_name(node, flat->shared[i].fqn, f->arena, err);
        shared[i].of = global_name(node, flat->shared[i].of, f->arena, err);
        if (!shared[i].fqn.data || !shared[i].of.data) return TSR_E_NOMEM;
    }
    *out = (tsr_flat_unit){.fsdp_module = node->fqn,
                           .params = params,
                           .param_count = (uint32_t)flat->param_count,
                           .shared = shared,
                           .shared_count = flat->shared_count,
                           .numel = node->layout.flat_numel,
                           .is_sharded = node->sharded,
                           .is_hybrid = node->sharded && node->unit->comm->size != f->flat.world_size};
    if (!flat->use_orig_params) out->raw_name = flat_name(node, f->arena, err);
    return flat->use_orig_params || out->raw_name.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status describe(tsr_fsdp_optimizers *f, tsr_error *err)
{
    const tsr_fsdp_model *units = f->bound->units;
    tsr_flat_unit *out = tsr_arena_array(f->arena, units->nodes.count, sizeof *out, err);
    const tsr_fsdp_node *first = NULL;
    f->nodes = tsr_arena_array(f->arena, units->nodes.count, sizeof *f->nodes, err);
    if (!out || !f->nodes) return TSR_E_NOMEM;
    f->flat = (tsr_flat_params){.world_size = f->world->size, .units = out};
    for (size_t i = 0; i < units->nodes.count; i++) {
        const tsr_fsdp_node *node = &tsr_fsdp_nodes(units)[i];
        if (!node->unit) continue;
        if (!first) first = node;
        TSR_FAIL_IF(tsr_fsdp_tp_size(first->unit) != tsr_fsdp_tp_size(node->unit), err, TSR_E_UNSUPPORTED,
                    "the units '%.*s' and '%.*s' are in tensor parallelism of %" PRIu32 " and %" PRIu32 " ranks",
                    TSR_STR_ARG(first->fqn), TSR_STR_ARG(node->fqn), tsr_fsdp_tp_size(first->unit),
                    tsr_fsdp_tp_size(node->unit));
        f->tp_size = tsr_fsdp_tp_size(node->unit);
        f->flat.world_size = f->world->size / f->tp_size;
        f->transformed = f->transformed || tsr_fsdp_is_2d(node) || node->unit->extensions || node->unit->transforms;
        f->nodes[f->flat.unit_count] = node;
        TSR_FAIL_IF(first->flat->use_orig_params != node->flat->use_orig_params, err, TSR_E_UNSUPPORTED,
                    "of the units '%.*s' and '%.*s' one keeps original parameters and one does not", TSR_STR_ARG(first->fqn),
                    TSR_STR_ARG(node->fqn));
        TSR_TRY(describe_unit(f, node, &out[f->flat.unit_count++], err));
        if (out[f->flat.unit_count - 1].is_hybrid) f->flat.shard_size = node->unit->comm->size;
    }
    f->flat.use_orig_params = first && first->flat->use_orig_params;
    f->mesh = first ? first->unit->mesh : NULL;
    return TSR_OK;
}

/* ---- what this rank's optimizer has of a parameter ---- */

static tsr_status put_part(const tsr_fsdp_optimizers *f, uint32_t id, const tsr_module_tensor *of, const tsr_tensor *part,
                           tsr_error *err)
{
    tsr_tensor *tensor = TSR_ARENA_NEW(f->arena, tsr_tensor, err);
    tsr_module_tensor *local = TSR_ARENA_NEW(f->arena, tsr_module_tensor, err);
    uint64_t *shape = tsr_arena_array(f->arena, part->entry.ndim, sizeof *shape, err);
    if (!tensor || !local || !shape) return TSR_E_NOMEM;
    if (part->entry.ndim) memcpy(shape, part->entry.shape, part->entry.ndim * sizeof *shape);
    *tensor = *part;
    tensor->entry.shape = shape;
    *local = *of;
    local->dtype = part->entry.dtype;
    local->ndim = part->entry.ndim;
    local->shape = shape;
    f->bound->held[id] = tensor;
    f->local[id] = local;
    return TSR_OK;
}

static tsr_status part_of(const tsr_fsdp_optimizers *f, const tsr_fsdp_item *item, uint32_t id, tsr_error *err)
{
    const tsr_fsdp_node *node = &tsr_fsdp_nodes(f->bound->units)[item->node];
    const tsr_fsdp_unit *unit = node->unit;
    const uint64_t rank = node->sharded ? unit->comm->rank : 0;
    tsr_span range = {0, node->layout.slice_numel};
    uint64_t at = 0;
    tsr_tensor part;
    if (item->kind == TSR_ITEM_ORIGINAL) {
        range = tsr_flat_layout_range(&node->layout, item->original, rank);
        at = range.size ? node->layout.flat_offsets[item->original] + range.offset - rank * node->layout.slice_numel : 0;
    }
    part = tsr_tensor_whole(unit->dtype, 1, &range.size, NULL);
    if (item->kind == TSR_ITEM_ORIGINAL && !node->sharded)
        TSR_TRY(tsr_fsdp_parameter(node, item->original, false, f->arena, &part, err));
    part.device = unit->device;
    if (range.size && unit->slice) part.data = (char *)unit->slice + at * node->itemsize;
    return put_part(f, id, item->tensor, &part, err);
}

static tsr_status list_parts(const tsr_fsdp_optimizers *f, tsr_error *err)
{
    const tsr_fsdp_model *units = f->bound->units;
    const tsr_fsdp_item *items = tsr_fsdp_items(units);
    for (size_t i = 0; i < units->items.count; i++) {
        if (!items[i].tensor || items[i].buffer) continue;
        const uint32_t id = tsr_tensor_ids_get(&f->bound->ids, &items[i].tensor);
        if (id == TSR_NO_ID || f->names[id].data) continue;
        f->names[id] = items[i].kind == TSR_ITEM_FLAT ? flat_name(&tsr_fsdp_nodes(units)[items[i].node], f->arena, err)
                                                      : without_compiler(items[i].fqn, f->arena, err);
        if (!f->names[id].data) return TSR_E_NOMEM;
        if (items[i].kind != TSR_ITEM_PLAIN) TSR_TRY(part_of(f, &items[i], id, err));
    }
    return TSR_OK;
}

tsr_status tsr_fsdp_optimizers_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_fsdp_optimizers **out, tsr_error *err)
{
    tsr_fsdp_optimizers *f = *out = TSR_ARENA_NEW(arena, tsr_fsdp_optimizers, err);
    if (!f) return TSR_E_NOMEM;
    *f = (tsr_fsdp_optimizers){.world = comm, .comm = comm, .arena = arena, .tp_size = 1};
    TSR_TRY(tsr_fsdp_bind(&(tsr_fsdp_bound){.model = model, .host = host, .arena = arena}, comm, &f->bound, err));
    f->local = tsr_arena_array(arena, f->bound->ids.count, sizeof *f->local, err);
    f->names = tsr_arena_array(arena, f->bound->ids.count, sizeof *f->names, err);
    if (!f->local || !f->names) return TSR_E_NOMEM;
    TSR_TRY(describe(f, err));
    return list_parts(f, err);
}

void tsr_fsdp_optimizers_free(tsr_fsdp_optimizers *fsdp)
{
    if (!fsdp) return;
    if (fsdp->comm && fsdp->comm != fsdp->world) fsdp->comm->close(fsdp->comm);
    tsr_fsdp_unbind(fsdp->bound);
}

tsr_status tsr_fsdp_optimizers_agree(const tsr_fsdp_optimizers *f, tsr_status mine, tsr_error *err)
{
    if (f->tp_size == 1) return mine;
    if (mine != TSR_OK) tsr_error_context(err, "place %" PRIu32 " of tensor parallelism", f->world->rank % f->tp_size);
    return tsr_comm_agree(f->world, mine, err);
}

/* ---- replicas ---- */

typedef struct group_place {
    uint32_t leader, slice; /* the world's rank of slice 0, and which slice */
} group_place;

/* All hybrid units are cut among the same ranks. */
static tsr_status find_group_place(const tsr_fsdp_optimizers *f, group_place *out, tsr_error *err)
{
    bool known = false;
    tsr_status mine = TSR_OK;
    for (size_t i = 0; i < f->bound->units->nodes.count; i++) {
        const tsr_fsdp_node *node = &tsr_fsdp_nodes(f->bound->units)[i];
        if (!node->unit || !node->sharded || node->unit->comm->size == f->comm->size) continue;
        uint32_t leader = f->comm->rank;
        const tsr_status status = node->unit->comm->broadcast(node->unit->comm, &leader, sizeof leader, 0, err);
        if (status != TSR_OK) mine = status;
        if (status != TSR_OK) break;
        const bool same = !known || (leader == out->leader && node->unit->comm->rank == out->slice &&
                                     node->unit->comm->size == f->flat.shard_size);
        if (!same && mine == TSR_OK)
            mine = tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                             "unit '%.*s' is split over different ranks than other units", TSR_STR_ARG(node->fqn));
        *out = (group_place){leader, node->unit->comm->rank};
        known = true;
    }
    return tsr_comm_agree(f->comm, mine, err);
}

static tsr_status find_replicas(tsr_fsdp_optimizers *f, tsr_error *err)
{
    const uint32_t world = f->comm->size, shards = f->flat.shard_size;
    group_place mine = {0};
    if (shards == 0) return TSR_OK;
    TSR_TRY(find_group_place(f, &mine, err));
    group_place *places = tsr_arena_array(f->arena, world, sizeof *places, err);
    size_t *sizes = tsr_arena_array(f->arena, world, sizeof *sizes, err);
    uint32_t *groups = tsr_arena_array(f->arena, world, sizeof *groups, err), count = 0;
    TSR_TRY(tsr_comm_agree(f->comm, places && sizes && groups ? TSR_OK : TSR_E_NOMEM, err));
    for (uint32_t r = 0; r < world; r++) sizes[r] = sizeof *places;
    TSR_TRY(f->comm->all_gather(f->comm, &mine, sizes, places, err));
    for (uint32_t leader = 0; leader < world; leader++) {
        if (places[leader].leader != leader) continue;
        for (uint32_t r = 0; r < world; r++)
            if (places[r].leader == leader && places[r].slice < shards && count + places[r].slice < world)
                groups[count + places[r].slice] = r;
        count += shards;
    }
    f->flat.shard_groups = groups;
    TSR_FAIL_IF(count != world, err, TSR_E_USAGE, "replicas of %" PRIu32 " ranks do not make %" PRIu32 " ranks", shards,
                world);
    return TSR_OK;
}

tsr_status tsr_fsdp_optimizers_meet(tsr_fsdp_optimizers *f, tsr_error *err)
{
    const uint32_t words[2] = {f->tp_size, f->transformed};
    TSR_TRY(tsr_comm_same(f->world, (tsr_str){(const char *)words, sizeof words},
                          "extensions and tensor parallelism of FSDP's units", err));
    if (f->tp_size > 1 && f->comm == f->world) {
        const uint32_t place = f->world->rank % f->tp_size;
        tsr_comm *data = NULL;
        TSR_TRY(f->world->split(f->world, place, f->world->rank, &data, err));
        f->comm = data;
    }
    return tsr_fsdp_optimizers_agree(f, find_replicas(f, err), err);
}

/* ---- names ---- */

/* Adds the names that item `i` stands for. */
static tsr_status add_names(const tsr_fsdp_optimizers *f, const tsr_fsdp_item *item, tsr_param *param, tsr_error *err)
{
    const tsr_fsdp_node *node = item->kind == TSR_ITEM_FLAT ? &tsr_fsdp_nodes(f->bound->units)[item->node] : NULL;
    const size_t more = node ? node->flat->param_count : 1;
    tsr_str *fqns = tsr_arena_array(f->arena, param->fqn_count + more, sizeof *fqns, err);
    if (!fqns) return TSR_E_NOMEM;
    if (param->fqn_count) memcpy(fqns, param->fqns, param->fqn_count * sizeof *fqns);
    for (size_t i = 0; i < more; i++) {
        tsr_str *fqn = &fqns[param->fqn_count++];
        *fqn =
            node ? global_name(node, node->flat->params[i].fqn, f->arena, err) : without_compiler(item->fqn, f->arena, err);
        if (!fqn->data) return TSR_E_NOMEM;
    }
    param->shared = param->tensor != NULL;
    param->tensor = item->tensor;
    param->fqns = fqns;
    return TSR_OK;
}

tsr_status tsr_fsdp_optimizers_params(const tsr_fsdp_optimizers *fsdp, tsr_params **out, tsr_error *err)
{
    const tsr_fsdp_model *units = fsdp->bound->units;
    const tsr_fsdp_item *items = tsr_fsdp_items(units);
    tsr_param *params = tsr_arena_array(fsdp->arena, fsdp->bound->ids.count, sizeof *params, err);
    size_t count = 0;
    if (!params) return TSR_E_NOMEM;
    for (size_t i = 0; i < units->items.count; i++) {
        if (!items[i].tensor || items[i].buffer) continue;
        const uint32_t id = tsr_tensor_ids_get(&fsdp->bound->ids, &items[i].tensor);
        if (id != TSR_NO_ID) TSR_TRY(add_names(fsdp, &items[i], &params[id], err));
    }
    for (uint32_t id = 0; id < fsdp->bound->ids.count; id++)
        if (params[id].tensor) params[count++] = params[id];
    return tsr_params_listed(params, count, fsdp->bound->host, out, err);
}
