/* Runs the steps of a rule on the tensors of one binding. */
#include "mapping/mapped.h"
#include "tessera/box.h"
#include "tessera/sys/try.h"

typedef struct runner {
    tsr_mapped *m;
    const tsr_map_step *step;
    tsr_error *err;
} runner;

/* Finds the dim of the step. With `extra` 1, it may also be the position after the last dim. */
static tsr_status find_dim(const runner *r, const tsr_mapped_tensor *tensor, uint32_t extra, uint32_t *out)
{
    *out = 0;
    const int64_t count = (int64_t)tensor->ndim + extra, dim = r->step->dim < 0 ? r->step->dim + count : r->step->dim;
    TSR_FAIL_IF(dim < 0 || dim >= count, r->err, TSR_E_FORMAT, "'%.*s' %s: the step '%s' names dim %lld",
                TSR_STR_ARG(tensor->name), tsr_shape_of(tensor).text, tsr_step_name(r->step->kind), (long long)r->step->dim);
    *out = (uint32_t)dim;
    return TSR_OK;
}

static tsr_status misfit(const runner *r, const tsr_mapped_tensor *tensor, const char *what, uint64_t number)
{
    return tsr_fail(r->err, TSR_E_FORMAT, "'%.*s' %s: the step '%s' %s %llu", TSR_STR_ARG(tensor->name),
                    tsr_shape_of(tensor).text, tsr_step_name(r->step->kind), what, (unsigned long long)number);
}

static tsr_status read_numbers(const runner *r, const tsr_map_number *numbers, uint32_t count, uint64_t **out)
{
    *out = tsr_arena_array(r->m->own->arena, count, sizeof **out, r->err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) TSR_TRY(tsr_mapped_number(r->m, &numbers[i], &(*out)[i], r->err));
    return TSR_OK;
}

/* Returns the index of the number that is -1, or `count` if none is. */
static uint32_t find_rest(const tsr_map_number *numbers, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && !numbers[i].rest) i++;
    return i;
}

/* ---- one tensor to one tensor ---- */

static tsr_status transpose(const runner *r, tsr_mapped_tensor *tensor)
{
    uint64_t *numbers;
    uint32_t order[TSR_MAX_NDIM];
    bool seen[TSR_MAX_NDIM] = {false};
    TSR_TRY(read_numbers(r, r->step->numbers, r->step->number_count, &numbers));
    if (r->step->number_count != tensor->ndim)
        return misfit(r, tensor, "has another number of dims:", r->step->number_count);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (numbers[d] >= tensor->ndim || seen[numbers[d]])
            return misfit(r, tensor, "is not an order of the dims at", numbers[d]);
        seen[numbers[d]] = true;
        order[d] = (uint32_t)numbers[d];
    }
    return tsr_boxes_transpose(&r->m->maker, tensor, order, tensor);
}

/* Splits dim `dim` into `factors`, exchanges the last two, and merges all of them again. */
static tsr_status exchange(const runner *r, tsr_mapped_tensor *tensor, uint32_t dim, const uint64_t *factors, uint32_t count)
{
    uint32_t order[TSR_MAX_NDIM + 2];
    if (tensor->ndim + count > TSR_MAX_NDIM) return misfit(r, tensor, "needs more dims than", TSR_MAX_NDIM);
    TSR_TRY(tsr_boxes_split_dim(&r->m->maker, tensor, dim, factors, count, tensor));
    for (uint32_t d = 0; d < tensor->ndim; d++) order[d] = d;
    order[dim + count - 2] = dim + count - 1;
    order[dim + count - 1] = dim + count - 2;
    TSR_TRY(tsr_boxes_transpose(&r->m->maker, tensor, order, tensor));
    return tsr_boxes_merge_dims(&r->m->maker, tensor, dim, count, tensor);
}

static tsr_status interleave(const runner *r, tsr_mapped_tensor *tensor)
{
    uint32_t dim;
    uint64_t parts;
    TSR_TRY(find_dim(r, tensor, 0, &dim));
    TSR_TRY(tsr_mapped_number(r->m, &r->step->parts, &parts, r->err));
    if (!parts || tensor->shape[dim] % parts) return misfit(r, tensor, "cannot make equal parts; parts is", parts);
    const uint64_t each = tensor->shape[dim] / parts,
                   factors[] = {r->step->inverse ? each : parts, r->step->inverse ? parts : each};
    return exchange(r, tensor, dim, factors, 2);
}

/* If the number of heads comes from config.json, the size of a head must agree with config.json, too. */
static tsr_status check_heads(const runner *r, const tsr_mapped_tensor *tensor, uint64_t heads)
{
    uint64_t size;
    if (!r->step->parts.config.size || !tsr_mapped_head_dim(r->m, &size) || tensor->shape[0] / heads == size) return TSR_OK;
    return tsr_fail(r->err, TSR_E_FORMAT, "'%.*s' %s has %llu rows for each of %llu heads, but %s says %llu",
                    TSR_STR_ARG(tensor->name), tsr_shape_of(tensor).text, (unsigned long long)(tensor->shape[0] / heads),
                    (unsigned long long)heads, r->m->config_name, (unsigned long long)size);
}

static tsr_status permute_rope(const runner *r, tsr_mapped_tensor *tensor)
{
    uint64_t heads;
    TSR_TRY(tsr_mapped_number(r->m, &r->step->parts, &heads, r->err));
    if (!tensor->ndim || !heads || tensor->shape[0] % heads || tensor->shape[0] / heads % 2)
        return misfit(r, tensor, "needs an even number of rows for each head; heads is", heads);
    TSR_TRY(check_heads(r, tensor, heads));
    const uint64_t half = tensor->shape[0] / heads / 2;
    const uint64_t factors[] = {heads, r->step->inverse ? 2 : half, r->step->inverse ? half : 2};
    return exchange(r, tensor, 0, factors, 3);
}

/* Checks the sizes from dim `first` on against those that the step states for its inverse, which would otherwise make other
 * tensors. Only the inverse needs them, so numbers that config.json lacks are not checked. */
static tsr_status check_from(const runner *r, const tsr_mapped_tensor *tensor, uint32_t first)
{
    for (uint32_t d = 0; d < r->step->from_count && first + d < tensor->ndim; d++) {
        uint64_t size;
        if (r->step->from[d].rest || tsr_mapped_number(r->m, &r->step->from[d], &size, NULL) != TSR_OK) continue;
        if (tensor->shape[first + d] != size) return misfit(r, tensor, "states in \"from\" the size", size);
    }
    return TSR_OK;
}

/* Replaces -1 in the shape by the size that follows from the number of elements and the other sizes. */
static tsr_status set_rest(const runner *r, const tsr_mapped_tensor *tensor, uint64_t *shape)
{
    const uint32_t rest = find_rest(r->step->numbers, r->step->number_count);
    uint64_t elements = 1, others = 1;
    if (rest == r->step->number_count) return TSR_OK;
    for (uint32_t d = 0; d < tensor->ndim; d++) elements *= tensor->shape[d]; /* cannot overflow: it is a tensor */
    for (uint32_t d = 0; d < r->step->number_count; d++) {
        if (d == rest) continue;
        if (!shape[d] || elements % shape[d] || others > elements / shape[d])
            return misfit(r, tensor, "cannot divide its elements by", shape[d]);
        others *= shape[d];
    }
    if (!elements || elements % others) return misfit(r, tensor, "cannot divide its elements by", others);
    shape[rest] = elements / others;
    return TSR_OK;
}

static tsr_status reshape(const runner *r, tsr_mapped_tensor *tensor)
{
    uint64_t *shape;
    if (r->step->from_count && r->step->from_count != tensor->ndim)
        return misfit(r, tensor, "states in \"from\" another number of dims:", r->step->from_count);
    TSR_TRY(check_from(r, tensor, 0));
    TSR_TRY(read_numbers(r, r->step->numbers, r->step->number_count, &shape));
    TSR_TRY(set_rest(r, tensor, shape));
    return tsr_boxes_reshape(&r->m->maker, tensor, shape, r->step->number_count, tensor);
}

/* The dim of a step that changes a dim's size, and the size that it has then. */
static tsr_status find_resized(const runner *r, const tsr_mapped_tensor *tensor, uint32_t *dim, uint64_t *to)
{
    TSR_TRY(find_dim(r, tensor, 0, dim));
    TSR_TRY(tsr_mapped_number(r->m, &r->step->to, to, r->err));
    return check_from(r, tensor, *dim);
}

static tsr_status trim(const runner *r, tsr_mapped_tensor *tensor)
{
    uint32_t dim;
    uint64_t to;
    TSR_TRY(find_resized(r, tensor, &dim, &to));
    if (to > tensor->shape[dim]) return misfit(r, tensor, "keeps more elements than there are:", to);
    return tsr_boxes_slice(&r->m->maker, tensor, dim, (tsr_span){0, to}, tensor);
}

static tsr_status pad(const runner *r, tsr_mapped_tensor *tensor)
{
    uint32_t dim;
    uint64_t to;
    TSR_TRY(find_resized(r, tensor, &dim, &to));
    if (to < tensor->shape[dim]) return misfit(r, tensor, "pads to fewer elements:", to);
    if (to == tensor->shape[dim]) return TSR_OK;
    tsr_mapped_tensor both[] = {*tensor, *tensor};
    both[1].shape = tsr_arena_array(r->m->own->arena, tensor->ndim, sizeof *tensor->shape, r->err);
    if (!both[1].shape) return TSR_E_NOMEM;
    memcpy(both[1].shape, tensor->shape, tensor->ndim * sizeof *tensor->shape);
    both[1].shape[dim] = to - tensor->shape[dim];
    TSR_TRY(tsr_mapped_fill(r->m, r->step->value, &both[1], r->err));
    return tsr_boxes_concat(&r->m->maker, both, 2, dim, tensor);
}

static tsr_status change_one(const runner *r, tsr_mapped_tensor *tensor)
{
    switch (r->step->kind) {
    case TSR_STEP_TRANSPOSE: return transpose(r, tensor);
    case TSR_STEP_INTERLEAVE: return interleave(r, tensor);
    case TSR_STEP_PERMUTE_ROPE: return permute_rope(r, tensor);
    case TSR_STEP_RESHAPE: return reshape(r, tensor);
    case TSR_STEP_TRIM: return trim(r, tensor);
    case TSR_STEP_PAD: return pad(r, tensor);
    case TSR_STEP_DEQUANTIZE: return TSR_OK; /* the tensors are already products */
    default: return tensor->dtype == r->step->dtype ? TSR_OK : tsr_mapped_cast(r->m, tensor, r->step->dtype, tensor, r->err);
    }
}

/* ---- several to one, one to several ---- */

/* Computes the sizes along `dim` of a step's parts, which are given as sizes or as a number of equal parts. */
static tsr_status part_sizes(const runner *r, const tsr_mapped_tensor *tensor, uint32_t dim, uint64_t **sizes,
                             uint32_t *count)
{
    uint64_t parts, sum = 0;
    *count = r->step->number_count;
    if (*count) {
        TSR_TRY(read_numbers(r, r->step->numbers, *count, sizes));
        for (uint32_t i = 0; i < *count; i++) {
            if ((*sizes)[i] > tensor->shape[dim] - sum)
                return misfit(r, tensor, "has sizes whose sum is more than", tensor->shape[dim]);
            sum += (*sizes)[i];
        }
        const uint32_t rest = find_rest(r->step->numbers, *count);
        if (rest < *count) {
            (*sizes)[rest] = tensor->shape[dim] - sum;
            return TSR_OK;
        }
        return sum == tensor->shape[dim] ? TSR_OK : misfit(r, tensor, "has sizes whose sum is", sum);
    }
    TSR_TRY(tsr_mapped_number(r->m, &r->step->parts, &parts, r->err));
    if (!parts || parts > 4096 || tensor->shape[dim] % parts)
        return misfit(r, tensor, "cannot make equal parts; parts is", parts);
    *count = (uint32_t)parts;
    *sizes = tsr_arena_array(r->m->own->arena, parts, sizeof **sizes, r->err);
    if (!*sizes) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < *count; i++) (*sizes)[i] = tensor->shape[dim] / parts;
    return TSR_OK;
}

static tsr_status concat_members(const runner *r, tsr_mapped_tensor *parts, uint32_t count, tsr_mapped_tensor *out)
{
    uint32_t dim, expected;
    uint64_t *sizes;
    TSR_TRY(find_dim(r, &parts[0], 0, &dim));
    TSR_TRY(tsr_boxes_concat(&r->m->maker, parts, count, dim, out));
    if (!r->step->number_count && !r->step->parts.value && !r->step->parts.config.size) return TSR_OK;
    TSR_TRY(part_sizes(r, out, dim, &sizes, &expected));
    if (expected != count) return misfit(r, out, "names another number of parts:", expected);
    for (uint32_t i = 0; i < count; i++)
        if (parts[i].shape[dim] != sizes[i]) return misfit(r, &parts[i], "expects the size", sizes[i]);
    return TSR_OK;
}

static tsr_status concat(const runner *r, tsr_map_slot *slots, uint32_t *slot_count)
{
    tsr_mapped_tensor *parts = tsr_arena_array(r->m->own->arena, *slot_count, sizeof *parts, r->err);
    if (!parts) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < slots[0].count; i++) {
        for (uint32_t s = 0; s < *slot_count; s++) parts[s] = slots[s].tensors[i];
        TSR_TRY(concat_members(r, parts, *slot_count, &slots[0].tensors[i]));
    }
    *slot_count = 1;
    return TSR_OK;
}

static tsr_map_slot *new_slots(const runner *r, uint32_t count, uint64_t members)
{
    tsr_map_slot *slots = tsr_arena_array(r->m->own->arena, count, sizeof *slots, r->err);
    for (uint32_t s = 0; slots && s < count; s++) {
        slots[s].count = members;
        slots[s].tensors = tsr_arena_array(r->m->own->arena, (size_t)members, sizeof *slots[s].tensors, r->err);
        if (!slots[s].tensors) return NULL;
    }
    return slots;
}

static tsr_status split(const runner *r, tsr_map_slot **slots, uint32_t *slot_count)
{
    const tsr_map_slot all = (*slots)[0];
    uint32_t dim, count, first = 0;
    uint64_t *sizes;
    TSR_FAIL_IF(*slot_count != 1, r->err, TSR_E_FORMAT, "'%.*s': the step 'split' takes one tensor, not %u",
                TSR_STR_ARG(all.tensors[0].name), (unsigned)*slot_count);
    for (uint64_t i = 0; i < all.count; i++) {
        uint64_t offset = 0;
        TSR_TRY(find_dim(r, &all.tensors[i], 0, &dim));
        TSR_TRY(part_sizes(r, &all.tensors[i], dim, &sizes, &count));
        if (i == 0) {
            first = count;
            *slots = new_slots(r, count, all.count);
            if (!*slots) return TSR_E_NOMEM;
        }
        for (uint32_t s = 0; s < first; s++, offset += sizes[s - 1])
            TSR_TRY(
                tsr_boxes_slice(&r->m->maker, &all.tensors[i], dim, (tsr_span){offset, sizes[s]}, &(*slots)[s].tensors[i]));
    }
    *slot_count = first;
    return TSR_OK;
}

static tsr_status stack(const runner *r, tsr_map_slot *slot)
{
    uint32_t dim = 0;
    for (uint64_t i = 0; i < slot->count; i++) {
        TSR_TRY(find_dim(r, &slot->tensors[i], 1, &dim));
        for (uint32_t d = 0; i && d < slot->tensors[0].ndim - 1; d++) {
            /* The first tensor already has its new dim. */
            const uint64_t size = slot->tensors[0].shape[d < dim ? d : d + 1];
            if (slot->tensors[i].ndim != slot->tensors[0].ndim - 1 || slot->tensors[i].shape[d] != size)
                return misfit(r, &slot->tensors[i],
                              "expects all tensors to have the shape of the first one; it differs at dim", d);
        }
        TSR_TRY(tsr_boxes_add_dim(&r->m->maker, &slot->tensors[i], dim, &slot->tensors[i]));
    }
    TSR_TRY(tsr_boxes_concat(&r->m->maker, slot->tensors, (size_t)slot->count, dim, &slot->tensors[0]));
    slot->count = 1;
    return TSR_OK;
}

static tsr_status unstack(const runner *r, tsr_map_slot *slot)
{
    uint32_t dim;
    const tsr_mapped_tensor all = slot->tensors[0];
    TSR_TRY(find_dim(r, &all, 0, &dim));
    if (!all.shape[dim]) return misfit(r, &all, "takes apart a dim of size", all.shape[dim]);
    if (all.shape[dim] > r->m->maker.left)
        return misfit(r, &all, "would make more tensors than are allowed:", all.shape[dim]);
    slot->count = all.shape[dim];
    slot->tensors = tsr_arena_array(r->m->own->arena, (size_t)slot->count, sizeof *slot->tensors, r->err);
    if (!slot->tensors) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < slot->count; i++) {
        TSR_TRY(tsr_boxes_slice(&r->m->maker, &all, dim, (tsr_span){i, 1}, &slot->tensors[i]));
        TSR_TRY(tsr_boxes_remove_dim(&r->m->maker, &slot->tensors[i], dim, &slot->tensors[i]));
    }
    return TSR_OK;
}

static tsr_status run_step(const runner *r, tsr_map_slot **slots, uint32_t *slot_count)
{
    const tsr_step_kind kind = r->step->kind;
    if (kind == TSR_STEP_CONCAT) return concat(r, *slots, slot_count);
    if (kind == TSR_STEP_SPLIT) return split(r, slots, slot_count);
    for (uint32_t s = 0; s < *slot_count; s++) {
        tsr_map_slot *slot = &(*slots)[s];
        if (kind == TSR_STEP_STACK) TSR_TRY(stack(r, slot));
        else if (kind == TSR_STEP_UNSTACK && slot->count == 1) TSR_TRY(unstack(r, slot));
        for (uint64_t i = 0; i < slot->count && kind != TSR_STEP_STACK && kind != TSR_STEP_UNSTACK; i++)
            TSR_TRY(change_one(r, &slot->tensors[i]));
    }
    return TSR_OK;
}

tsr_status tsr_mapped_steps(tsr_mapped *m, const tsr_map_rule *rule, tsr_map_slot **slots, uint32_t *slot_count,
                            tsr_error *err)
{
    for (uint32_t i = 0; i < rule->step_count; i++) {
        const runner r = {m, &rule->steps[i], err};
        TSR_TRY(run_step(&r, slots, slot_count));
    }
    return TSR_OK;
}
