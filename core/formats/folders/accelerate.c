/* Recognizes what accelerate's save_state writes: with FSDP, a DCP directory, a file, or a file per rank for each model and
 * optimizer; without FSDP, a file for each. Files of the Trainer or of accelerate itself are next to them. The names in the DCPs
 * begin with "model." and "optimizer.". Source of the names: accelerate/checkpointing.py, utils/fsdp_utils.py, constants.py. */
#include "formats/folders/accelerate.h"
#include "formats/common/shown_names.h"
#include "formats/folders/folders.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

static const char *const full_models[] = {"pytorch_model_fsdp.bin", NULL};

static bool has_random_states(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++)
        if (tsr_folder_number_in(store->files[f].name, "random_states_", ".pkl") != TSR_NO_NUMBER) return true;
    return false;
}

/* A model in one file or in one per rank may have any other files next to it, so the training state must be there too. */
static bool has_fsdp_files(const tsr_store *store)
{
    static const char *const states[] = {"optimizer.bin", "trainer_state.json", NULL};
    bool model = tsr_folder_first(store, full_models) != TSR_NO_FILE, state = tsr_folder_first(store, states) != TSR_NO_FILE;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const bool of_rank = tsr_folder_rank_of(name) != TSR_NO_NUMBER,
                   is_model = tsr_str_starts(name, TSR_STR("pytorch_model_fsdp"));
        model = model || (of_rank && is_model);
        state = state || (of_rank && !is_model) || tsr_str_starts(name, TSR_STR("optimizer_0/"));
    }
    return model && (state || has_random_states(store));
}

static tsr_status is_fsdp(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    (void)err;
    *is = tsr_folder_has_directory(store, "pytorch_model_fsdp_0") ||
          (tsr_folder_first(store, tsr_trainer_models) == TSR_NO_FILE && has_fsdp_files(store));
    return TSR_OK;
}

/* A program may have accelerate save its models in another way, so an optimizer is enough. */
static tsr_status is_plain(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    (void)err;
    *is = has_random_states(store) &&
          (tsr_folder_first(store, tsr_trainer_models) != TSR_NO_FILE || tsr_folder_has(store, "optimizer.bin"));
    return TSR_OK;
}

static bool is_beside_deepspeed(tsr_str name)
{
    static const char *const parts[] = {"random_states_", "scheduler", "sampler",
                                        "dl_state_dict",  "scaler.pt", "custom_checkpoint_"};
    bool is = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !is; i++) is = tsr_str_starts(name, tsr_str_from(parts[i]));
    return is && !memchr(name.data, '/', name.size) &&
           (tsr_str_ends(name, TSR_STR(".bin")) || tsr_str_ends(name, TSR_STR(".pkl")) ||
            tsr_str_ends(name, TSR_STR(".pt")));
}

tsr_status tsr_check_accelerate(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *around = checkpoint->given;
    tsr_shown_names names = {.used = 0};
    const bool is_step = around != checkpoint->store && !memchr(checkpoint->step.data, '/', checkpoint->step.size);
    if (!is_step || checkpoint->catalog.format != TSR_FORMAT_DEEPSPEED || checkpoint->options.part.data ||
        !has_random_states(around))
        return TSR_OK;
    for (uint32_t f = 0; f < around->file_count; f++)
        if (is_beside_deepspeed(around->files[f].name)) tsr_shown_names_add(&names, around->files[f].name);
    return tsr_finding_add(checkpoint->findings, "parts/left-out", (tsr_place){{NULL, 0}, TSR_NO_POSITION, {NULL, 0}}, err,
                           "%s%s, which accelerate saved next to '%.*s', %s not among the parts; open %s by its path",
                           names.text, tsr_shown_names_rest(&names), TSR_STR_ARG(checkpoint->step),
                           names.count == 1 ? "is" : "are", names.count == 1 ? "it" : "each of them");
}

static tsr_status open_accelerate(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, tsr_accelerate_mount, err);
}

/* Whether `directory` is KIND_NUMBER, and `part` is the name of the part that it becomes. */
static bool is_directory_of(const tsr_accelerate_kind *k, tsr_str directory, tsr_str part)
{
    const tsr_str head = tsr_str_from(k->directory), name = tsr_str_from(k->part);
    if (!tsr_str_starts(directory, head) || !tsr_str_starts(part, name)) return false;
    const tsr_str tail = {directory.data + head.size, directory.size - head.size},
                  number = {part.data + name.size, part.size - name.size};
    return tsr_str_equal(tail, number.size ? number : TSR_STR("_0")) && !tsr_str_equal(number, TSR_STR("_0"));
}

tsr_status tsr_part_directory(const tsr_store *store, tsr_str part, tsr_str *out, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        *out = store->files[f].name;
        const char *slash = memchr(out->data, '/', out->size);
        if (!slash) continue;
        out->size = (size_t)(slash - out->data);
        for (const tsr_accelerate_kind *k = tsr_accelerate_kinds; k->part; k++)
            if (is_directory_of(k, *out, part)) return TSR_OK;
    }
    return tsr_fail(
        err, TSR_E_NOT_FOUND,
        "no part '%.*s' has a .metadata of its own; those that do are the directories pytorch_model_fsdp_N and optimizer_N "
        "of accelerate (model, model_N, optimizer, optimizer_N)",
        TSR_STR_ARG(part));
}

const tsr_reader tsr_reader_accelerate = {.format = TSR_FORMAT_ACCELERATE_FSDP,
                                          .is_rare = true,
                                          .has_no_metadata = true,
                                          .recognizes = is_fsdp,
                                          .open = open_accelerate,
                                          TSR_MOUNTS_READER};
const tsr_reader tsr_reader_accelerate_plain = {.format = TSR_FORMAT_ACCELERATE,
                                                .is_rare = true,
                                                .has_no_metadata = true,
                                                .recognizes = is_plain,
                                                .open = open_accelerate,
                                                TSR_MOUNTS_READER};
