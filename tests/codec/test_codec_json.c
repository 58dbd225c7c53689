/* JSON documents: which are rejected, where, and with which message; accessors; duplicate keys at any depth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codec/json.h"
#include "support/failing_allocator.h"
#include "tessera/sys/host_calls.h"

static tsr_host host(void)
{
    return (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
}

typedef struct refusal {
    const char *text;
    size_t size; /* 0: strlen(text) */
    uint64_t position;
    const char *message;
} refusal;

static const refusal refusals[] = {
    {"", 0, 0, "expected a value, found the end"},
    {"  ", 0, 2, "expected a value, found the end"},
    {"{} x", 0, 3, "expected the end, found 'x'"},
    {"{}\0", 3, 2, "expected the end, found byte 0x00"},
    {"{\"a\":1", 0, 6, "expected ',' or '}', found the end"},
    {"[1,]", 0, 3, "expected a value, found ']'"},
    {"{\"a\":1,}", 0, 7, "expected a string, found '}'"},
    {"{a:1}", 0, 1, "expected a string, found 'a'"},
    {"{\"a\" 1}", 0, 5, "expected ':', found '1'"},
    {"[1}", 0, 2, "expected ',' or ']'"},
    {"{\"a\":1]", 0, 6, "expected ',' or '}'"},
    {"01", 0, 1, "expected the end"},
    {"-", 0, 1, "expected a digit"},
    {"1.", 0, 2, "expected a digit"},
    {"1e+", 0, 3, "expected a digit"},
    {"+1", 0, 0, "expected a value"},
    {".5", 0, 0, "expected a value"},
    {"[1e999]", 0, 1, "1e999 is outside the range of a double"},
    {"NaN", 0, 0, "expected a value"},
    {"tru", 0, 0, "expected a value"},
    {"1111111111111111111111111111111111111111111111111111111111111111", 0, 0, "a number of 64 characters"},
    {"\"a", 0, 2, "unterminated string"},
    {"\"a\nb\"", 0, 2, "control byte 0x0a"},
    {"\"a\0b\"", 5, 2, "control byte 0x00"},
    {"\"\\u0000\"", 0, 1, "NUL character in a string"},
    {"\"\\x\"", 0, 1, "unknown escape"},
    {"\"\\", 0, 1, "unknown escape"},
    {"\"\\u12g4\"", 0, 1, "four hexadecimal digits"},
    {"\"\\ud@3d\"", 0, 1, "four hexadecimal digits"},
    {"\"\\u12", 0, 1, "four hexadecimal digits"},
    {"\"\xF0\x9F\x98\"", 0, 1, "invalid UTF-8"},
    {"\"\xF0\x9F\x98", 0, 1, "invalid UTF-8"},
    {"\"\xE2\x82", 0, 1, "invalid UTF-8"},
    {"\"\xC3\"", 0, 1, "invalid UTF-8 (byte 0xc3)"},
    {"\"\xED\xA0\x80\"", 0, 1, "invalid UTF-8"},
    {"\"\xC0\x80\"", 0, 1, "invalid UTF-8"},
    {"\"\xF4\x90\x80\x80\"", 0, 1, "invalid UTF-8"},
    {"\xEF\xBB\xBF{}", 0, 0, "expected a value, found byte 0xef"},
    {"{\"a\":1,\"b\":2,\"a\":3}", 0, 13, "duplicate key 'a'"},
    {"{\"x\":[{\"k\":{\"z\":1}},{\"k\":1, \"\\u006b\":2}]}", 0, 28, "duplicate key 'k'"},
};

static void test_codec_json__refusals_name_their_place(void **state)
{
    (void)state;
    tsr_host h = host();
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        cJSON *root = NULL;
        tsr_error err = {0};
        tsr_str text = {r->text, r->size ? r->size : strlen(r->text)};
        if (tsr_json_parse(text, &h, &root, &err) != TSR_E_FORMAT || root) fail_msg("not refused: %s", r->text);
        if (!strstr(err.message, r->message)) fail_msg("%s: message is: %s", r->text, err.message);
        if (err.byte_position != r->position)
            fail_msg("%s: at %llu, expected %llu", r->text, (unsigned long long)err.byte_position,
                     (unsigned long long)r->position);
    }
}

static void test_codec_json__valid_documents_keep_their_values(void **state)
{
    (void)state;
    tsr_host h = host();
    cJSON *root;
    tsr_str text = TSR_STR(" {\"a\" : [1, -2.5e3, true, false, null, {}, "
                           "[]],\n\"\\ud83d\\ude00\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"}\r\n\t");
    assert_int_equal(tsr_json_parse(text, &h, &root, NULL), TSR_OK);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "a");
    assert_int_equal(cJSON_GetArraySize(list), 7);
    assert_true(cJSON_GetArrayItem(list, 1)->valuedouble == -2500);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(root, "\xF0\x9F\x98\x80")->valuestring, "\"\\/\b\f\n\r\t\xC3\xA9");
    cJSON_Delete(root);
    assert_int_equal(tsr_json_parse(TSR_STR("7"), &h, &root, NULL), TSR_OK);
    cJSON_Delete(root);
    assert_int_equal(tsr_json_parse(TSR_STR("[1E5,1e-5,1E+5,\"\\ue000\"]"), &h, &root, NULL), TSR_OK);
    assert_true(cJSON_GetArrayItem(root, 0)->valuedouble == 1e5 && cJSON_GetArrayItem(root, 2)->valuedouble == 1e5);
    assert_string_equal(cJSON_GetArrayItem(root, 3)->valuestring, "\xEE\x80\x80");
    cJSON_Delete(root);
}

/* json.loads in Python reads these escapes; its 'surrogatepass' encodes the str as these bytes. */
static void test_codec_json__lone_surrogates_are_three_bytes(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"\"\\ud800\"", "\xED\xA0\x80"},
                                          {"\"\\ud800\\u0041\"", "\xED\xA0\x80"
                                                                 "A"},
                                          {"\"\\ud800\\ue000\"", "\xED\xA0\x80\xEE\x80\x80"},
                                          {"\"\\ud800\\n00000\"", "\xED\xA0\x80\n00000"},
                                          {"\"\\ud800x0000000\"", "\xED\xA0\x80x0000000"},
                                          {"\"\\\\udc00\\udc00\"", "\\udc00\xED\xB0\x80"},
                                          {"\"\\uDFFF\\ud83d\\ude00\"", "\xED\xBF\xBF\xF0\x9F\x98\x80"}};
    tsr_host h = host();
    cJSON *root;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(tsr_json_parse(tsr_str_from(rows[i][0]), &h, &root, NULL), TSR_OK);
        assert_string_equal(root->valuestring, rows[i][1]);
        cJSON_Delete(root);
    }
    tsr_error err = {0};
    assert_int_equal(
        tsr_json_parse(TSR_STR("{\"x\":[\"\\ud800\"],\"\\udc80\":1,\"\\udc81\":2, \"\\udc80\":3}"), &h, &root, &err),
        TSR_E_FORMAT);
    assert_int_equal(err.byte_position, 39);
}

static void test_codec_json__depth_is_limited(void **state)
{
    (void)state;
    tsr_host h = host();
    char text[600];
    cJSON *root;
    tsr_error err = {0};
    memset(text, '[', 256);
    memset(text + 256, ']', 256);
    assert_int_equal(tsr_json_parse((tsr_str){text, 512}, &h, &root, &err), TSR_OK);
    cJSON_Delete(root);
    memset(text, '[', 257);
    assert_int_equal(tsr_json_parse((tsr_str){text, 512}, &h, &root, &err), TSR_E_LIMIT);
    assert_int_equal(err.byte_position, 256);
    h.limits.depth = 2;
    err = (tsr_error){0};
    assert_int_equal(tsr_json_parse(TSR_STR("[[{}]]"), &h, &root, &err), TSR_E_LIMIT);
    h.limits.metadata_bytes = 3;
    assert_int_equal(tsr_json_parse(TSR_STR("[[]]"), &h, &root, &err), TSR_E_LIMIT);
}

static void test_codec_json__many_keys_are_checked_in_proportion(void **state)
{
    (void)state;
    enum { KEYS = 20000 };
    tsr_host h = host();
    char *text = malloc(KEYS * 16 + 64);
    size_t size = 1;
    cJSON *root;
    tsr_error err = {0};
    text[0] = '{';
    for (int i = 0; i < KEYS; i++) size += (size_t)sprintf(text + size, "\"k%d\":0,", i);
    memcpy(text + size, "\"k7\":1}", 7);
    assert_int_equal(tsr_json_parse((tsr_str){text, size + 7}, &h, &root, &err), TSR_E_FORMAT);
    assert_int_equal(err.byte_position, size);
    memcpy(text + size, "\"k_\":1}", 7);
    assert_int_equal(tsr_json_parse((tsr_str){text, size + 7}, &h, &root, NULL), TSR_OK);
    cJSON_Delete(root);
    free(text);
}

static void test_codec_json__accessors_say_what_was_expected_and_where(void **state)
{
    (void)state;
    tsr_host h = host();
    cJSON *root;
    const cJSON *item;
    tsr_error err = {0};
    uint64_t u;
    int64_t i;
    assert_int_equal(
        tsr_json_parse(TSR_STR("{\"s\":\"x\",\"n\":5,\"neg\":-1,\"big\":9007199254740993,\"max\":9007199254740991,"
                               "\"half\":0.5,\"null\":null,\"o\":{\"a\":[]},\"b\":true}"),
                       &h, &root, NULL),
        TSR_OK);
    assert_int_equal(tsr_json_get(root, "s", TSR_JSON_STRING, "", &item, &err), TSR_OK);
    assert_true(tsr_str_equal(tsr_json_text_of(item), TSR_STR("x")));
    assert_true(tsr_str_equal(tsr_json_key_of(item), TSR_STR("s")));
    assert_int_equal(tsr_json_get(root, "s", TSR_JSON_ARRAY, "mesh", &item, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "json: expected an array at mesh.s, found a string");
    err = (tsr_error){0};
    assert_int_equal(tsr_json_get(root, "null", TSR_JSON_BOOL, "", &item, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "json: the root lacks 'null' (a boolean)");
    err = (tsr_error){0};
    assert_int_equal(tsr_json_find(root, "S", TSR_JSON_STRING, "", &item, &err), TSR_OK);
    assert_null(item);
    assert_int_equal(tsr_json_find(cJSON_GetObjectItem(root, "n"), "x", TSR_JSON_STRING, "n", &item, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "json: expected an object at n, found a number");
    err = (tsr_error){0};
    assert_int_equal(tsr_json_expect(root, TSR_JSON_ARRAY, "", &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "json: expected an array at the root, found an object");
    static const struct {
        const char *key, *message;
    } bad[] = {{"neg", "at least 0 at neg, found -1"},
               {"big", "below 2^53"},
               {"half", "found 0.5"},
               {"b", "a number at b, found a boolean"}};
    for (size_t k = 0; k < 4; k++) {
        err = (tsr_error){0};
        assert_int_equal(tsr_json_to_u64(cJSON_GetObjectItem(root, bad[k].key), bad[k].key, &u, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, bad[k].message));
    }
    assert_int_equal(tsr_json_to_u64(cJSON_GetObjectItem(root, "max"), "", &u, NULL), TSR_OK);
    assert_true(u == 9007199254740991u);
    assert_int_equal(tsr_json_to_i64(cJSON_GetObjectItem(root, "neg"), "", &i, NULL), TSR_OK);
    assert_true(i == -1);
    cJSON_Delete(root);
}

static int allocations_left;
static void *failing_malloc(size_t size)
{
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

static void test_codec_json__no_memory_is_an_error_at_every_point(void **state)
{
    (void)state;
    tsr_host h = host();
    cJSON *root = NULL;
    tsr_status status = TSR_E_NOMEM;
    cJSON_InitHooks(&(cJSON_Hooks){failing_malloc, free});
    for (int n = 0; status == TSR_E_NOMEM && n < 100; n++) {
        allocations_left = n;
        status = tsr_json_parse(TSR_STR("{\"a\":[1,\"x\",{\"b\":null}],\"c\":true}"), &h, &root, NULL);
        if (status != TSR_OK) assert_null(root);
    }
    cJSON_InitHooks(NULL);
    assert_int_equal(status, TSR_OK);
    cJSON_Delete(root);
    static const char *const texts[] = {
        "{\"a\":{\"0\":0,\"1\":1,\"2\":2,\"3\":3,\"4\":4,\"5\":5,\"6\":6,\"7\":7,\"8\":8,\"9\":9,\"10\":10,"
        "\"11\":11,\"12\":12,\"13\":13,\"14\":14}}",
        "{\"a\":1,\"a\":2}"};
    for (size_t i = 0; i < 2; i++) {
        bool failed = true;
        for (size_t n = 0; failed; n++) {
            failing_allocator failing;
            failing_start(&failing, n);
            h.allocator = &failing.allocator;
            status = tsr_json_parse(tsr_str_from(texts[i]), &h, &root, NULL);
            failed = failing.failed;
            assert_int_equal(status, failed ? TSR_E_NOMEM : i ? TSR_E_FORMAT : TSR_OK);
            assert_int_equal(failing.live, 0);
            cJSON_Delete(root);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_json__lone_surrogates_are_three_bytes),
        cmocka_unit_test(test_codec_json__refusals_name_their_place),
        cmocka_unit_test(test_codec_json__valid_documents_keep_their_values),
        cmocka_unit_test(test_codec_json__depth_is_limited),
        cmocka_unit_test(test_codec_json__many_keys_are_checked_in_proportion),
        cmocka_unit_test(test_codec_json__accessors_say_what_was_expected_and_where),
        cmocka_unit_test(test_codec_json__no_memory_is_an_error_at_every_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
