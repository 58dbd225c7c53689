/* tessera/sys/store.h: a guard is read once, together with the first bytes that it guards, and a wrong guard fails every
 * read of the bytes after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "io/locked.h"
#include "support/failing_allocator.h"
#include "tessera/host.h"

enum { FILE_BYTES = 4096, GUARD = 16, DATA = 100 };

/* Two files whose bytes depend on their place, and a record of the reads. */
typedef struct reads {
    uint8_t bytes[2][FILE_BYTES];
    unsigned count;
    uint64_t last_offset;
    size_t last_size;
    void (*meanwhile)(struct reads *r); /* what another thread does during the next read */
    tsr_guards *guards;
} reads;

static tsr_status read_bytes(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    reads *r = ctx;
    (void)err;
    memcpy(buffer, &r->bytes[file][offset], size);
    r->count++;
    r->last_offset = offset;
    r->last_size = size;
    void (*meanwhile)(reads * of) = r->meanwhile;
    r->meanwhile = NULL;
    if (meanwhile) meanwhile(r);
    return TSR_OK;
}

static tsr_status check(const tsr_store_guard *guard, const uint8_t *bytes, tsr_error *err)
{
    const bool is_right = guard->facts.size == GUARD && memcmp(guard->facts.data, bytes, GUARD) == 0;
    return is_right ? TSR_OK : tsr_raise(err, TSR_E_FORMAT, guard->byte_offset, "another guard");
}

static void fill(reads *r)
{
    *r = (reads){.count = 0};
    for (int f = 0; f < 2; f++)
        for (int i = 0; i < FILE_BYTES; i++) r->bytes[f][i] = (uint8_t)(i * 7 + i / 256 + f * 31);
}

/* Adds a guard of 16 bytes before each 100 bytes, from byte 0 on, the last guard first. */
static tsr_guards *guarded(reads *r, unsigned count, const tsr_allocator *allocator)
{
    tsr_guards *guards = NULL;
    tsr_error err = {0};
    if (tsr_thread_guards_new(allocator, read_bytes, r, &guards, &err) != TSR_OK) return NULL;
    for (uint32_t f = 0; f < 2; f++) {
        for (unsigned i = count; i-- > 0;) {
            const uint64_t at = i * (GUARD + DATA);
            const tsr_store_guard guard = {f, at, at + GUARD, DATA, {(const char *)&r->bytes[f][at], GUARD}, check};
            if (tsr_guards_add(guards, &guard, &err) == TSR_OK) continue;
            tsr_guards_free(guards);
            return NULL;
        }
    }
    return guards;
}

static void expect(tsr_guards *guards, const reads *r, uint32_t file, uint64_t offset, size_t size)
{
    uint8_t got[FILE_BYTES];
    assert_int_equal(tsr_guards_read(guards, file, offset, got, size, NULL), TSR_OK);
    assert_memory_equal(got, &r->bytes[file][offset], size);
}

static void test_native_guards__a_guard_is_read_with_the_first_bytes_behind_it(void **state)
{
    (void)state;
    reads r;
    fill(&r);
    failing_allocator never;
    failing_start(&never, SIZE_MAX);
    tsr_guards *guards = guarded(&r, 5, &never.allocator);
    assert_non_null(guards);
    expect(guards, &r, 1, 2 * (GUARD + DATA) + GUARD, 10);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.last_offset, 2 * (GUARD + DATA));
    assert_int_equal(r.last_size, GUARD + 10);
    expect(guards, &r, 1, 2 * (GUARD + DATA) + GUARD, 20); /* this guard is known already */
    assert_int_equal(r.count, 2);
    assert_int_equal(r.last_size, 20);
    expect(guards, &r, 1, 3 * (GUARD + DATA) + GUARD + 50, 20); /* begins in the middle: the guard is read separately */
    assert_int_equal(r.count, 4);
    expect(guards, &r, 0, 0, 5 * (GUARD + DATA) + 100); /* a whole file, with the guards among its bytes */
    assert_int_equal(r.count, 5);
    expect(guards, &r, 0, 5 * (GUARD + DATA), 100); /* these bytes have no guard */
    tsr_guards_free(guards);
}

static void test_native_guards__a_wrong_guard_fails_every_read_behind_it(void **state)
{
    (void)state;
    reads r;
    fill(&r);
    failing_allocator never;
    failing_start(&never, SIZE_MAX);
    tsr_guards *guards = guarded(&r, 5, &never.allocator);
    uint8_t got[FILE_BYTES];
    const uint64_t at = GUARD + DATA;
    assert_non_null(guards);
    r.bytes[0][at + 3] ^= 1;
    const struct {
        uint64_t offset;
        size_t size;
    } wrong[] = {{at + GUARD, 10}, {at + GUARD + 50, 10}, {at, 40}, {10, 300}, {at + 8, 20}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_error err = {0};
        assert_int_equal(tsr_guards_read(guards, 0, wrong[i].offset, got, wrong[i].size, &err), TSR_E_FORMAT);
        assert_int_equal(err.byte_position, at);
    }
    expect(guards, &r, 0, 2 * at + GUARD, 10);
    expect(guards, &r, 1, at + GUARD, 10); /* from the other file */
    expect(guards, &r, 0, at, GUARD);      /* the guard itself, without the bytes that it guards */
    tsr_guards_forget(guards);
    expect(guards, &r, 0, at + GUARD, 10);
    tsr_guards_free(guards);
}

/* Adds the guards of file 0 again. If `is_wrong`, the second one gets facts that are not those of the file. */
static void add_again(tsr_guards *guards, reads *r, bool is_wrong)
{
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t at = i * (GUARD + DATA);
        const uint8_t *facts = &r->bytes[0][at + (is_wrong && i == 1 ? 3 : 0)];
        assert_int_equal(
            tsr_guards_add(guards, &(tsr_store_guard){0, at, at + GUARD, DATA, {(const char *)facts, GUARD}, check}, NULL),
            TSR_OK);
    }
}

static void test_native_guards__of_guards_that_are_added_again_the_last_count(void **state)
{
    (void)state;
    reads r;
    failing_allocator never;
    fill(&r);
    failing_start(&never, SIZE_MAX);
    tsr_guards *guards = guarded(&r, 4, &never.allocator);
    assert_non_null(guards);
    expect(guards, &r, 0, 0, 3 * (GUARD + DATA));
    add_again(guards, &r, false);
    expect(guards, &r, 0, 0, 4 * (GUARD + DATA)); /* this must not loop forever */
    add_again(guards, &r, true);
    uint8_t got[FILE_BYTES];
    assert_int_equal(tsr_guards_read(guards, 0, GUARD + DATA + GUARD, got, DATA, NULL), TSR_E_FORMAT);
    expect(guards, &r, 0, GUARD, DATA);
    expect(guards, &r, 1, GUARD + DATA + GUARD, DATA);
    add_again(guards, &r, false);
    expect(guards, &r, 0, GUARD + DATA + GUARD, DATA);
    tsr_guards_free(guards);
    assert_int_equal(never.live, 0);
}

static void open_again(reads *r)
{
    add_again(r->guards, r, false);
    expect(r->guards, r, 0, 3 * (GUARD + DATA), 10);
}

static void test_native_guards__a_file_may_be_opened_again_while_a_guard_is_read(void **state)
{
    (void)state;
    const uint64_t at = GUARD + DATA;
    const struct {
        uint64_t offset;
        size_t size;
    } reads_of[] = {{at + GUARD, 10}, {at + GUARD + 50, 10}, {at, 40}, {10, 300}};
    for (size_t i = 0; i < sizeof reads_of / sizeof *reads_of; i++) {
        reads r;
        failing_allocator never;
        fill(&r);
        failing_start(&never, SIZE_MAX);
        r.guards = guarded(&r, 4, &never.allocator);
        assert_non_null(r.guards);
        r.meanwhile = open_again;
        expect(r.guards, &r, 0, reads_of[i].offset, reads_of[i].size);
        tsr_guards_free(r.guards);
        assert_int_equal(never.live, 0);
    }
}

static void test_native_guards__memory_that_runs_out_leaks_nothing(void **state)
{
    (void)state;
    failing_allocator failing = {.failed = true};
    for (size_t n = 0; failing.failed; n++) {
        reads r;
        uint8_t got[DATA];
        failing_start(&failing, n);
        fill(&r);
        tsr_guards *guards = guarded(&r, 3, &failing.allocator);
        const tsr_status status = guards ? tsr_guards_read(guards, 0, GUARD, got, sizeof got, NULL) : TSR_E_NOMEM;
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        tsr_guards_free(guards);
        assert_int_equal(failing.live, 0);
    }
}

static tsr_status read_zeros(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    (void)file, (void)offset, (void)err;
    memset(buffer, 0, size);
    ++*(unsigned *)ctx;
    return TSR_OK;
}

/* Guards are added and their bytes are read by turns, as the items of a DCP on a server are. If each guard cost as much as there are others, this
 * would not end within the time that a test has. */
static void test_native_guards__many_are_added_between_reads(void **state)
{
    enum { COUNT = 200000 };
    static const char zeros[GUARD];
    unsigned count = 0;
    uint8_t got[10];
    tsr_guards *guards = NULL;
    tsr_error err = {0};
    (void)state;
    assert_int_equal(tsr_thread_guards_new(&tsr_allocator_libc, read_zeros, &count, &guards, &err), TSR_OK);
    for (uint64_t i = 0; i < COUNT; i++) {
        const uint64_t at = i * 7919 % COUNT * (GUARD + DATA); /* in no order */
        const tsr_store_guard guard = {0, at, at + GUARD, DATA, {i == COUNT / 2 ? "wrong, wrong, wr" : zeros, GUARD}, check};
        assert_int_equal(tsr_guards_add(guards, &guard, &err), TSR_OK);
        assert_int_equal(tsr_guards_read(guards, 0, at + GUARD, got, sizeof got, &err),
                         i == COUNT / 2 ? TSR_E_FORMAT : TSR_OK);
    }
    assert_int_equal(count, COUNT);
    assert_int_equal(
        tsr_guards_read(guards, 0, COUNT / 2 * UINT64_C(7919) % COUNT * (GUARD + DATA) + GUARD, got, sizeof got, &err),
        TSR_E_FORMAT);
    tsr_guards_free(guards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_guards__a_guard_is_read_with_the_first_bytes_behind_it),
        cmocka_unit_test(test_native_guards__a_wrong_guard_fails_every_read_behind_it),
        cmocka_unit_test(test_native_guards__of_guards_that_are_added_again_the_last_count),
        cmocka_unit_test(test_native_guards__a_file_may_be_opened_again_while_a_guard_is_read),
        cmocka_unit_test(test_native_guards__memory_that_runs_out_leaks_nothing),
        cmocka_unit_test(test_native_guards__many_are_added_between_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
