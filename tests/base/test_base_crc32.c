#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

/* Expected values: Python's zlib.crc32. */
static void test_base_crc32__known_values(void **state)
{
    (void)state;
    assert_int_equal(tsr_crc32(NULL, 0, "", 0), 0);
    assert_int_equal(tsr_crc32(NULL, 0, "123456789", 9), 0xcbf43926);
    static uint8_t pattern[100003];
    for (size_t i = 0; i < sizeof pattern; i++) pattern[i] = (uint8_t)(i * 31 + i / 256);
    assert_int_equal(tsr_crc32(NULL, 0, pattern, sizeof pattern), 0xa8f80203);
}

static void test_base_crc32__pieces_equal_the_whole(void **state)
{
    (void)state;
    static uint8_t data[9000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * i >> 3);
    uint32_t whole = tsr_crc32(NULL, 0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut += 577) {
        uint32_t a = tsr_crc32(NULL, 0, data, cut), b = tsr_crc32(NULL, 0, data + cut, sizeof data - cut);
        assert_int_equal(tsr_crc32(NULL, a, data + cut, sizeof data - cut), whole);
        assert_int_equal(tsr_crc32_join(a, b, sizeof data - cut), whole);
    }
}

/* Short runs of zero bytes are compared with their CRCs. A run of twice as many bytes must give what two runs give. */
static void test_base_crc32__joins_of_any_length(void **state)
{
    (void)state;
    static const uint8_t zeros[1 << 10];
    const uint32_t crc = tsr_crc32(NULL, 0, "123456789", 9);
    for (uint64_t size = 1; size <= sizeof zeros; size *= 2) {
        const uint32_t b = tsr_crc32(NULL, 0, zeros, (size_t)size);
        assert_int_equal(tsr_crc32_join(crc, b, size), tsr_crc32(NULL, crc, zeros, (size_t)size));
    }
    for (uint32_t k = 0; k < 62; k++) {
        const uint64_t size = (uint64_t)1 << k;
        const uint32_t twice = tsr_crc32_join(tsr_crc32_join(crc, 0, size), 0, size);
        assert_int_equal(tsr_crc32_join(crc, 0, 2 * size), twice);
        assert_int_equal(tsr_crc32_join(crc, 0, 3 * size - 1), tsr_crc32_join(twice, 0, size - 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_crc32__known_values),
        cmocka_unit_test(test_base_crc32__pieces_equal_the_whole),
        cmocka_unit_test(test_base_crc32__joins_of_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
