/* Describes tensors in words, compares them, and copies between tensors with the same layout. */
#include "statedict/tensor/state_dict.h"

#include "tessera/sys/box_walk.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/layout.h"

#include <inttypes.h>

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
