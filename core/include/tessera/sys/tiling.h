/* Whether chunks tile their tensor exactly, and where they do not.
 *
 * Example:
 *
 *     tsr_tiling tiling;
 *     status = tsr_tiling_check(host->allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count,
 *                               &tiling, &err);
 *     if (status == TSR_OK && tiling.exact) printf("every element is in exactly one chunk\n"); */
#ifndef TESSERA_SYS_TILING_H
#define TESSERA_SYS_TILING_H

#include "tessera/validate.h"

TSR_API_BEGIN

#define TSR_NO_CHUNK UINT64_MAX /* where a number of a chunk is expected */

/* How a list of chunks tiles a tensor. Chunk numbers are indexes into the list. */
typedef struct tsr_tiling {
    bool exact;          /* every element is in exactly one chunk, and no chunk leaves the tensor */
    uint64_t outside;    /* a chunk that leaves the tensor, or TSR_NO_CHUNK; its part inside still counts below */
    uint64_t overlap[2]; /* two chunks with common elements (lower number first), or TSR_NO_CHUNK */
    uint64_t overlap_offsets[TSR_MAX_NDIM]; /* one element that both hold */
    uint64_t missing;                       /* elements in no chunk */
    bool missing_at_least;                  /* damage so widespread that counting stopped: `missing` is a lower bound */
    uint64_t hole_offsets[TSR_MAX_NDIM];    /* with missing > 0: a box that no chunk touches */
    uint64_t hole_sizes[TSR_MAX_NDIM];
    uint64_t empty_chunks; /* chunks without elements: normal for trailing ranks */
} tsr_tiling;

/* Time O(count × ndim) for an exact tiling of any kind, O(count × ndim × log count) to locate the fault of any other list.
 * An exact tiling is always recognized; another is taken for exact with probability below rank / 2^61 (the chunks'
 * indicator functions are compared with the tensor's by a random multilinear form over the integers mod 2^61 - 1, seeded
 * from the chunks). Errors: TSR_E_LIMIT beyond TSR_MAX_NDIM dims or when the tensor's elements overflow, TSR_E_NOMEM. */
tsr_status tsr_tiling_check(const tsr_allocator *allocator, tsr_shape shape, const tsr_chunk *chunks, uint64_t count,
                            tsr_tiling *out, tsr_error *err);

TSR_API_END

#endif
