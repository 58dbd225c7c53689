/* Converts the state of optimizers in FSDP1's units. The conversions of tessera/sys/optimizer.h do the work; here live tensors
 * become the entries that they want, what they received becomes live tensors, and state that they cannot take is set aside. */
#include <inttypes.h>

#include "live/model/optimizer_names.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/optimizer.h"

/* ---- state that is set aside ---- */

/* Optimizer state that core's conversions cannot take as it is: DTensors of parameters that no unit manages, and state
 * whose tensor is not the one that FSDP flattened (extensions, tensor parallelism). */

/* The names of one conversion, and which unit manages each. */
typedef struct unit_names {
    const tsr_fsdp_optimizers *fsdp;
    const tsr_flat_index *index;
    const tsr_name_list *groups; /* parameter numbers count through all groups */
    size_t group_count;
} unit_names;

/* State of parameters that no unit shards, as the caller passed it. */
typedef struct carried_states {
    tsr_map *places; /* name → number in `states` */
    tsr_vec states;  /* const tsr_value * */
} carried_states;

/* A pending call of a unit's extensions. It is collective: all ranks of the unit must make it. */
typedef struct unit_call {
    const tsr_fsdp_node *node;
    tsr_str fqn;
    tsr_tensor given;
    tsr_tensor *flattened; /* gets the result's memory; or NULL, and */
    tsr_value *made;       /* gets the result as a tensor */
} unit_call;

/* How state is converted to the tensors that FSDP flattened. */
typedef struct flattening {
    const unit_names *names;
    bool full; /* the states are whole tensors */
    tsr_fsdp_moves *moves;
    tsr_vec *calls;            /* of unit_call */
    const tsr_fsdp_node *node; /* the unit of the state that is being converted */
    uint32_t original;
    tsr_str fqn;
} flattening;

/* The parameter's name for a key of "state", which is a name or a number. data NULL: the key is neither. */
static tsr_str key_name(const unit_names *names, const tsr_value *key)
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

/* The unit whose flat parameter the state belongs to, and the original parameter (TSR_NO_PARAM: all originals); NULL: no
 * unit. The originals of a unit that is not sharded have state of their own, so they belong to none. */
static const tsr_fsdp_node *cut_by(const unit_names *names, tsr_str name, uint32_t *original)
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

/* ---- set aside ---- */

typedef struct setting_aside {
    const unit_names *names;
    carried_states *carried;
    tsr_arena *arena;
    bool any;
} setting_aside;

static tsr_status without_elements(void *ctx, const tsr_tensor *tensor, const tsr_tensor **out, tsr_error *err)
{
    static const uint64_t none[1] = {0};
    setting_aside *a = ctx;
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
    setting_aside *a = ctx;
    uint32_t original;
    const tsr_str name = key_name(a->names, key);
    *out = state;
    if (!name.data || cut_by(a->names, name, &original)) return TSR_OK;
    a->any = false;
    const tsr_replacing how = {without_elements, a, a->arena, a->names->fsdp->bound->host->limits.depth};
    TSR_TRY(tsr_tensors_replace(how, state, out, err));
    if (!a->any) return TSR_OK;
    const tsr_value **place = tsr_vec_push(&a->carried->states, err);
    if (!place) return TSR_E_NOMEM;
    *place = state;
    return tsr_map_put(a->carried->places, name, (uint32_t)a->carried->states.count - 1, NULL, NULL, err);
}

/* Sets the distributed tensors of such parameters aside: `*out` is `tree` ("state", "param_groups") with empty tensors in
 * their place. */
static tsr_status set_aside(const unit_names *names, const tsr_value *tree, carried_states *carried, tsr_arena *arena,
                            const tsr_value **out, tsr_error *err)
{
    const tsr_allocator *allocator = names->fsdp->bound->host->allocator;
    setting_aside a = {names, carried, arena, false};
    carried->states = tsr_vec_of(allocator, sizeof tree);
    carried->places = tsr_map_new(allocator, 0, err);
    return carried->places ? replace_states(tree, aside_state, &a, arena, out, err) : TSR_E_NOMEM;
}

/* The state that was set aside for a parameter; NULL: none. */
static const tsr_value *carried_find(const carried_states *carried, tsr_str name)
{
    const uint32_t at = carried->places && name.data ? tsr_map_get(carried->places, name, UINT32_MAX) : UINT32_MAX;
    return at == UINT32_MAX ? NULL : ((const tsr_value *const *)carried->states.items)[at];
}

static void carried_free(carried_states *carried)
{
    if (carried->places) tsr_vec_free(&carried->states);
    tsr_map_free(carried->places);
}

/* ---- as FSDP flattens it ---- */

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
    unit_call *call = tsr_vec_push(f->calls, err);
    if (!call) return TSR_E_NOMEM;
    *call = (unit_call){f->node, f->fqn, *given, made, NULL};
    return TSR_OK;
}

static tsr_status flatten_state(void *ctx, const tsr_value *key, const tsr_value *state, const tsr_value **out,
                                tsr_error *err)
{
    flattening *f = ctx;
    *out = state;
    if (key->kind != TSR_VALUE_STR) return TSR_OK;
    f->fqn = key->text;
    f->node = cut_by(f->names, key->text, &f->original);
    if (!f->node || f->original == TSR_NO_PARAM) return TSR_OK;
    const tsr_fsdp_extensions *e = f->node->unit->extensions;
    const tsr_fsdp_transforms *t = f->node->unit->transforms;
    const bool calls = f->full ? t && t->flatten : e && e->gather;
    if (!tsr_fsdp_is_2d(f->node) && !calls) return TSR_OK;
    tsr_state_dict *passing = f->moves->passing;
    const tsr_replacing how = {flatten_tensor, f, passing->arena, passing->host->limits.depth};
    const tsr_status status = tsr_tensors_replace(how, state, out, err);
    if (status != TSR_OK) tsr_error_context(err, "the state of '%.*s'", TSR_STR_ARG(key->text));
    return status;
}

/* `*out` is `tree` with each state replaced by the tensor that FSDP flattened. The tensors are complete once the moves
 * and the calls have been made. */
static tsr_status flatten_states(flattening *how, const tsr_value *tree, const tsr_value **out, tsr_error *err)
{
    return replace_states(tree, flatten_state, how, how->moves->passing->arena, out, err);
}

/* ---- calls of extensions ---- */

static tsr_status list_names(const tsr_vec *calls, tsr_vec *names, tsr_error *err)
{
    for (size_t i = 0; i < calls->count; i++) {
        const tsr_str fqn = ((const unit_call *)calls->items)[i].fqn;
        TSR_TRY(tsr_vec_append(names, fqn.data, fqn.size, err));
        TSR_TRY(tsr_vec_append(names, "", 1, err));
    }
    return TSR_OK;
}

/* Whether all ranks of fsdp->comm are to make the same calls; `mine` is this rank's status so far. Collective over
 * fsdp->world. */
static tsr_status calls_agree(const tsr_fsdp_optimizers *fsdp, const tsr_vec *calls, tsr_status mine, tsr_error *err)
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

static tsr_status flatten_by_extension(const flattening *f, const unit_call *call, tsr_error *err)
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

/* Makes the calls. Collective over fsdp->world. */
static tsr_status flatten_calls(const flattening *how, tsr_status mine, tsr_error *err)
{
    const tsr_fsdp_optimizers *fsdp = how->names->fsdp;
    tsr_status status = calls_agree(fsdp, how->calls, mine, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < how->calls->count && status == TSR_OK; i++) {
        const unit_call *call = (const unit_call *)how->calls->items + i;
        status = flatten_by_extension(how, call, err);
        if (status != TSR_OK) tsr_error_context(err, "the state of '%.*s'", TSR_STR_ARG(call->fqn));
        status = tsr_comm_agree(fsdp->comm, status, err);
    }
    return tsr_fsdp_optimizers_agree(fsdp, status, err);
}

/* ---- live tensors → entries ---- */

typedef struct sent {
    tsr_entry entry; /* first */
    const void *data;
} sent;

static const void *bytes_of(void *ctx, const tsr_entry *entry)
{
    (void)ctx;
    return ((const sent *)entry)->data;
}

/* The one run of rows that the rank holds. */
static tsr_status take_rows(const tsr_tensor *tensor, tsr_arena *arena, sent *out, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count;
    const uint32_t ndim = tensor->entry.ndim;
    uint64_t *box = tsr_arena_array(arena, 2 * (size_t)ndim, sizeof *box, err);
    tsr_chunk *chunk = TSR_ARENA_NEW(arena, tsr_chunk, err);
    if (!box || !chunk) return TSR_E_NOMEM;
    TSR_TRY(tsr_tensor_pieces(tensor, arena, &pieces, &count, err));
    bool rows = count <= 1;
    for (uint32_t d = 0; d < ndim && rows; d++) {
        box[ndim + d] = d ? tensor->entry.shape[d] : 0;
        if (!count) continue;
        if (d == 0) box[0] = pieces->offsets[0];
        box[ndim + d] = pieces->sizes[d];
        rows = pieces->sizes[d] == pieces->buffer_sizes[d] && (d == 0 || pieces->sizes[d] == tensor->entry.shape[d]);
    }
    TSR_FAIL_IF(!rows, err, TSR_E_UNSUPPORTED, "a tensor is not sharded by rows");
    *chunk = (tsr_chunk){.offsets = box, .sizes = box + ndim};
    if (ndim) out->entry.chunks = chunk;
    out->entry.chunk_count = ndim ? 1 : 0;
    out->data = count ? pieces->data : NULL;
    return TSR_OK;
}

/* `value` with entries that `bytes_of` knows. Bounded by host->limits.depth: loaded states were walked before. */
static tsr_status to_send(const tsr_value *value, bool rows, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const tsr_tensor *tensor = tsr_tensor_of(value);
    tsr_value *copy = tsr_value_new(arena, value->kind, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *value;
    *out = copy;
    if (tensor) {
        sent *entry = TSR_ARENA_NEW(arena, sent, err);
        if (!entry) return TSR_E_NOMEM;
        *entry = (sent){tensor->entry, tensor->data};
        copy->as.tensor = &entry->entry;
        TSR_FAIL_IF(tensor->meta, err, TSR_E_USAGE, "a tensor is meta: it has no memory");
        TSR_FAIL_IF(!rows && tensor->spread != TSR_WHOLE, err, TSR_E_UNSUPPORTED,
                    "state of a distributed parameter that is outside FSDP1's units");
        return tensor->spread == TSR_WHOLE ? TSR_OK : take_rows(tensor, arena, entry, err);
    }
    const tsr_value **items = tsr_arena_array(arena, value->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < value->count; i++) {
        const tsr_status status = to_send(value->items[i], rows, arena, &items[i], err);
        if (status == TSR_OK) continue;
        if (value->kind == TSR_VALUE_DICT && i % 2 && value->items[i - 1]->kind == TSR_VALUE_STR)
            tsr_error_context(err, "'%.*s'", TSR_STR_ARG(value->items[i - 1]->text));
        return status;
    }
    copy->items = items;
    return TSR_OK;
}

/* ---- entries → live tensors ---- */

typedef struct receiving {
    const tsr_fsdp_optimizers *fsdp;
    tsr_live_state *live;
    tsr_state_dict *out;
    void **taken;           /* by buffer: memory that the state dict owns now, for tensors that occur several times */
    const tsr_value **made; /* by buffer: the tensor made of one that is not kept as it is */
    unit_names names;
    carried_states carried;
    tsr_fsdp_moves moves;
    tsr_vec calls; /* of unit_call */
    bool getting;
    bool full;  /* the result has whole tensors */
    bool whole; /* the received tensors are whole */
    bool offload;
} receiving;

/* The state that is being converted. */
typedef struct received {
    tsr_str name;
    const tsr_fsdp_node *node; /* NULL: no unit shards it */
    uint32_t original;
    const tsr_tensor *param; /* the distributed parameter, if no unit shards it; or NULL */
} received;

static tsr_status put_rows(const receiving *r, const tsr_chunk *chunk, tsr_tensor *tensor, tsr_error *err)
{
    tsr_arena *arena = r->out->arena;
    if (r->fsdp->mesh) {
        tsr_placement *placements;
        TSR_TRY(tsr_fsdp_placements(r->fsdp->mesh, arena, &placements, err));
        tensor->spread = TSR_OVER_MESH;
        tensor->mesh = r->fsdp->mesh;
        tensor->placements = placements;
        tensor->mesh_rank = r->fsdp->comm->rank;
        return TSR_OK;
    }
    tsr_tensor_part *part = TSR_ARENA_NEW(arena, tsr_tensor_part, err);
    if (!part) return TSR_E_NOMEM;
    *part = (tsr_tensor_part){chunk->offsets, chunk->sizes, tensor->data};
    tensor->spread = TSR_IN_BOXES;
    tensor->data = NULL;
    tensor->parts = part;
    tensor->part_count = chunk->sizes[0] > 0;
    return TSR_OK;
}

/* The memory that was received becomes the state dict's own. */
static tsr_status keep_buffer(const receiving *r, const tsr_entry *entry, void **data, tsr_error *err)
{
    tsr_live_buffer *buffer = &r->live->buffers[entry->chunks->file];
    *data = buffer->data ? buffer->data : r->taken[entry->chunks->file];
    if (!buffer->data) return TSR_OK;
    tsr_buffer *own = tsr_vec_push(&r->out->buffers, err);
    if (!own) return TSR_E_NOMEM;
    *own = (tsr_buffer){NULL, NULL, buffer->data, buffer->size};
    r->out->owned += buffer->size;
    r->taken[entry->chunks->file] = buffer->data;
    *buffer = (tsr_live_buffer){0};
    return TSR_OK;
}

static tsr_status to_device(const receiving *r, tsr_device *device, const tsr_tensor *host, const tsr_value **out,
                            tsr_error *err)
{
    tsr_tensor tensor = *host;
    tensor.device = device;
    TSR_TRY(tsr_state_dict_allocate(r->out, &tensor, out, err));
    TSR_TRY(tsr_tensor_copy(host, tsr_tensor_of(*out), r->out->arena, err));
    return tsr_device_wait(device, err);
}

/* By the unit's extensions, once all ranks come to them. */
static tsr_status make_later(receiving *r, const received *of, const tsr_tensor *flattened, const tsr_value **out,
                             tsr_error *err)
{
    tsr_value *made = tsr_value_new(r->out->arena, TSR_VALUE_TENSOR, err);
    unit_call *call = made ? tsr_vec_push(&r->calls, err) : NULL;
    if (!call) return TSR_E_NOMEM;
    *call = (unit_call){of->node, of->name, *flattened, NULL, made};
    *out = made;
    return TSR_OK;
}

static tsr_status make_now(receiving *r, tsr_status mine, tsr_error *err)
{
    const tsr_fsdp_optimizers *f = r->fsdp;
    tsr_status status = calls_agree(f, &r->calls, mine, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < r->calls.count && status == TSR_OK; i++) {
        const unit_call *call = (const unit_call *)r->calls.items + i;
        const tsr_fsdp_making making = {call->node, !r->full, r->full || r->offload, r->moves.passing, r->out};
        const tsr_value *value = NULL;
        status = tsr_fsdp_make(&making, call->fqn, &call->given, &value, err);
        if (status == TSR_OK) call->made->as.tensor = value->as.tensor;
        status = tsr_comm_agree(f->comm, status, err);
    }
    return tsr_fsdp_optimizers_agree(f, status, err);
}

/* As a DTensor over the root mesh: cut once the moves are made. */
static tsr_status transform(receiving *r, const received *of, const tsr_tensor *flattened, const tsr_value **out,
                            tsr_error *err)
{
    const tsr_fsdp_unit *unit = of->node->unit;
    const bool on_host = r->full || r->offload;
    tsr_tensor like;
    if (!tsr_fsdp_is_2d(of->node)) return make_later(r, of, flattened, out, err);
    TSR_TRY(tsr_fsdp_parameter(of->node, of->original, !r->full, r->out->arena, &like, err));
    like.entry.dtype = flattened->entry.dtype;
    like.device = on_host ? NULL : unit->device;
    TSR_TRY(tsr_state_dict_allocate(r->out, &like, out, err));
    tsr_tensor to = *tsr_tensor_of(*out);
    to.entry.fqn = of->name; /* for messages; the result's own would not live as long */
    if (!r->full) return tsr_fsdp_chunk_2d(of->node, of->original, flattened->data, &to, &r->moves, err);
    const uint64_t bytes = of->node->layout.numels[of->original] * tsr_dtype_size(flattened->entry.dtype);
    return tsr_device_upload(to.device, to.data, flattened->data, bytes, err);
}

static bool is_transformed(const receiving *r, const tsr_fsdp_node *node)
{
    const tsr_fsdp_extensions *e = node->unit->extensions;
    return tsr_fsdp_is_transformed(node) || (!r->full && e && e->chunk);
}

/* A state that was received whole, as this rank has it: other than the whole. */
static tsr_status make_tensor(receiving *r, const tsr_entry *entry, const received *of, const tsr_value **out,
                              tsr_error *err)
{
    const tsr_value **made = &r->made[entry->chunks->file];
    const tsr_tensor whole =
        tsr_tensor_whole(entry->dtype, entry->ndim, entry->shape, r->live->buffers[entry->chunks->file].data);
    tsr_device *device = r->full || r->offload ? NULL : of->node->unit->device;
    tsr_status status = TSR_OK;
    if (!*made && is_transformed(r, of->node)) status = transform(r, of, &whole, made, err);
    else if (!*made) status = tsr_fsdp_cut_rows(of->node, &whole, device, r->out, made, err);
    *out = *made;
    return status;
}

static tsr_status receive_tensor(receiving *r, const tsr_entry *entry, const received *of, const tsr_value **out,
                                 tsr_error *err)
{
    const tsr_fsdp_node *node = r->getting && (!r->full || r->fsdp->transformed) ? of->node : NULL;
    tsr_tensor *tensor = TSR_ARENA_NEW(r->out->arena, tsr_tensor, err);
    void *data;
    if (!tensor) return TSR_E_NOMEM;
    const bool made = node && entry->ndim && r->whole && (!r->full || is_transformed(r, node));
    if (made) return make_tensor(r, entry, of, out, err);
    if (r->full) node = NULL;
    TSR_TRY(keep_buffer(r, entry, &data, err));
    *tensor = tsr_tensor_whole(entry->dtype, entry->ndim, entry->shape, data);
    if (node && entry->ndim) TSR_TRY(put_rows(r, entry->chunks, tensor, err));
    if (node && node->unit->device && entry->ndim && !r->offload) return to_device(r, node->unit->device, tensor, out, err);
    return tsr_state_dict_tensor(r->out, tensor, out, err);
}

/* A whole state of a parameter that is distributed: this rank's part. */
static tsr_status distribute(receiving *r, const tsr_entry *entry, const tsr_tensor *param, const tsr_value **out,
                             tsr_error *err)
{
    const tsr_tensor whole =
        tsr_tensor_whole(entry->dtype, entry->ndim, entry->shape, r->live->buffers[entry->chunks->file].data);
    tsr_tensor like = *param;
    like.entry =
        (tsr_entry){.kind = TSR_ENTRY_TENSOR, .dtype = entry->dtype, .ndim = entry->ndim, .shape = param->entry.shape};
    like.device = NULL;
    return tsr_fsdp_cut_whole(&whole, &like, r->out, out, err);
}

static tsr_status receive(receiving *r, const tsr_value *value, const tsr_value *aside, const received *of,
                          const tsr_value **out, tsr_error *err)
{
    *out = value;
    if (value->kind == TSR_VALUE_TENSOR) {
        const tsr_tensor *other = aside ? tsr_tensor_of(aside) : NULL;
        if (other && other->spread != TSR_WHOLE)
            return tsr_state_dict_duplicate(r->out, other, r->offload ? NULL : other->device, out, err);
        const bool cut = of->param && value->as.tensor->ndim && tsr_entry_same_shape(value->as.tensor, &of->param->entry);
        if (cut) return distribute(r, value->as.tensor, of->param, out, err);
        return receive_tensor(r, value->as.tensor, of, out, err);
    }
    tsr_value *copy = tsr_value_new(r->out->arena, value->kind, err);
    const tsr_value **items = tsr_arena_array(r->out->arena, value->count, sizeof *items, err);
    if (!copy || !items) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    if (value->text.data) copy->text = tsr_arena_str(r->out->arena, value->text, err);
    if (value->text.data && !copy->text.data) return TSR_E_NOMEM;
    const bool alike = aside && aside->kind == value->kind && aside->count == value->count;
    for (size_t i = 0; i < value->count; i++)
        TSR_TRY(receive(r, value->items[i], alike ? aside->items[i] : NULL, of, &items[i], err));
    *out = copy;
    return TSR_OK;
}

/* The program's tensor of a parameter that no unit cuts, if it is distributed. */
static const tsr_tensor *distributed_param(const receiving *r, tsr_str name)
{
    const tsr_fsdp_bound *b = r->fsdp->bound;
    for (uint32_t id = 0; id < b->ids.count; id++) {
        const bool distributed = r->fsdp->names[id].data && b->held[id] && b->held[id]->spread != TSR_WHOLE;
        if (distributed && tsr_str_equal(r->fsdp->names[id], name)) return b->held[id];
    }
    return NULL;
}

static tsr_status receive_states(receiving *r, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const received nothing = {.name = {NULL, 0}};
    const tsr_value **items = tsr_arena_array(r->out->arena, state->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        received of = {.name = key_name(&r->names, state->items[i])};
        if (of.name.data) of.node = cut_by(&r->names, of.name, &of.original);
        if (of.name.data && !of.node && !r->getting) of.param = distributed_param(r, of.name);
        const tsr_value *aside = carried_find(&r->carried, of.name);
        TSR_TRY(receive(r, state->items[i], NULL, &nothing, &items[i], err));
        TSR_TRY(receive(r, state->items[i + 1], aside, &of, &items[i + 1], err));
    }
    *out = tsr_value_items(r->out->arena, TSR_VALUE_DICT, items, state->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status receive_tree(receiving *r, const tsr_value **out, tsr_error *err)
{
    const received nothing = {.name = {NULL, 0}};
    const tsr_value *tree = r->live->tree, **items;
    if (!tree) return TSR_OK;
    r->taken = tsr_arena_array(r->out->arena, r->live->buffer_count, sizeof *r->taken, err);
    r->made = tsr_arena_array(r->out->arena, r->live->buffer_count, sizeof *r->made, err);
    if (!r->taken || !r->made) return TSR_E_NOMEM;
    items = tsr_arena_array(r->out->arena, tree->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < tree->count; i += 2) {
        TSR_TRY(receive(r, tree->items[i], NULL, &nothing, &items[i], err));
        if (tsr_str_equal(tree->items[i]->text, TSR_STR("state")))
            TSR_TRY(receive_states(r, tree->items[i + 1], &items[i + 1], err));
        else TSR_TRY(receive(r, tree->items[i + 1], NULL, &nothing, &items[i + 1], err));
    }
    *out = tsr_value_items(r->out->arena, TSR_VALUE_DICT, items, tree->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- the two ways ---- */

static void warn_of_carried(const tsr_fsdp_optimizers *f, const tsr_live_state *live)
{
    for (size_t i = 0; i < live->carried_count; i++)
        tsr_fsdp_warn(f->bound->units, "optimizer state '%.*s' does not belong to a parameter; it is kept as it is",
                      TSR_STR_ARG(live->carried[i]));
}

/* One conversion: temporary data and the result. */
typedef struct conversion {
    receiving receive;
    tsr_flat_index *index;
    tsr_live_state live;
    tsr_flat_params flat;
    tsr_state_dict *host;    /* owns host copies of device tensors while they are sent */
    tsr_state_dict *changed; /* owns tensors that are sent instead of others */
    tsr_arena *passing;
} conversion;

/* Leaves `changed` NULL when memory is short; get and set then tell all ranks. */
static void convert_open(conversion *c, const tsr_fsdp_state_call *call, tsr_error *err)
{
    const tsr_fsdp_optimizers *fsdp = call->fsdp;
    const tsr_host *host = fsdp->bound->host;
    *c = (conversion){.receive = {.fsdp = fsdp, .live = &c->live, .out = call->out}, .flat = fsdp->flat};
    c->flat.groups = call->groups.groups;
    c->flat.group_count = call->groups.count;
    c->passing = tsr_arena_new(host->allocator, 0, err);
    if (c->passing && tsr_flat_index_new(&c->flat, host->allocator, &c->index, err) != TSR_OK) c->index = NULL;
    if (c->index && tsr_state_dict_new(host, &c->host, err) != TSR_OK) c->host = NULL;
    if (c->host && tsr_state_dict_new(host, &c->changed, err) != TSR_OK) c->changed = NULL;
    c->receive.names = (unit_names){fsdp, c->index, call->groups.groups, call->groups.count};
    c->receive.moves = tsr_fsdp_moves_of(fsdp->world, fsdp->comm, host, c->changed);
    c->receive.calls = tsr_vec_of(host->allocator, sizeof(unit_call));
}

static void convert_close(conversion *c)
{
    carried_free(&c->receive.carried);
    tsr_vec_free(&c->receive.calls);
    tsr_flat_index_free(c->index);
    tsr_live_state_free(&c->live);
    tsr_state_dict_free(c->changed);
    tsr_state_dict_free(c->host);
    tsr_arena_free(c->passing);
}

/* Copies what core converts to the host. What is set aside stays on its device. */
static tsr_status bring(conversion *c, const tsr_value *state, const tsr_value **tree, tsr_error *err)
{
    if (!c->changed) return TSR_E_NOMEM;
    TSR_TRY(set_aside(&c->receive.names, state, &c->receive.carried, c->passing, tree, err));
    TSR_TRY(tsr_state_dict_offload(*tree, NULL, &(tsr_offload_options){.any_type = true}, c->host, err));
    *tree = tsr_state_dict_root(c->host);
    return TSR_OK;
}

static tsr_status gather_states(conversion *c, const tsr_value *sent_tree, bool on_all, const tsr_state_options *options,
                                tsr_error *err)
{
    const tsr_fsdp_optimizers *f = c->receive.fsdp;
    const tsr_fsdp_choice choice = tsr_state_fsdp_choice(options);
    const tsr_live_call call = {f->comm, f->bound->host, c->passing, {bytes_of, NULL}};
    if (!choice.full && !f->transformed) return tsr_fsdp_gather_rows(&call, &c->flat, sent_tree, f->mesh, &c->live, err);
    const uint32_t target = choice.optimizer_rank0_only && !on_all ? 0 : TSR_ALL_RANKS;
    return tsr_fsdp_gather(&call, &c->flat, sent_tree, target, &c->live, err);
}

static tsr_status get(conversion *c, const tsr_value *native, const tsr_state_options *options, const tsr_value **root,
                      tsr_error *err)
{
    receiving *r = &c->receive;
    const tsr_fsdp_optimizers *f = r->fsdp;
    const tsr_fsdp_choice choice = tsr_state_fsdp_choice(options);
    const tsr_value *tree = NULL, *sent_tree = NULL;
    r->getting = true;
    r->full = choice.full;
    r->whole = choice.full || f->transformed;
    r->offload = choice.offload_to_cpu;
    tsr_status status = bring(c, native, &tree, err);
    if (status == TSR_OK) status = to_send(tree, false, c->passing, &sent_tree, err);
    TSR_TRY(tsr_comm_agree(f->world, status, err));
    /* Distributed state becomes whole when all its ranks gather it, so every rank must receive it. */
    uint64_t distributed = f->transformed || r->carried.states.count;
    TSR_TRY(f->world->largest(f->world, &distributed, err));
    TSR_TRY(tsr_fsdp_optimizers_agree(f, gather_states(c, sent_tree, distributed, options, err), err));
    warn_of_carried(f, r->live);
    status = receive_tree(r, root, err);
    if (!f->transformed) return tsr_comm_agree(f->world, status, err);
    TSR_TRY(tsr_fsdp_moves_run(&r->moves, status, err));
    return make_now(r, status, err);
}

tsr_status tsr_fsdp_optimizer_get(const tsr_fsdp_state_call *call, const tsr_value *native, const tsr_value **root,
                                  tsr_error *err)
{
    conversion c;
    *root = NULL;
    convert_open(&c, call, err);
    const tsr_status status = get(&c, native, call->options, root, err);
    convert_close(&c);
    return status;
}

/* State whose tensor is not the one that FSDP flattens is converted to that before it is sharded. */
static tsr_status flatten_all(conversion *c, const tsr_value **tree, tsr_error *err)
{
    receiving *r = &c->receive;
    flattening how = {.names = &r->names, .full = r->full, .moves = &r->moves, .calls = &r->calls};
    const tsr_status status = flatten_states(&how, *tree, tree, err);
    TSR_TRY(tsr_fsdp_moves_run(&r->moves, status, err));
    return flatten_calls(&how, status, err);
}

static tsr_status set(conversion *c, const tsr_value *state, bool rank0, const tsr_value **native, tsr_error *err)
{
    receiving *r = &c->receive;
    const tsr_fsdp_optimizers *f = r->fsdp;
    const tsr_live_call call = {f->comm, f->bound->host, c->passing, {bytes_of, NULL}};
    const tsr_value *tree = NULL, *sent_tree = NULL;
    const bool shared = rank0 && f->transformed;
    tsr_status status = c->changed ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && state) status = bring(c, state, &tree, err);
    TSR_TRY(tsr_comm_agree(f->world, status, err));
    if (shared) TSR_TRY(tsr_fsdp_share_tree(f->world, &tree, c->changed, err));
    if (f->transformed) TSR_TRY(flatten_all(c, &tree, err));
    if (tree) status = to_send(tree, true, c->passing, &sent_tree, err);
    TSR_TRY(tsr_comm_agree(f->world, status, err));
    if (rank0 && !shared) status = tsr_fsdp_broadcast(&call, &c->flat, sent_tree, r->live, err);
    else status = tsr_fsdp_spread(&call, &c->flat, sent_tree, r->live, err);
    TSR_TRY(tsr_fsdp_optimizers_agree(f, status, err));
    return tsr_comm_agree(f->world, receive_tree(r, native, err), err);
}

tsr_status tsr_fsdp_optimizer_set(const tsr_fsdp_state_call *call, const tsr_value *state, const tsr_value **native,
                                  tsr_error *err)
{
    const tsr_fsdp_choice choice = tsr_state_fsdp_choice(call->options);
    conversion c;
    *native = NULL;
    convert_open(&c, call, err);
    c.receive.full = choice.full;
    const tsr_status status = set(&c, state, choice.optimizer_rank0_only, native, err);
    convert_close(&c);
    return status;
}
