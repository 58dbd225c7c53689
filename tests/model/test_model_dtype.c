/* Compares the dtype table with the names of torch, torch.save and safetensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"

static void test_model_dtype__every_name_leads_back(void **state)
{
    (void)state;
    unsigned in_safetensors = 0;
    for (tsr_dtype d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++) {
        const tsr_dtype_info *info = tsr_dtype_describe(d);
        assert_non_null(info->name);
        if (d != TSR_FLOAT4_E2M1FN) assert_int_equal(tsr_dtype_from_name(tsr_str_from(info->name)), d);
        if (info->storage_class) assert_int_equal(tsr_dtype_from_storage_class(tsr_str_from(info->storage_class)), d);
        if (info->safetensors_name) assert_int_equal(tsr_dtype_from_safetensors(tsr_str_from(info->safetensors_name)), d);
        in_safetensors += info->safetensors_name != NULL;
        assert_int_not_equal(info->kind, TSR_CLASS_NONE);
        assert_true(info->bits >= 4);
        assert_int_equal(tsr_dtype_size(d) % info->swap_bytes, 0);
    }
    assert_int_equal(in_safetensors, 22);
}

static void test_model_dtype__names_are_exact(void **state)
{
    (void)state;
    assert_int_equal(tsr_dtype_from_name(TSR_STR("torch.bfloat16")), TSR_BFLOAT16);
    static const char *const wrong[] = {"", "torch.", "float", "Float32", "float32 ", "torch.torch.float32", "none"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(tsr_dtype_from_name(tsr_str_from(wrong[i])), TSR_DTYPE_NONE);
        assert_int_equal(tsr_dtype_from_safetensors(tsr_str_from(wrong[i])), TSR_DTYPE_NONE);
        assert_int_equal(tsr_dtype_from_storage_class(tsr_str_from(wrong[i])), TSR_DTYPE_NONE);
    }
    assert_string_equal(tsr_dtype_describe((tsr_dtype)-1)->name, "none");
    assert_string_equal(tsr_dtype_describe(TSR_DTYPE_COUNT)->name, "none");
}

static void test_model_dtype__people_may_abbreviate(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tsr_dtype dtype;
    } cases[] = {
        {"bf16", TSR_BFLOAT16},   {"BF16", TSR_BFLOAT16},         {"fp32", TSR_FLOAT32}, {"half", TSR_FLOAT16},
        {"Float32", TSR_FLOAT32}, {"F8_E4M3", TSR_FLOAT8_E4M3FN}, {"f64", TSR_FLOAT64},  {"torch.bfloat16", TSR_BFLOAT16},
        {"fp8", TSR_DTYPE_NONE},  {"float8", TSR_DTYPE_NONE},     {"", TSR_DTYPE_NONE},  {"none", TSR_DTYPE_NONE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(tsr_dtype_from_text(tsr_str_from(cases[i].text)), cases[i].dtype);
}

static void test_model_dtype__bytes_are_checked(void **state)
{
    (void)state;
    static const struct {
        tsr_dtype dtype;
        uint64_t elements;
        bool fits;
        uint64_t bytes;
    } cases[] = {{TSR_FLOAT32, 6, true, 24},
                 {TSR_COMPLEX128, 2, true, 32},
                 {TSR_FLOAT6_E2M3, 4, true, 3},
                 {TSR_FLOAT6_E2M3, 3, false, 0},
                 {TSR_FLOAT4_E2M1FN, 8, true, 4},
                 {TSR_FLOAT4_E2M1FN, 7, false, 0},
                 {TSR_FLOAT4_E2M1FN_X2, 7, true, 7},
                 {TSR_BOOL, 0, true, 0},
                 {TSR_UINT8, UINT64_MAX, true, UINT64_MAX},
                 {TSR_INT16, UINT64_MAX / 2, true, UINT64_MAX - 1},
                 {TSR_INT16, UINT64_MAX / 2 + 1, false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes = 0;
        assert_int_equal(tsr_dtype_bytes(cases[i].dtype, cases[i].elements, &bytes), cases[i].fits);
        if (cases[i].fits) assert_true(bytes == cases[i].bytes);
    }
}

static void test_model_dtype__float4_is_counted_in_two_ways(void **state)
{
    (void)state;
    tsr_dtype dtype = TSR_FLOAT4_E2M1FN;
    uint64_t last = 8;
    assert_true(tsr_dtype_pack(&dtype, &last));
    assert_int_equal(dtype, TSR_FLOAT4_E2M1FN_X2);
    assert_int_equal(last, 4);
    assert_true(tsr_dtype_unpack(&dtype, &last));
    assert_int_equal(dtype, TSR_FLOAT4_E2M1FN);
    assert_int_equal(last, 8);
    last = 3;
    assert_false(tsr_dtype_pack(&dtype, &last));
    assert_int_equal(dtype, TSR_FLOAT4_E2M1FN);
    dtype = TSR_FLOAT4_E2M1FN_X2;
    last = UINT64_MAX;
    assert_false(tsr_dtype_unpack(&dtype, &last));
    dtype = TSR_FLOAT32;
    assert_true(tsr_dtype_pack(&dtype, &last) && tsr_dtype_unpack(&dtype, &last));
    assert_int_equal(dtype, TSR_FLOAT32);
}

static void test_model_dtype__entries_know_their_size(void **state)
{
    (void)state;
    static const uint64_t plain[] = {2, 3}, empty[] = {UINT64_MAX, UINT64_MAX, 0}, huge[] = {UINT64_MAX, 2};
    tsr_entry entry = {.dtype = TSR_INT16, .ndim = 2, .shape = plain};
    uint64_t n;
    assert_true(tsr_entry_elements(&entry, &n) && n == 6);
    assert_true(tsr_entry_bytes(&entry, &n) && n == 12);
    entry.ndim = 0;
    assert_true(tsr_entry_elements(&entry, &n) && n == 1);
    entry = (tsr_entry){.dtype = TSR_INT16, .ndim = 3, .shape = empty};
    assert_true(tsr_entry_bytes(&entry, &n) && n == 0);
    entry = (tsr_entry){.dtype = TSR_INT16, .ndim = 2, .shape = huge};
    assert_false(tsr_entry_elements(&entry, &n));
    assert_false(tsr_entry_bytes(&entry, &n));
    assert_string_equal(tsr_format_name(TSR_FORMAT_SAFETENSORS_INDEX), "safetensors-index");
    assert_string_equal(tsr_format_name(TSR_FORMAT_NONE), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_dtype__every_name_leads_back),
        cmocka_unit_test(test_model_dtype__names_are_exact),
        cmocka_unit_test(test_model_dtype__people_may_abbreviate),
        cmocka_unit_test(test_model_dtype__bytes_are_checked),
        cmocka_unit_test(test_model_dtype__float4_is_counted_in_two_ways),
        cmocka_unit_test(test_model_dtype__entries_know_their_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
