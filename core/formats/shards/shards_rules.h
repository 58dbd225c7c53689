/* Which rule a tensor has: of a document, or of a built-in map, which makes it from the model's settings. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_RULES_H
#define TSR_FORMATS_SHARDS_SHARDS_RULES_H

#include "formats/shards/shards_chunks.h"

/* What the files next to a checkpoint, or objects in it, say of the model. 0: they do not say. */
typedef struct tsr_shards_settings {
    uint64_t dim;     /* the width of the model */
    uint64_t heads, kv_heads, head_dim;
    uint64_t vocabulary, layers;
    uint64_t tensor_ranks, stages; /* of the job */
    uint64_t expert_ranks;
    double version;     /* of Megatron's checkpoints */
    bool gated;         /* the first linear layer of an MLP has gate and up rows */
} tsr_shards_settings;

/* Why a built-in map has no rule for a tensor, or which one. */
typedef struct tsr_shards_choice {
    bool known;
    bool equal_is_enough; /* without a rule: a tensor that is equal on all ranks is whole */
    tsr_shards_rule rule;
    uint64_t expected; /* the size along the rule's dim that the settings imply; 0: any */
    uint64_t block_sizes[3], block_copies[3]; /* what `rule` may point to */
} tsr_shards_choice;

/* A built-in map. */
typedef struct tsr_shards_family {
    const char *name;
    const char *stage_pattern; /* or NULL: no pipeline stages */
    /* Errors: what the map needs is not there, or contradicts the files. `entries` are not joined yet. */
    tsr_status (*settings)(tsr_checkpoint *checkpoint, uint32_t ranks, uint32_t stages, tsr_shards_settings *out, tsr_error *err);
    tsr_status (*choose)(const tsr_shards_settings *settings, const tsr_shards_held *held, tsr_shards_choice *out, tsr_error *err);
} tsr_shards_family;

/* The rule for a tensor; `out` must stay where it is while its rule is used. */
tsr_status tsr_shards_choose_rule(const tsr_shards *map, const tsr_shards_settings *settings, const tsr_shards_held *held,
                                  tsr_shards_choice *out, tsr_error *err);

/* shards_settings.c: params.json of Llama 1 to 3, config.json, `args` of a Megatron checkpoint. TSR_E_NOT_FOUND when it is not there;
 * TSR_E_FORMAT for settings that are not numbers. */
tsr_status tsr_shards_read_params(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err);
tsr_status tsr_shards_read_config(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err);
tsr_status tsr_shards_read_args(tsr_checkpoint *checkpoint, tsr_shards_settings *out, tsr_error *err);

#endif
