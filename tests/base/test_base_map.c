#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "support/failing_allocator.h"
#include "tessera/sys/containers.h"

enum { COUNT = 5000 };
static char names[COUNT][16];

static tsr_str name(size_t i)
{
    snprintf(names[i], sizeof names[i], "layer.%zu", i);
    return tsr_str_from(names[i]);
}

static void test_base_map__finds_what_was_put_and_nothing_else(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_map *map = tsr_map_new(&tsr_allocator_libc, 0, &err);
    for (uint32_t i = 0; i < COUNT; i += 2) assert_int_equal(tsr_map_put(map, name(i), i, NULL, NULL, &err), TSR_OK);
    assert_int_equal(tsr_map_count(map), COUNT / 2);
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(tsr_map_get(map, name(i), UINT32_MAX), i % 2 ? UINT32_MAX : i);
    tsr_map_free(map);
}

static void test_base_map__second_put_reports_the_first(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_map *map = tsr_map_new(&tsr_allocator_libc, 0, &err);
    uint32_t *stored;
    bool inserted;
    tsr_map_put(map, TSR_STR(""), 4, &stored, &inserted, &err);
    assert_true(inserted);
    tsr_map_put(map, (tsr_str){NULL, 0}, 5, &stored, &inserted, &err);
    assert_false(inserted);
    assert_int_equal(*stored, 4);
    tsr_map_put(map, (tsr_str){"a\0b", 3}, 6, NULL, &inserted, &err);
    assert_true(inserted);
    assert_int_equal(tsr_map_get(map, TSR_STR("a"), 99), 99);
    tsr_map_free(map);
}

static void test_base_map__survives_every_allocation_failure(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_map *map = tsr_map_new(&failing.allocator, 0, NULL);
        tsr_status status = map ? TSR_OK : TSR_E_NOMEM;
        for (uint32_t i = 0; i < 100 && status == TSR_OK; i++) status = tsr_map_put(map, name(i), i, NULL, NULL, NULL);
        tsr_map_free(map);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_map__finds_what_was_put_and_nothing_else),
        cmocka_unit_test(test_base_map__second_put_reports_the_first),
        cmocka_unit_test(test_base_map__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
