/* Makes what units save: whole originals, rows of them, or the unit's slice. One unit is finished before the next begins,
 * so only one whole flat parameter is in memory at a time. */
#include <inttypes.h>

#include "live/fsdp/fsdp_model.h"
#include "tessera/sys/read.h"

typedef struct saving {
    const tsr_fsdp_model *model;
    tsr_state_dict *out;
    const tsr_value **values; /* one per item; NULL: the item has no key on this rank */
} saving;

/* A unit that is being saved. */
typedef struct unit_work {
    const tsr_fsdp_node *node;
    tsr_fsdp_settings settings;
    size_t enter, leave;
    void *slice, *staged; /* in host memory */
    uint8_t *flat;        /* the whole flat parameter: `slice` or `gathered` */
    void *gathered;
    const tsr_value **made;  /* one per original */
    tsr_arena *arena;        /* for temporary memory */
    tsr_state_dict *passing; /* for units whose originals are not the tensors that FSDP flattened */
    tsr_fsdp_moves moves;
} unit_work;

static size_t flat_bytes(const tsr_fsdp_node *node)
{
    return (size_t)(node->layout.flat_numel * node->itemsize);
}

static bool keeps(const unit_work *w)
{
    return !w->settings.rank0_only || w->node->unit->comm->rank == 0;
}
static const tsr_fsdp_extensions *chunks(const unit_work *w)
{
    const tsr_fsdp_extensions *e = w->node->unit->extensions;
    return w->settings.type == TSR_FSDP_SHARDED && e && e->chunk ? e : NULL;
}
static bool wants_flat(const unit_work *w)
{
    const bool local = w->settings.type == TSR_FSDP_LOCAL;
    return w->settings.type == TSR_FSDP_FULL || chunks(w) || (!local && tsr_fsdp_is_transformed(w->node));
}
/* Whether the program's own functions make the result, whole or sharded. */
static bool makes_itself(const unit_work *w)
{
    const tsr_fsdp_transforms *t = w->node->unit->transforms;
    return chunks(w) || (t && t->unflatten);
}

/* ---- results without content ---- */

static tsr_status new_rows(const saving *s, const unit_work *w, uint32_t original, tsr_tensor tensor,
                           const tsr_value **value, tsr_error *err)
{
    const tsr_mesh *mesh = w->node->unit->mesh;
    uint64_t offsets[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM], end;
    if (mesh) {
        tsr_placement *placements;
        TSR_TRY(tsr_fsdp_placements(mesh, w->arena, &placements, err));
        tensor.spread = TSR_OVER_MESH;
        tensor.mesh = mesh;
        tensor.placements = placements;
        tensor.mesh_rank = s->model->tree.comm->rank;
        return tsr_state_dict_allocate(s->out, &tensor, value, err);
    }
    tsr_fsdp_rows_here(w->node, original, &offsets[0], &end);
    memcpy(sizes, tensor.entry.shape, tensor.entry.ndim * sizeof *sizes);
    sizes[0] = end - offsets[0];
    const tsr_tensor_part part = {offsets, sizes, NULL};
    tensor.spread = TSR_IN_BOXES;
    tensor.parts = &part;
    tensor.part_count = sizes[0] > 0;
    return tsr_state_dict_allocate(s->out, &tensor, value, err);
}

static tsr_status new_original(const saving *s, unit_work *w, uint32_t original, tsr_error *err)
{
    const bool sharded = w->settings.type == TSR_FSDP_SHARDED, over_root = sharded && tsr_fsdp_is_2d(w->node);
    tsr_tensor tensor;
    if (w->made[original] || makes_itself(w) || !keeps(w)) return TSR_OK;
    TSR_TRY(tsr_fsdp_parameter(w->node, original, over_root, w->arena, &tensor, err));
    if (w->settings.offload) tensor.device = NULL;
    if (sharded && !over_root) return new_rows(s, w, original, tensor, &w->made[original], err);
    return tsr_state_dict_allocate(s->out, &tensor, &w->made[original], err);
}

/* The part of an original in this rank's slice, as use_orig_params has it. */
static tsr_status local_original(const saving *s, unit_work *w, uint32_t original, tsr_error *err)
{
    const tsr_span range = tsr_flat_layout_range(&w->node->layout, original, w->node->unit->comm->rank);
    const uint64_t at =
        w->node->layout.flat_offsets[original] + range.offset - w->node->unit->comm->rank * w->node->layout.slice_numel;
    tsr_tensor tensor = tsr_tensor_whole(w->node->unit->dtype, 1, &range.size, NULL);
    if (range.size) tensor.data = (char *)w->node->unit->slice + at * w->node->itemsize;
    tensor.device = w->node->unit->device;
    return w->made[original] ? TSR_OK : tsr_state_dict_tensor(s->out, &tensor, &w->made[original], err);
}

static tsr_status local_flat(const saving *s, const unit_work *w, const tsr_value **value, tsr_error *err)
{
    const tsr_fsdp_unit *unit = w->node->unit;
    const tsr_span valid = tsr_fsdp_valid(w->node);
    const tsr_tensor_part part = {&valid.offset, &valid.size, unit->slice};
    tsr_tensor tensor =
        tsr_tensor_in_boxes(unit->dtype, 1, &w->node->layout.flat_numel, valid.size ? &part : NULL, valid.size > 0);
    tensor.device = unit->device;
    if (!unit->device || !w->settings.offload) return tsr_state_dict_tensor(s->out, &tensor, value, err);
    tensor.device = NULL;
    TSR_TRY(tsr_state_dict_allocate(s->out, &tensor, value, err));
    if (!valid.size) return TSR_OK;
    return tsr_device_download(unit->device, tsr_tensor_of(*value)->parts[0].data, unit->slice,
                               valid.size * w->node->itemsize, err);
}

static bool is_own(const saving *s, const unit_work *w, size_t i)
{
    return &tsr_fsdp_nodes(s->model)[tsr_fsdp_items(s->model)[i].node] == w->node;
}

static tsr_status prepare(const saving *s, unit_work *w, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(s->model);
    const bool local = w->settings.type == TSR_FSDP_LOCAL;
    w->arena = tsr_arena_new(s->model->host->allocator, 0, err);
    if (!w->arena) return TSR_E_NOMEM;
    w->made = tsr_arena_array(w->arena, w->node->flat->param_count, sizeof *w->made, err);
    if (!w->made) return TSR_E_NOMEM;
    if (!local) TSR_TRY(tsr_fsdp_stage(s->model, w->node, &w->slice, &w->staged, err));
    if (!local && tsr_fsdp_is_transformed(w->node)) TSR_TRY(tsr_state_dict_new(s->model->host, &w->passing, err));
    w->flat = w->slice;
    if (wants_flat(w) && w->node->sharded && (keeps(w) || makes_itself(w))) {
        w->gathered = tsr_alloc(s->model->host->allocator, flat_bytes(w->node), 1, err);
        if (!w->gathered && flat_bytes(w->node)) return TSR_E_NOMEM;
        w->flat = w->gathered;
    }
    for (size_t i = w->enter; i <= w->leave; i++) {
        if (!is_own(s, w, i)) continue;
        if (items[i].kind == TSR_ITEM_FLAT && local) TSR_TRY(local_flat(s, w, &s->values[i], err));
        if (items[i].kind != TSR_ITEM_ORIGINAL) continue;
        if (!local) TSR_TRY(new_original(s, w, items[i].original, err));
        else if (w->node->flat->use_orig_params) TSR_TRY(local_original(s, w, items[i].original, err));
    }
    return TSR_OK;
}

/* ---- content ---- */

static tsr_status gather_flat(const saving *s, const unit_work *w, tsr_error *err)
{
    tsr_comm *comm = w->node->unit->comm;
    const tsr_allocator *allocator = s->model->host->allocator;
    if (!w->settings.rank0_only || makes_itself(w))
        return tsr_flat_gather((tsr_ranks){comm, allocator}, &w->node->cut, w->node->itemsize, w->slice, w->flat, err);
    size_t *sizes = tsr_alloc(allocator, comm->size, sizeof *sizes, err);
    tsr_status status = tsr_comm_agree(comm, sizes ? TSR_OK : TSR_E_NOMEM, err);
    for (uint32_t rank = 0; rank < comm->size && status == TSR_OK; rank++) {
        uint64_t begin, end;
        tsr_flat_shard_range(&w->node->cut, comm->size, rank, &begin, &end);
        sizes[rank] = (size_t)(end - begin) * w->node->itemsize;
    }
    if (status == TSR_OK) status = tsr_comm_gather((tsr_ranks){comm, allocator}, w->slice, sizes, 0, w->flat, err);
    tsr_free(allocator, sizes, comm->size, sizeof *sizes);
    return status;
}

static tsr_status fill_whole(const unit_work *w, uint32_t original, tsr_error *err)
{
    const tsr_tensor *to = tsr_tensor_of(w->made[original]);
    const uint8_t *from = w->flat + w->node->layout.flat_offsets[original] * w->node->itemsize;
    return tsr_device_upload(to->device, to->data, from, w->node->layout.numels[original] * w->node->itemsize, err);
}

/* A rank that fails on its own continues with the others until all of them agree on the failure. */
static tsr_status fill_rows(const saving *s, const unit_work *w, uint32_t original, tsr_error *err)
{
    const tsr_allocator *allocator = s->model->host->allocator;
    const tsr_tensor *to = tsr_tensor_of(w->made[original]);
    void *data = to->spread == TSR_IN_BOXES ? to->part_count ? to->parts[0].data : NULL : to->data, *rows = data;
    uint64_t bytes = 0;
    const tsr_unit_original what = {&w->node->cut, original, w->node->itemsize};
    tsr_status status = tsr_tensor_held(to, w->arena, &bytes, err);
    if (status == TSR_OK && to->device && bytes) rows = tsr_alloc(allocator, (size_t)bytes, 1, err);
    if (bytes && !rows) status = TSR_E_NOMEM;
    status = tsr_comm_agree(w->node->unit->comm, status, err);
    if (status == TSR_OK) status = tsr_flat_to_rows((tsr_ranks){w->node->unit->comm, allocator}, &what, w->slice, rows, err);
    if (status == TSR_OK && rows != data) status = tsr_device_upload(to->device, data, rows, bytes, err);
    if (rows != data) tsr_free(allocator, rows, (size_t)bytes, 1);
    return tsr_comm_agree(w->node->unit->comm, status, err);
}

/* What FSDP flattened of an original, as a whole tensor in host memory. */
static tsr_tensor flattened(const unit_work *w, uint32_t original)
{
    tsr_tensor whole = tsr_fsdp_original(w->node, original);
    whole.device = NULL;
    whole.data = w->flat + w->node->layout.flat_offsets[original] * w->node->itemsize;
    return whole;
}

/* Makes the result with the program's extensions. All ranks of the unit call them, even those that keep nothing. */
static tsr_status make_itself(const saving *s, const unit_work *w, const tsr_fsdp_item *item, tsr_error *err)
{
    const tsr_tensor whole = flattened(w, item->original);
    tsr_fsdp_making making = {w->node, w->settings.type == TSR_FSDP_SHARDED, w->settings.offload, w->passing, s->out};
    const tsr_value *value = NULL;
    tsr_status status = tsr_fsdp_make(&making, item->fqn, &whole, &value, err);
    status = tsr_comm_agree(w->node->unit->comm, status, err);
    if (keeps(w)) w->made[item->original] = value;
    return status;
}

static tsr_status fill_2d(unit_work *w, const tsr_fsdp_item *item, tsr_error *err)
{
    const tsr_value *value = w->made[item->original];
    if (w->settings.type == TSR_FSDP_FULL) return value ? fill_whole(w, item->original, err) : TSR_OK;
    tsr_tensor to = *tsr_tensor_of(value);
    to.entry.fqn = item->fqn; /* for messages: the name in the result does not live as long */
    return tsr_fsdp_chunk_2d(w->node, item->original, flattened(w, item->original).data, &to, &w->moves, err);
}

static tsr_status fill(const saving *s, unit_work *w, const tsr_fsdp_item *item, bool *filled, tsr_error *err)
{
    const uint32_t original = item->original;
    if (filled[original]) return TSR_OK;
    filled[original] = true;
    if (makes_itself(w)) return make_itself(s, w, item, err);
    if (tsr_fsdp_is_2d(w->node)) return fill_2d(w, item, err);
    if (w->settings.type == TSR_FSDP_FULL) return w->made[original] ? fill_whole(w, original, err) : TSR_OK;
    return w->settings.type == TSR_FSDP_SHARDED ? fill_rows(s, w, original, err) : TSR_OK;
}

static tsr_status move(const saving *s, unit_work *w, bool *filled, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(s->model);
    const bool among_all = w->passing && tsr_fsdp_is_2d(w->node); /* then all ranks must take part in the moves */
    tsr_status status = wants_flat(w) && w->node->sharded ? gather_flat(s, w, err) : TSR_OK;
    w->moves = tsr_fsdp_moves_of(s->model->tree.comm, NULL, s->model->host, w->passing);
    for (size_t i = w->enter; i <= w->leave && status == TSR_OK; i++) {
        const bool own = items[i].kind == TSR_ITEM_ORIGINAL && is_own(s, w, i);
        if (own) status = fill(s, w, &items[i], filled, err);
        if (own) s->values[i] = w->made[items[i].original];
    }
    return among_all ? tsr_fsdp_moves_run(&w->moves, status, err) : status;
}

static tsr_status save_unit(const saving *s, size_t enter, tsr_error *err)
{
    const tsr_allocator *allocator = s->model->host->allocator;
    unit_work w = {.node = &tsr_fsdp_nodes(s->model)[tsr_fsdp_items(s->model)[enter].node],
                   .enter = enter,
                   .leave = tsr_fsdp_leave(s->model, enter)};
    w.settings = tsr_fsdp_effective(w.node);
    bool *filled = tsr_alloc(allocator, w.node->flat->param_count, 1, err);
    tsr_status status = filled || !w.node->flat->param_count ? prepare(s, &w, err) : TSR_E_NOMEM;
    if (filled) memset(filled, 0, w.node->flat->param_count);
    status = tsr_comm_agree(s->model->tree.comm, status, err);
    if (status == TSR_OK) {
        status = move(s, &w, filled, err);
        status = tsr_comm_agree(s->model->tree.comm, status, err);
    }
    tsr_fsdp_unstage(s->model, w.node, w.staged, false, NULL);
    tsr_free(allocator, w.gathered, flat_bytes(w.node), 1);
    tsr_free(allocator, filled, w.node->flat->param_count, 1);
    tsr_state_dict_free(w.passing);
    tsr_arena_free(w.arena);
    return status;
}

/* ---- what units do not manage ---- */

static tsr_status cast(const tsr_tensor *from, tsr_dtype dtype, tsr_state_dict *out, tsr_arena *arena,
                       const tsr_value **value, tsr_error *err)
{
    const tsr_allocator *allocator = out->host->allocator;
    tsr_tensor tensor = *from;
    uint64_t bytes, wide;
    tensor.entry.dtype = dtype;
    TSR_TRY(tsr_tensor_held(from, arena, &bytes, err));
    TSR_TRY(tsr_tensor_held(&tensor, arena, &wide, err));
    TSR_TRY(tsr_state_dict_allocate(out, &tensor, value, err));
    uint8_t *source = tsr_alloc(allocator, (size_t)bytes, 1, err), *result = tsr_alloc(allocator, (size_t)wide, 1, err);
    tsr_status status = (source && result) || !bytes ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_device_download(from->device, source, from->data, bytes, err);
    if (status == TSR_OK && bytes)
        tsr_cast(from->entry.dtype, dtype, source, (size_t)(bytes / tsr_dtype_size(from->entry.dtype)), result);
    if (status == TSR_OK) status = tsr_device_upload(tensor.device, tsr_tensor_of(*value)->data, result, wide, err);
    tsr_free(allocator, source, (size_t)bytes, 1);
    tsr_free(allocator, result, (size_t)wide, 1);
    return status;
}

/* A unit's settings apply to its buffers. Parameters that it ignores, and everything outside of units, stay as they are. */
static tsr_status save_plain(const saving *s, const tsr_fsdp_item *item, tsr_arena *arena, const tsr_value **value,
                             tsr_error *err)
{
    const tsr_tensor *live = tsr_tensor_of(item->value);
    *value = item->value;
    if (!live || live->meta || !item->buffer || item->node == TSR_NO_UNIT) return TSR_OK;
    const tsr_fsdp_node *node = &tsr_fsdp_nodes(s->model)[item->node];
    const tsr_fsdp_settings settings = tsr_fsdp_effective(node);
    const tsr_dtype wanted = item->tensor->dtype;
    if (settings.rank0_only && node->unit->comm->rank != 0) *value = NULL;
    if (!*value || live->spread != TSR_WHOLE || settings.type == TSR_FSDP_LOCAL) return TSR_OK;
    tsr_tensor host = *live;
    if (node->unit->cast_buffers && !item->ignored && wanted != live->entry.dtype &&
        tsr_cast_possible(live->entry.dtype, wanted)) {
        TSR_TRY(cast(live, wanted, s->out, arena, value, err));
        live = tsr_tensor_of(*value);
        host = *live;
    }
    if (!settings.offload || !live->device) return TSR_OK;
    host.device = NULL;
    TSR_TRY(tsr_state_dict_allocate(s->out, &host, value, err));
    TSR_TRY(tsr_tensor_copy(live, tsr_tensor_of(*value), arena, err));
    return tsr_device_wait(live->device, err);
}

static tsr_status put_item(const saving *s, size_t i, tsr_arena *arena, tsr_error *err)
{
    const tsr_fsdp_item *item = &tsr_fsdp_items(s->model)[i];
    if (!tsr_fsdp_is_saved(s->model, item)) return TSR_OK;
    if (item->kind == TSR_ITEM_PLAIN) TSR_TRY(save_plain(s, item, arena, &s->values[i], err));
    if (item->kind == TSR_ITEM_EXTRA) s->values[i] = item->value;
    return s->values[i] ? tsr_state_dict_put(s->out, item->fqn, s->values[i], err) : TSR_OK;
}

tsr_status tsr_fsdp_model_save(tsr_fsdp_model *model, tsr_state_dict *out, tsr_error *err)
{
    TSR_TRY(tsr_fsdp_begin(model, "save", NULL, err));
    tsr_arena *arena = tsr_arena_new(model->host->allocator, 0, err);
    const saving s = {model, out, arena ? tsr_arena_array(arena, model->items.count, sizeof *s.values, err) : NULL};
    tsr_status status = tsr_comm_agree(model->tree.comm, s.values ? TSR_OK : TSR_E_NOMEM, err), mine = TSR_OK;
    for (size_t i = 0; i < model->items.count && status == TSR_OK; i++) {
        const tsr_fsdp_item *item = &tsr_fsdp_items(model)[i];
        if (item->kind == TSR_ITEM_ENTER) tsr_fsdp_tell(model, item, true);
        if (item->kind == TSR_ITEM_ENTER && tsr_fsdp_nodes(model)[item->node].unit) status = save_unit(&s, i, err);
        if (status == TSR_OK && mine == TSR_OK) mine = put_item(&s, i, arena, err);
        if (item->kind == TSR_ITEM_LEAVE && status == TSR_OK) tsr_fsdp_tell(model, item, true);
    }
    if (status == TSR_OK) status = tsr_comm_agree(model->tree.comm, mine, err);
    tsr_arena_free(arena);
    return status;
}
