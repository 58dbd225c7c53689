/* Reads the files that the Trainer of transformers, and accelerate's save_state, write next to a model and an optimizer. */
#include <string.h>

#include "formats/common/marker.h"
#include "formats/folders/folders.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

const char *const tsr_trainer_models[] = {"model.safetensors",
                                          "model.safetensors.index.json",
                                          "pytorch_model.bin",
                                          "pytorch_model.bin.index.json",
                                          "adapter_model.safetensors",
                                          "adapter_model.bin",
                                          NULL};

/* Parts that consist of one file, with the names that the file may have. */
static const struct rest {
    const char *part;
    const char *files[3];
} before_state[] = {{"scheduler", {"scheduler.pt", "scheduler.bin", NULL}},
                    {"scaler", {"scaler.pt", NULL}},
                    {"sampler", {"sampler.bin", NULL}},
                    {"dl_state_dict", {"dl_state_dict.bin", NULL}}};
/* Those of which accelerate may write several. */
static const struct numbered_rest {
    const char *part, *before, *after;
} numbered[] = {{"scheduler", "scheduler_", ".bin"},
                {"sampler", "sampler_", ".bin"},
                {"dl_state_dict", "dl_state_dict_", ".bin"},
                {"custom_checkpoint", "custom_checkpoint_", ".pkl"}}; /* objects that a program registered */
enum { NUMBERED = sizeof numbered / sizeof *numbered };

static tsr_status mount_one(tsr_checkpoint *checkpoint, const struct rest *rest, tsr_error *err)
{
    const uint32_t file = tsr_folder_first(checkpoint->store, rest->files);
    return file == TSR_NO_FILE ? TSR_OK : tsr_folder_mount_file(checkpoint, rest->part, file, err);
}

/* Random states. A single process writes one file, several processes write one per rank. */
static tsr_status mount_random(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const uint32_t single = tsr_store_find(checkpoint->store, TSR_STR("rng_state.pth"));
    tsr_numbered_files ranks;
    TSR_TRY(tsr_folder_numbered(checkpoint, "rng_state_", ".pth", &ranks, err));
    const bool by_accelerate = ranks.count == 0;
    if (by_accelerate) TSR_TRY(tsr_folder_numbered(checkpoint, "random_states_", ".pkl", &ranks, err));
    if (ranks.count) {
        TSR_TRY(tsr_part_begin(checkpoint, TSR_STR("rng_state"), false, err));
        TSR_TRY(tsr_folder_mount_ranks(checkpoint, &ranks, err));
        return tsr_folder_check_ranks(checkpoint, by_accelerate ? "random_states_" : "rng_state_",
                                      by_accelerate ? ".pkl" : ".pth", &ranks, err);
    }
    return single == TSR_NO_FILE ? TSR_OK : tsr_folder_mount_file(checkpoint, "rng_state", single, err);
}

static tsr_status mount_numbered(tsr_checkpoint *checkpoint, const struct numbered_rest *rest, tsr_error *err)
{
    tsr_numbered_files files;
    TSR_TRY(tsr_folder_numbered(checkpoint, rest->before, rest->after, &files, err));
    for (uint32_t i = 0; i < files.count; i++) {
        const tsr_str name =
            tsr_arena_format(checkpoint->arena, err, "%s_%llu", rest->part, (unsigned long long)files.items[i].number);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_folder_mount_file(checkpoint, name.data, files.items[i].file, err));
    }
    return TSR_OK;
}

tsr_status tsr_folder_imply(tsr_checkpoint *checkpoint, const char *const *names, tsr_error *err)
{
    for (; *names; names++) TSR_TRY(tsr_checkpoint_implies(checkpoint, tsr_str_from(*names), err));
    return TSR_OK;
}

/* Records as many further numbers as there are files, after the highest one. So the files of many ranks are found in a few
 * rounds, each of which doubles their number. */
static tsr_status imply_next(tsr_checkpoint *checkpoint, const char *before, const char *after, tsr_error *err)
{
    tsr_numbered_files files;
    TSR_TRY(tsr_folder_numbered(checkpoint, before, after, &files, err));
    if (files.count == 0 || files.items[files.count - 1].number >= files.count) return TSR_OK;
    for (uint32_t i = files.count; i < 2 * files.count; i++) {
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%s%u%s", before, i, after);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(checkpoint, name, err));
    }
    return TSR_OK;
}

/* Records the name after the last one where there is a first one: "scheduler_1.bin" after "scheduler.bin". */
static tsr_status imply_second(tsr_checkpoint *checkpoint, const struct numbered_rest *rest, tsr_error *err)
{
    tsr_numbered_files files;
    const tsr_str first = tsr_arena_format(checkpoint->arena, err, "%s%s", rest->part, rest->after);
    if (!first.data) return TSR_E_NOMEM;
    if (tsr_store_find(checkpoint->store, first) == TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_folder_numbered(checkpoint, rest->before, rest->after, &files, err));
    const uint64_t next = files.count ? files.items[files.count - 1].number + 1 : 1;
    const tsr_str name =
        tsr_arena_format(checkpoint->arena, err, "%s%llu%s", rest->before, (unsigned long long)next, rest->after);
    return name.data ? tsr_checkpoint_implies(checkpoint, name, err) : TSR_E_NOMEM;
}

static tsr_status imply_numbered(tsr_checkpoint *checkpoint, tsr_error *err)
{
    for (size_t i = 0; i < NUMBERED; i++) TSR_TRY(imply_second(checkpoint, &numbered[i], err));
    TSR_TRY(imply_next(checkpoint, "rng_state_", ".pth", err));
    TSR_TRY(imply_next(checkpoint, "random_states_", ".pkl", err));
    return imply_next(checkpoint, "custom_checkpoint_", ".pkl", err);
}

static const char *const of_engine[] = {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"};

/* Reads the name in DeepSpeed's marker. Empty if there is none, or if the store has no files of that directory. */
static tsr_status read_latest(tsr_checkpoint *checkpoint, tsr_str *directory, tsr_error *err)
{
    const uint32_t marker = tsr_store_find(checkpoint->store, TSR_STR("latest"));
    *directory = (tsr_str){NULL, 0};
    if (marker != TSR_NO_FILE) TSR_TRY(tsr_marker_read(checkpoint, marker, directory, err));
    if (!directory->size || directory->data[0] == '.') return TSR_OK;
    for (size_t i = 0; i < sizeof of_engine / sizeof *of_engine; i++) {
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%.*s/%s", TSR_STR_ARG(*directory), of_engine[i]);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(checkpoint, name, err));
    }
    return TSR_OK;
}

/* Under DeepSpeed the Trainer writes 16-bit weights next to the engine's checkpoint, which has float32 weights and the states of the
 * optimizer. The directory is opened for the Trainer's files, so this reports what is left out, unless a part was requested. */
static tsr_status report_deepspeed(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_str directory;
    TSR_TRY(read_latest(checkpoint, &directory, err));
    const bool is_there = directory.size && tsr_folder_has_directory(checkpoint->store, directory.data);
    if (!is_there || checkpoint->options.part.size) return TSR_OK;
    return tsr_finding_add(
        checkpoint->findings, "parts/left-out", (tsr_place){TSR_STR("latest"), TSR_NO_POSITION, {NULL, 0}}, err,
        "DeepSpeed's checkpoint '%.*s', with the float32 weights and the optimizer states, is not among the parts; open "
        "it with --step %.*s",
        TSR_STR_ARG(directory), TSR_STR_ARG(directory));
}

/* Both write a scheduler's state only together with an optimizer's, and the Trainer then restores neither. DeepSpeed stores the
 * optimizer elsewhere. */
static tsr_status check_optimizer(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const uint32_t scheduler = tsr_folder_first(store, before_state[0].files);
    if (scheduler == TSR_NO_FILE || checkpoint->options.part.data || tsr_folder_has(store, "latest")) return TSR_OK;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (tsr_str_starts(store->files[f].name, TSR_STR("optimizer"))) return TSR_OK;
    const tsr_str name = store->files[scheduler].name;
    return tsr_finding_add_at(
        checkpoint->findings, (tsr_rated_rule){"parts/incomplete-save", TSR_WARNING},
        (tsr_place){name, TSR_NO_POSITION, {NULL, 0}}, err,
        "'%.*s' was written together with the state of an optimizer, which is not there: it was removed or "
        "not copied, so training would begin with a new optimizer",
        TSR_STR_ARG(name));
}

tsr_status tsr_folder_mount_rest(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const uint32_t state = tsr_store_find(store, TSR_STR("trainer_state.json")),
                   arguments = tsr_store_find(store, TSR_STR("training_args.bin"));
    TSR_TRY(report_deepspeed(checkpoint, err));
    TSR_TRY(imply_numbered(checkpoint, err));
    TSR_TRY(check_optimizer(checkpoint, err));
    TSR_TRY(mount_one(checkpoint, &before_state[0], err));
    TSR_TRY(mount_random(checkpoint, err));
    for (size_t i = 1; i < sizeof before_state / sizeof *before_state; i++)
        TSR_TRY(mount_one(checkpoint, &before_state[i], err));
    for (size_t i = 0; i < NUMBERED; i++) TSR_TRY(mount_numbered(checkpoint, &numbered[i], err));
    if (state != TSR_NO_FILE) {
        TSR_TRY(tsr_part_begin(checkpoint, TSR_STR("trainer_state"), false, err));
        TSR_TRY(tsr_part_mount_value(checkpoint, state, TSR_FORMAT_JSON, err));
    }
    return arguments == TSR_NO_FILE ? TSR_OK : tsr_folder_mount_file(checkpoint, "training_args", arguments, err);
}
