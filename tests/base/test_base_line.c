#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/line.h"

static void test_base_line__keeps_what_fits(void **state)
{
    (void)state;
    char text[8];
    tsr_line line = tsr_line_on(text, sizeof text);
    assert_string_equal(text, "");
    tsr_line_put(&line, NULL, 0);
    tsr_line_format(&line, "%d-", 12);
    assert_string_equal(text, "12-");
    assert_false(line.full);
    tsr_line_put(&line, "abcdef", 6);
    assert_string_equal(text, "12-abcd");
    assert_true(line.full);
    tsr_line_put(&line, "x", 1);
    assert_string_equal(text, "12-abcd");
}

/* Expected values: Python's repr of float and numpy.float32, without the trailing ".0". */
static void test_base_line__reals_have_the_fewest_digits(void **state)
{
    (void)state;
    const struct {
        double value;
        bool single;
        const char *text;
    } cases[] = {{0.1, false, "0.1"},
                 {0.1, true, "0.1"},
                 {1.0 / 3, false, "0.3333333333333333"},
                 {(float)(1.0 / 3), true, "0.33333334"},
                 {1e300, false, "1e+300"},
                 {-0.0, false, "-0"},
                 {5e-324, false, "5e-324"},
                 {16777217, false, "16777217"},
                 {10, false, "10"},
                 {-1200, true, "-1200"},
                 {1e15, false, "1000000000000000"},
                 {1e16, false, "1e+16"},
                 {1e7, true, "10000000"},
                 {1e10, true, "1e+10"},
                 {INFINITY, true, "inf"},
                 {-INFINITY, false, "-inf"},
                 {NAN, false, "nan"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        tsr_line line = tsr_line_on(text, sizeof text);
        tsr_line_real(&line, cases[i].value, cases[i].single);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_base_line__integers_of_any_size_are_decimal(void **state)
{
    (void)state;
    const struct {
        tsr_str bytes;
        const char *text;
    } cases[] = {{{"\0\0\0\0\0\0\0\x80\0", 9}, "9223372036854775808"},
                 {{"\xff\xff\xff\xff\xff\xff\xff\x7f\xff", 9}, "-9223372036854775809"},
                 {{"\0\0\0\0\0\0\0\0\x40", 9}, "1180591620717411303424"},
                 {{"\xff", 1}, "-1"}};
    char text[TSR_LINE_INTEGER], long_one[TSR_INTEGER_BYTES + 1] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_line line = tsr_line_on(text, sizeof text);
        assert_true(tsr_line_integer(&line, cases[i].bytes));
        assert_string_equal(text, cases[i].text);
    }
    tsr_line line = tsr_line_on(text, sizeof text);
    assert_false(tsr_line_integer(&line, (tsr_str){long_one, sizeof long_one}));
    assert_string_equal(text, "");
    memset(long_one, 0xff, TSR_INTEGER_BYTES);
    long_one[TSR_INTEGER_BYTES - 1] = (char)0x80;
    assert_true(tsr_line_integer(&line, (tsr_str){long_one, TSR_INTEGER_BYTES}));
    assert_false(line.full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_line__keeps_what_fits),
        cmocka_unit_test(test_base_line__reals_have_the_fewest_digits),
        cmocka_unit_test(test_base_line__integers_of_any_size_are_decimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
