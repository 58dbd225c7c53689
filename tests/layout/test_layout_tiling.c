#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "layout/random_tiling.h"
#include "support/failing_allocator.h"
#include "tessera/sys/layout.h"
#include "tessera/validate.h"

static void check_with(const tsr_allocator *allocator, box_list *list, tsr_status want, tsr_tiling *out)
{
    tsr_error err = {0};
    for (uint64_t i = 0; i < list->count; i++) {
        list->chunks[i] = (tsr_chunk){.offsets = list->offsets[i], .sizes = list->sizes[i]};
    }
    tsr_status status =
        tsr_tiling_check(allocator, (tsr_shape){list->ndim, list->shape}, list->chunks, list->count, out, &err);
    assert_int_equal(status, want);
}

static void check(box_list *list, tsr_tiling *out)
{
    check_with(&tsr_allocator_libc, list, TSR_OK, out);
}

/* Counted element by element: how many elements are in no box, and how many in more than one. */
typedef struct counts {
    uint64_t missing, twice;
    bool outside;
} counts;

static unsigned times_held(const box_list *list, const uint64_t *at)
{
    unsigned times = 0;
    for (uint64_t i = 0; i < list->count; i++) {
        bool in = true;
        for (uint32_t d = 0; d < list->ndim; d++) {
            in = in && at[d] >= list->offsets[i][d] && at[d] < list->offsets[i][d] + list->sizes[i][d];
        }
        times += in;
    }
    return times;
}

static counts count_elements(const box_list *list)
{
    counts result = {0, 0, false};
    uint64_t at[MOST_DIMS] = {0}, elements = 1;
    for (uint32_t d = 0; d < list->ndim; d++) elements *= list->shape[d];
    for (uint64_t e = 0; e < elements; e++) {
        uint64_t rest = e;
        for (uint32_t d = list->ndim; d-- > 0; rest /= list->shape[d]) at[d] = rest % list->shape[d];
        unsigned times = times_held(list, at);
        result.missing += times == 0;
        result.twice += times > 1;
    }
    for (uint64_t i = 0; i < list->count; i++) {
        for (uint32_t d = 0; d < list->ndim; d++) {
            result.outside = result.outside || list->offsets[i][d] + list->sizes[i][d] > list->shape[d];
        }
    }
    return result;
}

static void test_layout_tiling__accepts_every_exact_tiling(void **state)
{
    (void)state;
    random_source random = {3};
    static box_list list;
    for (int i = 0; i < 20000; i++) {
        tsr_tiling tiling;
        make_tiling(&random, &list);
        check(&list, &tiling);
        assert_true(tiling.exact);
        assert_int_equal(tiling.missing, 0);
        assert_true(tiling.overlap[0] == TSR_NO_CHUNK && tiling.outside == TSR_NO_CHUNK);
    }
}

/* Drops, duplicates, moves or resizes one to three boxes. */
static void damage(random_source *random, box_list *list)
{
    for (uint64_t times = random_in(random, 1, 3); times > 0 && list->count > 0; times--) {
        uint64_t i = random_in(random, 0, list->count - 1);
        uint32_t d = list->ndim ? (uint32_t)random_in(random, 0, list->ndim - 1) : 0;
        uint64_t what = random_in(random, 0, list->ndim ? 3 : 1);
        if (what == 0) {
            swap_boxes(list, i, --list->count);
        } else if (what == 1) {
            for (uint32_t k = 0; k < list->ndim; k++) {
                list->offsets[list->count][k] = list->offsets[i][k];
                list->sizes[list->count][k] = list->sizes[i][k];
            }
            list->count++;
        } else if (what == 2) {
            list->offsets[i][d] = random_in(random, 0, list->shape[d]);
        } else {
            list->sizes[i][d] = random_in(random, 0, list->shape[d]);
        }
    }
}

static void assert_example_overlap(const box_list *list, const tsr_tiling *tiling)
{
    assert_true(tiling->overlap[0] < tiling->overlap[1] && tiling->overlap[1] < list->count);
    for (int k = 0; k < 2; k++) {
        for (uint32_t d = 0; d < list->ndim; d++) {
            uint64_t begin = list->offsets[tiling->overlap[k]][d], at = tiling->overlap_offsets[d];
            assert_true(at >= begin && at < begin + list->sizes[tiling->overlap[k]][d]);
        }
    }
}

static void assert_example_hole(const box_list *list, const tsr_tiling *tiling)
{
    for (uint32_t d = 0; d < list->ndim; d++) {
        assert_true(tiling->hole_sizes[d] > 0 && tiling->hole_offsets[d] + tiling->hole_sizes[d] <= list->shape[d]);
    }
    for (uint64_t i = 0; i < list->count; i++) {
        uint64_t offsets[MOST_DIMS], sizes[MOST_DIMS];
        tsr_box hole = {list->ndim, tiling->hole_offsets, tiling->hole_sizes};
        assert_false(tsr_box_intersect(hole, (tsr_box){list->ndim, list->offsets[i], list->sizes[i]}, offsets, sizes));
    }
}

static void test_layout_tiling__damage_agrees_with_elements(void **state)
{
    (void)state;
    random_source random = {4};
    static box_list list;
    unsigned holes = 0, overlaps = 0;
    for (int i = 0; i < 20000; i++) {
        tsr_tiling tiling;
        make_tiling(&random, &list);
        damage(&random, &list);
        counts want = count_elements(&list);
        check(&list, &tiling);
        assert_int_equal(tiling.exact, !want.missing && !want.twice && !want.outside);
        assert_int_equal(tiling.outside != TSR_NO_CHUNK, want.outside);
        assert_false(tiling.missing_at_least);
        assert_int_equal(tiling.missing, want.missing);
        assert_int_equal(tiling.overlap[0] != TSR_NO_CHUNK, want.twice > 0);
        if (want.twice) assert_example_overlap(&list, &tiling);
        if (want.missing) assert_example_hole(&list, &tiling);
        holes += want.missing > 0;
        overlaps += want.twice > 0;
    }
    assert_true(holes > 5000 && overlaps > 5000);
}

static void test_layout_tiling__edge_cases(void **state)
{
    (void)state;
    tsr_tiling tiling;
    static box_list list;

    list = (box_list){.ndim = 0, .count = 1}; /* 0-d */
    check(&list, &tiling);
    assert_true(tiling.exact);
    list.count = 0;
    check(&list, &tiling);
    assert_int_equal(tiling.missing, 1);
    list.count = 2;
    check(&list, &tiling);
    assert_int_equal(tiling.overlap[1], 1);

    list = (box_list){.ndim = 2, .shape = {0, 6}, .count = 0}; /* a tensor without elements */
    check(&list, &tiling);
    assert_true(tiling.exact);
    list.count = 1;
    list.offsets[0][0] = 1;
    check(&list, &tiling);
    assert_int_equal(tiling.outside, 0);

    list = (box_list){.ndim = 1, .shape = {3}, .count = 4, .offsets = {{0}, {1}, {2}, {3}}, .sizes = {{1}, {1}, {1}, {0}}};
    check(&list, &tiling); /* more ranks than rows */
    assert_true(tiling.exact);
    assert_int_equal(tiling.empty_chunks, 1);

    list = (box_list){.ndim = 1, .shape = {10}, .count = 1, .offsets = {{8}}, .sizes = {{UINT64_MAX}}};
    check(&list, &tiling);
    assert_int_equal(tiling.outside, 0);
    assert_int_equal(tiling.missing, 8);
    assert_int_equal(tiling.hole_sizes[0], 8);

    list = (box_list){.ndim = 2, .shape = {UINT64_C(1) << 32, UINT64_C(1) << 32}};
    check_with(&tsr_allocator_libc, &list, TSR_E_LIMIT, &tiling);
}

/* A grid of unit boxes in which one box is missing and its neighbour is duplicated. There are so many boxes that comparing
 * each with many others would take forever. */
static void test_layout_tiling__finds_one_wrong_box_among_many(void **state)
{
    (void)state;
    enum { SIDE = 60, COUNT = SIDE * SIDE * SIDE };
    uint64_t shape[3] = {SIDE, SIDE, SIDE}, (*offsets)[3] = malloc(COUNT * sizeof *offsets);
    static const uint64_t unit[3] = {1, 1, 1};
    tsr_chunk *chunks = calloc(COUNT, sizeof *chunks);
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t cell = i == COUNT / 2 ? i + 1 : i;
        offsets[i][0] = cell / (SIDE * SIDE);
        offsets[i][1] = cell / SIDE % SIDE;
        offsets[i][2] = cell % SIDE;
        chunks[i] = (tsr_chunk){.offsets = offsets[i], .sizes = unit};
    }
    tsr_tiling tiling;
    assert_int_equal(tsr_tiling_check(&tsr_allocator_libc, (tsr_shape){3, shape}, chunks, COUNT, &tiling, NULL), TSR_OK);
    assert_int_equal(tiling.missing, 1);
    assert_int_equal(tiling.hole_offsets[0], SIDE / 2);
    assert_int_equal(tiling.overlap[0], COUNT / 2);
    assert_int_equal(tiling.overlap[1], COUNT / 2 + 1);
    free(chunks);
    free(offsets);
}

static void test_layout_tiling__widespread_damage_is_bounded_and_honest(void **state)
{
    (void)state;
    enum { SIDE = 60, COUNT = SIDE * SIDE };
    uint64_t(*offsets)[2] = malloc(COUNT * sizeof *offsets), shape[2] = {2 * SIDE, 2 * SIDE};
    static const uint64_t unit[2] = {1, 1};
    tsr_chunk *chunks = calloc(COUNT, sizeof *chunks);
    for (uint64_t i = 0; i < COUNT; i++) { /* every second element of every second row, and no others */
        offsets[i][0] = i / SIDE * 2;
        offsets[i][1] = i % SIDE * 2;
        chunks[i] = (tsr_chunk){.offsets = offsets[i], .sizes = unit};
    }
    tsr_tiling tiling;
    assert_int_equal(tsr_tiling_check(&tsr_allocator_libc, (tsr_shape){2, shape}, chunks, COUNT, &tiling, NULL), TSR_OK);
    assert_int_equal(tiling.missing, 3 * COUNT); /* known from the sums, or by counting */
    assert_true(tiling.hole_sizes[0] > 0 && tiling.hole_sizes[1] > 0);
    free(chunks);
    free(offsets);
}

static void test_layout_tiling__survives_every_allocation_failure(void **state)
{
    (void)state;
    static box_list list;
    list = (box_list){
        .ndim = 2, .shape = {4, 4}, .count = 3, .offsets = {{0, 0}, {0, 2}, {2, 1}}, .sizes = {{2, 2}, {3, 2}, {2, 2}}};
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        tsr_tiling tiling;
        failing_start(&failing, n);
        for (uint64_t i = 0; i < list.count; i++)
            list.chunks[i] = (tsr_chunk){.offsets = list.offsets[i], .sizes = list.sizes[i]};
        tsr_status status =
            tsr_tiling_check(&failing.allocator, (tsr_shape){2, list.shape}, list.chunks, list.count, &tiling, NULL);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_tiling__accepts_every_exact_tiling),
        cmocka_unit_test(test_layout_tiling__damage_agrees_with_elements),
        cmocka_unit_test(test_layout_tiling__edge_cases),
        cmocka_unit_test(test_layout_tiling__finds_one_wrong_box_among_many),
        cmocka_unit_test(test_layout_tiling__widespread_damage_is_bounded_and_honest),
        cmocka_unit_test(test_layout_tiling__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
