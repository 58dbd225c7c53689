/* The boxes that the ranks' tensors are in the whole one. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_CHUNKS_H
#define TSR_FORMATS_SHARDS_SHARDS_CHUNKS_H

#include "tessera/shards.h"

/* What the ranks of one stage hold of a tensor: one entry per rank, each stored as one chunk that covers it. */
typedef struct tsr_shards_held {
    const tsr_entry *const *tensors;
    uint32_t ranks;
    tsr_str fqn; /* in the whole model, for messages */
} tsr_shards_held;

/* Whether an entry is a dense tensor that one chunk covers. */
bool tsr_shards_is_whole(const tsr_entry *entry);

/* Fills in shape, rank, chunks and replicas (equal blocks of successive ranks) of `out` by a CONCAT or STACK rule. All in
 * `arena`. TSR_E_FORMAT when the tensors do not fit the rule, or each other. */
tsr_status tsr_shards_concat(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
                             tsr_error *err);
tsr_status tsr_shards_stack(const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_arena *arena, tsr_entry *out,
                            tsr_error *err);

#endif
