/* The printf of the WebAssembly module (wasm/platform/print.c) prints what the C library's does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int __wrap_vsnprintf(char *restrict out, size_t capacity, const char *restrict format, va_list arguments);

__attribute__((format(printf, 3, 4))) static int wasm_snprintf(char *out, size_t capacity, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int size = __wrap_vsnprintf(out, capacity, format, arguments);
    va_end(arguments);
    return size;
}

/* Both print the text in every capacity that is too small, in one that fits, and without a buffer. */
#define SAME(...) \
    do { \
        char expected[256], printed[256]; \
        const int written_ = snprintf(NULL, 0, __VA_ARGS__); \
        assert_int_equal(wasm_snprintf(NULL, 0, __VA_ARGS__), written_); \
        for (size_t capacity = 1; capacity <= (size_t)written_ + 2; capacity++) { \
            memset(expected, '?', sizeof expected); \
            memset(printed, '?', sizeof printed); \
            assert_int_equal(snprintf(expected, capacity, __VA_ARGS__), written_); \
            assert_int_equal(wasm_snprintf(printed, capacity, __VA_ARGS__), written_); \
            assert_memory_equal(printed, expected, sizeof expected); \
        } \
    } while (0)

static void test_base_print__prints_numbers(void **state)
{
    (void)state;
    static const uint64_t numbers[] = {0,    1,         9,          10,        15,         16,        255,
                                       4711, INT32_MAX, UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const uint64_t n = numbers[i];
        SAME("%u|%d|%i|%zu", (unsigned)n, (int)n, -(int)(n & INT32_MAX), (size_t)n);
        SAME("%llu%lld", (unsigned long long)n, (long long)n);
        SAME("<%" PRIu64 "> <%" PRId64 "> <%" PRIu32 ">", n, (int64_t)n, (uint32_t)n);
        SAME("%02x %08x %04x %08" PRIx32, (unsigned)n, (unsigned)n, (unsigned)n, (uint32_t)n);
        SAME("%05u%02u %07llu %08zu", (unsigned)n, (unsigned)n, (unsigned long long)n, (size_t)n);
        SAME("%0*u %0*llu", (int)(i * 5), (unsigned)n, (int)(3 * i), (unsigned long long)n);
        SAME("%.*u/%.*u/%.3u", 0, (unsigned)n, 1, (unsigned)n, (unsigned)n);
    }
}

static void test_base_print__prints_text(void **state)
{
    (void)state;
    static const char nul[] = "before\0after";
    const char *volatile none = NULL; /* volatile, because compilers warn about a null pointer that they see */
    SAME("plain");
    SAME("%s", "");
    SAME("%s and %s%%, %c%c", "one", "another", 'x', '\xe4');
    SAME("%.64s|%.3s|%.0s|", "short", "abcdef", "abcdef");
    for (int size = 0; size < 14; size++) SAME("'%.*s'", size < 8 ? size : (int)sizeof nul - 1, nul);
    SAME("'%.*s' %u", 0, none, 7u);
}

static void test_base_print__reads_a_size_as_unsigned(void **state)
{
    (void)state;
    char printed[16];
    assert_int_equal(wasm_snprintf(printed, sizeof printed, "%.*s!", (int)0x80000004u, "text"), 5);
    assert_string_equal(printed, "text!");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_print__prints_numbers),
        cmocka_unit_test(test_base_print__prints_text),
        cmocka_unit_test(test_base_print__reads_a_size_as_unsigned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
