#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/str.h"
#include "tessera/sys/text.h"

static void expect(tsr_str text, const char *wanted)
{
    assert_int_equal(text.size, strlen(wanted));
    assert_true(tsr_str_equal(text, tsr_str_from(wanted)));
}

/* Expected values: Python's str.removeprefix. */
static void test_base_str__skips_a_prefix_or_nothing(void **state)
{
    (void)state;
    const struct {
        const char *text, *prefix, *rest;
        bool begins;
    } cases[] = {
        {"model.fc", "model.", "fc", true},      {"model.", "model.", "", true}, {"model", "model.", "model", false},
        {"xmodel.", "model.", "xmodel.", false}, {"a", "", "a", true},           {"", "a", "", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_str text = tsr_str_from(cases[i].text);
        assert_int_equal(tsr_str_skip(&text, tsr_str_from(cases[i].prefix)), cases[i].begins);
        expect(text, cases[i].rest);
    }
}

/* Expected values: Python's str.partition. */
static void test_base_str__takes_what_precedes_an_end(void **state)
{
    (void)state;
    tsr_str text = TSR_STR("first\n\nthird");
    expect(tsr_str_take(&text, '\n'), "first");
    expect(tsr_str_take(&text, '\n'), "");
    expect(tsr_str_take(&text, '\n'), "third");
    expect(text, "");
    expect(tsr_str_take(&text, '\n'), "");
    expect(tsr_str_after(TSR_STR("layers.12"), 7), "12");
    expect(tsr_str_after(TSR_STR("layers"), 6), "");
}

static void test_base_str__component_numbers_have_no_leading_zeros(void **state)
{
    (void)state;
    const struct {
        const char *text;
        bool is_number;
        uint64_t number;
    } cases[] = {{"0", true, 0},    {"7", true, 7},   {"120", true, 120}, {"999999999", true, 999999999},
                 {"00", false, 0},  {"07", false, 0}, {"", false, 0},     {"1000000000", false, 0},
                 {"fc1", false, 0}, {"1a", false, 0}, {"-1", false, 0},   {"\xd9\xa1", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t number = 0;
        assert_int_equal(tsr_component_number(tsr_str_from(cases[i].text), &number), cases[i].is_number);
        if (cases[i].is_number) assert_int_equal(number, cases[i].number);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_str__skips_a_prefix_or_nothing),
        cmocka_unit_test(test_base_str__takes_what_precedes_an_end),
        cmocka_unit_test(test_base_str__component_numbers_have_no_leading_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
