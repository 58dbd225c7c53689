/* See fsdp_cut.h. */
#include "statedict/fsdp/fsdp_cut.h"

#include <inttypes.h>

#include "tessera/sys/optim_load.h"
#include "tessera/sys/redistribute.h"
#include "tessera/sys/state_dict_memory.h"
#include "tessera/sys/statedict.h"

/* ---- moves ---- */

tsr_fsdp_moves tsr_fsdp_moves_of(tsr_comm *world, tsr_comm *data, const tsr_host *host, tsr_state_dict *passing)
{
    const tsr_vec none = tsr_vec_of(host->allocator, sizeof(tsr_move));
    return (tsr_fsdp_moves){world, data, none, none, passing};
}

static tsr_status make_moves(const tsr_fsdp_moves *m, tsr_error *err)
{
    const tsr_host *host = m->passing->host;
    uint64_t apart = m->apart.count, across = m->across.count;
    tsr_status status = TSR_OK;
    if (m->data) TSR_TRY(m->data->largest(m->data, &apart, err));
    if (apart) status = tsr_redistribute(m->data, m->apart.items, m->apart.count, 0, host, err);
    TSR_TRY(tsr_comm_agree(m->world, status, err));
    TSR_TRY(m->world->largest(m->world, &across, err));
    return across ? tsr_redistribute(m->world, m->across.items, m->across.count, 0, host, err) : TSR_OK;
}

tsr_status tsr_fsdp_moves_run(tsr_fsdp_moves *moves, tsr_status mine, tsr_error *err)
{
    tsr_status status = tsr_comm_agree(moves->world, mine, err);
    if (status == TSR_OK) status = make_moves(moves, err);
    tsr_vec_free(&moves->across);
    tsr_vec_free(&moves->apart);
    return status;
}

static tsr_status keep_tensor(const tsr_fsdp_moves *m, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err)
{
    *out = TSR_ARENA_NEW(m->passing->arena, tsr_tensor, err);
    if (!*out) return TSR_E_NOMEM;
    **out = *tensor;
    return TSR_OK;
}

static tsr_status add_move(tsr_fsdp_moves *m, bool apart, const tsr_tensor *from, const tsr_tensor *to, tsr_error *err)
{
    tsr_tensor *a, *b;
    TSR_TRY(keep_tensor(m, from, &a, err));
    TSR_TRY(keep_tensor(m, to, &b, err));
    tsr_move *move = tsr_vec_push(apart ? &m->apart : &m->across, err);
    if (!move) return TSR_E_NOMEM;
    *move = (tsr_move){a, b};
    return TSR_OK;
}

/* ---- what a unit describes ---- */

uint32_t tsr_fsdp_tp_size(const tsr_fsdp_unit *unit)
{
    const tsr_mesh *root = unit->root_mesh;
    return root ? (uint32_t)root->shape[root->dim_count - 1] : 1;
}

static const tsr_fsdp_spec *spec_of(const tsr_fsdp_node *node, uint32_t original)
{
    const tsr_fsdp_spec *specs = node->unit->specs;
    return specs && specs[original].shape ? &specs[original] : NULL;
}

/* The DTensor spec of an original parameter. */
static const tsr_fsdp_spec *tp_spec(const tsr_fsdp_node *node, uint32_t original)
{
    return tsr_fsdp_is_2d(node) ? spec_of(node, original) : NULL;
}

tsr_status tsr_fsdp_check_root_mesh(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
{
    const tsr_fsdp_unit *unit = node->unit;
    const tsr_mesh *root = unit->root_mesh, *mesh = unit->mesh;
    const tsr_comm *world = model->tree.comm;
    TSR_FAIL_IF(!mesh, err, TSR_E_USAGE, "unit '%.*s' has a root mesh, but no mesh that is a slice of it",
                TSR_STR_ARG(node->fqn));
    bool slice = root->dim_count == mesh->dim_count + 1;
    for (uint32_t i = 0; slice && i < mesh->dim_count; i++) slice = root->shape[i] == mesh->shape[i];
    TSR_FAIL_IF(!slice, err, TSR_E_USAGE,
                "unit '%.*s': its root mesh must have the dims of its mesh, plus one for tensor parallelism",
                TSR_STR_ARG(node->fqn));
    const uint64_t shards = mesh->shape[mesh->dim_count - 1], tp = root->shape[root->dim_count - 1];
    const bool fits = tsr_mesh_ranks(root) == world->size && (unit->no_shard || shards == unit->comm->size) &&
                      (unit->no_shard || world->rank / tp % shards == unit->comm->rank);
    TSR_FAIL_IF(!fits, err, TSR_E_USAGE,
                "unit '%.*s': its root mesh of %" PRIu64 " ranks does not put rank %" PRIu32 " of %" PRIu32
                " at slice %" PRIu32 " of %" PRIu32,
                TSR_STR_ARG(node->fqn), tsr_mesh_ranks(root), world->rank, world->size, unit->comm->rank, unit->comm->size);
    return TSR_OK;
}

static tsr_status check_spec(const tsr_fsdp_model *model, const tsr_fsdp_node *node, uint32_t original, tsr_error *err)
{
    const tsr_flat_original *o = &node->flat->params[original];
    const tsr_fsdp_spec *spec = tp_spec(node, original);
    const uint64_t *shape;
    uint64_t bytes;
    tsr_tensor tensor;
    if (!spec) return TSR_OK;
    TSR_FAIL_IF(spec->placement.kind != TSR_SHARD && spec->placement.kind != TSR_REPLICATE, err, TSR_E_UNSUPPORTED,
                "'%.*s': over tensor parallelism, a DTensor must be placed by shard or replicate", TSR_STR_ARG(o->fqn));
    TSR_TRY(tsr_fsdp_parameter(node, original, false, model->arena, &tensor, err));
    TSR_TRY(tsr_tensor_local(&tensor, model->arena, &shape, &bytes, err));
    bool same = spec->ndim == o->ndim;
    for (uint32_t i = 0; same && i < o->ndim; i++) same = shape[i] == o->shape[i];
    if (same) return TSR_OK;
    const tsr_tensor flat = tsr_fsdp_original(node, original);
    const tsr_str whole = tsr_tensor_words(&tensor, model->arena, err), local = tsr_tensor_words(&flat, model->arena, err);
    if (!whole.data || !local.data) return TSR_E_NOMEM;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "'%.*s' of unit '%.*s' was flattened as %.*s, which is not this rank's shard of %.*s",
                     TSR_STR_ARG(o->fqn), TSR_STR_ARG(node->fqn), TSR_STR_ARG(local), TSR_STR_ARG(whole));
}

tsr_status tsr_fsdp_check_specs(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
{
    for (uint32_t i = 0; i < node->flat->param_count; i++) TSR_TRY(check_spec(model, node, i, err));
    return TSR_OK;
}

/* The placements of an original over the root mesh. In a SHARDED state dict, a DTensor is also cut by shard(0) over the
 * last of FSDP's mesh dims; PyTorch cuts an original that is not a DTensor over the first mesh dim. */
static void place(const tsr_fsdp_node *node, const tsr_fsdp_spec *spec, bool sharded, tsr_placement *out)
{
    const uint32_t dims = node->unit->root_mesh->dim_count;
    for (uint32_t i = 0; i < dims; i++) out[i] = (tsr_placement){.kind = TSR_REPLICATE};
    if (spec) out[dims - 1] = spec->placement;
    if (sharded) out[spec ? dims - 2 : 0] = (tsr_placement){.kind = TSR_SHARD, .dim = 0};
}

tsr_status tsr_fsdp_parameter(const tsr_fsdp_node *node, uint32_t original, bool sharded, tsr_arena *arena, tsr_tensor *out,
                              tsr_error *err)
{
    const tsr_fsdp_spec *spec = spec_of(node, original);
    *out = tsr_fsdp_original(node, original);
    if (spec) {
        out->entry.ndim = spec->ndim;
        out->entry.shape = spec->shape;
    }
    if (!sharded && !tp_spec(node, original)) return TSR_OK;
    tsr_placement *placements = tsr_arena_array(arena, node->unit->root_mesh->dim_count, sizeof *placements, err);
    if (!placements) return TSR_E_NOMEM;
    place(node, spec, sharded, placements);
    out->spread = TSR_OVER_MESH;
    out->mesh = node->unit->root_mesh;
    out->placements = placements;
    out->mesh_rank = node->world_rank;
    return TSR_OK;
}

/* ---- rows ---- */

static tsr_status rows_like(const tsr_fsdp_node *node, const tsr_tensor *whole, tsr_state_dict *out, tsr_tensor *rows,
                            tsr_error *err)
{
    const tsr_mesh *mesh = node->unit->mesh;
    const tsr_comm *comm = node->unit->comm;
    const uint32_t ndim = whole->entry.ndim;
    uint64_t *box = tsr_arena_array(out->arena, 2 * (size_t)ndim, sizeof *box, err), end;
    tsr_tensor_part *part = TSR_ARENA_NEW(out->arena, tsr_tensor_part, err);
    if (!box || !part) return TSR_E_NOMEM;
    *rows = *whole;
    tsr_rows_of_rank(whole->entry.shape[0], comm->size, comm->rank, true, &box[0], &end);
    for (uint32_t d = 0; d < ndim; d++) box[ndim + d] = d ? whole->entry.shape[d] : end - box[0];
    *part = (tsr_tensor_part){box, box + ndim, NULL};
    rows->spread = TSR_IN_BOXES;
    rows->parts = part;
    rows->part_count = end > box[0];
    if (!mesh) return TSR_OK;
    tsr_placement *placements;
    TSR_TRY(tsr_fsdp_placements(mesh, out->arena, &placements, err));
    rows->spread = TSR_OVER_MESH;
    rows->part_count = 0;
    rows->mesh = mesh;
    rows->placements = placements;
    rows->mesh_rank = node->world_rank;
    return TSR_OK;
}

static uint64_t row_bytes(const tsr_tensor *tensor, const uint64_t *shape)
{
    uint64_t bytes = tsr_dtype_size(tensor->entry.dtype);
    for (uint32_t d = 1; d < tensor->entry.ndim; d++) bytes *= shape[d];
    return bytes;
}

tsr_status tsr_fsdp_cut_rows(const tsr_fsdp_node *node, const tsr_tensor *whole, tsr_device *device, tsr_state_dict *out,
                             const tsr_value **value, tsr_error *err)
{
    tsr_tensor rows;
    uint64_t begin, end;
    TSR_FAIL_IF(whole->entry.ndim == 0, err, TSR_E_UNSUPPORTED, "a tensor without dims cannot be split");
    TSR_TRY(rows_like(node, whole, out, &rows, err));
    rows.device = device;
    TSR_TRY(tsr_state_dict_allocate(out, &rows, value, err));
    const tsr_tensor *to = tsr_tensor_of(*value);
    tsr_rows_of_rank(whole->entry.shape[0], node->unit->comm->size, node->unit->comm->rank, true, &begin, &end);
    const uint64_t row = row_bytes(whole, whole->entry.shape);
    void *data = to->spread == TSR_IN_BOXES ? to->part_count ? to->parts[0].data : NULL : to->data;
    return tsr_device_upload(device, data, (const char *)whole->data + begin * row, (end - begin) * row, err);
}

/* ---- extensions ---- */

/* Copies the result if the program returned the tensor that it was passed, because that memory is freed. */
static tsr_status keep_whole(const tsr_fsdp_making *m, const tsr_tensor *whole, const tsr_value **value, tsr_error *err)
{
    tsr_tensor like = *whole;
    like.device = m->on_host ? NULL : m->node->unit->device;
    TSR_TRY(tsr_state_dict_allocate(m->out, &like, value, err));
    TSR_TRY(tsr_tensor_copy(whole, tsr_tensor_of(*value), m->out->arena, err));
    TSR_TRY(tsr_device_wait(whole->device, err));
    return tsr_device_wait(like.device, err);
}

tsr_status tsr_fsdp_make(const tsr_fsdp_making *making, tsr_str fqn, const tsr_tensor *flattened, const tsr_value **value,
                         tsr_error *err)
{
    const tsr_fsdp_unit *unit = making->node->unit;
    const tsr_fsdp_extensions *e = unit->extensions;
    const tsr_fsdp_transforms *t = unit->transforms;
    const tsr_tensor *made = flattened;
    if (t && t->unflatten) TSR_TRY(t->unflatten(t->ctx, fqn, flattened, unit->comm, making->passing, &made, err));
    if (!making->sharded) return keep_whole(making, made, value, err);
    tsr_device *device = making->on_host ? NULL : unit->device;
    if (!e || !e->chunk) return tsr_fsdp_cut_rows(making->node, made, device, making->out, value, err);
    TSR_TRY(e->chunk(e->ctx, fqn, made, unit->comm, making->out, &made, err));
    *value = tsr_state_dict_leaf(making->out, made, err);
    return *value ? TSR_OK : TSR_E_NOMEM;
}

/* ---- over the root mesh ---- */

/* Whether tensor parallelism shards dim 0 as well. FSDP's cut is then the outer one, so rows come from other ranks'
 * parts. */
static bool cuts_rows(const tsr_placement *last, uint32_t ndim)
{
    uint32_t dim;
    return tsr_placement_dim(last, ndim, &dim) && dim == 0;
}

/* Copies the rows of `to`, which are in the same tensor parallel part as `local`. */
static tsr_status own_rows(const tsr_fsdp_node *node, uint32_t original, const void *local, const tsr_tensor *to,
                           tsr_arena *arena, tsr_error *err)
{
    tsr_shard shard;
    const tsr_flat_original *o = &node->flat->params[original];
    TSR_TRY(tsr_mesh_shard(&(tsr_sharding){to->mesh, to->placements, to->strided},
                           (tsr_shape){to->entry.ndim, to->entry.shape}, to->mesh_rank, arena, &shard, err));
    if (shard.box_count == 0) return TSR_OK;
    const uint64_t row = row_bytes(to, o->shape);
    return tsr_device_upload(to->device, to->data, (const char *)local + shard.boxes[0].offsets[0] * row,
                             shard.local_shape[0] * row, err);
}

tsr_status tsr_fsdp_chunk_2d(const tsr_fsdp_node *node, uint32_t original, const void *local, const tsr_tensor *to,
                             tsr_fsdp_moves *moves, tsr_error *err)
{
    const tsr_placement *last = &to->placements[to->mesh->dim_count - 1];
    tsr_tensor from;
    if (!cuts_rows(last, to->entry.ndim)) return own_rows(node, original, local, to, moves->passing->arena, err);
    TSR_TRY(tsr_fsdp_parameter(node, original, false, moves->passing->arena, &from, err));
    from.entry.dtype = to->entry.dtype;
    from.entry.fqn = to->entry.fqn;
    from.device = NULL;
    from.data = (void *)(uintptr_t)local;
    return add_move(moves, false, &from, to, err);
}

/* Whether the ranks of one place in tensor parallelism can join `given` among themselves: they hold the same part of it as
 * `to`, which is what they flatten. */
static bool joins_apart(const tsr_fsdp_moves *m, const tsr_tensor *given, const tsr_placement *last)
{
    const uint32_t dims = given->mesh->dim_count, ndim = given->entry.ndim;
    const tsr_placement *theirs = &given->placements[dims - 1];
    uint32_t own = UINT32_MAX, other = UINT32_MAX, dim;
    const bool cut = tsr_placement_dim(last, ndim, &own);
    if (!m->data || theirs->kind != last->kind) return false;
    if (tsr_placement_dim(theirs, ndim, &other) != cut || own != other) return false;
    for (uint32_t i = 0; i + 1 < dims; i++) {
        if (given->placements[i].kind != TSR_SHARD && given->placements[i].kind != TSR_REPLICATE) return false;
        if (cut && tsr_placement_dim(&given->placements[i], ndim, &dim) && dim == own) return false;
    }
    return true;
}

/* Views the same tensors as the ranks with one tensor parallel coordinate do: over FSDP's mesh dims, with the size of
 * what was flattened. */
static tsr_status join_apart(const tsr_fsdp_node *node, uint32_t original, const tsr_tensor *given, const tsr_tensor *to,
                             tsr_fsdp_moves *moves, tsr_error *err)
{
    const tsr_flat_original *o = &node->flat->params[original];
    tsr_tensor from = *given, whole = tsr_tensor_whole(given->entry.dtype, o->ndim, o->shape, to->data);
    whole.entry.fqn = from.entry.fqn;
    from.entry.ndim = o->ndim;
    from.entry.shape = o->shape;
    from.mesh = node->unit->mesh;
    from.mesh_rank = moves->data->rank;
    return add_move(moves, true, &from, &whole, err);
}

tsr_status tsr_fsdp_cut_whole(const tsr_tensor *whole, const tsr_tensor *part, tsr_state_dict *out, const tsr_value **value,
                              tsr_error *err)
{
    const tsr_value *pair[2] = {tsr_value_str(out->arena, TSR_STR("it"), err)}, *target[2] = {pair[0]};
    TSR_TRY(tsr_state_dict_tensor(out, whole, &pair[1], err));
    TSR_TRY(tsr_state_dict_allocate(out, part, value, err));
    target[1] = *value;
    const tsr_value *from = pair[0] ? tsr_value_items(out->arena, TSR_VALUE_DICT, pair, 2, err) : NULL;
    const tsr_value *to = from ? tsr_value_items(out->arena, TSR_VALUE_DICT, target, 2, err) : NULL;
    return to ? tsr_state_dict_distribute(from, to, out, err) : TSR_E_NOMEM;
}

tsr_status tsr_fsdp_gather_2d(const tsr_fsdp_node *node, uint32_t original, const tsr_tensor *given, tsr_fsdp_moves *moves,
                              const void **local, tsr_error *err)
{
    tsr_state_dict *passing = moves->passing;
    static const tsr_placement replicate = {.kind = TSR_REPLICATE};
    const tsr_fsdp_spec *spec = tp_spec(node, original);
    const tsr_value *value;
    tsr_tensor to;
    TSR_TRY(tsr_fsdp_parameter(node, original, false, passing->arena, &to, err));
    to.entry.dtype = given->entry.dtype;
    to.entry.fqn = given->entry.fqn;
    to.device = NULL;
    const bool cut = given->spread == TSR_WHOLE && spec;
    if (cut) TSR_TRY(tsr_fsdp_cut_whole(given, &to, passing, &value, err));
    else TSR_TRY(tsr_state_dict_allocate(passing, &to, &value, err));
    const tsr_tensor *made = tsr_tensor_of(value);
    *local = made->data;
    if (cut) return TSR_OK;
    if (given->spread == TSR_WHOLE) {
        TSR_TRY(tsr_tensor_copy(given, made, passing->arena, err));
        return tsr_device_wait(given->device, err);
    }
    if (joins_apart(moves, given, spec ? &spec->placement : &replicate))
        return join_apart(node, original, given, made, moves, err);
    return add_move(moves, false, given, made, err);
}
