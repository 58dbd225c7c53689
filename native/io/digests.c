/* Thin adapters over the optional libraries. */
#include "io/checksums.h"

#include "tessera/sys/host_calls.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif
#if defined(TSR_HAVE_ISAL)
#include <isa-l/crc.h>
#elif defined(TSR_HAVE_LIBDEFLATE)
#include <libdeflate.h>
#elif defined(TSR_HAVE_ZLIB)
#include <zlib.h>
#elif defined(__AARCH64EL__)
#include <arm_acle.h>
#include <string.h>
#include <sys/auxv.h>
#endif
#if defined(TSR_HAVE_CRYPTO)
#include <openssl/evp.h>
#endif
#if defined(TSR_HAVE_XXHASH_DISPATCH)
#include <pthread.h>
#define XXH_DISPATCH_DISABLE_REPLACE
#include <xxh_x86dispatch.h>
#elif defined(TSR_HAVE_XXHASH)
#include <xxhash.h>
#endif
#if defined(TSR_HAVE_ZSTD)
#include <zstd.h>
#endif

/* ---- CRC-32 with wide vectors ---- */

/* A message is a polynomial over GF(2), and its CRC is the remainder modulo P. Bytes that n bits follow may therefore be
 * replaced by anything that is congruent to them times x^n, which is added to what follows. For vectors of w bits:
 *
 *   block  ──× x^8w mod P──▶ ⊕ next block ──× x^8w mod P──▶ ⊕ …      eight vectors side by side, so that the multiplier is always busy
 *   the eight vectors of the last block  ──× x^w mod P, one after the other──▶ one vector
 *
 * Bits are reflected. Each half of 64 bits is multiplied on its own: for a distance of n bits the low half, whose powers are higher, by
 * x^(n+32), the high half by x^(n-32), each modulo P, reflected, and shifted by one bit since products of reflected numbers are one bit
 * short. */

#if defined(__x86_64__) && defined(__GNUC__)
#define WIDE   __attribute__((target("avx2,pclmul,vpclmulqdq")))
#define WIDEST __attribute__((target("avx512f,pclmul,vpclmulqdq")))

enum { VECTORS = 8 };

/* ---- 256 bits ---- */

WIDE static inline __m256i load(const void *at)
{
    return _mm256_loadu_si256(at);
}

/* Moves `x` over `next`, by the distance of the multipliers. */
WIDE static inline __m256i move(__m256i x, __m256i by, __m256i next)
{
    const __m256i low = _mm256_clmulepi64_epi128(x, by, 0x00), high = _mm256_clmulepi64_epi128(x, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

WIDE static size_t fold_256(uint32_t crc, const void *data, size_t size, uint8_t *folded)
{
    const __m256i block = _mm256_set_epi64x(0x1322d1430, 0x11542778a, 0x1322d1430, 0x11542778a);
    const __m256i vector = _mm256_set_epi64x(0x15a546366, 0xf1da05aa, 0x15a546366, 0xf1da05aa);
    __m256i x[VECTORS];
    const uint8_t *p = data, *end = p + size / sizeof x * sizeof x;
    for (size_t i = 0; i < VECTORS; i++) x[i] = load(p + i * sizeof *x);
    x[0] = _mm256_xor_si256(
        x[0], _mm256_set_epi32(0, 0, 0, 0, 0, 0, 0, (int)~crc)); /* the CRC so far, before its last inversion */
    for (p += sizeof x; p < end; p += sizeof x)
        for (size_t i = 0; i < VECTORS; i++) x[i] = move(x[i], block, load(p + i * sizeof *x));
    for (size_t i = 1; i < VECTORS; i++) x[0] = move(x[0], vector, x[i]);
    _mm256_storeu_si256((void *)folded, x[0]);
    return (size_t)(p - (const uint8_t *)data);
}

static bool has_256(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq");
}

/* ---- 512 bits: twice as fast, from the second-level cache (measured on AMD EPYC) ---- */

WIDEST static inline __m512i load_widest(const void *at)
{
    return _mm512_loadu_si512(at);
}

WIDEST static inline __m512i move_widest(__m512i x, __m512i by, __m512i next)
{
    enum { XOR_OF_THREE = 0x96 };
    const __m512i low = _mm512_clmulepi64_epi128(x, by, 0x00), high = _mm512_clmulepi64_epi128(x, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, XOR_OF_THREE);
}

WIDEST static size_t fold_512(uint32_t crc, const void *data, size_t size, uint8_t *folded)
{
    const __m512i block = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1d741f35c, 0x1072db28));
    const __m512i vector = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    __m512i x[VECTORS];
    const uint8_t *p = data, *end = p + size / sizeof x * sizeof x;
    for (size_t i = 0; i < VECTORS; i++) x[i] = load_widest(p + i * sizeof *x);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
    for (p += sizeof x; p < end; p += sizeof x)
        for (size_t i = 0; i < VECTORS; i++) x[i] = move_widest(x[i], block, load_widest(p + i * sizeof *x));
    for (size_t i = 1; i < VECTORS; i++) x[0] = move_widest(x[0], vector, x[i]);
    _mm512_storeu_si512(folded, x[0]);
    return (size_t)(p - (const uint8_t *)data);
}

static bool has_512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("vpclmulqdq");
}

const tsr_crc32_fold tsr_crc32_folds[TSR_FOLDS] = {{VECTORS * 64, 64, has_512, fold_512},
                                                   {VECTORS * 32, 32, has_256, fold_256}};
#else
static bool has_none(void)
{
    return false;
}

const tsr_crc32_fold tsr_crc32_folds[TSR_FOLDS] = {{.is_there = has_none}, {.is_there = has_none}};
#endif

/* ---- CRC-32 ---- */

#if defined(TSR_HAVE_ISAL)
#if defined(__x86_64__)
/* ISA-L returns without clearing the upper halves of the vector registers. Until they are cleared, SSE code is five times
 * slower (measured on AMD EPYC). */
__attribute__((target("avx"))) static void clear_upper_halves(void)
{
    _mm256_zeroupper();
}
#endif

static uint32_t crc32_library(uint32_t crc, const void *data, size_t size)
{
    const uint32_t result = crc32_gzip_refl(crc, data, size);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx")) clear_upper_halves();
#endif
    return result;
}
#elif defined(TSR_HAVE_LIBDEFLATE)
static uint32_t crc32_library(uint32_t crc, const void *data, size_t size)
{
    return libdeflate_crc32(crc, data, size);
}
#elif defined(TSR_CRC32)
uint32_t TSR_CRC32(uint32_t crc, const void *data, size_t size); /* a function of the program that this is linked into */

static uint32_t crc32_library(uint32_t crc, const void *data, size_t size)
{
    return TSR_CRC32(crc, data, size);
}
#elif defined(TSR_HAVE_ZLIB)
static uint32_t crc32_library(uint32_t crc, const void *data, size_t size)
{
    return (uint32_t)crc32_z(crc, data, size);
}
#elif defined(__AARCH64EL__)
/* ARMv8 has instructions for exactly this polynomial. Only the first processors of that architecture lack them. */
__attribute__((target("+crc"))) static uint32_t crc32_library(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    if (!(getauxval(AT_HWCAP) & HWCAP_CRC32)) return tsr_crc32(NULL, crc, data, size);
    crc = ~crc;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        crc = __crc32d(crc, word);
    }
    for (; size; p++, size--) crc = __crc32b(crc, *p);
    return ~crc;
}
#else
static uint32_t crc32_library(uint32_t crc, const void *data, size_t size)
{
    return tsr_crc32(NULL, crc, data, size);
}
#endif

uint32_t tsr_native_crc32(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *p = data;
    for (const tsr_crc32_fold *fold = tsr_crc32_folds; fold < tsr_crc32_folds + TSR_FOLDS; fold++) {
        uint8_t folded[TSR_FOLDED_MOST];
        if (!fold->is_there() || size < fold->block) continue;
        const size_t done = fold->run(crc, p, size, folded);
        crc = crc32_library(UINT32_MAX, folded, fold->folded);
        p += done;
        size -= done;
    }
    return crc32_library(crc, p, size);
}

/* ---- digests ---- */

#if defined(TSR_HAVE_CRYPTO)
static void *start_of(const EVP_MD *kind)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (ctx && EVP_DigestInit_ex(ctx, kind, NULL) != 1) {
        EVP_MD_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}

static void *sha256_start(void)
{
    return start_of(EVP_sha256());
}

static void *md5_start(void)
{
    return start_of(EVP_md5());
}

static void evp_update(void *state, const void *data, size_t size)
{
    EVP_DigestUpdate(state, data, size);
}

static void evp_finish(void *state, uint8_t *out)
{
    EVP_DigestFinal_ex(state, out, NULL);
    EVP_MD_CTX_free(state);
}

static void evp_abandon(void *state)
{
    EVP_MD_CTX_free(state);
}

static const tsr_digest_ops sha256_ops = {32, sha256_start, evp_update, evp_finish, evp_abandon};
static const tsr_digest_ops md5_ops = {16, md5_start, evp_update, evp_finish, evp_abandon};
const tsr_digest_ops *const tsr_native_sha256 = &sha256_ops;
const tsr_digest_ops *const tsr_native_md5 = &md5_ops;
#else
const tsr_digest_ops *const tsr_native_sha256 = &tsr_sha256_portable;
const tsr_digest_ops *const tsr_native_md5 = NULL;
#endif

#if defined(TSR_HAVE_XXHASH)
#if defined(TSR_HAVE_XXHASH_DISPATCH)
/* The library detects the processor in its first call, without a lock. This must happen before several threads use it. */
static void choose_vectors(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) return;
    XXH3_128bits_reset(state);
    XXH3_128bits_update_dispatch(state, "", 0);
    XXH3_freeState(state);
}
#endif

static void *xxh3_start(void)
{
#if defined(TSR_HAVE_XXHASH_DISPATCH)
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_vectors);
#endif
    XXH3_state_t *state = XXH3_createState();
    if (state) XXH3_128bits_reset(state);
    return state;
}

static void xxh3_update(void *state, const void *data, size_t size)
{
#if defined(TSR_HAVE_XXHASH_DISPATCH)
    XXH3_128bits_update_dispatch(state, data, size);
#else
    XXH3_128bits_update(state, data, size);
#endif
}

static void xxh3_abandon(void *state)
{
    XXH3_freeState(state);
}

static void xxh3_finish(void *state, uint8_t *out)
{
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits_digest(state));
    xxh3_abandon(state);
}

static const tsr_digest_ops xxh3_ops = {16, xxh3_start, xxh3_update, xxh3_finish, xxh3_abandon};
const tsr_digest_ops *const tsr_native_xxh3 = &xxh3_ops;
#else
const tsr_digest_ops *const tsr_native_xxh3 = &tsr_xxh3_portable;
#endif

#if defined(TSR_HAVE_ZSTD)
static void *zstd_start(void)
{
    return ZSTD_createDStream();
}

static int zstd_step(void *state, tsr_str *in, void *out, size_t out_size, size_t *written)
{
    ZSTD_inBuffer input = {in->data, in->size, 0};
    ZSTD_outBuffer output = {out, out_size, 0};
    size_t left = ZSTD_decompressStream(state, &output, &input);
    in->data += input.pos;
    in->size -= input.pos;
    *written = output.pos;
    return ZSTD_isError(left) ? -1 : left == 0;
}

static void zstd_end(void *state)
{
    ZSTD_freeDStream(state);
}

static const tsr_zstd_ops zstd_ops = {zstd_start, zstd_step, zstd_end};
const tsr_zstd_ops *const tsr_native_zstd = &zstd_ops;
#else
const tsr_zstd_ops *const tsr_native_zstd = NULL;
#endif
