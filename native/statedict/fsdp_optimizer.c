/* See fsdp_optimizer.h. core's conversions (tessera/optim_comm.h) do the work; here live tensors become the entries that
 * they want, and what they received becomes live tensors. */
#include "statedict/fsdp_optimizer.h"

#include <inttypes.h>

#include "tessera/optim_comm.h"

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
                           .is_hybrid = node->sharded && node->unit->comm->size != f->comm->size};
    if (!flat->use_orig_params) out->raw_name = flat_name(node, f->arena, err);
    return flat->use_orig_params || out->raw_name.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status describe(tsr_fsdp_optimizers *f, tsr_error *err)
{
    const tsr_fsdp_model *units = f->bound->units;
    tsr_flat_unit *out = tsr_arena_array(f->arena, units->nodes.count, sizeof *out, err);
    const tsr_fsdp_node *first = NULL;
    if (!out) return TSR_E_NOMEM;
    f->flat = (tsr_flat_params){.world_size = f->comm->size, .units = out};
    for (size_t i = 0; i < units->nodes.count; i++) {
        const tsr_fsdp_node *node = &tsr_fsdp_nodes(units)[i];
        if (!node->unit) continue;
        if (!first) first = node;
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
    uint64_t *shape = tsr_arena_array(f->arena, part->entry.rank, sizeof *shape, err);
    if (!tensor || !local || !shape) return TSR_E_NOMEM;
    if (part->entry.rank) memcpy(shape, part->entry.shape, part->entry.rank * sizeof *shape);
    *tensor = *part;
    tensor->entry.shape = shape;
    *local = *of;
    local->dtype = part->entry.dtype;
    local->rank = part->entry.rank;
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
    if (item->kind == TSR_ITEM_ORIGINAL) {
        range = tsr_flat_layout_range(&node->layout, item->original, rank);
        at = range.size ? node->layout.flat_offsets[item->original] + range.offset - rank * node->layout.slice_numel : 0;
    }
    tsr_tensor part = tsr_tensor_whole(unit->dtype, 1, &range.size, NULL);
    if (item->kind == TSR_ITEM_ORIGINAL && !node->sharded) {
        part.entry.rank = node->flat->params[item->original].rank;
        part.entry.shape = node->flat->params[item->original].shape;
    }
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
    *f = (tsr_fsdp_optimizers){.comm = comm, .arena = arena};
    TSR_TRY(tsr_fsdp_bind(model, comm, host, arena, NULL, &f->bound, err));
    f->local = tsr_arena_array(arena, f->bound->ids.count, sizeof *f->local, err);
    f->names = tsr_arena_array(arena, f->bound->ids.count, sizeof *f->names, err);
    if (!f->local || !f->names) return TSR_E_NOMEM;
    TSR_TRY(describe(f, err));
    return list_parts(f, err);
}

void tsr_fsdp_optimizers_free(tsr_fsdp_optimizers *fsdp)
{
    if (fsdp) tsr_fsdp_unbind(fsdp->bound);
}

/* ---- replicas ---- */

typedef struct seat {
    uint32_t leader, slice; /* the world's rank of slice 0, and which slice */
} seat;

/* All hybrid units are cut among the same ranks. */
static tsr_status find_seat(const tsr_fsdp_optimizers *f, seat *out, tsr_error *err)
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
            mine = tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "unit '%.*s' is cut among other ranks than others are",
                             TSR_STR_ARG(node->fqn));
        *out = (seat){leader, node->unit->comm->rank};
        known = true;
    }
    return tsr_comm_agree(f->comm, mine, err);
}

tsr_status tsr_fsdp_optimizers_meet(tsr_fsdp_optimizers *f, tsr_error *err)
{
    const uint32_t world = f->comm->size, shards = f->flat.shard_size;
    seat mine = {0};
    if (shards == 0) return TSR_OK;
    TSR_TRY(find_seat(f, &mine, err));
    seat *seats = tsr_arena_array(f->arena, world, sizeof *seats, err);
    size_t *sizes = tsr_arena_array(f->arena, world, sizeof *sizes, err);
    uint32_t *groups = tsr_arena_array(f->arena, world, sizeof *groups, err), count = 0;
    TSR_TRY(tsr_comm_agree(f->comm, seats && sizes && groups ? TSR_OK : TSR_E_NOMEM, err));
    for (uint32_t r = 0; r < world; r++) sizes[r] = sizeof *seats;
    TSR_TRY(f->comm->all_gather(f->comm, &mine, sizes, seats, err));
    for (uint32_t leader = 0; leader < world; leader++) {
        if (seats[leader].leader != leader) continue;
        for (uint32_t r = 0; r < world; r++)
            if (seats[r].leader == leader && seats[r].slice < shards && count + seats[r].slice < world)
                groups[count + seats[r].slice] = r;
        count += shards;
    }
    f->flat.shard_groups = groups;
    TSR_FAIL_IF(count != world, err, TSR_E_USAGE, "replicas of %" PRIu32 " ranks do not make %" PRIu32 " ranks", shards,
                world);
    return TSR_OK;
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
    const uint32_t rank = tensor->entry.rank;
    uint64_t *box = tsr_arena_array(arena, 2 * (size_t)rank, sizeof *box, err);
    tsr_chunk *chunk = TSR_ARENA_NEW(arena, tsr_chunk, err);
    if (!box || !chunk) return TSR_E_NOMEM;
    TSR_TRY(tsr_tensor_pieces(tensor, arena, &pieces, &count, err));
    bool rows = count <= 1;
    for (uint32_t d = 0; d < rank && rows; d++) {
        box[rank + d] = d ? tensor->entry.shape[d] : 0;
        if (!count) continue;
        if (d == 0) box[0] = pieces->offsets[0];
        box[rank + d] = pieces->sizes[d];
        rows = pieces->sizes[d] == pieces->buffer_sizes[d] && (d == 0 || pieces->sizes[d] == tensor->entry.shape[d]);
    }
    TSR_FAIL_IF(!rows, err, TSR_E_UNSUPPORTED, "a tensor lies in other pieces than rows");
    *chunk = (tsr_chunk){.offsets = box, .sizes = box + rank};
    if (rank) out->entry.chunks = chunk;
    out->entry.chunk_count = rank ? 1 : 0;
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
                    "state of a parameter that is distributed beside FSDP1's units");
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

/* On the host first. */
static tsr_status send_tree(const tsr_value *value, bool rows, tsr_state_dict *host, tsr_arena *arena, const tsr_value **out,
                            tsr_error *err)
{
    TSR_TRY(tsr_state_dict_offload(value, NULL, NULL, 0, true, host, err));
    return to_send(tsr_state_dict_root(host), rows, arena, out, err);
}

/* ---- entries → live tensors ---- */

typedef struct receiving {
    const tsr_fsdp_optimizers *fsdp;
    tsr_live_state *live;
    tsr_state_dict *out;
    void **taken;          /* by buffer: what the state dict owns now, of tensors that stand in several places */
    tsr_flat_index *index; /* NULL: everything is whole */
    bool offload;
} receiving;

/* Which unit cuts the state of a name in rows; NULL: none. */
static const tsr_fsdp_node *cut_by(const receiving *r, tsr_str fqn)
{
    if (!r->index) return NULL;
    const tsr_flat_found found = tsr_flat_index_find(r->index, fqn);
    if (!found.unit || (r->fsdp->flat.use_orig_params && !found.unit->is_sharded)) return NULL;
    const tsr_fsdp_model *units = r->fsdp->bound->units;
    for (size_t i = 0; i < units->nodes.count; i++) /* nodes without a unit are not described */
        if (tsr_fsdp_nodes(units)[i].unit && tsr_str_equal(tsr_fsdp_nodes(units)[i].fqn, found.unit->fsdp_module))
            return &tsr_fsdp_nodes(units)[i];
    return NULL;
}

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

static tsr_status receive_tensor(const receiving *r, const tsr_entry *entry, const tsr_fsdp_node *node,
                                 const tsr_value **out, tsr_error *err)
{
    tsr_tensor *tensor = TSR_ARENA_NEW(r->out->arena, tsr_tensor, err);
    void *data;
    if (!tensor) return TSR_E_NOMEM;
    TSR_TRY(keep_buffer(r, entry, &data, err));
    *tensor = tsr_tensor_whole(entry->dtype, entry->rank, entry->shape, data);
    if (node && entry->rank) TSR_TRY(put_rows(r, entry->chunks, tensor, err));
    if (node && node->unit->device && entry->rank && !r->offload) return to_device(r, node->unit->device, tensor, out, err);
    return tsr_state_dict_tensor(r->out, tensor, out, err);
}

static tsr_status receive(const receiving *r, const tsr_value *value, const tsr_fsdp_node *node, const tsr_value **out,
                          tsr_error *err)
{
    *out = value;
    if (value->kind == TSR_VALUE_TENSOR) return receive_tensor(r, value->as.tensor, node, out, err);
    tsr_value *copy = tsr_value_new(r->out->arena, value->kind, err);
    const tsr_value **items = tsr_arena_array(r->out->arena, value->count, sizeof *items, err);
    if (!copy || !items) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    if (value->text.data) copy->text = tsr_arena_str(r->out->arena, value->text, err);
    if (value->text.data && !copy->text.data) return TSR_E_NOMEM;
    for (size_t i = 0; i < value->count; i++) TSR_TRY(receive(r, value->items[i], node, &items[i], err));
    *out = copy;
    return TSR_OK;
}

static tsr_status receive_states(const receiving *r, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(r->out->arena, state->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        const tsr_value *key = state->items[i];
        const tsr_fsdp_node *node = key->kind == TSR_VALUE_STR ? cut_by(r, key->text) : NULL;
        TSR_TRY(receive(r, key, NULL, &items[i], err));
        TSR_TRY(receive(r, state->items[i + 1], node, &items[i + 1], err));
    }
    *out = tsr_value_items(r->out->arena, TSR_VALUE_DICT, items, state->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status receive_tree(receiving *r, const tsr_value **out, tsr_error *err)
{
    const tsr_value *tree = r->live->tree, **items;
    if (!tree) return TSR_OK;
    r->taken = tsr_arena_array(r->out->arena, r->live->buffer_count, sizeof *r->taken, err);
    if (!r->taken) return TSR_E_NOMEM;
    items = tsr_arena_array(r->out->arena, tree->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < tree->count; i += 2) {
        TSR_TRY(receive(r, tree->items[i], NULL, &items[i], err));
        if (tsr_str_equal(tree->items[i]->text, TSR_STR("state")))
            TSR_TRY(receive_states(r, tree->items[i + 1], &items[i + 1], err));
        else TSR_TRY(receive(r, tree->items[i + 1], NULL, &items[i + 1], err));
    }
    *out = tsr_value_items(r->out->arena, TSR_VALUE_DICT, items, tree->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- the two ways ---- */

static void warn_of_carried(const tsr_fsdp_optimizers *f, const tsr_live_state *live)
{
    for (size_t i = 0; i < live->carried_count; i++)
        tsr_fsdp_warn(f->bound->units, "optimizer state '%.*s' is of no parameter; it is kept as it is",
                      TSR_STR_ARG(live->carried[i]));
}

/* One way: what passes by, and what came of it. */
typedef struct conversion {
    receiving receive;
    tsr_live_state live;
    tsr_flat_params flat;
    tsr_state_dict *host; /* tensors of devices, as long as they are sent */
    tsr_arena *passing;
} conversion;

/* `host` stays NULL where there is no memory: get and set tell all ranks. */
static void convert_open(conversion *c, const tsr_fsdp_optimizers *fsdp, const tsr_name_list *groups, size_t group_count,
                         tsr_state_dict *out, tsr_error *err)
{
    const tsr_host *host = fsdp->bound->host;
    *c = (conversion){.receive = {.fsdp = fsdp, .live = &c->live, .out = out}, .flat = fsdp->flat};
    c->flat.groups = groups;
    c->flat.group_count = group_count;
    c->passing = tsr_arena_new(host->allocator, 0, err);
    if (c->passing && tsr_state_dict_new(host, &c->host, err) != TSR_OK) c->host = NULL;
}

static void convert_close(conversion *c)
{
    tsr_flat_index_free(c->receive.index);
    tsr_live_state_free(&c->live);
    tsr_state_dict_free(c->host);
    tsr_arena_free(c->passing);
}

static tsr_status get(conversion *c, const tsr_value *native, const tsr_state_options *options, const tsr_value **root,
                      tsr_error *err)
{
    receiving *r = &c->receive;
    const tsr_fsdp_optimizers *f = r->fsdp;
    const tsr_fsdp_choice choice = tsr_state_fsdp_choice(options);
    const tsr_live live = {bytes_of, NULL};
    const tsr_host *h = f->bound->host;
    const tsr_value *sent_tree = NULL;
    tsr_status status = c->host ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_flat_index_new(&c->flat, h->allocator, &r->index, err);
    if (status == TSR_OK) status = send_tree(native, false, c->host, c->passing, &sent_tree, err);
    TSR_TRY(tsr_comm_agree(f->comm, status, err));
    r->offload = choice.offload_to_cpu;
    if (choice.full)
        status = tsr_fsdp_gather(f->comm, &c->flat, sent_tree, &live, choice.optimizer_rank0_only ? 0 : TSR_ALL_RANKS, h,
                                 c->passing, r->live, err);
    else status = tsr_fsdp_gather_rows(f->comm, &c->flat, sent_tree, &live, f->mesh, h, c->passing, r->live, err);
    TSR_TRY(status);
    if (choice.full) {
        tsr_flat_index_free(r->index);
        r->index = NULL;
    }
    warn_of_carried(f, r->live);
    return tsr_comm_agree(f->comm, receive_tree(r, root, err), err);
}

tsr_status tsr_fsdp_optimizer_get(const tsr_fsdp_optimizers *fsdp, const tsr_value *native, const tsr_name_list *groups,
                                  size_t group_count, const tsr_state_options *options, tsr_state_dict *out,
                                  const tsr_value **root, tsr_error *err)
{
    conversion c;
    *root = NULL;
    convert_open(&c, fsdp, groups, group_count, out, err);
    const tsr_status status = get(&c, native, options, root, err);
    convert_close(&c);
    return status;
}

static tsr_status set(conversion *c, const tsr_value *state, bool rank0, const tsr_value **native, tsr_error *err)
{
    receiving *r = &c->receive;
    const tsr_fsdp_optimizers *f = r->fsdp;
    const tsr_live live = {bytes_of, NULL};
    const tsr_host *h = f->bound->host;
    const tsr_value *sent_tree = NULL;
    tsr_status status = c->host ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && state) status = send_tree(state, true, c->host, c->passing, &sent_tree, err);
    TSR_TRY(tsr_comm_agree(f->comm, status, err));
    if (rank0) TSR_TRY(tsr_fsdp_broadcast(f->comm, &c->flat, sent_tree, &live, h, c->passing, r->live, err));
    else TSR_TRY(tsr_fsdp_spread(f->comm, &c->flat, sent_tree, &live, h, c->passing, r->live, err));
    return tsr_comm_agree(f->comm, receive_tree(r, native, err), err);
}

tsr_status tsr_fsdp_optimizer_set(const tsr_fsdp_optimizers *fsdp, const tsr_value *state, const tsr_name_list *groups,
                                  size_t group_count, const tsr_state_options *options, tsr_state_dict *out,
                                  const tsr_value **native, tsr_error *err)
{
    conversion c;
    *native = NULL;
    convert_open(&c, fsdp, groups, group_count, out, err);
    const tsr_status status = set(&c, state, tsr_state_fsdp_choice(options).optimizer_rank0_only, native, err);
    convert_close(&c);
    return status;
}
