/* Every format, in order of precedence. To add one, add a row. */
#include "formats/common/file_names.h"
#include "formats/recognize/recognize.h"

/* Tried in this order. A format whose files other frameworks write as well comes after those. */
const tsr_directory *const tsr_directories[] = {
    &tsr_directory_accelerate_fsdp,
    &tsr_directory_accelerate,
    &tsr_directory_trainer,
    &tsr_directory_verl,
    &tsr_directory_lightning,
    &tsr_directory_deepspeed_universal,
    &tsr_directory_deepspeed,
    &tsr_directory_megatron,
    &tsr_directory_megatron_begun,
#ifndef TSR_SMALL /* the browser's module has no room for it */
    &tsr_directory_lightning_lost,
#endif
    &tsr_directory_shards,
    &tsr_directory_torch_checkpointing,
    &tsr_directory_nemo,
    &tsr_directory_automodel,
    &tsr_directory_olmo,
    &tsr_directory_prime,
    &tsr_directory_diffusers,
#ifndef TSR_SMALL /* the browser's module has no room for it */
    &tsr_directory_sentence,
#endif
    &tsr_directory_dcp_without_metadata,
    &tsr_directory_dcp,
    NULL,
};

const tsr_file_kind *const tsr_file_kinds[] = {&tsr_file_kind_safetensors, &tsr_file_kind_torch, NULL};

/* Sources: _get_resolved_checkpoint_files of transformers, ModelMixin.from_pretrained of diffusers, load_peft_weights of PEFT. */
const tsr_library tsr_libraries[] = {
    {.name = "transformers",
     .models = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"},
     .ignored = "consolidated"},
    {.name = "diffusers",
     .models = {"diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model.safetensors",
                "diffusion_pytorch_model.bin", "diffusion_pytorch_model.bin.index.json"}},
    {.name = "PEFT", .models = {"adapter_model.safetensors", "adapter_model.bin"}},
    {.name = NULL},
};

/* ---- names that the rows know ---- */

bool tsr_is_marked(const tsr_store *store)
{
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->marker && tsr_has_file(store, tsr_directories[i]->marker)) return true;
    return false;
}
