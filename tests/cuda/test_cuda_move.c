/* How pieces are combined into copies and launches, tested on a device that only records its calls. */
#include <string.h>

#include "cuda/on_devices.h"
#include "live/cuda/backend.h"

typedef struct notes {
    tsr_gpu base;
    unsigned copies, run_launches, box_launches, pieces;
    size_t rows, row_bytes, to_pitch, from_pitch;
    uint64_t vectors, most_vectors;
    uint64_t units;
    uint32_t widest;
} notes;

static tsr_status note_copy(tsr_gpu_stream *stream, const tsr_gpu_rows *what, tsr_error *err)
{
    notes *n = (notes *)stream->device;
    (void)err;
    n->copies++;
    n->rows = what->rows;
    n->row_bytes = what->row_bytes;
    n->to_pitch = what->to_pitch;
    n->from_pitch = what->from_pitch;
    return TSR_OK;
}

static tsr_status note_runs(tsr_gpu_stream *stream, const tsr_kernel_run *runs, uint32_t count, uint32_t units,
                            tsr_error *err)
{
    notes *n = (notes *)stream->device;
    (void)runs, (void)err;
    n->run_launches++;
    n->pieces += count;
    n->units += units;
    return TSR_OK;
}

static tsr_status note_boxes(tsr_gpu_stream *stream, const tsr_kernel_box *boxes, uint32_t count, uint32_t units,
                             tsr_error *err)
{
    notes *n = (notes *)stream->device;
    (void)err;
    n->box_launches++;
    n->pieces += count;
    n->units += units;
    assert_true(units <= TSR_KERNEL_COUNT_MOST);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t product = 1;
        for (uint32_t a = 0; a < boxes[i].axes; a++) product *= boxes[i].axis[a].size;
        assert_int_equal(product, boxes[i].count);
        n->vectors += boxes[i].count;
        if (boxes[i].count > n->most_vectors) n->most_vectors = boxes[i].count;
        if (boxes[i].width > n->widest) n->widest = boxes[i].width;
    }
    return TSR_OK;
}

/* Addresses below 2^40 are on the device, and all others are pageable. */
static tsr_gpu_place note_place(tsr_gpu *device, const void *memory)
{
    (void)device;
    return (uintptr_t)memory < (uintptr_t)1 << 40 ? TSR_PLACE_DEVICE : TSR_PLACE_PAGEABLE;
}

/* One allocation ends at every multiple of 2^40 bytes, and one at 2^20 − 2^12. */
static size_t note_reach(tsr_gpu *device, const void *memory)
{
    const uintptr_t end = ((uintptr_t)1 << 20) - 4096, at = (uintptr_t)memory;
    (void)device;
    return at < end ? end - at : ((uintptr_t)1 << 40) - at % ((uintptr_t)1 << 40);
}

static const tsr_backend note_backend = {
    .copy_2d = note_copy, .runs = note_runs, .boxes = note_boxes, .place_of = note_place, .reach = note_reach};

static void *at(uintptr_t address)
{
    return (void *)address;
}

#define HOST ((uintptr_t)1 << 41)

static notes move_runs(const tsr_gpu_run *runs, size_t count)
{
    notes n = {.base = {&note_backend, &test_host}};
    tsr_gpu_stream stream = {&n.base};
    OK(tsr_gpu_move_runs(&stream, runs, count, err));
    return n;
}

static notes move_box(const tsr_gpu_box *box)
{
    notes n = {.base = {&note_backend, &test_host}};
    tsr_gpu_stream stream = {&n.base};
    OK(tsr_gpu_move_boxes(&stream, box, 1, err));
    return n;
}

static void test_cuda_move__adjacent_runs_are_one_copy(void **state)
{
    (void)state;
    const tsr_gpu_run runs[] = {
        {at(1000), at(5000), 100}, {at(1100), at(5100), 28}, {at(1128), at(5128), 0}, {at(1128), at(5128), 4}};
    const notes n = move_runs(runs, 4);
    assert_int_equal(n.copies, 1);
    assert_int_equal(n.rows * n.row_bytes, 132);
    assert_int_equal(n.run_launches, 0);
}

static void test_cuda_move__no_copy_reaches_over_the_end_of_an_allocation(void **state)
{
    (void)state;
    const uintptr_t end = ((uintptr_t)1 << 20) - 4096;
    const tsr_gpu_run runs[] = {{at(end - 300), at(5000), 100}, {at(end - 200), at(5100), 200}, {at(end), at(5300), 77}};
    const notes n = move_runs(runs, 3);
    assert_int_equal(n.copies, 0);
    assert_int_equal(n.run_launches, 1);
    assert_int_equal(n.pieces, 2);
}

static void test_cuda_move__many_small_runs_are_one_kernel(void **state)
{
    (void)state;
    enum { COUNT = 500 };
    tsr_gpu_run runs[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        runs[i] = (tsr_gpu_run){at(1000 + i * 9000 + i % 7), at(500 + i * 8000), 4096 + i % 3};
    const notes n = move_runs(runs, COUNT);
    assert_int_equal(n.copies, 0);
    assert_int_equal(n.run_launches, 1);
    assert_int_equal(n.pieces, COUNT);
    assert_int_equal(n.units, COUNT);
}

/* The second half of each run begins where the first one ends, also where a launch has begun in between. */
static void test_cuda_move__the_first_of_very_many_runs_begin_early(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    tsr_gpu_run *runs = malloc(2 * COUNT * sizeof *runs);
    for (size_t i = 0; i < COUNT; i++) {
        const uintptr_t to = (1 << 21) + i * 9000 + i % 7, from = (1 << 21) + 500 + i * 8000;
        runs[2 * i] = (tsr_gpu_run){at(to), at(from), 2048};
        runs[2 * i + 1] = (tsr_gpu_run){at(to + 2048), at(from + 2048), 2048 + i % 3};
    }
    const notes n = move_runs(runs, 2 * COUNT);
    assert_int_equal(n.copies, 0);
    assert_int_equal(n.run_launches, 3); /* 512, 16,384 and the rest */
    assert_int_equal(n.pieces, COUNT);
    assert_int_equal(n.units, COUNT);
    free(runs);
}

static void test_cuda_move__runs_at_regular_distances_are_one_2d_copy(void **state)
{
    (void)state;
    tsr_gpu_run runs[50];
    for (size_t i = 0; i < 50; i++) runs[i] = (tsr_gpu_run){at(1000 + i * 9000), at(HOST + i * 8192), 128};
    const notes n = move_runs(runs, 50);
    assert_int_equal(n.copies, 1);
    assert_int_equal(n.run_launches, 0);
    assert_int_equal(n.rows, 50);
    assert_int_equal(n.row_bytes, 128);
    assert_int_equal(n.to_pitch, 9000);
    assert_int_equal(n.from_pitch, 8192);
}

static void test_cuda_move__pageable_memory_goes_by_copies(void **state)
{
    (void)state;
    tsr_gpu_run runs[3] = {{at(1000), at(HOST), 5}, {at(2000), at(HOST + 70), 50}, {at(3000), at(HOST + 300), 7}};
    const notes n = move_runs(runs, 3);
    assert_int_equal(n.copies, 3);
    assert_int_equal(n.run_launches, 0);
}

typedef struct box_case {
    const char *name;
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t sizes[4], to[4], from[4];
    uintptr_t to_at, from_at;
    unsigned copies, launches;
    uint32_t width; /* width of kernels */
    uint64_t vectors;
} box_case;

static const box_case box_cases[] = {
    {"dense on both sides", TSR_FLOAT32, 3, {4, 5, 6}, {30, 6, 1}, {30, 6, 1}, 4096, 8192, 1, 0, 0, 0},
    {"single element", TSR_FLOAT32, 0, {0}, {0}, {0}, 4096, 8192, 1, 0, 0, 0},
    {"dims of one step do not matter", TSR_INT8, 4, {1, 7, 1, 3}, {99, 3, 77, 1}, {5, 3, 6, 1}, 4096, 8192, 1, 0, 0, 0},
    {"transposed on both sides alike", TSR_FLOAT32, 2, {4, 5}, {1, 4}, {1, 4}, 4096, 8192, 1, 0, 0, 0},
    {"long rows", TSR_FLOAT32, 2, {8, 2048}, {2048, 1}, {4096, 1}, 4096, 81920, 1, 0, 0, 0},
    {"short rows, aligned", TSR_FLOAT32, 2, {8, 64}, {64, 1}, {128, 1}, 4096, 8192, 0, 1, 16, 128},
    {"short rows, odd distances", TSR_FLOAT32, 2, {8, 6}, {6, 1}, {9, 1}, 4096, 8192, 0, 1, 4, 48},
    {"short rows, odd addresses", TSR_FLOAT32, 2, {8, 64}, {64, 1}, {128, 1}, 4098, 8192, 0, 1, 2, 1024},
    {"transpose", TSR_FLOAT32, 2, {8, 6}, {6, 1}, {1, 8}, 4096, 8192, 0, 1, 4, 48},
    {"transpose of halves of elements", TSR_COMPLEX128, 2, {8, 6}, {6, 1}, {1, 8}, 4096, 8200, 0, 1, 8, 96},
    {"nothing", TSR_FLOAT32, 2, {8, 0}, {6, 1}, {1, 8}, 4096, 8192, 0, 0, 0, 0},
};

static void test_cuda_move__boxes_take_the_shortest_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof box_cases / sizeof box_cases[0]; i++) {
        const box_case *c = &box_cases[i];
        const tsr_gpu_box box = {at(c->to_at), at(c->from_at), c->dtype, c->dtype, c->ndim, c->sizes, c->to, c->from, {0}};
        const notes n = move_box(&box);
        if (n.copies != c->copies || n.box_launches != c->launches || n.widest != c->width || n.vectors != c->vectors)
            fail_msg("%s: %u copies, %u launches, %u bytes wide, %lu vectors", c->name, n.copies, n.box_launches, n.widest,
                     (unsigned long)n.vectors);
    }
}

static void test_cuda_move__boxes_beyond_32_bits_go_in_several(void **state)
{
    (void)state;
    const uint64_t sizes[] = {3, ((uint64_t)1 << 33) + 5, 2}, to[] = {1, 6, 3}, from[] = {((uint64_t)1 << 34) + 10, 2, 1};
    const tsr_gpu_box box = {at(1), at(3), TSR_UINT8, TSR_UINT8, 3, sizes, to, from, {0}};
    const notes n = move_box(&box);
    assert_int_equal(n.vectors, 6 * sizes[1]);
    assert_true(n.most_vectors <= TSR_KERNEL_COUNT_MOST);
    assert_true(n.pieces >= 24);
    const tsr_gpu_run runs[] = {
        {at(1), at(5), (size_t)5 << 20}, {at((size_t)9 << 30), at(3), 1000}, {at((size_t)11 << 30), at(1), 3000000}};
    assert_int_equal(move_runs(runs, 3).copies, 3);
}

typedef struct bad_box {
    uint32_t ndim;
    tsr_dtype to, from;
    uint64_t size, stride;
    uintptr_t from_at;
    tsr_status status;
    const char *part;
} bad_box;

static const bad_box bad_boxes[] = {
    {9, TSR_INT8, TSR_INT8, 1, 1, 64, TSR_E_USAGE, "9 dimensions; at most 8"},
    {1, TSR_INT32, TSR_FLOAT32, 3, 1, 64, TSR_E_UNSUPPORTED, "float32 cannot be cast to int32"},
    {1, TSR_FLOAT6_E2M3, TSR_FLOAT6_E2M3, 3, 1, 64, TSR_E_UNSUPPORTED, "float6_e2m3"},
    {2, TSR_INT64, TSR_INT64, (uint64_t)1 << 40, (uint64_t)1 << 40, 64, TSR_E_USAGE, "larger than the address space"},
    {1, TSR_FLOAT16, TSR_FLOAT32, 3, 1, 66, TSR_E_USAGE, "multiples of the element sizes"},
};

static void test_cuda_move__boxes_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_boxes / sizeof bad_boxes[0]; i++) {
        const bad_box *b = &bad_boxes[i];
        uint64_t sizes[9], strides[9];
        for (size_t k = 0; k < 9; k++) {
            sizes[k] = b->size;
            strides[k] = b->stride;
        }
        const tsr_gpu_box box = {at(64), at(b->from_at), b->to, b->from, b->ndim, sizes, strides, strides, {0}};
        notes n = {.base = {&note_backend, &test_host}};
        tsr_gpu_stream stream = {&n.base};
        tsr_error error = {0};
        assert_int_equal(tsr_gpu_move_boxes(&stream, &box, 1, &error), b->status);
        if (!strstr(error.message, b->part)) fail_msg("'%s' is not in '%s'", b->part, error.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_move__adjacent_runs_are_one_copy),
        cmocka_unit_test(test_cuda_move__no_copy_reaches_over_the_end_of_an_allocation),
        cmocka_unit_test(test_cuda_move__many_small_runs_are_one_kernel),
        cmocka_unit_test(test_cuda_move__the_first_of_very_many_runs_begin_early),
        cmocka_unit_test(test_cuda_move__runs_at_regular_distances_are_one_2d_copy),
        cmocka_unit_test(test_cuda_move__pageable_memory_goes_by_copies),
        cmocka_unit_test(test_cuda_move__boxes_take_the_shortest_way),
        cmocka_unit_test(test_cuda_move__boxes_beyond_32_bits_go_in_several),
        cmocka_unit_test(test_cuda_move__boxes_that_make_no_sense_are_refused),
    };
    filter_tests();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
