/* Compares the count of NaN and infinity, which first searches whole blocks for exponents of all ones, with decoding: with
 * the portable loop, and with the native host's code for this machine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "stream/numeric.h"
#include "tessera/check.h"
#include "tessera/native_host.h"

enum { MOST = 300, MANY = 20000 }; /* elements: more than two blocks that are looked at, or counted, and a remainder */

static const tsr_dtype types[] = {TSR_FLOAT64,     TSR_FLOAT32,         TSR_FLOAT16,
                                  TSR_BFLOAT16,    TSR_FLOAT8_E4M3FN,   TSR_FLOAT8_E4M3FNUZ,
                                  TSR_FLOAT8_E5M2, TSR_FLOAT8_E5M2FNUZ, TSR_FLOAT8_E8M0FNU};

static tsr_native_host native;

static void expect_counts_by(const tsr_host *host, tsr_dtype dtype, const uint8_t *bytes, size_t count)
{
    static double values[MANY];
    uint64_t nan = 0, inf = 0, want_nan = 0, want_inf = 0;
    tsr_decode(dtype, bytes, count, values);
    for (size_t i = 0; i < count; i++) {
        want_nan += isnan(values[i]) != 0;
        want_inf += isinf(values[i]) != 0;
    }
    tsr_count_special(host, dtype, bytes, count, &nan, &inf);
    if (nan != want_nan || inf != want_inf) {
        fail_msg("%s, %zu elements: %llu NaN and %llu infinite, there are %llu and %llu", tsr_dtype_describe(dtype)->name,
                 count, (unsigned long long)nan, (unsigned long long)inf, (unsigned long long)want_nan,
                 (unsigned long long)want_inf);
    }
}

static void expect_counts(tsr_dtype dtype, const uint8_t *bytes, size_t count)
{
    expect_counts_by(NULL, dtype, bytes, count);
    expect_counts_by(&native.host, dtype, bytes, count);
}

/* Tests the two highest bytes near every type's infinity, NaN and largest finite number, at every place among zeros. */
static void test_stream_numeric__one_special_value_is_found_wherever_it_is(void **state)
{
    (void)state;
    static const uint8_t high[] = {0x7f, 0xff, 0x7b, 0x7c, 0xfc, 0x7d, 0x7e, 0x80, 0x00},
                         next[] = {0x00, 0x7f, 0x80, 0xef, 0xf0, 0xff};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const size_t size = tsr_dtype_size(types[t]);
        for (size_t at = 0; at < MOST; at++) {
            uint8_t bytes[MOST * 8] = {0}, *item = bytes + at * size;
            for (size_t h = 0; h < sizeof high; h++) {
                for (size_t n = 0; n < (size > 1 ? sizeof next : 1); n++) {
                    if (size > 1) item[size - 2] = next[n];
                    item[size - 1] = high[h];
                    expect_counts(types[t], bytes, at % 2 ? MOST : at + 1);
                }
            }
        }
    }
}

static void test_stream_numeric__many_special_values_are_all_counted(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        uint8_t bytes[MOST * 8];
        uint32_t random = 12345;
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = random * 1664525u + 1013904223u;
            bytes[i] = random >> 24 < 128 ? 0xff : (uint8_t)(random >> 16);
        }
        for (size_t count = 0; count <= MOST; count++) expect_counts(types[t], bytes, count);
    }
}

static void test_stream_numeric__special_values_far_apart_are_all_counted(void **state)
{
    (void)state;
    static uint8_t bytes[MANY * 8];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const size_t size = tsr_dtype_size(types[t]);
        memset(bytes, 0, sizeof bytes);
        for (size_t i = 3; i < MANY; i += 1 + i) { /* few blocks have one */
            memset(bytes + i * size, 0xff, size);
            if (i % 3) bytes[i * size] = 0x80;
        }
        bytes[(MANY - 1) * size] = 0x80;
        expect_counts(types[t], bytes, MANY);
        expect_counts(types[t], bytes, MANY - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_numeric__one_special_value_is_found_wherever_it_is),
        cmocka_unit_test(test_stream_numeric__many_special_values_are_all_counted),
        cmocka_unit_test(test_stream_numeric__special_values_far_apart_are_all_counted),
    };
    tsr_native_host_open(&native, 1);
    print_message("wide scan: %s\n", native.host.carries ? "yes" : "none on this machine");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tsr_native_host_close(&native);
    return failed;
}
