/* The conversions of tessera/sys/optimizer.h do the work; here live tensors become the entries that
 * they want, and what they received becomes live tensors. */
#include "live/model/optimizer_names.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/optimizer.h"

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
    tsr_fsdp_names names;
    tsr_fsdp_carried carried;
    tsr_fsdp_moves moves;
    tsr_vec calls; /* of tsr_fsdp_call */
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
    tsr_fsdp_call *call = made ? tsr_vec_push(&r->calls, err) : NULL;
    if (!call) return TSR_E_NOMEM;
    *call = (tsr_fsdp_call){of->node, of->name, *flattened, NULL, made};
    *out = made;
    return TSR_OK;
}

static tsr_status make_now(receiving *r, tsr_status mine, tsr_error *err)
{
    const tsr_fsdp_optimizers *f = r->fsdp;
    tsr_status status = tsr_fsdp_calls_agree(f, &r->calls, mine, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < r->calls.count && status == TSR_OK; i++) {
        const tsr_fsdp_call *call = (const tsr_fsdp_call *)r->calls.items + i;
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

/* What was set aside. */
static tsr_status copy_aside(const receiving *r, const tsr_tensor *aside, const tsr_value **out, tsr_error *err)
{
    tsr_tensor like = *aside;
    if (r->offload) like.device = NULL;
    TSR_TRY(tsr_state_dict_allocate(r->out, &like, out, err));
    TSR_TRY(tsr_tensor_copy(aside, tsr_tensor_of(*out), r->out->arena, err));
    TSR_TRY(tsr_device_wait(aside->device, err));
    return tsr_device_wait(like.device, err);
}

static bool same_shape(const tsr_entry *a, const tsr_entry *b)
{
    return a->ndim == b->ndim && (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0);
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
        if (other && other->spread != TSR_WHOLE) return copy_aside(r, other, out, err);
        const bool cut = of->param && value->as.tensor->ndim && same_shape(value->as.tensor, &of->param->entry);
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
        received of = {.name = tsr_fsdp_key_name(&r->names, state->items[i])};
        if (of.name.data) of.node = tsr_fsdp_cut_by(&r->names, of.name, &of.original);
        if (of.name.data && !of.node && !r->getting) of.param = distributed_param(r, of.name);
        const tsr_value *aside = tsr_fsdp_carried_find(&r->carried, of.name);
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
    c->receive.names = (tsr_fsdp_names){fsdp, c->index, call->groups.groups, call->groups.count};
    c->receive.moves = tsr_fsdp_moves_of(fsdp->world, fsdp->comm, host, c->changed);
    c->receive.calls = tsr_vec_of(host->allocator, sizeof(tsr_fsdp_call));
}

static void convert_close(conversion *c)
{
    tsr_fsdp_carried_free(&c->receive.carried);
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
    TSR_TRY(tsr_fsdp_set_aside(&c->receive.names, state, &c->receive.carried, c->passing, tree, err));
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
    tsr_fsdp_flattening how = {.names = &r->names, .full = r->full, .moves = &r->moves, .calls = &r->calls};
    const tsr_status status = tsr_fsdp_flatten_states(&how, *tree, tree, err);
    TSR_TRY(tsr_fsdp_moves_run(&r->moves, status, err));
    return tsr_fsdp_flatten_calls(&how, status, err);
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
