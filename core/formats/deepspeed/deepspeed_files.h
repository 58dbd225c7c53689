/* The files of a DeepSpeed tag directory, identified by their names, and their contents.
 *
 *   mp_rank_00_model_states.pt                        ZeRO 0 to 2: one per model-parallel rank
 *   zero_pp_rank_1_mp_rank_00_model_states.pt         ZeRO 3: one per rank
 *   bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt    ZeRO 1 to 3: one per rank; the prefix is used with bf16
 *   layer_04-model_states.pt                          pipelines: the weights of one layer; see deepspeed_module.h
 *   layer_04-model_01-model_states.pt                 the part of that layer that one of several tensor-parallel ranks holds
 *   layer_0_expert_2_mp_rank_00_model_states.pt       mixtures of experts: see deepspeed_module.h
 *   expert_2_mp_rank_00_model_states.pt               the same expert of all layers, by versions that had one list of experts
 *   expp_rank_1_mp_rank_00_optim_states.pt            without ZeRO: see deepspeed.c
 *
 * "pp_rank" in these names is the data-parallel rank, "mp_rank" the model-parallel one: a number that counts the
 * tensor-parallel ranks of all pipeline stages. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_FILES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_FILES_H

#include "formats/common/reader.h"
#include "tessera/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"
#include "tessera/value.h"

typedef enum tsr_ds_kind {
    TSR_DS_OTHER = 0,
    TSR_DS_MODEL,
    TSR_DS_OPTIM,
    TSR_DS_LAYER,
    TSR_DS_EXPERT,
    TSR_DS_EXPERT_OPTIM
} tsr_ds_kind;

typedef struct tsr_ds_name {
    tsr_ds_kind kind;
    bool has_rank;   /* the name states a data-parallel rank; for a layer, a tensor-parallel one */
    bool is_expert;  /* from a mixture of experts: the weights of an expert, or the optimizer of a rank's experts */
    uint32_t rank;   /* data-parallel rank, or expert-parallel rank; in layer and expert files, the number of the layer */
    uint32_t expert; /* its number in the layer */
    bool has_all_layers; /* the weights of an expert in all layers, which count as layer 0 */
    uint32_t model_rank; /* for a layer, the tensor-parallel rank */
    const char *prefix;  /* names the dtype, such as "bf16_"; or NULL */
} tsr_ds_name;

tsr_ds_name tsr_ds_name_of(tsr_str name);
/* The inverse: the file name that DeepSpeed uses. The name must have a kind. The data is NULL if out of memory. */
tsr_str tsr_ds_name_text(tsr_arena *arena, const tsr_ds_name *name, tsr_error *err);

/* The length of a name up to the number of an expert, which follows "layer.deepspeed_moe.experts.deepspeed_experts.". 0 for
 * other names. */
size_t tsr_ds_expert_prefix(tsr_str name);

/* A file that could be read. */
typedef struct tsr_ds_file {
    tsr_ds_name name;
    uint32_t file;
    uint32_t storage_base; /* added to the storage ids of its tensors, to make them unique */
    const tsr_value *root; /* a DICT */
} tsr_ds_file;

/* A model-parallel rank, with all its data-parallel ranks. */
typedef struct tsr_ds_column {
    uint32_t model_rank;
    const tsr_ds_file *model;   /* its model states (under ZeRO 3, those of the lowest rank that has a file), or NULL */
    uint32_t world;             /* number of data-parallel ranks */
    const tsr_ds_file **models; /* under ZeRO 3, one per rank, NULL if it is missing; otherwise NULL */
    const tsr_ds_file **optims; /* one per rank, NULL if it is missing; NULL under ZeRO 0 */
} tsr_ds_column;

typedef struct tsr_ds_files {
    tsr_checkpoint *checkpoint;
    tsr_ds_file *files; /* sorted by kind, model-parallel rank, and rank */
    uint32_t count;
    tsr_ds_column *columns; /* sorted by model-parallel rank */
    uint32_t column_count;
    uint32_t zero;              /* the ZeRO stage: 0, 1, 2 or 3 */
    bool has_experts;           /* experts have separate files */
    const char *experts_unread; /* why the experts' float32 weights and states are not read, so that the only parts are
                                 * module and engine; NULL if they are read */
    bool universal;             /* a universal checkpoint; its model states have every weight that is not trained */
    bool has_layers; /* saved from a PipelineModule: the weights are in files of layers, not in the model states */
    struct tsr_ds_layers *layers;   /* NULL before tsr_ds_layers_open (deepspeed_module.h), and without has_layers */
    struct tsr_ds_layouts *layouts; /* how to join what the tensor-parallel ranks hold; NULL: nothing says it */
    uint32_t tensor_ranks;          /* dividing a model-parallel rank by this gives its pipeline stage; the remainder is its
                            * tensor-parallel rank */
    uint32_t file_storages;         /* the storage ids of all files' tensors are 1 … file_storages */
    uint32_t storages;              /* the highest id in use; the part `model` adds further ones */
    tsr_vec runs;                   /* tsr_torch_run */
} tsr_ds_files;

/* Opens every file with one of the names above. A file that cannot be read is reported and left out. `out` must be closed in
 * any case. Fails if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_files_open(tsr_checkpoint *checkpoint, tsr_ds_files *out, tsr_error *err);
void tsr_ds_files_close(tsr_ds_files *files);

/* The first file of a kind, or NULL, and their number. The files of one kind are contiguous. */
const tsr_ds_file *tsr_ds_first(const tsr_ds_files *files, tsr_ds_kind kind, uint32_t *count);
/* The name under which the store has the file. */
tsr_str tsr_ds_file_name(const tsr_ds_files *files, const tsr_ds_file *file);
/* The tensor-parallel rank of a column. */
static inline uint32_t tsr_ds_tensor_rank(const tsr_ds_files *files, uint32_t column)
{
    return files->tensor_ranks >= files->column_count ? column : files->columns[column].model_rank % files->tensor_ranks;
}
/* DeepSpeed's name for the model states of a model-parallel rank; under ZeRO 3, for its data-parallel rank `rank`. The data
 * is NULL if out of memory. */
tsr_str tsr_ds_model_states_name(const tsr_ds_files *files, uint32_t model_rank, uint32_t rank, tsr_error *err);
/* The DICT "optimizer_state_dict" of an optimizer file; NULL if there is none, or if `file` is NULL. */
const tsr_value *tsr_ds_optimizer(const tsr_ds_file *file);

/* The number of ranks according to an optimizer file: the largest partition count of a group. 0 if it states none. */
uint64_t tsr_ds_world_of(const tsr_value *optimizer);

/* Reports at `file` (may be empty) that the save is incomplete, with a message formatted like printf's. */
#define tsr_ds_report(checkpoint, file, err, ...) \
    tsr_checkpoint_is_incomplete((checkpoint), (file), tsr_arena_format((checkpoint)->arena, (err), __VA_ARGS__), (err))

/* Compares how many steps the optimizer files of a DeepSpeed checkpoint count with the number in the model states. */

/* The first "step" in the dictionaries of a LIST, or in those that are the values of a DICT; otherwise NULL. */
const tsr_value *tsr_ds_step_in(const tsr_value *states);

/* The result of comparing a step with a number of steps. UNKNOWN: the step is neither a number nor a 0-d float32 tensor. */
typedef enum tsr_ds_steps { TSR_DS_STEPS_UNKNOWN = 0, TSR_DS_STEPS_SAME, TSR_DS_STEPS_OTHER } tsr_ds_steps;

/* For ZeRO 3, whose model states have no weights to compare with the float32 ones. Reports an optimizer file that counts
 * other steps, or has other learning rates, than the model states of its column, and one that counts no steps. Does not
 * reject the checkpoint, since the optimizer may have been restarted. Fails if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_check_steps(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err);

/* Accessors for values that may contain anything. Each accepts NULL, and returns NULL if something is not as expected. */

TSR_INLINE const tsr_value *tsr_ds_kind_or_null(const tsr_value *value, tsr_value_kind kind)
{
    return value && value->kind == kind ? value : NULL;
}
TSR_INLINE const tsr_value *tsr_ds_get(const tsr_value *dict, const char *key)
{
    return dict && dict->kind == TSR_VALUE_DICT ? tsr_value_get(dict, tsr_str_from(key)) : NULL;
}
TSR_INLINE const tsr_value *tsr_ds_dict(const tsr_value *dict, const char *key)
{
    return tsr_ds_kind_or_null(tsr_ds_get(dict, key), TSR_VALUE_DICT);
}
TSR_INLINE const tsr_value *tsr_ds_list(const tsr_value *dict, const char *key)
{
    return tsr_ds_kind_or_null(tsr_ds_get(dict, key), TSR_VALUE_LIST);
}
TSR_INLINE const tsr_entry *tsr_ds_tensor(const tsr_value *value)
{
    return value && value->kind == TSR_VALUE_TENSOR ? value->as.tensor : NULL;
}
/* Reads a nonnegative number; returns false for any other value. */
TSR_INLINE bool tsr_ds_number(const tsr_value *value, uint64_t *out)
{
    if (!value || value->kind != TSR_VALUE_INT || value->as.integer < 0) return false;
    *out = (uint64_t)value->as.integer;
    return true;
}
/* The number of items of a LIST, or of pairs of a DICT. */
TSR_INLINE size_t tsr_ds_count(const tsr_value *value)
{
    return !value ? 0 : value->kind == TSR_VALUE_DICT ? tsr_value_pairs(value) : value->count;
}
TSR_INLINE const tsr_value *tsr_ds_item(const tsr_value *list, size_t index)
{
    return list && list->kind == TSR_VALUE_LIST && index < list->count ? list->items[index] : NULL;
}

/* Adds every string of a LIST to a set of names. */
static inline tsr_status tsr_ds_add_names(const tsr_value *list, tsr_map *names, tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(list); i++)
        if (list->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_map_put(names, list->items[i]->text, 1, NULL, NULL, err));
    return TSR_OK;
}

#endif
