#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "tessera/str.h"
#include "tessera/sys/text.h"

static const char *shown_text(tsr_str text, char *out)
{
    char escape[TSR_ESCAPE_SIZE], *end = out;
    for (tsr_str shown; text.size;) {
        const size_t taken = tsr_str_step(text, escape, &shown);
        memcpy(end, shown.data, shown.size);
        end += shown.size;
        text = (tsr_str){text.data + taken, text.size - taken};
    }
    *end = '\0';
    return out;
}

static void test_base_visible__what_cannot_be_seen_is_escaped(void **state)
{
    (void)state;
    const struct {
        tsr_str given;
        const char *shown;
    } cases[] = {
        {TSR_STR(" ~caf\xC3\xA9 \xE2\x82\xAC \xE5\xBC\xA0 \xF0\x9F\x98\x80"),
         " ~caf\xC3\xA9 \xE2\x82\xAC \xE5\xBC\xA0 \xF0\x9F\x98\x80"},
        {TSR_STR("a\0b\x1b\x7f\n"), "a\\x00b\\x1b\\x7f\\x0a"},
        {TSR_STR("\xC2\x85\xC2\xA0\xC2\xAD"), "\\u0085\\u00a0\\u00ad"},
        {TSR_STR("\xE2\x80\x8B\xE2\x80\xA8\xE2\x80\xAE\xEF\xBB\xBF\xEF\xBF\xBE\xEF\xBF\xBF"),
         "\\u200b\\u2028\\u202e\\ufeff\\ufffe\\uffff"},
        {TSR_STR("\xF3\xA0\x81\x81\xF4\x8F\xBF\xBF"), "\\U000e0041\\U0010ffff"},
        {TSR_STR("\xFF\xC3(\xED\xA0\x80\xF4\x90\x80\x80\xE2\x82"),
         "\\xff\\xc3(\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xe2\\x82"},
        {TSR_STR("\xEF\xBF\xBD"), "\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[128];
        assert_string_equal(shown_text(cases[i].given, out), cases[i].shown);
    }
}

/* Checks the edges of every block, and both sides of every edge of a range. */
static void test_base_visible__ranges_end_where_unicode_ends_them(void **state)
{
    (void)state;
    static const uint32_t hidden[] = {0x00,    0x1F,    0x7F,    0x80,    0xA0,    0xAD,    0x34F,   0x600,   0x605,
                                      0x61C,   0x6DD,   0x70F,   0x115F,  0x1160,  0x1680,  0x180B,  0x180E,  0x2000,
                                      0x200F,  0x2028,  0x202F,  0x205F,  0x206F,  0x2800,  0x3000,  0x3164,  0xE000,
                                      0xF8FF,  0xFDD0,  0xFDEF,  0xFE0F,  0xFEFF,  0xFFA0,  0xFFF9,  0xFFFB,  0xFFFE,
                                      0x110BD, 0x1BCA0, 0x1D173, 0x1FFFF, 0x2FFFE, 0x3FFFF, 0xE0001, 0xE0100, 0x10FFFF};
    static const uint32_t visible[] = {0x20,   0x7E,   0xA1,   0xAC,   0xAE,    0x34E,   0x350,   0x606,  0x61D,
                                       0x6DE,  0x115E, 0x1161, 0x1681, 0x180A,  0x2010,  0x2027,  0x2030, 0x205E,
                                       0x2070, 0x2801, 0x3001, 0x3165, 0xD7FF,  0xF900,  0xFDCF,  0xFDF0, 0xFE10,
                                       0xFF01, 0xFFA1, 0xFFFC, 0xFFFD, 0x10000, 0x1F600, 0x20000, 0x30000};
    char bytes[4];
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        assert_int_equal(tsr_str_visible((tsr_str){bytes, tsr_utf8_put(hidden[i], bytes)}), 0);
    for (size_t i = 0; i < sizeof visible / sizeof *visible; i++) {
        const size_t length = tsr_utf8_put(visible[i], bytes);
        assert_int_equal(tsr_utf8_get(bytes, length), visible[i]);
        assert_int_equal(tsr_str_visible((tsr_str){bytes, length}), length);
    }
    assert_int_equal(tsr_str_visible((tsr_str){bytes, 0}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_visible__what_cannot_be_seen_is_escaped),
        cmocka_unit_test(test_base_visible__ranges_end_where_unicode_ends_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
