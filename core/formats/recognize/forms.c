/* The directory formats of training frameworks. To add one, add a line here. */
#include "formats/folders/folders.h"
#include "formats/recognize/recognize.h"
#include "formats/shards/shards_files.h"
#include "tessera/sys/try.h"

/* Tried in this order. A format whose files other frameworks write as well comes after those. */
static const tsr_reader *const forms[] = {
    &tsr_reader_accelerate,
    &tsr_reader_accelerate_plain,
    &tsr_reader_trainer,
    &tsr_reader_verl,
    &tsr_reader_lightning,
    &tsr_reader_deepspeed_universal,
    &tsr_reader_deepspeed,
    &tsr_reader_megatron,
    &tsr_reader_shards,
    &tsr_reader_torch_checkpointing,
    NULL,
};

tsr_status tsr_form_of_directory(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err)
{
    /* If there is .metadata, the last save into the directory was a DCP, whatever other files it has. Other formats never
     * have .metadata in their root, except those that are based on DCP. */
    const bool is_dcp = tsr_folder_has(checkpoint->store, ".metadata");
    *reader = NULL;
    for (size_t i = 0; forms[i]; i++) {
        bool is = false;
        if (is_dcp && forms[i]->has_no_metadata) continue;
        TSR_TRY(forms[i]->recognizes(checkpoint, &is, err));
        if (!is) continue;
        *reader = forms[i];
        break;
    }
    return TSR_OK;
}
