/* What one thread of each kernel does, as plain functions. nvcc turns them into kernels (kernels.cu); the C compiler runs
 * them on a simulated grid (gpu_simulated.c), so that their arithmetic is tested on machines without a GPU.
 *
 * `unit` is the number of the block, and `thread` one of TSR_KERNEL_THREADS in it. Threads of a unit never write the same
 * byte. */
#ifndef TSR_CUDA_KERNEL_BODY_H
#define TSR_CUDA_KERNEL_BODY_H

#include "live/cuda/kernel_cast.h"
#include "live/cuda/kernel_table.h"

#ifdef __CUDACC__
typedef uint4 tsr_body_vector;
static_assert(sizeof(tsr_kernel_box) % 16 == 0, "fills of a table's boxes are read by vectors");
#else
#include <assert.h>
#include <stddef.h>
#include <string.h>
_Static_assert(sizeof(tsr_kernel_box) % 16 == 0 && offsetof(tsr_kernel_box, fill) % 16 == 0,
               "fills of a table's boxes are read by vectors");
typedef struct tsr_body_vector {
    uint32_t words[4];
} tsr_body_vector;
#endif

#ifdef __CUDA_ARCH__
/* Device memory and pinned memory are both in the global address space. Saying so saves the processor from finding out. */
#define TSR_BODY_LOAD(type, item, from) ((item) = *(const type *)__cvta_global_to_generic((size_t)(from)))
#define TSR_BODY_STORE(type, to, item)  (*(type *)__cvta_global_to_generic((size_t)(to)) = (item))
#elif defined(__CUDACC__)
#define TSR_BODY_LOAD(type, item, from) ((item) = *(const type *)(from))
#define TSR_BODY_STORE(type, to, item)  (*(type *)(to) = (item))
#else
/* GPUs trap if a vector is not aligned, and so does this. */
#define TSR_BODY_LOAD(type, item, from) \
    (assert((from) % sizeof(type) == 0), (void)memcpy(&(item), (const void *)(uintptr_t)(from), sizeof(type)))
#define TSR_BODY_STORE(type, to, item) \
    (assert((to) % sizeof(type) == 0), (void)memcpy((void *)(uintptr_t)(to), &(item), sizeof(type)))
#endif

#define TSR_BODY_MOVE(type, to, from) \
    do { \
        type item_; \
        TSR_BODY_LOAD(type, item_, from); \
        TSR_BODY_STORE(type, to, item_); \
    } while (0)

TSR_BODY void tsr_body_move(uint64_t to, uint64_t from, uint32_t width)
{
    switch (width) {
    case 16: TSR_BODY_MOVE(tsr_body_vector, to, from); break;
    case 8: TSR_BODY_MOVE(uint64_t, to, from); break;
    case 4: TSR_BODY_MOVE(uint32_t, to, from); break;
    case 2: TSR_BODY_MOVE(uint16_t, to, from); break;
    default: TSR_BODY_MOVE(uint8_t, to, from); break;
    }
}

/* ---- runs ---- */

TSR_BODY uint32_t tsr_body_find_run(const tsr_kernel_run *runs, uint32_t count, uint32_t unit)
{
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (runs[middle].first_unit <= unit) low = middle;
        else high = middle;
    }
    return low;
}

/* The width, as a power of two, of the widest vectors that can be loaded and stored at both addresses once `to` is aligned
 * to it. */
TSR_BODY uint32_t tsr_body_run_shift(uint64_t to, uint64_t from)
{
    const uint32_t apart = (uint32_t)(to ^ from);
    return apart & 1 ? 0 : apart & 2 ? 1 : apart & 4 ? 2 : apart & 8 ? 3 : 4;
}

/* Moves vectors `thread`, `thread` + TSR_KERNEL_THREADS, … of `count`. Loads four before it stores the first. */
#define TSR_BODY_VECTORS(type) \
    do { \
        const uint64_t step = (uint64_t)TSR_KERNEL_THREADS * sizeof(type); \
        uint64_t at = (uint64_t)thread * sizeof(type); \
        for (; i + 3 * TSR_KERNEL_THREADS < count; i += 4 * TSR_KERNEL_THREADS, at += 4 * step) { \
            type a, b, c, d; \
            TSR_BODY_LOAD(type, a, from + at); \
            TSR_BODY_LOAD(type, b, from + at + step); \
            TSR_BODY_LOAD(type, c, from + at + 2 * step); \
            TSR_BODY_LOAD(type, d, from + at + 3 * step); \
            TSR_BODY_STORE(type, to + at, a); \
            TSR_BODY_STORE(type, to + at + step, b); \
            TSR_BODY_STORE(type, to + at + 2 * step, c); \
            TSR_BODY_STORE(type, to + at + 3 * step, d); \
        } \
        for (; i < count; i += TSR_KERNEL_THREADS, at += step) TSR_BODY_MOVE(type, to + at, from + at); \
    } while (0)

TSR_BODY void tsr_body_vectors(uint64_t to, uint64_t from, uint32_t count, uint32_t shift, uint32_t thread)
{
    uint32_t i = thread;
    switch (shift) {
    case 4: TSR_BODY_VECTORS(tsr_body_vector); break;
    case 3: TSR_BODY_VECTORS(uint64_t); break;
    case 2: TSR_BODY_VECTORS(uint32_t); break;
    case 1: TSR_BODY_VECTORS(uint16_t); break;
    default: TSR_BODY_VECTORS(uint8_t); break;
    }
}

/* Copies [head up to the first aligned byte | vectors | tail]. Head and tail are copied byte by byte. */
TSR_BODY void tsr_body_runs(const tsr_kernel_run *runs, uint32_t count, uint32_t unit, uint32_t thread)
{
    const tsr_kernel_run *run = &runs[tsr_body_find_run(runs, count, unit)];
    const uint32_t begin = (unit - run->first_unit) * TSR_KERNEL_RUN_UNIT;
    const uint32_t left = run->bytes - begin, bytes = left < TSR_KERNEL_RUN_UNIT ? left : TSR_KERNEL_RUN_UNIT;
    const uint64_t to = run->to + begin, from = run->from + begin;
    const uint32_t shift = tsr_body_run_shift(to, from), width = 1u << shift;
    const uint32_t gap = (uint32_t)((~to + 1) & (width - 1)), head = gap < bytes ? gap : bytes;
    const uint32_t vectors = (bytes - head) >> shift, tail = head + (vectors << shift);
    uint32_t i;
    for (i = thread; i < head; i += TSR_KERNEL_THREADS) tsr_body_move(to + i, from + i, 1);
    tsr_body_vectors(to + head, from + head, vectors, shift, thread);
    for (i = tail + thread; i < bytes; i += TSR_KERNEL_THREADS) tsr_body_move(to + i, from + i, 1);
}

/* ---- boxes ---- */

TSR_BODY uint32_t tsr_body_find_box(const tsr_kernel_box *boxes, uint32_t count, uint32_t unit)
{
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (boxes[middle].first_unit <= unit) low = middle;
        else high = middle;
    }
    return low;
}

TSR_BODY uint64_t tsr_body_load(uint64_t from, int bytes)
{
    switch (bytes) {
    case 8: {
        uint64_t item;
        TSR_BODY_LOAD(uint64_t, item, from);
        return item;
    }
    case 4: {
        uint32_t item;
        TSR_BODY_LOAD(uint32_t, item, from);
        return item;
    }
    case 2: {
        uint16_t item;
        TSR_BODY_LOAD(uint16_t, item, from);
        return item;
    }
    default: {
        uint8_t item;
        TSR_BODY_LOAD(uint8_t, item, from);
        return item;
    }
    }
}

TSR_BODY void tsr_body_store(uint64_t to, uint64_t bits, int bytes)
{
    switch (bytes) {
    case 8: {
        const uint64_t item = (uint64_t)bits;
        TSR_BODY_STORE(uint64_t, to, item);
        break;
    }
    case 4: {
        const uint32_t item = (uint32_t)bits;
        TSR_BODY_STORE(uint32_t, to, item);
        break;
    }
    case 2: {
        const uint16_t item = (uint16_t)bits;
        TSR_BODY_STORE(uint16_t, to, item);
        break;
    }
    default: {
        const uint8_t item = (uint8_t)bits;
        TSR_BODY_STORE(uint8_t, to, item);
        break;
    }
    }
}

TSR_BODY void tsr_body_boxes(const tsr_kernel_box *boxes, uint32_t count, uint32_t unit, uint32_t thread)
{
    const tsr_kernel_box *box = &boxes[tsr_body_find_box(boxes, count, unit)];
    const uint32_t begin = (unit - box->first_unit) * TSR_KERNEL_BOX_UNIT;
    const uint32_t left = box->count - begin, end = begin + (left < TSR_KERNEL_BOX_UNIT ? left : TSR_KERNEL_BOX_UNIT);
    const tsr_body_form in = tsr_body_form_of(box->from_type), out = tsr_body_form_of(box->to_type);
    const bool casts = box->from_type != box->to_type;
    uint32_t i;
    for (i = begin + thread; i < end; i += TSR_KERNEL_THREADS) {
        uint64_t to = box->to, from = box->from;
        uint32_t rest = i, a;
        for (a = box->axes - 1u; a > 0; a--) {
            const tsr_kernel_axis *axis = &box->axis[a];
            const uint32_t above = ((uint32_t)((uint64_t)rest * axis->magic >> 32) + rest) >> box->shift[a];
            const uint32_t at = rest - above * axis->size;
            to += at * axis->to;
            from += at * axis->from;
            rest = above;
        }
        to += rest * box->axis[0].to;
        from += rest * box->axis[0].from;
        if (box->is_fill) tsr_body_move(to, (uint64_t)(uintptr_t)box->fill + from, box->width);
        else if (casts)
            tsr_body_store(to, tsr_body_from_double(out, tsr_body_to_double(in, tsr_body_load(from, in.bytes))), out.bytes);
        else tsr_body_move(to, from, box->width);
    }
}

#endif
