/* io/block_cache.h: what is read is what the files have, whatever the order of the reads, and as many requests are in flight
 * as were allowed, over files as well as within one. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "io/block_cache.h"
#include "tessera/memory.h"

enum { MIB = 1 << 20, DEPTH = 4, AHEAD = 16, FILES = 6 };

/* An end of up to a quarter of a part comes with the part before it. */
static const uint64_t sizes[FILES] = {3 * MIB + 5, 7, MIB, 0, 30 * MIB + 100, 2 * MIB + MIB / 4 + 1};

/* Files whose bytes depend on their place, and what was fetched of them. */
typedef struct server {
    pthread_mutex_t lock;
    unsigned now, most, count;
    uint64_t bytes;
    uint32_t broken_file; /* which cannot be fetched */
} server;

static uint8_t byte_at(uint32_t file, uint64_t offset)
{
    return (uint8_t)(offset * 7 + offset / 255 + offset / MIB * 13 + file * 31);
}

static void sleep_a_little(void)
{
    const struct timespec wait = {0, 3000000};
    nanosleep(&wait, NULL);
}

/* Looks for `value` for up to 15 seconds. */
static unsigned wait_until(server *s, const unsigned *counter, unsigned value)
{
    unsigned found = 0;
    for (int i = 0; i < 5000 && found < value; i++) {
        if (i) sleep_a_little();
        pthread_mutex_lock(&s->lock);
        found = *counter;
        pthread_mutex_unlock(&s->lock);
    }
    return found;
}

/* The first requests are answered when as many as may be in flight are. */
static tsr_status fetch(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    server *s = ctx;
    (void)err;
    pthread_mutex_lock(&s->lock);
    s->count++;
    s->bytes += size;
    if (++s->now > s->most) s->most = s->now;
    pthread_mutex_unlock(&s->lock);
    (void)wait_until(s, &s->most, DEPTH);
    if (offset + size > sizes[file]) abort();
    for (size_t i = 0; i < size; i++) ((uint8_t *)buffer)[i] = byte_at(file, offset + i);
    pthread_mutex_lock(&s->lock);
    s->now--;
    pthread_mutex_unlock(&s->lock);
    return file == s->broken_file ? TSR_E_IO : TSR_OK;
}

static tsr_scheduled_reads *reads_of(server *s, const tsr_allocator *allocator)
{
    const tsr_host host = {.allocator = allocator, .threads = 2, .io_depth = DEPTH};
    tsr_scheduled_reads *reads = NULL;
    tsr_error err = {0};
    *s = (server){.broken_file = FILES};
    pthread_mutex_init(&s->lock, NULL);
    assert_int_equal(tsr_scheduled_reads_new(&host, fetch, s, &reads, &err), TSR_OK);
    return reads;
}

static void begin_all(tsr_scheduled_reads *reads)
{
    tsr_store_place places[FILES];
    tsr_error err = {0};
    for (uint32_t f = 0; f < FILES; f++) places[f] = (tsr_store_place){f, 0, sizes[f]};
    assert_int_equal(tsr_scheduled_reads_begin(reads, places, FILES, &err), TSR_OK);
}

static void check_bytes(const uint8_t *bytes, uint32_t file, uint64_t offset, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != byte_at(file, offset + i)) fail_msg("file %u, byte %u", (unsigned)file, (unsigned)(offset + i));
}

static void test_native_scheduled_reads__give_all_bytes_by_one_request_each(void **state)
{
    enum { STEP = 100000 };
    server s;
    static uint8_t buffer[STEP];
    tsr_scheduled_reads *reads = reads_of(&s, &tsr_allocator_libc);
    (void)state;
    assert_int_equal(tsr_scheduled_reads_take(reads, 0, 0, buffer, 10), 0); /* nothing was announced */
    begin_all(reads);
    for (uint32_t f = 0; f < FILES; f++)
        for (uint64_t at = 0; at < sizes[f]; at += STEP) {
            const size_t size = sizes[f] - at < STEP ? (size_t)(sizes[f] - at) : STEP;
            assert_true(tsr_scheduled_reads_reach(reads, f, at));
            assert_int_equal(tsr_scheduled_reads_take(reads, f, at, buffer, size), size);
            check_bytes(buffer, f, at, size);
        }
    assert_false(tsr_scheduled_reads_reach(reads, 1, 7)); /* behind the file */
    assert_false(tsr_scheduled_reads_reach(reads, FILES, 0));
    assert_int_equal(s.count, 3 + 1 + 1 + 30 + 3);
    assert_int_equal(s.most, DEPTH);
    tsr_scheduled_reads_free(reads);
}

static void test_native_scheduled_reads__fetch_only_as_far_as_they_may(void **state)
{
    server s;
    uint8_t buffer[10];
    tsr_scheduled_reads *reads = reads_of(&s, &tsr_allocator_libc);
    (void)state;
    begin_all(reads);
    assert_int_equal(tsr_scheduled_reads_take(reads, 4, 20 * MIB, buffer, 10), 0); /* which is not fetched yet */
    assert_int_equal(wait_until(&s, &s.count, AHEAD), AHEAD);
    /* What is passed over is not fetched; what is left behind is gone. */
    assert_true(tsr_scheduled_reads_reach(reads, 4, 29 * MIB + 1));
    assert_int_equal(tsr_scheduled_reads_take(reads, 4, 29 * MIB, buffer, 10), 10);
    check_bytes(buffer, 4, 29 * MIB, 10);
    assert_int_equal(tsr_scheduled_reads_take(reads, 5, MIB - 5, buffer, 10), 10);
    check_bytes(buffer, 5, MIB - 5, 10);
    assert_int_equal(tsr_scheduled_reads_take(reads, 0, 0, buffer, 10), 0);
    assert_int_equal(wait_until(&s, &s.count, AHEAD + 4), AHEAD + 4);
    tsr_scheduled_reads_free(reads);
}

static void test_native_scheduled_reads__leave_what_cannot_be_fetched(void **state)
{
    server s;
    uint8_t buffer[10];
    tsr_scheduled_reads *reads = reads_of(&s, &tsr_allocator_libc);
    (void)state;
    s.broken_file = 2;
    begin_all(reads);
    assert_int_equal(tsr_scheduled_reads_take(reads, 0, 0, buffer, 10), 10);
    assert_true(tsr_scheduled_reads_reach(reads, 2, 0));
    assert_int_equal(tsr_scheduled_reads_take(reads, 2, 0, buffer, 10), 0);
    assert_true(tsr_scheduled_reads_reach(reads, 4, 25 * MIB));
    assert_int_equal(tsr_scheduled_reads_take(reads, 4, 25 * MIB, buffer, 10), 0);
    begin_all(reads); /* it begins again from the first byte */
    assert_int_equal(tsr_scheduled_reads_take(reads, 0, 3 * MIB, buffer, 10), 5);
    check_bytes(buffer, 0, 3 * MIB, 5);
    tsr_scheduled_reads_free(reads);
}

typedef struct reader {
    tsr_scheduled_reads *reads;
    unsigned number;
    uint64_t taken;
} reader;

/* Two threads read the pieces of a file by turns, as those of a deep check do. */
static void *read_every_second(void *ctx)
{
    enum { STEP = 1 << 18 };
    reader *r = ctx;
    uint8_t *buffer = malloc(STEP);
    for (uint64_t at = r->number * STEP; buffer && at < sizes[4]; at += 2 * STEP) {
        const size_t size = sizes[4] - at < STEP ? (size_t)(sizes[4] - at) : STEP;
        (void)tsr_scheduled_reads_reach(r->reads, 4, at);
        const size_t taken = tsr_scheduled_reads_take(r->reads, 4, at, buffer, size);
        for (size_t i = 0; i < taken; i++)
            if (buffer[i] != byte_at(4, at + i)) abort();
        r->taken += taken;
    }
    free(buffer);
    return NULL;
}

static void test_native_scheduled_reads__serve_several_threads(void **state)
{
    server s;
    tsr_scheduled_reads *reads = reads_of(&s, &tsr_allocator_libc);
    reader readers[2] = {{reads, 0, 0}, {reads, 1, 0}};
    pthread_t threads[2];
    (void)state;
    begin_all(reads);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, read_every_second, &readers[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_true(readers[0].taken + readers[1].taken <= sizes[4] && readers[0].taken + readers[1].taken > 0);
    tsr_scheduled_reads_free(reads);
}

/* ---- the cache of blocks ---- */

static tsr_status fetch_block(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    server *s = ctx;
    (void)err;
    s->count++;
    for (size_t i = 0; i < size; i++) ((uint8_t *)buffer)[i] = byte_at(file, offset + i);
    return TSR_OK;
}

static void fetch_many(void *ctx, tsr_block_run *runs, size_t count)
{
    tsr_error unused = {0};
    for (size_t i = 0; i < count; i++)
        runs[i].is_fetched = fetch_block(ctx, runs[i].file, runs[i].offset, runs[i].bytes, runs[i].size, &unused) == TSR_OK;
}

/* Blocks 0 and 2 of a nearly full cache were used longest ago. They are needed together with 100 blocks that it does not have. */
static void test_native_block_cache__keeps_blocks_that_it_was_told_of(void **state)
{
    enum { BLOCKS = 254, FILE_BLOCKS = 480 }; /* 2 are read alone, then 4 at a time; the cache has 256 */
    static uint8_t buffer[TSR_CACHE_BLOCK];
    const tsr_store_file files[] = {{.size = (uint64_t)FILE_BLOCKS * TSR_CACHE_BLOCK}};
    server s = {.broken_file = FILES};
    tsr_block_cache *cache = NULL;
    tsr_error err = {0};
    tsr_store_place places[102];
    (void)state;
    assert_int_equal(tsr_block_cache_new(&tsr_allocator_libc, fetch_block, &s, &cache, &err), TSR_OK);
    for (uint64_t b = 0; b < BLOCKS; b++)
        assert_int_equal(
            tsr_block_cache_read(cache, (tsr_block_range){0, files[0].size, b * TSR_CACHE_BLOCK}, buffer, 10, &err), TSR_OK);
    for (uint64_t i = 0; i < 100; i++) places[i] = (tsr_store_place){0, (BLOCKS + 10 + 2 * i) * TSR_CACHE_BLOCK, 10};
    places[100] = (tsr_store_place){0, 5, 10};
    places[101] = (tsr_store_place){0, 2 * TSR_CACHE_BLOCK + 5, 10};
    s.count = 0;
    tsr_block_cache_prefetch(cache, files, places, 102, fetch_many);
    assert_int_equal(s.count, 100);
    for (size_t i = 0; i < 102; i++) {
        assert_int_equal(
            tsr_block_cache_read(cache, (tsr_block_range){0, files[0].size, places[i].offset}, buffer, 10, &err), TSR_OK);
        check_bytes(buffer, 0, places[i].offset, 10);
    }
    assert_int_equal(s.count, 100);
    tsr_block_cache_free(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_scheduled_reads__give_all_bytes_by_one_request_each),
        cmocka_unit_test(test_native_scheduled_reads__fetch_only_as_far_as_they_may),
        cmocka_unit_test(test_native_scheduled_reads__leave_what_cannot_be_fetched),
        cmocka_unit_test(test_native_scheduled_reads__serve_several_threads),
        cmocka_unit_test(test_native_block_cache__keeps_blocks_that_it_was_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
