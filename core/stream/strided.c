/* The inner loops of every read: copy a block of elements with one stride per dim on each side.
 *
 *   storage   a b c d | e f g h | …        axes sorted by `from`, largest first: the last axis is the one whose
 *   dest      a b . . | e f . . | …        elements are adjacent in storage
 *
 * Rows that are contiguous on both sides are copied by memcpy. Transposed views are copied in square tiles whose rows are
 * one cache line. Strides are often powers of two, for which the rows of a matrix fall into the same few sets of the cache,
 * so each line is touched only once, and the elements are transposed in a separate tile. All other blocks are copied by a
 * blocked double loop. */
#include "stream/strided.h"

#include <string.h>

#define BLOCK 32u   /* elements per side of a tile: 32 × 32 × 16 bytes fit in the first-level cache */
enum { LINE = 64 }; /* bytes of a cache line */

static void drop_single(tsr_axis *axes, uint32_t *count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        if (axes[i].size != 1) axes[kept++] = axes[i];
    }
    *count = kept;
}

static void sort_by_from(tsr_axis *axes, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        tsr_axis moving = axes[i];
        uint32_t j = i;
        for (; j > 0 && axes[j - 1].from < moving.from; j--) axes[j] = axes[j - 1];
        axes[j] = moving;
    }
}

uint32_t tsr_axes_simplify(tsr_axis *axes, uint32_t count)
{
    drop_single(axes, &count);
    sort_by_from(axes, count);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        tsr_axis *outer = kept ? &axes[kept - 1] : NULL;
        if (outer && outer->from == axes[i].size * axes[i].from && outer->to == axes[i].size * axes[i].to) {
            *outer = (tsr_axis){outer->size * axes[i].size, axes[i].from, axes[i].to};
        } else {
            axes[kept++] = axes[i];
        }
    }
    return kept;
}

bool tsr_axes_advance(const tsr_axis *axes, uint32_t count, uint64_t *at)
{
    for (uint32_t i = count; i-- > 0;) {
        if (++at[i] < axes[i].size) return true;
        at[i] = 0;
    }
    return false;
}

#define COPY_ROW(bytes) \
    for (uint64_t i = 0; i < row.size; i++) memcpy(to + i * row.to, from + i * row.from, bytes)

static void copy_row(uint8_t *to, const uint8_t *from, tsr_axis row, uint32_t itemsize)
{
    if (row.from == itemsize && row.to == itemsize) {
        memcpy(to, from, row.size * itemsize);
        return;
    }
    switch (itemsize) {
    case 1: COPY_ROW(1); break;
    case 2: COPY_ROW(2); break;
    case 4: COPY_ROW(4); break;
    case 8: COPY_ROW(8); break;
    default: COPY_ROW(16); break;
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void copy_blocks(uint8_t *to, const uint8_t *from, tsr_axis outer, tsr_axis inner, uint32_t itemsize)
{
    for (uint64_t i = 0; i < outer.size; i += BLOCK) {
        for (uint64_t j = 0; j < inner.size; j += BLOCK) {
            const tsr_axis row = {least(BLOCK, outer.size - i), outer.from, outer.to};
            const uint64_t columns = least(BLOCK, inner.size - j);
            for (uint64_t k = j; k < j + columns; k++) {
                copy_row(to + i * outer.to + k * inner.to, from + i * outer.from + k * inner.from, row, itemsize);
            }
        }
    }
}

#define DEFINE_TILE(name, type) \
    static void name(uint8_t *to, uint64_t to_row, const uint8_t *from, uint64_t from_row) \
    { \
        enum { SIDE = LINE / sizeof(type) }; \
        type in[SIDE][SIDE], out[SIDE][SIDE]; \
        for (size_t i = 0; i < SIDE; i++) memcpy(in[i], from + i * from_row, LINE); \
        for (size_t i = 0; i < SIDE; i++) \
            for (size_t j = 0; j < SIDE; j++) out[i][j] = in[j][i]; \
        for (size_t i = 0; i < SIDE; i++) memcpy(to + i * to_row, out[i], LINE); \
    }

#define SHUFFLE(in, out) \
    for (size_t i = 0; i < HALF; i++) out[2 * i] = in[i], out[2 * i + 1] = in[i + HALF]

/* The same for blocks of N × N elements, whose rows have 16 bytes. A shuffle interleaves both halves of a block, like cards,
 * which rotates the bits of an element's number in the block by one. As many shuffles as a row number has bits therefore
 * transpose the block. gcc turns each shuffle into a few vector instructions. */
#define DEFINE_SHUFFLED_TILE(name, type, shuffles, result) \
    static void name(uint8_t *to, uint64_t to_row, const uint8_t *from, uint64_t from_row) \
    { \
        enum { SIDE = LINE / sizeof(type), ROW = 16, N = ROW / sizeof(type), HALF = N * N / 2 }; \
        type tile[SIDE][SIDE], a[2 * HALF], b[2 * HALF]; \
        for (size_t row = 0; row < SIDE; row += N) { \
            for (size_t column = 0; column < SIDE; column += N) { \
                const uint8_t *block = from + row * from_row + column * sizeof(type); \
                for (size_t i = 0; i < N; i++) memcpy(a + i * N, block + i * from_row, ROW); \
                shuffles; \
                for (size_t i = 0; i < N; i++) memcpy(&tile[column + i][row], result + i * N, ROW); \
            } \
        } \
        for (size_t i = 0; i < SIDE; i++) memcpy(to + i * to_row, tile[i], LINE); \
    }

#if defined(__GNUC__) && !defined(__clang__)
DEFINE_SHUFFLED_TILE(transpose_1, uint8_t, SHUFFLE(a, b); SHUFFLE(b, a); SHUFFLE(a, b); SHUFFLE(b, a), a)
DEFINE_SHUFFLED_TILE(transpose_2, uint16_t, SHUFFLE(a, b); SHUFFLE(b, a); SHUFFLE(a, b), b)
#else /* clang recognizes the loop of DEFINE_TILE, and is slower with these */
DEFINE_TILE(transpose_1, uint8_t)
DEFINE_TILE(transpose_2, uint16_t)
#endif
DEFINE_TILE(transpose_4, uint32_t)
DEFINE_TILE(transpose_8, uint64_t)

static void transpose_tile(uint8_t *to, uint64_t to_row, const uint8_t *from, uint64_t from_row, uint32_t itemsize)
{
    switch (itemsize) {
    case 1: transpose_1(to, to_row, from, from_row); break;
    case 2: transpose_2(to, to_row, from, from_row); break;
    case 4: transpose_4(to, to_row, from, from_row); break;
    default: transpose_8(to, to_row, from, from_row); break;
    }
}

/* The elements of `inner` are adjacent in storage, those of `outer` at the destination. */
static void transpose_plane(uint8_t *to, const uint8_t *from, tsr_axis outer, tsr_axis inner, uint32_t itemsize)
{
    const uint64_t side = LINE / itemsize, rows = outer.size - outer.size % side, columns = inner.size - inner.size % side;
    for (uint64_t i = 0; i < rows; i += side) {
        for (uint64_t j = 0; j < columns; j += side)
            transpose_tile(to + i * itemsize + j * inner.to, inner.to, from + i * outer.from + j * itemsize, outer.from,
                           itemsize);
    }
    const tsr_axis below = {outer.size - rows, outer.from, outer.to}, whole = {columns, inner.from, inner.to},
                   beside = {inner.size - columns, inner.from, inner.to};
    copy_blocks(to + rows * itemsize, from + rows * outer.from, below, whole, itemsize);
    copy_blocks(to + columns * inner.to, from + columns * itemsize, outer, beside, itemsize);
}

/* Copies two axes. `inner` may be contiguous on only one side. */
static void copy_plane(uint8_t *to, const uint8_t *from, tsr_axis outer, tsr_axis inner, uint32_t itemsize)
{
    if (inner.from == itemsize && inner.to == itemsize) {
        for (uint64_t i = 0; i < outer.size; i++) copy_row(to + i * outer.to, from + i * outer.from, inner, itemsize);
    } else if (inner.from == itemsize && outer.to == itemsize && itemsize <= sizeof(uint64_t)) {
        transpose_plane(to, from, outer, inner, itemsize);
    } else {
        copy_blocks(to, from, outer, inner, itemsize);
    }
}

/* Makes the axis whose elements are closest together at the destination the second to last. */
static void pair_axes(tsr_axis *axes, uint32_t count)
{
    uint32_t nearest = 0;
    for (uint32_t i = 1; i + 1 < count; i++) {
        if (axes[i].to <= axes[nearest].to) nearest = i;
    }
    const tsr_axis chosen = axes[nearest];
    for (uint32_t i = nearest; i + 2 < count; i++) axes[i] = axes[i + 1];
    axes[count - 2] = chosen;
}

void tsr_copy_block(uint8_t *to, const uint8_t *from, const tsr_axis *axes, uint32_t count, uint32_t itemsize)
{
    if (count == 0) {
        memcpy(to, from, itemsize);
        return;
    }
    if (count == 1) {
        copy_row(to, from, axes[0], itemsize);
        return;
    }
    tsr_axis ordered[TSR_MAX_NDIM];
    memcpy(ordered, axes, count * sizeof *axes);
    pair_axes(ordered, count);
    uint64_t at[TSR_MAX_NDIM] = {0};
    do {
        uint64_t to_byte = 0, from_byte = 0;
        for (uint32_t i = 0; i + 2 < count; i++) {
            to_byte += at[i] * ordered[i].to;
            from_byte += at[i] * ordered[i].from;
        }
        copy_plane(to + to_byte, from + from_byte, ordered[count - 2], ordered[count - 1], itemsize);
    } while (tsr_axes_advance(ordered, count - 2, at));
}

static void swap_units(uint8_t *bytes, size_t size, uint32_t unit)
{
    for (size_t i = 0; i + unit <= size; i += unit) {
        for (uint32_t low = 0, high = unit - 1; low < high; low++, high--) {
            uint8_t kept = bytes[i + low];
            bytes[i + low] = bytes[i + high];
            bytes[i + high] = kept;
        }
    }
}

/* Flips the sign bit of every part of width `unit` (`first` 0, `step` 1), or of every second one (`first` 1, `step` 2). */
static void flip_signs(uint8_t *bytes, size_t size, uint32_t unit, uint32_t first, uint32_t step)
{
    for (size_t i = (size_t)first * unit; i + unit <= size; i += (size_t)step * unit) bytes[i + unit - 1] ^= 0x80;
}

/* Negates little-endian integers in two's complement. */
static void negate_ints(uint8_t *bytes, size_t size, uint32_t unit)
{
    for (size_t i = 0; i + unit <= size; i += unit) {
        uint32_t carry = 1;
        for (uint32_t k = 0; k < unit; k++) {
            carry += (uint8_t)~bytes[i + k];
            bytes[i + k] = (uint8_t)carry;
            carry >>= 8;
        }
    }
}

void tsr_resolve(void *elements, size_t bytes, tsr_dtype dtype, bool swap, bool conj, bool neg)
{
    const tsr_dtype_info *info = tsr_dtype_describe(dtype);
    const uint32_t unit = info->kind == TSR_CLASS_COMPLEX ? info->bits / 16u : info->bits / 8u;
    if (swap && info->swap_bytes > 1) swap_units(elements, bytes, info->swap_bytes);
    if (conj && info->kind == TSR_CLASS_COMPLEX) flip_signs(elements, bytes, unit, 1, 2);
    if (neg && (info->kind == TSR_CLASS_FLOAT || info->kind == TSR_CLASS_COMPLEX)) flip_signs(elements, bytes, unit, 0, 1);
    if (neg && (info->kind == TSR_CLASS_INT || info->kind == TSR_CLASS_UINT)) negate_ints(elements, bytes, unit);
}
