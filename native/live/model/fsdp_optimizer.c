/* The optimizers of a model with FSDP1 units: what the conversions are told about units, replicas and names, and state that they
 * cannot take as it is. fsdp_optimizer_convert.c converts. */
#include <inttypes.h>

#include "live/model/optimizer_names.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"

/* ---- carry ---- */

/* ---- names ---- */

tsr_str tsr_fsdp_key_name(const tsr_fsdp_names *names, const tsr_value *key)
{
    const tsr_str none = {NULL, 0};
    if (key->kind == TSR_VALUE_STR) return key->text;
    if (key->kind != TSR_VALUE_INT || key->as.integer < 0) return none;
    uint64_t number = (uint64_t)key->as.integer;
    for (size_t g = 0; g < names->group_count; g++) {
        if (number < names->groups[g].count) return names->groups[g].names[number];
        number -= names->groups[g].count;
    }
    return none;
}

const tsr_fsdp_node *tsr_fsdp_cut_by(const tsr_fsdp_names *names, tsr_str name, uint32_t *original)
{
    const tsr_flat_params *flat = &names->fsdp->flat;
    const tsr_flat_found found = tsr_flat_index_find(names->index, name);
    *original = TSR_NO_PARAM;
    if (found.unit && flat->use_orig_params && !found.unit->is_sharded) return NULL;
    if (found.unit) {
        *original = (uint32_t)(found.param - found.unit->params);
        return names->fsdp->nodes[found.unit - flat->units];
    }
    for (uint32_t u = 0; u < flat->unit_count && !flat->use_orig_params; u++)
        if (tsr_str_equal(flat->units[u].raw_name, name)) return names->fsdp->nodes[u];
    return NULL;
}

/* ---- trees ---- */

typedef tsr_status each_state(void *ctx, const tsr_value *key, const tsr_value *state, const tsr_value **out,
                              tsr_error *err);

/* `tree` with each value of its "state" replaced. */
static tsr_status replace_states(const tsr_value *tree, each_state *each, void *ctx, tsr_arena *arena, const tsr_value **out,
                                 tsr_error *err)
{
    const tsr_value *state = tree->kind == TSR_VALUE_DICT ? tsr_value_get(tree, TSR_STR("state")) : NULL;
    *out = tree;
    if (!state || state->kind != TSR_VALUE_DICT) return TSR_OK; /* core says so */
    const tsr_value **states = tsr_arena_array(arena, state->count, sizeof *states, err);
    const tsr_value **items = tsr_arena_array(arena, tree->count, sizeof *items, err);
    if (!states || !items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        states[i] = state->items[i];
        TSR_TRY(each(ctx, state->items[i], state->items[i + 1], &states[i + 1], err));
    }
    const tsr_value *replaced = tsr_value_items(arena, TSR_VALUE_DICT, states, state->count, err);
    for (size_t i = 0; i < tree->count; i++) items[i] = tree->items[i] == state ? replaced : tree->items[i];
    *out = replaced ? tsr_value_items(arena, TSR_VALUE_DICT, items, tree->count, err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* `value` with its tensors replaced; those that `each` leaves NULL stay. */
typedef tsr_status each_tensor(void *ctx, const tsr_tensor *tensor, const tsr_tensor **out, tsr_error *err);
typedef struct replacing {
    each_tensor *each;
    void *ctx;
    tsr_arena *arena;
    uint64_t depth; /* that is left */
} replacing;

static tsr_status replace_tensors(replacing how, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    const tsr_tensor *made = NULL;
    *out = value;
    if (value->kind == TSR_VALUE_TENSOR) {
        TSR_TRY(how.each(how.ctx, tsr_tensor_of(value), &made, err));
        if (made) *out = tsr_value_tensor(how.arena, &made->entry, err);
        return *out ? TSR_OK : TSR_E_NOMEM;
    }
    if (value->count == 0) return TSR_OK;
    TSR_FAIL_IF(how.depth-- == 0, err, TSR_E_LIMIT, "optim: the state is nested too deeply");
    tsr_value *copy = tsr_value_new(how.arena, value->kind, err);
    const tsr_value **items = tsr_arena_array(how.arena, value->count, sizeof *items, err);
    if (!copy || !items) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    for (size_t i = 0; i < value->count; i++) TSR_TRY(replace_tensors(how, value->items[i], &items[i], err));
    *out = copy;
    return TSR_OK;
}

/* ---- set aside ---- */

typedef struct aside {
    const tsr_fsdp_names *names;
    tsr_fsdp_carried *carried;
    tsr_arena *arena;
    bool any;
} aside;

static tsr_status without_elements(void *ctx, const tsr_tensor *tensor, const tsr_tensor **out, tsr_error *err)
{
    static const uint64_t none[1] = {0};
    aside *a = ctx;
    if (tensor->spread == TSR_WHOLE) return TSR_OK;
    tsr_tensor *empty = TSR_ARENA_NEW(a->arena, tsr_tensor, err);
    if (!empty) return TSR_E_NOMEM;
    *empty = tsr_tensor_whole(tensor->entry.dtype, 1, none, NULL);
    a->any = true;
    *out = empty;
    return TSR_OK;
}

static tsr_status aside_state(void *ctx, const tsr_value *key, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    aside *a = ctx;
    uint32_t original;
    const tsr_str name = tsr_fsdp_key_name(a->names, key);
    *out = state;
    if (!name.data || tsr_fsdp_cut_by(a->names, name, &original)) return TSR_OK;
    a->any = false;
    const replacing how = {without_elements, a, a->arena, a->names->fsdp->bound->host->limits.depth};
    TSR_TRY(replace_tensors(how, state, out, err));
    if (!a->any) return TSR_OK;
    const tsr_value **place = tsr_vec_push(&a->carried->states, err);
    if (!place) return TSR_E_NOMEM;
    *place = state;
    return tsr_map_put(a->carried->places, name, (uint32_t)a->carried->states.count - 1, NULL, NULL, err);
}

tsr_status tsr_fsdp_set_aside(const tsr_fsdp_names *names, const tsr_value *tree, tsr_fsdp_carried *carried,
                              tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const tsr_allocator *allocator = names->fsdp->bound->host->allocator;
    aside a = {names, carried, arena, false};
    carried->states = tsr_vec_of(allocator, sizeof tree);
    carried->places = tsr_map_new(allocator, 0, err);
    return carried->places ? replace_states(tree, aside_state, &a, arena, out, err) : TSR_E_NOMEM;
}

const tsr_value *tsr_fsdp_carried_find(const tsr_fsdp_carried *carried, tsr_str name)
{
    const uint32_t at = carried->places && name.data ? tsr_map_get(carried->places, name, UINT32_MAX) : UINT32_MAX;
    return at == UINT32_MAX ? NULL : ((const tsr_value *const *)carried->states.items)[at];
}

void tsr_fsdp_carried_free(tsr_fsdp_carried *carried)
{
    if (carried->places) tsr_vec_free(&carried->states);
    tsr_map_free(carried->places);
}

/* ---- as FSDP flattens it ---- */

typedef tsr_fsdp_flattening flattening;

static tsr_status check_2d(const flattening *f, const tsr_tensor *given, tsr_error *err)
{
    const tsr_mesh *root = f->node->unit->root_mesh;
    tsr_arena *arena = f->moves->passing->arena;
    tsr_tensor like;
    TSR_TRY(tsr_fsdp_parameter(f->node, f->original, false, arena, &like, err));
    like.entry.dtype = given->entry.dtype;
    TSR_TRY(tsr_tensor_same_place(given, &like, &(tsr_likeness){"the state dict", "the parameter", false}, arena, err));
    if (given->spread == TSR_WHOLE) return TSR_OK;
    bool same = given->spread == TSR_OVER_MESH && given->mesh->dim_count == root->dim_count;
    for (uint32_t i = 0; same && i < root->dim_count; i++)
        same = given->mesh->shape[i] == root->shape[i] && given->placements[i].kind != TSR_PARTIAL;
    TSR_FAIL_IF(!same, err, TSR_E_USAGE, "the state dict's tensor is neither whole nor a DTensor over the unit's root mesh");
    return TSR_OK;
}

static tsr_status flatten_2d(const flattening *f, const tsr_tensor *given, tsr_tensor *out, tsr_error *err)
{
    const void *local = NULL;
    tsr_tensor named = *given;
    named.entry.fqn = f->fqn;
    TSR_TRY(check_2d(f, given, err));
    TSR_TRY(tsr_fsdp_gather_2d(f->node, f->original, &named, f->moves, &local, err));
    out->data = (void *)(uintptr_t)local;
    return TSR_OK;
}

static tsr_status flatten_tensor(void *ctx, const tsr_tensor *given, const tsr_tensor **out, tsr_error *err)
{
    const flattening *f = ctx;
    tsr_tensor *made = TSR_ARENA_NEW(f->moves->passing->arena, tsr_tensor, err);
    if (!made) return TSR_E_NOMEM;
    if (given->entry.ndim == 0) return TSR_OK;
    *made = tsr_fsdp_original(f->node, f->original);
    made->device = NULL;
    made->entry.dtype = given->entry.dtype;
    *out = made;
    if (tsr_fsdp_is_2d(f->node)) return flatten_2d(f, given, made, err);
    tsr_fsdp_call *call = tsr_vec_push(f->calls, err);
    if (!call) return TSR_E_NOMEM;
    *call = (tsr_fsdp_call){f->node, f->fqn, *given, made, NULL};
    return TSR_OK;
}

static tsr_status flatten_state(void *ctx, const tsr_value *key, const tsr_value *state, const tsr_value **out,
                                tsr_error *err)
{
    flattening *f = ctx;
    *out = state;
    if (key->kind != TSR_VALUE_STR) return TSR_OK;
    f->fqn = key->text;
    f->node = tsr_fsdp_cut_by(f->names, key->text, &f->original);
    if (!f->node || f->original == TSR_NO_PARAM) return TSR_OK;
    const tsr_fsdp_extensions *e = f->node->unit->extensions;
    const tsr_fsdp_transforms *t = f->node->unit->transforms;
    const bool calls = f->full ? t && t->flatten : e && e->gather;
    if (!tsr_fsdp_is_2d(f->node) && !calls) return TSR_OK;
    tsr_state_dict *passing = f->moves->passing;
    const replacing how = {flatten_tensor, f, passing->arena, passing->host->limits.depth};
    const tsr_status status = replace_tensors(how, state, out, err);
    if (status != TSR_OK) tsr_error_context(err, "the state of '%.*s'", TSR_STR_ARG(key->text));
    return status;
}

tsr_status tsr_fsdp_flatten_states(tsr_fsdp_flattening *how, const tsr_value *tree, const tsr_value **out, tsr_error *err)
{
    return replace_states(tree, flatten_state, how, how->moves->passing->arena, out, err);
}

/* ---- calls of extensions ---- */

static tsr_status list_names(const tsr_vec *calls, tsr_vec *names, tsr_error *err)
{
    for (size_t i = 0; i < calls->count; i++) {
        const tsr_str fqn = ((const tsr_fsdp_call *)calls->items)[i].fqn;
        TSR_TRY(tsr_vec_append(names, fqn.data, fqn.size, err));
        TSR_TRY(tsr_vec_append(names, "", 1, err));
    }
    return TSR_OK;
}

tsr_status tsr_fsdp_calls_agree(const tsr_fsdp_optimizers *fsdp, const tsr_vec *calls, tsr_status mine, tsr_error *err)
{
    tsr_vec names = tsr_vec_of(fsdp->bound->host->allocator, 1);
    tsr_status status = mine == TSR_OK ? list_names(calls, &names, err) : mine;
    status = tsr_comm_agree(fsdp->world, status, err);
    if (status == TSR_OK) {
        const tsr_str text = {names.items, names.count};
        status = tsr_comm_same(fsdp->comm, text, "optimizer states that FSDP's extensions are called for", err);
        status = tsr_fsdp_optimizers_agree(fsdp, status, err);
    }
    tsr_vec_free(&names);
    return status;
}

static tsr_status flatten_by_extension(const flattening *f, const tsr_fsdp_call *call, tsr_error *err)
{
    const tsr_fsdp_unit *unit = call->node->unit;
    const tsr_fsdp_extensions *e = unit->extensions;
    const tsr_fsdp_transforms *t = unit->transforms;
    tsr_state_dict *passing = f->moves->passing;
    const tsr_tensor *whole = NULL;
    if (f->full) TSR_TRY(t->flatten(t->ctx, call->fqn, &call->given, unit->comm, passing, &whole, err));
    else TSR_TRY(e->gather(e->ctx, call->fqn, &call->given, unit->comm, passing, &whole, err));
    call->flattened->data = whole->data;
    return tsr_tensor_same_place(whole, call->flattened, &(tsr_likeness){"what was flattened", "the unit", true},
                                 passing->arena, err);
}

tsr_status tsr_fsdp_flatten_calls(const tsr_fsdp_flattening *how, tsr_status mine, tsr_error *err)
{
    const tsr_fsdp_optimizers *fsdp = how->names->fsdp;
    tsr_status status = tsr_fsdp_calls_agree(fsdp, how->calls, mine, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < how->calls->count && status == TSR_OK; i++) {
        const tsr_fsdp_call *call = (const tsr_fsdp_call *)how->calls->items + i;
        status = flatten_by_extension(how, call, err);
        if (status != TSR_OK) tsr_error_context(err, "the state of '%.*s'", TSR_STR_ARG(call->fqn));
        status = tsr_comm_agree(fsdp->comm, status, err);
    }
    return tsr_fsdp_optimizers_agree(fsdp, status, err);
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
    tsr_status status = root ? tsr_value_pack(*tree, UINT32_MAX, &packed, err) : TSR_OK;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK)
        status = tsr_comm_broadcast_blob((tsr_ranks){comm, allocator}, (tsr_str){packed.items, packed.count}, 0, &blob,
                                         &size, err);
    if (status == TSR_OK) {
        const tsr_str text = root ? (tsr_str){NULL, 0} : tsr_arena_str(passing->arena, (tsr_str){blob, size}, err);
        if (!root) status = text.data ? tsr_value_unpack(text, passing->arena, tree, err) : TSR_E_NOMEM;
        const replacing how = {list_tensor, &s, passing->arena, passing->host->limits.depth};
        if (status == TSR_OK) status = replace_tensors(how, *tree, tree, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (status == TSR_OK) status = send_tensors(&s, err);
    tsr_free(allocator, blob, size, 1);
    tsr_vec_free(&packed);
    tsr_vec_free(&s.tensors);
    return status;
}

/* ---- optimizer ---- */

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
