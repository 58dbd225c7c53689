/* Reads what accelerate's save_state writes under FSDP with sharded state dicts: a numbered DCP directory per model and per
 * optimizer, next to files of the Trainer or of accelerate itself. The names in the DCPs begin with "model." and
 * "optimizer.". Source of the names: accelerate/utils/fsdp_utils.py, constants.py. */
#include "formats/folders/folders.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/try.h"

enum { MOST = 1024 };

typedef struct kind {
    const char *directory; /* without its number */
    const char *part;
} kind;
static const kind kinds[] = {{"pytorch_model_fsdp", "model"}, {"optimizer", "optimizer"}};

static tsr_status is_accelerate(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = tsr_folder_has_directory(checkpoint->store, "pytorch_model_fsdp_0");
    return TSR_OK;
}

/* Mounts a numbered directory. The first one of a kind becomes the part itself. The others become parts with their number in
 * the name, and their entries are put below that name. */
static tsr_status mount_directory(tsr_checkpoint *checkpoint, const kind *k, unsigned number, bool *found, tsr_error *err)
{
    const tsr_str directory = tsr_arena_format(checkpoint->arena, err, "%s_%u", k->directory, number);
    const tsr_str part = number ? tsr_arena_format(checkpoint->arena, err, "%s_%u", k->part, number) : tsr_str_from(k->part);
    if (!directory.data || !part.data) return TSR_E_NOMEM;
    *found = tsr_folder_has_directory(checkpoint->store, directory.data);
    const tsr_str metadata =
        number ? tsr_arena_format(checkpoint->arena, err, "%.*s/.metadata", TSR_STR_ARG(directory)) : TSR_STR("");
    if (!metadata.data) return TSR_E_NOMEM;
    if (!*found) return tsr_checkpoint_implies(checkpoint, metadata, err);
    TSR_TRY(tsr_part_begin(checkpoint, part, number == 0, err));
    return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = directory}, err);
}

/* Files that the Trainer, or accelerate itself, writes next to the DCPs. */
static const char *const by_trainer[] = {"scheduler.pt",    "scaler.pt",         "rng_state.pth",
                                         "rng_state_0.pth", "training_args.bin", NULL};
static const char *const by_accelerate[] = {"scheduler.bin",           "sampler.bin", "scaler.pt", "random_states_0.pkl",
                                            "custom_checkpoint_0.pkl", NULL};
static const char *const by_either[] = {"optimizer_0/.metadata", "trainer_state.json", "random_states_0.pkl", NULL};

/* Starts with files that show which of the two wrote the directory, so that a server is only asked for that one's files. */
static tsr_status imply(tsr_checkpoint *checkpoint, tsr_error *err)
{
    TSR_TRY(tsr_folder_imply(checkpoint, by_either, err));
    if (tsr_folder_has(checkpoint->store, "trainer_state.json")) TSR_TRY(tsr_folder_imply(checkpoint, by_trainer, err));
    if (tsr_folder_has(checkpoint->store, "random_states_0.pkl")) TSR_TRY(tsr_folder_imply(checkpoint, by_accelerate, err));
    return TSR_OK;
}

static tsr_status mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    TSR_TRY(imply(checkpoint, err));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bool found = true;
        for (unsigned number = 0; found && number < MOST; number++)
            TSR_TRY(mount_directory(checkpoint, &kinds[k], number, &found, err));
    }
    return tsr_folder_mount_rest(checkpoint, err);
}

static tsr_status open_accelerate(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount, err);
}

/* Whether `directory` is KIND_NUMBER, and `part` is the name of the part that it becomes. */
static bool is_directory_of(const kind *k, tsr_str directory, tsr_str part)
{
    const tsr_str head = tsr_str_from(k->directory), name = tsr_str_from(k->part);
    if (!tsr_str_starts(directory, head) || !tsr_str_starts(part, name)) return false;
    const tsr_str tail = {directory.data + head.size, directory.size - head.size}, number = {part.data + name.size, part.size - name.size};
    return tsr_str_equal(tail, number.size ? number : TSR_STR("_0")) && !tsr_str_equal(number, TSR_STR("_0"));
}

tsr_status tsr_part_directory(const tsr_store *store, tsr_str part, tsr_str *out, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        *out = store->files[f].name;
        const char *slash = memchr(out->data, '/', out->size);
        if (!slash) continue;
        out->size = (size_t)(slash - out->data);
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (is_directory_of(&kinds[k], *out, part)) return TSR_OK;
    }
    return tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION,
                     "no part '%.*s' has a .metadata of its own; those that do are the directories pytorch_model_fsdp_N and optimizer_N "
                     "of accelerate (model, model_N, optimizer, optimizer_N)",
                     TSR_STR_ARG(part));
}

const tsr_reader tsr_reader_accelerate = {
    .format = TSR_FORMAT_ACCELERATE_FSDP, .is_rare = true, .has_no_metadata = true, .recognizes = is_accelerate, .open = open_accelerate, TSR_MOUNTS_READER};
