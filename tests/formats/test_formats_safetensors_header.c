/* Writing: layout, order, padding and errors. The output is read back, and its order compared with the real library's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "formats/safetensors/safetensors.h"
#include "support/failing_allocator.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

typedef struct sink {
    char bytes[8192];
    size_t size;
} sink;

static tsr_status take(void *ctx, const char *data, size_t size, tsr_error *err)
{
    sink *s = ctx;
    if (s->size + size > sizeof s->bytes) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "full");
    memcpy(s->bytes + s->size, data, size);
    s->size += size;
    return TSR_OK;
}

static const uint64_t shape_3_4[] = {3, 4};

static tsr_status plan_items(tsr_safetensors_item *items, uint64_t count, tsr_safetensors_plan *out, tsr_error *err)
{
    *out = (tsr_safetensors_plan){.items = items, .count = count};
    return tsr_safetensors_plan_file(out, &tsr_allocator_libc, err);
}

static void test_formats_safetensors_header__bytes_are_exact(void **state)
{
    (void)state;
    sink s = {.size = 0};
    tsr_safetensors_item items[] = {
        {.name = TSR_STR("b"), .dtype = TSR_BOOL, .ndim = 0, .tag = 1},
        {.name = TSR_STR("w\"é"), .dtype = TSR_FLOAT32, .ndim = 2, .shape = shape_3_4, .tag = 2}};
    tsr_text_pair pairs[] = {{TSR_STR("format"), TSR_STR("mlx")}, {TSR_STR("k"), TSR_STR("v")}};
    tsr_safetensors_plan plan = {.items = items, .count = 2, .pairs = pairs, .pair_count = 2};
    assert_int_equal(tsr_safetensors_plan_file(&plan, &tsr_allocator_libc, NULL), TSR_OK);
    assert_int_equal(plan.header_size % 64, 0);
    assert_int_equal(plan.data_size, 49);
    assert_int_equal(items[0].tag, 2);
    assert_int_equal(items[1].begin, 48);
    assert_int_equal(items[1].end, 49);
    assert_int_equal(tsr_safetensors_write_header(&plan, 0x0123abcd, take, &s, NULL), TSR_OK);
    assert_int_equal(s.size, plan.header_size);
    assert_int_equal((uint8_t)s.bytes[0] | (uint8_t)s.bytes[1] << 8, s.size - 8);
    const char *expected = "{\"w\\\"é\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,48]},"
                           "\"b\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[48,49]},"
                           "\"__metadata__\":{\"format\":\"mlx\",\"k\":\"v\",\"tessera.crc32\":\"0123abcd\"}}\n";
    assert_memory_equal(s.bytes + 8, expected, strlen(expected));
    for (size_t i = 8 + strlen(expected); i < s.size; i++) assert_int_equal(s.bytes[i], ' ');
}

/* The order of the header of a file with every dtype that the real library wrote (c1 of the acceptance cases). */
static void test_formats_safetensors_header__order_is_the_reference_librarys(void **state)
{
    (void)state;
    static const char *const order[] = {
        "U64",         "I64",         "F64",     "C64",     "F32",     "U32", "I32", "BF16",    "F16",     "U16", "I16",
        "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8",  "U8",  "F6_E3M2", "F6_E2M3", "F4",  "BOOL"};
    enum { COUNT = sizeof order / sizeof order[0] };
    tsr_safetensors_item items[COUNT];
    tsr_safetensors_plan plan;
    for (size_t i = 0; i < COUNT; i++)
        items[COUNT - 1 - i] = (tsr_safetensors_item){.name = tsr_str_from(order[i]),
                                                      .dtype = tsr_dtype_from_safetensors(tsr_str_from(order[i])),
                                                      .ndim = 2,
                                                      .shape = shape_3_4};
    assert_int_equal(plan_items(items, COUNT, &plan, NULL), TSR_OK);
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(tsr_str_equal(items[i].name, tsr_str_from(order[i])));
        assert_int_equal(items[i].begin % tsr_dtype_describe(items[i].dtype)->swap_bytes, 0);
    }
}

static void test_formats_safetensors_header__names_of_one_dtype_are_sorted(void **state)
{
    (void)state;
    tsr_safetensors_item items[] = {
        {.name = TSR_STR("b")}, {.name = TSR_STR("a.b")}, {.name = TSR_STR("a")}, {.name = TSR_STR("B")}};
    tsr_safetensors_plan plan;
    for (size_t i = 0; i < 4; i++) items[i].dtype = TSR_FLOAT16;
    assert_int_equal(plan_items(items, 4, &plan, NULL), TSR_OK);
    static const char *const order[] = {"B", "a", "a.b", "b"};
    for (size_t i = 0; i < 4; i++) assert_true(tsr_str_equal(items[i].name, tsr_str_from(order[i])));
}

static void test_formats_safetensors_header__float4_pairs_become_single_elements(void **state)
{
    (void)state;
    sink s = {.size = 0};
    tsr_safetensors_plan plan;
    tsr_safetensors_item item = {.name = TSR_STR("q"), .dtype = TSR_FLOAT4_E2M1FN_X2, .ndim = 2, .shape = shape_3_4};
    assert_int_equal(plan_items(&item, 1, &plan, NULL), TSR_OK);
    assert_int_equal(plan.data_size, 12);
    assert_int_equal(tsr_safetensors_write_header(&plan, 0x0123abcd, take, &s, NULL), TSR_OK);
    s.bytes[s.size] = 0;
    assert_non_null(strstr(s.bytes + 8, "\"q\":{\"dtype\":\"F4\",\"shape\":[3,8],\"data_offsets\":[0,12]}"));
}

static void test_formats_safetensors_header__what_was_written_reads_back(void **state)
{
    (void)state;
    sink s = {.size = 0};
    tsr_safetensors_plan plan;
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    static const uint64_t none[] = {0, 5};
    tsr_safetensors_item items[] = {{.name = TSR_STR("a\nb"), .dtype = TSR_INT64, .ndim = 0},
                                    {.name = TSR_STR("e"), .dtype = TSR_BFLOAT16, .ndim = 2, .shape = none},
                                    {.name = TSR_STR("x"), .dtype = TSR_UINT8, .ndim = 2, .shape = shape_3_4}};
    assert_int_equal(plan_items(items, 3, &plan, NULL), TSR_OK);
    assert_int_equal(tsr_safetensors_write_header(&plan, 0x0123abcd, take, &s, NULL), TSR_OK);
    memset(s.bytes + s.size, 7, (size_t)plan.data_size);
    tsr_memory_file file = {TSR_STR("m"), {s.bytes, s.size + (size_t)plan.data_size}};
    tsr_store *store;
    tsr_safetensors opened;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_findings *findings = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, &file, 1, &store, NULL), TSR_OK);
    assert_int_equal(
        tsr_safetensors_open((tsr_range){store, 0, 0, file.content.size}, &host, arena, findings, &opened, NULL), TSR_OK);
    assert_int_equal(tsr_findings_count(findings), 0);
    assert_int_equal(opened.data_offset, plan.header_size);
    for (size_t i = 0; i < 3; i++) {
        const tsr_safetensors_tensor *t = tsr_safetensors_find(&opened, items[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, items[i].dtype);
        assert_int_equal(t->begin, items[i].begin);
        assert_int_equal(t->end, items[i].end);
    }
    tsr_safetensors_close(&opened);
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    store->close(store);
}

static void test_formats_safetensors_header__what_cannot_be_held_is_refused_by_name(void **state)
{
    (void)state;
    static const uint64_t huge[] = {UINT64_MAX, 2}, odd[] = {3};
    static const struct {
        tsr_safetensors_item item;
        const char *message;
    } bad[] = {
        {{.name = {"c", 1}, .dtype = TSR_COMPLEX128}, "cannot store 'c': the format has no dtype complex128"},
        {{.name = {"q", 1}, .dtype = TSR_QINT8}, "qint8"},
        {{.name = {"", 0}, .dtype = TSR_BOOL}, "an empty name"},
        {{.name = {"a\0b", 3}, .dtype = TSR_BOOL}, "NUL"},
        {{.name = {"\xFF", 1}, .dtype = TSR_BOOL}, "not UTF-8"},
        {{.name = {"__metadata__", 12}, .dtype = TSR_BOOL}, "the name of the metadata"},
        {{.name = {"twice", 5}, .dtype = TSR_BOOL}, "two tensors are called 'twice'"},
        {{.name = {"h", 1}, .dtype = TSR_BOOL, .ndim = 2, .shape = huge}, "overflows"},
        {{.name = {"o", 1}, .dtype = TSR_FLOAT4_E2M1FN, .ndim = 1, .shape = odd}, "not a whole number of bytes"},
        {{.name = {"p", 1}, .dtype = TSR_FLOAT4_E2M1FN_X2}, "no dimension"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tsr_safetensors_item items[] = {{.name = TSR_STR("twice"), .dtype = TSR_INT8}, bad[i].item};
        tsr_safetensors_plan plan;
        tsr_error err = {0};
        assert_int_equal(plan_items(items, 2, &plan, &err), TSR_E_UNSUPPORTED);
        if (!strstr(err.message, bad[i].message)) fail_msg("%s", err.message);
    }
}

static tsr_status take_until(void *ctx, const char *data, size_t size, tsr_error *err)
{
    size_t *left = ctx;
    (void)data;
    if (size > *left) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "full");
    *left -= size;
    return TSR_OK;
}

static void test_formats_safetensors_header__a_failing_sink_is_reported(void **state)
{
    (void)state;
    tsr_safetensors_plan plan;
    tsr_safetensors_item item = {.name = TSR_STR("w"), .dtype = TSR_FLOAT32, .ndim = 2, .shape = shape_3_4};
    assert_int_equal(plan_items(&item, 1, &plan, NULL), TSR_OK);
    for (size_t room = 0; room <= plan.header_size; room++) {
        size_t left = room;
        tsr_error err = {0};
        tsr_status status = tsr_safetensors_write_header(&plan, 0x0123abcd, take_until, &left, &err);
        assert_int_equal(status, room < plan.header_size ? TSR_E_IO : TSR_OK);
        assert_int_equal(err.status, status);
    }
}

static void test_formats_safetensors_header__no_memory_and_a_header_too_large_are_errors(void **state)
{
    (void)state;
    failing_allocator failing;
    tsr_safetensors_plan plan;
    tsr_safetensors_item item = {.name = TSR_STR("w"), .dtype = TSR_FLOAT32, .ndim = 2, .shape = shape_3_4};
    failing_start(&failing, 0);
    plan = (tsr_safetensors_plan){.items = &item, .count = 1};
    assert_int_equal(tsr_safetensors_plan_file(&plan, &failing.allocator, NULL), TSR_E_NOMEM);
    static const uint64_t half[] = {UINT64_MAX / 2 + 1};
    tsr_safetensors_item items[] = {{.name = TSR_STR("a"), .dtype = TSR_INT8, .ndim = 1, .shape = half},
                                    {.name = TSR_STR("b"), .dtype = TSR_INT8, .ndim = 1, .shape = half}};
    assert_int_equal(plan_items(items, 2, &plan, NULL), TSR_E_UNSUPPORTED);
    size_t size = TSR_SAFETENSORS_MAX_HEADER;
    char *text = malloc(size);
    memset(text, 'x', size);
    tsr_text_pair pair = {TSR_STR("k"), {text, size}};
    tsr_error err = {0};
    plan = (tsr_safetensors_plan){.items = &item, .count = 1, .pairs = &pair, .pair_count = 1};
    assert_int_equal(tsr_safetensors_plan_file(&plan, &tsr_allocator_libc, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "write several files"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_safetensors_header__bytes_are_exact),
        cmocka_unit_test(test_formats_safetensors_header__order_is_the_reference_librarys),
        cmocka_unit_test(test_formats_safetensors_header__names_of_one_dtype_are_sorted),
        cmocka_unit_test(test_formats_safetensors_header__float4_pairs_become_single_elements),
        cmocka_unit_test(test_formats_safetensors_header__what_was_written_reads_back),
        cmocka_unit_test(test_formats_safetensors_header__a_failing_sink_is_reported),
        cmocka_unit_test(test_formats_safetensors_header__no_memory_and_a_header_too_large_are_errors),
        cmocka_unit_test(test_formats_safetensors_header__what_cannot_be_held_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
