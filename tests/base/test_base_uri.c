#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/str.h"

/* Expectations: Python's urllib.parse.quote with RFC 3986's pchar and '/', without ':', as safe. */
static void test_base_uri__escapes_what_may_not_stand_in_a_path(void **state)
{
    (void)state;
    const struct {
        tsr_str given;
        const char *path;
    } cases[] = {{TSR_STR("a/b-1._~!$&'()*+,;=@Z"), "a/b-1._~!$&'()*+,;=@Z"},
                 {TSR_STR("a b"), "a%20b"},
                 {TSR_STR("s3:x?#[]%"), "s3%3Ax%3F%23%5B%5D%25"},
                 {TSR_STR("\0\x7f\"<>\\^`{|}"), "%00%7F%22%3C%3E%5C%5E%60%7B%7C%7D"},
                 {TSR_STR("\xc3\xa9"), "%C3%A9"},
                 {TSR_STR(""), ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64] = {0};
        assert_int_equal(tsr_uri_path(cases[i].given, text, 3 * cases[i].given.size), strlen(cases[i].path));
        assert_string_equal(text, cases[i].path);
    }
}

static void test_base_uri__cuts_behind_a_whole_byte(void **state)
{
    (void)state;
    char text[8] = {0};
    assert_int_equal(tsr_uri_path(TSR_STR("a b"), text, 3), 1);
    assert_string_equal(text, "a");
    assert_int_equal(tsr_uri_path(TSR_STR("a b"), text, 4), 4);
    assert_string_equal(text, "a%20");
    assert_int_equal(tsr_uri_path(TSR_STR("a"), text, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_uri__escapes_what_may_not_stand_in_a_path),
        cmocka_unit_test(test_base_uri__cuts_behind_a_whole_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
