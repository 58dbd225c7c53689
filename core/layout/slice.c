/* Parses slices of tensors: "0:2,:,3". */
#include <inttypes.h>
#include <stdlib.h>

#include "tessera/box.h"
#include "tessera/mesh.h"
#include "tessera/sys/slice.h"
#include "tessera/sys/try.h"

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
