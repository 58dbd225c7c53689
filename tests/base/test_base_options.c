#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/sys/options.h"

/* One options struct in three releases. */
typedef struct earlier {
    size_t size;
    uint64_t rows;
} earlier;

typedef struct current {
    size_t size;
    uint64_t rows;
    const char *name;
} current;

typedef struct later {
    size_t size;
    uint64_t rows;
    const char *name;
    uint32_t flags[3];
} later;

static tsr_status copy(const void *given, current *own, tsr_error *err)
{
    *err = (tsr_error){0};
    memset(own, 0xa5, sizeof *own);
    return TSR_OPTIONS_COPY(own, given, current, err);
}

static void test_base_options__fields_of_the_caller_are_taken(void **state)
{
    (void)state;
    current own, given = TSR_OPTIONS(current);
    tsr_error err;
    assert_int_equal(given.size, sizeof given);
    assert_int_equal(given.rows, 0);
    given.rows = 7;
    given.name = "seven";
    assert_int_equal(copy(&given, &own, &err), TSR_OK);
    assert_int_equal(own.rows, 7);
    assert_string_equal(own.name, "seven");
    assert_int_equal(copy(&(current){.rows = 8, .name = "no size"}, &own, &err), TSR_OK);
    assert_int_equal(own.size, sizeof own);
    assert_int_equal(own.rows, 8);
    assert_string_equal(own.name, "no size");
}

static void test_base_options__without_options_all_are_zero(void **state)
{
    (void)state;
    current own;
    tsr_error err;
    assert_int_equal(copy(NULL, &own, &err), TSR_OK);
    assert_int_equal(own.size, sizeof own);
    assert_int_equal(own.rows, 0);
    assert_null(own.name);
}

static void test_base_options__an_earlier_program_does_not_set_what_it_does_not_know(void **state)
{
    (void)state;
    const struct {
        earlier options;
        uint64_t behind; /* memory of the program that is not part of its options */
    } program = {{.size = sizeof(earlier), .rows = 9}, UINT64_MAX};
    current own;
    tsr_error err;
    assert_int_equal(copy(&program, &own, &err), TSR_OK);
    assert_int_equal(own.rows, 9);
    assert_null(own.name);
}

static void test_base_options__a_later_program_is_refused_only_for_what_it_sets(void **state)
{
    (void)state;
    later given = TSR_OPTIONS(later);
    current own;
    tsr_error err;
    given.rows = 10;
    assert_int_equal(copy(&given, &own, &err), TSR_OK);
    assert_int_equal(own.rows, 10);
    given.flags[2] = 1;
    assert_int_equal(copy(&given, &own, &err), TSR_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "sets a field of current at byte 32"));
}

static void test_base_options__a_size_that_was_not_initialized_is_refused(void **state)
{
    (void)state;
    const size_t wrong[] = {1, sizeof(size_t) - 1, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const current given = {.size = wrong[i]};
        current own;
        tsr_error err;
        assert_int_equal(copy(&given, &own, &err), TSR_E_USAGE);
        assert_non_null(strstr(err.message, "TSR_OPTIONS(current)"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_options__fields_of_the_caller_are_taken),
        cmocka_unit_test(test_base_options__without_options_all_are_zero),
        cmocka_unit_test(test_base_options__an_earlier_program_does_not_set_what_it_does_not_know),
        cmocka_unit_test(test_base_options__a_later_program_is_refused_only_for_what_it_sets),
        cmocka_unit_test(test_base_options__a_size_that_was_not_initialized_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
