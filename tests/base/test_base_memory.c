#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/failing_allocator.h"

#include "tessera/sys/containers.h"

static void test_base_memory__arena_gives_zeroed_aligned_disjoint_memory(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    unsigned char *previous = NULL;
    assert_non_null(tsr_arena_array(arena, 0, 8, &err));
    for (size_t n = 1; n < 5000; n += 7) {
        unsigned char *p = tsr_arena_array(arena, n, 1, &err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % sizeof(void *), 0);
        assert_ptr_not_equal(p, previous);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        memset(p, 0xff, n);
        previous = p;
    }
    tsr_arena_free(arena);
}

static void test_base_memory__arena_keeps_its_bound(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 4096, &err);
    assert_non_null(tsr_arena_array(arena, 4096, 1, &err));
    assert_null(tsr_arena_array(arena, 1, 1, &err));
    assert_int_equal(err.status, TSR_E_NOMEM);
    tsr_arena_free(arena);
}

static void test_base_memory__overflowing_sizes_are_refused(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    assert_null(tsr_arena_array(arena, SIZE_MAX / 2, 4, NULL));
    assert_null(tsr_arena_array(arena, SIZE_MAX - 8, 1, NULL));
    assert_null(tsr_alloc(&tsr_allocator_libc, SIZE_MAX / 2, 4, &err));
    assert_int_equal(err.status, TSR_E_NOMEM);
    tsr_arena_free(arena);
}

static void test_base_memory__format_and_str_live_in_the_arena(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    tsr_str s = tsr_arena_format(arena, &err, "%s-%05d", "model", 7);
    assert_true(tsr_str_equal(s, TSR_STR("model-00007")));
    tsr_str copy = tsr_arena_str(arena, (tsr_str){"a\0b", 3}, &err);
    assert_memory_equal(copy.data, "a\0b\0", 4);
    tsr_arena_free(arena);
}

static tsr_status fill_vec(const tsr_allocator *allocator, size_t count, tsr_error *err)
{
    tsr_vec vec = tsr_vec_of(allocator, sizeof(size_t));
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        size_t *item = tsr_vec_push(&vec, err);
        if (!item) {
            status = TSR_E_NOMEM;
        } else {
            *item = i;
        }
    }
    for (size_t i = 0; i < vec.count; i++) assert_int_equal(((size_t *)vec.items)[i], i);
    tsr_vec_free(&vec);
    return status;
}

static void test_base_memory__vec_survives_every_allocation_failure(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_error err = {0};
        tsr_status status = fill_vec(&failing.allocator, 1000, &err);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

/* A vec that was cut keeps its first items and can grow again, whether or not the allocator can shrink a block. */
static void test_base_memory__cut_vec_keeps_the_first_items(void **state)
{
    (void)state;
    const size_t cuts[] = {1000, 999, 64, 1, 0};
    for (size_t fails = 0; fails < 2; fails++) {
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            failing_allocator failing;
            failing_start(&failing, SIZE_MAX);
            tsr_vec vec = tsr_vec_of(&failing.allocator, sizeof(size_t));
            for (size_t i = 0; i < 1000; i++) *(size_t *)tsr_vec_push(&vec, NULL) = i;
            if (fails) failing.fail_at = failing.calls;
            tsr_vec_cut(&vec, cuts[c]);
            failing.fail_at = SIZE_MAX;
            assert_int_equal(vec.count, cuts[c]);
            for (size_t i = 0; i < vec.count; i++) assert_int_equal(((size_t *)vec.items)[i], i);
            if (!fails) assert_int_equal(vec.capacity, cuts[c]);
            *(size_t *)tsr_vec_push(&vec, NULL) = 7;
            assert_int_equal(((size_t *)vec.items)[cuts[c]], 7);
            tsr_vec_free(&vec);
            assert_int_equal(failing.live, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_memory__arena_gives_zeroed_aligned_disjoint_memory),
        cmocka_unit_test(test_base_memory__arena_keeps_its_bound),
        cmocka_unit_test(test_base_memory__overflowing_sizes_are_refused),
        cmocka_unit_test(test_base_memory__format_and_str_live_in_the_arena),
        cmocka_unit_test(test_base_memory__vec_survives_every_allocation_failure),
        cmocka_unit_test(test_base_memory__cut_vec_keeps_the_first_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
