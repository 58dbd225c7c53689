/* Checkpoints built in memory: random tensors split into random chunks, each stored in an unusual way, along with their true
 * contents. They are the reference for everything that moves tensor bytes. */
#ifndef TSR_TESTS_SUPPORT_MADE_H
#define TSR_TESTS_SUPPORT_MADE_H

#include "formats/common/reader.h"
#include "tessera/sys/store.h"

typedef struct tsr_made {
    tsr_checkpoint checkpoint;
    tsr_host host;
    tsr_arena *arena;
    tsr_vec file; /* bytes of "data", the only file */
    tsr_memory_file listed;
    tsr_entry *entries;
    uint8_t **truth; /* one per entry: contiguous row-major bytes */
    uint64_t count;
    tsr_extent *extents; /* what tsr_checkpoint_extents lists */
    uint64_t extent_count;
    uint64_t random;
} tsr_made;

typedef enum tsr_made_how {
    TSR_MADE_PLAIN,   /* contiguous chunks, nothing to resolve */
    TSR_MADE_STRIDED, /* permuted and gapped strides, swap, conj, neg */
    TSR_MADE_ZSTD     /* plain chunks inside a "compressed" stream */
} tsr_made_how;

uint64_t tsr_made_random(tsr_made *made, uint64_t below);

/* Begins with room for `most` entries. Uses one thread, or `threads`. */
void tsr_made_start(tsr_made *made, uint64_t seed, uint64_t most);
/* Adds a tensor with random contents, split into about `cuts` chunks. Returns its number. Borrows `fqn`. */
uint64_t tsr_made_tensor(tsr_made *made, const char *fqn, tsr_dtype dtype, uint32_t ndim, const uint64_t *shape,
                         unsigned cuts, tsr_made_how how);
/* A random shape with at most 4 dims, some of which may be 0. Returns ndim. */
uint32_t tsr_made_shape(tsr_made *made, uint64_t *shape, uint64_t most);
/* Opens the store with everything that was added. Nothing may be added afterwards. */
void tsr_made_open(tsr_made *made);
void tsr_made_end(tsr_made *made);

/* Copies the bytes of the box [offsets, +sizes) of an entry from its true contents to `out`, element by element. */
void tsr_made_box(const tsr_made *made, uint64_t number, const uint64_t *offsets, const uint64_t *sizes, uint8_t *out);

#endif
