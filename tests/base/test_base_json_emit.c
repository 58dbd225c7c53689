/* The emitter: punctuation, escapes, exact numbers, and errors of the write function. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <float.h>
#include <math.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "tessera/sys/json.h"

typedef struct sink {
    char text[20000];
    size_t size;
    size_t fail_at;
} sink;

static tsr_status take(void *ctx, const char *data, size_t size, tsr_error *err)
{
    sink *s = ctx;
    if (s->fail_at && s->size + size > s->fail_at) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "no room");
    memcpy(s->text + s->size, data, size);
    s->size += size;
    s->text[s->size] = 0;
    return TSR_OK;
}

static void write_sample(tsr_json *json)
{
    static const uint64_t shape[] = {2, 18446744073709551615u};
    tsr_json_object(json);
    tsr_json_key(json, "schema");
    tsr_json_text(json, "x/1");
    tsr_json_key(json, "list");
    tsr_json_array(json);
    tsr_json_object(json);
    tsr_json_key(json, "shape");
    tsr_json_u64s(json, shape, 2);
    tsr_json_key(json, "none");
    tsr_json_u64s(json, NULL, 0);
    tsr_json_object_end(json);
    tsr_json_int(json, INT64_MIN);
    tsr_json_uint(json, UINT64_MAX);
    tsr_json_bool(json, true);
    tsr_json_text(json, NULL);
    tsr_json_array_end(json);
    tsr_json_key(json, "empty");
    tsr_json_object(json);
    tsr_json_object_end(json);
    tsr_json_key(json, "row");
    tsr_json_u64s(json, shape, 1);
    tsr_json_object_end(json);
}

static void test_base_json_emit__compact_and_pretty_differ_in_white_space_only(void **state)
{
    (void)state;
    sink s = {.size = 0};
    tsr_json json;
    tsr_json_start(&json, take, &s, 0, NULL);
    write_sample(&json);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    assert_string_equal(
        s.text, "{\"schema\":\"x/1\",\"list\":[{\"shape\":[2,18446744073709551615],\"none\":[]},-9223372036854775808,"
                "18446744073709551615,true,null],\"empty\":{},\"row\":[2]}\n");
    s.size = 0;
    tsr_json_start(&json, take, &s, 1, NULL);
    write_sample(&json);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    assert_string_equal(s.text, "{\n \"schema\": \"x/1\",\n \"list\": [\n  {\"shape\": [2, 18446744073709551615], \"none\": "
                                "[]},\n  -9223372036854775808,\n"
                                "  18446744073709551615,\n  true,\n  null\n ],\n \"empty\": {},\n \"row\": [2]\n}\n");
}

static const char *emit_str(sink *s, tsr_str text)
{
    tsr_json json;
    s->size = 0;
    tsr_json_start(&json, take, s, 0, NULL);
    tsr_json_str(&json, text);
    tsr_json_finish(&json);
    s->text[s->size - 1] = 0;
    return s->text;
}

static void test_base_json_emit__strings_are_escaped_and_valid(void **state)
{
    (void)state;
    sink s = {.size = 0};
    assert_string_equal(emit_str(&s, TSR_STR("a\"\\/\b\f\n\r\t\x01\x1f\x7f")),
                        "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\"");
    assert_string_equal(emit_str(&s, TSR_STR("nul\0!")), "\"nul\\u0000!\"");
    assert_string_equal(emit_str(&s, TSR_STR("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80")),
                        "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
    assert_string_equal(emit_str(&s, TSR_STR("a\xFF"
                                             "b\xED\xA0\x80"
                                             "c\xC3")),
                        "\"a\xEF\xBF\xBD"
                        "b\\ud800"
                        "c\xEF\xBF\xBD\"");
    assert_string_equal(emit_str(&s, (tsr_str){NULL, 0}), "\"\"");
}

/* Python's json.loads reads them as the same str. Two that would be read as one character are not written as escapes. */
static void test_base_json_emit__lone_surrogates_are_escaped(void **state)
{
    (void)state;
    sink s = {0};
    assert_string_equal(emit_str(&s, TSR_STR("\xED\xB2\x80")), "\"\\udc80\"");
    assert_string_equal(emit_str(&s, TSR_STR("\xED\xB2\x80\xED\xA0\xBD")), "\"\\udc80\\ud83d\"");
    assert_string_equal(emit_str(&s, TSR_STR("\xED\xA0\xBD\xED\xA0\xBDx\xED\xBF\xBF")), "\"\\ud83d\\ud83dx\\udfff\"");
    assert_string_equal(emit_str(&s, TSR_STR("\xED\xA0\xBD\xED\xB8\x80")),
                        "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\\ude00\"");
    assert_string_equal(emit_str(&s, TSR_STR("\xED\xA0")), "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
    assert_string_equal(emit_str(&s, TSR_STR("\xED\xB2")), "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

static void test_base_json_emit__text_longer_than_the_buffer_arrives_whole(void **state)
{
    (void)state;
    static char text[10001];
    sink s = {.size = 0};
    memset(text, 'x', 10000);
    text[4095] = '\n';
    emit_str(&s, tsr_str_from(text));
    assert_int_equal(strlen(s.text), 10003);
    assert_int_equal(s.text[4096], '\\');
}

static void test_base_json_emit__doubles_read_back_bit_for_bit(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } exact[] = {{0, "0.0"},
                 {-0.0, "-0.0"},
                 {1, "1.0"},
                 {0.1, "0.1"},
                 {1e20, "1e+20"},
                 {1e-7, "1e-07"},
                 {123456789012345680.0, "1.2345678901234568e+17"},
                 {3.141592653589793, "3.141592653589793"},
                 {5e-324, "4.94065645841247e-324"},
                 {DBL_MAX, "1.7976931348623157e+308"},
                 {NAN, "\"nan\""},
                 {INFINITY, "\"inf\""},
                 {-INFINITY, "\"-inf\""}};
    sink s = {.size = 0};
    tsr_json json;
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++) {
        s.size = 0;
        tsr_json_start(&json, take, &s, 0, NULL);
        tsr_json_double(&json, exact[i].value);
        tsr_json_finish(&json);
        s.text[s.size - 1] = 0;
        assert_string_equal(s.text, exact[i].text);
    }
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        double value, back;
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        s.size = 0;
        tsr_json_start(&json, take, &s, 0, NULL);
        tsr_json_double(&json, value);
        tsr_json_finish(&json);
        back = strtod(s.text, NULL);
        assert_memory_equal(&back, &value, sizeof value);
    }
}

static void test_base_json_emit__the_first_failure_stays(void **state)
{
    (void)state;
    sink s = {.fail_at = 5000};
    tsr_error err = {0};
    tsr_json json;
    tsr_json_start(&json, take, &s, 0, &err);
    tsr_json_array(&json);
    for (int i = 0; i < 5000; i++) tsr_json_int(&json, i);
    tsr_json_array_end(&json);
    assert_int_equal(tsr_json_finish(&json), TSR_E_IO);
    assert_string_equal(err.message, "no room");
    assert_true(s.size <= 5000);
}

static void test_base_json_emit__utf8_is_checked_to_the_byte(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t valid;
    } cases[] = {{"abc", 3},
                 {"\xC3\xA9", 2},
                 {"a\xC3", 1},
                 {"\xC1\xBF", 0},
                 {"\xE0\x9F\xBF", 0},
                 {"\xE0\xA0\x80", 3},
                 {"\xED\x9F\xBF", 3},
                 {"\xED\xA0\x80", 0},
                 {"\xEF\xBF\xBF", 3},
                 {"\xF0\x8F\xBF\xBF", 0},
                 {"\xF0\x90\x80\x80", 4},
                 {"\xF4\x8F\xBF\xBF", 4},
                 {"\xF4\x90\x80\x80", 0},
                 {"\xF5\x80\x80\x80", 0},
                 {"\x80", 0},
                 {"\xE2\x82", 0},
                 {"\xF0\x9F\x98", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tsr_utf8_check(tsr_str_from(cases[i].text)), cases[i].valid);
    char bytes[4];
    static const uint32_t scalars[] = {0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF};
    static const size_t lengths[] = {1, 1, 2, 2, 3, 3, 3, 3, 4, 4};
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(tsr_utf8_put(scalars[i], bytes), lengths[i]);
        assert_int_equal(tsr_utf8_length((tsr_str){bytes, lengths[i]}), lengths[i]);
    }
    assert_int_equal(tsr_utf8_put(0x20AC, bytes), 3);
    assert_memory_equal(bytes, "\xE2\x82\xAC", 3);
}

static void test_base_json_emit__members_are_keys_and_values(void **state)
{
    (void)state;
    static sink out;
    tsr_json json;
    tsr_json_start(&json, take, &out, 0, NULL);
    tsr_json_object(&json);
    tsr_json_put_object(&json, "object");
    tsr_json_put_text(&json, "text", "a\"b");
    tsr_json_put_text(&json, "null", NULL);
    tsr_json_put_str(&json, "str", TSR_STR("c"));
    tsr_json_object_end(&json);
    tsr_json_put_array(&json, "array");
    tsr_json_uint(&json, 1);
    tsr_json_array_end(&json);
    tsr_json_put_int(&json, "int", -2);
    tsr_json_put_uint(&json, "uint", UINT64_MAX);
    tsr_json_put_double(&json, "double", 0.5);
    tsr_json_put_bool(&json, "bool", false);
    tsr_json_put_u64s(&json, "u64s", (const uint64_t[]){3, 4}, 2);
    tsr_json_put_strs(&json, "strs", (const tsr_str[]){TSR_STR("d"), TSR_STR("e")}, 2);
    tsr_json_object_end(&json);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    assert_string_equal(out.text, "{\"object\":{\"text\":\"a\\\"b\",\"null\":null,\"str\":\"c\"},\"array\":[1],\"int\":-2,"
                                  "\"uint\":18446744073709551615,\"double\":0.5,\"bool\":false,\"u64s\":[3,4],"
                                  "\"strs\":[\"d\",\"e\"]}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_json_emit__lone_surrogates_are_escaped),
        cmocka_unit_test(test_base_json_emit__compact_and_pretty_differ_in_white_space_only),
        cmocka_unit_test(test_base_json_emit__strings_are_escaped_and_valid),
        cmocka_unit_test(test_base_json_emit__text_longer_than_the_buffer_arrives_whole),
        cmocka_unit_test(test_base_json_emit__doubles_read_back_bit_for_bit),
        cmocka_unit_test(test_base_json_emit__the_first_failure_stays),
        cmocka_unit_test(test_base_json_emit__members_are_keys_and_values),
        cmocka_unit_test(test_base_json_emit__utf8_is_checked_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
