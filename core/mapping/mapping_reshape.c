/* Reshapes boxes. Splitting a dim cuts each box into a few. Merging dims cuts a box at every index of a dim, if the box
 * covers only part of the dims inside it. */
#include "mapping/mapping_boxes.h"
#include "tessera/box.h"
#include "tessera/sys/box.h"
#include "tessera/sys/box_walk.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

static tsr_status add_failed(const tsr_box_list *list)
{
    return list->maker->left ? TSR_E_NOMEM : TSR_E_LIMIT;
}

static tsr_status set_shape(tsr_box_maker *maker, uint32_t ndim, tsr_mapped_tensor *out)
{
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM, maker->err, TSR_E_FORMAT, "'%.*s': %u dimensions; at most %u are allowed",
                TSR_STR_ARG(out->name), (unsigned)ndim, (unsigned)TSR_MAX_NDIM);
    out->ndim = ndim;
    out->shape = tsr_arena_array(maker->arena, ndim, sizeof *out->shape, maker->err);
    return out->shape ? TSR_OK : TSR_E_NOMEM;
}

/* Copies all dims except [dim, dim + count), which `replaced` dims take the place of. */
static void copy_others(tsr_source_box *box, const tsr_source_box *from, uint32_t old_ndim, uint32_t dim, uint32_t count,
                        uint32_t replaced)
{
    for (uint32_t d = 0; d < old_ndim; d++) {
        if (d >= dim && d < dim + count) continue;
        const uint32_t at = d < dim ? d : d - count + replaced;
        box->offsets[at] = from->offsets[d];
        box->sizes[at] = from->sizes[d];
        box->strides[at] = from->strides[d];
    }
}

static tsr_status split_box(tsr_box_list *list, const tsr_source_box *from, uint32_t old_ndim, uint32_t dim,
                            const uint64_t *factors, uint32_t count)
{
    uint64_t offsets[2 * TSR_MAX_NDIM * TSR_MAX_NDIM], sizes[2 * TSR_MAX_NDIM * TSR_MAX_NDIM];
    const tsr_span range = {from->offsets[dim], from->sizes[dim]};
    const uint32_t boxes = tsr_range_boxes(count, factors, range, offsets, sizes);
    for (uint32_t b = 0; b < boxes; b++) {
        tsr_source_box *box = tsr_box_list_add(list, from);
        if (!box) return add_failed(list);
        copy_others(box, from, old_ndim, dim, 1, count);
        const uint64_t first = tsr_box_index((tsr_box){count, NULL, factors}, offsets + (size_t)b * count);
        box->base += (first - range.offset) * from->strides[dim];
        uint64_t step = from->strides[dim];
        for (uint32_t k = count; k-- > 0;) {
            box->offsets[dim + k] = offsets[(size_t)b * count + k];
            box->sizes[dim + k] = sizes[(size_t)b * count + k];
            box->strides[dim + k] = step;
            step *= factors[k];
        }
    }
    return TSR_OK;
}

tsr_status tsr_boxes_split_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, const uint64_t *factors,
                               uint32_t count, tsr_mapped_tensor *out)
{
    tsr_box_list list;
    tsr_status status = TSR_OK;
    const tsr_mapped_tensor old = *in;
    *out = old;
    TSR_TRY(set_shape(maker, old.ndim - 1 + count, out));
    for (uint32_t d = 0; d < out->ndim; d++)
        out->shape[d] = d < dim ? old.shape[d] : d < dim + count ? factors[d - dim] : old.shape[d - count + 1];
    tsr_box_list_open(&list, maker, out->ndim);
    for (size_t i = 0; i < old.box_count && status == TSR_OK; i++)
        status = split_box(&list, &old.boxes[i], old.ndim, dim, factors, count);
    return tsr_box_list_close(&list, status, out);
}

/* Returns how many of the last dims of [dim, dim + count) form one uninterrupted run of evenly spaced elements. */
static uint32_t run_dims(const tsr_mapped_tensor *tensor, const tsr_source_box *box, uint32_t dim, uint32_t count)
{
    uint32_t run = 1;
    bool full = true; /* the box covers all inner dims of the run completely */
    uint64_t elements = 1;
    for (uint32_t k = count; k-- > 1; run++) {
        const uint32_t inner = dim + k, outer = inner - 1;
        full = full && box->sizes[inner] == tensor->shape[inner];
        elements *= box->sizes[inner];
        const bool even = box->strides[outer] == elements * box->strides[dim + count - 1];
        if (box->sizes[outer] != 1 && !(full && even)) break;
    }
    return run;
}

static tsr_status merge_box(tsr_box_list *list, const tsr_mapped_tensor *old, const tsr_source_box *from, uint32_t dim,
                            uint32_t count)
{
    const uint32_t loops = count - run_dims(old, from, dim, count);
    uint64_t at[TSR_MAX_NDIM] = {0};
    for (;;) {
        tsr_source_box *box = tsr_box_list_add(list, from);
        if (!box) return add_failed(list);
        copy_others(box, from, old->ndim, dim, count, 1);
        box->sizes[dim] = 1;
        for (uint32_t k = 0; k < count; k++) {
            const uint32_t d = dim + k;
            box->offsets[dim] = box->offsets[dim] * old->shape[d] + from->offsets[d] + (k < loops ? at[k] : 0);
            if (k < loops) box->base += at[k] * from->strides[d];
            else box->sizes[dim] *= from->sizes[d];
        }
        /* The stride of a dim of size 1 does not matter. */
        for (uint32_t k = loops; k < count; k++)
            if (from->sizes[dim + k] > 1) box->strides[dim] = from->strides[dim + k];
        uint32_t k = loops;
        while (k > 0 && ++at[k - 1] == from->sizes[dim + k - 1]) at[--k] = 0;
        if (k == 0) return TSR_OK;
    }
}

tsr_status tsr_boxes_merge_dims(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, uint32_t count,
                                tsr_mapped_tensor *out)
{
    tsr_box_list list;
    tsr_status status = TSR_OK;
    const tsr_mapped_tensor old = *in;
    *out = old;
    TSR_TRY(set_shape(maker, old.ndim - count + 1, out));
    for (uint32_t d = 0; d < out->ndim; d++)
        out->shape[d] = d < dim ? old.shape[d] : d == dim ? 1 : old.shape[d + count - 1];
    for (uint32_t k = 0; k < count; k++) out->shape[dim] *= old.shape[dim + k];
    tsr_box_list_open(&list, maker, out->ndim);
    for (size_t i = 0; i < old.box_count && status == TSR_OK; i++) {
        if (!tsr_box_is_empty((tsr_box){old.ndim, old.boxes[i].offsets, old.boxes[i].sizes}))
            status = merge_box(&list, &old, &old.boxes[i], dim, count);
    }
    return tsr_box_list_close(&list, status, out);
}

/* Finds the smallest number of leading dims of both shapes whose products are equal. */
static void next_group(const uint64_t *from, uint32_t from_ndim, const uint64_t *to, uint32_t to_ndim, uint32_t *from_count,
                       uint32_t *to_count)
{
    uint64_t a = 1, b = 1;
    *from_count = *to_count = 0;
    if (from_ndim) a = from[(*from_count)++];
    if (to_ndim) b = to[(*to_count)++];
    while (a != b) {
        if (a < b ? *from_count < from_ndim : *to_count == to_ndim) a *= from[(*from_count)++];
        else b *= to[(*to_count)++];
    }
    /* Sizes of 1 at the end belong to the last group. */
    while (*from_count == from_ndim && *to_count < to_ndim && to[*to_count] == 1) ++*to_count;
    while (*to_count == to_ndim && *from_count < from_ndim && from[*from_count] == 1) ++*from_count;
}

/* The tensor has no elements, so only the shape changes. */
static tsr_status reshape_empty(tsr_box_maker *maker, const uint64_t *shape, uint32_t ndim, tsr_mapped_tensor *out)
{
    TSR_TRY(set_shape(maker, ndim, out));
    memcpy(out->shape, shape, ndim * sizeof *shape);
    out->box_count = 0;
    return TSR_OK;
}

tsr_status tsr_boxes_reshape(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint64_t *shape, uint32_t ndim,
                             tsr_mapped_tensor *out)
{
    uint64_t before, after;
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM || !tsr_box_volume((tsr_box){in->ndim, NULL, in->shape}, &before) ||
                    !tsr_box_volume((tsr_box){ndim, NULL, shape}, &after) || before != after,
                maker->err, TSR_E_FORMAT, "'%.*s' %s does not have as many elements as the shape of the step 'reshape'",
                TSR_STR_ARG(in->name), tsr_shape_of(in).text);
    *out = *in;
    if (before == 0) return reshape_empty(maker, shape, ndim, out);
    if (out->ndim == 0) TSR_TRY(tsr_boxes_add_dim(maker, out, 0, out));
    for (uint32_t dim = 0, done = 0; dim < out->ndim;) {
        uint32_t from_count, to_count;
        next_group(out->shape + dim, out->ndim - dim, shape + done, ndim - done, &from_count, &to_count);
        if (from_count > 1) TSR_TRY(tsr_boxes_merge_dims(maker, out, dim, from_count, out));
        if (to_count > 1) TSR_TRY(tsr_boxes_split_dim(maker, out, dim, shape + done, to_count, out));
        if (to_count == 0) TSR_TRY(tsr_boxes_remove_dim(maker, out, dim, out));
        dim += to_count;
        done += to_count;
    }
    return TSR_OK;
}
