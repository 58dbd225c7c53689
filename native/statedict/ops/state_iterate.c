/* PyTorch's _iterate_state_dict: makes a new tree of the same structure, with tensors that a function provides. */
#include "statedict/tensor/convert_tensors.h"
#include "statedict/tensor/path.h"
#include "statedict/tensor/state_dict.h"
#include "statedict/tensor/warn.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/value_walk.h"

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

static tsr_status to_companion(walk *w, const tsr_tensor **tensor, const tsr_value *companion, tsr_error *err)
{
    const tsr_tensor *target = tsr_tensor_of(companion);
    TSR_FAIL_IF(!target, err, TSR_E_USAGE, "a tensor in the state dict, %s in the companion", tsr_python_type(companion));
    const tsr_tensor *given = *tensor;
    bool done = false;
    *tensor = target;
    if (!tsr_tensor_is_like(given, target, true)) TSR_TRY(tsr_tensor_copy_into(given, target, w->out, &done, err));
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
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "%s has no key '%.*s'", without, TSR_STR_ARG(key));
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
