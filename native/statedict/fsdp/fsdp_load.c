/* Loads a state dict into the model's memory, unit by unit. Whole originals are cut on each rank, rows are sent to the
 * ranks that have the slices, and slices are padded again. */
#include "statedict/fsdp/fsdp_load.h"

#include "statedict/fsdp/fsdp_cut.h"
#include "tessera/sys/cast.h"

/* A unit that is being loaded. */
typedef struct unit_work {
    const tsr_fsdp_node *node;
    uint8_t *slice; /* in host memory */
    void *staged;
} unit_work;

/* The elements of a tensor in the state dict. */
typedef struct elements {
    const tsr_tensor *of;
    const void *data; /* on the tensor's device */
    uint64_t count;
} elements;

/* Copies the elements of `from`, which has any device and dtype, to host memory as `dtype`. */
static tsr_status fetch(elements from, tsr_dtype dtype, void *to, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_device *device = from.of->device;
    const tsr_dtype given = from.of->entry.dtype;
    const uint64_t bytes = from.count * tsr_dtype_size(given);
    TSR_FAIL_IF(from.count && !from.data, err, TSR_E_USAGE, "the state's tensor has no memory");
    if (given == dtype) return tsr_device_download(device, to, from.data, bytes, err);
    uint8_t *source = device && bytes ? tsr_alloc(allocator, (size_t)bytes, 1, err) : NULL;
    if (device && bytes && !source) return TSR_E_NOMEM;
    tsr_status status = source ? tsr_device_download(device, source, from.data, bytes, err) : TSR_OK;
    if (status == TSR_OK && from.count) tsr_cast(given, dtype, source ? source : from.data, (size_t)from.count, to);
    tsr_free(allocator, source, (size_t)bytes, 1);
    return status;
}

/* ---- originals ---- */

/* Copies this rank's slice of a whole original. */
static tsr_status load_whole(const tsr_fsdp_loading *l, const unit_work *w, uint32_t original, const tsr_tensor *whole,
                             tsr_error *err)
{
    const tsr_flat_layout *layout = &w->node->layout;
    const uint64_t rank = w->node->sharded ? w->node->unit->comm->rank : 0;
    const tsr_span range = tsr_flat_layout_range(layout, original, rank);
    if (range.size == 0) return TSR_OK;
    const uint64_t at = layout->flat_offsets[original] + range.offset - rank * layout->slice_numel;
    const uint8_t *from = whole->data;
    if (from) from += range.offset * tsr_dtype_size(whole->entry.dtype);
    return fetch((elements){whole, from, range.size}, w->node->unit->dtype, w->slice + at * w->node->itemsize,
                 l->model->host->allocator, err);
}

/* This rank's rows in the unit's dtype, zeros where it has none. The caller frees them. */
static tsr_status take_rows(const tsr_fsdp_loading *l, const unit_work *w, const tsr_tensor *tensor, uint64_t count,
                            void **rows, tsr_error *err)
{
    const tsr_allocator *allocator = l->model->host->allocator;
    const bool boxes = tensor->spread == TSR_IN_BOXES;
    const size_t bytes = (size_t)count * w->node->itemsize;
    *rows = bytes ? tsr_alloc(allocator, bytes, 1, err) : NULL;
    if (bytes && !*rows) return TSR_E_NOMEM;
    if (bytes && boxes && tensor->part_count == 0) memset(*rows, 0, bytes);
    if (!bytes || (boxes && tensor->part_count == 0)) return TSR_OK;
    const elements given = {tensor, boxes ? tensor->parts[0].data : tensor->data, count};
    return fetch(given, w->node->unit->dtype, *rows, allocator, err);
}

static bool is_replicated(const tsr_tensor *tensor)
{
    return tensor->spread == TSR_OVER_MESH && tensor->placements[tensor->mesh->dim_count - 1].kind == TSR_REPLICATE;
}

static tsr_status load_rows(const tsr_fsdp_loading *l, const unit_work *w, uint32_t original, const tsr_tensor *tensor,
                            tsr_error *err)
{
    tsr_comm *comm = w->node->unit->comm;
    const tsr_allocator *allocator = l->model->host->allocator;
    const uint64_t all = tensor->entry.shape[0], row = all ? w->node->layout.numels[original] / all : 0;
    uint64_t begin, end;
    void *rows = NULL;
    const tsr_unit_original what = {&w->node->cut, original, w->node->itemsize};
    if (is_replicated(tensor)) return tsr_comm_agree(comm, load_whole(l, w, original, tensor, err), err);
    tsr_fsdp_rows_here(w->node, original, &begin, &end);
    const uint64_t count = (end - begin) * row;
    tsr_status status = tsr_comm_agree(comm, take_rows(l, w, tensor, count, &rows, err), err);
    if (status == TSR_OK) status = tsr_rows_to_flat((tsr_ranks){comm, allocator}, &what, rows, w->slice, err);
    tsr_free(allocator, rows, (size_t)count * w->node->itemsize, 1);
    return status;
}

/* Copies an original's part of this rank's slice, from a LOCAL state dict. */
static tsr_status load_part(const tsr_fsdp_loading *l, const unit_work *w, uint32_t original, const tsr_tensor *part,
                            tsr_error *err)
{
    const tsr_flat_layout *layout = &w->node->layout;
    const uint64_t rank = w->node->unit->comm->rank;
    const tsr_span range = tsr_flat_layout_range(layout, original, rank);
    if (range.size == 0) return TSR_OK;
    const uint64_t at = layout->flat_offsets[original] + range.offset - rank * layout->slice_numel;
    return fetch((elements){part, part->data, range.size}, w->node->unit->dtype, w->slice + at * w->node->itemsize,
                 l->model->host->allocator, err);
}

/* The function of the program's extensions that returns the tensor to be flattened; NULL: there is none. */
typedef tsr_status to_flatten(void *ctx, tsr_str fqn, const tsr_tensor *tensor, tsr_comm *comm, tsr_state_dict *out,
                              const tsr_tensor **whole, tsr_error *err);

static to_flatten *flattening(const tsr_fsdp_node *node, void **ctx)
{
    const tsr_fsdp_extensions *e = node->unit->extensions;
    const tsr_fsdp_transforms *t = node->unit->transforms;
    const bool full = tsr_fsdp_effective(node).type == TSR_FSDP_FULL;
    *ctx = full ? t ? t->ctx : NULL : e ? e->ctx : NULL;
    return full ? t ? t->flatten : NULL : e ? e->gather : NULL;
}

static tsr_status load_gathered(const tsr_fsdp_loading *l, const unit_work *w, const tsr_fsdp_item *item,
                                const tsr_tensor *tensor, tsr_error *err)
{
    void *ctx;
    to_flatten *flatten = flattening(w->node, &ctx);
    const tsr_tensor *whole = NULL;
    const tsr_tensor want = tsr_fsdp_original(w->node, item->original);
    tsr_state_dict *passing = NULL;
    tsr_status status = tsr_comm_agree(w->node->unit->comm, tsr_state_dict_new(l->model->host, &passing, err), err);
    if (status == TSR_OK) {
        status = flatten(ctx, item->fqn, tensor, w->node->unit->comm, passing, &whole, err);
        if (status == TSR_OK)
            status = tsr_tensor_same_place(whole, &want, &(tsr_likeness){"what was gathered", "the model", true},
                                           passing->arena, err);
        if (status == TSR_OK) status = load_whole(l, w, item->original, whole, err);
        status = tsr_comm_agree(w->node->unit->comm, status, err);
    }
    tsr_state_dict_free(passing);
    return status;
}

/* Copies a slice as it is, and fills the padding after it with zeros. */
static tsr_status load_slice(const tsr_fsdp_loading *l, const unit_work *w, const tsr_tensor *tensor, tsr_error *err)
{
    const tsr_span valid = tsr_fsdp_valid(w->node);
    const size_t bytes = (size_t)valid.size * w->node->itemsize;
    if (valid.size == 0) return TSR_OK; /* padding only: nothing to load */
    memset(w->slice + bytes, 0, (size_t)tsr_fsdp_slice_bytes(w->node) - bytes);
    const elements given = {tensor, tensor->parts[0].data, valid.size};
    return fetch(given, w->node->unit->dtype, w->slice, l->model->host->allocator, err);
}

/* Ends agreed by the unit's ranks where it needs them. */
static tsr_status load_item(const tsr_fsdp_loading *l, const unit_work *w, size_t i, tsr_error *err)
{
    const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
    const tsr_tensor *tensor = tsr_tensor_of(l->values[i]);
    void *ctx;
    const bool local = tsr_fsdp_effective(w->node).type == TSR_FSDP_LOCAL, keeps = w->node->flat->use_orig_params;
    if (item->kind == TSR_ITEM_FLAT) return keeps ? TSR_OK : load_slice(l, w, tensor, err);
    if (local) return load_part(l, w, item->original, tensor, err);
    if (flattening(w->node, &ctx)) return load_gathered(l, w, item, tensor, err);
    if (tsr_fsdp_effective(w->node).type == TSR_FSDP_FULL) return load_whole(l, w, item->original, tensor, err);
    return load_rows(l, w, item->original, tensor, err);
}

static bool is_loaded(const tsr_fsdp_loading *l, size_t enter, size_t i)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    const bool own = items[i].kind == TSR_ITEM_ORIGINAL || items[i].kind == TSR_ITEM_FLAT;
    return own && items[i].node == items[enter].node && l->values[i];
}

/* Gathers the DTensors of the whole unit before any of them is cut, because all ranks must take part at the same time. */
static tsr_status load_unit_2d(const tsr_fsdp_loading *l, const unit_work *w, size_t enter, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    const size_t leave = tsr_fsdp_leave(l->model, enter);
    const tsr_host *host = l->model->host;
    const void **locals = tsr_alloc(host->allocator, leave - enter, sizeof *locals, err);
    tsr_state_dict *passing = NULL;
    tsr_status status = locals ? tsr_state_dict_new(host, &passing, err) : TSR_E_NOMEM;
    tsr_fsdp_moves moves = tsr_fsdp_moves_of(l->model->tree.comm, NULL, host, passing);
    for (size_t i = enter; i < leave && status == TSR_OK; i++) {
        if (!is_loaded(l, enter, i)) continue;
        tsr_tensor given = *tsr_tensor_of(l->values[i]);
        given.entry.fqn = items[i].fqn;
        status = tsr_fsdp_gather_2d(w->node, items[i].original, &given, &moves, &locals[i - enter], err);
    }
    status = tsr_fsdp_moves_run(&moves, status, err);
    for (size_t i = enter; i < leave && status == TSR_OK; i++) {
        if (!is_loaded(l, enter, i)) continue;
        const tsr_tensor given =
            tsr_tensor_whole(tsr_tensor_of(l->values[i])->entry.dtype, 0, NULL, (void *)(uintptr_t)locals[i - enter]);
        status = load_whole(l, w, items[i].original, &given, err);
    }
    tsr_state_dict_free(passing);
    tsr_free(host->allocator, locals, leave - enter, sizeof *locals);
    return status;
}

static tsr_status load_unit(const tsr_fsdp_loading *l, size_t enter, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(l->model);
    unit_work w = {.node = &tsr_fsdp_nodes(l->model)[items[enter].node]};
    const size_t leave = tsr_fsdp_leave(l->model, enter);
    void *slice = NULL;
    tsr_status status = tsr_fsdp_stage(l->model, w.node, true, &slice, &w.staged, err);
    w.slice = slice;
    status = tsr_comm_agree(l->model->tree.comm, status, err);
    const bool all = status == TSR_OK;
    if (all && tsr_fsdp_is_2d(w.node)) status = load_unit_2d(l, &w, enter, err);
    for (size_t i = enter; i < leave && status == TSR_OK && !tsr_fsdp_is_2d(w.node); i++)
        if (is_loaded(l, enter, i)) status = load_item(l, &w, i, err);
    const tsr_status given = tsr_fsdp_unstage(l->model, w.node, w.staged, status == TSR_OK, err);
    if (status == TSR_OK) status = given;
    return all ? tsr_comm_agree(l->model->tree.comm, status, err) : status;
}

/* ---- what units do not manage ---- */

static tsr_status load_plain(const tsr_fsdp_loading *l, const tsr_tensor *from, const tsr_tensor *to, tsr_error *err)
{
    const tsr_allocator *allocator = l->model->host->allocator;
    tsr_tensor result = *to;
    uint64_t bytes;
    if (from->entry.dtype == to->entry.dtype && (!from->device || !to->device || from->device == to->device)) {
        TSR_TRY(tsr_tensor_copy(from, to, l->arena, err));
        TSR_TRY(tsr_device_wait(from->device, err));
        return tsr_device_wait(to->device, err);
    }
    TSR_FAIL_IF(to->spread == TSR_IN_BOXES, err, TSR_E_UNSUPPORTED, "a tensor in several boxes cannot be cast");
    TSR_TRY(tsr_tensor_held(to, l->arena, &bytes, err));
    result.data = bytes ? tsr_alloc(allocator, (size_t)bytes, 1, err) : NULL;
    if (bytes && !result.data) return TSR_E_NOMEM;
    const elements given = {from, from->data, bytes / tsr_dtype_size(to->entry.dtype)};
    tsr_status status = fetch(given, to->entry.dtype, result.data, allocator, err);
    if (status == TSR_OK) status = tsr_device_upload(to->device, to->data, result.data, bytes, err);
    tsr_free(allocator, result.data, (size_t)bytes, 1);
    return status;
}

static tsr_status load_other(const tsr_fsdp_loading *l, size_t i, tsr_error *err)
{
    const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
    const tsr_fsdp_tree *tree = &l->model->tree;
    if (!l->values[i]) return TSR_OK;
    if (item->kind == TSR_ITEM_EXTRA)
        return tree->set_extra ? tree->set_extra(tree->ctx, item->fqn, l->values[i], err) : TSR_OK;
    if (item->kind != TSR_ITEM_PLAIN) return TSR_OK;
    const tsr_status status = load_plain(l, tsr_tensor_of(l->values[i]), tsr_tensor_of(item->value), err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(item->fqn));
    return status;
}

/* PyTorch calls a unit's hook before its subtree is loaded and after it, nested units within. */
tsr_status tsr_fsdp_load_write(const tsr_fsdp_loading *l, tsr_error *err)
{
    tsr_status status = TSR_OK, mine = TSR_OK;
    for (size_t i = 0; i < l->model->items.count && status == TSR_OK; i++) {
        const tsr_fsdp_item *item = &tsr_fsdp_items(l->model)[i];
        if (item->kind == TSR_ITEM_ENTER) tsr_fsdp_tell(l->model, item, false);
        if (item->kind == TSR_ITEM_ENTER && tsr_fsdp_nodes(l->model)[item->node].unit) status = load_unit(l, i, err);
        if (status == TSR_OK && mine == TSR_OK) mine = load_other(l, i, err);
        if (item->kind == TSR_ITEM_LEAVE && status == TSR_OK) tsr_fsdp_tell(l->model, item, false);
    }
    return status == TSR_OK ? tsr_comm_agree(l->model->tree.comm, mine, err) : status;
}

tsr_status tsr_fsdp_load_check(tsr_fsdp_loading *l, tsr_error *err)
{
    TSR_TRY(tsr_fsdp_begin(l->model, "load", l->state, err));
    return tsr_comm_agree(l->model->tree.comm, tsr_fsdp_check_state(l, err), err);
}

tsr_status tsr_fsdp_model_load(tsr_fsdp_model *model, const tsr_value *state, bool strict, tsr_arena *arena,
                               tsr_fsdp_keys *keys, tsr_error *err)
{
    tsr_fsdp_loading l = {.model = model, .state = state, .strict = strict, .arena = arena};
    const tsr_status status = tsr_fsdp_load_check(&l, err);
    if (keys) *keys = l.keys;
    return status == TSR_OK ? tsr_fsdp_load_write(&l, err) : status;
}
