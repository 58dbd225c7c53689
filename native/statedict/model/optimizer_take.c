/* See optimizer_take.h. */
#include "statedict/model/optimizer_take.h"

#include "statedict/tensor/convert_tensors.h"
#include "statedict/tensor/path.h"
#include "statedict/tensor/state_dict.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

/* ---- types ---- */

tsr_taking tsr_taking_below(const tsr_taking *taking, const tsr_value *key)
{
    tsr_taking below = *taking;
    below.is_step = key && key->kind == TSR_VALUE_STR && tsr_str_equal(key->text, TSR_STR("step"));
    return below;
}

static tsr_dtype wanted_dtype(const tsr_taking *t, tsr_dtype given, const tsr_tensor *there)
{
    if (t->in_place && there) given = there->entry.dtype;
    if (!t->param) return given;
    if (t->is_step) return t->step_moves ? TSR_FLOAT32 : given;
    return tsr_dtype_describe(t->param->entry.dtype)->kind == TSR_CLASS_FLOAT ? t->param->entry.dtype : given;
}

tsr_status tsr_optimizer_check_cast(const tsr_taking *taking, const tsr_tensor *given, const tsr_tensor *there,
                                    tsr_error *err)
{
    const tsr_dtype from = given->entry.dtype, to = wanted_dtype(taking, from, there);
    TSR_FAIL_IF(!tsr_convert_possible(from, to), err, TSR_E_UNSUPPORTED,
                "%s in the state dict, which is not cast to the %s's %s", tsr_dtype_describe(from)->name,
                taking->in_place && there ? "state" : "parameter", tsr_dtype_describe(to)->name);
    return TSR_OK;
}

/* ---- memory ---- */

static tsr_str address(void *const *data)
{
    return (tsr_str){(const char *)data, sizeof *data};
}

static tsr_status lend_tensor(const tsr_tensor *tensor, tsr_map *lent, tsr_error *err)
{
    if (tensor->spread != TSR_IN_BOXES) return tsr_map_put(lent, address(&tensor->data), 1, NULL, NULL, err);
    for (uint32_t i = 0; i < tensor->part_count; i++)
        TSR_TRY(tsr_map_put(lent, address(&tensor->parts[i].data), 1, NULL, NULL, err));
    return TSR_OK;
}

tsr_status tsr_optimizer_lend(const tsr_value *value, tsr_map *lent, tsr_error *err)
{
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (tensor) return lend_tensor(tensor, lent, err);
    for (size_t i = 0; i < value->count; i++) TSR_TRY(tsr_optimizer_lend(value->items[i], lent, err));
    return TSR_OK;
}

/* A state dict may borrow the optimizer's own memory under another name. Writing there would change values that have yet
 * to be loaded. */
static bool is_lent(const tsr_taking *t, const tsr_tensor *from, const tsr_tensor *to)
{
    const bool boxes = to->spread == TSR_IN_BOXES;
    if (!t->lent) return false;
    if (!boxes) return from->data != to->data && tsr_map_get(t->lent, address(&to->data), 0);
    for (uint32_t i = 0; i < to->part_count; i++)
        if (from->parts[i].data != to->parts[i].data && tsr_map_get(t->lent, address(&to->parts[i].data), 0)) return true;
    return false;
}

static const tsr_value *take_tensor(const tsr_taking *t, const tsr_value *given, const tsr_value *there, tsr_error *err)
{
    const tsr_tensor *from = tsr_tensor_of(given), *to = there ? tsr_tensor_of(there) : NULL;
    const tsr_dtype dtype = wanted_dtype(t, from->entry.dtype, to);
    tsr_tensor like = *from;
    like.entry.dtype = dtype;
    if (given == there && from->entry.dtype == dtype) return there;
    const bool fits = to && tsr_tensor_is_like(&like, to, true) && !is_lent(t, from, to);
    if (t->param && (!t->is_step || t->step_moves)) like.device = t->param->device;
    if (!fits && tsr_state_dict_allocate(t->memory, &like, &there, err) != TSR_OK) return NULL;
    return tsr_tensor_convert(from, tsr_tensor_of(there), t->passing, err) == TSR_OK ? there : NULL;
}

/* ---- trees ---- */

const tsr_value *tsr_optimizer_take(const tsr_taking *t, const tsr_value *given, const tsr_value *there, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(t->memory);
    if (given->kind == TSR_VALUE_TENSOR) return take_tensor(t, given, there, err);
    tsr_value *copy = tsr_value_new(arena, given->kind, err);
    const tsr_value **items = tsr_arena_array(arena, given->count, sizeof *items, err);
    if (!copy || !items) return NULL;
    *copy = *given;
    copy->items = items;
    if (given->text.data) copy->text = tsr_arena_str(arena, given->text, err);
    if (given->text.data && !copy->text.data) return NULL;
    const bool dict = given->kind == TSR_VALUE_DICT, into = dict && there && there->kind == TSR_VALUE_DICT;
    for (size_t i = 0; i < given->count; i++) {
        const tsr_value *inside = into && i % 2 ? tsr_dict_find(there, given->items[i - 1], i / 2) : NULL;
        const tsr_taking below = tsr_taking_below(t, dict && i % 2 ? given->items[i - 1] : NULL);
        if (!(items[i] = tsr_optimizer_take(&below, given->items[i], inside, err))) return NULL;
    }
    return copy;
}
