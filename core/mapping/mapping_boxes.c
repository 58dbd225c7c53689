#include "mapping/mapping_boxes.h"

#include "base/line.h"
#include "tessera/box.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

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

void tsr_box_list_open(tsr_box_list *list, tsr_box_maker *maker, uint32_t ndim)
{
    *list = (tsr_box_list){.maker = maker, .boxes = tsr_vec_of(maker->allocator, sizeof(tsr_source_box)), .ndim = ndim};
}

tsr_source_box *tsr_box_list_add(tsr_box_list *list, const tsr_source_box *like)
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

tsr_status tsr_box_list_close(tsr_box_list *list, tsr_status status, tsr_mapped_tensor *out)
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

/* Returns the reason why tsr_box_list_add failed. */
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
        tsr_source_box *box = tsr_box_list_add(list, &like);
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

static tsr_status set_shape(tsr_box_maker *maker, const uint64_t *shape, uint32_t ndim, tsr_mapped_tensor *out)
{
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM, maker->err, TSR_E_FORMAT, "'%.*s': %u dimensions; at most %u are allowed",
                TSR_STR_ARG(out->name), (unsigned)ndim, (unsigned)TSR_MAX_NDIM);
    uint64_t *copy = tsr_arena_array(maker->arena, ndim, sizeof *copy, maker->err);
    if (!copy) return TSR_E_NOMEM;
    if (ndim) memcpy(copy, shape, ndim * sizeof *copy);
    out->shape = copy;
    out->ndim = ndim;
    return TSR_OK;
}

tsr_status tsr_boxes_of_entry(tsr_box_maker *maker, const tsr_entry *entry, tsr_mapped_tensor *out)
{
    tsr_box_list list;
    *out = (tsr_mapped_tensor){.name = entry->fqn, .dtype = entry->dtype};
    TSR_TRY(set_shape(maker, entry->shape, entry->ndim, out));
    tsr_box_list_open(&list, maker, entry->ndim);
    tsr_status status = add_chunks(&list, entry, false);
    if (status == TSR_OK) status = add_chunks(&list, entry, true);
    return tsr_box_list_close(&list, status, out);
}

tsr_status tsr_boxes_of_file(tsr_box_maker *maker, uint32_t file, bool repeats, tsr_mapped_tensor *out)
{
    tsr_box_list list;
    tsr_box_list_open(&list, maker, out->ndim);
    const tsr_source_box like = {.file = file};
    tsr_source_box *box = tsr_box_list_add(&list, &like);
    uint64_t step = 1;
    for (uint32_t d = out->ndim; box && d-- > 0;) {
        box->sizes[d] = out->shape[d];
        box->strides[d] = repeats ? 0 : step;
        step *= out->shape[d];
    }
    return tsr_box_list_close(&list, box ? TSR_OK : add_failed(&list), out);
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
    tsr_box_list_open(&list, maker, whole.ndim);
    for (size_t i = 0; i < whole.box_count && status == TSR_OK; i++) {
        const tsr_source_box *old = &whole.boxes[i];
        const uint64_t begin = old->offsets[dim] > range.offset ? old->offsets[dim] : range.offset;
        const uint64_t old_end = old->offsets[dim] + old->sizes[dim], range_end = range.offset + range.size;
        const uint64_t end = old_end < range_end ? old_end : range_end;
        if (begin >= end) continue;
        tsr_source_box *box = tsr_box_list_add(&list, old);
        if (!box) status = add_failed(&list);
        if (!box) break;
        copy_numbers(box, old, whole.ndim);
        box->base += (begin - old->offsets[dim]) * old->strides[dim];
        box->offsets[dim] = begin - range.offset;
        box->sizes[dim] = end - begin;
        box->whole = old->whole && whole.shape[dim] == range.size;
    }
    return tsr_box_list_close(&list, status, out);
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
    tsr_box_list_open(&list, maker, joined.ndim);
    for (size_t t = 0; t < count && status == TSR_OK; t++) {
        for (size_t i = 0; i < in[t].box_count && status == TSR_OK; i++) {
            tsr_source_box *box = tsr_box_list_add(&list, &in[t].boxes[i]);
            if (!box) status = add_failed(&list);
            if (!box) break;
            copy_numbers(box, &in[t].boxes[i], joined.ndim);
            box->offsets[dim] += joined.shape[dim];
        }
        joined.shape[dim] += in[t].shape[dim];
    }
    *out = joined;
    return tsr_box_list_close(&list, status, out);
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
    tsr_box_list_open(&list, maker, ndim);
    for (size_t i = 0; i < old.box_count && status == TSR_OK; i++) {
        const tsr_source_box *from = &old.boxes[i];
        tsr_source_box *box = tsr_box_list_add(&list, from);
        if (!box) status = add_failed(&list);
        for (uint32_t d = 0; box && d < ndim; d++) {
            const bool fresh = order[d] == TSR_MAX_NDIM;
            box->offsets[d] = fresh ? 0 : from->offsets[order[d]];
            box->sizes[d] = fresh ? 1 : from->sizes[order[d]];
            box->strides[d] = fresh ? 0 : from->strides[order[d]];
        }
    }
    return tsr_box_list_close(&list, status, out);
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
