/* Chooses the rule for a tensor, either from a document or from a built-in map, which derives it from the model's
 * settings. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_RULES_H
#define TSR_FORMATS_SHARDS_SHARDS_RULES_H

#include "formats/shards/shards_chunks.h"

/* What the files next to a checkpoint, or objects in it, state about the model. 0 if they do not. */
typedef struct tsr_shards_settings {
    uint64_t dim; /* the width of the model */
    uint64_t heads, kv_heads, head_dim;
    uint64_t vocabulary, layers;
    uint64_t tensor_ranks, stages; /* of the job */
    uint64_t expert_ranks;
    double version; /* of Megatron's checkpoints */
    bool gated;     /* the first linear layer of an MLP contains both the gate and the up projection */
} tsr_shards_settings;

/* The rule that was chosen for a tensor, if there is one. */
typedef struct tsr_shards_choice {
    bool known;
    bool equal_is_enough; /* if there is no rule, a tensor that is equal on all ranks is whole */
    tsr_shards_rule rule;
    uint64_t expected;                        /* the size along the rule's dimension according to the settings; 0 for any */
    uint64_t block_sizes[3], block_copies[3]; /* memory that `rule` may point into */
} tsr_shards_choice;

/* A built-in map. */
typedef struct tsr_shards_family {
    const char *name;
    const char *stage_pattern; /* NULL if there are no pipeline stages */
    /* Reads the settings before the entries are joined. Fails if settings that the map needs are missing or contradict the
     * files. */
    tsr_status (*settings)(tsr_checkpoint *checkpoint, uint32_t ranks, uint32_t stages, tsr_shards_settings *out,
                           tsr_error *err);
    tsr_status (*choose)(const tsr_shards_settings *settings, const tsr_shards_held *held, tsr_shards_choice *out,
                         tsr_error *err);
} tsr_shards_family;

#endif
