/* Reads a checkpoint of the transformers Trainer: a model as save_pretrained writes it, and the training state next to it.
 * trainer_state.json is written last. Source of the file names: transformers/trainer.py, trainer_utils.py. */
#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

static const char *const optimizers[] = {"optimizer.pt", "optimizer.bin", NULL};

/* The final model that save_model writes has training_args.bin, but no training state. */
static tsr_status is_trainer(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    (void)err;
    *is = tsr_folder_first(store, tsr_trainer_models) != TSR_NO_FILE &&
          (tsr_folder_has(store, "trainer_state.json") || tsr_folder_has(store, "training_args.bin"));
    return TSR_OK;
}

static tsr_status mount_optimizer(tsr_checkpoint *checkpoint, tsr_error *err)
{
    static const char *const directories[] = {"optimizer", "optimizer_0"};
    const uint32_t file = tsr_folder_first(checkpoint->store, optimizers);
    if (file != TSR_NO_FILE) return tsr_folder_mount_file(checkpoint, "optimizer", file, err);
    for (size_t i = 0; i < 2; i++) {
        if (!tsr_folder_has_directory(checkpoint->store, directories[i])) continue;
        TSR_TRY(tsr_part_begin(checkpoint, TSR_STR("optimizer"), i == 1, err));
        return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = tsr_str_from(directories[i])},
                              err);
    }
    return TSR_OK;
}

static const char *const written[] = {"optimizer.pt",    "scheduler.pt",       "scaler.pt",         "rng_state.pth",
                                      "rng_state_0.pth", "trainer_state.json", "training_args.bin", NULL};
static const char *const states[] = {"scheduler.pt", "rng_state.pth", "rng_state_0.pth", NULL};
static const char *const instead[] = {"optimizer.bin", "latest",
                                      NULL}; /* under FSDP with full state dicts, and under DeepSpeed */

/* A server is asked for an optimizer by its other names only where there is a training state without optimizer.pt. */
static tsr_status imply(tsr_checkpoint *checkpoint, tsr_error *err)
{
    TSR_TRY(tsr_folder_imply(checkpoint, written, err));
    const bool has_states = tsr_folder_first(checkpoint->store, states) != TSR_NO_FILE;
    return has_states && !tsr_folder_has(checkpoint->store, optimizers[0]) ? tsr_folder_imply(checkpoint, instead, err)
                                                                           : TSR_OK;
}

static tsr_status mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    TSR_TRY(imply(checkpoint, err));
    TSR_TRY(tsr_folder_mount_file(checkpoint, "model", tsr_folder_first(checkpoint->store, tsr_trainer_models), err));
    TSR_TRY(mount_optimizer(checkpoint, err));
    TSR_TRY(tsr_folder_mount_rest(checkpoint, err));
    TSR_TRY(tsr_folder_report_left(checkpoint, true, err)); /* the directories may be checkpoints of earlier steps */
    if (tsr_folder_has(checkpoint->store, "trainer_state.json") || !tsr_folder_has(checkpoint->store, "optimizer.pt"))
        return TSR_OK;
    const tsr_str message = TSR_STR(
        "'trainer_state.json' is missing next to 'training_args.bin' and 'optimizer.pt': the Trainer writes it last, so the "
        "save was interrupted, or the file was not copied");
    return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR("trainer_state.json"), message, err);
}

static tsr_status open_trainer(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount, err);
}

const tsr_reader tsr_reader_trainer = {.format = TSR_FORMAT_HF_TRAINER,
                                       .is_rare = true,
                                       .has_no_metadata = true,
                                       .recognizes = is_trainer,
                                       .open = open_trainer,
                                       TSR_MOUNTS_READER};
