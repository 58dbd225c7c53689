#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

enum { PATTERN_SIZE = 100003 };

static uint8_t pattern[PATTERN_SIZE];

/* The first and the last eight bytes of the digest of the first `size` bytes of the pattern. */
typedef struct known {
    size_t size;
    uint64_t first, last;
} known;

static uint64_t big_endian(const uint8_t *p)
{
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x = x << 8 | p[i];
    return x;
}

/* Digests the bytes in pieces of `step` bytes. */
static void digest(const tsr_digest_ops *ops, size_t size, size_t step, uint8_t *out)
{
    void *state = ops->start();
    assert_non_null(state);
    for (size_t at = 0; at < size; at += step) ops->update(state, pattern + at, size - at < step ? size - at : step);
    ops->update(state, "", 0);
    ops->finish(state, out);
}

static void check(const tsr_digest_ops *ops, const known *all, size_t count)
{
    static const size_t steps[] = {PATTERN_SIZE, 4096, 1024, 257, 256, 255, 193, 64, 63, 7, 1};
    for (size_t i = 0; i < PATTERN_SIZE; i++) pattern[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
            uint8_t out[32];
            digest(ops, all[i].size, steps[k], out);
            assert_int_equal(big_endian(out), all[i].first);
            assert_int_equal(big_endian(out + ops->size - 8), all[i].last);
        }
    }
    ops->abandon(ops->start());
}

/* Expected values: libxxhash's XXH3_128bits. */
static void test_base_digests__xxh3_is_that_of_the_library(void **state)
{
    // clang-format off
    static const known all[] = {
        {0, UINT64_C(0x99aa06d3014798d8), UINT64_C(0x6001c324468d497f)},
        {1, UINT64_C(0xa6cd5e9392000f6a), UINT64_C(0xc44bdff4074eecdb)},
        {2, UINT64_C(0xe3e3af28e2788151), UINT64_C(0x50a0dc43c774eb84)},
        {3, UINT64_C(0x4af3603b5bd30dfe), UINT64_C(0x3698b80191e625f9)},
        {4, UINT64_C(0x11527735d62fce43), UINT64_C(0xeecdfa5a3b083ba8)},
        {5, UINT64_C(0x8156cb136c7003e9), UINT64_C(0x9f31da1ddba90baf)},
        {8, UINT64_C(0x791e22cdc30880ba), UINT64_C(0x073a25812fe4f600)},
        {9, UINT64_C(0x22775b5e55c2ace9), UINT64_C(0x4557529981ebbef0)},
        {15, UINT64_C(0x2ae877108d0a889d), UINT64_C(0x387e5a3cea243c36)},
        {16, UINT64_C(0x8d0b1cd2088b9620), UINT64_C(0x843f49fff931d541)},
        {17, UINT64_C(0x340f6f9202ad1131), UINT64_C(0xa378e80882221151)},
        {32, UINT64_C(0x4481c666e16d3e17), UINT64_C(0x430a991e61bb8520)},
        {33, UINT64_C(0xa655be5e03fecd87), UINT64_C(0x08eb5d21280ace96)},
        {64, UINT64_C(0x8f41008ff06356f7), UINT64_C(0x731a5a160a9dce1a)},
        {65, UINT64_C(0xa978d0c247ecc7fb), UINT64_C(0x6e02662b4c167d1a)},
        {96, UINT64_C(0x8581c1f17815075a), UINT64_C(0x39d3afd0b580c0de)},
        {97, UINT64_C(0x807605c098c371cc), UINT64_C(0xcbeff5d359b29a1a)},
        {127, UINT64_C(0xa5f88d609596c1ba), UINT64_C(0x404ef8fbe5049fe4)},
        {128, UINT64_C(0x9ac3a2d505dc8bba), UINT64_C(0xffb5b9abed8b314d)},
        {129, UINT64_C(0x4f3f783d604d0184), UINT64_C(0xc83022477e6bf25a)},
        {160, UINT64_C(0xc9996276a240b4ed), UINT64_C(0xd100acaaf94fc929)},
        {161, UINT64_C(0x76c65d428082d2ee), UINT64_C(0x2f9af5bd0742e0b7)},
        {239, UINT64_C(0x17afa7bbd2768c38), UINT64_C(0x4319c109adf46320)},
        {240, UINT64_C(0x550b8ce07c44bc98), UINT64_C(0xc018ce69a32b5a7c)},
        {241, UINT64_C(0x8e7e1f2fe4156df9), UINT64_C(0x18773c512b008a63)},
        {255, UINT64_C(0x56028fc18724306d), UINT64_C(0x947de0ba95c5ed6b)},
        {256, UINT64_C(0xdfb78b82a959f4f6), UINT64_C(0xcdd3578b9df45e59)},
        {257, UINT64_C(0xd6651b4ae17227c4), UINT64_C(0xa230bbdfddd68d70)},
        {320, UINT64_C(0x08eb97bdbc9351c8), UINT64_C(0x4f1f2d1d0af43f91)},
        {321, UINT64_C(0xe5bf89c292ccc400), UINT64_C(0xd716f338ee2a26fc)},
        {512, UINT64_C(0x0e37c29cc2fc33e8), UINT64_C(0x16abf0502ba06baa)},
        {1023, UINT64_C(0x9f1f7d77bc5ea2d3), UINT64_C(0xcbc276d0f95e9e68)},
        {1024, UINT64_C(0xea65234127f4dd7b), UINT64_C(0x5a1893edffa2577c)},
        {1025, UINT64_C(0x0fabde917fb0af22), UINT64_C(0x550abe5d45dd663b)},
        {1088, UINT64_C(0x4a28e7cc1665a6b6), UINT64_C(0xd3eebd69ab373526)},
        {1089, UINT64_C(0xb40af56915e64f47), UINT64_C(0x225dbdd9e1af2b95)},
        {2048, UINT64_C(0xa45dd41bb30e20e5), UINT64_C(0x1125cc0c79331fcb)},
        {2049, UINT64_C(0xa9fe7bbd2da45d57), UINT64_C(0x9caf050b253e1939)},
        {4097, UINT64_C(0x2eadf4843a8fe451), UINT64_C(0x9902f3ee3eb72d8e)},
        {100003, UINT64_C(0xd4b21312540b7779), UINT64_C(0x42a7a0a88ac8b472)},
    };
    // clang-format on
    (void)state;
    assert_int_equal(tsr_xxh3_portable.size, 16);
    check(&tsr_xxh3_portable, all, sizeof all / sizeof *all);
}

/* Expected values: Python's hashlib. */
static void test_base_digests__sha256_is_that_of_the_standard(void **state)
{
    // clang-format off
    static const known all[] = {
        {0, UINT64_C(0xe3b0c44298fc1c14), UINT64_C(0xa495991b7852b855)},
        {1, UINT64_C(0x6e340b9cffb37a98), UINT64_C(0x8511a30617afa01d)},
        {55, UINT64_C(0x27d3069ecafb8507), UINT64_C(0x8942b51659945b1b)},
        {56, UINT64_C(0x3428ab653c0a1ac1), UINT64_C(0xc781ae56364a6969)},
        {63, UINT64_C(0xb5ec25bd1c4b7c94), UINT64_C(0xec5fa9aefe95ef07)},
        {64, UINT64_C(0xa08f82c23e6c1362), UINT64_C(0x8842044951d27764)},
        {65, UINT64_C(0xc0a0263ae1ab4e9d), UINT64_C(0xf462fad7f24fcd6f)},
        {119, UINT64_C(0xb4639d08cdba917a), UINT64_C(0x37915c9799b17250)},
        {128, UINT64_C(0x8bb5dfd6ac2a606c), UINT64_C(0x45ac3e2cc7a45359)},
        {1000, UINT64_C(0x04a2a26617da9ddb), UINT64_C(0x3552c06ea8d153e2)},
        {100003, UINT64_C(0x556fb76cfb3cb357), UINT64_C(0xbb91107c9698f0d8)},
    };
    // clang-format on
    (void)state;
    assert_int_equal(tsr_sha256_portable.size, 32);
    check(&tsr_sha256_portable, all, sizeof all / sizeof *all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_digests__xxh3_is_that_of_the_library),
        cmocka_unit_test(test_base_digests__sha256_is_that_of_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
