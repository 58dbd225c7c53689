/* Copies of boxes in memory against loops over bytes: every alignment, length and distance, whole and bit by bit, into the
 * caches and past them. What lies between the runs stays as it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "live/tensor/pack.h"

#define ROOM ((size_t)1 << 22)

static uint32_t state = 7;

static uint32_t draw(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

static uint8_t *random_bytes(size_t size)
{
    uint8_t *bytes = aligned_alloc(64, (size + 63) / 64 * 64);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)draw(256);
    return bytes;
}

static void rows_are_copied_at_every_alignment(void **ctx)
{
    static const uint64_t runs[] = {1, 3, 64, 100, 255, 256, 257, 511, 1000, 4096, 8191, 8192, 8193, 20000};
    static const uint64_t gaps[] = {0, 1, 16, 48, 100};
    uint8_t *from = random_bytes(ROOM), *to = random_bytes(ROOM), *expected = malloc(ROOM);
    (void)ctx;
    assert_non_null(expected);
    memcpy(expected, to, ROOM);
    for (size_t n = 0; n < 14 * 5 * 2 * 12; n++) {
        const uint64_t run = runs[n % 14], count = 1 + draw(13), to_at = draw(200), from_at = draw(200);
        tsr_rows r = {.to = to + to_at,
                      .from = from + from_at,
                      .to_stride = run + gaps[n / 14 % 5],
                      .from_stride = run + gaps[draw(5)],
                      .run = run,
                      .count = count,
                      .reach = count + draw(3),
                      .past_caches = n / 70 % 2};
        for (uint64_t i = 0; i < count; i++)
            for (uint64_t k = 0; k < run; k++) expected[to_at + i * r.to_stride + k] = from[from_at + i * r.from_stride + k];
        tsr_rows_copy(&r);
        assert_memory_equal(to, expected, 300 + count * r.to_stride);
    }
    assert_memory_equal(to, expected, ROOM);
    free(from), free(to), free(expected);
}

/* A box of `sizes` inside two buffers. */
typedef struct boxes {
    uint64_t sizes[3], from_sizes[3], to_sizes[3], from_at[3], to_at[3];
    tsr_link from, to;
} boxes;

static void draw_boxes(boxes *b, uint32_t largest, uint32_t itemsize)
{
    uint64_t bytes = itemsize;
    for (int d = 0; d < 3; d++) {
        b->sizes[d] = 1 + draw(d == 2 ? largest : 9);
        b->from_at[d] = draw(2) * draw(4);
        b->to_at[d] = draw(2) * draw(4);
        b->from_sizes[d] = b->from_at[d] + b->sizes[d] + draw(2) * draw(5);
        b->to_sizes[d] = b->to_at[d] + b->sizes[d] + draw(2) * draw(5);
        bytes *= b->sizes[d];
    }
    b->from = (tsr_link){.ndim = 3, .itemsize = itemsize, .sizes = b->sizes, .bytes = bytes};
    b->to = b->from;
    b->from.offsets = b->from_at, b->from.buffer_sizes = b->from_sizes;
    b->to.offsets = b->to_at, b->to.buffer_sizes = b->to_sizes;
}

static size_t place_of(const tsr_link *link, uint64_t x, uint64_t y, uint64_t z)
{
    const uint64_t *at = link->offsets, *shape = link->buffer_sizes;
    return (((x + at[0]) * shape[1] + y + at[1]) * shape[2] + z + at[2]) * link->itemsize;
}

static size_t buffer_bytes(const tsr_link *link)
{
    return link->buffer_sizes[0] * link->buffer_sizes[1] * link->buffer_sizes[2] * link->itemsize;
}

static void copy_elements(const boxes *b, uint8_t *to)
{
    for (uint64_t x = 0; x < b->sizes[0]; x++)
        for (uint64_t y = 0; y < b->sizes[1]; y++)
            for (uint64_t z = 0; z < b->sizes[2]; z++)
                memcpy(to + place_of(&b->to, x, y, z), b->from.data + place_of(&b->from, x, y, z), b->to.itemsize);
}

static void copy_at_once(const boxes *b)
{
    tsr_link_copying c = tsr_link_copy_start(&b->from, &b->to);
    assert_int_equal(tsr_link_copy_some(&c, UINT64_MAX, NULL), TSR_OK);
    assert_int_equal(c.walk.runs_left, 0);
}

static void copy_bit_by_bit(const boxes *b, uint32_t most)
{
    tsr_link_copying c = tsr_link_copy_start(&b->from, &b->to);
    while (c.walk.runs_left) assert_int_equal(tsr_link_copy_some(&c, 1 + draw(most), NULL), TSR_OK);
}

/* Through slices of any size, some of them written past the caches. */
static void copy_as_streams(const boxes *b, uint32_t most)
{
    tsr_stream out = tsr_stream_of(&b->from, 1), in = tsr_stream_of(&b->to, 1);
    uint8_t *slice = malloc(most);
    assert_non_null(slice);
    while (out.left) {
        uint64_t bytes = 1 + draw(most);
        if (bytes > out.left) bytes = out.left;
        out.past_caches = draw(2);
        assert_int_equal(tsr_stream_pack(&out, slice, NULL, bytes, NULL), TSR_OK);
        assert_int_equal(tsr_stream_unpack(&in, slice, NULL, bytes, NULL), TSR_OK);
    }
    assert_int_equal(in.left, 0);
    free(slice);
}

static void boxes_are_copied_whole_and_in_parts(void **ctx)
{
    static const uint32_t itemsizes[] = {1, 2, 4, 8, 16};
    (void)ctx;
    for (int n = 0; n < 300; n++) {
        boxes b;
        const uint32_t largest = n % 10 == 0 ? 40000 : n % 3 ? 700 : 12;
        draw_boxes(&b, largest, itemsizes[draw(n % 10 ? 5 : 2)]);
        const size_t bytes = buffer_bytes(&b.to), shift = draw(2) * draw(64);
        uint8_t *from = random_bytes(buffer_bytes(&b.from) + 64), *to = random_bytes(bytes + 64), *expected = malloc(bytes);
        assert_non_null(expected);
        b.from.data = from + draw(2) * draw(64);
        b.to.data = to + shift;
        memcpy(expected, b.to.data, bytes);
        copy_elements(&b, expected);
        if (n % 4 == 0) copy_at_once(&b);
        else if (n % 2) copy_bit_by_bit(&b, n % 4 == 1 ? 300 : 100000);
        else copy_as_streams(&b, 50000);
        assert_memory_equal(b.to.data, expected, bytes);
        free(from), free(to), free(expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_copied_at_every_alignment),
        cmocka_unit_test(boxes_are_copied_whole_and_in_parts),
    };
    return cmocka_run_group_tests_name("statedict_copies", tests, NULL, NULL);
}
