/* Computes which boxes of the whole tensor the ranks' tensors are. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_CHUNKS_H
#define TSR_FORMATS_SHARDS_SHARDS_CHUNKS_H

#include "tessera/shards.h"

/* What the ranks of one stage hold of a tensor: one entry per rank, each stored as a single chunk. */
typedef struct tsr_shards_held {
    const tsr_entry *const *tensors;
    uint32_t ranks;
    tsr_str fqn; /* name in the whole model, for messages */
} tsr_shards_held;

#endif
