/* PyTorch's _distribute_state_dict: every rank has the full state and keeps its part. */
#include "statedict/ops/state_full.h"
#include "statedict/tensor/pack.h"
#include "statedict/tensor/path.h"
#include "tessera/sys/statedict.h"

tsr_status tsr_full_check(const tsr_value *full, const tsr_value *local, tsr_error *err)
{
    TSR_FAIL_IF(full && full->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the full state is a %s; expected a dict",
                tsr_python_type(full));
    TSR_FAIL_IF(local->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the local state is a %s; expected a dict",
                tsr_python_type(local));
    return TSR_OK;
}

tsr_status tsr_full_target(const tsr_tensor *full, const tsr_tensor *local, bool offload, tsr_state_dict *out,
                           const tsr_tensor **target, tsr_error *err)
{
    tsr_tensor *copy, like = *local;
    *target = local;
    like.entry.dtype = full->entry.dtype; /* if the dtype differs, the part is a new tensor */
    TSR_TRY(
        tsr_tensor_same_place(full, &like, &(tsr_likeness){"the full state", "the local state", false}, out->arena, err));
    if (!local->meta && local->entry.dtype == full->entry.dtype) return TSR_OK;
    TSR_TRY(tsr_state_dict_copy_tensor(out, &like, &copy, err));
    if (offload) copy->device = NULL;
    *target = copy;
    return tsr_state_dict_give_memory(out, copy, NULL, err);
}

/* Copies this rank's part of a whole tensor, which is on the same rank. */
static tsr_status cut(const tsr_tensor *full, const tsr_tensor *target, tsr_arena *arena, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count;
    TSR_TRY(tsr_tensor_pieces(target, arena, &pieces, &count, err));
    tsr_link from = {.ndim = full->entry.ndim,
                     .itemsize = tsr_dtype_size(full->entry.dtype),
                     .buffer_sizes = full->entry.shape,
                     .data = full->data,
                     .device = full->device};
    tsr_link to = from;
    to.device = target->device;
    for (uint64_t i = 0; i < count; i++) {
        from.offsets = pieces[i].offsets;
        to.offsets = pieces[i].local_offsets;
        from.sizes = to.sizes = pieces[i].sizes;
        to.buffer_sizes = pieces[i].buffer_sizes;
        to.data = pieces[i].data;
        TSR_FAIL_IF(!from.data || !to.data, err, TSR_E_USAGE, "the tensor has no memory");
        TSR_TRY(tsr_link_copy(&from, &to, err));
    }
    return TSR_OK;
}

/* Makes the value of one key in the result. *result is NULL if the key is omitted. */
static tsr_status distribute_one(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_arena *passing,
                                 const tsr_value **result, tsr_error *err)
{
    const tsr_tensor *whole = tsr_tensor_of(full), *mine = local ? tsr_tensor_of(local) : NULL, *target;
    *result = full;
    if (!whole) return TSR_OK;
    TSR_FAIL_IF(whole->spread != TSR_WHOLE, err, TSR_E_UNSUPPORTED, "the tensor is distributed; expected a whole tensor");
    if (whole->entry.ndim == 0) return TSR_OK;
    if (!local || local->kind == TSR_VALUE_NONE) {
        *result = local;
        return TSR_OK;
    }
    if (!mine || mine->spread == TSR_WHOLE) return TSR_OK;
    TSR_TRY(tsr_full_target(whole, mine, false, out, &target, err));
    tsr_status status = cut(whole, target, passing, err);
    const tsr_status waited[2] = {tsr_device_wait(whole->device, err), tsr_device_wait(target->device, err)};
    for (int i = 0; i < 2; i++) status = status == TSR_OK ? waited[i] : status;
    *result = target == mine ? local : tsr_state_dict_leaf(out, target, err);
    return status == TSR_OK && !*result ? TSR_E_NOMEM : status;
}

static tsr_status put_pair(tsr_vec *pairs, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(pairs, 2, err));
    *(const tsr_value **)tsr_vec_push(pairs, err) = key;
    *(const tsr_value **)tsr_vec_push(pairs, err) = value;
    return TSR_OK;
}

/* Orders keys as Python does: first those of the local dict, then the new ones of the full dict. */
static tsr_status distribute(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_arena *passing,
                             tsr_vec *pairs, tsr_error *err)
{
    for (size_t i = 0; i < local->count + full->count; i += 2) {
        const bool own = i < local->count;
        const tsr_value *key = own ? local->items[i] : full->items[i - local->count], *value;
        const tsr_step step = {.key = key, .depth = 1};
        TSR_TRY(tsr_step_check(&step, out->host, passing, err));
        const tsr_value *mine = own ? local->items[i + 1] : tsr_dict_find(local, key, i / 2);
        const tsr_value *whole = own ? tsr_dict_find(full, key, i / 2) : full->items[i - local->count + 1];
        if (!own && mine) continue;
        value = mine;
        if (whole) {
            const tsr_status status = distribute_one(whole, mine, out, passing, &value, err);
            if (status != TSR_OK) return tsr_step_context(&step, passing, status, err);
        }
        if (value) TSR_TRY(put_pair(pairs, key, value, err));
    }
    const tsr_value **items = tsr_arena_array(out->arena, pairs->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    if (pairs->count) memcpy(items, pairs->items, pairs->count * sizeof *items);
    tsr_value *root = tsr_value_items(out->arena, TSR_VALUE_DICT, items, pairs->count, err);
    if (root) tsr_state_dict_set_root(out, root);
    return root ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_state_dict_distribute(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_error *err)
{
    TSR_TRY(tsr_full_check(full, local, err));
    tsr_vec pairs = tsr_vec_of(out->host->allocator, sizeof(const tsr_value *));
    tsr_arena *passing = tsr_arena_new(out->host->allocator, 0, err);
    const tsr_status status = passing ? distribute(full, local, out, passing, &pairs, err) : TSR_E_NOMEM;
    tsr_vec_free(&pairs);
    tsr_arena_free(passing);
    return status;
}
