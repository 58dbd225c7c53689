#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "tessera/version.h"

static void test_base_version__is_the_three_numbers_of_the_header(void **state)
{
    (void)state;
    char text[40];
    snprintf(text, sizeof text, "%d.%d.%d", TSR_VERSION_MAJOR, TSR_VERSION_MINOR, TSR_VERSION_PATCH);
    assert_string_equal(tsr_version(), text);
    assert_string_equal(tsr_version(), TSR_VERSION);
}

static void test_base_version__is_what_the_build_took_from_the_header(void **state)
{
    (void)state;
    assert_string_equal(tsr_version(), TSR_PROJECT_VERSION);
    assert_int_equal(TSR_VERSION_NUMBER, TSR_VERSION_MAJOR * 10000 + TSR_VERSION_MINOR * 100 + TSR_VERSION_PATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_version__is_the_three_numbers_of_the_header),
        cmocka_unit_test(test_base_version__is_what_the_build_took_from_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
