/* What the files of LoRA adapters share. */
#ifndef TSR_MERGE_LORA_PARTS_H
#define TSR_MERGE_LORA_PARTS_H

#include "mapping/mapped.h"
#include "tessera/sys/merge.h"

struct cJSON;

/* adapter_config.json, as far as it decides the result. */
typedef struct tsr_lora_config {
    struct cJSON *tree; /* owned; the patterns are in it */
    const struct cJSON *alpha_pattern, *rank_pattern; /* objects, or NULL */
    double alpha;
    uint64_t rank;
    bool rslora, fan_in_fan_out;
} tsr_lora_config;

/* lora_config.c. Frees nothing on failure but what it has made. TSR_E_NOT_FOUND where the file is missing, TSR_E_UNSUPPORTED naming
 * the setting that is not plain LoRA. */
tsr_status tsr_lora_config_read(tsr_checkpoint *adapter, tsr_lora_config *out, tsr_error *err);
void tsr_lora_config_free(tsr_lora_config *config); /* takes a zeroed one */
/* What B·A of a module is multiplied with, and the rank that the configuration states for it. */
tsr_status tsr_lora_scale(const tsr_lora_config *config, tsr_str module, double *scale, uint64_t *rank, tsr_error *err);

/* How many settings, other than null, false and empty ones, are neither used nor known to leave the result alone; `*first` is the name
 * of the first, which the configuration owns. */
size_t tsr_lora_unknown(const tsr_lora_config *config, tsr_str *first);

/* Whether `last` is the whole name or its last components: "self_attn.q_proj" of "layers.0.self_attn.q_proj". */
bool tsr_lora_ends(tsr_str name, tsr_str last);
/* Whether a list of the configuration, or NULL, has the module's name or its last components. */
bool tsr_lora_lists(const struct cJSON *list, tsr_str module);
/* Whether the configuration selects a module by its name or its last components. Patterns, and adapters for some layers only, are not
 * understood: false then. Source: peft.tuners.tuners_utils.check_target_module_exists. */
bool tsr_lora_selects(const tsr_lora_config *config, tsr_str module);

/* What becomes of one tensor of the base. */
typedef struct tsr_fold {
    tsr_checkpoint *base, *adapter;
    const tsr_entry *weight; /* of the base, whose place and dtype the result has */
    const tsr_entry *start;  /* of the adapter: what it stores in place of `weight`; or NULL */
    const tsr_entry *a, *b;  /* of the adapter: + scale·(B·A), without `a` + scale·b, and without `b` nothing */
    bool rounds;             /* the change is rounded to the weight's dtype before it is added, as for embeddings */
    bool transposed;         /* W is [columns of A, rows of B] */
    bool embedding;          /* which always is */
    double scale;
    uint64_t rank;
    tsr_dtype dtype;         /* of the result */
} tsr_fold;

/* lora_check.c: whether the folds do to the whole model what PEFT does. */
tsr_status tsr_lora_check(const tsr_mapped *m, const tsr_lora_config *config, tsr_fold *const *folds, size_t count, tsr_error *err);
/* lora_sum.c: a tsr_computed.compute; `ctx` is a tsr_fold. */
tsr_status tsr_lora_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_error *err);

#endif
