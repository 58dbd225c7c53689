/* Floating-point numbers are written and read with '.' in every locale. The locales are made by localedef. */
#define _DEFAULT_SOURCE /* mkdtemp, setenv */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tessera/sys/text.h"

static void expect_numbers(void)
{
    static const struct {
        double value;
        const char *text;
    } written[] = {{0.5, "0.5"},
                   {-1234.25, "-1234.25"},
                   {1e-300, "1.0000000000000000e-300"},
                   {3, "3"},
                   {DBL_MAX, "1.7976931348623157e+308"},
                   {-INFINITY, "-inf"},
                   {-0.0, "-0"}};
    static const struct {
        const char *text;
        double value;
        size_t used;
    } read[] = {{"0.5", 0.5, 3}, {" -2.5e-1x", -0.25, 8}, {"1.5GiB", 1.5, 3},   {"1.", 1, 2},           {".5", 0.5, 2},
                {"7", 7, 1},     {"1,5", 1, 1},           {"1.5,5", 1.5, 3},    {"1.2.3", 1.2, 3},      {"", 0, 0},
                {".", 0, 0},     {"x1.5", 0, 0},          {"inf", INFINITY, 3}, {"1\xD9\xAB\x35", 1, 1}};
    char text[TSR_REAL_TEXT], *end;
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        tsr_real_text(written[i].value, 17, text);
        assert_true(tsr_real_read(text, &end) == written[i].value && *end == '\0');
        if (strlen(written[i].text) < 20) assert_string_equal(text, written[i].text);
        assert_null(strpbrk(text, ",\xD9"));
    }
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        assert_true(tsr_real_read(read[i].text, &end) == read[i].value);
        assert_int_equal(end - read[i].text, read[i].used);
    }
    assert_true(tsr_real_read("0.1", NULL) == 0.1);
}

static void test_base_real_text__numbers_in_the_locale_of_c(void **state)
{
    (void)state;
    expect_numbers();
}

static void expect_numbers_in(const char *locale)
{
    char directory[] = "/tmp/tessera-locale-XXXXXX", command[256];
    assert_non_null(mkdtemp(directory));
    snprintf(command, sizeof command, "localedef -i %s -f UTF-8 %s/%s.UTF-8 2>/dev/null", locale, directory, locale);
    const bool made = system(command) == 0;
    snprintf(command, sizeof command, "%s.UTF-8", locale);
    setenv("LOCPATH", directory, 1);
    const bool set = made && setlocale(LC_ALL, command);
    const bool is_other = set && strcmp(localeconv()->decimal_point, ".") != 0;
    if (is_other) expect_numbers();
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
    if (set) assert_true(is_other);
    if (!set) {
        print_message("skipped: localedef cannot make %s (Debian: the package locales)\n", locale);
        skip();
    }
}

static void test_base_real_text__numbers_where_the_point_is_a_comma(void **state)
{
    (void)state;
    expect_numbers_in("de_DE");
}

static void test_base_real_text__numbers_where_the_point_has_two_bytes(void **state)
{
    (void)state;
    expect_numbers_in("ps_AF");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_real_text__numbers_in_the_locale_of_c),
        cmocka_unit_test(test_base_real_text__numbers_where_the_point_is_a_comma),
        cmocka_unit_test(test_base_real_text__numbers_where_the_point_has_two_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
