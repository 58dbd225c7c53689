/* The files of a DeepSpeed tag directory, by their names, and what each of them holds.
 *
 *   mp_rank_00_model_states.pt                        ZeRO 0 to 2: one for each model-parallel rank
 *   zero_pp_rank_1_mp_rank_00_model_states.pt         ZeRO 3: one for each rank
 *   bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt    ZeRO 1 to 3: one for each rank; the prefix is there under bf16
 *   layer_04-model_states.pt                          pipelines: the weights of one layer; see deepspeed_layers.h
 *   layer_04-model_01-model_states.pt                 what one of several tensor-parallel ranks holds of it
 *   layer_0_expert_2_mp_rank_00_model_states.pt       mixtures of experts: see deepspeed_experts.h
 *   expp_rank_1_mp_rank_00_optim_states.pt
 *
 * "pp_rank" in these names is the data-parallel rank, "mp_rank" the model-parallel one: pipeline stages and tensor-parallel
 * ranks are counted together. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_FILES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_FILES_H

#include "formats/common/reader.h"

typedef enum tsr_ds_kind { TSR_DS_OTHER = 0, TSR_DS_MODEL, TSR_DS_OPTIM, TSR_DS_LAYER, TSR_DS_EXPERT } tsr_ds_kind;

typedef struct tsr_ds_name {
    tsr_ds_kind kind;
    bool has_rank;  /* the name states a data-parallel rank; for a layer, a tensor-parallel one */
    bool is_expert; /* of a mixture-of-experts job: the weights of an expert, or the optimizer of a rank's experts */
    uint32_t rank;  /* data-parallel rank; for a layer, and for the layer of an expert, its number */
    uint32_t expert; /* its number in the layer */
    uint32_t model_rank; /* for a layer, the tensor-parallel rank */
    const char *prefix; /* of the dtype, as "bf16_"; NULL: none */
} tsr_ds_name;

tsr_ds_name tsr_ds_name_of(tsr_str name);
/* The inverse: the file name that DeepSpeed gives. The name must have a kind. NULL data: TSR_E_NOMEM. */
tsr_str tsr_ds_name_text(tsr_arena *arena, const tsr_ds_name *name, tsr_error *err);

/* One file that could be read. */
typedef struct tsr_ds_file {
    tsr_ds_name name;
    uint32_t file;
    uint32_t storage_base; /* storage ids of its tensors count on from here */
    const tsr_value *root; /* a DICT */
} tsr_ds_file;

/* The data-parallel ranks of one model-parallel rank. */
typedef struct tsr_ds_column {
    uint32_t model_rank;
    const tsr_ds_file *model; /* its model states; under ZeRO 3 those of its lowest rank that is there. Or NULL */
    uint32_t world;           /* data-parallel ranks */
    const tsr_ds_file **models; /* under ZeRO 3 one for each rank, NULL where it is missing; otherwise NULL */
    const tsr_ds_file **optims; /* one for each rank, NULL where it is missing; NULL under ZeRO 0 */
} tsr_ds_column;

typedef struct tsr_ds_files {
    tsr_checkpoint *checkpoint;
    tsr_ds_file *files; /* in order of kind, model-parallel rank, rank */
    uint32_t count;
    tsr_ds_column *columns; /* in order of model-parallel ranks */
    uint32_t column_count;
    uint32_t zero; /* the stage: 0, 1, 2 or 3 */
    bool has_experts; /* experts have files of their own */
    const char *experts_unread; /* why the experts' float32 weights and states are not read, so that the parts are module and
                                   engine; NULL: they are read */
    bool universal; /* of a universal checkpoint: the model states have every weight that is not trained */
    bool has_layers; /* a PipelineModule: the weights are in files of layers, and the model states have none */
    struct tsr_ds_layers *layers; /* NULL before tsr_ds_layers_open (deepspeed_layers.h), and without has_layers */
    uint32_t tensor_ranks; /* model-parallel rank / tensor_ranks is the pipeline stage, the remainder the tensor-parallel rank */
    uint32_t file_storages; /* storage ids of all files' tensors are 1 … file_storages */
    uint32_t storages;      /* the highest id that was given: the part `model` has some of its own */
    tsr_vec runs;      /* tsr_torch_run */
} tsr_ds_files;

/* Opens every file that is named as above. One that cannot be read is reported and left out. Close it in any case. Errors: those
 * of reading; TSR_E_NOMEM. */
tsr_status tsr_ds_files_open(tsr_checkpoint *checkpoint, tsr_ds_files *out, tsr_error *err);
void tsr_ds_files_close(tsr_ds_files *files);

/* The first file of a kind, or NULL: those of one kind follow each other. */
const tsr_ds_file *tsr_ds_first(const tsr_ds_files *files, tsr_ds_kind kind, uint32_t *count);
/* The name of a file's file. */
tsr_str tsr_ds_file_name(const tsr_ds_files *files, const tsr_ds_file *file);
/* The tensor-parallel rank of a column. */
static inline uint32_t tsr_ds_tensor_rank(const tsr_ds_files *files, uint32_t column)
{
    return files->tensor_ranks >= files->column_count ? column : files->columns[column].model_rank % files->tensor_ranks;
}
/* What DeepSpeed calls the model states of a model-parallel rank: under ZeRO 3, of its data-parallel rank `rank`. NULL data:
 * TSR_E_NOMEM. */
tsr_str tsr_ds_model_states_name(const tsr_ds_files *files, uint32_t model_rank, uint32_t rank, tsr_error *err);
/* What an optimizer file has under "optimizer_state_dict", a DICT; NULL for no file and where there is none. */
const tsr_value *tsr_ds_optimizer(const tsr_ds_file *file);

/* How many ranks an optimizer file says that there are: the largest count of a group. 0: it does not say. */
uint64_t tsr_ds_world_of(const tsr_value *optimizer);

/* Reports that the save is not whole, at `file` (may be empty), with printf's arguments. */
#define tsr_ds_report(checkpoint, file, err, ...) \
    tsr_checkpoint_is_incomplete((checkpoint), (file), tsr_arena_format((checkpoint)->arena, (err), __VA_ARGS__), (err))

#endif
