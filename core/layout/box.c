/* Boxes of elements. For a box inside its parent, in row-major order:
 *
 *   parent  . . . . . .      the last dims that the box fills completely form one contiguous run;
 *           . x x x . .      there is one run for each index of the leading ("outer") dims
 *           . x x x . . */
#include "tessera/box.h"

#include "base/cursor.h"
#include "layout/shard.h"
#include "tessera/mesh.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

#include <inttypes.h>
#include <stdlib.h>

bool tsr_box_is_empty(tsr_box box)
{
    for (uint32_t d = 0; d < box.ndim; d++) {
        if (box.sizes[d] == 0) return true;
    }
    return false;
}

bool tsr_box_volume(tsr_box box, uint64_t *elements)
{
    uint64_t product = 1;
    bool fits = true;
    for (uint32_t d = 0; d < box.ndim; d++) {
        if (box.sizes[d] == 0) {
            *elements = 0;
            return true;
        }
        fits = fits && tsr_mul_u64(product, box.sizes[d], &product);
    }
    *elements = fits ? product : 0;
    return fits;
}

bool tsr_box_equal(tsr_box a, tsr_box b)
{
    if (a.ndim != b.ndim) return false;
    for (uint32_t d = 0; d < a.ndim; d++) {
        if (a.sizes[d] != b.sizes[d] || tsr_box_offset(a, d) != tsr_box_offset(b, d)) return false;
    }
    return true;
}

bool tsr_box_contains(tsr_box outer, tsr_box inner)
{
    if (outer.ndim != inner.ndim) return false;
    for (uint32_t d = 0; d < outer.ndim; d++) {
        uint64_t begin = tsr_box_offset(outer, d), at = tsr_box_offset(inner, d);
        if (at < begin || at - begin > outer.sizes[d] || inner.sizes[d] > outer.sizes[d] - (at - begin)) return false;
    }
    return true;
}

bool tsr_box_intersect(tsr_box a, tsr_box b, uint64_t *offsets, uint64_t *sizes)
{
    for (uint32_t d = 0; d < a.ndim; d++) {
        uint64_t a_at = tsr_box_offset(a, d), b_at = tsr_box_offset(b, d);
        uint64_t begin = a_at > b_at ? a_at : b_at;
        /* avoids offset + size, which may overflow */
        uint64_t a_left = begin - a_at < a.sizes[d] ? a.sizes[d] - (begin - a_at) : 0;
        uint64_t b_left = begin - b_at < b.sizes[d] ? b.sizes[d] - (begin - b_at) : 0;
        offsets[d] = begin;
        sizes[d] = a_left < b_left ? a_left : b_left;
        if (sizes[d] == 0) return false;
    }
    return true;
}

void tsr_box_enclose(uint32_t ndim, uint64_t *offsets, uint64_t *sizes, tsr_box box)
{
    for (uint32_t d = 0; d < ndim; d++) {
        const uint64_t from = tsr_box_offset(box, d), to = from + box.sizes[d];
        const uint64_t end = offsets[d] + sizes[d] > to ? offsets[d] + sizes[d] : to;
        if (from < offsets[d]) offsets[d] = from;
        sizes[d] = end - offsets[d];
    }
}

uint64_t tsr_box_index(tsr_box parent, const uint64_t *at)
{
    uint64_t index = 0;
    for (uint32_t d = 0; d < parent.ndim; d++) index = index * parent.sizes[d] + (at[d] - tsr_box_offset(parent, d));
    return index;
}

/* How many leading dims vary between the runs of `inner` in `parent`. The last dims, where both have the same size, are
 * contiguous, and so is the part of the dim before them that the box covers. */
static uint32_t outer_dims(tsr_box parent, tsr_box inner)
{
    uint32_t d = inner.ndim;
    while (d > 0 && inner.sizes[d - 1] == parent.sizes[d - 1]) d--;
    if (d > 0) d--;
    while (d > 0 && inner.sizes[d - 1] == 1) d--; /* a dim with a single index adds no run */
    return d;
}

bool tsr_box_is_contiguous(tsr_box parent, tsr_box inner)
{
    return tsr_box_is_empty(inner) || outer_dims(parent, inner) == 0;
}

static void strides_of(tsr_box box, uint32_t dims, uint64_t *strides)
{
    uint64_t step = 1;
    for (uint32_t d = box.ndim; d-- > 0;) {
        if (d < dims) strides[d] = step;
        step *= box.sizes[d];
    }
}

void tsr_box_walk_start(tsr_box_walk *walk, tsr_box inner, tsr_box a, tsr_box b)
{
    static const uint64_t zeros[TSR_MAX_NDIM];
    uint32_t outer_a = outer_dims(a, inner), outer_b = outer_dims(b, inner);
    const uint64_t *first = inner.offsets ? inner.offsets : zeros;
    walk->outer = outer_a > outer_b ? outer_a : outer_b;
    walk->run = walk->runs_left = 1;
    walk->index_a = walk->index_b = 0;
    for (uint32_t d = 0; d < walk->outer; d++) {
        walk->at[d] = 0;
        walk->counts[d] = inner.sizes[d];
        walk->runs_left *= inner.sizes[d];
    }
    for (uint32_t d = walk->outer; d < inner.ndim; d++) walk->run *= inner.sizes[d];
    if (tsr_box_is_empty(inner)) walk->runs_left = 0;
    if (walk->runs_left == 0) return;
    walk->index_a = tsr_box_index(a, first);
    walk->index_b = tsr_box_index(b, first);
    strides_of(a, walk->outer, walk->strides_a);
    strides_of(b, walk->outer, walk->strides_b);
}

void tsr_box_walk_next(tsr_box_walk *walk)
{
    if (--walk->runs_left == 0) return;
    for (uint32_t d = walk->outer; d-- > 0;) {
        walk->index_a += walk->strides_a[d];
        walk->index_b += walk->strides_b[d];
        if (++walk->at[d] < walk->counts[d]) return;
        walk->index_a -= walk->strides_a[d] * walk->counts[d];
        walk->index_b -= walk->strides_b[d] * walk->counts[d];
        walk->at[d] = 0;
    }
}

/* ---- box set ---- */

/* Two lists of boxes are the same set if they are equal after sorting. Most are equal without sorting. */

typedef struct item {
    uint32_t ndim;
    const tsr_chunk *chunk;
} item;

static int compare_numbers(const uint64_t *a, const uint64_t *b, uint32_t count)
{
    for (uint32_t d = 0; d < count; d++) {
        if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
    }
    return 0;
}

static int compare_items(const void *left, const void *right)
{
    const item *a = left, *b = right;
    int order = compare_numbers(a->chunk->offsets, b->chunk->offsets, a->ndim);
    return order ? order : compare_numbers(a->chunk->sizes, b->chunk->sizes, a->ndim);
}

static bool equal_in_order(const item *a, const item *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (compare_items(&a[i], &b[i]) != 0) return false;
    }
    return true;
}

static tsr_status list_boxes(const tsr_entry *entry, tsr_vec *list, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(list, entry->chunk_count, err));
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        if (tsr_box_is_empty((tsr_box){entry->ndim, chunk->offsets, chunk->sizes})) continue;
        ((item *)list->items)[list->count++] = (item){entry->ndim, chunk};
    }
    return TSR_OK;
}

tsr_status tsr_box_sets_equal(const tsr_allocator *allocator, const tsr_entry *a, const tsr_entry *b, bool *equal,
                              tsr_error *err)
{
    tsr_vec list_a = tsr_vec_of(allocator, sizeof(item)), list_b = list_a;
    tsr_status status = list_boxes(a, &list_a, err);
    if (status == TSR_OK) status = list_boxes(b, &list_b, err);
    *equal = status == TSR_OK && list_a.count == list_b.count;
    if (*equal && !equal_in_order(list_a.items, list_b.items, list_a.count)) {
        qsort(list_a.items, list_a.count, sizeof(item), compare_items);
        qsort(list_b.items, list_b.count, sizeof(item), compare_items);
        *equal = equal_in_order(list_a.items, list_b.items, list_a.count);
    }
    tsr_vec_free(&list_a);
    tsr_vec_free(&list_b);
    return status;
}

/* Parses slices of tensors: "0:2,:,3". */

tsr_str tsr_slice_split(tsr_str text, tsr_str *inside)
{
    *inside = (tsr_str){NULL, 0};
    if (text.size == 0 || text.data[text.size - 1] != ']') return text;
    for (size_t at = text.size; at-- > 0;) {
        if (text.data[at] != '[') continue;
        *inside = (tsr_str){text.data + at + 1, text.size - at - 2};
        return (tsr_str){text.data, at};
    }
    return text;
}

static tsr_str trim(tsr_str text)
{
    while (text.size && text.data[0] == ' ') text.data++, text.size--;
    while (text.size && text.data[text.size - 1] == ' ') text.size--;
    return text;
}

/* Parses a bound or an index, a decimal number that may be negative. Returns false for anything else. */
static bool parse_number(tsr_str text, int64_t *number)
{
    char digits[24], *end;
    text = trim(text);
    if (text.size == 0 || text.size >= sizeof digits) return false;
    memcpy(digits, text.data, text.size);
    digits[text.size] = '\0';
    *number = strtoll(digits, &end, 10);
    return *end == '\0';
}

static uint64_t clamp(int64_t number, uint64_t size)
{
    if (number < 0) return (uint64_t)-number > size ? 0 : size - (uint64_t)-number;
    return (uint64_t)number > size ? size : (uint64_t)number;
}

static bool is_blank(tsr_str text)
{
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] != ' ') return false;
    }
    return true;
}

/* Parses one part of the slice, for a dim of `size`. `*keeps` is set if the result still has the dim. */
static tsr_status parse_part(tsr_str part, uint32_t dim, uint64_t size, tsr_span *out, bool *keeps, tsr_error *err)
{
    const char *colon = memchr(part.data, ':', part.size);
    int64_t from = 0, to = INT64_MAX;
    *keeps = colon != NULL;
    if (!colon) {
        if (!parse_number(part, &from)) goto bad;
        uint64_t at = from < 0 ? size + (uint64_t)from : (uint64_t)from;
        if (at >= size)
            return tsr_fail(err, TSR_E_USAGE, "index %.*s of dim %u is beyond its size %" PRIu64, TSR_STR_ARG(part), dim,
                            size);
        *out = (tsr_span){at, 1};
        return TSR_OK;
    }
    tsr_str left = {part.data, (size_t)(colon - part.data)}, right = {colon + 1, part.size - left.size - 1};
    if (!is_blank(left) && !parse_number(left, &from)) goto bad;
    if (!is_blank(right) && !parse_number(right, &to)) goto bad;
    uint64_t low = clamp(from, size), high = clamp(to, size);
    *out = (tsr_span){low, high > low ? high - low : 0};
    return TSR_OK;
bad:
    return tsr_fail(err, TSR_E_USAGE,
                    "'%.*s' is not an index of dim %u; write a number, a:b, a:, :b or :", TSR_STR_ARG(part), dim);
}

static size_t count_parts(tsr_str inside)
{
    size_t count = 1;
    for (size_t i = 0; i < inside.size; i++) count += inside.data[i] == ',';
    return count;
}

/* Keeps dims without a part completely. */
static void keep_whole(tsr_slice *out, uint32_t *dim, uint32_t end, const uint64_t *shape)
{
    for (; *dim < end; ++*dim) out->sizes[*dim] = out->shape[out->ndim++] = shape[*dim];
}

static tsr_status parse_parts(tsr_str inside, tsr_box tensor, tsr_slice *out, tsr_error *err)
{
    const size_t parts = inside.data ? count_parts(inside) : 0;
    bool filled = false;
    uint32_t dim = 0;
    for (size_t at = 0, number = 0; number < parts; number++) {
        const char *comma = memchr(inside.data + at, ',', inside.size - at);
        const size_t end = comma ? (size_t)(comma - inside.data) : inside.size;
        const tsr_str part = trim((tsr_str){inside.data + at, end - at});
        at = end + 1;
        if (tsr_str_equal(part, TSR_STR("...")) && !filled) {
            filled = true;
            keep_whole(out, &dim, dim + (uint32_t)(tensor.ndim > parts - 1 ? tensor.ndim - (parts - 1) : 0), tensor.sizes);
            continue;
        }
        TSR_FAIL_IF(dim >= tensor.ndim, err, TSR_E_USAGE, "the slice has %zu indices, but the tensor has %u dimensions",
                    parts, tensor.ndim);
        bool keeps;
        tsr_span taken = {0, 0};
        TSR_TRY(parse_part(part, dim, tensor.sizes[dim], &taken, &keeps, err));
        out->offsets[dim] = taken.offset;
        out->sizes[dim] = taken.size;
        if (keeps) out->shape[out->ndim++] = out->sizes[dim];
        dim++;
    }
    keep_whole(out, &dim, tensor.ndim, tensor.sizes);
    return TSR_OK;
}

tsr_status tsr_slice_parse(tsr_str inside, uint32_t ndim, const uint64_t *shape, tsr_slice *out, tsr_error *err)
{
    *out = (tsr_slice){.ndim = 0};
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "the tensor has %u dimensions; at most %u are supported", ndim,
                TSR_MAX_NDIM);
    return parse_parts(inside, (tsr_box){ndim, NULL, shape}, out, err);
}
