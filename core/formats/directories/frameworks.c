/* The directories of training frameworks: the rows of their parts, what recognizes them, and what only one framework needs. */
#include "formats/directories/framework.h"

#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#include <string.h>

static const tsr_place nowhere = {{NULL, 0}, TSR_NO_POSITION, {NULL, 0}};

/* ---- what the Trainer of transformers, and accelerate's save_state, write next to a model and an optimizer ---- */

/* The rank that a file of accelerate belongs to by its name, "pytorch_model_fsdp_rank1.bin" or "optimizer_0_rank1.bin"; otherwise
 * TSR_NO_NUMBER. */
static uint64_t accelerate_rank_of(tsr_str name)
{
    const tsr_str mark = TSR_STR("_rank");
    const bool is_accelerates =
        tsr_str_starts(name, TSR_STR("pytorch_model_fsdp_")) || tsr_str_starts(name, TSR_STR("optimizer_"));
    for (size_t at = name.size; is_accelerates && at > mark.size; at--)
        if (memcmp(name.data + at - mark.size, mark.data, mark.size) == 0)
            return tsr_number_in(tsr_str_after(name, at), (tsr_str){"", 0}, TSR_STR(".bin"));
    return TSR_NO_NUMBER;
}

/* For their rows. */
static uint64_t rank_of(tsr_str name)
{
    const uint64_t of_states = tsr_number_in(name, TSR_STR("random_states_"), TSR_STR(".pkl")),
                   of_trainer_rng = tsr_number_in(name, TSR_STR("rng_state_"), TSR_STR(".pth"));
    return of_states != TSR_NO_NUMBER        ? of_states
           : of_trainer_rng != TSR_NO_NUMBER ? of_trainer_rng
                                             : accelerate_rank_of(name);
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
    const bool is_there = directory.size && tsr_has_directory(checkpoint->store, directory);
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
    uint32_t scheduler = tsr_store_find(store, TSR_STR("scheduler.pt"));
    if (scheduler == TSR_NO_FILE) scheduler = tsr_store_find(store, TSR_STR("scheduler.bin"));
    if (scheduler == TSR_NO_FILE || checkpoint->options.part.data || tsr_has_file(store, "latest")) return TSR_OK;
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

/* A single process writes one file of random states, several write one per rank. Objects that a program registered are in
 * custom_checkpoint_N.pkl. */
static const tsr_part_row training_state[] = {
    {.mounts = report_deepspeed},
    {.mounts = check_optimizer},
    {.part = "scheduler", .from = {{TSR_SOURCE_FILE, "scheduler.pt"}, {TSR_SOURCE_FILE, "scheduler.bin"}}},
    {.part = "rng_state",
     .from = {{TSR_SOURCE_RANKS, "rng_state_*.pth"},
              {TSR_SOURCE_RANKS, "random_states_*.pkl"},
              {TSR_SOURCE_FILE, "rng_state.pth"}}},
    {.part = "scaler", .from = {{TSR_SOURCE_FILE, "scaler.pt"}}},
    {.part = "sampler", .from = {{TSR_SOURCE_FILE, "sampler.bin"}}},
    {.part = "dl_state_dict", .from = {{TSR_SOURCE_FILE, "dl_state_dict.bin"}}},
    {.part = "scheduler", .from = {{TSR_SOURCE_EACH, "scheduler_*.bin"}}, .next = "scheduler.bin"},
    {.part = "sampler", .from = {{TSR_SOURCE_EACH, "sampler_*.bin"}}, .next = "sampler.bin"},
    {.part = "dl_state_dict", .from = {{TSR_SOURCE_EACH, "dl_state_dict_*.bin"}}, .next = "dl_state_dict.bin"},
    {.part = "custom_checkpoint", .from = {{TSR_SOURCE_EACH, "custom_checkpoint_*.pkl"}}},
    {.part = "trainer_state", .from = {{TSR_SOURCE_JSON, "trainer_state.json"}}},
    {.part = "training_args", .from = {{TSR_SOURCE_FILE, "training_args.bin"}}},
    {.part = NULL},
};

static const tsr_needed_file trainer_needs[] = {
    {"trainer_state.json", "optimizer.pt",
     "'trainer_state.json' is missing next to 'training_args.bin' and 'optimizer.pt': the Trainer writes it "
     "last, so the save was interrupted, or the file was not copied"},
    {.file = NULL},
};

/* ---- the Trainer: a model as save_pretrained writes it, and the training state next to it. Source of the names:
 * transformers/trainer.py, trainer_utils.py ---- */

/* A model, and then either file: the final model that save_model writes has training_args.bin, but no training state. */
static const char *const trainer_files[] = {TSR_MODEL_NAMES, NULL, "trainer_state.json", "training_args.bin", NULL, NULL};

/* from_pretrained, and the Trainer when it resumes, read these documents before any weights. Whether one must be there cannot be
 * seen: a Trainer of a plain nn.Module writes no config.json. */
static tsr_status check_configs(tsr_checkpoint *checkpoint, tsr_error *err)
{
    static const char *const models[] = {TSR_MODEL_NAMES, NULL}, *const configs[] = {"config.json", "adapter_config.json"};
    const tsr_store *store = checkpoint->store;
    if (checkpoint->options.purpose != TSR_FOR_FINDINGS || store->primary != TSR_NO_FILE || !tsr_has_any(store, models))
        return TSR_OK;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const tsr_str name = tsr_str_from(configs[i]);
        const uint32_t file = tsr_store_find(store, name);
        tsr_error why = {0};
        if (file == TSR_NO_FILE || tsr_part_check_dict(checkpoint, file, &why) == TSR_OK) continue;
        const tsr_place place = {name, why.byte_position, {NULL, 0}};
        TSR_TRY(tsr_finding_add_failure(checkpoint->findings, "file/unreadable", place, &why, err));
    }
    return TSR_OK;
}

static const tsr_part_row trainer_parts[] = {
    {.part = "model", .from = {TSR_MODEL_SOURCES}},
#ifndef TSR_SMALL
    {.mounts = tsr_trained_modules_mount},
#endif
    {.part = "optimizer",
     .from = {{TSR_SOURCE_FILE, "optimizer.pt"},
              {TSR_SOURCE_FILE, "optimizer.bin"},
              {TSR_SOURCE_DCP, "optimizer"},
              {TSR_SOURCE_NAMED, "optimizer_0"}}},
    {.part = NULL},
};

static const char *const by_trainer[] = {"optimizer.pt",    "scheduler.pt",       "scaler.pt",         "rng_state.pth",
                                         "rng_state_0.pth", "trainer_state.json", "training_args.bin", NULL};
static const char *const states[] = {"scheduler.pt", "rng_state.pth", "rng_state_0.pth", NULL};
static const char *const optimizer[] = {"optimizer.pt", NULL};
/* Under FSDP with full state dicts, and under DeepSpeed: only asked for where there is a training state without optimizer.pt. */
static const char *const instead[] = {"optimizer.bin", "latest", NULL};
static const tsr_implied_row trainer_implied[] = {
    {NULL, NULL, by_trainer}, {states, optimizer, instead}, {NULL, NULL, NULL}};

/* ---- accelerate's save_state: with FSDP, a DCP directory, a file, or a file per rank for each model and optimizer; without FSDP, a
 * file for each. Source of the names: accelerate/checkpointing.py, utils/fsdp_utils.py, constants.py ---- */

static const char *const random_states[] = {"random_states_*.pkl", NULL};

/* A model in one file or in one per rank may have any other files next to it, so the training state must be there too. */
static bool has_fsdp_files(const tsr_store *store)
{
    bool model = tsr_has_file(store, "pytorch_model_fsdp.bin"),
         state = tsr_has_file(store, "optimizer.bin") || tsr_has_file(store, "trainer_state.json");
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const bool of_rank = accelerate_rank_of(name) != TSR_NO_NUMBER,
                   is_model = tsr_str_starts(name, TSR_STR("pytorch_model_fsdp"));
        model = model || (of_rank && is_model);
        state = state || (of_rank && !is_model) || tsr_str_starts(name, TSR_STR("optimizer_0/"));
    }
    return model && (state || tsr_has_any(store, random_states));
}

static tsr_status is_fsdp(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    (void)err;
    *is = tsr_has_directory(store, TSR_STR("pytorch_model_fsdp_0")) ||
          (!tsr_has_any(store, trainer_files) && has_fsdp_files(store));
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

/* Adds a finding for accelerate's files next to the DeepSpeed checkpoint of a step, which are not among its parts. May be loaded on demand
 * (wasm/later.txt). */
tsr_status tsr_accelerate_report_beside(tsr_checkpoint *checkpoint, tsr_error *err);
tsr_status tsr_accelerate_report_beside(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *around = checkpoint->given;
    tsr_shown_names names = {.used = 0};
    for (uint32_t f = 0; f < around->file_count; f++)
        if (is_beside_deepspeed(around->files[f].name)) tsr_shown_names_add(&names, around->files[f].name);
    return tsr_finding_add(checkpoint->findings, "parts/left-out", nowhere, err,
                           "%s%s, which accelerate saved next to '%.*s', %s not among the parts; open %s by its path",
                           names.text, tsr_shown_names_rest(&names), TSR_STR_ARG(checkpoint->step),
                           names.count == 1 ? "is" : "are", names.count == 1 ? "it" : "each of them");
}

static tsr_status check_accelerate(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *around = checkpoint->given;
    const bool is_step = around != checkpoint->store && !memchr(checkpoint->step.data, '/', checkpoint->step.size);
    if (!is_step || checkpoint->catalog.format != TSR_FORMAT_DEEPSPEED || checkpoint->options.part.data ||
        !tsr_has_any(around, random_states))
        return TSR_OK;
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    return tsr_accelerate_report_beside(checkpoint, err);
}

/* A program may have accelerate save its models in another way, so an optimizer is enough. */
static const char *const accelerate_files[] = {"random_states_*.pkl", NULL, TSR_MODEL_NAMES, "optimizer.bin", NULL, NULL};

/* The first model and the first optimizer have no number. A program may have accelerate save its models in another way, but then all of
 * them. */
static tsr_status check_first(tsr_checkpoint *checkpoint, tsr_error *err)
{
    static const struct {
        const char *what, *first[5], *second[5];
    } rows[] = {
        {"model",
         {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"},
         {"model_1.safetensors", "model_1.safetensors.index.json", "pytorch_model_1.bin", "pytorch_model_1.bin.index.json"}},
        {"optimizer", {"optimizer.bin"}, {"optimizer_1.bin"}}};
    if (checkpoint->options.part.data) return TSR_OK;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (tsr_has_any(checkpoint->store, rows[r].first)) continue;
        for (size_t i = 0; rows[r].second[i]; i++)
            if (tsr_has_file(checkpoint->store, rows[r].second[i]))
                return tsr_checkpoint_is_incomplete(
                    checkpoint, tsr_str_from(rows[r].first[i]),
                    tsr_arena_format(checkpoint->arena, err,
                                     "'%s' is missing next to '%s', which is the second %s: it was removed or not copied",
                                     rows[r].first[i], rows[r].second[i], rows[r].what),
                    err);
    }
    return TSR_OK;
}

/*   model.safetensors, model_1.safetensors          without FSDP; or pytorch_model.bin, or an index
 *   pytorch_model_fsdp.bin, …_fsdp_1.bin            FULL_STATE_DICT
 *   pytorch_model_fsdp_0/, …_fsdp_1/                SHARDED_STATE_DICT: DCPs whose names begin with "model." and "optimizer."
 *   pytorch_model_fsdp_0_rank1.bin                  the same with one file per rank
 *   pytorch_model_fsdp_rank1.bin, …_1_rank1.bin     LOCAL_STATE_DICT, with optimizers in DCPs */
static const tsr_part_row accelerate_parts[] = {
    {.mounts = check_first},
    {.part = "model",
     .from = {{TSR_SOURCE_NAMED, "pytorch_model_fsdp_#"},
              {TSR_SOURCE_FILE, "model~.safetensors"},
              {TSR_SOURCE_FILE, "model~.safetensors.index.json"},
              {TSR_SOURCE_FILE, "pytorch_model~.bin"},
              {TSR_SOURCE_FILE, "pytorch_model~.bin.index.json"},
              {TSR_SOURCE_FILE, "pytorch_model_fsdp~.bin"},
              {TSR_SOURCE_FILE, "adapter_model~.safetensors"},
              {TSR_SOURCE_FILE, "adapter_model~.bin"},
              {TSR_SOURCE_JOINED, "pytorch_model_fsdp_#_rank*.bin"},
              {TSR_SOURCE_JOINED, "pytorch_model_fsdp_rank*.bin"}}},
    {.part = "optimizer",
     .from = {{TSR_SOURCE_NAMED, "optimizer_#"},
              {TSR_SOURCE_FILE, "optimizer~.bin"},
              {TSR_SOURCE_JOINED, "optimizer_#_rank*.bin"},
              {TSR_SOURCE_JOINED, "optimizer_rank*.bin"}},
     .next = "optimizer~.bin"},
    {.part = NULL},
};

/* The directories may be checkpoints of earlier steps. */
TSR_FRAMEWORK(trainer, TSR_FORMAT_HF_TRAINER, .implied = trainer_implied, .needs = trainer_needs,
              .parts = {trainer_parts, training_state}, .rank_of = rank_of, .left = TSR_LEFT_FILES);
const tsr_directory tsr_directory_trainer = {
    .reader = &tsr_reader_trainer, .requires = trainer_files, .has_no_marker = true, .checks = check_configs};

/* A server is asked for random_states_0.pkl together with the first files. It shows that accelerate wrote the directory. */
static const char *const first_states[] = {"random_states_0.pkl", NULL};
static const char *const of_accelerate[] = {
    "scheduler.bin",           "sampler.bin",       "scaler.pt", "random_states_0.pkl",
    "custom_checkpoint_0.pkl", "dl_state_dict.bin", NULL};
static const char *const of_trainer[] = {"trainer_state.json", NULL};
static const char *const with_trainer[] = {"scheduler.pt",    "scaler.pt",         "rng_state.pth",
                                           "rng_state_0.pth", "training_args.bin", NULL};
static const tsr_implied_row accelerate_implied[] = {{first_states, NULL, of_accelerate},
                                                     {NULL, first_states, of_trainer},
                                                     {of_trainer, first_states, with_trainer},
                                                     {NULL, NULL, NULL}};

TSR_FRAMEWORK(accelerate_fsdp, TSR_FORMAT_ACCELERATE_FSDP, .implied = accelerate_implied, .needs = trainer_needs,
              .parts = {accelerate_parts, training_state}, .rank_of = rank_of, .left = TSR_LEFT_ALL);
const tsr_directory tsr_directory_accelerate_fsdp = {
    .reader = &tsr_reader_accelerate_fsdp, .recognizes = is_fsdp, .has_no_marker = true, .checks = check_accelerate};
TSR_FRAMEWORK(accelerate, TSR_FORMAT_ACCELERATE, .implied = accelerate_implied, .needs = trainer_needs,
              .parts = {accelerate_parts, training_state}, .rank_of = rank_of, .left = TSR_LEFT_ALL);
const tsr_directory tsr_directory_accelerate = {
    .reader = &tsr_reader_accelerate, .requires = accelerate_files, .has_no_marker = true};

/* Whether `directory` is what the pattern "HEAD#" stands for, for the part of the row that is called `part`. */
static bool is_directory_of(const tsr_part_row *row, const char *pattern, tsr_str directory, tsr_str part)
{
    const tsr_str head = {pattern, strcspn(pattern, "#")}, name = tsr_str_from(row->part);
    if (!tsr_str_starts(directory, head) || !tsr_str_starts(part, name)) return false;
    const tsr_str tail = {directory.data + head.size, directory.size - head.size},
                  number = {part.data + name.size, part.size - name.size};
    if (!number.size) return tsr_str_equal(tail, TSR_STR("0"));
    return number.data[0] == '_' && !tsr_str_equal(number, TSR_STR("_0")) && tsr_str_equal(tail, tsr_str_after(number, 1));
}

tsr_status tsr_part_directory(const tsr_store *store, tsr_str part, tsr_str *out, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        *out = store->files[f].name;
        const char *slash = memchr(out->data, '/', out->size);
        if (!slash) continue;
        out->size = (size_t)(slash - out->data);
        for (const tsr_part_row *row = accelerate_parts; row->part || row->mounts; row++)
            for (const tsr_source *from = row->from; from->pattern; from++)
                if (from->form == TSR_SOURCE_NAMED && is_directory_of(row, from->pattern, *out, part)) return TSR_OK;
    }
    return tsr_fail(
        err, TSR_E_NOT_FOUND,
        "no part '%.*s' has a .metadata of its own; those that do are the directories pytorch_model_fsdp_N and optimizer_N "
        "of accelerate (model, model_N, optimizer, optimizer_N)",
        TSR_STR_ARG(part));
}

/* ---- Lightning's distributed checkpoints (ModelParallelStrategy, FSDP with sharded state dicts): a DCP, and meta.pt with everything
 * that is not a tensor, which is written last. Source of the names: lightning/fabric/strategies/model_parallel.py, fsdp.py ---- */

/* Whether the name begins like "optimizer_0.state.…", which is how Lightning names the optimizers of a Trainer. */
static bool is_of_optimizer(tsr_str fqn)
{
    const tsr_str before = TSR_STR("optimizer_");
    size_t at = before.size;
    if (!tsr_str_starts(fqn, before)) return false;
    while (at < fqn.size && tsr_is_digit(fqn.data[at])) at++;
    return at > before.size && at < fqn.size && fqn.data[at] == '.';
}

/* Adds a finding for a DCP with Lightning's names but without meta.pt. */
static tsr_status check_lightning(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    bool weights = false, optimizers = false;
    if (catalog->format != TSR_FORMAT_DCP || checkpoint->is_probe || checkpoint->store->primary != TSR_NO_FILE)
        return TSR_OK;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_str fqn = catalog->entries[i].fqn;
        if (tsr_str_starts(fqn, TSR_STR("state_dict."))) weights = true;
        else if (is_of_optimizer(fqn)) optimizers = true;
        else return TSR_OK;
    }
    if (!weights || !optimizers || tsr_has_file(checkpoint->store, "meta.pt")) return TSR_OK;
    const tsr_str message =
        TSR_STR("'meta.pt' is missing: Lightning writes it last, so the save was interrupted, or the file was not copied");
    return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR("meta.pt"), message, err);
}

static const char *const lightning_files[] = {".metadata", NULL, "meta.pt", NULL, NULL};

static const tsr_part_row lightning_parts[] = {
    {.part = "", .from = {{TSR_SOURCE_ROOT, ".metadata"}}},
    {.part = "meta", .from = {{TSR_SOURCE_FILE, "meta.pt"}}},
    {.part = NULL},
};
TSR_FRAMEWORK(lightning, TSR_FORMAT_LIGHTNING_DIST, .parts = {lightning_parts});
const tsr_directory tsr_directory_lightning = {
    .reader = &tsr_reader_lightning, .requires = lightning_files, .checks = check_lightning};

/* A directory with nothing but meta.pt is what is left of a copy that was interrupted, or that has lost the other files. */
static tsr_status open_only_meta(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_open_without_data(
        checkpoint,
        TSR_STR(
            "'.metadata' and all data files are missing next to 'meta.pt', which Lightning writes last: they were lost, or not "
            "copied; if another program wrote 'meta.pt', name the file itself"),
        err);
}

static const char *const only_meta[] = {"meta.pt", NULL, NULL};
static const tsr_reader reader_of_only_meta = {
    .format = TSR_FORMAT_LIGHTNING_DIST, .is_rare = true, .is_interrupted = true, .open = open_only_meta};
const tsr_directory tsr_directory_lightning_lost = {
    .reader = &reader_of_only_meta, .requires = only_meta, .recognizes = tsr_has_one_file};

/* ---- verl's FSDP checkpoints: model, optimizer and other state, each as one torch.save file per rank. The name of every file states
 * the number of ranks. Source of the names: verl/utils/checkpoint/fsdp_checkpoint_manager.py ---- */

enum { FRAMEWORKS_MOST_RANKS = 1 << 20 };

typedef struct kind {
    const char *part;
    const char *before; /* file name up to the number of ranks */
    tsr_source_form form;
} kind;
static const kind kinds[] = {{"model", "model_world_size_", TSR_SOURCE_JOINED},
                             {"optim", "optim_world_size_", TSR_SOURCE_JOINED},
                             {"extra_state", "extra_state_world_size_", TSR_SOURCE_RANKS}};

/* The number of ranks in "model_world_size_3_rank_0.pt"; 0 for any other name. */
static uint64_t world_of(tsr_str name, tsr_str before)
{
    uint64_t world = 0;
    size_t at = before.size;
    if (!tsr_str_starts(name, before)) return 0;
    for (; at < name.size && tsr_is_digit(name.data[at]) && world < FRAMEWORKS_MOST_RANKS; at++)
        world = world * 10 + (uint64_t)(name.data[at] - '0');
    const tsr_str rest = {name.data + at, name.size - at};
    return tsr_str_starts(rest, TSR_STR("_rank_")) && tsr_str_ends(rest, TSR_STR(".pt")) ? world : 0;
}

/* The number of ranks that most files of a kind state in their names; 0 if there are no such files. */
static uint64_t find_world(const tsr_store *store, const kind *k)
{
    tsr_majority world = {0};
    for (uint32_t f = 0; f < store->file_count; f++)
        tsr_majority_vote(&world, world_of(store->files[f].name, tsr_str_from(k->before)));
    return world.value;
}

/* The first file of a kind whose name states a number of ranks other than `world`, or TSR_NO_FILE. */
static uint32_t find_stranger(const tsr_store *store, const kind *k, uint64_t world)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const uint64_t own = world_of(store->files[f].name, tsr_str_from(k->before));
        if (own && own != world) return f;
    }
    return TSR_NO_FILE;
}

#define VERL_CONFIG "fsdp_config.json"

/* Sets *world to the number of ranks in fsdp_config.json, or to 0 if it does not exist or states none. May be loaded on demand
 * (wasm/later.txt). */
tsr_status tsr_verl_stated_world(tsr_checkpoint *checkpoint, uint64_t *world, tsr_error *err);
tsr_status tsr_verl_stated_world(tsr_checkpoint *checkpoint, uint64_t *world, tsr_error *err)
{
    cJSON *root;
    *world = 0;
    TSR_TRY(tsr_document_read(checkpoint, TSR_STR(VERL_CONFIG), &root, err));
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(root, "world_size");
    if (cJSON_IsNumber(stated) && stated->valuedouble >= 1 && stated->valuedouble <= FRAMEWORKS_MOST_RANKS)
        *world = (uint64_t)stated->valuedouble;
    cJSON_Delete(root);
    return TSR_OK;
}

/* Recognizes verl by the models' files. If the store is a server that cannot list its files, fsdp_config.json may be the
 * only file known. */
static tsr_status is_verl(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    uint64_t world = find_world(checkpoint->store, &kinds[0]);
    *is = world > 0;
    if (*is || checkpoint->store->file_count != 1 || !tsr_has_file(checkpoint->store, VERL_CONFIG)) return TSR_OK;
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    TSR_TRY(tsr_verl_stated_world(checkpoint, &world, err));
    *is = world > 0;
    return TSR_OK;
}

/* Reports a file from a save with another number of ranks: other than most files of its kind, or than the kinds before
 * it. */
static tsr_status check_world(tsr_checkpoint *checkpoint, const kind *k, uint64_t world, uint64_t common, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const uint32_t mixed = find_stranger(store, k, world),
                   stranger = mixed == TSR_NO_FILE ? find_stranger(store, k, common) : mixed;
    if (stranger == TSR_NO_FILE) return TSR_OK;
    const tsr_str name = store->files[stranger].name;
    const tsr_str message = tsr_arena_format(checkpoint->arena, err,
                                             "'%.*s' comes from %llu ranks, but other files from %llu: two saves are mixed",
                                             TSR_STR_ARG(name), (unsigned long long)world_of(name, tsr_str_from(k->before)),
                                             (unsigned long long)(mixed == TSR_NO_FILE ? common : world));
    return message.data ? tsr_checkpoint_is_incomplete(checkpoint, name, message, err) : TSR_E_NOMEM;
}

/* Records rank 0's file of a kind that verl writes only on request. If a server has it, those of the other ranks are found
 * too. */
static tsr_status imply_first(tsr_checkpoint *checkpoint, const kind *k, uint64_t world, tsr_error *err)
{
    const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%s%llu_rank_0.pt", k->before, (unsigned long long)world);
    return name.data ? tsr_checkpoint_implies(checkpoint, name, err) : TSR_E_NOMEM;
}

static tsr_status mount_kind(tsr_checkpoint *checkpoint, const kind *k, uint64_t *common, tsr_error *err)
{
    uint64_t world = find_world(checkpoint->store, k);
    if (!world && k == kinds) TSR_TRY(tsr_verl_stated_world(checkpoint, &world, err));
    if (!world) return imply_first(checkpoint, k, *common, err);
    if (!*common) *common = world;
    TSR_TRY(check_world(checkpoint, k, world, *common, err));
    const tsr_str before = tsr_arena_format(checkpoint->arena, err, "%s%llu_rank_", k->before, (unsigned long long)world);
    if (!before.data) return TSR_E_NOMEM;
    const tsr_ranks_check check = {
        .before = before, .after = TSR_STR(".pt"), .ranks = world, .placed = true, .implies = true};
    return tsr_ranks_mount(checkpoint, tsr_str_from(k->part), k->form, check, err);
}

static tsr_status mount_verl(tsr_checkpoint *checkpoint, tsr_error *err)
{
    uint64_t world = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) TSR_TRY(mount_kind(checkpoint, &kinds[k], &world, err));
    return TSR_OK;
}

static const tsr_part_row verl_parts[] = {{.mounts = mount_verl}, {.part = NULL}};
TSR_FRAMEWORK(verl, TSR_FORMAT_VERL, .parts = {verl_parts});
const tsr_directory tsr_directory_verl = {.reader = &tsr_reader_verl, .recognizes = is_verl, .has_no_marker = true};

/* ---- the package torch_checkpointing: a torch.save file per item and rank ("model_0.pt"), and metadata.pkl, a plain pickle. Source of
 * the names: torch_checkpointing/checkpoint_layout.py, metadata_serialization.py ---- */

/* "model" for a file "model_0.pt" in the root; empty for any other name. */
static tsr_str item_of(tsr_str name)
{
    const tsr_str after = TSR_STR(".pt");
    size_t at = name.size > after.size && tsr_str_ends(name, after) ? name.size - after.size : 0;
    const size_t end = at;
    while (at && tsr_is_digit(name.data[at - 1])) at--;
    const bool is = at > 1 && at < end && name.data[at - 1] == '_' && !memchr(name.data, '/', name.size);
    return is ? (tsr_str){name.data, at - 1} : (tsr_str){NULL, 0};
}

static tsr_status is_torch_checkpointing(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = false;
    for (uint32_t f = 0; f < checkpoint->store->file_count && !*is; f++)
        *is = item_of(checkpoint->store->files[f].name).size > 0;
    return TSR_OK;
}

/* Every rank below the highest one wrote the item, too. */
static tsr_status mount_item(tsr_checkpoint *checkpoint, tsr_str item, tsr_error *err)
{
    const tsr_str before = tsr_arena_format(checkpoint->arena, err, "%.*s_", TSR_STR_ARG(item));
    const tsr_ranks_check check = {.before = before, .after = TSR_STR(".pt")};
    return before.data ? tsr_ranks_mount(checkpoint, item, TSR_SOURCE_JOINED, check, err) : TSR_E_NOMEM;
}

static bool is_earlier(const tsr_store *store, uint32_t before, tsr_str item)
{
    for (uint32_t f = 0; f < before; f++)
        if (tsr_str_equal(item_of(store->files[f].name), item)) return true;
    return false;
}

static tsr_status mount_items(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_str last = {NULL, 0};
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str item = item_of(store->files[f].name);
        if (!item.size || tsr_str_equal(item, last) || is_earlier(store, f, item)) continue;
        last = item;
        TSR_TRY(mount_item(checkpoint, item, err));
    }
    return TSR_OK;
}

static const char *const torch_checkpointing_files[] = {"metadata.pkl", NULL, NULL};

static const tsr_part_row torch_checkpointing_parts[] = {
    {.mounts = mount_items},
    {.part = "metadata", .from = {{TSR_SOURCE_PICKLE, "metadata.pkl"}}},
    {.part = NULL},
};
TSR_FRAMEWORK(torch_checkpointing, TSR_FORMAT_TORCH_CHECKPOINTING, .parts = {torch_checkpointing_parts});
const tsr_directory tsr_directory_torch_checkpointing = {.reader = &tsr_reader_torch_checkpointing,
                                                         .requires = torch_checkpointing_files,
                                                         .recognizes = is_torch_checkpointing,
                                                         .has_no_marker = true};

/* ---- directories of DCPs: a model, an optimizer or a whole trainer in a directory of its own each, with what else belongs to the step.
 * The names are so general that the DCP's .metadata has to be where the framework puts it. ---- */

/* NeMo 2. The weights are Megatron-Core's. Source of the names: nemo/lightning/ckpt_utils.py, io/mixin.py */
static const char *const nemo_files[] = {"weights/.metadata", NULL, "context/io.json", "context/model.yaml", NULL, NULL};
static const tsr_part_row nemo_parts[] = {
    {.part = "model", .from = {{TSR_SOURCE_DCP, "weights"}}},
    {.part = "context", .from = {{TSR_SOURCE_JSON, "context/io.json"}}},
    {.part = NULL},
};
TSR_FRAMEWORK(nemo, TSR_FORMAT_NEMO, .parts = {nemo_parts}, .left = TSR_LEFT_ALL);
const tsr_directory tsr_directory_nemo = {.reader = &tsr_reader_nemo, .requires = nemo_files, .has_no_marker = true};

/* NeMo Automodel. Next to the shards that every rank writes of the model is a script that joins them. Source of the names:
 * nemo_automodel/components/checkpoint/checkpointing.py, recipes/base_recipe.py */
#define AUTOMODEL_UNFINISHED ".incomplete"
static const char *const automodel_files[] = {"optim/.metadata",
                                              AUTOMODEL_UNFINISHED,
                                              NULL,
                                              "model/.metadata",
                                              "model/model.safetensors.index.json",
                                              "model/model.safetensors",
                                              "model/adapter_model.safetensors",
                                              "model/consolidate.sh",
                                              AUTOMODEL_UNFINISHED,
                                              NULL,
                                              "config.yaml",
                                              "losses.json",
                                              AUTOMODEL_UNFINISHED,
                                              NULL,
                                              NULL};
static const tsr_part_row automodel_parts[] = {
    {.part = "model", .from = {{TSR_SOURCE_DCP, "model"}}},
    {.part = "optim", .from = {{TSR_SOURCE_DCP, "optim"}}},
    {.part = "rng",
     .from = {{TSR_SOURCE_RANKS, "rng/rng_global_rank_*.pt"},
              {TSR_SOURCE_RANKS, "rng/rng_dp_rank_*.pt"},
              {TSR_SOURCE_FILE, "rng.pt"}}},
    {.part = "dataloader", .from = {{TSR_SOURCE_RANKS, "dataloader/dataloader_dp_rank_*.pt"}}},
    {.part = "step_scheduler", .from = {{TSR_SOURCE_FILE, "step_scheduler.pt"}}},
    {.part = "lr_scheduler", .from = {{TSR_SOURCE_FILE, "lr_scheduler.pt"}}},
    {.part = NULL},
};
TSR_FRAMEWORK(automodel, TSR_FORMAT_AUTOMODEL, .unfinished = AUTOMODEL_UNFINISHED, .parts = {automodel_parts},
              .left = TSR_LEFT_ALL);
const tsr_directory tsr_directory_automodel = {
    .reader = &tsr_reader_automodel, .requires = automodel_files, .has_no_marker = true};

/* OLMo-core: the names in the DCP, "model.…" and "optim.…", are those of the whole checkpoint. Source of the names:
 * olmo_core/train/checkpoint.py */
static const char *const olmo_files[] = {"model_and_optim/.metadata", NULL, NULL};
static const tsr_part_row olmo_parts[] = {
    {.part = "", .from = {{TSR_SOURCE_NAMED, "model_and_optim"}}},
    {.part = "train", .from = {{TSR_SOURCE_RANKS, "train/rank*.pt"}}},
    {.part = "config", .from = {{TSR_SOURCE_JSON, "config.json"}}},
    {.part = NULL},
};

static const tsr_needed_file olmo_needs[] = {
    {".metadata.json", "train/rank0.pt",
     "'.metadata.json' is missing next to 'train/rank0.pt': OLMo-core writes it last, so the save was interrupted, or the file was "
     "not copied"},
    {"train/rank0.pt", ".metadata.json",
     "'train/rank0.pt' is missing next to '.metadata.json', and OLMo-core finds no checkpoint without it: copy it from where the "
     "checkpoint was written"},
    {.file = NULL},
};
TSR_FRAMEWORK(olmo, TSR_FORMAT_OLMO_CORE, .needs = olmo_needs, .parts = {olmo_parts}, .left = TSR_LEFT_ALL);
const tsr_directory tsr_directory_olmo = {.reader = &tsr_reader_olmo, .requires = olmo_files, .has_no_marker = true};

/* prime-rl. Source of the names: prime_rl/trainer/ckpt.py, orchestrator/ckpt.py */
static const char *const prime_files[] = {"trainer/.metadata", NULL, "orchestrator/progress.pt", NULL, NULL};
static const tsr_part_row prime_parts[] = {
    {.part = "trainer", .from = {{TSR_SOURCE_DCP, "trainer"}}},
    {.part = "orchestrator", .from = {{TSR_SOURCE_FILE, "orchestrator/progress.pt"}}},
    {.part = NULL},
};
TSR_FRAMEWORK(prime, TSR_FORMAT_PRIME_RL, .parts = {prime_parts}, .left = TSR_LEFT_ALL);
const tsr_directory tsr_directory_prime = {.reader = &tsr_reader_prime, .requires = prime_files, .has_no_marker = true};
