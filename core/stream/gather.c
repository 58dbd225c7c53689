/* Reads any box of a tensor from any chunks.
 *
 *   tensor        box                 one part's share of the box, in its file (axes by falling stride):
 *   ┌────┬────┐   ┌ ─ ─ ─ ─ ┐
 *   │ p0 │ p1 │   │ p0 │ p1 │         ····[run]····gap····[run]····gap····[run]····
 *   ├────┼────┤   └ ─ ─ ─ ─ ┘             └──────────── joined read ───────────┘
 *   │ p2 │ p3 │
 *   └────┴────┘
 *
 * Runs that are close together are fetched by one joined read into scratch memory, and copied from there. Runs that are
 * worth their own read are read directly to the destination, if they are contiguous there, too. Which is better is decided
 * axis by axis, beginning with the innermost one, by comparing the cost of the reads in bytes. */
#include "stream/gather.h"

#include <string.h>

#include "base/cursor.h"
#include "stream/tile_job.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

/* ---- strided ---- */

/* The inner loops of every read: copy a block of elements with one stride per dim on each side.
 *
 *   storage   a b c d | e f g h | …        axes sorted by `from`, largest first: the last axis is the one whose
 *   dest      a b . . | e f . . | …        elements are adjacent in storage
 *
 * Rows that are contiguous on both sides are copied by memcpy. Transposed views are copied in square tiles whose rows are
 * one cache line. Strides are often powers of two, for which the rows of a matrix fall into the same few sets of the cache,
 * so each line is touched only once, and the elements are transposed in a separate tile. All other blocks are copied by a
 * blocked double loop. */

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

/* Removes axes of size 1, sorts by falling `from`, and merges axes that form one run on both sides. Returns the new count.
 * No axis may have size 0. */
static uint32_t axes_simplify(tsr_axis *axes, uint32_t count)
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

/* Advances the indices `at` of the first `count` axes by one step. Returns false after the last combination. `at` must be
 * zero at first. */
static bool axes_advance(const tsr_axis *axes, uint32_t count, uint64_t *at)
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

/* Copies every element of the block. The axes must come from axes_simplify; itemsize is 1, 2, 4, 8 or 16. */
static void copy_block(uint8_t *to, const uint8_t *from, const tsr_axis *axes, uint32_t count, uint32_t itemsize)
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
    } while (axes_advance(ordered, count - 2, at));
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

/* Applies the byte swap, conjugation and negation of a view, in this order, to `bytes` bytes of whole elements. */
static void resolve(void *elements, size_t bytes, tsr_dtype dtype, bool swap, bool conj, bool neg)
{
    const tsr_dtype_info *info = tsr_dtype_describe(dtype);
    const uint32_t unit = info->kind == TSR_CLASS_COMPLEX ? info->bits / 16u : info->bits / 8u;
    if (swap && info->swap_bytes > 1) swap_units(elements, bytes, info->swap_bytes);
    if (conj && info->kind == TSR_CLASS_COMPLEX) flip_signs(elements, bytes, unit, 1, 2);
    if (neg && (info->kind == TSR_CLASS_FLOAT || info->kind == TSR_CLASS_COMPLEX)) flip_signs(elements, bytes, unit, 0, 1);
    if (neg && (info->kind == TSR_CLASS_INT || info->kind == TSR_CLASS_UINT)) negate_ints(elements, bytes, unit);
}

/* ---- unzstd ---- */

/* Reads a compressed item forwards.
 *
 *   file:   … | zstd frame ················ | …
 *               └ input (64 KiB) ─▶ decoder ─▶ the caller's buffer, or `dump` while skipping */

#define INPUT_BYTES ((size_t)64 << 10)
#define DUMP_BYTES  ((size_t)32 << 10) /* for decompressed bytes that nobody needs: a zstd stream cannot be skipped */

struct tsr_unzstd {
    tsr_range in;
    const tsr_host *host;
    void *decoder;
    uint64_t fetched;  /* compressed bytes read so far */
    uint64_t position; /* decompressed bytes produced so far */
    tsr_str input;     /* the part of `buffer` that was not consumed yet */
    bool ended;
    char buffer[INPUT_BYTES];
    char dump[DUMP_BYTES];
};

/* TSR_E_UNSUPPORTED if the host has no zstd. Borrows `host` and the store. Close *out with unzstd_close, which accepts NULL. */
static tsr_status unzstd_open(tsr_range in, const tsr_host *host, tsr_unzstd **out, tsr_error *err)
{
    TSR_FAIL_IF(!host->zstd, err, TSR_E_NOT_BUILT, TSR_ZSTD_NOT_BUILT);
    tsr_unzstd *stream = tsr_alloc(host->allocator, 1, sizeof *stream, err);
    if (!stream) return TSR_E_NOMEM;
    stream->in = in;
    stream->host = host;
    stream->decoder = NULL;
    stream->position = 0;
    *out = stream;
    return TSR_OK;
}

static void unzstd_close(tsr_unzstd *stream)
{
    if (!stream) return;
    if (stream->decoder) stream->host->zstd->end(stream->decoder);
    tsr_free(stream->host->allocator, stream, 1, sizeof *stream);
}

static tsr_status start_over(tsr_unzstd *stream, tsr_error *err)
{
    if (stream->decoder) stream->host->zstd->end(stream->decoder);
    stream->decoder = stream->host->zstd->start();
    TSR_FAIL_IF(!stream->decoder, err, TSR_E_NOMEM, "out of memory for a zstd decoder");
    stream->fetched = stream->position = 0;
    stream->input = (tsr_str){stream->buffer, 0};
    stream->ended = false;
    return TSR_OK;
}

static tsr_status fetch(tsr_unzstd *stream, tsr_error *err)
{
    uint64_t left = stream->in.byte_length - stream->fetched;
    size_t size = left < INPUT_BYTES ? (size_t)left : INPUT_BYTES;
    TSR_TRY(tsr_store_read(stream->in.store, stream->in.file, stream->in.byte_offset + stream->fetched, stream->buffer, size,
                           err));
    stream->fetched += size;
    stream->input = (tsr_str){stream->buffer, size};
    return TSR_OK;
}

/* Produces up to `size` decompressed bytes, at least one unless the stream has ended. */
static tsr_status produce(tsr_unzstd *stream, void *out, size_t size, size_t *written, tsr_error *err)
{
    *written = 0;
    while (!stream->ended && *written == 0) {
        if (stream->input.size == 0 && stream->fetched < stream->in.byte_length) TSR_TRY(fetch(stream, err));
        const size_t waiting = stream->input.size;
        int step = stream->host->zstd->step(stream->decoder, &stream->input, out, size, written);
        const uint64_t at = stream->in.byte_offset + stream->fetched - stream->input.size;
        TSR_FAIL_AT(step < 0, err, TSR_E_FORMAT, at, "the zstd stream in %.*s is damaged",
                    TSR_STR_ARG(stream->in.store->files[stream->in.file].name));
        const bool no_more = stream->input.size == 0 && stream->fetched == stream->in.byte_length;
        TSR_FAIL_AT(step == 0 && *written == 0 && stream->input.size == waiting, err, TSR_E_FORMAT, at,
                    "the zstd stream in %.*s ends early", TSR_STR_ARG(stream->in.store->files[stream->in.file].name));
        stream->ended = step == 1 && no_more;
    }
    stream->position += *written;
    return TSR_OK;
}

/* Reads exactly `size` decompressed bytes at `position`. TSR_E_FORMAT if the stream is damaged or too short. */
static tsr_status unzstd_read(tsr_unzstd *stream, uint64_t position, void *buffer, size_t size, tsr_error *err)
{
    if (!stream->decoder || position < stream->position) TSR_TRY(start_over(stream, err));
    uint8_t *out = buffer;
    while (size) {
        const uint64_t ahead = position - stream->position;
        const size_t skip = ahead < DUMP_BYTES ? (size_t)ahead : DUMP_BYTES;
        size_t written;
        TSR_TRY(produce(stream, ahead ? (void *)stream->dump : out, ahead ? skip : size, &written, err));
        TSR_FAIL_AT(written == 0, err, TSR_E_FORMAT, stream->in.byte_offset,
                    "the zstd stream in %.*s contains %llu bytes, but %llu are needed at byte %llu",
                    TSR_STR_ARG(stream->in.store->files[stream->in.file].name), (unsigned long long)stream->position,
                    (unsigned long long)size, (unsigned long long)position);
        if (ahead) continue;
        out += written;
        size -= written;
        position += written;
    }
    return TSR_OK;
}

/* ---- gather ---- */

#define READ_COST UINT64_C(16384) /* the cost of starting a read, as the number of bytes copied in that time */

/* ---- how a share is read ---- */

/* How a block is fetched: a loop over axes[0, loops), with steps of `step` in the last of them. Each read covers the other
 * axes and has `span` bytes (for step 1). If `direct`, it goes directly to the destination. */
typedef struct fetch_plan {
    uint32_t loops;
    uint64_t step;
    uint64_t span;
    bool direct;
} fetch_plan;

static uint64_t saturating_mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return tsr_mul_u64(a, b, &product) ? product : UINT64_MAX;
}

static fetch_plan plan_fetch(const tsr_axis *axes, uint32_t count, uint32_t itemsize, size_t scratch_size)
{
    fetch_plan plan = {count, 1, itemsize, true};
    if (count && axes[count - 1].from == itemsize && axes[count - 1].to == itemsize) {
        plan.loops--;
        plan.span = axes[plan.loops].size * itemsize;
    }
    uint64_t cost = READ_COST + plan.span;
    while (plan.loops) {
        const tsr_axis axis = axes[plan.loops - 1];
        const uint64_t reach = saturating_mul(axis.size - 1, axis.from);
        const uint64_t span = reach > UINT64_MAX - plan.span ? UINT64_MAX : reach + plan.span;
        const uint64_t joined = span > UINT64_MAX / 4 ? UINT64_MAX : READ_COST + 2 * span;
        if (joined > saturating_mul(axis.size, cost)) break;
        if (span > scratch_size) {
            if (plan.span <= scratch_size) plan.step = (scratch_size - plan.span) / (axis.from ? axis.from : 1) + 1;
            plan.direct = plan.direct && plan.step == 1;
            break;
        }
        plan.loops--;
        plan.span = span;
        plan.direct = false;
        cost = joined;
    }
    return plan;
}

static tsr_status read_part(const tsr_gather *gather, tsr_located *part, uint64_t byte, void *to, size_t size,
                            tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_store(gather->checkpoint);
    const tsr_view *view = &part->view;
    if (!view->zstd && store->expect && part->span > size) store->expect(store, view->file, view->byte_offset, part->span);
    if (!view->zstd) return tsr_store_read(store, view->file, view->byte_offset + byte, to, size, err);
    if (!part->stream) {
        TSR_TRY(unzstd_open((tsr_range){store, view->file, view->stream_offset, view->stream_length},
                            tsr_checkpoint_host(gather->checkpoint), &part->stream, err));
    }
    TSR_TRY(unzstd_read(part->stream, view->byte_offset + byte, to, size, err));
    if (byte + size == part->span) { /* decoders are large, and each chunk of a column-sharded tensor has one */
        unzstd_close(part->stream);
        part->stream = NULL;
    }
    return TSR_OK;
}

/* ---- one part's share of a box ---- */

/* The state while a box is gathered. */
typedef struct gathering {
    const tsr_gather *gather;
    tsr_box box;
    uint8_t *to; /* the destination of the box's first element */
    uint8_t *scratch;
    size_t scratch_size;
    uint64_t filled; /* elements read so far */
    tsr_error *err;
} gathering;

/* The share of the box that one part contains. */
typedef struct part_share {
    tsr_located *part;
    uint64_t byte; /* the offset of its first element in the part */
    uint8_t *to;   /* the destination of its first element */
    tsr_axis axes[TSR_MAX_NDIM];
    uint32_t axis_count;
} part_share;

/* Byte offsets from the share's first element, in the part and at the destination. */
typedef struct fetch_at {
    uint64_t from, to;
} fetch_at;

/* Performs one read of the plan: `steps` steps of the last looped axis (1 if there is none). */
static tsr_status fetch_block(const gathering *g, const part_share *share, const fetch_plan *plan, uint64_t steps,
                              fetch_at at)
{
    tsr_located *part = share->part;
    const uint64_t byte = share->byte + at.from;
    if (plan->direct) return read_part(g->gather, part, byte, share->to + at.to, (size_t)plan->span, g->err);
    tsr_axis block[TSR_MAX_NDIM];
    uint32_t used = 0;
    if (steps > 1) block[used++] = (tsr_axis){steps, share->axes[plan->loops - 1].from, share->axes[plan->loops - 1].to};
    for (uint32_t i = plan->loops; i < share->axis_count; i++) block[used++] = share->axes[i];
    const uint64_t reach = steps > 1 ? (steps - 1) * block[0].from : 0;
    uint8_t *scratch = g->scratch;
    if (!part->view.zstd) scratch = tsr_place_for_copy(scratch, part->view.byte_offset + byte, TSR_NO_POSITION);
    TSR_TRY(read_part(g->gather, part, byte, scratch, (size_t)(reach + plan->span), g->err));
    copy_block(share->to + at.to, scratch, block, used, g->gather->itemsize);
    return TSR_OK;
}

/* Reads several steps of the last looped axis, one read each, next to each other into scratch memory, and then copies all of
 * them together. Copying element by element would write to cache lines of the destination that are far apart. */
static tsr_status fetch_rows(const gathering *g, const part_share *share, const fetch_plan *plan, uint64_t steps,
                             fetch_at at)
{
    const tsr_axis rows = share->axes[plan->loops - 1];
    tsr_axis block[TSR_MAX_NDIM];
    uint32_t used = 0;
    block[used++] = (tsr_axis){steps, plan->span, rows.to};
    for (uint32_t i = plan->loops; i < share->axis_count; i++) block[used++] = share->axes[i];
    for (uint64_t i = 0; i < steps; i++) {
        const uint64_t byte = share->byte + at.from + i * rows.from;
        TSR_TRY(read_part(g->gather, share->part, byte, g->scratch + i * plan->span, (size_t)plan->span, g->err));
    }
    copy_block(share->to + at.to, g->scratch, block, used, g->gather->itemsize);
    return TSR_OK;
}

/* Applies swap, conjugation and negation to the part's elements at the destination. */
static void resolve_share(const tsr_gather *gather, const tsr_located *part, tsr_axis *axes, uint32_t count, uint8_t *to)
{
    for (uint32_t i = 0; i < count; i++) axes[i].from = axes[i].to;
    count = axes_simplify(axes, count);
    const bool runs = count && axes[count - 1].to == gather->itemsize;
    const size_t run = runs ? (size_t)axes[count - 1].size * gather->itemsize : gather->itemsize;
    const uint32_t outer = runs ? count - 1 : count;
    uint64_t at[TSR_MAX_NDIM] = {0};
    do {
        uint64_t to_byte = 0;
        for (uint32_t i = 0; i < outer; i++) to_byte += at[i] * axes[i].to;
        resolve(to + to_byte, run, gather->dtype, part->view.swap, part->view.conj, part->view.neg);
    } while (axes_advance(axes, outer, at));
}

/* Gathers the share of the box that `part` contains. */
static tsr_status gather_part(gathering *g, tsr_located *part)
{
    const tsr_gather *gather = g->gather;
    const tsr_box box = g->box;
    const size_t scratch_size = g->scratch_size - TSR_COPY_SLACK;
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], to_step = gather->itemsize, volume = 1, at[TSR_MAX_NDIM] = {0};
    if (!tsr_box_intersect((tsr_box){gather->ndim, part->offsets, part->sizes}, box, offsets, sizes)) return TSR_OK;
    part_share share; /* most axes are not used, so they are not set */
    share.part = part;
    share.byte = 0;
    share.to = g->to;
    tsr_axis *axes = share.axes, kept[TSR_MAX_NDIM];
    for (uint32_t d = gather->ndim; d-- > 0;) {
        axes[d] = (tsr_axis){sizes[d], part->strides[d] * gather->itemsize, to_step};
        share.byte += (offsets[d] - part->offsets[d]) * axes[d].from;
        share.to += (offsets[d] - tsr_box_offset(box, d)) * to_step;
        to_step *= box.sizes[d];
        volume *= sizes[d];
    }
    g->filled += volume;
    memcpy(kept, axes, gather->ndim * sizeof *axes);
    share.axis_count = axes_simplify(axes, gather->ndim);
    fetch_plan plan = plan_fetch(axes, share.axis_count, gather->itemsize, scratch_size);
    const bool apart = plan.loops && !plan.direct && plan.step == 1 && plan.span <= scratch_size / 2;
    if (apart) plan.step = scratch_size / plan.span;
    const uint32_t outer = plan.loops ? plan.loops - 1 : 0;
    const tsr_axis last = plan.loops ? axes[outer] : (tsr_axis){.size = 1};
    do {
        uint64_t from = 0, to = 0;
        for (uint32_t i = 0; i < outer; i++) {
            from += at[i] * axes[i].from;
            to += at[i] * axes[i].to;
        }
        for (uint64_t i = 0; i < last.size; i += plan.step) {
            const uint64_t steps = last.size - i < plan.step ? last.size - i : plan.step;
            const fetch_at first = {from + i * last.from, to + i * last.to};
            TSR_TRY(apart ? fetch_rows(g, &share, &plan, steps, first) : fetch_block(g, &share, &plan, steps, first));
        }
    } while (axes_advance(axes, outer, at));
    if (part->view.swap || part->view.conj || part->view.neg) resolve_share(gather, part, kept, gather->ndim, share.to);
    return TSR_OK;
}

/* ---- the parts of a box ---- */

/* Returns the index of the first part that may contain an element at or after `first`. */
static size_t first_part(const tsr_gather *gather, uint64_t first)
{
    size_t low = 0, high = gather->part_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (gather->furthest[middle] < first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool holds(const tsr_gather *gather, const tsr_located *part, const uint64_t *at)
{
    for (uint32_t d = 0; d < gather->ndim; d++) {
        if (at[d] < part->offsets[d] || at[d] - part->offsets[d] >= part->sizes[d]) return false;
    }
    return true;
}

/* Returns the position in its file of the element at `at`, or TSR_NO_POSITION if it is compressed or in no part. */
static uint64_t gather_position(const tsr_gather *gather, const uint64_t *at)
{
    const uint64_t first = tsr_box_index((tsr_box){gather->ndim, NULL, gather->shape}, at);
    for (size_t i = first_part(gather, first); i < gather->part_count && gather->parts[i].first <= first; i++) {
        const tsr_located *part = &gather->parts[i];
        if (!holds(gather, part, at)) continue;
        uint64_t byte = part->view.byte_offset;
        for (uint32_t d = 0; d < gather->ndim; d++) byte += (at[d] - part->offsets[d]) * part->strides[d] * gather->itemsize;
        return part->view.zstd ? TSR_NO_POSITION : byte;
    }
    return TSR_NO_POSITION;
}

void tsr_gather_close(tsr_gather *gather)
{
    if (!gather) return;
    for (size_t i = 0; i < gather->part_count; i++) unzstd_close(gather->parts[i].stream);
    tsr_arena_free(gather->arena);
}

void tsr_tile_place(tsr_tile *tile, uint8_t *memory, uint64_t write_at)
{
    tile->data = tsr_place_for_copy(memory, gather_position(tile->gather, tile->offsets), write_at);
}

tsr_status tsr_gather_box(const tsr_gather *gather, tsr_box box, void *to, void *scratch, size_t scratch_size,
                          tsr_error *err)
{
    uint64_t volume, corner[TSR_MAX_NDIM];
    if (!tsr_box_volume(box, &volume) || volume == 0) return TSR_OK;
    const tsr_box whole = {gather->ndim, NULL, gather->shape};
    for (uint32_t d = 0; d < gather->ndim; d++) corner[d] = tsr_box_offset(box, d);
    const uint64_t first = tsr_box_index(whole, corner);
    for (uint32_t d = 0; d < gather->ndim; d++) corner[d] += box.sizes[d] - 1;
    const uint64_t last = tsr_box_index(whole, corner);
    gathering g = {.gather = gather, .box = box, .to = to, .scratch = scratch, .scratch_size = scratch_size, .err = err};
    tsr_status status = TSR_OK;
    for (size_t i = first_part(gather, first); i < gather->part_count && gather->parts[i].first <= last && status == TSR_OK;
         i++) {
        status = gather_part(&g, &gather->parts[i]);
    }
    if (status != TSR_OK) {
        tsr_error_context(err, "'%.*s'", TSR_STR_ARG(gather->entry->fqn));
        return status;
    }
    TSR_FAIL_IF(g.filled != volume, err, TSR_E_FORMAT, "'%.*s': %llu of the %llu elements of a box are in %s",
                TSR_STR_ARG(gather->entry->fqn),
                (unsigned long long)(g.filled < volume ? volume - g.filled : g.filled - volume), (unsigned long long)volume,
                g.filled < volume ? "no chunk" : "more than one chunk");
    return TSR_OK;
}
