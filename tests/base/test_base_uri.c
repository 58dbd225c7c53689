#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/str.h"
#include "tessera/sys/text.h"

/* Expected values: Python's urllib.parse.quote with RFC 3986's pchar and '/', without ':', as safe characters. */
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

/* Expected values: Python's urllib.parse.unquote_to_bytes, with '+' replaced by a space before for the third column. */
static void test_base_uri__decodes_what_is_escaped(void **state)
{
    (void)state;
    const char *const cases[][3] = {{"model%20one.pt", "model one.pt", "model one.pt"},
                                    {"a%2Bb+c", "a+b+c", "a+b c"},
                                    {"100%", "100%", "100%"},
                                    {"%zz%4", "%zz%4", "%zz%4"},
                                    {"%e9%C3%A9", "\xe9\xc3\xa9", "\xe9\xc3\xa9"},
                                    {"%25%32%30", "%20", "%20"},
                                    {"", "", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32] = {0}, spaced[32] = {0};
        const tsr_str given = tsr_str_from(cases[i][0]);
        assert_int_equal(tsr_uri_decode(given, false, text), strlen(cases[i][1]));
        assert_string_equal(text, cases[i][1]);
        assert_int_equal(tsr_uri_decode(given, true, spaced), strlen(cases[i][2]));
        assert_string_equal(spaced, cases[i][2]);
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

/* Secrets are written in capitals. */
static void test_base_uri__redacts_secrets(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"/a/b?token=x", "/a/b?token=x"},
        {"a:b@c", "a:b@c"},
        {"C://a@b/c", "C://b/c"},
        {"http://h/p", "http://h/p"},
        {"http://USER:PW@h:80/p@q", "http://h:80/p@q"},
        {"https://USER@h/", "https://h/"},
        {"https://USER:P@W@h/", "https://h/"},
        {"http://USER:P/W@h/x", "http://h/x"},
        {"http://USER:P?W@h/x?b=C", "http://h/x?b=***"},
        {"http://h:80/a@b", "http://h:80/a@b"},
        {"http://[::1]:80/a@b", "http://[::1]:80/a@b"},
        {"http://h/p?token=SECRET#FRAGMENT", "http://h/p?token=***"},
        {"http://h?SECRET", "http://h?***"},
        {"http://h/p#token=SECRET", "http://h/p"},
        {"http://h/p?X-Amz-Algorithm=AWS4&X-Amz-Credential=ID&X-Amz-Date=2026&X-Amz-Signature=SECRET&X-Amz-Security-Token=SECRET",
         "http://h/p?X-Amz-Algorithm=AWS4&X-Amz-Credential=***&X-Amz-Date=2026&X-Amz-Signature=***&X-Amz-Security-Token=***"},
        {"http://h/p?sv=2020&se=2030&sig=SECRET%3D", "http://h/p?sv=2020&se=2030&sig=***"},
        {"http://h/p?versionId=3;key=SECRET", "http://h/p?versionId=3;key=***"},
        {"http://h/p?%73ig=SECRET", "http://h/p?%73ig=***"},
        {"http://h/p?a=&b&&download=1&", "http://h/p?a=&***&&download=1&"},
        {"s3://bucket/step?v=2&why", "s3://bucket/step?v=2&why"},
        {"gs://bucket/a?b/c#d", "gs://bucket/a?b/c#d"},
        {"az://account/container/what?", "az://account/container/what?"},
        {"s3://bucket/key?X-Amz-Date=2026&X-Amz-Signature=SECRET&AWSAccessKeyId=SECRET",
         "s3://bucket/key?X-Amz-Date=2026&X-Amz-Signature=***&AWSAccessKeyId=***"},
        {"az://a/c/key?sv=2020&sig=SECRET", "az://a/c/key?sv=2020&sig=***"},
        {"HTTP://USER:PW@H/", "HTTP://H/"},
        {"http://", "http://"},
        {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024] = {0};
        const tsr_str given = tsr_str_from(cases[i][0]);
        assert_true(3 * given.size < sizeof text);
        assert_int_equal(tsr_uri_redact(given, text, 3 * given.size), strlen(cases[i][1]));
        assert_string_equal(text, cases[i][1]);
        assert_null(strstr(text, "SECRET"));
        assert_int_equal(tsr_uri_redact(given, text, 5), strlen(cases[i][1]) < 5 ? strlen(cases[i][1]) : 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_uri__escapes_what_may_not_stand_in_a_path),
        cmocka_unit_test(test_base_uri__decodes_what_is_escaped),
        cmocka_unit_test(test_base_uri__cuts_behind_a_whole_byte),
        cmocka_unit_test(test_base_uri__redacts_secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
