/* See fsdp_carry.h. */
#include "live/model/fsdp_carry.h"

#include <inttypes.h>

#include "live/tensor/value_pack.h"
#include "tessera/sys/value_walk.h"

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
