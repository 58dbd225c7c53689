/* See convert_tensors.h. */
#include "live/tensor/convert_tensors.h"

#include <inttypes.h>

#include "live/tensor/state_dict.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/layout.h"

/* ---- compare tensors ---- */

/* Describes tensors in words, compares them, and copies between tensors with the same layout. */

static tsr_str shape_words(const tsr_entry *entry, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = tsr_arena_format(arena, err, "%s [", tsr_dtype_describe(entry->dtype)->name);
    for (uint32_t d = 0; d < entry->ndim && text.data; d++)
        text = tsr_arena_format(arena, err, "%.*s%s%" PRIu64, TSR_STR_ARG(text), d ? ", " : "", entry->shape[d]);
    return text.data ? tsr_arena_format(arena, err, "%.*s]", TSR_STR_ARG(text)) : text;
}

tsr_str tsr_tensor_words(const tsr_tensor *tensor, tsr_arena *arena, tsr_error *err)
{
    const tsr_str shape = shape_words(&tensor->entry, arena, err);
    if (!shape.data || tensor->spread == TSR_WHOLE) return shape;
    if (tensor->spread == TSR_IN_BOXES) return tsr_arena_format(arena, err, "%.*s in boxes", TSR_STR_ARG(shape));
    const tsr_str unnamed[TSR_MESH_MAX_DIMS] = {{NULL, 0}};
    tsr_mesh named = *tensor->mesh;
    if (!named.names) named.names = unnamed;
    const tsr_str mesh = tsr_mesh_text(&named, arena, err);
    const tsr_str how = tsr_placements_text(tensor->placements, tensor->mesh->dim_count, arena, err);
    if (!mesh.data || !how.data) return (tsr_str){NULL, 0};
    return tsr_arena_format(arena, err, "%.*s over %.*s: %.*s%s", TSR_STR_ARG(shape), TSR_STR_ARG(mesh), TSR_STR_ARG(how),
                            tensor->strided == TSR_STRIDED_DTENSOR ? " (left to right)" : "");
}

static bool same_dtype_and_shape(const tsr_entry *a, const tsr_entry *b)
{
    return a->dtype == b->dtype && tsr_entry_same_shape(a, b);
}

static bool same_mesh(const tsr_tensor *a, const tsr_tensor *b)
{
    const uint32_t count = a->mesh->dim_count;
    if (count != b->mesh->dim_count || a->mesh_rank != b->mesh_rank || a->strided != b->strided ||
        (count && memcmp(a->mesh->shape, b->mesh->shape, count * sizeof *a->mesh->shape) != 0))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const tsr_placement *p = &a->placements[i], *q = &b->placements[i];
        uint32_t d = UINT32_MAX, e = UINT32_MAX;
        tsr_placement_dim(p, a->entry.ndim, &d);
        tsr_placement_dim(q, b->entry.ndim, &e);
        if (p->kind != q->kind || d != e || (p->kind == TSR_STRIDED_SHARD && p->split_factor != q->split_factor))
            return false;
    }
    return true;
}

static bool same_parts(const tsr_tensor *a, const tsr_tensor *b)
{
    if (a->part_count != b->part_count) return false;
    for (uint32_t i = 0; i < a->part_count; i++)
        if (!tsr_box_equal((tsr_box){a->entry.ndim, a->parts[i].offsets, a->parts[i].sizes},
                           (tsr_box){b->entry.ndim, b->parts[i].offsets, b->parts[i].sizes}))
            return false;
    return true;
}

static bool same_distribution(const tsr_tensor *a, const tsr_tensor *b)
{
    if (a->spread != b->spread) return false;
    return a->spread == TSR_WHOLE || (a->spread == TSR_OVER_MESH ? same_mesh(a, b) : same_parts(a, b));
}

bool tsr_tensor_is_like(const tsr_tensor *a, const tsr_tensor *b, bool with_distribution)
{
    return same_dtype_and_shape(&a->entry, &b->entry) && (!with_distribution || same_distribution(a, b));
}

tsr_status tsr_tensor_same_place(const tsr_tensor *a, const tsr_tensor *b, const tsr_likeness *how, tsr_arena *arena,
                                 tsr_error *err)
{
    if (tsr_tensor_is_like(a, b, how->with_distribution)) return TSR_OK;
    const tsr_str x = tsr_tensor_words(a, arena, err), y = tsr_tensor_words(b, arena, err);
    if (!x.data || !y.data) return TSR_E_NOMEM;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "%.*s in %s, %.*s in %s%s", TSR_STR_ARG(x), how->a_name,
                     TSR_STR_ARG(y), how->b_name, tsr_str_equal(x, y) ? " (other boxes)" : "");
}

tsr_status tsr_device_wait(tsr_device *device, tsr_error *err)
{
    return device ? device->synchronize(device, err) : TSR_OK;
}

static tsr_status copy_bytes(tsr_device *from_device, const void *from, tsr_device *to_device, void *to, uint64_t bytes,
                             tsr_error *err)
{
    if (bytes == 0) return TSR_OK;
    if (from_device == to_device) {
        if (from_device) return from_device->within(from_device, to, from, bytes, err);
        memmove(to, from, (size_t)bytes);
        return TSR_OK;
    }
    if (!to_device) return from_device->to_host(from_device, to, from, bytes, err);
    if (!from_device) return to_device->from_host(to_device, to, from, bytes, err);
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "there is no copy from one device to another");
}

tsr_status tsr_device_upload(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    TSR_TRY(copy_bytes(NULL, from, device, to, bytes, err));
    return bytes ? tsr_device_wait(device, err) : TSR_OK;
}

tsr_status tsr_device_download(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    TSR_TRY(copy_bytes(device, from, NULL, to, bytes, err));
    return bytes ? tsr_device_wait(device, err) : TSR_OK;
}

tsr_status tsr_tensor_copy(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *arena, tsr_error *err)
{
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(from); i++) {
        void *source, *target;
        uint64_t bytes;
        TSR_TRY(tsr_tensor_buffer(from, i, arena, &source, &bytes, err));
        TSR_TRY(tsr_tensor_buffer(to, i, arena, &target, &bytes, err));
        TSR_TRY(copy_bytes(from->device, source, to->device, target, bytes, err));
    }
    return TSR_OK;
}

/* ---- tensors ---- */

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
