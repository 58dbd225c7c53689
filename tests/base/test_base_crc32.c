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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_crc32__known_values),
        cmocka_unit_test(test_base_crc32__pieces_equal_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
