/* The files that belong to a checkpoint, for programs that replace or remove one: those that it lists, and those that a training
 * framework always writes next to them. Sources of the names: transformers' Trainer, tokenizers, processors and PEFT; accelerate's
 * save_state; DeepSpeed's save_checkpoint; Megatron-Core; verl's checkpoint managers; Lightning. */
#include "formats/common/file_names.h"
#include "formats/common/metadata.h"
#include "formats/dcp/dcp_state.h"
#include "formats/recognize/recognize.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- listed files ---- */

/* A file counts only if it is listed somewhere: a name or an ending that is typical of checkpoints may belong to another program's
 * file. */
static void own_chosen(const tsr_checkpoint *checkpoint, bool *owned)
{
    for (uint32_t i = 0; i < checkpoint->file_count; i++) owned[checkpoint->files[i]] = true;
}

/* Marks the index and the files named in its weight_map. */
static tsr_status own_mapped(tsr_checkpoint *checkpoint, bool *owned, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_weight_map map;
    tsr_checkpoint again = *checkpoint; /* separate findings: those of the index were already added when it was opened */
    again.missing = tsr_vec_of(allocator, sizeof(tsr_str));
    again.findings = tsr_findings_new(allocator, 0, err);
    const tsr_status status = again.findings ? tsr_weight_map_read(&again, &map, err) : TSR_E_NOMEM;
    if (status == TSR_OK) own_chosen(checkpoint, owned);
    for (uint32_t i = 0; status == TSR_OK && i < map.file_count; i++) owned[map.files[i]] = true;
    tsr_findings_free(again.findings);
    tsr_vec_free(&again.missing);
    return status;
}

tsr_status tsr_checkpoint_own_files(tsr_checkpoint *checkpoint, bool *owned, tsr_error *err)
{
    const uint32_t count = checkpoint->store->file_count;
    for (uint32_t f = 0; f < count; f++) owned[f] = false;
    switch (checkpoint->reader->format) {
    case TSR_FORMAT_DCP:
    case TSR_FORMAT_MEGATRON_DIST:
        if (!checkpoint->state) return TSR_OK; /* an interrupted save, without a .metadata that lists files */
        for (uint32_t f = 0; f < count; f++) owned[f] = tsr_dcp_state_of(checkpoint)->file_uses[f] != TSR_DCP_UNUSED;
        return TSR_OK;
    case TSR_FORMAT_SAFETENSORS_INDEX:
    case TSR_FORMAT_TORCH_INDEX: return own_mapped(checkpoint, owned, err);
    case TSR_FORMAT_DCP_SAFETENSORS:
    case TSR_FORMAT_SHARDS:
    case TSR_FORMAT_TORCH_RANKS: own_chosen(checkpoint, owned); return TSR_OK;
    default: return TSR_OK;
    }
}

/* ---- companions ---- */

/* In a pattern, '#' stands for a number, and '*' for any text. */
static bool matches(tsr_str name, const char *pattern)
{
    size_t at = 0;
    for (; *pattern && *pattern != '*' && *pattern != '#'; pattern++, at++)
        if (at == name.size || name.data[at] != *pattern) return false;
    const tsr_str rest = {name.data + at, name.size - at};
    if (!*pattern) return rest.size == 0;
    for (size_t taken = 0; taken <= rest.size; taken++) {
        if (*pattern == '#' && taken && !tsr_is_digit(rest.data[taken - 1])) return false;
        const bool enough = *pattern == '*' || taken;
        if (enough && matches(tsr_str_after(rest, taken), pattern + 1)) return true;
    }
    return false;
}

static bool matches_any(tsr_str name, const char *const *patterns)
{
    for (; *patterns; patterns++)
        if (matches(name, *patterns)) return true;
    return false;
}

const tsr_every_step *tsr_in_every_step(tsr_str name)
{
    static const tsr_every_step files[] = {{"layer_*_states.pt", "layer_", NULL},
                                           {"model.safetensors", "model", NULL},
                                           {"model_#.safetensors", "model", NULL},
                                           {"pytorch_model.bin", "model", NULL},
                                           {"pytorch_model_#.bin", "model", NULL},
                                           {"optimizer.pt", "optim", "scheduler.pt"},
                                           {"scheduler.pt", "scheduler", "optimizer.pt"},
                                           {"optimizer.bin", "optim", NULL},
                                           {"optimizer_#.bin", "optim", NULL},
                                           {"optimizer_#/.metadata", "optim", NULL},
                                           {"scheduler.bin", "scheduler", NULL},
                                           {"scheduler_#.bin", "scheduler", NULL},
                                           {"custom_checkpoint_#.pkl", "custom_checkpoint", NULL},
                                           {"trainer_state.json", "trainer_state", NULL},
                                           {"trainer_state.pt", "trainer_state", NULL},
                                           {"STABLE", "STABLE", NULL}, /* of prime-rl, written last */
                                           {"config.json", "/config.", NULL},
                                           {"adapter_config.json", "adapter_config", NULL}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (matches(name, files[i].pattern)) return &files[i];
    return NULL;
}

/* What shows that a framework wrote a directory, and what it always writes there. */
typedef struct companions {
    const char *const *shown_by; /* one of these is an owned file of the directory */
    const char *where; /* "": the same directory; "..": the one that contains it; otherwise a pattern of one in it */
    const char *const *names;
} companions;

static const char *const dcp[] = {".metadata", "__#.metadata", "__#_#.distcp", NULL};

static const char *const dcp_extras[] = {"common.pt", "metadata.json", "meta.pt", "run_config.yaml", "train_state.pt", NULL};

static const char *const models[] = {"model*.safetensors",
                                     "model*.safetensors.index.json",
                                     "pytorch_model*.bin",
                                     "pytorch_model*.bin.index.json",
                                     "adapter_model*.safetensors",
                                     "adapter_model*.bin",
                                     "trainer_state.json",
                                     "training_args.bin",
                                     "optimizer.pt",
                                     "optimizer.bin",
                                     "random_states_#.pkl",
                                     NULL};
static const char *const saved_with_models[] = {
    "model.safetensors", "model-#-of-#.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model-#-of-#.bin", "pytorch_model.bin.index.json", "adapter_model.safetensors", "adapter_model.bin",
    "adapter_config.json", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "vocab-src.json",
    "merges.txt", "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "training_args.bin",
    "trainer_state.json", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_#.pth",
    "zero_to_fp32.py", "latest",
    /* of accelerate */
    "model_#.safetensors", "pytorch_model_#.bin", "pytorch_model_fsdp*.bin", "optimizer_#.bin", "optimizer_*rank#.bin",
    "scheduler.bin", "scheduler_#.bin", "sampler.bin", "sampler_#.bin", "dl_state_dict.bin", "dl_state_dict_#.bin",
    "random_states_#.pkl", "custom_checkpoint_#.pkl",
    /* of prime-rl */
    "STABLE", NULL};
static const char *const accelerate_states[] = {
    "scheduler.bin",     "scheduler_#.bin",     "sampler.bin",         "sampler_#.bin",           "scaler.pt",
    "dl_state_dict.bin", "dl_state_dict_#.bin", "random_states_#.pkl", "custom_checkpoint_#.pkl", NULL};
static const char *const olmo[] = {"rank#.pt", NULL};
static const char *const olmo_files[] = {".metadata.json", NULL};
static const char *const automodel[] = {"rng_global_rank_#.pt", "rng_dp_rank_#.pt", NULL};
static const char *const automodel_files[] = {"config.yaml", "losses.json", NULL};
static const char *const adapters[] = {"adapter_model*.safetensors", "adapter_model*.bin", "adapter_config.json", NULL};
static const char *const card[] = {"README.md", NULL}; /* of PEFT */

static const char *const deepspeed[] = {"*_model_states.pt", "*_optim_states.pt", NULL};
static const char *const around_deepspeed[] = {"latest", "latest_universal", "zero_to_fp32.py", NULL};

/* The files from which PyTorch's HuggingFaceStorageWriter consolidated a model. */
static const char *const sharded[] = {"shard-#-model-#-of-#.safetensors", NULL};

static const char *const verl[] = {"model_world_size_#_rank_#.pt", NULL};
static const char *const verl_files[] = {"model_world_size_#_rank_#.pt", "optim_world_size_#_rank_#.pt",
                                         "extra_state_world_size_#_rank_#.pt", "fsdp_config.json", NULL};
static const char *const verl_settings[] = {"config.json",
                                            "generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "tokenizer.model",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "vocab.txt",
                                            "merges.txt",
                                            "spiece.model",
                                            "chat_template.jinja",
                                            "preprocessor_config.json",
                                            "processor_config.json",
                                            "video_preprocessor_config.json",
                                            NULL};
static const char *const verl_data[] = {"data.pt", NULL};

static const companions table[] = {
    {dcp, "", dcp},
    {dcp, "", dcp_extras},
    {dcp, "..", accelerate_states},
    {olmo, "..", olmo_files},
    {automodel, "..", automodel_files},
    {models, "", saved_with_models},
    {adapters, "", card},
    {deepspeed, "", deepspeed},
    {deepspeed, "", around_deepspeed},
    {deepspeed, "..", around_deepspeed},
    {deepspeed, "..", accelerate_states},
    {models, "global_step#", deepspeed},
    {models, "sharded", sharded},
    {verl, "", verl_files},
    {verl, "huggingface", verl_settings},
    {verl, "..", verl_data},
};

/* Whether a directory is where a row looks for companions of the files in another one. */
static bool is_where(tsr_str directory, tsr_str shown, const char *where)
{
    if (!*where) return tsr_str_equal(directory, shown);
    if (strcmp(where, "..") == 0) return shown.size && tsr_str_equal(directory, tsr_path_directory(shown));
    return directory.size > shown.size && tsr_str_equal(tsr_path_directory(directory), shown) &&
           matches(tsr_last_path_part(directory), where);
}

/* Whether an owned file shows that the framework of a row wrote companions into a directory. */
static bool is_shown(const tsr_str *names, size_t count, const bool *given, const companions *row, tsr_str directory)
{
    for (size_t i = 0; i < count; i++)
        if (given[i] && matches_any(tsr_last_path_part(names[i]), row->shown_by) &&
            is_where(directory, tsr_path_directory(names[i]), row->where))
            return true;
    return false;
}

void tsr_run_own_companions(const tsr_str *names, size_t count, bool *owned)
{
    for (size_t row = 0; row < sizeof table / sizeof *table; row++)
        for (size_t i = 0; i < count; i++)
            if (!owned[i] && matches_any(tsr_last_path_part(names[i]), table[row].names) &&
                is_shown(names, count, owned, &table[row], tsr_path_directory(names[i])))
                owned[i] = true;
}

bool tsr_is_run_data(tsr_str path)
{
    const tsr_str name = tsr_last_path_part(path);
    return matches_any(name, dcp) || matches_any(name, deepspeed) || matches_any(name, verl_files);
}

bool tsr_is_run_list(tsr_str path)
{
    static const char *const lists[] = {"*.metadata", "*.index.json", "metadata.json", "latest", NULL};
    return matches_any(tsr_last_path_part(path), lists);
}

bool tsr_is_run_end(tsr_str path)
{
    static const char *const last[] = {"trainer_state.json", "meta.pt",        "latest_checkpointed_iteration.txt",
                                       "latest_universal",   ".metadata.json", NULL};
    return tsr_is_run_list(path) || matches_any(tsr_last_path_part(path), last);
}

bool tsr_is_run_marker(tsr_str path)
{
    static const char *const markers[] = {".metadata",
                                          "metadata.json",
                                          "*.index.json",
                                          "trainer_state.json",
                                          "meta.pt",
                                          "metadata.pkl",
                                          "model.safetensors",
                                          "pytorch_model.bin",
                                          "adapter_model.safetensors",
                                          "adapter_model.bin",
                                          NULL};
    return matches_any(tsr_last_path_part(path), markers);
}
