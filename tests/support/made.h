/* Checkpoints made by hand: random tensors cut into random chunks, each stored in its own odd way, next to their true
 * contents element by element. The oracle for everything that moves tensor bytes. */
#ifndef TSR_TESTS_SUPPORT_MADE_H
#define TSR_TESTS_SUPPORT_MADE_H

#include "formats/common/reader.h"

typedef struct tsr_made {
    tsr_checkpoint checkpoint;
    tsr_host host;
    tsr_arena *arena;
    tsr_vec file; /* bytes of "data", the only file */
    tsr_memory_file listed;
    tsr_entry *entries;
    uint8_t **truth; /* one an entry: contiguous row-major bytes */
    uint64_t count;
    tsr_extent *extents; /* to be given out by tsr_checkpoint_extents */
    uint64_t extent_count;
    uint64_t random;
} tsr_made;

typedef enum tsr_made_how {
    TSR_MADE_PLAIN,   /* contiguous chunks, nothing to resolve */
    TSR_MADE_STRIDED, /* permuted and gapped strides, swap, conj, neg */
    TSR_MADE_ZSTD     /* plain chunks inside a "compressed" stream */
} tsr_made_how;

uint64_t tsr_made_random(tsr_made *made, uint64_t below);

/* Starts with room for `most` entries; one thread, or `threads`. */
void tsr_made_start(tsr_made *made, uint64_t seed, uint64_t most);
/* Adds a tensor of random contents, cut into about `cuts` chunks. Returns its number. `fqn` is borrowed. */
uint64_t tsr_made_tensor(tsr_made *made, const char *fqn, tsr_dtype dtype, uint32_t ndim, const uint64_t *shape,
                         unsigned cuts, tsr_made_how how);
/* A random shape of at most 4 dims, now and then with zeros; returns the rank. */
uint32_t tsr_made_shape(tsr_made *made, uint64_t *shape, uint64_t most);
/* Opens the store over what was added. Nothing may be added afterwards. */
void tsr_made_open(tsr_made *made);
void tsr_made_end(tsr_made *made);

/* Bytes of box [offsets, +sizes) of an entry, element by element from the truth, into `out`. */
void tsr_made_box(const tsr_made *made, uint64_t number, const uint64_t *offsets, const uint64_t *sizes, uint8_t *out);

#endif
