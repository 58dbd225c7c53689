/* PyTorch's _iterate_state_dict: makes a new tree of the same structure, with tensors that a function provides. */
#include <inttypes.h>

#include "live/tensor/state_dict.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

typedef struct walk {
    const tsr_iterate *how;
    tsr_state_dict *out;
    tsr_arena *passing;
    tsr_vec devices; /* of device pointers: copies of these devices may be in progress */
    bool chosen;     /* this rank gets results */
    tsr_name_tally kept;
} walk;

static bool is_chosen(const tsr_iterate *how)
{
    const uint32_t rank = how->comm ? how->comm->rank : 0;
    bool chosen = how->ranks_only_count == 0;
    for (size_t i = 0; i < how->ranks_only_count; i++) chosen = chosen || how->ranks_only[i] == rank;
    return chosen;
}

/* ---- tensors ---- */

static tsr_status remember(walk *w, tsr_device *device, tsr_error *err)
{
    tsr_device **devices = w->devices.items;
    for (size_t i = 0; device && i < w->devices.count; i++)
        if (devices[i] == device) return TSR_OK;
    tsr_device **slot = device ? tsr_vec_push(&w->devices, err) : &device;
    if (!slot) return TSR_E_NOMEM;
    *slot = device;
    return TSR_OK;
}

static tsr_status copy_to(walk *w, const tsr_tensor *from, const tsr_tensor *to, tsr_error *err)
{
    if (from == to || from->meta) return TSR_OK;
    TSR_TRY(remember(w, from->device, err));
    TSR_TRY(remember(w, to->device, err));
    return tsr_tensor_copy(from, to, w->passing, err);
}

static tsr_status to_host(walk *w, const tsr_tensor **tensor, tsr_error *err)
{
    tsr_tensor *copy;
    if (!(*tensor)->device || (*tensor)->meta) return TSR_OK;
    TSR_TRY(tsr_state_dict_copy_tensor(w->out, *tensor, &copy, err));
    copy->device = NULL;
    TSR_TRY(tsr_state_dict_give_memory(w->out, copy, NULL, err));
    TSR_TRY(copy_to(w, *tensor, copy, err));
    *tensor = copy;
    return TSR_OK;
}

/* ---- other dtypes and shapes ---- */

/* Whether `from` becomes `to` by repeating dims of size 1 and dims in front that it does not have. */
static bool can_expand(const tsr_entry *from, const tsr_entry *to)
{
    if (from->ndim > to->ndim) return false;
    for (uint32_t i = 0; i < from->ndim; i++) {
        const uint64_t size = from->shape[from->ndim - 1 - i];
        if (size != 1 && size != to->shape[to->ndim - 1 - i]) return false;
    }
    return true;
}

/* The element of `from` that is repeated as element `index` of `to`. */
static uint64_t source_of(const tsr_entry *from, const tsr_entry *to, uint64_t index)
{
    uint64_t at = 0, row = 1;
    for (uint32_t i = 0; i < from->ndim; i++) {
        const uint64_t size = from->shape[from->ndim - 1 - i], there = to->shape[to->ndim - 1 - i];
        if (size != 1) at += index % there * row;
        index /= there;
        row *= size;
    }
    return at;
}

/* Puts the repeated elements of `from`, in host memory, into `out`, which has `count` elements. */
static void expand(const tsr_entry *from, const uint8_t *elements, const tsr_entry *to, uint64_t count, uint8_t *out)
{
    const uint32_t size = tsr_dtype_size(from->dtype);
    for (uint64_t i = 0; i < count; i++) memcpy(out + i * size, elements + source_of(from, to, i) * size, size);
}

static tsr_status convert_expanded(const tsr_tensor *from, const tsr_tensor *to, tsr_state_dict *out, tsr_error *err)
{
    const tsr_allocator *allocator = out->host->allocator;
    const uint32_t size = tsr_dtype_size(from->entry.dtype);
    uint64_t count = 0, given = 0;
    if (!tsr_entry_elements(&to->entry, &count) || !tsr_entry_elements(&from->entry, &given) || count > SIZE_MAX / 2 / size)
        return tsr_fail(err, TSR_E_LIMIT, "the tensor is too large");
    if (count == 0) return TSR_OK;
    uint8_t *elements = tsr_alloc(allocator, (size_t)given, size, err),
            *all = tsr_alloc(allocator, (size_t)count, size, err);
    tsr_status status = elements && all ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_device_download(from->device, elements, from->data, given * size, err);
    if (status == TSR_OK) {
        expand(&from->entry, elements, &to->entry, count, all);
        const tsr_tensor whole = tsr_tensor_whole(from->entry.dtype, to->entry.ndim, to->entry.shape, all);
        status = tsr_tensor_convert(&whole, to, out->arena, err);
    }
    tsr_free(allocator, all, (size_t)count, size);
    tsr_free(allocator, elements, (size_t)given, size);
    return status;
}

/* Copies `from` into `to` if its dtype can be converted and its shape is the same or, of whole tensors, can be broadcast;
 * otherwise sets *done to false. `out` is only used for temporary memory. */
static tsr_status copy_into(const tsr_tensor *from, const tsr_tensor *to, tsr_state_dict *out, bool *done, tsr_error *err)
{
    tsr_tensor like = *from;
    like.entry.dtype = to->entry.dtype;
    *done = false;
    if (from->meta || to->meta || !tsr_convert_possible(from->entry.dtype, to->entry.dtype)) return TSR_OK;
    const bool alike = tsr_tensor_is_like(&like, to, true);
    *done = alike || (from->spread == TSR_WHOLE && to->spread == TSR_WHOLE && can_expand(&from->entry, &to->entry));
    if (!*done) return TSR_OK;
    return alike ? tsr_tensor_convert(from, to, out->arena, err) : convert_expanded(from, to, out, err);
}

static tsr_status to_companion(walk *w, const tsr_tensor **tensor, const tsr_value *companion, tsr_error *err)
{
    const tsr_tensor *target = tsr_tensor_of(companion);
    TSR_FAIL_IF(!target, err, TSR_E_USAGE, "a tensor in the state dict, %s in the companion", tsr_python_type(companion));
    const tsr_tensor *given = *tensor;
    bool done = false;
    *tensor = target;
    if (!tsr_tensor_is_like(given, target, true)) TSR_TRY(copy_into(given, target, w->out, &done, err));
    if (done) return TSR_OK;
    TSR_TRY(tsr_tensor_same_place(given, target, &(tsr_likeness){"the state dict", "the companion", true}, w->passing, err));
    TSR_TRY(copy_to(w, given, target, err));
    return TSR_OK;
}

static tsr_status visit_tensor(walk *w, const tsr_value *value, const tsr_value *companion, const tsr_value **out,
                               tsr_error *err)
{
    const tsr_tensor *tensor = tsr_tensor_of(value), *result = tensor;
    tsr_tensor_function *function = tensor->spread == TSR_WHOLE       ? w->how->whole
                                    : tensor->spread == TSR_OVER_MESH ? w->how->over_mesh
                                                                      : w->how->in_boxes;
    if (function) TSR_TRY(function(w->how->ctx, tensor, companion ? tsr_tensor_of(companion) : NULL, w->out, &result, err));
    if (w->chosen && companion) TSR_TRY(to_companion(w, &result, companion, err));
    else if (w->chosen && w->how->offload) TSR_TRY(to_host(w, &result, err));
    *out = companion && tsr_tensor_of(companion) == result ? companion
           : result == tensor                              ? value
                                                           : tsr_state_dict_leaf(w->out, result, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- containers ---- */

static bool is_plain(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_NONE:
    case TSR_VALUE_BOOL:
    case TSR_VALUE_INT:
    case TSR_VALUE_BIGINT:
    case TSR_VALUE_FLOAT:
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES: return true;
    default: return false;
    }
}

/* Checks that every key of `dict` is in `other`. */
static tsr_status check_keys(walk *w, const tsr_value *dict, const tsr_value *other, const char *without, tsr_error *err)
{
    for (size_t i = 0; i < tsr_value_pairs(dict); i++) {
        const tsr_step step = {.key = dict->items[2 * i]};
        if (tsr_dict_find(other, step.key, i)) continue;
        const tsr_str key = tsr_step_text(&step, w->passing, err);
        return tsr_fail(err, TSR_E_USAGE, "%s has no key '%.*s'", without, TSR_STR_ARG(key));
    }
    return TSR_OK;
}

static tsr_status check_dicts(walk *w, const tsr_value *dict, const tsr_value *companion, tsr_error *err)
{
    TSR_FAIL_IF(companion->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "a dict in the state dict, %s in the companion",
                tsr_python_type(companion));
    TSR_TRY(check_keys(w, dict, companion, "the companion", err));
    return dict->count == companion->count ? TSR_OK : check_keys(w, companion, dict, "the state dict", err);
}

static tsr_status check_lists(const tsr_value *list, const tsr_value *companion, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_is_list(companion), err, TSR_E_USAGE, "a %s in the state dict, %s in the companion",
                tsr_python_type(list), tsr_python_type(companion));
    TSR_FAIL_IF(list->count != companion->count, err, TSR_E_USAGE, "%zu items in the state dict, %zu in the companion",
                list->count, companion->count);
    return TSR_OK;
}

static tsr_status visit(walk *w, const tsr_value *value, const tsr_value *companion, const tsr_step *at,
                        const tsr_value **out, tsr_error *err);

/* Copies a container, with the results for its items. */
static tsr_status visit_items(walk *w, const tsr_value *value, const tsr_value *companion, const tsr_step *at,
                              const tsr_value **out, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT;
    const tsr_value **items = tsr_arena_array(w->out->arena, value->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < value->count; i += dict ? 2 : 1) {
        const tsr_step step = {at, dict ? value->items[i] : NULL, i, at ? at->depth + 1 : 1};
        const tsr_value *other = !companion ? NULL : dict ? tsr_dict_find(companion, step.key, i / 2) : companion->items[i];
        TSR_TRY(tsr_step_check(&step, w->out->host, w->passing, err));
        items[i] = value->items[i];
        TSR_TRY(visit(w, value->items[i + dict], other, &step, &items[i + dict], err));
    }
    tsr_value *copy = tsr_value_items(w->out->arena, value->kind, items, value->count, err);
    if (copy) copy->ordered_dict = value->ordered_dict;
    *out = copy;
    return copy ? TSR_OK : TSR_E_NOMEM;
}

/* Handles a value that a checkpoint cannot contain. */
static tsr_status visit_other(walk *w, const tsr_value *value, const tsr_step *at, tsr_error *err)
{
    TSR_FAIL_IF(!w->how->any_type, err, TSR_E_UNSUPPORTED, "type_check: unexpected value type %s%s%.*s",
                tsr_python_type(value), value->text.size ? " " : "", TSR_STR_ARG(value->text));
    const tsr_str path = tsr_step_text(at, w->passing, err);
    if (path.data) tsr_name_tally_add(&w->kept, path);
    return path.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status visit(walk *w, const tsr_value *value, const tsr_value *companion, const tsr_step *at,
                        const tsr_value **out, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT, list = tsr_is_list(value) || value->kind == TSR_VALUE_SIZE;
    tsr_status status = TSR_OK;
    *out = value;
    if (dict || list) {
        if (companion) status = dict ? check_dicts(w, value, companion, err) : check_lists(value, companion, err);
        return status == TSR_OK ? visit_items(w, value, companion, at, out, err)
                                : tsr_step_context(at, w->passing, status, err);
    }
    if (value->kind == TSR_VALUE_TENSOR) status = visit_tensor(w, value, companion, out, err);
    else if (!is_plain(value)) status = visit_other(w, value, at, err);
    return status == TSR_OK ? status : tsr_step_context(at, w->passing, status, err);
}

/* ---- all of it ---- */

/* Waits for the devices, also after a failure: copies must not continue into memory that is about to be freed. */
static tsr_status wait_for_all(walk *w, tsr_status status, tsr_error *err)
{
    tsr_device **devices = w->devices.items;
    for (size_t i = 0; i < w->devices.count; i++) {
        const tsr_status waited = tsr_device_wait(devices[i], err);
        if (status == TSR_OK) status = waited;
    }
    return status;
}

static tsr_status nothing_for(const tsr_value *state, tsr_state_dict *out, const tsr_value **root, tsr_error *err)
{
    *root = tsr_value_new(out->arena, state->kind == TSR_VALUE_DICT ? TSR_VALUE_DICT : TSR_VALUE_NONE, err);
    return *root ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_state_dict_iterate(const tsr_value *state, const tsr_iterate *how, tsr_state_dict *out, tsr_error *err)
{
    const tsr_value *root = NULL;
    walk w = {.how = how,
              .out = out,
              .passing = tsr_arena_new(out->host->allocator, 0, err),
              .devices = tsr_vec_of(out->host->allocator, sizeof(tsr_device *)),
              .chosen = is_chosen(how)};
    if (!w.passing) return TSR_E_NOMEM;
    tsr_status status = visit(&w, state, how->companion, NULL, &root, err);
    status = wait_for_all(&w, status, err);
    if (status == TSR_OK && !w.chosen) status = nothing_for(state, out, &root, err);
    if (status == TSR_OK) tsr_state_dict_set_root(out, root);
    if (status == TSR_OK && w.chosen)
        tsr_name_tally_warn(&w.kept, &how->warnings, "values of types that a checkpoint cannot hold are kept as they are");
    tsr_vec_free(&w.devices);
    tsr_arena_free(w.passing);
    return status;
}

/* ---- copy ---- */

/* PyTorch's _offload_state_dict_to_cpu and _copy_state_dict: copy a state dict to the host, and into another state dict. */

tsr_status tsr_state_dict_offload(const tsr_value *state, tsr_comm *comm, const tsr_offload_options *options,
                                  tsr_state_dict *out, tsr_error *err)
{
    tsr_offload_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_offload_options, err));
    const tsr_iterate how = {.comm = comm,
                             .ranks_only = own.ranks_only,
                             .ranks_only_count = own.ranks_only_count,
                             .any_type = own.any_type,
                             .offload = true};
    return tsr_state_dict_iterate(state, &how, out, err);
}

tsr_status tsr_state_dict_copy(const tsr_value *state, const tsr_value *target, bool any_type, tsr_state_dict *out,
                               tsr_error *err)
{
    const tsr_iterate how = {.companion = target, .any_type = any_type};
    return tsr_state_dict_iterate(state, &how, out, err);
}

/* ---- create ---- */

/* PyTorch's _create_cpu_state_dict: makes a state dict of the same structure in host memory, which may be plain,
 * page-locked, or shared between processes. */

/* Tensors without memory are collected, and get memory when all of them are known. */
typedef struct creation {
    tsr_vec made; /* of tensor pointers */
} creation;

/* Whether a tensor is left as it is, as in PyTorch. */
static bool is_kept(const tsr_tensor *tensor)
{
    return (tensor->spread == TSR_OVER_MESH && tensor->entry.ndim == 0) ||
           (tensor->spread == TSR_IN_BOXES && tensor->part_count == 0);
}

static tsr_status make(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                       const tsr_tensor **result, tsr_error *err)
{
    (void)companion;
    creation *c = ctx;
    if (is_kept(tensor)) return TSR_OK;
    tsr_tensor *copy, **slot = tsr_vec_push(&c->made, err);
    if (!slot) return TSR_E_NOMEM;
    TSR_TRY(tsr_state_dict_copy_tensor(out, tensor, &copy, err));
    copy->device = NULL;
    *slot = copy;
    *result = copy;
    return TSR_OK;
}

static void zero_scalars(const creation *c)
{
    tsr_tensor **made = c->made.items;
    for (size_t i = 0; i < c->made.count; i++)
        if (made[i]->entry.ndim == 0 && made[i]->spread == TSR_WHOLE)
            memset(made[i]->data, 0, tsr_dtype_size(made[i]->entry.dtype));
}

static tsr_status give_all(const creation *c, tsr_device *pin, tsr_state_dict *out, tsr_error *err)
{
    tsr_tensor **made = c->made.items;
    TSR_FAIL_IF(pin && !pin->pin, err, TSR_E_UNSUPPORTED, "the device cannot page-lock memory");
    for (size_t i = 0; i < c->made.count; i++) TSR_TRY(tsr_state_dict_give_memory(out, made[i], pin, err));
    return TSR_OK;
}

/* ---- shared memory ---- */

/* Computes the size of every leaf's first buffer, in the order that is the same on all ranks. Refuses tensors in several
 * boxes. */
static tsr_status measure_leaves(const tsr_leaves *leaves, tsr_arena *arena, uint64_t **out, tsr_error *err)
{
    *out = tsr_arena_array(arena, leaves->count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < leaves->count; i++) {
        const tsr_tensor *tensor = leaves->items[i].tensor;
        void *data;
        TSR_FAIL_IF(tensor->spread == TSR_IN_BOXES && tensor->part_count > 1, err, TSR_E_UNSUPPORTED,
                    "'%.*s' has %u boxes on this rank; shared memory supports one per rank",
                    TSR_STR_ARG(leaves->items[i].path), (unsigned)tensor->part_count);
        if (tensor->spread != TSR_IN_BOXES || tensor->part_count)
            TSR_TRY(tsr_tensor_buffer(tensor, 0, arena, &data, &(*out)[i], err));
    }
    return TSR_OK;
}

static tsr_status lock_pages(tsr_state_dict *out, tsr_device *pin, void *data, uint64_t bytes, tsr_error *err)
{
    TSR_FAIL_IF(!pin->pin, err, TSR_E_UNSUPPORTED, "the device cannot page-lock memory");
    TSR_TRY(tsr_vec_reserve(&out->pinned, 1, err));
    TSR_TRY(pin->pin(pin, data, bytes, err));
    tsr_buffer *buffer = tsr_vec_push(&out->pinned, err);
    *buffer = (tsr_buffer){NULL, pin, data, bytes};
    return TSR_OK;
}

/* Assigns memory of the segment to the tensors that were made. */
static tsr_status take_shared(const tsr_leaves *leaves, uint32_t rank, tsr_device *pin, tsr_state_dict *out, tsr_error *err)
{
    for (size_t i = 0; i < leaves->count; i++) {
        tsr_tensor *tensor = (tsr_tensor *)leaves->items[i].tensor;
        uint64_t bytes;
        if (is_kept(tensor)) continue;
        void *data = tsr_shared_buffer(out->shared, rank, i, &bytes);
        tensor->meta = false;
        tensor->shared = out->shared;
        tensor->shared_index = i;
        if (tensor->spread == TSR_IN_BOXES) ((tsr_tensor_part *)tensor->parts)[0].data = data;
        else tensor->data = data;
        if (pin && bytes) TSR_TRY(lock_pages(out, pin, data, bytes, err));
    }
    return TSR_OK;
}

static tsr_status share_all(const tsr_create_options *options, tsr_status mine, tsr_state_dict *out, tsr_error *err)
{
    tsr_comm *comm = options->share;
    uint64_t *sizes = NULL;
    tsr_agreement agreement = {tsr_vec_of(out->host->allocator, 1), out->arena};
    tsr_status status = mine;
    if (status == TSR_OK) status = tsr_leaves_of(out->root, out->host, true, out->arena, &out->shared_leaves, err);
    if (status == TSR_OK) status = tsr_leaves_check(&out->shared_leaves, comm, err);
    if (status == TSR_OK) status = measure_leaves(&out->shared_leaves, out->arena, &sizes, err);
    if (status == TSR_OK) status = tsr_agreement_add_leaves(&agreement, "", &out->shared_leaves, err);
    status = tsr_agreement_check(&agreement, comm, status, out->host->allocator, err);
    if (status == TSR_OK)
        status = tsr_shared_new(comm, sizes, out->shared_leaves.count, out->host->allocator, &out->shared, err);
    if (status == TSR_OK) {
        status = take_shared(&out->shared_leaves, comm->rank, options->pin, out, err);
        status = tsr_comm_agree(comm, status, err);
    }
    return status;
}

tsr_status tsr_state_dict_create(const tsr_value *state, const tsr_create_options *options, tsr_state_dict *out,
                                 tsr_error *err)
{
    tsr_create_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_create_options, err));
    creation c = {tsr_vec_of(out->host->allocator, sizeof(tsr_tensor *))};
    const tsr_iterate how = {.whole = make, .over_mesh = make, .in_boxes = make, .ctx = &c, .any_type = true};
    tsr_status status = tsr_state_dict_iterate(state, &how, out, err);
    if (own.share) status = share_all(&own, status, out, err);
    else if (status == TSR_OK) status = give_all(&c, own.pin, out, err);
    if (status == TSR_OK) zero_scalars(&c);
    tsr_vec_free(&c.made);
    return status;
}

tsr_status tsr_state_dict_peer(const tsr_state_dict *dict, uint32_t peer, const tsr_tensor *mine, void **data,
                               uint64_t *bytes, tsr_error *err)
{
    TSR_FAIL_IF(!dict->shared, err, TSR_E_USAGE, "the state dict is not shared between processes");
    TSR_FAIL_IF(peer >= dict->shared->ranks, err, TSR_E_USAGE, "rank %u is not one of the %u that share", (unsigned)peer,
                (unsigned)dict->shared->ranks);
    for (size_t i = 0; i < dict->shared_leaves.count; i++) {
        if (dict->shared_leaves.items[i].tensor != mine) continue;
        *data = tsr_shared_buffer(dict->shared, peer, i, bytes);
        return TSR_OK;
    }
    return tsr_fail(err, TSR_E_USAGE, "'%.*s' is not a tensor of the shared state dict", TSR_STR_ARG(mine->entry.fqn));
}

/* ---- similar ---- */

/* PyTorch's _check_state_dict_similarity: whether two state dicts have the same structure. */

static tsr_status compare(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                          const tsr_tensor **result, tsr_error *err)
{
    (void)ctx;
    if (!companion) return TSR_OK; /* the walk reports what the companion has instead */
    *result = companion;           /* so that the walk has nothing to copy */
    return tsr_tensor_same_place(tensor, companion, &(tsr_likeness){"the state dict", "the companion", true}, out->arena,
                                 err);
}

tsr_status tsr_state_dict_similar(const tsr_value *state, const tsr_value *other, const tsr_host *host, bool *same,
                                  tsr_error *difference, tsr_error *err)
{
    const tsr_iterate how = {
        .whole = compare, .over_mesh = compare, .in_boxes = compare, .companion = other, .any_type = true};
    tsr_error found = {0};
    tsr_state_dict *passing;
    TSR_TRY(tsr_state_dict_new(host, &passing, err));
    const tsr_status status = tsr_state_dict_iterate(state, &how, passing, &found);
    tsr_state_dict_free(passing);
    *same = status == TSR_OK;
    if (status == TSR_OK) return TSR_OK;
    if (status != TSR_E_USAGE) return tsr_raise_again(err, status, &found);
    if (difference) *difference = found;
    return TSR_OK;
}

/* ---- keys ---- */

/* Converts between nested state dicts and dotted keys, by one of two rules. The older rule (`_flatten_state_dict` of
 * torch/distributed/_state_dict_utils.py) expands mappings, lists and tuples. In DCP's flatten_state_dict, tuples are
 * leaves, and so are lists without tensors and mappings. */

typedef struct frame {
    const tsr_value *container;
    size_t next;
    tsr_str prefix; /* "a.b." */
} frame;

typedef struct flattening {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec stack; /* frame */
    tsr_vec path;  /* tsr_path_item, one per frame */
    tsr_vec items; /* tsr_state_key */
    tsr_map *seen;
    uint64_t visited;
    bool dcp; /* which of the rules applies */
} flattening;

static bool expands(const flattening *f, const tsr_value *value)
{
    if (f->dcp)
        return value->kind == TSR_VALUE_DICT ||
               (value->kind == TSR_VALUE_LIST && !tsr_list_is_plain(value, f->host->limits.depth));
    return value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE ||
           value->kind == TSR_VALUE_SIZE;
}

static tsr_status enter(flattening *f, const tsr_value *container, tsr_str prefix, tsr_error *err)
{
    uint32_t depth = f->host->limits.depth;
    TSR_FAIL_IF(f->stack.count >= depth, err, TSR_E_LIMIT, "state dict: nested deeper than %" PRIu32, depth);
    frame *top = tsr_vec_push(&f->stack, err);
    if (!top || !tsr_vec_push(&f->path, err)) return TSR_E_NOMEM;
    *top = (frame){container, 0, prefix};
    return TSR_OK;
}

static tsr_status put_leaf(flattening *f, tsr_str name, const tsr_value *value, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(f->seen, name, 0, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "state dict: two values have the flat key '%.*s'", TSR_STR_ARG(name));
    tsr_path_item *path = tsr_arena_array(f->arena, f->path.count, sizeof *path, err);
    tsr_state_key *key = path ? tsr_vec_push(&f->items, err) : NULL;
    if (!key) return TSR_E_NOMEM;
    memcpy(path, f->path.items, f->path.count * sizeof *path);
    *key = (tsr_state_key){name, path, (uint32_t)f->path.count, value};
    return TSR_OK;
}

/* Moves to the next member of the innermost container, and returns its path item, name and value. */
static tsr_status next_member(flattening *f, frame *top, tsr_str *name, const tsr_value **value, tsr_error *err)
{
    tsr_path_item *item = (tsr_path_item *)f->path.items + f->path.count - 1;
    bool dict = top->container->kind == TSR_VALUE_DICT;
    tsr_str text;
    if (dict) {
        TSR_TRY(tsr_key_text(top->container->items[top->next++], f->arena, &text, err));
        *item = (tsr_path_item){.kind = TSR_PATH_KEY, .key = text};
    } else {
        *item = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = (int64_t)top->next};
        text = tsr_arena_format(f->arena, err, "%zu", top->next);
    }
    *value = top->container->items[top->next++];
    *name = tsr_arena_format(f->arena, err, "%.*s%.*s", TSR_STR_ARG(top->prefix), TSR_STR_ARG(text));
    return text.data && name->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status keys_walk(flattening *f, const tsr_value *root, tsr_error *err)
{
    TSR_TRY(enter(f, root, TSR_STR(""), err));
    while (f->stack.count) {
        frame *top = (frame *)f->stack.items + f->stack.count - 1;
        if (top->next >= top->container->count) {
            f->stack.count--;
            f->path.count--;
            continue;
        }
        tsr_str name;
        const tsr_value *value;
        TSR_FAIL_IF(++f->visited > f->host->limits.expansion, err, TSR_E_LIMIT, "state dict: more than %" PRIu64 " values",
                    f->host->limits.expansion);
        TSR_TRY(next_member(f, top, &name, &value, err));
        if (!expands(f, value)) {
            TSR_TRY(put_leaf(f, name, value, err));
            continue;
        }
        tsr_str prefix = tsr_arena_format(f->arena, err, "%.*s.", TSR_STR_ARG(name));
        if (!prefix.data) return TSR_E_NOMEM;
        TSR_TRY(enter(f, value, prefix, err));
    }
    return TSR_OK;
}

static tsr_status flatten(const tsr_value *state_dict, bool dcp, const tsr_host *host, tsr_arena *arena, tsr_vec *keys,
                          tsr_error *err)
{
    TSR_FAIL_IF(state_dict->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "state dict: expected a dict, found %s",
                tsr_value_kind_name(state_dict));
    const tsr_allocator *a = host->allocator;
    flattening f = {host,
                    arena,
                    tsr_vec_of(a, sizeof(frame)),
                    tsr_vec_of(a, sizeof(tsr_path_item)),
                    tsr_vec_of(a, sizeof(tsr_state_key)),
                    tsr_map_new(a, 0, err),
                    0,
                    dcp};
    const tsr_status status = f.seen ? keys_walk(&f, state_dict, err) : TSR_E_NOMEM;
    *keys = f.items;
    tsr_map_free(f.seen);
    tsr_vec_free(&f.path);
    tsr_vec_free(&f.stack);
    return status;
}

static tsr_status hand_out(tsr_status status, tsr_vec *keys, tsr_arena *arena, tsr_state_key **out, size_t *count,
                           tsr_error *err)
{
    *count = status == TSR_OK ? keys->count : 0;
    *out = status == TSR_OK ? tsr_arena_array(arena, *count, sizeof **out, err) : NULL;
    if (*out && *count) memcpy(*out, keys->items, *count * sizeof **out);
    tsr_vec_free(keys);
    return status == TSR_OK && !*out ? TSR_E_NOMEM : status;
}

tsr_status tsr_state_keys(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                          size_t *count, tsr_error *err)
{
    tsr_vec keys = tsr_vec_of(host->allocator, sizeof(tsr_state_key));
    const tsr_status status = flatten(state_dict, false, host, arena, &keys, err);
    return hand_out(status, &keys, arena, out, count, err);
}

tsr_status tsr_state_keys_dcp(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                              size_t *count, tsr_error *err)
{
    tsr_vec keys = tsr_vec_of(host->allocator, sizeof(tsr_state_key));
    const tsr_status status = flatten(state_dict, true, host, arena, &keys, err);
    return hand_out(status, &keys, arena, out, count, err);
}

tsr_status tsr_state_unflatten(const tsr_state_key *keys, size_t count, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err)
{
    tsr_leaf *leaves = tsr_alloc(host->allocator, count, sizeof *leaves, err);
    if (!leaves && count) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        leaves[i] = (tsr_leaf){keys[i].path, keys[i].path_length, keys[i].value, keys[i].name, false};
        if (keys[i].path_length == 0 || keys[i].path[0].kind == TSR_PATH_INDEX)
            status = tsr_fail(err, TSR_E_USAGE, "state dict: the path of '%.*s' does not begin with a key",
                              TSR_STR_ARG(keys[i].name));
    }
    if (status == TSR_OK) status = tsr_nest(leaves, count, host, arena, out, err);
    tsr_free(host->allocator, leaves, count, sizeof *leaves);
    return status;
}
