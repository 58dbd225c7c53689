/* Compares casts with what PyTorch makes of the same values, and tests properties of the casts that PyTorch has no part
 * in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/sys/read.h"

#include "stream/golden_casts.h"

#define GOLDENS (sizeof golden_casts / sizeof *golden_casts)

static void test_stream_cast__every_8_bit_code_widens_as_in_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        if (tsr_dtype_size(golden_casts[i].dtype) != 1) continue;
        for (unsigned code = 0; code < 256; code++) {
            uint8_t byte = (uint8_t)code;
            float got, want;
            tsr_cast(golden_casts[i].dtype, TSR_FLOAT32, &byte, 1, (uint8_t *)&got);
            memcpy(&want, &golden_casts[i].values[code], 4);
            const bool same = isnan(want) ? isnan(got) : memcmp(&got, &want, 4) == 0;
            if (!same)
                fail_msg("%s %02x: %a, torch has %a", tsr_dtype_describe(golden_casts[i].dtype)->name, code, got, want);
        }
    }
}

static void test_stream_cast__float32_narrows_as_in_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        const tsr_dtype dtype = golden_casts[i].dtype;
        for (size_t n = 0; n < golden_casts[i].count; n++) {
            float probe;
            memcpy(&probe, &golden_casts[i].probes[n], 4);
            const double wide = (double)probe;
            uint16_t got = 0, from_double = 0;
            tsr_cast(TSR_FLOAT32, dtype, (const uint8_t *)&probe, 1, (uint8_t *)&got);
            tsr_cast(TSR_FLOAT64, dtype, (const uint8_t *)&wide, 1, (uint8_t *)&from_double);
            assert_int_equal(got, from_double);
            float back;
            tsr_cast(dtype, TSR_FLOAT32, (const uint8_t *)&golden_casts[i].codes[n], 1, (uint8_t *)&back);
            if (isnan(probe) && isnan(back)) { /* PyTorch's own NaNs differ between its vector and scalar code */
                tsr_cast(dtype, TSR_FLOAT32, (const uint8_t *)&got, 1, (uint8_t *)&back);
                assert_true(isnan(back));
            } else if (got != golden_casts[i].codes[n]) {
                fail_msg("%s of %a: %x, torch has %x", tsr_dtype_describe(dtype)->name, (double)probe, got,
                         golden_casts[i].codes[n]);
            }
        }
    }
}

static void test_stream_cast__every_value_survives_a_wider_type(void **state)
{
    (void)state;
    static const tsr_dtype narrow[] = {TSR_FLOAT16,     TSR_BFLOAT16,        TSR_FLOAT8_E4M3FN, TSR_FLOAT8_E4M3FNUZ,
                                       TSR_FLOAT8_E5M2, TSR_FLOAT8_E5M2FNUZ, TSR_FLOAT8_E8M0FNU};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        for (uint32_t code = 0; code < (tsr_dtype_size(narrow[i]) == 1 ? 0x100u : 0x10000u); code++) {
            const uint16_t from = (uint16_t)code;
            uint16_t back = 0;
            float wide;
            tsr_cast(narrow[i], TSR_FLOAT32, (const uint8_t *)&from, 1, (uint8_t *)&wide);
            tsr_cast(TSR_FLOAT32, narrow[i], (const uint8_t *)&wide, 1, (uint8_t *)&back);
            if (!isnan(wide)) assert_int_equal(back, from);
            if (isnan(wide)) tsr_cast(narrow[i], TSR_FLOAT32, (const uint8_t *)&back, 1, (uint8_t *)&wide);
            assert_true(!isnan(wide) || back != 0 || from != 0);
        }
    }
}

static void test_stream_cast__double_rounds_once(void **state)
{
    (void)state;
    const double value = 1.00390625 + 0x1p-40; /* just above the midpoint of two bfloat16 numbers; exactly the midpoint
                                                * once it is rounded to float32 */
    uint16_t got;
    tsr_cast(TSR_FLOAT64, TSR_BFLOAT16, (const uint8_t *)&value, 1, (uint8_t *)&got);
    assert_int_equal(got, 0x3f81);
}

/* Converts `bits` to `to` directly and by way of float64; both must agree. */
static void check_paths(tsr_dtype from, tsr_dtype to, uint32_t bits)
{
    double wide;
    uint32_t direct = 0, by_double = 0;
    tsr_cast(from, to, (const uint8_t *)&bits, 1, (uint8_t *)&direct);
    tsr_cast(from, TSR_FLOAT64, (const uint8_t *)&bits, 1, (uint8_t *)&wide);
    tsr_cast(TSR_FLOAT64, to, (const uint8_t *)&wide, 1, (uint8_t *)&by_double);
    if (direct != by_double)
        fail_msg("%s %08x: %x, by way of float64 %x", tsr_dtype_describe(from)->name, bits, direct, by_double);
}

static void test_stream_cast__direct_conversions_are_those_by_way_of_float64(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7ff, 0x800, 0xfff};
    for (uint32_t bits = 0; bits < 0x10000u; bits++) {
        static const tsr_dtype narrow[] = {TSR_FLOAT16, TSR_BFLOAT16, TSR_FLOAT8_E4M3FN};
        for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
            check_paths(TSR_BFLOAT16, narrow[i], bits);
            check_paths(TSR_FLOAT16, narrow[i], bits);
        }
        check_paths(TSR_BFLOAT16, TSR_FLOAT32, bits);
        check_paths(TSR_FLOAT16, TSR_FLOAT32, bits);
    }
    for (uint32_t high = 0; high < 0x100000u; high++)
        for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
            check_paths(TSR_FLOAT32, TSR_FLOAT8_E4M3FN, high << 12 | low[i]);
            check_paths(TSR_FLOAT32, TSR_FLOAT16, high << 12 | low[i]);
        }
}

/* Many elements are converted by a table or by vectors; a single one is not. */
static void test_stream_cast__many_elements_become_what_each_becomes(void **state)
{
    (void)state;
    static const tsr_dtype types[] = {TSR_FLOAT8_E4M3FN,   TSR_FLOAT8_E4M3FNUZ, TSR_FLOAT8_E5M2,
                                      TSR_FLOAT8_E5M2FNUZ, TSR_FLOAT8_E8M0FNU,  TSR_FLOAT16,
                                      TSR_BFLOAT16,        TSR_FLOAT32,         TSR_FLOAT64};
    uint8_t codes[1000], many[8 * sizeof codes], one[8];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 7);
    for (size_t from = 0; from < 5; from++) {
        for (size_t to = 0; to < sizeof types / sizeof *types; to++) {
            const size_t size = tsr_dtype_size(types[to]);
            tsr_cast(types[from], types[to], codes, sizeof codes, many);
            for (size_t i = 0; i < sizeof codes; i++) {
                tsr_cast(types[from], types[to], &codes[i], 1, one);
                assert_memory_equal(many + i * size, one, size);
                if (types[to] == TSR_FLOAT32) check_paths(types[from], types[to], codes[i]);
            }
        }
    }
}

/* Whether PyTorch's result means that the value became zero, and that it was too large. */
static bool is_zero_in_torch(tsr_dtype dtype, uint16_t code)
{
    const bool half = tsr_dtype_size(dtype) == 2;
    return dtype != TSR_FLOAT8_E8M0FNU && !(code & (half ? 0x7fff : 0x7f)) &&
           (half || code != 0x80 || dtype == TSR_FLOAT8_E4M3FN || dtype == TSR_FLOAT8_E5M2);
}

static bool is_too_large_in_torch(tsr_dtype dtype, uint16_t code, float value)
{
    uint8_t bytes[2] = {(uint8_t)code, (uint8_t)(code >> 8)};
    float back;
    if (dtype == TSR_FLOAT8_E4M3FN) return fabsf(value) > 464; /* it saturates: what is nearer to 480 than to 448 */
    tsr_cast(dtype, TSR_FLOAT32, bytes, 1, (uint8_t *)&back);
    return isnan(back) || isinf(back);
}

static void test_stream_cast__losses_are_those_of_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        const tsr_dtype dtype = golden_casts[i].dtype;
        tsr_cast_losses want = {.zeros = 0}, got = {.zeros = 5, .overflows = 7};
        uint16_t out[800];
        for (size_t n = 0; n < golden_casts[i].count; n++) {
            float value;
            memcpy(&value, &golden_casts[i].probes[n], 4);
            if (isnan(value) || isinf(value) || value == 0) continue;
            want.zeros += is_zero_in_torch(dtype, golden_casts[i].codes[n]);
            want.overflows += is_too_large_in_torch(dtype, golden_casts[i].codes[n], value);
        }
        tsr_cast_counted(TSR_FLOAT32, dtype, (const uint8_t *)golden_casts[i].probes, golden_casts[i].count, (uint8_t *)out,
                         &got);
        assert_true(want.overflows && (want.zeros || dtype == TSR_FLOAT8_E8M0FNU || dtype == TSR_BFLOAT16));
        assert_int_equal(got.zeros, want.zeros + 5);
        assert_int_equal(got.overflows, want.overflows + 7);
    }
}

/* Every value of the narrow types, and every length of a block's rest, cast from each type that has them. */
static void test_stream_cast__losses_do_not_depend_on_the_source(void **state)
{
    (void)state;
    static const tsr_dtype narrow[] = {TSR_FLOAT16,     TSR_BFLOAT16,        TSR_FLOAT8_E4M3FN, TSR_FLOAT8_E4M3FNUZ,
                                       TSR_FLOAT8_E5M2, TSR_FLOAT8_E5M2FNUZ, TSR_FLOAT8_E8M0FNU};
    static uint16_t codes[0x10000], out[0x10000];
    static double wide[0x10000];
    for (uint32_t i = 0; i < 0x10000u; i++) codes[i] = (uint16_t)i;
    for (size_t from = 0; from < sizeof narrow / sizeof *narrow; from++) {
        const size_t size = tsr_dtype_size(narrow[from]), count = size == 1 ? 0x100 : 0x10000;
        uint8_t bytes[0x100];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)i;
        const uint8_t *values = size == 1 ? bytes : (const uint8_t *)codes;
        tsr_cast(narrow[from], TSR_FLOAT64, values, count, (uint8_t *)wide);
        for (size_t to = 0; to < sizeof narrow / sizeof *narrow; to++) {
            tsr_cast_losses direct = {.zeros = 0}, by_double = {.zeros = 0}, one_by_one = {.zeros = 0};
            tsr_cast_counted(narrow[from], narrow[to], values, count, (uint8_t *)out, &direct);
            tsr_cast_counted(TSR_FLOAT64, narrow[to], (const uint8_t *)wide, count, (uint8_t *)out, &by_double);
            const tsr_lossy lossy = tsr_lossy_of(narrow[from], narrow[to]);
            for (size_t i = 0; i < count; i++) tsr_count_losses(&lossy, values + i * size, 1, &one_by_one);
            assert_memory_equal(&direct, &by_double, sizeof direct);
            assert_memory_equal(&direct, &one_by_one, sizeof direct);
            if (from == to) assert_true(!direct.zeros && !direct.overflows);
        }
    }
}

static void test_stream_cast__only_floating_types_cast(void **state)
{
    (void)state;
    assert_true(tsr_cast_possible(TSR_FLOAT64, TSR_FLOAT8_E8M0FNU));
    assert_false(tsr_cast_possible(TSR_INT32, TSR_FLOAT32));
    assert_false(tsr_cast_possible(TSR_FLOAT32, TSR_COMPLEX64));
    assert_false(tsr_cast_possible(TSR_FLOAT6_E2M3, TSR_FLOAT32));
    assert_false(tsr_cast_possible(TSR_FLOAT4_E2M1FN_X2, TSR_FLOAT32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_cast__every_8_bit_code_widens_as_in_torch),
        cmocka_unit_test(test_stream_cast__float32_narrows_as_in_torch),
        cmocka_unit_test(test_stream_cast__every_value_survives_a_wider_type),
        cmocka_unit_test(test_stream_cast__double_rounds_once),
        cmocka_unit_test(test_stream_cast__direct_conversions_are_those_by_way_of_float64),
        cmocka_unit_test(test_stream_cast__many_elements_become_what_each_becomes),
        cmocka_unit_test(test_stream_cast__losses_are_those_of_torch),
        cmocka_unit_test(test_stream_cast__losses_do_not_depend_on_the_source),
        cmocka_unit_test(test_stream_cast__only_floating_types_cast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
