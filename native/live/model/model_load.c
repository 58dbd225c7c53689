/* Loads a state dict with canonical names into a model, alone or with its optimizers: matches names, checks tensors, makes
 * all ranks agree, and only then writes. */
#include "live/model/model_names.h"
#include "live/model/optimizer_names.h"
#include "live/ops/state_full.h"
#include "live/tensor/state_dict.h"
#include "live/transfer/transfer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/read.h"
#include "tessera/sys/statedict.h"

/* tsr_set_model_state_dict in two steps, so that tsr_set_state_dict writes nothing unless the optimizers' state fits, too. */
typedef struct setting {
    const tsr_model *model;
    tsr_call call;
    const tsr_state_options *options; /* the call's */
    const tsr_host *host;
    tsr_comm *comm;
    tsr_arena *passing, *arena;
    const tsr_value *state; /* NULL: this rank receives another rank's state */
    tsr_unmatched_keys *unmatched, own;
    tsr_model_items items;
    tsr_fsdp_bound *bound;    /* of a tree with FSDP1's units */
    tsr_fsdp_loading loading; /* of them */
    const tsr_value **values; /* by item; NULL: none */
    bool *matched;            /* by item */
    tsr_dtype *dtypes;        /* of a broadcast into units, by item: rank 0's */
    tsr_move *moves;          /* tensors with different layouts in the state dict and in the model */
    size_t move_count;
    bool any_moves; /* on any rank */
    bool nothing;   /* no rank has anything to load */
    tsr_state_dict *scratch;
} setting;

/* ---- matching ---- */

/* `frozen` (may be NULL): names that may be missing. */
static tsr_status match(setting *s, const tsr_map *frozen, tsr_error *err)
{
    const size_t pairs = tsr_value_pairs(s->state), count = s->items.count;
    tsr_str *missing = tsr_arena_array(s->arena, count, sizeof *missing, err);
    tsr_str *unexpected = tsr_arena_array(s->arena, pairs, sizeof *unexpected, err);
    if (!missing || !unexpected) return TSR_E_NOMEM;
    *s->unmatched = (tsr_unmatched_keys){missing, 0, unexpected, 0};
    for (size_t i = 0; i < pairs; i++) {
        const tsr_str key = s->state->items[2 * i]->text;
        const uint32_t at = tsr_map_get(s->items.index, key, UINT32_MAX);
        if (at != UINT32_MAX) s->values[at] = s->state->items[2 * i + 1];
        else if (!(unexpected[s->unmatched->unexpected_count++] = tsr_arena_str(s->arena, key, err)).data)
            return TSR_E_NOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        s->matched[i] = s->values[i] != NULL;
        if (s->matched[i] || (frozen && tsr_map_get(frozen, s->items.items[i].fqn, 0))) continue;
        missing[s->unmatched->missing_count] = tsr_arena_str(s->arena, s->items.items[i].fqn, err);
        if (!missing[s->unmatched->missing_count++].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* With ignore_frozen_params, a full state dict was saved without frozen parameters, which keep their values. Without
 * full_state_dict, and in a broadcast, PyTorch calls them missing. */
static tsr_status match_but_frozen(setting *s, tsr_error *err)
{
    const tsr_state_options *o = s->options;
    if (!o->ignore_frozen_params || !o->full_state_dict || o->broadcast_from_rank0) return match(s, NULL, err);
    tsr_map *frozen = tsr_map_new(s->host->allocator, 0, err);
    tsr_status status = frozen ? tsr_model_frozen(s->model->modules, s->host, s->passing, frozen, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = match(s, frozen, err);
    tsr_map_free(frozen);
    return status;
}

static const tsr_value *name_list(setting *s, const tsr_str *names, size_t count, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(s->passing, count, sizeof *items, err);
    for (size_t i = 0; items && i < count; i++)
        if (!(items[i] = tsr_value_str(s->passing, names[i], err))) return NULL;
    return items ? tsr_value_items(s->passing, TSR_VALUE_LIST, items, count, err) : NULL;
}

static tsr_status names_of(setting *s, const tsr_value *list, const tsr_str **out, size_t *count, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(s->arena, list->count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < list->count; i++)
        if (!(names[i] = tsr_arena_str(s->arena, list->items[i]->text, err)).data) return TSR_E_NOMEM;
    *out = names;
    *count = list->count;
    return TSR_OK;
}

static tsr_status pack_unmatched(setting *s, tsr_vec *packed, tsr_error *err)
{
    const tsr_value *lists[2] = {name_list(s, s->unmatched->missing, s->unmatched->missing_count, err),
                                 name_list(s, s->unmatched->unexpected, s->unmatched->unexpected_count, err)};
    const tsr_value *both = lists[0] && lists[1] ? tsr_value_items(s->passing, TSR_VALUE_LIST, lists, 2, err) : NULL;
    return both ? tsr_value_pack(both, 0, s->host, packed, err) : TSR_E_NOMEM;
}

static tsr_status unpack_unmatched(setting *s, tsr_str packed, tsr_error *err)
{
    const tsr_value *both;
    TSR_TRY(tsr_value_unpack(packed, s->host, s->passing, &both, err));
    tsr_unmatched_keys *u = s->unmatched;
    TSR_TRY(names_of(s, both->items[0], &u->missing, &u->missing_count, err));
    TSR_TRY(names_of(s, both->items[1], &u->unexpected, &u->unexpected_count, err));
    for (size_t i = 0; i < s->items.count; i++) s->matched[i] = true;
    for (size_t i = 0; i < u->missing_count; i++) {
        const uint32_t at = tsr_map_get(s->items.index, u->missing[i], UINT32_MAX);
        if (at != UINT32_MAX) s->matched[at] = false;
    }
    return TSR_OK;
}

/* Broadcasts the names that did not match on rank 0. */
static tsr_status share_unmatched(setting *s, tsr_error *err)
{
    tsr_vec packed = tsr_vec_of(s->host->allocator, 1);
    void *blob = NULL;
    size_t size = 0;
    tsr_status status = s->comm->rank == 0 ? pack_unmatched(s, &packed, err) : TSR_OK;
    status = tsr_comm_agree(s->comm, status, err);
    if (status == TSR_OK)
        status = tsr_comm_broadcast_blob((tsr_ranks){s->comm, s->host->allocator}, (tsr_str){packed.items, packed.count}, 0,
                                         &blob, &size, err);
    if (status == TSR_OK) {
        if (s->comm->rank != 0) status = unpack_unmatched(s, (tsr_str){blob, size}, err);
        status = tsr_comm_agree(s->comm, status, err);
    }
    tsr_free(s->host->allocator, blob, size, 1);
    tsr_vec_free(&packed);
    return status;
}

static tsr_status refuse_unmatched(const tsr_unmatched_keys *u, tsr_error *err)
{
    const tsr_str none = {"", 0};
    const tsr_str missing = u->missing_count ? u->missing[0] : none, other = u->unexpected_count ? u->unexpected[0] : none;
    TSR_FAIL_IF(u->missing_count && u->unexpected_count, err, TSR_E_NOT_FOUND,
                "model state: %zu keys missing, first '%.*s'; %zu unexpected, first '%.*s'", u->missing_count,
                TSR_STR_ARG(missing), u->unexpected_count, TSR_STR_ARG(other));
    TSR_FAIL_IF(u->missing_count, err, TSR_E_NOT_FOUND, "model state: missing key '%.*s', the first of %zu",
                TSR_STR_ARG(missing), u->missing_count);
    TSR_FAIL_IF(u->unexpected_count, err, TSR_E_NOT_FOUND, "model state: unexpected key '%.*s', the first of %zu",
                TSR_STR_ARG(other), u->unexpected_count);
    return TSR_OK;
}

/* ---- checking ---- */

/* Whether every number of `from` is also one of `to`. Float8 is never widened: its numbers may need scales. */
static bool is_widened(tsr_dtype from, tsr_dtype to)
{
    const bool half = from == TSR_BFLOAT16 || from == TSR_FLOAT16;
    return (half && (to == TSR_FLOAT32 || to == TSR_FLOAT64)) || (from == TSR_FLOAT32 && to == TSR_FLOAT64);
}

static tsr_status check_tensor(setting *s, const tsr_model_item *item, const tsr_value *value, tsr_error *err)
{
    const tsr_tensor *given = tsr_tensor_of(value);
    const bool full = s->options->full_state_dict, units = s->bound && !s->options->broadcast_from_rank0;
    TSR_FAIL_IF(!given, err, TSR_E_USAGE, "no tensor in the state dict, a tensor in the model");
    TSR_FAIL_IF(given->meta, err, TSR_E_USAGE, "the tensor in the state dict is meta: it has no memory");
    TSR_FAIL_IF(full && given->spread != TSR_WHOLE, err, TSR_E_USAGE,
                "the tensor in the state dict is distributed; full_state_dict wants whole ones");
    if (units) return TSR_OK; /* tsr_fsdp_load_check says more */
    tsr_tensor want = *item->tensor;
    if (s->bound) { /* units cast what they load */
        TSR_FAIL_IF(given->entry.dtype != want.entry.dtype && !tsr_cast_possible(given->entry.dtype, want.entry.dtype), err,
                    TSR_E_UNSUPPORTED, "%s in the state, which is not cast to the model's %s",
                    tsr_dtype_describe(given->entry.dtype)->name, tsr_dtype_describe(want.entry.dtype)->name);
        want.entry.dtype = given->entry.dtype;
    } else if (is_widened(given->entry.dtype, want.entry.dtype)) {
        want.entry.dtype = given->entry.dtype;
    }
    const bool mixed = !full && (given->spread == TSR_WHOLE) != (want.spread == TSR_WHOLE);
    return tsr_tensor_same_place(given, &want, &(tsr_likeness){"the state dict", "the model", mixed}, s->passing, err);
}

/* Replaces a value of a narrower type by a copy of the model's type. */
static tsr_status widen(setting *s, const tsr_model_item *item, const tsr_value **value, tsr_error *err)
{
    const tsr_taking taking = {.memory = s->scratch, .passing = s->passing, .param = item->tensor};
    if (tsr_tensor_of(*value)->entry.dtype == item->tensor->entry.dtype) return TSR_OK;
    *value = tsr_optimizer_take(&taking, *value, NULL, err);
    return *value ? TSR_OK : err && err->status ? err->status : TSR_E_NOMEM;
}

static tsr_status check_all(setting *s, tsr_error *err)
{
    for (size_t i = 0; i < s->items.count; i++) {
        const tsr_model_item *item = &s->items.items[i];
        if (!s->matched[i]) continue;
        TSR_FAIL_IF(s->bound && item->tensor && item->tensor->meta && !item->unit, err, TSR_E_UNSUPPORTED,
                    "'%.*s' is a meta tensor; outside FSDP1's units only tensors with data can be set",
                    TSR_STR_ARG(item->fqn));
        TSR_FAIL_IF(!s->bound && item->tensor && item->tensor->meta && !s->model->memory, err, TSR_E_USAGE,
                    "'%.*s' is meta, and the model has nowhere to put its memory", TSR_STR_ARG(item->fqn));
        TSR_FAIL_IF(!item->tensor && !s->model->set_extra, err, TSR_E_USAGE, "the model has no set_extra for '%.*s'",
                    TSR_STR_ARG(item->raw));
        if (!item->tensor || !s->values[i]) continue;
        tsr_status status = check_tensor(s, item, s->values[i], err);
        if (status == TSR_OK && !s->bound) status = widen(s, item, &s->values[i], err);
        if (status == TSR_OK) continue;
        tsr_error_context(err, "'%.*s'", TSR_STR_ARG(item->fqn));
        return status;
    }
    return s->options->strict ? refuse_unmatched(s->unmatched, err) : TSR_OK;
}

/* ---- tensors with another layout ---- */

static bool has_boxes(const tsr_tensor *a, const tsr_tensor *b)
{
    return a->spread == TSR_IN_BOXES || b->spread == TSR_IN_BOXES;
}

/* Sets others[i] where a tensor is laid out differently in the state dict and in the model, and *boxes if one of these is
 * in boxes. Ranks hold different boxes, so they may come to different results for those. */
static void find_others(const setting *s, bool *others, bool *boxes)
{
    for (size_t i = 0; i < s->items.count; i++) {
        const tsr_tensor *given = s->matched[i] && s->items.items[i].tensor ? tsr_tensor_of(s->values[i]) : NULL;
        if (!given || given->spread == TSR_WHOLE) continue;
        others[i] = !tsr_tensor_is_like(given, s->items.items[i].tensor, true);
        *boxes = *boxes || (others[i] && has_boxes(given, s->items.items[i].tensor));
    }
}

/* Lists the tensors to redistribute. If any rank needs to move a tensor in boxes (`boxes`), all tensors in boxes are
 * moved, so that the ranks list the same ones. Moving writes into the model's memory, so what is moved need not be
 * written later. */
static tsr_status list_moves(setting *s, const bool *others, bool boxes, tsr_error *err)
{
    for (size_t i = 0; i < s->items.count; i++) {
        const tsr_tensor *to = s->items.items[i].tensor, *given = s->matched[i] && to ? tsr_tensor_of(s->values[i]) : NULL;
        if (!given || given->spread == TSR_WHOLE || !(has_boxes(given, to) ? boxes : others[i])) continue;
        s->moves[s->move_count++] = (tsr_move){given, to};
        s->values[i] = tsr_state_dict_leaf(s->scratch, to, err);
        if (!s->values[i]) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* Between different layouts, copy_ of DTensors redistributes; so does this. */
static tsr_status find_moves(setting *s, tsr_error *err)
{
    bool boxes = false, *others = tsr_arena_array(s->passing, s->items.count, sizeof *others, err);
    s->moves = tsr_arena_array(s->passing, s->items.count, sizeof *s->moves, err);
    tsr_status status = others && s->moves ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) find_others(s, others, &boxes);
    TSR_TRY(tsr_comm_agree(s->comm, status, err));
    uint64_t any = boxes;
    TSR_TRY(s->comm->largest(s->comm, &any, err));
    status = list_moves(s, others, any != 0, err);
    TSR_TRY(tsr_comm_agree(s->comm, status, err));
    any = s->move_count;
    TSR_TRY(s->comm->largest(s->comm, &any, err));
    s->any_moves = any != 0;
    return s->any_moves ? tsr_redistribute_check(s->comm, &(tsr_move_list){s->moves, s->move_count}, s->host, err) : TSR_OK;
}

/* ---- writing ---- */

/* Gives memory to the model's meta tensors. With a broadcast and cpu_offload it is host memory, because PyTorch assigns
 * the tensors that it offloaded instead of copying them. */
static tsr_status give_memory(setting *s, tsr_error *err)
{
    const bool on_host = s->options->cpu_offload && s->options->broadcast_from_rank0;
    for (size_t i = 0; i < s->items.count; i++) {
        tsr_tensor *tensor = s->items.items[i].tensor;
        const tsr_value *value;
        if (!s->matched[i] || !tensor || !tensor->meta) continue;
        if (on_host) tensor->device = NULL;
        TSR_TRY(tsr_state_dict_allocate(s->model->memory, tensor, &value, err));
        tensor->data = tsr_tensor_of(value)->data;
        tensor->parts = tsr_tensor_of(value)->parts;
        tensor->meta = false;
    }
    return TSR_OK;
}

typedef enum matched_values { MATCHED_NAMES, MATCHED_LOCAL, MATCHED_GIVEN } matched_values;

/* A dict of the matched names: without tensors, with the model's tensors, or with the values to be loaded. `raw`: under the keys
 * that units load by. */
static const tsr_value *matched_dict(setting *s, matched_values values, bool raw, tsr_error *err)
{
    size_t count = 0;
    tsr_arena *arena = s->scratch->arena;
    const tsr_value **items = tsr_arena_array(arena, 2 * s->items.count, sizeof *items, err);
    const tsr_value *place = tsr_value_int(arena, 0, err); /* stands in for what is not a tensor */
    if (!items || !place) return NULL;
    for (size_t i = 0; i < s->items.count; i++) {
        const tsr_model_item *item = &s->items.items[i];
        const tsr_value *value = values == MATCHED_GIVEN ? s->values[i] : place;
        if (!s->matched[i]) continue;
        if (values == MATCHED_LOCAL && item->tensor &&
            tsr_state_dict_tensor(s->scratch, item->tensor, &value, err) != TSR_OK)
            return NULL;
        items[count++] = tsr_value_str(arena, raw ? item->raw : item->fqn, err);
        items[count++] = value;
        if (!items[count - 2]) return NULL;
    }
    return tsr_value_items(arena, TSR_VALUE_DICT, items, count, err);
}

/* Replaces full values by values with the layout of the model's tensors. A broadcast writes into the model's tensors
 * directly. */
static tsr_status spread_full(setting *s, tsr_error *err)
{
    const bool broadcast = s->options->broadcast_from_rank0, has = !broadcast || s->comm->rank == 0;
    const tsr_value *local = matched_dict(s, MATCHED_LOCAL, false, err);
    const tsr_value *full = has && local ? matched_dict(s, MATCHED_GIVEN, false, err) : NULL;
    const tsr_broadcast_options options = {.strict = true};
    tsr_status status = tsr_comm_agree(s->comm, local && (full || !has) ? TSR_OK : TSR_E_NOMEM, err);
    if (status != TSR_OK) return status;
    if (broadcast) TSR_TRY(tsr_state_dict_broadcast(full, local, s->comm, &options, s->scratch, err));
    else TSR_TRY(tsr_state_dict_distribute(full, local, s->scratch, err));
    const tsr_value *root = tsr_state_dict_root(s->scratch);
    for (size_t i = 0, at = 0; i < s->items.count; i++)
        if (s->matched[i]) s->values[i] = root->items[2 * at++ + 1];
    return TSR_OK;
}

/* ---- FSDP1 ---- */

static bool is_distributed(const tsr_model_item *item)
{
    return item->tensor && item->tensor->spread != TSR_WHOLE;
}

/* A tensor with the layout of the model's, to be filled before anything in the model is overwritten. */
static tsr_status placeholder(setting *s, const tsr_model_item *item, tsr_dtype dtype, const tsr_value **out, tsr_error *err)
{
    tsr_tensor tensor;
    if (!item->tensor) {
        *out = tsr_value_int(s->scratch->arena, 0, err);
        return *out ? TSR_OK : TSR_E_NOMEM;
    }
    tensor = *item->tensor;
    if (dtype != TSR_DTYPE_NONE) tensor.entry.dtype = dtype;
    tensor.meta = true;
    tensor.device = NULL;
    return tsr_state_dict_tensor(s->scratch, &tensor, out, err);
}

/* Whether item `i` must be distributed before the units load: every item of a broadcast, otherwise DTensors that no unit
 * manages. */
static bool is_spread(const setting *s, size_t i)
{
    return s->matched[i] && (s->options->broadcast_from_rank0 || is_distributed(&s->items.items[i]));
}

/* Broadcasts the dtypes of rank 0's tensors. */
static tsr_status share_dtypes(setting *s, tsr_error *err)
{
    tsr_dtype *dtypes = s->dtypes = tsr_arena_array(s->passing, s->items.count, sizeof *dtypes, err);
    TSR_TRY(tsr_comm_agree(s->comm, dtypes ? TSR_OK : TSR_E_NOMEM, err));
    for (size_t i = 0; i < s->items.count; i++) {
        const tsr_tensor *tensor = s->values[i] ? tsr_tensor_of(s->values[i]) : NULL;
        dtypes[i] = tensor ? tensor->entry.dtype : TSR_DTYPE_NONE;
    }
    if (!s->options->broadcast_from_rank0) return TSR_OK;
    return s->comm->broadcast(s->comm, dtypes, s->items.count * sizeof *dtypes, 0, err);
}

static tsr_status list_spread(setting *s, bool has, const tsr_value **local, const tsr_value **full, tsr_error *err)
{
    size_t count = 0;
    const tsr_value **mine = tsr_arena_array(s->scratch->arena, 2 * s->items.count, sizeof *mine, err);
    const tsr_value **given = tsr_arena_array(s->scratch->arena, 2 * s->items.count, sizeof *given, err);
    if (!mine || !given) return TSR_E_NOMEM;
    for (size_t i = 0; i < s->items.count; i++) {
        if (!is_spread(s, i)) continue;
        mine[count] = given[count] = tsr_value_str(s->scratch->arena, s->items.items[i].fqn, err);
        if (!mine[count]) return TSR_E_NOMEM;
        TSR_TRY(placeholder(s, &s->items.items[i], s->dtypes[i], &mine[count + 1], err));
        given[count + 1] = s->values[i];
        count += 2;
    }
    *local = tsr_value_items(s->scratch->arena, TSR_VALUE_DICT, mine, count, err);
    *full = *local && has ? tsr_value_items(s->scratch->arena, TSR_VALUE_DICT, given, count, err) : NULL;
    return *local && (*full || !has) ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status spread_units(setting *s, tsr_error *err)
{
    const bool broadcast = s->options->broadcast_from_rank0, has = !broadcast || s->comm->rank == 0;
    const tsr_broadcast_options options = {.strict = true};
    const tsr_value *local = NULL, *full = NULL;
    if (!s->dtypes) TSR_TRY(share_dtypes(s, err));
    TSR_TRY(tsr_comm_agree(s->comm, list_spread(s, has, &local, &full, err), err));
    if (broadcast) TSR_TRY(tsr_state_dict_broadcast(full, local, s->comm, &options, s->scratch, err));
    else TSR_TRY(tsr_comm_agree(s->comm, tsr_state_dict_distribute(full, local, s->scratch, err), err));
    const tsr_value *root = tsr_state_dict_root(s->scratch);
    for (size_t i = 0, at = 0; i < s->items.count; i++)
        if (is_spread(s, i)) s->values[i] = root->items[2 * at++ + 1];
    return TSR_OK;
}

/* Checks that all ranks have models like rank 0's. A broadcast writes into the models as it arrives, and until then only
 * rank 0 has seen the state, which it checked against its own model. Units cast what they load, so with units the dtypes
 * of the state are compared instead of the models'. */
static tsr_status check_alike(setting *s, tsr_error *err)
{
    const tsr_value *names = NULL, *local = NULL, *none;
    if (s->bound) {
        names = matched_dict(s, MATCHED_NAMES, false, err);
        TSR_TRY(tsr_comm_agree(s->comm, names ? TSR_OK : TSR_E_NOMEM, err));
        TSR_TRY(tsr_full_agree(names, s->comm, s->host, s->passing, err));
        TSR_TRY(share_dtypes(s, err));
        TSR_TRY(tsr_comm_agree(s->comm, list_spread(s, false, &local, &none, err), err));
    } else {
        local = matched_dict(s, MATCHED_LOCAL, false, err);
        TSR_TRY(tsr_comm_agree(s->comm, local ? TSR_OK : TSR_E_NOMEM, err));
    }
    return tsr_full_agree(local, s->comm, s->host, s->passing, err);
}

/* Checks what the units will load, before anything is written. After a broadcast, the values already have the model's
 * layout. */
static tsr_status check_units(setting *s, tsr_error *err)
{
    if (s->options->full_state_dict) TSR_TRY(spread_units(s, err));
    const tsr_value *state = matched_dict(s, MATCHED_GIVEN, true, err);
    TSR_TRY(tsr_comm_agree(s->comm, state ? TSR_OK : TSR_E_NOMEM, err));
    s->loading = (tsr_fsdp_loading){.model = s->bound->units, .state = state, .arena = s->passing};
    return tsr_fsdp_load_check(&s->loading, err);
}

/* ---- tensor by tensor ---- */

static bool same_memory(const tsr_tensor *a, const tsr_tensor *b)
{
    if (a->spread != TSR_IN_BOXES) return a->data == b->data;
    return a->part_count == 0 || a->parts[0].data == b->parts[0].data;
}

static tsr_status write_item(setting *s, const tsr_model_item *item, const tsr_value *value, tsr_error *err)
{
    const tsr_tensor *given = tsr_tensor_of(value);
    if (!item->tensor) return s->model->set_extra(s->model->ctx, item->raw, value, err);
    if (same_memory(given, item->tensor)) return TSR_OK;
    TSR_TRY(tsr_tensor_copy(given, item->tensor, s->passing, err));
    TSR_TRY(tsr_device_wait(given->device, err));
    return tsr_device_wait(item->tensor->device, err);
}

static tsr_status write_all(setting *s, tsr_error *err)
{
    tsr_status status = tsr_comm_agree(s->comm, give_memory(s, err), err);
    if (status == TSR_OK && s->options->full_state_dict) {
        status = spread_full(s, err);
        if (!s->options->broadcast_from_rank0) status = tsr_comm_agree(s->comm, status, err);
    } else if (status == TSR_OK && s->any_moves) {
        status = tsr_redistribute(s->comm, s->moves, s->move_count, 0, s->host, err);
    }
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < s->items.count && status == TSR_OK; i++) {
        if (!s->matched[i]) continue;
        status = write_item(s, &s->items.items[i], s->values[i], err);
        if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(s->items.items[i].fqn));
    }
    return tsr_comm_agree(s->comm, status, err);
}

/* ---- the whole call ---- */

/* Checks the options, lists the model's items and matches names, before the ranks compare their results. */
static tsr_status prepare(setting *s, bool has, tsr_error *err)
{
    TSR_TRY(tsr_state_options_check(s->options, 0, false, err));
    TSR_FAIL_IF(has && (!s->state || s->state->kind != TSR_VALUE_DICT), err, TSR_E_USAGE, "the model state is not a dict");
    if (!has) s->state = NULL;
    else TSR_TRY(tsr_model_verify(s->options, s->state, false, s->passing, err));
    const tsr_fsdp_bound given = {.model = s->model, .host = s->host, .arena = s->passing};
    TSR_TRY(tsr_model_items_open(&given, s->comm, s->options, &s->bound, &s->items, err));
    s->values = tsr_arena_array(s->passing, s->items.count, sizeof *s->values, err);
    s->matched = tsr_arena_array(s->passing, s->items.count, sizeof *s->matched, err);
    if (!s->values || !s->matched) return TSR_E_NOMEM;
    TSR_TRY(tsr_state_dict_new(s->host, &s->scratch, err));
    return has ? match_but_frozen(s, err) : TSR_OK;
}

static tsr_status check_model(setting *s, tsr_error *err)
{
    const bool broadcast = s->options->broadcast_from_rank0, has = !broadcast || s->comm->rank == 0;
    const tsr_status status = s->passing ? prepare(s, has, err) : TSR_E_NOMEM;
    TSR_TRY(tsr_options_agree(s->comm, "set_model_state_dict: options", s->options, 0, status, err));
    if (!broadcast) {
        uint64_t given = tsr_value_pairs(s->state);
        TSR_TRY(s->comm->largest(s->comm, &given, err));
        if (given == 0) {
            *s->unmatched = (tsr_unmatched_keys){0};
            s->nothing = true;
            return TSR_OK;
        }
    } else {
        TSR_TRY(share_unmatched(s, err));
    }
    TSR_TRY(tsr_comm_agree(s->comm, check_all(s, err), err));
    if (broadcast) return check_alike(s, err);
    if (s->bound) return check_units(s, err);
    return s->options->full_state_dict ? TSR_OK : find_moves(s, err);
}

/* Loads the state that was checked. Collective. */
static tsr_status setting_write(setting *s, tsr_error *err)
{
    if (s->nothing) return TSR_OK;
    if (!s->bound) return write_all(s, err);
    if (s->options->broadcast_from_rank0) TSR_TRY(check_units(s, err)); /* not earlier: it needs memory */
    return tsr_fsdp_load_write(&s->loading, err);
}

/* Checks everything that can be wrong, and changes nothing in the model. Collective, with the same status on all ranks.
 * `s` must be closed with setting_close whatever this returns. It borrows `model`, `state` and what `call` points to. */
static tsr_status setting_open(setting *s, const tsr_model *model, const tsr_value *state, const tsr_state_call *call,
                               tsr_error *err)
{
    *s = (setting){.model = model, .host = call->host, .state = state};
    TSR_TRY(tsr_call_open(&s->call, call, call->host, err));
    s->options = &s->call.options;
    s->comm = s->call.given.comm;
    s->passing = tsr_arena_new(call->host->allocator, 0, err);
    s->arena = s->call.given.arena;
    s->unmatched = s->call.given.unmatched ? s->call.given.unmatched : &s->own;
    *s->unmatched = (tsr_unmatched_keys){0};
    return check_model(s, err);
}

static void setting_close(setting *s)
{
    tsr_state_dict_free(s->scratch);
    tsr_model_items_free(&s->items);
    tsr_fsdp_unbind(s->bound);
    tsr_arena_free(s->passing);
    tsr_call_close(&s->call);
}

tsr_status tsr_set_model_state_dict(const tsr_model *model, const tsr_value *state, const tsr_state_call *call,
                                    tsr_error *err)
{
    setting s;
    tsr_status status = setting_open(&s, model, state, call, err);
    if (status == TSR_OK) status = setting_write(&s, err);
    setting_close(&s);
    return status;
}

tsr_status tsr_set_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_value *model_state,
                              const tsr_value *optimizer_state, const tsr_state_call *call, tsr_error *err)
{
    uint64_t given = model_state ? model_state->count : 0;
    if (call->comm) TSR_TRY(call->comm->largest(call->comm, &given, err));
    if (!optimizers.count) return tsr_set_model_state_dict(model, model_state, call, err);
    if (given == 0) return tsr_set_optimizer_state_dict(model, optimizers, optimizer_state, call, err);
    setting s;
    tsr_status status = setting_open(&s, model, model_state, call, err);
    if (status == TSR_OK) status = tsr_set_optimizer_state_dict(model, optimizers, optimizer_state, call, err);
    if (status == TSR_OK) status = setting_write(&s, err);
    setting_close(&s);
    return status;
}
