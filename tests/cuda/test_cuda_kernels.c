/* Compares the bits that kernels produce with loops over single elements, written here, and with the core. */
#include <math.h>
#include <string.h>

#include "cuda/on_devices.h"
#include "support/full_counts.h"
#include "support/random.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/read.h"

static const tsr_dtype floats[] = {TSR_FLOAT64,     TSR_FLOAT32,         TSR_FLOAT16,
                                   TSR_BFLOAT16,    TSR_FLOAT8_E4M3FN,   TSR_FLOAT8_E4M3FNUZ,
                                   TSR_FLOAT8_E5M2, TSR_FLOAT8_E5M2FNUZ, TSR_FLOAT8_E8M0FNU};
#define FLOATS (sizeof floats / sizeof floats[0])

static void fill_random(random_source *random, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) ((uint8_t *)bytes)[i] = (uint8_t)random_next(random);
}

/* ---- boxes ---- */

#define AREA  ((size_t)1 << 16)
#define BOXES 4u

typedef struct shape {
    uint32_t ndim;
    uint64_t sizes[8], to[8], from[8];
    size_t to_byte, from_byte; /* place of the first element in its area, in bytes */
} shape;

/* Sets the strides of a dense or spaced block whose dims are in any order. Returns the number of elements that it spans. */
static uint64_t random_strides(random_source *random, const shape *s, uint64_t *strides, bool may_repeat)
{
    uint32_t order[8];
    uint64_t step = random_in(random, 0, 3) ? 1 : random_in(random, 1, 4);
    for (uint32_t i = 0; i < s->ndim; i++) order[i] = s->ndim - 1 - i;
    for (uint32_t i = s->ndim; i > 1 && random_in(random, 0, 1); i--) {
        const uint32_t other = (uint32_t)random_in(random, 0, i - 1), kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
    for (uint32_t i = 0; i < s->ndim; i++) {
        const uint32_t dim = order[i];
        strides[dim] = may_repeat && random_in(random, 0, 9) == 0 ? 0 : step;
        if (s->sizes[dim] > 1) step *= s->sizes[dim];
        if (random_in(random, 0, 3) == 0) step += random_in(random, 0, 3);
    }
    return step;
}

static shape random_shape(random_source *random, size_t itemsize)
{
    for (;;) {
        shape s = {.ndim = (uint32_t)random_in(random, 0, 8)};
        for (uint32_t i = 0; i < s.ndim; i++)
            s.sizes[i] = random_in(random, 0, 30) == 0 ? 0 : random_in(random, 1, s.ndim < 3 ? 70 : s.ndim < 5 ? 9 : 4);
        const uint64_t to = random_strides(random, &s, s.to, false), from = random_strides(random, &s, s.from, true);
        if (to * itemsize + 64 > AREA || from * itemsize + 64 > AREA) continue;
        const bool aligned = random_in(random, 0, 1);
        s.to_byte = (aligned ? itemsize : 1) * random_in(random, 0, 3);
        s.from_byte = (aligned ? itemsize : 1) * random_in(random, 0, 3);
        return s;
    }
}

/* Finds the element with this row-major number, by division. */
static void locate(const shape *s, uint64_t number, uint64_t *to, uint64_t *from)
{
    *to = *from = 0;
    for (uint32_t i = s->ndim; i-- > 0; number /= s->sizes[i]) {
        *to += number % s->sizes[i] * s->to[i];
        *from += number % s->sizes[i] * s->from[i];
    }
}

static uint64_t volume(const shape *s)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < s->ndim; i++) count *= s->sizes[i];
    return count;
}

static void expect_box(const shape *s, uint8_t *to, const uint8_t *from, size_t itemsize, const uint8_t *fill)
{
    const uint64_t count = volume(s);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t to_at, from_at;
        locate(s, i, &to_at, &from_at);
        memcpy(to + s->to_byte + to_at * itemsize, fill ? fill : from + s->from_byte + from_at * itemsize, itemsize);
    }
}

/* Moves several boxes in one call, each in an area of its own. Bytes between the elements must not change. */
static void check_boxes(tsr_gpu *device, random_source *random, tsr_dtype dtype, bool fills)
{
    const size_t itemsize = tsr_dtype_size(dtype), count = (size_t)random_in(random, 1, BOXES);
    uint8_t *from = malloc(BOXES * AREA), *to = malloc(BOXES * AREA), *expected = malloc(BOXES * AREA);
    fill_random(random, from, BOXES * AREA);
    fill_random(random, expected, BOXES * AREA);
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    uint8_t *there = upload(device, stream, from, BOXES * AREA), *here = upload(device, stream, expected, BOXES * AREA);
    shape shapes[BOXES];
    tsr_gpu_box boxes[BOXES];
    for (size_t i = 0; i < count; i++) {
        shapes[i] = random_shape(random, itemsize);
        boxes[i] = (tsr_gpu_box){here + i * AREA + shapes[i].to_byte,
                                 fills ? NULL : there + i * AREA + shapes[i].from_byte,
                                 dtype,
                                 dtype,
                                 shapes[i].ndim,
                                 shapes[i].sizes,
                                 shapes[i].to,
                                 shapes[i].from,
                                 {0}};
        fill_random(random, boxes[i].fill, sizeof boxes[i].fill);
        expect_box(&shapes[i], expected + i * AREA, from + i * AREA, itemsize, fills ? boxes[i].fill : NULL);
    }
    OK(tsr_gpu_move_boxes(stream, boxes, count, err));
    download(stream, to, here, BOXES * AREA);
    assert_memory_equal(to, expected, BOXES * AREA);
    tsr_gpu_free(device, there);
    tsr_gpu_free(device, here);
    tsr_gpu_stream_free(stream);
    free(from);
    free(to);
    free(expected);
}

static const tsr_dtype by_size[] = {TSR_UINT8, TSR_BFLOAT16, TSR_FLOAT32, TSR_INT64, TSR_COMPLEX128};

static uint64_t rounds(void)
{
    return full_counts() ? 4000 : 200;
}

static void test_cuda_kernels__boxes_of_any_shape_and_alignment_arrive_whole(void **state)
{
    tsr_gpu *device = device_of(state);
    random_source random = {71};
    for (uint64_t i = 0; i < rounds(); i++) check_boxes(device, &random, by_size[i % 5], false);
}

static void test_cuda_kernels__fills_write_their_elements_and_nothing_else(void **state)
{
    tsr_gpu *device = device_of(state);
    random_source random = {72};
    for (uint64_t i = 0; i < rounds() / 2; i++) check_boxes(device, &random, by_size[i % 5], true);
}

/* ---- runs ---- */

static void check_runs(tsr_gpu *device, random_source *random)
{
    enum { SIZE = 1 << 18, MOST = 300 };
    uint8_t *from = malloc(SIZE), *to = malloc(SIZE), *expected = malloc(SIZE);
    fill_random(random, from, SIZE);
    fill_random(random, expected, SIZE);
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    uint8_t *there = upload(device, stream, from, SIZE), *here = upload(device, stream, expected, SIZE);
    tsr_gpu_run runs[MOST];
    size_t count = 0, at = random_in(random, 0, 40), equal = random_in(random, 0, 3) ? 0 : random_in(random, 1, 5000);
    while (count < MOST) {
        const size_t bytes = equal                     ? equal
                             : random_in(random, 0, 9) ? random_in(random, 0, 700)
                                                       : random_in(random, 0, 90000);
        const size_t source = random_in(random, 0, 3) || bytes > SIZE / 2 ? at : random_in(random, 0, SIZE - bytes);
        if (at + bytes > SIZE) break;
        runs[count++] = (tsr_gpu_run){here + at, there + source, bytes};
        memcpy(expected + at, from + source, bytes);
        at += bytes + (equal ? 24 : random_in(random, 0, 2) * random_in(random, 1, 30));
    }
    OK(tsr_gpu_move_runs(stream, runs, count, err));
    download(stream, to, here, SIZE);
    assert_memory_equal(to, expected, SIZE);
    tsr_gpu_free(device, there);
    tsr_gpu_free(device, here);
    tsr_gpu_stream_free(stream);
    free(from);
    free(to);
    free(expected);
}

static void test_cuda_kernels__runs_of_any_length_and_alignment_arrive_whole(void **state)
{
    tsr_gpu *device = device_of(state);
    random_source random = {73};
    for (uint64_t i = 0; i < rounds() / 2; i++) check_runs(device, &random);
}

/* ---- casts ---- */

/* Writes every pattern of 8-bit and 16-bit types. For wider types, writes random bits and the neighbourhood of every
 * critical value: the limits of the narrower types, and the midpoints between neighbouring values of those types. */
static size_t patterns(tsr_dtype dtype, uint8_t *out, size_t capacity)
{
    const size_t size = tsr_dtype_size(dtype);
    random_source random = {74};
    if (size <= 2) {
        for (size_t i = 0; i < (size_t)1 << (8 * size); i++) memcpy(out + i * size, &i, size);
        return (size_t)1 << (8 * size);
    }
    size_t count = 0;
    for (size_t f = 2; f < FLOATS; f++) {
        const size_t narrow = tsr_dtype_size(floats[f]), codes = (size_t)1 << (8 * narrow);
        for (size_t code = 0; code < codes && count + 8 < capacity; code += narrow == 2 ? 61 : 1) {
            uint8_t value[8], next[8];
            const size_t after = code + 1 < codes ? code + 1 : code;
            tsr_cast(floats[f], TSR_FLOAT64, (const uint8_t *)&code, 1, value);
            tsr_cast(floats[f], TSR_FLOAT64, (const uint8_t *)&after, 1, next);
            double a, b;
            memcpy(&a, value, 8);
            memcpy(&b, next, 8);
            const double near[] = {a, (a + b) / 2, nextafter((a + b) / 2, a), nextafter((a + b) / 2, b)};
            for (size_t i = 0; i < 4; i++, count++) {
                if (dtype == TSR_FLOAT64) memcpy(out + 8 * count, &near[i], 8);
                else tsr_cast(TSR_FLOAT64, dtype, (const uint8_t *)&near[i], 1, out + size * count);
            }
        }
    }
    fill_random(&random, out + count * size, (capacity - count) * size);
    return capacity;
}

static void test_cuda_kernels__casts_round_as_core_does(void **state)
{
    tsr_gpu *device = device_of(state);
    enum { MOST = 1 << 16 };
    uint8_t *from = malloc(8 * MOST), *to = malloc(8 * MOST), *expected = malloc(8 * MOST);
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    for (size_t i = 0; i < FLOATS; i++) {
        const uint64_t count = patterns(floats[i], from, MOST), one = 1;
        void *there = upload(device, stream, from, count * tsr_dtype_size(floats[i])), *here;
        for (size_t j = 0; j < FLOATS; j++) {
            if (i == j) continue;
            const size_t bytes = count * tsr_dtype_size(floats[j]);
            OK(tsr_gpu_alloc(device, bytes, &here, err));
            const tsr_gpu_box box = {here, there, floats[j], floats[i], 1, &count, &one, &one, {0}};
            OK(tsr_gpu_move_boxes(stream, &box, 1, err));
            download(stream, to, here, bytes);
            tsr_cast(floats[i], floats[j], from, count, expected);
            assert_memory_equal(to, expected, bytes);
            tsr_gpu_free(device, here);
        }
        tsr_gpu_free(device, there);
    }
    tsr_gpu_stream_free(stream);
    free(from);
    free(to);
    free(expected);
}

static void test_cuda_kernels__unpacking_and_casting_are_one_move(void **state)
{
    tsr_gpu *device = device_of(state);
    const uint64_t sizes[] = {37, 21, 5}, from_strides[] = {1, 40, 840}, to_strides[] = {105, 5, 1};
    float from[5 * 840];
    uint16_t to[37 * 21 * 5], expected[37 * 21 * 5];
    for (size_t i = 0; i < 5 * 840; i++) from[i] = (float)((double)i * 1.0137 - 977);
    for (size_t n = 0; n < 37 * 21 * 5; n++) {
        const size_t i = n / 105, j = n / 5 % 21, k = n % 5;
        tsr_cast(TSR_FLOAT32, TSR_BFLOAT16, (const uint8_t *)&from[i + j * 40 + k * 840], 1, (uint8_t *)&expected[n]);
    }
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    void *there = upload(device, stream, from, sizeof from), *here;
    OK(tsr_gpu_alloc(device, sizeof to, &here, err));
    const tsr_gpu_box box = {here, there, TSR_BFLOAT16, TSR_FLOAT32, 3, sizes, to_strides, from_strides, {0}};
    OK(tsr_gpu_move_boxes(stream, &box, 1, err));
    download(stream, to, here, sizeof to);
    assert_memory_equal(to, expected, sizeof to);
    tsr_gpu_free(device, here);
    tsr_gpu_free(device, there);
    tsr_gpu_stream_free(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(test_cuda_kernels__boxes_of_any_shape_and_alignment_arrive_whole),
        ON_DEVICES(test_cuda_kernels__fills_write_their_elements_and_nothing_else),
        ON_DEVICES(test_cuda_kernels__runs_of_any_length_and_alignment_arrive_whole),
        ON_DEVICES(test_cuda_kernels__casts_round_as_core_does),
        ON_DEVICES(test_cuda_kernels__unpacking_and_casting_are_one_move),
    };
    filter_tests();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
