/* Texts of values and elements, and a layout document that is read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/document.h"

static const tsr_host host_libc = {.allocator = &tsr_allocator_libc, .limits = {64, 1000, 1 << 20, 1 << 24, 1 << 20}};

#define INT(n)  (&(const tsr_value){.kind = TSR_VALUE_INT, .as.integer = (n)})
#define STR(s)  (&(const tsr_value){.kind = TSR_VALUE_STR, .text = TSR_STR(s)})
#define REAL(x) (&(const tsr_value){.kind = TSR_VALUE_FLOAT, .as.real = (x)})
#define NONE    (&(const tsr_value){.kind = TSR_VALUE_NONE})
#define ITEMS(k, ...) \
    (&(const tsr_value){.kind = (k), \
                        .items = (const tsr_value *const[]){__VA_ARGS__}, \
                        .count = sizeof((const tsr_value *const[]){__VA_ARGS__}) / sizeof(void *)})

/* Expected values: Python's repr, except where Python has no literal. */
static void test_documents_inspect__values_read_as_python_prints_them(void **state)
{
    (void)state;
    const uint64_t shape[] = {2, 3};
    const tsr_entry tensor = {.dtype = TSR_BFLOAT16, .ndim = 2, .shape = shape};
    const struct {
        const tsr_value *value;
        const char *text;
    } cases[] = {
        {NONE, "None"},
        {INT(-7), "-7"},
        {REAL(1.0), "1.0"},
        {REAL(1e-8), "1e-08"},
        {REAL(0.1), "0.1"},
        {STR("it's\n\x01"), "'it\\'s\\n\\x01'"},
        {&(const tsr_value){.kind = TSR_VALUE_BYTES, .text = TSR_STR("a\xff")}, "b'a\\xff'"},
        {&(const tsr_value){.kind = TSR_VALUE_BIGINT, .text = TSR_STR("\0\0\0\0\0\0\0\0\1")}, "18446744073709551616"},
        {&(const tsr_value){.kind = TSR_VALUE_BIGINT, .text = TSR_STR("\0\0\0\0\0\0\0\0\xff")}, "-18446744073709551616"},
        {ITEMS(TSR_VALUE_LIST, INT(1), ITEMS(TSR_VALUE_TUPLE, INT(2)), STR("x")), "[1, (2,), 'x']"},
        {ITEMS(TSR_VALUE_DICT, STR("a"), INT(1), INT(2), NONE), "{'a': 1, 2: None}"},
        {ITEMS(TSR_VALUE_SET, INT(1)), "{1}"},
        {&(const tsr_value){.kind = TSR_VALUE_SET}, "set()"},
        {&(const tsr_value){.kind = TSR_VALUE_TUPLE}, "()"},
        {ITEMS(TSR_VALUE_SIZE, INT(2), INT(3)), "torch.Size([2, 3])"},
        {&(const tsr_value){.kind = TSR_VALUE_DTYPE, .as.dtype = TSR_FLOAT32}, "torch.float32"},
        {&(const tsr_value){.kind = TSR_VALUE_DEVICE, .text = TSR_STR("cuda:0")}, "device('cuda:0')"},
        {&(const tsr_value){.kind = TSR_VALUE_TENSOR, .as.tensor = &tensor}, "tensor(bfloat16, [2, 3])"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        assert_string_equal(tsr_value_text(cases[i].value, text, sizeof text), cases[i].text);
    }
}

static void test_documents_inspect__long_and_deep_values_are_cut(void **state)
{
    (void)state;
    char text[24];
    assert_string_equal(tsr_value_text(STR("0123456789012345678901234567"), text, sizeof text), "'0123456789012345678…");
    assert_string_equal(tsr_value_text(STR("éééééééééééééé"), text, sizeof text),
                        "'ééééééééé…"); /* not cut inside a character */
    tsr_value loop = {.kind = TSR_VALUE_LIST, .count = 1};
    const tsr_value *self = &loop;
    loop.items = &self;
    char long_text[200];
    assert_string_equal(tsr_value_text(&loop, long_text, sizeof long_text), "[[[[[[[[[[[[…]]]]]]]]]]]]");
}

static void test_documents_inspect__elements_read_back(void **state)
{
    (void)state;
    static const struct {
        tsr_dtype dtype;
        const char *bytes, *text;
    } cases[] = {
        {TSR_INT8, "\xff", "-1"},
        {TSR_UINT8, "\xff", "255"},
        {TSR_INT64, "\0\0\0\0\0\0\0\x80", "-9223372036854775808"},
        {TSR_UINT64, "\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"},
        {TSR_BOOL, "\1", "true"},
        {TSR_FLOAT32, "\xcd\xcc\xcc\x3d", "0.1"},
        {TSR_FLOAT64, "\x9a\x99\x99\x99\x99\x99\xb9\x3f", "0.1"},
        {TSR_BFLOAT16, "\xc0\x7f", "nan"},
        {TSR_FLOAT16, "\0\xfc", "-inf"},
        {TSR_COMPLEX64, "\0\0\x80\x3f\0\0\0\xc0", "(1-2j)"},
        {TSR_BITS16, "\x01\xab", "01ab"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[80];
        assert_string_equal(tsr_element_text(cases[i].dtype, (const uint8_t *)cases[i].bytes, text, sizeof text),
                            cases[i].text);
    }
}

typedef struct sink {
    char text[4096];
    size_t used;
} sink;

static tsr_status take(void *ctx, const char *data, size_t size, tsr_error *err)
{
    sink *to = ctx;
    if (to->used + size > sizeof to->text) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "full");
    memcpy(to->text + to->used, data, size);
    to->used += size;
    return TSR_OK;
}

static void test_documents_inspect__a_layout_is_sorted_and_reads_back(void **state)
{
    (void)state;
    const uint64_t shape[] = {4}, low[] = {0}, high[] = {2}, size[] = {2};
    const tsr_chunk chunks[] = {{.offsets = high, .sizes = size}, {.offsets = low, .sizes = size}};
    const tsr_entry entries[] = {
        {.fqn = TSR_STR("w"),
         .kind = TSR_ENTRY_TENSOR,
         .dtype = TSR_FLOAT16,
         .ndim = 1,
         .shape = shape,
         .chunks = chunks,
         .chunk_count = 2},
        {.fqn = TSR_STR("a"), .kind = TSR_ENTRY_OBJECT, .type = TSR_STR("int")},
    };
    const tsr_catalog catalog = {.entries = entries, .entry_count = 2};
    sink to = {{0}, 0};
    tsr_json json;
    tsr_error err = {0};
    tsr_json_start(&json, take, &to, 0, &err);
    assert_int_equal(tsr_document_layout(&catalog, &(tsr_layout_options){0}, &host_libc, &json, &err), TSR_OK);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    to.text[to.used] = '\0';
    assert_string_equal(to.text,
                        "{\"schema\":\"tessera.layout/1\",\"entries\":[{\"fqn\":\"a\",\"kind\":\"object\",\"type\":\"int\"},"
                        "{\"fqn\":\"w\",\"kind\":\"tensor\",\"dtype\":\"float16\",\"shape\":[4],\"chunks\":["
                        "{\"offsets\":[0],\"sizes\":[2]},{\"offsets\":[2],\"sizes\":[2]}]}]}\n");
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    tsr_contract back;
    assert_int_equal(tsr_contract_read((tsr_str){to.text, to.used}, &host_libc, arena, &back, &err), TSR_OK);
    assert_int_equal(back.expected.entry_count, 2);
    assert_int_equal(back.expected.entries[1].chunk_count, 2);
    assert_int_equal(back.expected.entries[1].chunks[1].offsets[0], 2);
    tsr_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_inspect__values_read_as_python_prints_them),
        cmocka_unit_test(test_documents_inspect__long_and_deep_values_are_cut),
        cmocka_unit_test(test_documents_inspect__elements_read_back),
        cmocka_unit_test(test_documents_inspect__a_layout_is_sorted_and_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
