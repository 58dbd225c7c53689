/* Lists what a model with FSDP1 units saves. One walk over the module tree, in the order of nn.Module.state_dict, finds
 * the canonical form of every name and the position of every original parameter. */
#include <inttypes.h>

#include "live/fsdp/fsdp_model.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* ---- memory ---- */

uint64_t tsr_fsdp_slice_bytes(const tsr_fsdp_node *node)
{
    return node->layout.slice_numel * node->itemsize;
}

tsr_status tsr_fsdp_stage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, void **slice, void **staged,
                          tsr_error *err)
{
    const uint64_t bytes = tsr_fsdp_slice_bytes(node);
    tsr_device *device = node->unit->device;
    *slice = node->unit->slice;
    *staged = NULL;
    TSR_FAIL_IF(bytes && !*slice, err, TSR_E_USAGE, "unit '%.*s' has no memory", TSR_STR_ARG(node->fqn));
    if (!device || bytes == 0) return TSR_OK;
    *slice = *staged = tsr_alloc(model->host->allocator, (size_t)bytes, 1, err);
    if (!*staged) return TSR_E_NOMEM;
    return tsr_device_download(device, *staged, node->unit->slice, bytes, err);
}

tsr_status tsr_fsdp_unstage(const tsr_fsdp_model *model, const tsr_fsdp_node *node, void *staged, bool copy_out,
                            tsr_error *err)
{
    const uint64_t bytes = tsr_fsdp_slice_bytes(node);
    tsr_status status = TSR_OK;
    if (staged && copy_out) status = tsr_device_upload(node->unit->device, node->unit->slice, staged, bytes, err);
    tsr_free(model->host->allocator, staged, (size_t)bytes, 1);
    return status;
}

/* ---- originals ---- */

tsr_tensor tsr_fsdp_original(const tsr_fsdp_node *node, uint32_t original)
{
    const tsr_flat_original *o = &node->flat->params[original];
    tsr_tensor tensor = tsr_tensor_whole(node->unit->dtype, o->ndim, o->shape, NULL);
    tensor.device = node->unit->device;
    return tensor;
}

void tsr_fsdp_rows_here(const tsr_fsdp_node *node, uint32_t original, uint64_t *begin, uint64_t *end)
{
    tsr_rows_of_rank(node->flat->params[original].shape[0], node->unit->comm->size, node->unit->comm->rank, true, begin,
                     end);
}

tsr_span tsr_fsdp_valid(const tsr_fsdp_node *node)
{
    uint64_t begin, end;
    tsr_flat_shard_range(&node->cut, node->unit->comm->size, node->unit->comm->rank, &begin, &end);
    return (tsr_span){begin, end - begin};
}

tsr_status tsr_fsdp_placements(const tsr_mesh *mesh, tsr_arena *arena, tsr_placement **out, tsr_error *err)
{
    *out = tsr_arena_array(arena, mesh->dim_count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < mesh->dim_count; i++)
        (*out)[i] = (tsr_placement){.kind = i + 1 == mesh->dim_count ? TSR_SHARD : TSR_REPLICATE};
    return TSR_OK;
}

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

/* These two check that the root mesh fits the unit's mesh and communicators, and the DTensor specs what was flattened. */
static tsr_status fsdp_check_root_mesh(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
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
    return tsr_fail(err, TSR_E_USAGE, "'%.*s' of unit '%.*s' was flattened as %.*s, which is not this rank's shard of %.*s",
                    TSR_STR_ARG(o->fqn), TSR_STR_ARG(node->fqn), TSR_STR_ARG(local), TSR_STR_ARG(whole));
}

static tsr_status fsdp_check_specs(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
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

tsr_status tsr_fsdp_make(const tsr_fsdp_making *making, tsr_str fqn, const tsr_tensor *flattened, const tsr_value **value,
                         tsr_error *err)
{
    const tsr_fsdp_unit *unit = making->node->unit;
    const tsr_fsdp_extensions *e = unit->extensions;
    const tsr_fsdp_transforms *t = unit->transforms;
    const tsr_tensor *made = flattened;
    if (t && t->unflatten) TSR_TRY(t->unflatten(t->ctx, fqn, flattened, unit->comm, making->passing, &made, err));
    if (!making->sharded) /* a copy: the program may have returned the tensor that it was passed, whose memory is freed */
        return tsr_state_dict_duplicate(making->out, made, making->on_host ? NULL : unit->device, value, err);
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

/* ---- list ---- */

/* The name of an original parameter in its module. The originals of one module form a linked list. */
typedef struct list_place {
    tsr_str name;
    uint32_t original;
    uint32_t next;
    bool listed;
} list_place;

#define END UINT32_MAX

/* The position of the walk. Prefixes are empty or end in a dot. */
typedef struct at {
    tsr_module_ref module;
    tsr_str prefix;   /* the canonical name from the root */
    tsr_str relative; /* the name from the module that the unit wraps */
    uint32_t node;
    bool ignored;
    uint32_t depth;
} at;

typedef struct walk {
    tsr_fsdp_model *model;
    tsr_vec places;
    tsr_map **chains; /* one per node: module prefix → first place in `places` */
    size_t chain_count;
    tsr_map *plain; /* key → index of its pair in the plain state */
    uint64_t visits;
} walk;

static tsr_str without_last_dot(tsr_str prefix)
{
    return prefix.size ? (tsr_str){prefix.data, prefix.size - 1} : prefix;
}

tsr_str tsr_fsdp_clean(tsr_str name, tsr_arena *arena, tsr_error *err)
{
    tsr_str copy = tsr_arena_str(arena, name, err);
    char *to = (char *)copy.data;
    if (!to) return copy;
    for (size_t i = 0; i < name.size;) {
        const char *dot = memchr(name.data + i, '.', name.size - i);
        const size_t end = dot ? (size_t)(dot - name.data) + 1 : name.size;
        const tsr_str part = {name.data + i, end - i - (dot != NULL)};
        const bool wrapper = dot && (tsr_str_equal(part, tsr_wrapper_child(TSR_WRAPPER_FSDP1)) ||
                                     tsr_str_equal(part, tsr_wrapper_child(TSR_WRAPPER_CHECKPOINT)));
        if (!wrapper) {
            memmove(to, name.data + i, end - i);
            to += end - i;
        }
        i = end;
    }
    copy.size = (size_t)(to - copy.data);
    return copy;
}

/* ---- units ---- */

static const tsr_fsdp_unit *unit_of(const tsr_fsdp_tree *tree, tsr_module_ref module)
{
    for (size_t i = 0; i < tree->unit_count; i++)
        if (tree->units[i].module == module) return &tree->units[i];
    return NULL;
}

static tsr_status add_place(walk *w, uint32_t node, tsr_str fqn, uint32_t original, tsr_error *err)
{
    uint32_t *first;
    bool fresh;
    const tsr_str name = tsr_fsdp_clean(fqn, w->model->arena, err);
    if (!name.data) return TSR_E_NOMEM;
    size_t split = name.size;
    while (split && name.data[split - 1] != '.') split--;
    const uint32_t number = (uint32_t)w->places.count;
    list_place *p = tsr_vec_push(&w->places, err);
    if (!p) return TSR_E_NOMEM;
    *p = (list_place){{name.data + split, name.size - split}, original, END, false};
    TSR_TRY(tsr_map_put(w->chains[node], (tsr_str){name.data, split}, number, &first, &fresh, err));
    if (fresh) return TSR_OK;
    list_place *places = w->places.items;
    uint32_t last = *first;
    while (places[last].next != END) last = places[last].next;
    places[last].next = number;
    return TSR_OK;
}

static uint32_t original_named(const tsr_module_flat *flat, tsr_str fqn)
{
    for (size_t i = 0; i < flat->param_count; i++)
        if (tsr_str_equal(flat->params[i].fqn, fqn)) return (uint32_t)i;
    return END;
}

static tsr_status list_places(walk *w, uint32_t number, tsr_error *err)
{
    const tsr_module_flat *flat = tsr_fsdp_nodes(w->model)[number].flat;
    for (size_t i = 0; i < flat->param_count; i++) TSR_TRY(add_place(w, number, flat->params[i].fqn, (uint32_t)i, err));
    for (size_t i = 0; i < flat->shared_count; i++) {
        const tsr_str of = flat->shared[i].of;
        const uint32_t original = original_named(flat, of);
        TSR_FAIL_IF(original == END, err, TSR_E_USAGE, "'%.*s' is tied to '%.*s', which the unit does not have",
                    TSR_STR_ARG(flat->shared[i].fqn), TSR_STR_ARG(of));
        TSR_TRY(add_place(w, number, flat->shared[i].fqn, original, err));
    }
    return TSR_OK;
}

static tsr_status check_mesh(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
{
    const tsr_fsdp_unit *unit = node->unit;
    const tsr_mesh *mesh = unit->mesh;
    if (!mesh) return TSR_OK;
    const bool fits = mesh->dim_count && tsr_mesh_ranks(mesh) == model->tree.comm->size &&
                      (unit->no_shard || mesh->shape[mesh->dim_count - 1] == unit->comm->size) &&
                      model->tree.comm->rank % mesh->shape[mesh->dim_count - 1] == unit->comm->rank;
    TSR_FAIL_IF(!fits, err, TSR_E_USAGE,
                "unit '%.*s': its mesh is not that of rank %" PRIu32 " of %" PRIu32 " with %" PRIu32 " slices",
                TSR_STR_ARG(node->fqn), model->tree.comm->rank, model->tree.comm->size, unit->comm->size);
    return TSR_OK;
}

/* Computes where the originals begin in the flat parameter, and which rank has which part. */
static tsr_status lay_out(tsr_fsdp_model *model, tsr_fsdp_node *node, tsr_error *err)
{
    const tsr_module_flat *flat = node->flat;
    uint64_t *numels = tsr_arena_array(model->arena, flat->param_count, sizeof *numels, err);
    tsr_flat_param *params = tsr_arena_array(model->arena, flat->param_count, sizeof *params, err);
    if (!numels || !params) return TSR_E_NOMEM;
    for (size_t i = 0; i < flat->param_count; i++) {
        const tsr_flat_original *o = &flat->params[i];
        TSR_FAIL_IF(o->ndim > TSR_MAX_NDIM || !tsr_box_volume((tsr_box){o->ndim, NULL, o->shape}, &numels[i]), err,
                    TSR_E_LIMIT, "'%.*s%s%.*s' is too large", TSR_STR_ARG(node->fqn), node->fqn.size ? "." : "",
                    TSR_STR_ARG(o->fqn));
    }
    node->itemsize = tsr_dtype_size(node->unit->dtype);
    TSR_FAIL_IF(node->itemsize == 0, err, TSR_E_USAGE, "unit '%.*s': %s elements are not byte-aligned",
                TSR_STR_ARG(node->fqn), tsr_dtype_describe(node->unit->dtype)->name);
    node->sharded = !node->unit->no_shard && node->unit->comm->size > 1;
    const uint32_t slices = node->sharded ? node->unit->comm->size : 1;
    TSR_TRY(tsr_flat_layout_make((tsr_flat_numels){numels, flat->param_count, flat->alignment}, slices, model->arena,
                                 &node->layout, err));
    TSR_FAIL_IF(node->layout.slice_numel > SIZE_MAX / 2 / slices / node->itemsize, err, TSR_E_LIMIT,
                "unit '%.*s' is too large", TSR_STR_ARG(node->fqn));
    for (size_t i = 0; i < flat->param_count; i++)
        params[i] = (tsr_flat_param){.fqn = flat->params[i].fqn,
                                     .ndim = flat->params[i].ndim,
                                     .shape = flat->params[i].shape,
                                     .flat_begin = node->layout.flat_offsets[i],
                                     .flat_end = node->layout.flat_offsets[i] + numels[i]};
    node->cut = (tsr_flat_unit){.fsdp_module = node->fqn,
                                .params = params,
                                .param_count = (uint32_t)flat->param_count,
                                .numel = node->layout.flat_numel,
                                .is_sharded = node->sharded};
    if (!node->unit->root_mesh) return check_mesh(model, node, err);
    TSR_TRY(fsdp_check_root_mesh(model, node, err));
    return fsdp_check_specs(model, node, err);
}

static tsr_status open_node(walk *w, const at *here, uint32_t *number, tsr_error *err)
{
    tsr_fsdp_model *model = w->model;
    const tsr_module_flat *flat = tsr_modules_at(model->tree.modules, here->module)->flat_param;
    *number = (uint32_t)model->nodes.count;
    tsr_fsdp_node *node = tsr_vec_push(&model->nodes, err);
    tsr_map **chains = tsr_arena_array(model->arena, model->nodes.count, sizeof *chains, err);
    if (!node || !chains) return TSR_E_NOMEM;
    *node = (tsr_fsdp_node){.module = here->module,
                            .fqn = without_last_dot(here->prefix),
                            .flat = flat,
                            .world_rank = model->tree.comm->rank,
                            .unit = unit_of(&model->tree, here->module)};
    TSR_FAIL_IF(flat && !node->unit, err, TSR_E_USAGE, "unit '%.*s' has a flat parameter, but no slice was passed for it",
                TSR_STR_ARG(node->fqn));
    TSR_FAIL_IF(!flat && node->unit, err, TSR_E_USAGE, "a slice was passed for unit '%.*s', which has no flat parameter",
                TSR_STR_ARG(node->fqn));
    if (w->chain_count) memcpy(chains, w->chains, w->chain_count * sizeof *chains);
    w->chains = chains;
    w->chains[w->chain_count] = tsr_map_new(model->host->allocator, 0, err);
    if (!w->chains[w->chain_count]) return TSR_E_NOMEM;
    w->chain_count++;
    if (!flat) return TSR_OK;
    TSR_TRY(lay_out(model, node, err));
    return list_places(w, *number, err);
}

/* ---- items ---- */

static tsr_status add_item(walk *w, const at *here, tsr_fsdp_item_kind kind, tsr_str name, tsr_fsdp_item **out,
                           tsr_error *err)
{
    tsr_fsdp_model *model = w->model;
    TSR_FAIL_IF(model->items.count >= model->host->limits.entries, err, TSR_E_LIMIT,
                "the model has more than %" PRIu64 " names", (uint64_t)model->host->limits.entries);
    tsr_fsdp_item *item = tsr_vec_push(&model->items, err);
    if (!item) return TSR_E_NOMEM;
    *item = (tsr_fsdp_item){.kind = kind, .node = here->node, .ignored = here->ignored};
    item->fqn = tsr_arena_format(model->arena, err, "%.*s%.*s", TSR_STR_ARG(here->prefix), TSR_STR_ARG(name));
    if (!item->fqn.data) return TSR_E_NOMEM;
    *out = item;
    return TSR_OK;
}

static tsr_status plain_value(const walk *w, tsr_str fqn, const tsr_module_tensor *tensor, const tsr_value **out,
                              tsr_error *err)
{
    const tsr_fsdp_finder *finder = &w->model->finder;
    if (finder->find) return finder->find(finder->ctx, fqn, tensor, out, err);
    const uint32_t pair = tsr_map_get(w->plain, fqn, UINT32_MAX);
    *out = pair == UINT32_MAX ? NULL : w->model->tree.plain->items[2 * (size_t)pair + 1];
    return TSR_OK;
}

static tsr_status add_plain(walk *w, const at *here, const tsr_module_tensor *tensor, bool buffer, tsr_error *err)
{
    tsr_fsdp_item *item = NULL;
    TSR_TRY(add_item(w, here, TSR_ITEM_PLAIN, tensor->name, &item, err));
    item->tensor = tensor;
    item->buffer = buffer;
    TSR_TRY(plain_value(w, item->fqn, tensor, &item->value, err));
    const tsr_tensor *live = item->value ? tsr_tensor_of(item->value) : NULL;
    TSR_FAIL_IF(!live, err, TSR_E_USAGE, "no tensor was passed for '%.*s'", TSR_STR_ARG(item->fqn));
    TSR_FAIL_IF(live->spread == TSR_WHOLE &&
                    !tsr_shape_equal(tensor->ndim, tensor->shape, live->entry.ndim, live->entry.shape),
                err, TSR_E_USAGE, "the tensor that was passed for '%.*s' has a different shape than in the module tree",
                TSR_STR_ARG(item->fqn));
    return TSR_OK;
}

static tsr_status add_original(walk *w, const at *here, list_place *p, const tsr_module_tensor *tensor, tsr_error *err)
{
    tsr_fsdp_item *item;
    const uint32_t original = p->original;
    TSR_TRY(add_item(w, here, TSR_ITEM_ORIGINAL, p->name, &item, err));
    p->listed = true;
    item->original = original;
    item->tensor = tensor;
    return TSR_OK;
}

static tsr_status list_parameter(walk *w, const at *here, uint32_t chain, const tsr_module_tensor *tensor, tsr_error *err)
{
    tsr_fsdp_item *item;
    list_place *places = w->places.items;
    for (uint32_t p = chain; p != END; p = places[p].next)
        if (tsr_str_equal(places[p].name, tensor->name)) return add_original(w, here, &places[p], tensor, err);
    const bool flat = here->node != TSR_NO_UNIT && here->relative.size == 0;
    if (!flat || !tsr_str_equal(tensor->name, TSR_STR("_flat_param"))) return add_plain(w, here, tensor, false, err);
    TSR_TRY(add_item(w, here, TSR_ITEM_FLAT, tensor->name, &item, err));
    item->tensor = tensor;
    return TSR_OK;
}

static tsr_status list_own(walk *w, const at *here, const tsr_module *m, tsr_error *err)
{
    tsr_fsdp_item *item;
    const bool transparent =
        m->wrapper == TSR_WRAPPER_FSDP1 || m->wrapper == TSR_WRAPPER_CHECKPOINT; /* the wrapped module has the names */
    const bool none = transparent || here->node == TSR_NO_UNIT;
    const uint32_t chain = none ? END : tsr_map_get(w->chains[here->node], here->relative, END);
    list_place *places = w->places.items;
    for (uint32_t p = chain; p != END; p = places[p].next) places[p].listed = false;
    for (size_t i = 0; i < m->parameter_count; i++) TSR_TRY(list_parameter(w, here, chain, &m->parameters[i], err));
    for (uint32_t p = chain; p != END; p = places[p].next)
        if (!places[p].listed) TSR_TRY(add_original(w, here, &places[p], NULL, err));
    for (size_t i = 0; i < m->buffer_count; i++)
        if (m->buffers[i].persistent) TSR_TRY(add_plain(w, here, &m->buffers[i], true, err));
    if (!m->extra_state) return TSR_OK;
    TSR_TRY(add_item(w, here, TSR_ITEM_EXTRA, TSR_STR("_extra_state"), &item, err));
    TSR_TRY(plain_value(w, item->fqn, NULL, &item->value, err));
    TSR_FAIL_IF(!item->value, err, TSR_E_USAGE, "no value was passed for '%.*s'", TSR_STR_ARG(item->fqn));
    return TSR_OK;
}

static bool is_ignored(const tsr_fsdp_tree *tree, tsr_str prefix)
{
    for (size_t i = 0; i < tree->ignored_count; i++)
        if (prefix.size && tsr_str_equal(tree->ignored[i], without_last_dot(prefix))) return true;
    return false;
}

static tsr_status visit(walk *w, at here, tsr_error *err);

static tsr_status visit_child(walk *w, const at *here, const tsr_module *m, tsr_str name, tsr_error *err)
{
    const tsr_attribute *child = tsr_modules_attribute(w->model->tree.modules, here->module, name);
    at below = *here;
    below.module = child->module;
    below.depth++;
    if (m->wrapper != TSR_WRAPPER_FSDP1 && m->wrapper != TSR_WRAPPER_CHECKPOINT) {
        below.prefix = tsr_arena_format(w->model->arena, err, "%.*s%.*s.", TSR_STR_ARG(here->prefix), TSR_STR_ARG(name));
        below.relative = tsr_arena_format(w->model->arena, err, "%.*s%.*s.", TSR_STR_ARG(here->relative), TSR_STR_ARG(name));
        if (!below.prefix.data || !below.relative.data) return TSR_E_NOMEM;
        below.ignored = below.ignored || is_ignored(&w->model->tree, below.prefix);
    }
    return visit(w, below, err);
}

static tsr_status visit(walk *w, at here, tsr_error *err)
{
    const tsr_module *m = tsr_modules_at(w->model->tree.modules, here.module);
    const bool unit = m->wrapper == TSR_WRAPPER_FSDP1;
    tsr_fsdp_item *item;
    TSR_FAIL_IF(here.depth > w->model->host->limits.depth, err, TSR_E_LIMIT, "the module tree is deeper than %" PRIu32,
                (uint32_t)w->model->host->limits.depth);
    TSR_FAIL_IF(++w->visits > w->model->host->limits.expansion, err, TSR_E_LIMIT, "shared modules make too many names");
    const tsr_str fqn = without_last_dot(here.prefix);
    uint32_t node = TSR_NO_UNIT;
    if (unit) {
        TSR_TRY(open_node(w, &here, &node, err));
        TSR_TRY(add_item(w, &here, TSR_ITEM_ENTER, TSR_STR(""), &item, err));
        item->fqn = fqn;
        item->node = node;
    }
    if (unit && m->flat_param) { /* a unit without a flat parameter leaves the parameters below it to the unit around it */
        here.node = node;
        here.relative = TSR_STR("");
    }
    TSR_TRY(list_own(w, &here, m, err));
    for (size_t i = 0; i < m->child_count; i++) TSR_TRY(visit_child(w, &here, m, m->children[i].name, err));
    if (!unit) return TSR_OK;
    if (m->flat_param && m->flat_param->use_orig_params)
        TSR_TRY(add_item(w, &here, TSR_ITEM_FLAT, TSR_STR("_flat_param"), &item, err));
    TSR_TRY(add_item(w, &here, TSR_ITEM_LEAVE, TSR_STR(""), &item, err));
    item->fqn = fqn;
    item->node = node;
    return TSR_OK;
}

static tsr_status index_plain(walk *w, tsr_error *err)
{
    const tsr_value *plain = w->model->tree.plain;
    w->plain = tsr_map_new(w->model->host->allocator, plain ? tsr_value_pairs(plain) : 0, err);
    if (!w->plain) return TSR_E_NOMEM;
    TSR_FAIL_IF(plain && plain->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the tensors outside the units must be a dict");
    for (size_t i = 0; plain && i < plain->count; i += 2) {
        TSR_FAIL_IF(plain->items[i]->kind != TSR_VALUE_STR, err, TSR_E_USAGE,
                    "a key of the tensors outside the units is not a string");
        TSR_TRY(tsr_map_put(w->plain, plain->items[i]->text, (uint32_t)(i / 2), NULL, NULL, err));
    }
    return TSR_OK;
}

static tsr_status check_units(const tsr_fsdp_model *model, tsr_error *err)
{
    for (size_t i = 0; i < model->tree.unit_count; i++) {
        bool met = false;
        for (size_t n = 0; n < model->nodes.count; n++) met = met || tsr_fsdp_nodes(model)[n].unit == &model->tree.units[i];
        TSR_FAIL_IF(!met, err, TSR_E_USAGE, "a slice was passed for module %" PRIu32 ", which is not a unit",
                    model->tree.units[i].module);
    }
    return TSR_OK;
}

tsr_status tsr_fsdp_list(tsr_fsdp_model *model, tsr_error *err)
{
    walk w = {.model = model, .places = tsr_vec_of(model->host->allocator, sizeof(list_place))};
    const at root = {.prefix = TSR_STR(""), .relative = TSR_STR(""), .node = TSR_NO_UNIT};
    tsr_status status = index_plain(&w, err);
    if (status == TSR_OK) status = visit(&w, root, err);
    if (status == TSR_OK) status = check_units(model, err);
    for (size_t i = 0; i < w.chain_count; i++) tsr_map_free(w.chains[i]);
    tsr_map_free(w.plain);
    tsr_vec_free(&w.places);
    return status;
}
