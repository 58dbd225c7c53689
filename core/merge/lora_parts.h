/* Declarations shared by the files that fold LoRA adapters. */
#ifndef TSR_MERGE_LORA_PARTS_H
#define TSR_MERGE_LORA_PARTS_H

#include "mapping/mapped.h"
#include "tessera/compare.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/merge.h"
#include "tessera/sys/read.h"

struct cJSON;

/* A pattern for names of modules, and what the modules that it matches have. */
typedef struct tsr_lora_pattern {
    struct tsr_regex *regex;
    const struct cJSON *value;
} tsr_lora_pattern;
typedef struct tsr_lora_patterns {
    tsr_lora_pattern *items;
    size_t count;
    uint64_t *work; /* what is left of TSR_REGEX_WORK */
} tsr_lora_patterns;

/* The settings of adapter_config.json that affect the result. */
typedef struct tsr_lora_config {
    struct cJSON *tree; /* owned; the patterns point into it */
    tsr_lora_patterns alphas, ranks;
    double alpha;
    uint64_t rank;
    bool rslora, dora, fan_in_fan_out;
} tsr_lora_config;

/* lora_config.c: reads adapter_config.json from the adapter's store; `m` has the memory for its patterns. Release *out with tsr_lora_config_free; on failure
 * there is nothing to release. Errors: TSR_E_NOT_FOUND if the file is missing; TSR_E_UNSUPPORTED, naming the setting, if it
 * is not plain LoRA, or a pattern that is not understood; those of reading and parsing. */
tsr_status tsr_lora_config_read(const tsr_mapped *m, tsr_checkpoint *adapter, tsr_lora_config *out, tsr_error *err);
void tsr_lora_config_free(tsr_lora_config *config); /* accepts a zeroed one */
/* Sets *scale to the factor of the module's B·A, and *rank to the rank that the configuration states for the module. Errors:
 * TSR_E_FORMAT if a pattern's value is not a number or the rank is 0; TSR_E_UNSUPPORTED if the name is not ASCII. */
tsr_status tsr_lora_scale(const tsr_lora_config *config, tsr_str module, double *scale, uint64_t *rank, tsr_error *err);

/* Counts the settings that PEFT 0.21 does not have, except those that are null, false or empty. Sets *first to the name of
 * the first of them, which the configuration owns. */
size_t tsr_lora_unknown(const tsr_lora_config *config, tsr_str *first);

/* Whether `last` is the whole name or its last components, such as "self_attn.q_proj" of "layers.0.self_attn.q_proj". */
bool tsr_lora_ends(tsr_str name, tsr_str last);
/* Whether a list of the configuration contains the module's name or its last components. `list` may be NULL. */
bool tsr_lora_lists(const struct cJSON *list, tsr_str module);
/* Whether the configuration selects a module by its name or its last components. Returns false if modules are selected by a
 * regular expression, or in some layers only: neither is evaluated here. Source:
 * peft.tuners.tuners_utils.check_target_module_exists. */
bool tsr_lora_selects(const tsr_lora_config *config, tsr_str module);

/* How one tensor of the result is computed: the base's tensor, or the adapter's replacement, plus a change. */
typedef struct tsr_fold {
    tsr_checkpoint *base, *adapter;
    const tsr_entry *weight; /* in the base; the result has its shape. If `added`, it is `start` instead */
    bool added;              /* the base does not have the tensor: it is of a module that the adapter has whole */
    tsr_str name;            /* of the result: that of `weight`, or of an output layer that shares it */
    const tsr_entry *start;  /* in the adapter: its replacement for `weight`, or NULL */
    /* Both are in the adapter. The change is scale·(B·A), or scale·b if `a` is NULL, or nothing if `b` is NULL. */
    const tsr_entry *a, *b;
    bool rounds;                /* round the change to the weight's dtype before adding it, as PEFT does for embeddings */
    bool transposed;            /* W is [columns of A, rows of B]: the change is transposed */
    bool embedding;             /* of an embedding layer: if W is square, the change is transposed */
    const tsr_entry *tokens;    /* in the adapter: rows that replace those of `weight`; or NULL */
    const uint64_t *token_rows; /* their numbers */
    double scale;
    uint64_t rank;
    uint64_t rows, columns; /* of W, if `a` is not NULL; for fused experts, of the W of one of them */
    /* A and B have the matrices of this many experts, of which `expert` is the first in W. 0: they are of no experts. The rows
     * of W are the outputs from `first_output` on. */
    uint64_t experts, expert, first_output;
    /* DoRA: the norm that each output has in the result; or NULL. `factors` is set if the fold is transposed. */
    const tsr_entry *magnitude;
    struct tsr_dora_factors *factors;
    tsr_dtype dtype;               /* of the result */
    const struct tsr_fold *before; /* the change is added to the result of this fold instead of `weight`; or NULL */
    bool is_second; /* it is of a module whose tensors are those of another one, too, which PEFT merges first */
} tsr_fold;

/* Where the products of a pair of matrices belong. */
typedef struct tsr_lora_pair {
    const tsr_entry *a, *b;
} tsr_lora_pair;
typedef struct tsr_lora_place {
    tsr_str target;                         /* a tensor of the base */
    uint64_t experts, expert, first_output; /* as in tsr_fold */
    uint64_t outputs;                       /* of B */
} tsr_lora_place;
typedef struct tsr_lora_places {
    tsr_str parameter; /* as target_parameters has it: with the name of its module */
    tsr_vec places;    /* of tsr_lora_place */
} tsr_lora_places;

/* The input embedding and the output layer of a base that has one tensor for both. All are NULL for any other base. */
typedef struct tsr_lora_tied {
    const tsr_entry *embedding, *output; /* in the base; `output` is NULL if the base stores the tensor only once */
    tsr_fold *in, *out;                  /* their folds; NULL: unchanged */
    bool unsure; /* the base has several input embeddings, one of which may be tied; `embedding` is any of them */
} tsr_lora_tied;

/* lora_tied.c: checks that the folds, a vector of tsr_fold *, have the same effect on the whole model as PEFT. Otherwise fails with
 * TSR_E_UNSUPPORTED and a message that says what to do. */
tsr_status tsr_lora_check(const tsr_mapped *m, const tsr_lora_config *config, const tsr_lora_tied *tied,
                          const tsr_vec *folds, tsr_error *err);
#define TSR_LORA_OTHERS_TIED "the adapter replaces '%.*s', but not the layers tied to it; fold this adapter with PEFT"
/* lora_tied.c: finds the tied tensors of the base. */
void tsr_lora_find_tied(const tsr_mapped *m, const tsr_lora_config *config, tsr_lora_tied *out);
/* Whether a tensor has the name of an input embedding, or of an output layer. */
bool tsr_lora_is_input(tsr_str weight);
bool tsr_lora_is_output(tsr_str weight);
/* Whether the base stores them as two names of one storage, as torch.save does. */
bool tsr_lora_one_storage(const tsr_lora_tied *tied);
/* Replaces tied->in and tied->out, the folds that the adapter's tensors name, by those with the result of PEFT, and notes
 * what that means for the model. If the base stores the tensor once, but the result needs it twice, tied->out is the fold of
 * a tensor to add. Errors: TSR_E_UNSUPPORTED where PEFT's result is not the model that was trained because of a mistake, or
 * where the files do not determine it. */
tsr_status tsr_lora_settle_tied(tsr_mapped *m, const tsr_lora_config *config, tsr_lora_tied *tied, tsr_error *err);
/* Makes one fold of those of two modules that share a tensor, either of which may be NULL, and returns it: what replaces the tensor in the
 * second module counts, and then the change of the first is added before that of the second. */
tsr_fold *tsr_lora_join(tsr_fold *first, tsr_fold *second);
/* lora_config.c: the list target_parameters, or NULL. */
const struct cJSON *tsr_lora_parameters(const tsr_lora_config *config);
/* lora_sum.c: computes a run of the result's elements (tsr_computed.compute); `ctx` is a tsr_fold. */
tsr_status tsr_lora_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                        tsr_error *err);

/* Names of an adapter's tensors, and of the base's, as PEFT, PyTorch's wrappers and transformers change them. */

#define TSR_LORA_PREFIX "base_model.model."

/* Names are compared without the modules that others are in, and then as transformers renames modules themselves. */
enum { TSR_LORA_COMPARISONS = 2 };

typedef struct tsr_lora_names {
    const tsr_mapped *m;
    size_t part;     /* how much of the adapter's names is that of the part that has its tensors, with its dot */
    tsr_str adapter; /* the name of the adapter in its tensors' names, such as "default"; or empty */
    tsr_map *stored
        [TSR_LORA_COMPARISONS]; /* names of the base, as tsr_lora_stored compares them → entry; NULL until they are needed */
    bool is_inner;              /* the base is a language model inside another model */
    uint32_t types;             /* of models of which the base is; a bit for each that lora_names.c lists */
} tsr_lora_names;

/* What a tensor of an adapter is, by the end of its name. */
typedef enum tsr_lora_kind {
    TSR_LORA_WHOLE, /* any tensor that is not one of the others */
    TSR_LORA_A,
    TSR_LORA_B,
    TSR_LORA_BIAS,
    TSR_LORA_EMBEDDING_A,
    TSR_LORA_EMBEDDING_B,
    TSR_LORA_MAGNITUDE,
    TSR_LORA_TOKENS,
    TSR_LORA_COPY, /* of the base's tensor, kept by PEFT next to what replaces it */
    TSR_LORA_OTHER /* of another method */
} tsr_lora_kind;

/* Finds out what a tensor is. Unless it is WHOLE or OTHER, *module receives the part of its name that is the module's, and
 * *adapter the name of the adapter, which is empty in what PEFT's save_pretrained writes. */
tsr_lora_kind tsr_lora_kind_of(tsr_str name, tsr_str *module, tsr_str *adapter);
/* The name of the adapter's tensor of another kind in the same module. Its data is NULL if memory runs out. */
tsr_str tsr_lora_sibling(const tsr_lora_names *names, tsr_str module, tsr_lora_kind kind, tsr_error *err);

/* Begins with the names of the mapped checkpoint's source. */
void tsr_lora_names_open(tsr_lora_names *names, const tsr_mapped *m);
/* Notes the name of the adapter that a tensor has. Fails with TSR_E_UNSUPPORTED if another tensor has another one. */
tsr_status tsr_lora_names_note(tsr_lora_names *names, tsr_str name, tsr_error *err);
void tsr_lora_names_close(tsr_lora_names *names); /* accepts a zeroed one */

/* The name of the base's tensor or module in memory: `name` without PEFT's prefix and without the names of wrapper modules. */
tsr_status tsr_lora_base_name(const tsr_lora_names *names, tsr_str name, tsr_str *out, tsr_error *err);
/* The name under which the base stores the tensor that is `target` in memory: `target` itself, or what transformers renames to it
 * when it loads the base, or the name that PyTorch's wrappers gave it. Returns `target` if there is none, or several. */
tsr_status tsr_lora_stored(tsr_lora_names *names, tsr_str target, tsr_str *out, tsr_error *err);

/* Whether `target`, a name in memory, is of a module whose tensors are those of a module before it. */
bool tsr_lora_is_second_place(const tsr_lora_names *names, tsr_str target);

/* The name as tsr_lora_stored compares it last: the same for what is stored and for what is in memory. */
tsr_str tsr_lora_compared(const tsr_lora_names *names, tsr_str name, tsr_error *err);
/* Sets names->part, and the range of the adapter's entries that are its tensors. Returns their part in a training directory, or NULL. */
const tsr_part *tsr_lora_range(const tsr_checkpoint *adapter, tsr_lora_names *names, uint64_t *first, uint64_t *end);

/* Whether model_type of config.json, or of a config in it, is one of `types`, each with its NUL, and an empty one at the end. */
bool tsr_lora_is_of_type(const tsr_mapped *m, const char *types);

/* lora_fused.c: opens the base with the tensors that the adapter changes as they are in memory where transformers takes stored ones apart, or joins them,
 * when it loads a model of this type. *out is NULL if there are none. Errors: TSR_E_UNSUPPORTED if one of them is quantized; TSR_E_FORMAT if
 * its size does not fit config.json. */
tsr_status tsr_lora_open_loaded(tsr_checkpoint *base, tsr_checkpoint *adapter, tsr_checkpoint **out, tsr_error *err);
/* Opens what was folded over `loaded`, which the function above opened, with the base's tensors again. Borrows both. */
tsr_status tsr_lora_open_saved(tsr_checkpoint *folded, tsr_checkpoint *loaded, tsr_checkpoint **out, tsr_error *err);

/* lora_sum.c: finds the tensors of the base that a pair of the module's matrices changes: a parameter that target_parameters
 * selects, or the tensors that it consists of in a checkpoint. out->places must be an empty vector. Errors: TSR_E_NOT_FOUND if
 * there is none; TSR_E_UNSUPPORTED if there are several. */
tsr_status tsr_lora_find_places(tsr_lora_names *names, const tsr_lora_config *config, const tsr_lora_pair *pair,
                                tsr_str module, tsr_lora_places *out, tsr_error *err);

/* Opens such a checkpoint as its base alone, under the base's names. */
tsr_status tsr_lora_open_state(tsr_checkpoint *state, tsr_checkpoint **out, tsr_error *err);

/* ---- Computing the elements of folded tensors, in runs of bounded size. ---- */

/* The largest blocks of the matrices that are in memory at a time, and how many elements are computed at a time. */
enum {
    TSR_LORA_RANKS = 128,
    TSR_LORA_ROWS = 128,
    TSR_LORA_COLUMNS = 1024,
    TSR_LORA_RUN = TSR_LORA_RANKS * TSR_LORA_COLUMNS
};

/* Working memory for one run, and what computes with it. */
typedef struct tsr_lora_room tsr_lora_room;
struct tsr_lora_room {
    double *sums;            /* the run's sums; TSR_LORA_RUN elements */
    double *left;            /* TSR_LORA_ROWS × TSR_LORA_RANKS */
    double *right;           /* TSR_LORA_RANKS × TSR_LORA_COLUMNS */
    double *loaded;          /* TSR_LORA_RUN elements: as many as the larger of the two above */
    uint8_t *bytes;          /* room for the elements of `loaded` as they are stored */
    tsr_cast_losses *losses; /* what casts to the dtype of the result lose */
    /* Computes the run's elements of W plus the change in r->loaded, rounded only to float32, in which PyTorch computes. The
     * fold must have a change, and the run at most TSR_LORA_RUN elements. */
    tsr_status (*values)(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err);
};

/* Makes the fold a DoRA fold with these magnitudes; the matrices must be set. Errors: TSR_E_FORMAT if it has another number
 * of outputs; TSR_E_NOMEM. */
tsr_status tsr_dora_open(tsr_arena *arena, tsr_fold *fold, tsr_error *err);

/* ---- Reads runs of elements in the dtype in which sums are computed. ---- */

/* Reads a run of elements as `dtype` into `out`. `bytes` must have room for the run in its stored dtype. Adds what the cast
 * loses to *losses. Errors: those of tsr_read_run. */
tsr_status tsr_merge_read(tsr_stored_tensor tensor, const tsr_run *run, tsr_dtype dtype, uint8_t *bytes, void *out,
                          tsr_cast_losses *losses, tsr_error *err);

#endif
