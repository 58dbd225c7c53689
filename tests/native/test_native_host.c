/* The native host: known digests, and a parallel loop that runs every index once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/sys.h"
#include "tessera/native_host.h"
#include "tessera/sys/host_calls.h"

static void test_native_host__crc32_agrees_with_the_portable_one(void **state)
{
    (void)state;
    tsr_native_host native;
    tsr_native_host_open(&native, 1);
    assert_int_equal(tsr_crc32(&native.host, 0, "123456789", 9), 0xCBF43926);
    uint32_t head = tsr_crc32(&native.host, 0, "1234", 4);
    assert_int_equal(tsr_crc32(&native.host, head, "56789", 5), 0xCBF43926);
    assert_int_equal(tsr_crc32(NULL, 0, "123456789", 9), 0xCBF43926);
    /* Of every size and alignment, since long runs are summed in blocks. */
    static uint8_t data[9000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * i * 2654435761u >> 11);
    for (size_t size = 0; size < 1100; size++) {
        const size_t at = size % 67;
        const uint32_t crc = (uint32_t)(size * 2654435761u);
        assert_int_equal(tsr_crc32(&native.host, crc, data + at, size), tsr_crc32(NULL, crc, data + at, size));
        assert_int_equal(tsr_crc32(&native.host, crc, data + at, 7 * size), tsr_crc32(NULL, crc, data + at, 7 * size));
    }
    tsr_native_host_close(&native);
}

static void test_native_host__digests_give_the_published_values(void **state)
{
    (void)state;
    static const uint8_t abc_sha256[4] = {0xba, 0x78, 0x16, 0xbf}; /* FIPS 180-4's example */
    static const uint8_t empty_xxh3[4] = {0x99, 0xaa, 0x06, 0xd3}; /* xxh128sum of an empty file */
    tsr_native_host native;
    tsr_native_host_open(&native, 1);
    uint8_t out[32];
    void *digest = native.host.sha256->start();
    native.host.sha256->update(digest, "a", 1);
    native.host.sha256->update(digest, "bc", 2);
    native.host.sha256->finish(digest, out);
    assert_memory_equal(out, abc_sha256, 4);
    native.host.sha256->abandon(native.host.sha256->start());
    native.host.xxh3->finish(native.host.xxh3->start(), out);
    assert_memory_equal(out, empty_xxh3, 4);
    native.host.xxh3->abandon(native.host.xxh3->start());
    tsr_native_host_close(&native);
}

static void test_native_host__has_as_many_threads_as_asked_for(void **state)
{
    (void)state;
    static const uint32_t asked[][2] = {{1, 1}, {7, 7}, {256, 256}, {257, 256}, {UINT32_MAX, 256}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        tsr_native_host native;
        tsr_native_host_open(&native, asked[i][0]);
        assert_int_equal(native.host.threads, asked[i][1]);
        tsr_native_host_close(&native);
    }
}

typedef struct loop {
    tsr_pool *pool;
    size_t inner;
    atomic_uint hits[1000];
} loop;

static void hit(void *arg, size_t index)
{
    atomic_fetch_add(&((loop *)arg)->hits[index], 1);
}

static void nest(void *arg, size_t index)
{
    (void)index;
    loop *l = arg;
    tsr_pool_run(l->pool, l->inner, hit, l);
}

enum { GROUPS = 40 };

/* The products of groups of `bytes`, as core looks them up. */
static void look_up_each(const tsr_pair_groups *g, uint8_t *out)
{
    for (size_t i = 0; i < 2 * g->count * g->group_bytes; i++) {
        const uint8_t pair = g->pairs[i / 2], number = i % 2 ? pair >> 4 : pair & 15;
        memcpy(out + 2 * i, &g->products[g->tables[i / 2 / g->group_bytes]][number], 2);
    }
}

static void test_native_host__pairs_are_looked_up_as_one_by_one(void **state)
{
    (void)state;
    static uint16_t products[256][16];
    static uint8_t pairs[16 * GROUPS + 1], tables[GROUPS], got[64 * GROUPS + 2], want[64 * GROUPS];
    uint32_t random = 68;
    tsr_native_host native;
    tsr_native_host_open(&native, 1);
    for (size_t i = 0; i < 256 * 16; i++) products[i / 16][i % 16] = (uint16_t)(i * 40503u >> 3);
    for (size_t i = 0; i < sizeof pairs; i++) pairs[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
    for (size_t i = 0; i < GROUPS; i++) tables[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
    for (size_t bytes = 8; bytes <= 16 && native.host.look_up_pairs; bytes += 8) {
        for (size_t count = 0; count <= GROUPS; count++) {
            const tsr_pair_groups groups = {pairs + 1, tables, count, bytes,
                                            (const uint16_t(*)[16])products}; /* not aligned */
            memset(got, 0xa5, sizeof got);
            native.host.look_up_pairs(&groups, got + 1);
            look_up_each(&groups, want);
            assert_memory_equal(got + 1, want, 4 * count * bytes);
            assert_int_equal(got[1 + 4 * count * bytes], 0xa5);
        }
    }
    print_message("look-up by shuffles: %s\n", native.host.look_up_pairs ? "yes" : "none on this machine");
    tsr_native_host_close(&native);
}

static void test_native_host__parallel_loops_run_every_index_once(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 2, 3, 999};
    tsr_pool *pool = tsr_pool_new(4);
    for (int round = 0; round < 200; round++) {
        loop l = {0};
        size_t count = counts[round % 5];
        tsr_pool_run(pool, count, hit, &l);
        for (size_t i = 0; i < 1000; i++) assert_int_equal(l.hits[i], i < count);
    }
    tsr_pool_free(pool);
}

static void test_native_host__a_loop_inside_a_loop_finishes(void **state)
{
    (void)state;
    loop l = {.pool = tsr_pool_new(3), .inner = 100};
    tsr_pool_run(l.pool, 50, nest, &l);
    for (size_t i = 0; i < 100; i++) assert_int_equal(l.hits[i], 50);
    tsr_pool_free(l.pool);
}

typedef struct late_loop {
    loop inner;
    pthread_t caller;
    atomic_uint inside;
} late_loop;

/* Both threads have an index. The worker begins its inner loop when the caller has no index left and waits for the
 * worker. */
static void nest_late(void *arg, size_t index)
{
    (void)index;
    late_loop *l = arg;
    atomic_fetch_add(&l->inside, 1);
    for (int i = 0; i < 1000 && atomic_load(&l->inside) < 2; i++) usleep(1000);
    if (pthread_equal(pthread_self(), l->caller)) return;
    usleep(50000);
    tsr_pool_run(l->inner.pool, l->inner.inner, hit, &l->inner);
}

static void test_native_host__a_loop_that_a_worker_begins_last_finishes(void **state)
{
    (void)state;
    late_loop l = {.inner = {.pool = tsr_pool_new(2), .inner = 100}, .caller = pthread_self()};
    tsr_pool_run(l.inner.pool, 2, nest_late, &l);
    for (size_t i = 0; i < 100; i++) assert_int_equal(l.inner.hits[i], 1);
    tsr_pool_free(l.inner.pool);
}

/* Whether all threads of the pool are in one loop: each index waits for the others. */
static void wait_for_all(void *arg, size_t index)
{
    (void)index;
    loop *l = arg;
    atomic_fetch_add(&l->hits[0], 1);
    for (int i = 0; i < 5000 && atomic_load(&l->hits[0]) < l->inner; i++) usleep(1000);
    atomic_fetch_add(&l->hits[1], atomic_load(&l->hits[0]) == l->inner);
}

static bool all_work(tsr_pool *pool, size_t threads)
{
    loop l = {.inner = threads};
    tsr_pool_run(pool, threads, wait_for_all, &l);
    return l.hits[1] == threads;
}

static void test_native_host__a_child_of_a_fork_has_a_pool_of_its_own(void **state)
{
    (void)state;
    if (getenv("TSR_TEST_EMULATED")) { /* by tests/aarch64/run */
        print_message("skipped: qemu-user cannot start threads in the child of a fork of a process with threads\n");
        skip();
    }
    tsr_pool *pool = tsr_pool_new(3);
    assert_true(all_work(pool, 3));
    for (int runs = 0; runs < 2; runs++) { /* a child that uses the pool, and one that only frees it */
        const pid_t child = fork();
        if (child == 0) {
            alarm(60); /* instead of waiting for threads that are not there */
            const bool ok = runs || all_work(pool, 3);
            tsr_pool_free(pool);
            _exit(ok ? 0 : 1);
        }
        int how = -1;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_int_equal(how, 0);
    }
    assert_true(all_work(pool, 3));
    tsr_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_host__has_as_many_threads_as_asked_for),
        cmocka_unit_test(test_native_host__crc32_agrees_with_the_portable_one),
        cmocka_unit_test(test_native_host__digests_give_the_published_values),
        cmocka_unit_test(test_native_host__pairs_are_looked_up_as_one_by_one),
        cmocka_unit_test(test_native_host__parallel_loops_run_every_index_once),
        cmocka_unit_test(test_native_host__a_loop_inside_a_loop_finishes),
        cmocka_unit_test(test_native_host__a_loop_that_a_worker_begins_last_finishes),
        cmocka_unit_test(test_native_host__a_child_of_a_fork_has_a_pool_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
