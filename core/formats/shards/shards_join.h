/* The step after reading the files: joins what the ranks hold into whole tensors. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_JOIN_H
#define TSR_FORMATS_SHARDS_SHARDS_JOIN_H

#include "formats/common/reader.h"
#include "tessera/mesh.h"
#include "tessera/shards.h"

/* Joins the entries of the catalog according to the map in the open options. Every entry, including objects, has a per_rank
 * table with what each rank holds (rank_entries.h). Tensors without a rule that differ between ranks stay listed per rank.
 * Does nothing without a map, or if the reader found no ranks. Fails with TSR_E_FORMAT, TSR_E_UNSUPPORTED or
 * TSR_E_NOT_FOUND, naming the tensor or the setting, and if reading fails. */
tsr_status tsr_shards_join(tsr_checkpoint *checkpoint, tsr_error *err);

/* ---- Computes which boxes of the whole tensor the ranks' tensors are. ---- */

/* What the ranks of one stage hold of a tensor: one entry per rank, each stored as a single chunk. */
typedef struct tsr_shards_held {
    const tsr_entry *const *tensors;
    uint32_t ranks;
    tsr_str fqn; /* name in the whole model, for messages */
} tsr_shards_held;

/* ---- Patterns for file names that contain numbers: "mp_rank_{tp}_{pp}/model_optim_rng.pt". ---- */

typedef enum tsr_shards_capture { TSR_CAPTURE_TP, TSR_CAPTURE_PP, TSR_CAPTURE_PART, TSR_CAPTURES } tsr_shards_capture;

/* The numbers in a name; 0 for a capture that the pattern does not have. */
typedef struct tsr_shards_numbers {
    uint32_t of[TSR_CAPTURES];
} tsr_shards_numbers;

/* The name that the pattern gives for `numbers`, each with at least `widths[capture]` digits; in `arena`. */
tsr_str tsr_shards_name(tsr_str pattern, const tsr_shards_numbers *numbers, const unsigned *widths, tsr_arena *arena,
                        tsr_error *err);

/* The rule of a document for a name; NULL if there is none, so that every rank holds the whole tensor. */
const tsr_shards_rule *tsr_shards_rule_of(const tsr_shards *map, tsr_str fqn);

/* Chooses the rule for a tensor, either from a document or from a built-in map, which derives it from the model's
 * settings. */

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
    const char *stage_pattern; /* NULL if there are no pipeline stages */
    /* Reads the settings before the entries are joined. Fails if settings that the map needs are missing or contradict the
     * files. */
    tsr_status (*settings)(tsr_checkpoint *checkpoint, uint32_t ranks, uint32_t stages, tsr_shards_settings *out,
                           tsr_error *err);
    tsr_status (*choose)(const tsr_shards_settings *settings, const tsr_shards_held *held, tsr_shards_choice *out,
                         tsr_error *err);
} tsr_shards_family;

/* ---- Names of layers in the whole model. Each pipeline stage numbers its own layers from 0. ---- */

typedef struct tsr_shards_stages {
    tsr_str head, tail;     /* GLOBs before and after the number of a layer; empty if names are already those of the whole
                             * model */
    const uint64_t *first;  /* per stage: number of its first layer */
    const uint64_t *layers; /* per stage: how many layers it has */
    uint32_t count;
} tsr_shards_stages;

/* Splits a pattern such as "**.layers.{layer}.{rest...}", which must have passed tsr_shards_stages_wrong. Allocates in
 * `arena`. */
tsr_status tsr_shards_stages_of(tsr_str pattern, tsr_arena *arena, tsr_shards_stages *out, tsr_error *err);
/* Sets the first layer of each stage by adding up `layers`, which must be set. Allocates in `arena`. */
tsr_status tsr_shards_stages_number(tsr_shards_stages *stages, tsr_arena *arena, tsr_error *err);

/* Renames an entry (name and path) to what it is called in pipeline stage `stage`. *holds is false if it is in a layer of
 * another stage. Names outside of layers are in every stage. Fails with TSR_E_USAGE for a layer that is in no stage. */
tsr_status tsr_shards_rename_back(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                                  bool *holds, tsr_error *err);

#endif
