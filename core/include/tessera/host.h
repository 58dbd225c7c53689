/* Services that the surrounding program provides to the core: memory, limits, threads, and fast digests. A zeroed tsr_host with
 * `allocator = &tsr_allocator_libc` and `limits = tsr_limits_default()` (tessera/sys/host_calls.h) works everywhere; the native library fills in ISA-L,
 * libzstd, libcrypto and a thread pool (tessera/native_host.h). Borrowed by everything opened with it.
 *
 * Example:
 *
 *     tsr_host careful = *host;
 *     careful.limits.memory_bytes = (uint64_t)1 << 30;
 *     status = tsr_checkpoint_open(store, &careful, NULL, &checkpoint, &err); */
#ifndef TESSERA_HOST_H
#define TESSERA_HOST_H

#include "tessera/memory.h"

TSR_API_BEGIN

/* Bounds on what input may demand. Exceeding one is TSR_E_LIMIT and names the limit. */
typedef struct tsr_limits {
    uint32_t depth;          /* nesting of containers */
    uint64_t entries;        /* tensors and objects of one checkpoint */
    uint64_t metadata_bytes; /* size of one metadata file, header or pickle */
    uint64_t memory_bytes;   /* arena of one open checkpoint, or pools of one pickle; 0: no bound */
    uint64_t expansion;      /* bytes that shared values may expand to, beyond 64 for each byte of the input */
    uint64_t repetition;     /* bytes of tensors that repeat stored ones more than 1,024 times (tessera/sys/read.h) */
} tsr_limits;

/* What an input of so many bytes adds to limits.expansion. */
#define TSR_EXPANSION_PER_BYTE 64u

typedef enum tsr_digest_algorithm { TSR_DIGEST_SHA256 = 1, TSR_DIGEST_XXH3 = 2 } tsr_digest_algorithm;

/* A streaming digest. `size` bytes come out of `finish` (sha256: 32; xxh3: 16, big-endian canonical form).
 * finish also frees the state; abandon frees without a result. */
typedef struct tsr_digest_ops {
    size_t size;
    void *(*start)(void);
    void (*update)(void *state, const void *data, size_t size);
    void (*finish)(void *state, uint8_t *out);
    void (*abandon)(void *state);
} tsr_digest_ops;

/* Streaming decompression of one zstd stream. */
typedef struct tsr_zstd_ops {
    void *(*start)(void);
    /* Consumes from *in (advancing it) and fills up to out_size bytes. *written 0 with *in empty means more input is
     * wanted. Returns 0 in the middle, 1 at the end of a frame, -1 on damaged data. */
    int (*step)(void *state, tsr_str *in, void *out, size_t out_size, size_t *written);
    void (*end)(void *state);
} tsr_zstd_ops;

/* Groups of 4-bit numbers, two in each byte: the first one is in the low half. */
typedef struct tsr_pair_groups {
    const uint8_t *pairs;           /* of all groups, `group_bytes` each */
    const uint8_t *tables;          /* for each group, which of the tables its numbers are looked up in */
    size_t count;                   /* of groups */
    size_t group_bytes;             /* a multiple of 8 */
    const uint16_t (*products)[16]; /* the tables */
} tsr_pair_groups;

/* Runs body(arg, i) for i in [0, count), perhaps on several threads, and returns when all are done. */
typedef void tsr_parallel_for(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg);

typedef struct tsr_host {
    const tsr_allocator *allocator; /* never NULL */
    tsr_limits limits;
    uint32_t (*crc32)(uint32_t crc, const void *data, size_t size); /* NULL: the portable one */
    const tsr_digest_ops *sha256;                                   /* NULL: not available */
    const tsr_digest_ops *xxh3;                                     /* NULL: not available */
    const tsr_zstd_ops *zstd;                                       /* NULL: zstd items are refused */
    tsr_parallel_for *parallel_for;                                 /* NULL: the calling thread does everything */
    void *parallel_ctx;
    uint32_t threads;  /* how many bodies run at once at most; 0 counts as 1 */
    uint32_t io_depth; /* requests to a server that are under way at once at most; 0 counts as TSR_IO_DEPTH */
    /* NULL: all code is there. Otherwise called before code that a program loads on demand, such as the readers of rare forms: an
     * error ends the call (the WebAssembly module is such a program). */
    tsr_status (*load)(tsr_error *err);
    /* NULL: a portable loop. Whether for any of the little-endian numbers of `item_bytes` (1, 2, 4 or 8) in `data`, without its
     * highest bit, adding `lowest` carries into that bit. Where `lowest` is the lowest bit of a floating type's exponent, those are
     * its NaNs and infinities. `size` is a multiple of TSR_SCAN_BLOCK. */
    bool (*carries)(const void *data, size_t size, uint32_t item_bytes, uint64_t lowest);
    /* NULL: a portable loop. Writes the product of each number, 2 bytes in this machine's order. */
    void (*look_up_pairs)(const tsr_pair_groups *groups, uint8_t *out);
} tsr_host;

enum { TSR_IO_DEPTH = 16, TSR_SCAN_BLOCK = 128 };

TSR_API_END

#endif
