/* See host.h. */
#include "tessera/native_host.h"

#include "io/checksums.h"
#include "io/locked.h"
#include "io/sys.h"
#include "io/transport.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#elif defined(__AARCH64EL__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

/* ---- what processors of this kind do faster than portable code ---- */

/* The types of tsr_host.look_up_pairs and tsr_host.carries. The functions below return NULL if this processor has nothing faster than
 * the loops in core. */
typedef void pair_shuffles(const tsr_pair_groups *groups, uint8_t *out);
typedef bool wide_scan(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest);

/* A table of 16 products of 2 bytes becomes two vectors, of their low and of their high bytes. A shuffle by 16
 * numbers looks up the low bytes of their products, another one the high bytes, and both are interleaved. */

#if defined(__x86_64__) && defined(__GNUC__)
#define SSSE3 __attribute__((target("ssse3")))

SSSE3 static void look_up_group(const uint8_t *pairs, size_t bytes, const uint16_t *products, uint8_t *out)
{
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), half = _mm_set1_epi8(15);
    const __m128i first = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)products), apart);
    const __m128i second = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(products + 8)), apart);
    const __m128i low = _mm_unpacklo_epi64(first, second), high = _mm_unpackhi_epi64(first, second);
    for (size_t i = 0; i < bytes; i += 8) {
        const __m128i eight = _mm_loadl_epi64((const __m128i *)(const void *)(pairs + i));
        const __m128i numbers = _mm_unpacklo_epi8(_mm_and_si128(eight, half), _mm_and_si128(_mm_srli_epi16(eight, 4), half));
        const __m128i lows = _mm_shuffle_epi8(low, numbers), highs = _mm_shuffle_epi8(high, numbers);
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * i), _mm_unpacklo_epi8(lows, highs));
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * i + 16), _mm_unpackhi_epi8(lows, highs));
    }
}

SSSE3 static void look_up_pairs(const tsr_pair_groups *g, uint8_t *out)
{
    for (size_t i = 0; i < g->count; i++)
        look_up_group(g->pairs + i * g->group_bytes, g->group_bytes, g->products[g->tables[i]],
                      out + 4 * i * g->group_bytes);
}

static pair_shuffles *shuffles_here(void)
{
    return __builtin_cpu_supports("ssse3") ? look_up_pairs : NULL;
}
#elif defined(__AARCH64EL__) && defined(__ARM_NEON)
static void look_up_group(const uint8_t *pairs, size_t bytes, const uint16_t *products, uint8_t *out)
{
    const uint8x16x2_t table = vld2q_u8((const uint8_t *)products);
    for (size_t i = 0; i < bytes; i += 8) {
        const uint8x8_t eight = vld1_u8(pairs + i);
        const uint8x8x2_t zipped = vzip_u8(vand_u8(eight, vdup_n_u8(15)), vshr_n_u8(eight, 4));
        const uint8x16_t numbers = vcombine_u8(zipped.val[0], zipped.val[1]);
        const uint8x16x2_t found = {{vqtbl1q_u8(table.val[0], numbers), vqtbl1q_u8(table.val[1], numbers)}};
        vst2q_u8(out + 4 * i, found);
    }
}

static void look_up_pairs(const tsr_pair_groups *g, uint8_t *out)
{
    for (size_t i = 0; i < g->count; i++)
        look_up_group(g->pairs + i * g->group_bytes, g->group_bytes, g->products[g->tables[i]],
                      out + 4 * i * g->group_bytes);
}

static pair_shuffles *shuffles_here(void)
{
    return look_up_pairs;
}
#else
static pair_shuffles *shuffles_here(void)
{
    return NULL;
}
#endif

/* A block is four vectors of 32 bytes. */

#if defined(__x86_64__) && defined(__GNUC__)
#define AVX2 __attribute__((target("avx2")))

/* `add` adds two vectors lane by lane. */
#define SCAN(name, add, set, magnitude) \
    AVX2 static bool name(const uint8_t *data, size_t size, uint64_t lowest) \
    { \
        const __m256i low = set(lowest), mask = set(magnitude); \
        __m256i found = _mm256_setzero_si256(); \
        for (size_t at = 0; at < size; at += TSR_SCAN_BLOCK) { \
            for (size_t i = 0; i < TSR_SCAN_BLOCK; i += sizeof found) { \
                const __m256i numbers = _mm256_loadu_si256((const __m256i *)(const void *)(data + at + i)); \
                found = _mm256_or_si256(found, add(_mm256_and_si256(numbers, mask), low)); \
            } \
        } \
        return !_mm256_testc_si256(mask, found); /* a sign bit was set */ \
    }

#define SET_8(value)  _mm256_set1_epi8((char)(value))
#define SET_16(value) _mm256_set1_epi16((short)(value))
#define SET_32(value) _mm256_set1_epi32((int)(value))
#define SET_64(value) _mm256_set1_epi64x((long long)(value))

SCAN(scan_8, _mm256_add_epi8, SET_8, 0x7f)
SCAN(scan_16, _mm256_add_epi16, SET_16, 0x7fff)
SCAN(scan_32, _mm256_add_epi32, SET_32, 0x7fffffff)
SCAN(scan_64, _mm256_add_epi64, SET_64, INT64_MAX)

static bool carries(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest)
{
    switch (item_bytes) {
    case 1: return scan_8(data, size, lowest);
    case 2: return scan_16(data, size, lowest);
    case 4: return scan_32(data, size, lowest);
    default: return scan_64(data, size, lowest);
    }
}

static wide_scan *scan_here(void)
{
    return __builtin_cpu_supports("avx2") ? carries : NULL;
}
#else
static wide_scan *scan_here(void)
{
    return NULL;
}
#endif

/* ---- the host ---- */

static uint32_t cores_allowed(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

void tsr_native_host_open(tsr_native_host *out, uint32_t threads)
{
    tsr_retry_forget();
    if (!threads) threads = cores_allowed();
    if (threads > TSR_NATIVE_MOST_THREADS) threads = TSR_NATIVE_MOST_THREADS;
    *out = (tsr_native_host){.host = {
                                 .allocator = &tsr_allocator_libc,
                                 .limits = tsr_limits_default(),
                                 .crc32 = tsr_native_crc32,
                                 .sha256 = tsr_native_sha256,
                                 .xxh3 = tsr_native_xxh3,
                                 .zstd = tsr_native_zstd,
                                 .threads = 1,
                                 .carries = scan_here(),
                                 .look_up_pairs = shuffles_here(),
                             }};
    out->pool = threads > 1 ? tsr_pool_new(threads) : NULL;
    if (!out->pool) return;
    out->host.parallel_for = tsr_pool_run;
    out->host.parallel_ctx = out->pool;
    out->host.threads = threads;
}

void tsr_native_host_close(tsr_native_host *native)
{
    tsr_pool_free(native->pool);
    native->pool = NULL;
    native->host.parallel_for = NULL;
    native->host.threads = 1;
}

tsr_native_parts tsr_native_parts_built(void)
{
    tsr_native_parts parts = {.crc32 = "portable", .sha256 = "portable", .xxh3 = "portable"};
#if defined(TSR_HAVE_ISAL)
    parts.crc32 = "isa-l";
#elif defined(TSR_HAVE_LIBDEFLATE)
    parts.crc32 = "libdeflate";
#elif defined(TSR_HAVE_ZLIB)
    parts.crc32 = "zlib";
#elif defined(__AARCH64EL__)
    parts.crc32 = "armv8";
#endif
    if (tsr_native_sha256 != &tsr_sha256_portable) parts.sha256 = "libcrypto";
    if (tsr_native_xxh3 != &tsr_xxh3_portable) parts.xxh3 = "libxxhash";
    if (tsr_native_zstd) parts.zstd = "libzstd";
    return parts;
}

/* Runs one loop at a time: a generation number wakes the workers, and an atomic counter hands out
 * indices. */

struct tsr_pool {
    tsr_process process; /* the one that the workers are threads of */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* signalled for a new loop, or to stop */
    pthread_cond_t done; /* signalled when `working` becomes 0 */
    pthread_t *workers;
    uint32_t wanted; /* number of workers */
    uint32_t started;
    uint32_t working; /* number of workers in the current loop */
    uint64_t generation;
    /* A loop is running, until its last worker is done. A thread that starts another loop in the meantime, such as that
     * worker, runs it alone. */
    bool busy;
    bool open; /* the loop has indices left, so workers may join it */
    bool stop;
    void (*body)(void *arg, size_t index);
    void *arg;
    size_t count;
    atomic_size_t next;
};

static void deal(tsr_pool *pool, void (*body)(void *arg, size_t index), void *arg, size_t count)
{
    for (size_t i; (i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < count;) body(arg, i);
}

static void *worker(void *ctx)
{
    tsr_pool *pool = ctx;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && (seen == pool->generation || !pool->open)) pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stop) break;
        assert(pool->busy);
        seen = pool->generation;
        pool->working++;
        pthread_mutex_unlock(&pool->lock);
        deal(pool, pool->body, pool->arg, pool->count);
        pthread_mutex_lock(&pool->lock);
        if (--pool->working == 0) pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void *return_at_once(void *arg)
{
    return arg;
}

bool tsr_threads_exist(void)
{
    pthread_t thread;
    return pthread_create(&thread, NULL, return_at_once, NULL) == 0 && pthread_join(thread, NULL) == 0;
}

static void init_locks(tsr_pool *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
}

tsr_pool *tsr_pool_new(uint32_t threads)
{
    tsr_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->wanted = threads > 1 ? threads - 1 : 0;
    pool->workers = calloc(pool->wanted + 1, sizeof *pool->workers);
    if (!pool->workers) {
        free(pool);
        return NULL;
    }
    init_locks(pool);
    tsr_process_init(&pool->process);
    return pool;
}

/* A child of a fork has none of the workers, and may find the locks in any state. */
static void begin_in_child(void *ctx)
{
    tsr_pool *pool = ctx;
    init_locks(pool);
    pool->started = pool->working = 0;
    pool->busy = pool->open = false;
}

void tsr_pool_free(tsr_pool *pool)
{
    if (!pool) return;
    tsr_process_enter(&pool->process, begin_in_child, pool);
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

/* The caller must hold the lock. If fewer threads than wanted can be started, loops are only slower. */
static void start_workers(tsr_pool *pool, size_t count)
{
    assert(tsr_is_locked(&pool->lock));
    while (pool->started < pool->wanted && pool->started + 1 < count) {
        if (pthread_create(&pool->workers[pool->started], NULL, worker, pool) != 0) {
            pool->wanted = pool->started;
            break;
        }
        pool->started++;
    }
}

void tsr_pool_run(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg)
{
    tsr_pool *pool = ctx;
    tsr_process_enter(&pool->process, begin_in_child, pool);
    pthread_mutex_lock(&pool->lock);
    bool alone = count < 2 || pool->busy || pool->wanted == 0;
    if (!alone) {
        assert(!pool->open && !pool->working);
        start_workers(pool, count);
        pool->busy = pool->open = true;
        pool->generation++;
        pool->body = body;
        pool->arg = arg;
        pool->count = count;
        atomic_store(&pool->next, 0);
        pthread_cond_broadcast(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
    if (alone) {
        for (size_t i = 0; i < count; i++) body(arg, i);
        return;
    }
    deal(pool, body, arg, count);
    pthread_mutex_lock(&pool->lock);
    pool->open = false; /* all indices were handed out, so a worker that wakes up only now need not join */
    while (pool->working > 0) pthread_cond_wait(&pool->done, &pool->lock);
    pool->busy = false;
    pthread_mutex_unlock(&pool->lock);
}

/* ---- thread guards ---- */

typedef struct mutex {
    const tsr_allocator *allocator;
    pthread_mutex_t lock;
} mutex;

static void take(void *ctx)
{
    pthread_mutex_lock(&((mutex *)ctx)->lock);
}

static void release(void *ctx)
{
    pthread_mutex_unlock(&((mutex *)ctx)->lock);
}

static bool is_taken(void *ctx)
{
    return tsr_is_locked(&((mutex *)ctx)->lock);
}

static void free_mutex(void *ctx)
{
    mutex *m = ctx;
    pthread_mutex_destroy(&m->lock);
    tsr_free(m->allocator, m, 1, sizeof *m);
}

tsr_status tsr_thread_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, tsr_guards **out,
                                 tsr_error *err)
{
    mutex *m = tsr_alloc(allocator, 1, sizeof *m, err);
    if (!m) return TSR_E_NOMEM;
    m->allocator = allocator;
    pthread_mutex_init(&m->lock, NULL);
    return tsr_guards_new(allocator, read, ctx, &(tsr_guards_lock){m, take, release, is_taken, free_mutex}, out, err);
}
