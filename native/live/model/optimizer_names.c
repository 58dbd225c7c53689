/* The names of an optimizer's parameters, its state dict by number, and, of a model with FSDP1 units, what the conversions
 * (fsdp_optimizer_convert.c) are told about units, replicas and names. */
#include <inttypes.h>

#include "live/model/optimizer_names.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

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

/* Describes this rank's units, and adds their parts to bound->held. Everything lives in `arena`. */
static tsr_status describe_units(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
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

static void units_free(tsr_fsdp_optimizers *fsdp)
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
            mine = tsr_fail(err, TSR_E_UNSUPPORTED, "unit '%.*s' is split over different ranks than other units",
                            TSR_STR_ARG(node->fqn));
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

/* ---- names of an optimizer's parameters, and its state dict by number ---- */

static tsr_status first_names(tsr_optimizer_names *out, tsr_error *err)
{
    const tsr_modules *modules = out->model->modules;
    tsr_state_item *named;
    size_t count;
    TSR_TRY(tsr_fqn_named_parameters(modules, out->host, out->arena, &named, &count, err));
    for (size_t i = 0; i < count; i++)
        TSR_TRY(tsr_model_fqn(modules, named[i].raw, out->arena, &out->first[named[i].tensor_id], NULL, err));
    return TSR_OK;
}

tsr_status tsr_optimizer_names_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_optimizer_names *out, tsr_error *err)
{
    *out = (tsr_optimizer_names){.model = model, .host = host, .arena = arena};
    if (tsr_fsdp_is_in(model->modules)) {
        TSR_TRY(describe_units(model, comm, host, arena, &out->fsdp, err));
        out->ids = out->fsdp->bound->ids;
        out->held = out->fsdp->bound->held;
        out->first = out->fsdp->names;
        return TSR_OK;
    }
    TSR_TRY(tsr_tensor_ids_of(model->modules, host, arena, &out->ids, err));
    TSR_TRY(tsr_model_held(model, &out->ids, arena, &out->held, err));
    out->first = tsr_arena_array(arena, out->ids.count, sizeof *out->first, err);
    return out->first ? first_names(out, err) : TSR_E_NOMEM;
}

void tsr_optimizer_names_free(tsr_optimizer_names *names)
{
    if (names->fsdp) units_free(names->fsdp);
    else tsr_tensor_ids_free(&names->ids);
}

tsr_status tsr_optimizer_unit_names(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, tsr_arena *arena,
                                    tsr_name_list **out, tsr_error *err)
{
    tsr_name_list *lists = *out = tsr_arena_array(arena, optimizer->group_count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        tsr_str *list = tsr_arena_array(arena, group->count, sizeof *list, err);
        if (!list) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++) {
            uint32_t id;
            TSR_TRY(tsr_optimizer_param_id(names, &group->params[p], NULL, &id, err));
            list[p] = names->first[id];
        }
        lists[g] = (tsr_name_list){list, group->count};
    }
    return TSR_OK;
}

tsr_status tsr_optimizer_param_id(const tsr_optimizer_names *names, const tsr_model_param *param,
                                  const tsr_module_tensor **out, uint32_t *id, tsr_error *err)
{
    const tsr_module_tensor *of =
        param->of || !param->name ? param->of : tsr_modules_find(names->model->modules, param->name);
    if (out) *out = of;
    *id = of ? tsr_tensor_ids_get(&names->ids, &of) : TSR_NO_ID;
    if (*id == TSR_NO_ID || !names->first[*id].data) {
        const tsr_str name = param->of ? param->of->name : tsr_str_from(param->name ? param->name : "");
        return tsr_fail(err, TSR_E_USAGE, "the optimizer's parameter '%.*s' is not one of the model's", TSR_STR_ARG(name));
    }
    TSR_FAIL_IF(!names->held[*id], err, TSR_E_USAGE, "the model has no tensor for '%.*s'", TSR_STR_ARG(names->first[*id]));
    return TSR_OK;
}

/* ---- by number ---- */

static const tsr_value *native_group(const tsr_model_group *group, size_t first, tsr_arena *arena, tsr_error *err)
{
    const size_t options = group->options->count;
    const tsr_value **items = tsr_arena_array(arena, options + 2, sizeof *items, err);
    const tsr_value **params = tsr_arena_array(arena, group->count, sizeof *params, err);
    if (!items || !params) return NULL;
    for (size_t p = 0; p < group->count; p++)
        if (!(params[p] = tsr_value_int(arena, (int64_t)(first + p), err))) return NULL;
    if (options) memcpy(items, group->options->items, options * sizeof *items);
    items[options] = tsr_value_str(arena, TSR_STR("params"), err);
    items[options + 1] = tsr_value_items(arena, TSR_VALUE_LIST, params, group->count, err);
    return items[options] && items[options + 1] ? tsr_value_items(arena, TSR_VALUE_DICT, items, options + 2, err) : NULL;
}

static const tsr_value *optimizer_dict(const tsr_value *state, const tsr_value *groups, tsr_arena *arena, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, 4, sizeof *items, err);
    if (!items || !state || !groups) return NULL;
    items[0] = tsr_value_str(arena, TSR_STR("state"), err);
    items[1] = state;
    items[2] = tsr_value_str(arena, TSR_STR("param_groups"), err);
    items[3] = groups;
    return items[0] && items[2] ? tsr_value_items(arena, TSR_VALUE_DICT, items, 4, err) : NULL;
}

tsr_status tsr_optimizer_native(const tsr_model_optimizer *optimizer, tsr_arena *arena, const tsr_value **out,
                                tsr_error *err)
{
    size_t params = 0, states = 0, number = 0;
    const size_t user = optimizer->user_state ? optimizer->user_state->count : 0;
    for (size_t g = 0; g < optimizer->group_count; g++) params += optimizer->groups[g].count;
    const tsr_value **state = tsr_arena_array(arena, 2 * params + user, sizeof *state, err);
    const tsr_value **groups = tsr_arena_array(arena, optimizer->group_count, sizeof *groups, err);
    if (!state || !groups) return TSR_E_NOMEM;
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        TSR_FAIL_IF(!group->options || group->options->kind != TSR_VALUE_DICT, err, TSR_E_USAGE,
                    "the options of param group %zu are not a dict", g);
        if (!(groups[g] = native_group(group, number, arena, err))) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++, number++) {
            if (!group->params[p].state) continue;
            state[states++] = tsr_value_int(arena, (int64_t)number, err);
            state[states++] = group->params[p].state;
            if (!state[states - 2]) return TSR_E_NOMEM;
        }
    }
    if (user) memcpy(state + states, optimizer->user_state->items, user * sizeof *state);
    states += user;
    *out = optimizer_dict(tsr_value_items(arena, TSR_VALUE_DICT, state, states, err),
                          tsr_value_items(arena, TSR_VALUE_LIST, groups, optimizer->group_count, err), arena, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- rank 0's tree ---- */

typedef struct sharing {
    tsr_comm *comm;
    tsr_state_dict *passing;
    tsr_vec tensors; /* const tsr_tensor *, in the order of the tree */
} sharing;

/* Rank 0 has its tensors; the others get memory for theirs. */
static tsr_status list_tensor(void *ctx, const tsr_tensor *tensor, const tsr_tensor **out, tsr_error *err)
{
    sharing *s = ctx;
    const tsr_value *value;
    if (tensor->entry.ndim == 0) return TSR_OK;
    if (tensor->meta) {
        tsr_tensor like = *tensor;
        like.meta = false;
        TSR_TRY(tsr_state_dict_allocate(s->passing, &like, &value, err));
        *out = tsr_tensor_of(value);
    }
    const tsr_tensor **slot = tsr_vec_push(&s->tensors, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = *out ? *out : tensor;
    return TSR_OK;
}

static tsr_status send_tensors(const sharing *s, tsr_error *err)
{
    for (size_t i = 0; i < s->tensors.count; i++) {
        const tsr_tensor *tensor = ((const tsr_tensor *const *)s->tensors.items)[i];
        uint64_t bytes;
        TSR_FAIL_IF(!tsr_entry_bytes(&tensor->entry, &bytes), err, TSR_E_UNSUPPORTED,
                    "the tensor's elements are not whole bytes");
        if (bytes) TSR_TRY(s->comm->broadcast(s->comm, tensor->data, (size_t)bytes, 0, err));
    }
    return TSR_OK;
}

tsr_status tsr_fsdp_share_tree(tsr_comm *comm, const tsr_value **tree, tsr_state_dict *passing, tsr_error *err)
{
    const tsr_allocator *allocator = passing->host->allocator;
    const bool root = comm->rank == 0;
    tsr_vec packed = tsr_vec_of(allocator, 1);
    sharing s = {comm, passing, tsr_vec_of(allocator, sizeof(const tsr_tensor *))};
    void *blob = NULL;
    size_t size = 0;
    tsr_status status = root ? tsr_value_pack(*tree, UINT32_MAX, passing->host, &packed, err) : TSR_OK;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK)
        status = tsr_comm_broadcast_blob((tsr_ranks){comm, allocator}, (tsr_str){packed.items, packed.count}, 0, &blob,
                                         &size, err);
    if (status == TSR_OK) {
        if (!root) status = tsr_value_unpack((tsr_str){blob, size}, passing->host, passing->arena, tree, err);
        const tsr_replacing how = {list_tensor, &s, passing->arena, passing->host->limits.depth};
        if (status == TSR_OK) status = tsr_tensors_replace(how, *tree, tree, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (status == TSR_OK) status = send_tensors(&s, err);
    tsr_free(allocator, blob, size, 1);
    tsr_vec_free(&packed);
    tsr_vec_free(&s.tensors);
    return status;
}
