/* See optimizer_take.h. */
#include "statedict/model/optimizer_take.h"

#include "statedict/tensor/path.h"
#include "statedict/tensor/state_dict.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

#define AT_ONCE 512u /* elements */

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

static bool is_integer(tsr_dtype dtype)
{
    return dtype == TSR_INT64 || dtype == TSR_INT32 || dtype == TSR_INT16 || dtype == TSR_INT8 || dtype == TSR_UINT8 ||
           dtype == TSR_BOOL;
}

tsr_status tsr_optimizer_check_cast(const tsr_taking *taking, const tsr_tensor *given, const tsr_tensor *there,
                                    tsr_error *err)
{
    const tsr_dtype from = given->entry.dtype, to = wanted_dtype(taking, from, there);
    const bool to_float = tsr_dtype_describe(to)->kind == TSR_CLASS_FLOAT;
    TSR_FAIL_IF(from != to && !tsr_cast_possible(from, to) && !(is_integer(from) && to_float), err, TSR_E_UNSUPPORTED,
                "%s in the state dict, which is not cast to the %s's %s", tsr_dtype_describe(from)->name,
                taking->in_place && there ? "state" : "parameter", tsr_dtype_describe(to)->name);
    return TSR_OK;
}

static int64_t integer_at(tsr_dtype dtype, const uint8_t *element)
{
    int64_t wide;
    int32_t middle;
    int16_t narrow;
    switch (dtype) {
    case TSR_INT64: memcpy(&wide, element, sizeof wide); return wide;
    case TSR_INT32: memcpy(&middle, element, sizeof middle); return middle;
    case TSR_INT16: memcpy(&narrow, element, sizeof narrow); return narrow;
    case TSR_INT8: return (int8_t)*element;
    default: return *element;
    }
}

/* PyTorch casts to 16- and 8-bit types by way of float32. */
static void cast_elements(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    float floats[AT_ONCE];
    double doubles[AT_ONCE];
    const bool wide = to == TSR_FLOAT64;
    if (!is_integer(from) && (wide || to == TSR_FLOAT32 || from == TSR_FLOAT32)) {
        tsr_cast(from, to, elements, count, out);
        return;
    }
    if (!is_integer(from)) tsr_cast(from, TSR_FLOAT32, elements, count, (uint8_t *)floats);
    for (size_t i = 0; is_integer(from) && i < count; i++) {
        const int64_t number = integer_at(from, elements + i * tsr_dtype_size(from));
        if (wide) doubles[i] = (double)number;
        else floats[i] = (float)number;
    }
    if (wide) memcpy(out, doubles, count * sizeof *doubles);
    else if (to == TSR_FLOAT32) memcpy(out, floats, count * sizeof *floats);
    else tsr_cast(TSR_FLOAT32, to, (const uint8_t *)floats, count, out);
}

/* ---- tensors ---- */

static tsr_status cast_buffer(const tsr_tensor *from, const uint8_t *source, const tsr_tensor *to, uint8_t *target,
                              uint64_t bytes, tsr_error *err)
{
    uint8_t in[AT_ONCE * sizeof(double)], out[AT_ONCE * sizeof(double)];
    const uint32_t in_size = tsr_dtype_size(from->entry.dtype), out_size = tsr_dtype_size(to->entry.dtype);
    for (uint64_t at = 0, count = bytes / in_size; at < count; at += AT_ONCE) {
        const size_t some = count - at < AT_ONCE ? (size_t)(count - at) : AT_ONCE;
        TSR_TRY(tsr_device_download(from->device, in, source + at * in_size, some * in_size, err));
        cast_elements(from->entry.dtype, to->entry.dtype, in, some, out);
        TSR_TRY(tsr_device_upload(to->device, target + at * out_size, out, some * out_size, err));
    }
    return TSR_OK;
}

static tsr_status fill(const tsr_taking *t, const tsr_tensor *from, const tsr_tensor *to, tsr_error *err)
{
    if (from->entry.dtype == to->entry.dtype) {
        TSR_TRY(tsr_tensor_copy(from, to, t->passing, err));
        TSR_TRY(tsr_device_wait(from->device, err));
        return tsr_device_wait(to->device, err);
    }
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(from); i++) {
        void *source, *target;
        uint64_t bytes;
        TSR_TRY(tsr_tensor_buffer(to, i, t->passing, &target, &bytes, err));
        TSR_TRY(tsr_tensor_buffer(from, i, t->passing, &source, &bytes, err));
        TSR_TRY(cast_buffer(from, source, to, target, bytes, err));
    }
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
    return fill(t, from, tsr_tensor_of(there), err) == TSR_OK ? there : NULL;
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
