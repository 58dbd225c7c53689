#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/random.h"
#include "tessera/box.h"
#include "tessera/sys/layout.h"

#define MOST 5u /* dims of random boxes */

static void test_layout_box__volume_is_checked(void **state)
{
    (void)state;
    const uint64_t half = UINT64_C(1) << 32;
    const struct {
        uint32_t ndim;
        uint64_t sizes[3];
        bool fits;
        uint64_t elements;
    } cases[] = {
        {0, {0}, true, 1},
        {1, {0}, true, 0},
        {3, {2, 3, 4}, true, 24},
        {2, {half, half - 1}, true, half * (half - 1)},
        {2, {half, half}, false, 0},
        {3, {half, half, 0}, true, 0},
        {3, {0, half, half}, true, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t elements = 77;
        assert_int_equal(tsr_box_volume((tsr_box){cases[i].ndim, NULL, cases[i].sizes}, &elements), cases[i].fits);
        assert_int_equal(elements, cases[i].elements);
    }
}

static void test_layout_box__edges_at_the_end_of_64_bits(void **state)
{
    (void)state;
    uint64_t at[1] = {UINT64_MAX}, one[1] = {1}, big[1] = {UINT64_MAX}, offsets[1], sizes[1];
    tsr_box whole = {1, NULL, big}, last = {1, at, one};
    assert_false(tsr_box_contains(whole, last));
    assert_false(tsr_box_intersect(whole, last, offsets, sizes));
    at[0] = UINT64_MAX - 1;
    assert_true(tsr_box_contains(whole, last));
    assert_true(tsr_box_intersect(last, whole, offsets, sizes));
    assert_int_equal(offsets[0], UINT64_MAX - 1);
    assert_int_equal(sizes[0], 1);
    at[0] = 5;
    tsr_box wrapping = {1, at, big}; /* 5 + (2^64 - 1) overflows 64 bits */
    assert_false(tsr_box_contains(whole, wrapping));
    assert_true(tsr_box_intersect(whole, wrapping, offsets, sizes));
    assert_int_equal(sizes[0], UINT64_MAX - 5);
}

static void test_layout_box__empty_at_the_far_edge_is_inside(void **state)
{
    (void)state;
    uint64_t shape[2] = {4, 6}, at[2] = {4, 0}, none[2] = {0, 6}, offsets[2], sizes[2];
    tsr_box tensor = {2, NULL, shape}, empty = {2, at, none};
    assert_true(tsr_box_contains(tensor, empty));
    assert_true(tsr_box_is_empty(empty));
    assert_false(tsr_box_intersect(tensor, empty, offsets, sizes));
    at[0] = 5;
    assert_false(tsr_box_contains(tensor, empty));
}

typedef struct random_box {
    uint64_t offsets[MOST];
    uint64_t sizes[MOST];
    tsr_box box;
} random_box;

static void make_box(random_source *random, random_box *out, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++) {
        out->offsets[d] = random_in(random, 0, 3);
        out->sizes[d] = random_in(random, 0, 4);
    }
    out->box = (tsr_box){ndim, out->offsets, out->sizes};
}

static bool holds(tsr_box box, const uint64_t *at)
{
    for (uint32_t d = 0; d < box.ndim; d++) {
        if (at[d] < box.offsets[d] || at[d] >= box.offsets[d] + box.sizes[d]) return false;
    }
    return true;
}

/* Moves to the next point of [0, 8)^ndim in row-major order. Returns false after the last one. */
static bool next_point(uint64_t *at, uint32_t ndim)
{
    for (uint32_t d = ndim; d-- > 0;) {
        if (++at[d] < 8) return true;
        at[d] = 0;
    }
    return false;
}

static void test_layout_box__intersection_and_containment_agree_with_elements(void **state)
{
    (void)state;
    random_source random = {1};
    for (int i = 0; i < 3000; i++) {
        uint32_t ndim = (uint32_t)random_in(&random, 0, 3);
        random_box a, b, common;
        make_box(&random, &a, ndim);
        make_box(&random, &b, ndim);
        uint64_t at[MOST] = {0}, both = 0, only_b = 0, volume;
        bool some = tsr_box_intersect(a.box, b.box, common.offsets, common.sizes);
        common.box = (tsr_box){ndim, common.offsets, common.sizes};
        do {
            bool in_a = holds(a.box, at), in_b = holds(b.box, at);
            both += in_a && in_b;
            only_b += in_b && !in_a;
            if (some) assert_int_equal(holds(common.box, at), in_a && in_b);
        } while (next_point(at, ndim));
        assert_int_equal(some, both > 0);
        if (some) {
            assert_true(tsr_box_volume(common.box, &volume));
            assert_int_equal(volume, both);
        }
        if (both + only_b > 0) assert_int_equal(tsr_box_contains(a.box, b.box), only_b == 0);
    }
}

/* Makes a box that contains the first one, by growing it on every side. */
static void make_parent(random_source *random, const random_box *inner, random_box *out)
{
    for (uint32_t d = 0; d < inner->box.ndim; d++) {
        uint64_t before = random_in(random, 0, inner->offsets[d] < 2 ? inner->offsets[d] : 2);
        out->offsets[d] = inner->offsets[d] - before;
        out->sizes[d] = before + inner->sizes[d] + random_in(random, 0, 1);
    }
    out->box = (tsr_box){inner->box.ndim, out->offsets, out->sizes};
}

static void test_layout_box__walk_copies_every_element_once(void **state)
{
    (void)state;
    random_source random = {2};
    static int from[8 * 8 * 8 * 8 * 8], to[8 * 8 * 8 * 8 * 8];
    for (int i = 0; i < 5000; i++) {
        uint32_t ndim = (uint32_t)random_in(&random, 0, MOST);
        random_box inner, a, b;
        make_box(&random, &inner, ndim);
        make_parent(&random, &inner, &a);
        make_parent(&random, &inner, &b);
        uint64_t volume_a, volume_b, volume, copied = 0, runs = 0;
        assert_true(tsr_box_volume(a.box, &volume_a) && tsr_box_volume(b.box, &volume_b));
        assert_true(tsr_box_volume(inner.box, &volume));
        for (uint64_t k = 0; k < volume_a; k++) from[k] = (int)k;
        memset(to, 0xff, volume_b * sizeof *to);
        tsr_box_walk walk;
        for (tsr_box_walk_start(&walk, inner.box, a.box, b.box); walk.runs_left; tsr_box_walk_next(&walk)) {
            assert_true(walk.index_a + walk.run <= volume_a && walk.index_b + walk.run <= volume_b);
            memcpy(to + walk.index_b, from + walk.index_a, walk.run * sizeof *to);
            copied += walk.run;
            runs++;
        }
        assert_int_equal(copied, volume);
        if (volume)
            assert_int_equal(runs == 1, tsr_box_is_contiguous(a.box, inner.box) && tsr_box_is_contiguous(b.box, inner.box));
        uint64_t at[MOST] = {0};
        do {
            if (volume_b && holds(b.box, at)) {
                int want = holds(inner.box, at) ? (int)tsr_box_index(a.box, at) : -1;
                assert_int_equal(to[tsr_box_index(b.box, at)], want);
            }
        } while (ndim < 4 && next_point(at, ndim));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_box__volume_is_checked),
        cmocka_unit_test(test_layout_box__edges_at_the_end_of_64_bits),
        cmocka_unit_test(test_layout_box__empty_at_the_far_edge_is_inside),
        cmocka_unit_test(test_layout_box__intersection_and_containment_agree_with_elements),
        cmocka_unit_test(test_layout_box__walk_copies_every_element_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
