/* The checksums that object stores state. The expectations are the check values of the CRC catalogue, RFC 3720 and RFC 1321. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "io/checksums.h"
#include "io/transport.h"
#include "tessera/sys/host_calls.h"

static void is_sum(tsr_checksum_kind kind, const void *data, size_t size, const char *expected)
{
    char text[TSR_CHECKSUM_TEXT];
    assert_true(tsr_checksum_text(kind, data, size, text));
    assert_string_equal(text, expected);
    assert_int_equal(strlen(text), tsr_checksum_text_size(kind));
}

static void test_check_values(void **state)
{
    uint8_t zeros[32] = {0};
    (void)state;
    is_sum(TSR_CHECKSUM_CRC32, "123456789", 9, "y/Q5Jg==");       /* 0xcbf43926 */
    is_sum(TSR_CHECKSUM_CRC32C, "123456789", 9, "4waSgw==");      /* 0xe3069283 */
    is_sum(TSR_CHECKSUM_CRC64, "123456789", 9, "rosUhgp5mIg=");   /* 0xae8b14860a799888 */
    is_sum(TSR_CHECKSUM_CRC32C, zeros, sizeof zeros, "ipE2qg=="); /* RFC 3720, B.4: 0x8a9136aa */
    is_sum(TSR_CHECKSUM_CRC32C, "", 0, "AAAAAA==");
    if (tsr_native_md5) is_sum(TSR_CHECKSUM_MD5, "abc", 3, "kAFQmDzST7DWlj99KOF/cg=="); /* RFC 1321, A.5 */
}

/* Each width of the processor's vectors, for every number of bytes around its blocks, at every alignment and after any CRC. The expectation
 * is core's portable CRC-32, which test_check_values covers with the check value. */
static void test_widths_agree(void **state)
{
    enum { MOST = 4 * 512 + 64 };
    uint8_t bytes[MOST + 64], folded[TSR_FOLDED_MOST];
    uint32_t random = 1;
    int tested = 0;
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)((random = random * 1664525 + 1013904223) >> 24);
    assert_int_equal(tsr_crc32(NULL, 0, "123456789", 9), 0xcbf43926);
    for (int i = 0; i < TSR_FOLDS; i++) {
        const tsr_crc32_fold *fold = &tsr_crc32_folds[i];
        if (!fold->is_there()) continue;
        for (size_t size = fold->block; size <= MOST; size++, tested++) {
            const uint8_t *data = bytes + size % 64;
            const uint32_t crc = random * (uint32_t)size;
            const size_t done = fold->run(crc, data, size, folded);
            assert_int_equal(done, size / fold->block * fold->block);
            assert_int_equal(tsr_crc32(NULL, UINT32_MAX, folded, fold->folded), tsr_crc32(NULL, crc, data, done));
        }
    }
    for (size_t size = 0; size <= MOST; size++)
        assert_int_equal(tsr_native_crc32((uint32_t)size * random, bytes + size % 64, size),
                         tsr_crc32(NULL, (uint32_t)size * random, bytes + size % 64, size));
    if (!tested) print_message("this processor has no carry-less multiplication of wide vectors\n");
}

/* What arrives in two pieces, wherever they meet, has the checksum of the whole. */
static void test_joined_pieces(void **state)
{
    static const char *const whole[] = {"y/Q5Jg==", "4waSgw==", "rosUhgp5mIg="};
    char text[TSR_CHECKSUM_TEXT];
    (void)state;
    for (tsr_checksum_kind kind = 0; kind < TSR_CHECKSUM_MD5; kind++) {
        for (size_t cut = 0; cut <= 9; cut++) {
            const uint64_t a = tsr_checksum_of(kind, "123456789", cut),
                           b = tsr_checksum_of(kind, "123456789" + cut, 9 - cut);
            tsr_checksum_spell(kind, tsr_checksum_join(kind, a, b, 9 - cut), text);
            assert_string_equal(text, whole[kind]);
        }
    }
}

static void take(tsr_http_answer *answer, const char *line)
{
    tsr_answer_header(answer, line, strlen(line));
}

static void test_stated_checksums(void **state)
{
    tsr_http_answer a = {0};
    (void)state;
    take(&a, "HTTP/1.1 200 OK\r\n");
    take(&a, "X-Amz-Checksum-Crc32: y/Q5Jg==\r\n");
    take(&a, "x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n");
    take(&a, "x-goog-hash: crc32c=4waSgw==,md5=kAFQmDzST7DWlj99KOF/cg==\r\n");
    take(&a, "Content-MD5: kAFQmDzST7DWlj99KOF/cw==\r\n");
    assert_string_equal(a.checksums.of_object[TSR_CHECKSUM_CRC32], "y/Q5Jg==");
    assert_string_equal(a.checksums.of_object[TSR_CHECKSUM_CRC32C], "4waSgw==");
    assert_string_equal(a.checksums.of_object[TSR_CHECKSUM_CRC64], "rosUhgp5mIg=");
    assert_string_equal(a.checksums.of_object[TSR_CHECKSUM_MD5], "kAFQmDzST7DWlj99KOF/cg==");
    assert_string_equal(a.checksums.md5_of_body, "kAFQmDzST7DWlj99KOF/cw==");
    take(&a, "HTTP/1.1 200 OK\r\n");
    take(&a, "x-amz-checksum-crc32: y/Q5Jg==-3\r\n"); /* composed of the checksums of parts */
    take(&a, "x-goog-hash: md5=short\r\n");
    assert_string_equal(a.checksums.of_object[TSR_CHECKSUM_CRC32], "");
    assert_string_equal(a.checksums.of_object[TSR_CHECKSUM_MD5], "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check_values), cmocka_unit_test(test_widths_agree),
                                       cmocka_unit_test(test_joined_pieces), cmocka_unit_test(test_stated_checksums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
