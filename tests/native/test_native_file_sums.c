/* Compares the sums of files with the polynomial that the header defines, word by word, for every length, place and
 * alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "publish/file_sums.h"

__extension__ typedef unsigned __int128 wide;

static const uint64_t prime = ((uint64_t)1 << 61) - 1;

/* Returns w[0] + w[1] r + w[2] r² + … of a file whose bytes before `offset` are zeros, computed from the last word down. */
static uint64_t polynomial(uint64_t r, size_t offset, const uint8_t *bytes, size_t size)
{
    uint64_t sum = 0;
    for (size_t j = (offset + size + 3) / 4; j-- > offset / 4;) {
        uint32_t word = 0;
        for (size_t i = 0; i < 4; i++) {
            const size_t at = 4 * j + i;
            if (at >= offset && at < offset + size) word |= (uint32_t)bytes[at - offset] << 8 * i;
        }
        sum = (uint64_t)(((wide)sum * r + word) % prime);
    }
    for (size_t j = offset / 4; j-- > 0;) sum = (uint64_t)((wide)sum * r % prime);
    return sum;
}

static void fill(uint8_t *bytes, size_t size, uint8_t fixed)
{
    uint32_t random = 7;
    for (size_t i = 0; i < size; i++) {
        random = random * 1664525u + 1013904223u;
        bytes[i] = fixed ? fixed : (uint8_t)(random >> 24);
    }
}

static void check(const tsr_sum_key *key, size_t offset, const uint8_t *bytes, size_t size)
{
    const uint64_t got = tsr_sum_bytes(key, offset, bytes, size), want = polynomial(key->powers[1], offset, bytes, size);
    if (got != want)
        fail_msg("%zu bytes at %zu: %llx, not %llx", size, offset, (unsigned long long)got, (unsigned long long)want);
}

static void test_native_file_sums__are_the_polynomial(void **state)
{
    (void)state;
    static uint8_t bytes[4 * TSR_SUM_WORDS * 3 + 64];
    const tsr_sum_key key = tsr_sum_key_of("-9e3779b97f4a7c15");
    for (unsigned fixed = 0; fixed < 2; fixed++) { /* random bytes, and the largest words */
        fill(bytes, sizeof bytes, fixed ? 0xff : 0);
        for (size_t size = 0; size < 70; size++) {
            for (size_t offset = 0; offset < 9; offset++) check(&key, offset, bytes + size % 5, size);
        }
        for (size_t size = 4 * TSR_SUM_WORDS - 9; size < 4 * TSR_SUM_WORDS + 9; size++)
            check(&key, 4 * size, bytes + 1, size);
        check(&key, 12345, bytes, sizeof bytes);
    }
}

static void test_native_file_sums__add_up_in_any_order(void **state)
{
    (void)state;
    static uint8_t bytes[20000];
    const tsr_sum_key key = tsr_sum_key_of("-1");
    fill(bytes, sizeof bytes, 0);
    const uint64_t whole = tsr_sum_bytes(&key, 77, bytes, sizeof bytes);
    for (size_t cut = 0; cut < sizeof bytes; cut += 997) {
        const uint64_t second = tsr_sum_bytes(&key, 77 + cut, bytes + cut, sizeof bytes - cut);
        assert_true(tsr_sum_add(second, tsr_sum_bytes(&key, 77, bytes, cut)) == whole);
    }
    bytes[12345] ^= 1;
    assert_true(tsr_sum_bytes(&key, 77, bytes, sizeof bytes) != whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_file_sums__are_the_polynomial),
        cmocka_unit_test(test_native_file_sums__add_up_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
