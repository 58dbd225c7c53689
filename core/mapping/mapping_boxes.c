/* Reshapes boxes. Splitting a dim cuts each box into a few. Merging dims cuts a box at every index of a dim, if the box
 * covers only part of the dims inside it. */
#include "mapping/mapping_rules.h"

#include "base/line.h"
#include "tessera/box.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

/* ---- boxes ---- */

tsr_shape_text tsr_shape_of(const tsr_mapped_tensor *tensor)
{
    tsr_shape_text out;
    tsr_line line = tsr_line_on(out.text, sizeof out.text);
    tsr_line_format(&line, "[");
    for (uint32_t d = 0; d < tensor->ndim; d++)
        tsr_line_format(&line, "%s%llu", d ? ", " : "", (unsigned long long)tensor->shape[d]);
    tsr_line_format(&line, "]");
    return out;
}

static void box_list_open(tsr_box_list *list, tsr_box_maker *maker, uint32_t ndim)
{
    *list = (tsr_box_list){.maker = maker, .boxes = tsr_vec_of(maker->allocator, sizeof(tsr_source_box)), .ndim = ndim};
}

/* Adds a copy of `like` with its own offsets, sizes and strides for list->ndim dims, all 0. Returns NULL if there is no
 * memory, or if there would be too many boxes. */
static tsr_source_box *box_list_add(tsr_box_list *list, const tsr_source_box *like)
{
    tsr_box_maker *maker = list->maker;
    if (!maker->left) {
        tsr_fail(maker->err, TSR_E_LIMIT, "the map cuts the tensors into too many boxes");
        return NULL;
    }
    maker->left--;
    tsr_source_box *box = tsr_vec_push(&list->boxes, maker->err);
    uint64_t *numbers = box ? tsr_arena_array(maker->arena, list->ndim * (size_t)3, sizeof *numbers, maker->err) : NULL;
    if (!numbers) return NULL;
    *box = *like;
    box->whole = false;
    box->offsets = numbers;
    box->sizes = numbers + list->ndim;
    box->strides = numbers + 2 * (size_t)list->ndim;
    return box;
}

/* Frees the list. If `status` is TSR_OK, `out` gets the boxes. Returns `status`, or TSR_E_NOMEM. */
static tsr_status box_list_close(tsr_box_list *list, tsr_status status, tsr_mapped_tensor *out)
{
    tsr_source_box *boxes =
        status == TSR_OK ? tsr_arena_array(list->maker->arena, list->boxes.count, sizeof *boxes, list->maker->err) : NULL;
    if (status == TSR_OK && !boxes) status = TSR_E_NOMEM;
    if (status == TSR_OK && list->boxes.count) memcpy(boxes, list->boxes.items, list->boxes.count * sizeof *boxes);
    out->boxes = boxes;
    out->box_count = list->boxes.count;
    tsr_vec_free(&list->boxes);
    return status;
}

/* Returns the reason why box_list_add failed. */
static tsr_status add_failed(const tsr_box_list *list)
{
    return list->maker->left ? TSR_E_NOMEM : TSR_E_LIMIT;
}

static tsr_status add_chunks(tsr_box_list *list, const tsr_entry *entry, bool replicas)
{
    const tsr_chunk *chunks = replicas ? entry->replicas : entry->chunks;
    const uint64_t count = replicas ? entry->replica_count : entry->chunk_count;
    for (uint64_t i = 0; i < count; i++) {
        const tsr_source_box like = {.entry = entry, .chunk = &chunks[i], .replica = replicas};
        tsr_source_box *box = box_list_add(list, &like);
        if (!box) return add_failed(list);
        box->whole = true;
        uint64_t step = 1;
        for (uint32_t d = entry->ndim; d-- > 0;) {
            box->offsets[d] = chunks[i].offsets[d];
            box->sizes[d] = chunks[i].sizes[d];
            box->strides[d] = step;
            step *= box->sizes[d];
        }
    }
    return TSR_OK;
}

/* Makes room for a shape of `ndim` sizes. */
static tsr_status new_shape(tsr_box_maker *maker, uint32_t ndim, tsr_mapped_tensor *out)
{
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM, maker->err, TSR_E_FORMAT, "'%.*s': %u dimensions; at most %u are allowed",
                TSR_STR_ARG(out->name), (unsigned)ndim, (unsigned)TSR_MAX_NDIM);
    out->ndim = ndim;
    out->shape = tsr_arena_array(maker->arena, ndim, sizeof *out->shape, maker->err);
    return out->shape ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status set_shape(tsr_box_maker *maker, const uint64_t *shape, uint32_t ndim, tsr_mapped_tensor *out)
{
    TSR_TRY(new_shape(maker, ndim, out));
    if (ndim) memcpy(out->shape, shape, ndim * sizeof *shape);
    return TSR_OK;
}

tsr_status tsr_boxes_of_entry(tsr_box_maker *maker, const tsr_entry *entry, tsr_mapped_tensor *out)
{
    tsr_box_list list;
    *out = (tsr_mapped_tensor){.name = entry->fqn, .dtype = entry->dtype};
    TSR_TRY(set_shape(maker, entry->shape, entry->ndim, out));
    box_list_open(&list, maker, entry->ndim);
    tsr_status status = add_chunks(&list, entry, false);
    if (status == TSR_OK) status = add_chunks(&list, entry, true);
    return box_list_close(&list, status, out);
}

tsr_status tsr_boxes_of_file(tsr_box_maker *maker, uint32_t file, bool repeats, tsr_mapped_tensor *out)
{
    tsr_box_list list;
    box_list_open(&list, maker, out->ndim);
    const tsr_source_box like = {.file = file};
    tsr_source_box *box = box_list_add(&list, &like);
    uint64_t step = 1;
    for (uint32_t d = out->ndim; box && d-- > 0;) {
        box->sizes[d] = out->shape[d];
        box->strides[d] = repeats ? 0 : step;
        step *= out->shape[d];
    }
    return box_list_close(&list, box ? TSR_OK : add_failed(&list), out);
}

static void copy_numbers(tsr_source_box *to, const tsr_source_box *from, uint32_t ndim)
{
    if (!ndim) return;
    memcpy(to->offsets, from->offsets, ndim * sizeof *to->offsets);
    memcpy(to->sizes, from->sizes, ndim * sizeof *to->sizes);
    memcpy(to->strides, from->strides, ndim * sizeof *to->strides);
}

tsr_status tsr_boxes_slice(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_span range,
                           tsr_mapped_tensor *out)
{
    tsr_box_list list;
    tsr_status status = TSR_OK;
    const tsr_mapped_tensor whole = *in;
    *out = whole;
    TSR_TRY(set_shape(maker, whole.shape, whole.ndim, out));
    out->shape[dim] = range.size;
    box_list_open(&list, maker, whole.ndim);
    for (size_t i = 0; i < whole.box_count && status == TSR_OK; i++) {
        const tsr_source_box *old = &whole.boxes[i];
        const uint64_t begin = old->offsets[dim] > range.offset ? old->offsets[dim] : range.offset;
        const uint64_t old_end = old->offsets[dim] + old->sizes[dim], range_end = range.offset + range.size;
        const uint64_t end = old_end < range_end ? old_end : range_end;
        if (begin >= end) continue;
        tsr_source_box *box = box_list_add(&list, old);
        if (!box) status = add_failed(&list);
        if (!box) break;
        copy_numbers(box, old, whole.ndim);
        box->base += (begin - old->offsets[dim]) * old->strides[dim];
        box->offsets[dim] = begin - range.offset;
        box->sizes[dim] = end - begin;
        box->whole = old->whole && whole.shape[dim] == range.size;
    }
    return box_list_close(&list, status, out);
}

static tsr_status check_alike(tsr_box_maker *maker, const tsr_mapped_tensor *a, const tsr_mapped_tensor *b, uint32_t dim)
{
    bool same = a->ndim == b->ndim;
    for (uint32_t d = 0; same && d < a->ndim; d++) same = d == dim || a->shape[d] == b->shape[d];
    TSR_FAIL_IF(!same, maker->err, TSR_E_FORMAT,
                "'%.*s' %s and '%.*s' %s cannot be joined along dim %u, because other sizes differ", TSR_STR_ARG(a->name),
                tsr_shape_of(a).text, TSR_STR_ARG(b->name), tsr_shape_of(b).text, (unsigned)dim);
    TSR_FAIL_IF(a->dtype != b->dtype, maker->err, TSR_E_FORMAT, "'%.*s' is %s but '%.*s' is %s; add a cast step",
                TSR_STR_ARG(a->name), tsr_dtype_describe(a->dtype)->name, TSR_STR_ARG(b->name),
                tsr_dtype_describe(b->dtype)->name);
    return TSR_OK;
}

tsr_status tsr_boxes_concat(tsr_box_maker *maker, const tsr_mapped_tensor *in, size_t count, uint32_t dim,
                            tsr_mapped_tensor *out)
{
    tsr_box_list list;
    tsr_status status = TSR_OK;
    tsr_mapped_tensor joined = in[0];
    TSR_TRY(set_shape(maker, in[0].shape, in[0].ndim, &joined));
    joined.shape[dim] = 0;
    for (size_t t = 0; t < count; t++) TSR_TRY(check_alike(maker, &in[0], &in[t], dim));
    box_list_open(&list, maker, joined.ndim);
    for (size_t t = 0; t < count && status == TSR_OK; t++) {
        for (size_t i = 0; i < in[t].box_count && status == TSR_OK; i++) {
            tsr_source_box *box = box_list_add(&list, &in[t].boxes[i]);
            if (!box) status = add_failed(&list);
            if (!box) break;
            copy_numbers(box, &in[t].boxes[i], joined.ndim);
            box->offsets[dim] += joined.shape[dim];
        }
        joined.shape[dim] += in[t].shape[dim];
    }
    *out = joined;
    return box_list_close(&list, status, out);
}

/* Rearranges the dims: dim `d` of `out` is dim order[d] of `in`, or a new dim of size 1 if that is TSR_MAX_NDIM. */
static tsr_status rearrange(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint32_t *order, uint32_t ndim,
                            tsr_mapped_tensor *out)
{
    tsr_box_list list;
    tsr_status status = TSR_OK;
    const tsr_mapped_tensor old = *in;
    uint64_t shape[TSR_MAX_NDIM + 1];
    for (uint32_t d = 0; d < ndim; d++) shape[d] = order[d] == TSR_MAX_NDIM ? 1 : old.shape[order[d]];
    *out = old;
    TSR_TRY(set_shape(maker, shape, ndim, out));
    box_list_open(&list, maker, ndim);
    for (size_t i = 0; i < old.box_count && status == TSR_OK; i++) {
        const tsr_source_box *from = &old.boxes[i];
        tsr_source_box *box = box_list_add(&list, from);
        if (!box) status = add_failed(&list);
        for (uint32_t d = 0; box && d < ndim; d++) {
            const bool fresh = order[d] == TSR_MAX_NDIM;
            box->offsets[d] = fresh ? 0 : from->offsets[order[d]];
            box->sizes[d] = fresh ? 1 : from->sizes[order[d]];
            box->strides[d] = fresh ? 0 : from->strides[order[d]];
        }
    }
    return box_list_close(&list, status, out);
}

tsr_status tsr_boxes_transpose(tsr_box_maker *maker, const tsr_mapped_tensor *in, const uint32_t *order,
                               tsr_mapped_tensor *out)
{
    return rearrange(maker, in, order, in->ndim, out);
}

tsr_status tsr_boxes_add_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out)
{
    uint32_t order[TSR_MAX_NDIM + 1];
    for (uint32_t d = 0; d <= in->ndim; d++) order[d] = d < dim ? d : d == dim ? TSR_MAX_NDIM : d - 1;
    return rearrange(maker, in, order, in->ndim + 1, out);
}

tsr_status tsr_boxes_remove_dim(tsr_box_maker *maker, const tsr_mapped_tensor *in, uint32_t dim, tsr_mapped_tensor *out)
{
    uint32_t order[TSR_MAX_NDIM];
    for (uint32_t d = 0; d + 1 < in->ndim; d++) order[d] = d < dim ? d : d + 1;
    return rearrange(maker, in, order, in->ndim - 1, out);
}

/* ---- reshape ---- */

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
        tsr_source_box *box = box_list_add(list, from);
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
    TSR_TRY(new_shape(maker, old.ndim - 1 + count, out));
    for (uint32_t d = 0; d < out->ndim; d++)
        out->shape[d] = d < dim ? old.shape[d] : d < dim + count ? factors[d - dim] : old.shape[d - count + 1];
    box_list_open(&list, maker, out->ndim);
    for (size_t i = 0; i < old.box_count && status == TSR_OK; i++)
        status = split_box(&list, &old.boxes[i], old.ndim, dim, factors, count);
    return box_list_close(&list, status, out);
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
        tsr_source_box *box = box_list_add(list, from);
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
    TSR_TRY(new_shape(maker, old.ndim - count + 1, out));
    for (uint32_t d = 0; d < out->ndim; d++)
        out->shape[d] = d < dim ? old.shape[d] : d == dim ? 1 : old.shape[d + count - 1];
    for (uint32_t k = 0; k < count; k++) out->shape[dim] *= old.shape[dim + k];
    box_list_open(&list, maker, out->ndim);
    for (size_t i = 0; i < old.box_count && status == TSR_OK; i++) {
        if (!tsr_box_is_empty((tsr_box){old.ndim, old.boxes[i].offsets, old.boxes[i].sizes}))
            status = merge_box(&list, &old, &old.boxes[i], dim, count);
    }
    return box_list_close(&list, status, out);
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
    TSR_TRY(new_shape(maker, ndim, out));
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
