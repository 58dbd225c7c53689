/* Mounts what accelerate's save_state writes. Each model and optimizer is in one of four forms:
 *
 *     model.safetensors, model_1.safetensors          without FSDP; or pytorch_model.bin, or an index
 *     pytorch_model_fsdp.bin, …_fsdp_1.bin            FULL_STATE_DICT
 *     pytorch_model_fsdp_0/, …_fsdp_1/                SHARDED_STATE_DICT: DCPs
 *     pytorch_model_fsdp_0_rank1.bin                  the same with one file per rank
 *     pytorch_model_fsdp_rank1.bin, …_1_rank1.bin     LOCAL_STATE_DICT, with optimizers in DCPs */
#include "formats/folders/accelerate.h"

#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

enum { MOST = 1024 };

static const tsr_accelerate_name models[] = {{"model", ".safetensors"},      {"model", ".safetensors.index.json"},
                                             {"pytorch_model", ".bin"},      {"pytorch_model", ".bin.index.json"},
                                             {"pytorch_model_fsdp", ".bin"}, {"adapter_model", ".safetensors"},
                                             {"adapter_model", ".bin"},      {NULL, NULL}};
static const tsr_accelerate_name optimizers[] = {{"optimizer", ".bin"}, {NULL, NULL}};
const tsr_accelerate_kind tsr_accelerate_kinds[] = {
    {"model", "pytorch_model_fsdp", models}, {"optimizer", "optimizer", optimizers}, {NULL, NULL, NULL}};

/* A model or an optimizer, by its number. */
typedef struct source {
    tsr_checkpoint *checkpoint;
    const tsr_accelerate_kind *kind;
    unsigned number;
    tsr_str part;
    /* Which form of a missing file to request from a server: that of the files before it. */
    bool in_directories;
    const tsr_accelerate_name *name;
    tsr_error *err;
} source;

static tsr_status mount_directory(source *s, bool *found)
{
    const tsr_str directory = tsr_arena_format(s->checkpoint->arena, s->err, "%s_%u", s->kind->directory, s->number);
    if (!directory.data) return TSR_E_NOMEM;
    *found = tsr_folder_has_directory(s->checkpoint->store, directory.data);
    if (!*found) return TSR_OK;
    s->in_directories = true;
    TSR_TRY(tsr_part_begin(s->checkpoint, s->part, s->number == 0, s->err));
    return tsr_part_mount(s->checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = directory}, s->err);
}

static tsr_str name_of(const source *s, const tsr_accelerate_name *n)
{
    return s->number ? tsr_arena_format(s->checkpoint->arena, s->err, "%s_%u%s", n->before, s->number, n->after)
                     : tsr_arena_format(s->checkpoint->arena, s->err, "%s%s", n->before, n->after);
}

static tsr_status mount_file(source *s, bool *found)
{
    for (const tsr_accelerate_name *n = s->kind->files; n->before && !*found; n++) {
        const tsr_str name = name_of(s, n);
        if (!name.data) return TSR_E_NOMEM;
        const uint32_t file = tsr_store_find(s->checkpoint->store, name);
        *found = file != TSR_NO_FILE;
        if (!*found) continue;
        s->name = n;
        TSR_TRY(tsr_folder_mount_file(s->checkpoint, s->part.data, file, s->err));
    }
    return TSR_OK;
}

/* Records the name of a model or an optimizer that was not found. */
static tsr_status imply_source(const source *s)
{
    tsr_str name = {NULL, 0};
    if (s->in_directories)
        name = tsr_arena_format(s->checkpoint->arena, s->err, "%s_%u/.metadata", s->kind->directory, s->number);
    else if (s->name) name = name_of(s, s->name);
    else return TSR_OK;
    return name.data ? tsr_checkpoint_implies(s->checkpoint, name, s->err) : TSR_E_NOMEM;
}

static tsr_status mount_ranks(const source *s, bool *found)
{
    tsr_numbered_files files = {0};
    tsr_str before = {NULL, 0};
    for (int local = 0; local < 2 && !files.count; local++) { /* the first model's name in LOCAL_STATE_DICT has no number */
        if (local && s->number) return TSR_OK;
        before = local ? tsr_arena_format(s->checkpoint->arena, s->err, "%s_rank", s->kind->directory)
                       : tsr_arena_format(s->checkpoint->arena, s->err, "%s_%u_rank", s->kind->directory, s->number);
        if (!before.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_folder_numbered(s->checkpoint, before.data, ".bin", &files, s->err));
    }
    *found = files.count > 0;
    if (!*found) return TSR_OK;
    TSR_TRY(tsr_folder_mount_joined(s->checkpoint, s->part, &files, s->err));
    return tsr_folder_check_ranks(s->checkpoint, before.data, ".bin", &files, s->err);
}

static tsr_status mount_source(source *s, bool *found)
{
    *found = false;
    s->part = s->number ? tsr_arena_format(s->checkpoint->arena, s->err, "%s_%u", s->kind->part, s->number)
                        : tsr_str_from(s->kind->part);
    if (!s->part.data) return TSR_E_NOMEM;
    TSR_TRY(mount_directory(s, found));
    if (!*found) TSR_TRY(mount_file(s, found));
    if (!*found) TSR_TRY(mount_ranks(s, found));
    return *found ? TSR_OK : imply_source(s);
}

/* Files that the Trainer, or accelerate itself, writes next to the models and optimizers. */
static const char *const by_trainer[] = {"scheduler.pt",    "scaler.pt",         "rng_state.pth",
                                         "rng_state_0.pth", "training_args.bin", NULL};
static const char *const by_accelerate[] = {
    "scheduler.bin",           "sampler.bin",       "scaler.pt", "random_states_0.pkl",
    "custom_checkpoint_0.pkl", "dl_state_dict.bin", NULL};

/* A server is asked for random_states_0.pkl together with the first files. It shows that accelerate wrote the directory. */
static tsr_status imply(tsr_checkpoint *checkpoint, tsr_error *err)
{
    if (tsr_folder_has(checkpoint->store, "random_states_0.pkl")) return tsr_folder_imply(checkpoint, by_accelerate, err);
    TSR_TRY(tsr_checkpoint_implies(checkpoint, TSR_STR("trainer_state.json"), err));
    return tsr_folder_has(checkpoint->store, "trainer_state.json") ? tsr_folder_imply(checkpoint, by_trainer, err) : TSR_OK;
}

tsr_status tsr_accelerate_mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    source s = {.checkpoint = checkpoint, .err = err};
    TSR_TRY(imply(checkpoint, err));
    for (s.kind = tsr_accelerate_kinds; s.kind->part; s.kind++) {
        bool found = true;
        s.name = s.kind->files == optimizers ? optimizers : NULL;
        for (s.number = 0; found && s.number < MOST; s.number++) TSR_TRY(mount_source(&s, &found));
    }
    TSR_TRY(tsr_folder_mount_rest(checkpoint, err));
    return tsr_folder_report_left(checkpoint, false, err);
}
