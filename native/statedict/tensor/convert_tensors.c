/* See convert_tensors.h. */
#include "statedict/tensor/convert_tensors.h"

#include "statedict/tensor/state_dict.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/entries.h"

#define AT_ONCE 512u /* elements */

/* ---- elements ---- */

static bool is_integer(tsr_dtype dtype)
{
    return dtype == TSR_INT64 || dtype == TSR_INT32 || dtype == TSR_INT16 || dtype == TSR_INT8 || dtype == TSR_UINT8 ||
           dtype == TSR_BOOL;
}

bool tsr_convert_possible(tsr_dtype from, tsr_dtype to)
{
    return from == to || tsr_cast_possible(from, to) ||
           (is_integer(from) && tsr_dtype_describe(to)->kind == TSR_CLASS_FLOAT);
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

tsr_status tsr_tensor_convert(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *passing, tsr_error *err)
{
    if (from->entry.dtype == to->entry.dtype) {
        TSR_TRY(tsr_tensor_copy(from, to, passing, err));
        TSR_TRY(tsr_device_wait(from->device, err));
        return tsr_device_wait(to->device, err);
    }
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(from); i++) {
        void *source, *target;
        uint64_t bytes;
        TSR_TRY(tsr_tensor_buffer(to, i, passing, &target, &bytes, err));
        TSR_TRY(tsr_tensor_buffer(from, i, passing, &source, &bytes, err));
        TSR_TRY(cast_buffer(from, source, to, target, bytes, err));
    }
    return TSR_OK;
}

/* ---- broadcasting ---- */

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
        return tsr_raise(err, TSR_E_LIMIT, TSR_NO_POSITION, "the tensor is too large");
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

tsr_status tsr_tensor_copy_into(const tsr_tensor *from, const tsr_tensor *to, tsr_state_dict *out, bool *done,
                                tsr_error *err)
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
