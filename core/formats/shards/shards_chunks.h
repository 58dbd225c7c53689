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

/* Whether an entry is a dense tensor stored as a single chunk that covers it. */
bool tsr_shards_is_whole(const tsr_entry *entry);

/* Sets shape, ndim, chunks and replicas (equal blocks of successive ranks) of `out` according to a CONCAT or STACK rule.
 * Allocates in `arena`. Fails with TSR_E_FORMAT if the tensors do not match the rule or each other. */
tsr_status tsr_shards_concat(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
                             tsr_error *err);
tsr_status tsr_shards_stack(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
                            tsr_error *err);

#endif
