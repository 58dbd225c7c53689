/* Reads verl's FSDP checkpoints: model, optimizer and other state, each as one torch.save file per rank. The name of every
 * file states the number of ranks. Source of the names: verl/utils/checkpoint/fsdp_checkpoint_manager.py. */
#include "codec/json.h"
#include "formats/common/majority.h"
#include "formats/common/shown_names.h"
#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

enum { MOST_RANKS = 1 << 20 };

typedef struct kind {
    const char *part;
    const char *before; /* file name up to the number of ranks */
    bool per_rank;      /* listed rank by rank instead of joined */
} kind;
static const kind kinds[] = {{"model", "model_world_size_", false},
                             {"optim", "optim_world_size_", false},
                             {"extra_state", "extra_state_world_size_", true}};

/* The number of ranks in "model_world_size_3_rank_0.pt"; 0 for any other name. */
static uint64_t world_of(tsr_str name, tsr_str before)
{
    uint64_t world = 0;
    size_t at = before.size;
    if (!tsr_str_starts(name, before)) return 0;
    for (; at < name.size && name.data[at] >= '0' && name.data[at] <= '9' && world < MOST_RANKS; at++)
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

/* Sets *world to the number of ranks in fsdp_config.json, or to 0 if it does not exist or states none. */
static tsr_status stated_world(tsr_checkpoint *checkpoint, uint64_t *world, tsr_error *err)
{
    const uint32_t file = tsr_store_find(checkpoint->store, TSR_STR("fsdp_config.json"));
    tsr_bytes text;
    cJSON *root;
    tsr_error why = {0};
    *world = 0;
    if (file == TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    const tsr_status status = tsr_json_parse(text.data, checkpoint->host, &root, &why);
    tsr_bytes_free(&text);
    if (status != TSR_OK) return status == TSR_E_NOMEM ? tsr_fail(err, status, "%s", why.message) : TSR_OK;
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(root, "world_size");
    if (cJSON_IsNumber(stated) && stated->valuedouble >= 1 && stated->valuedouble <= MOST_RANKS)
        *world = (uint64_t)stated->valuedouble;
    cJSON_Delete(root);
    return TSR_OK;
}

/* Recognizes verl by the models' files. If the store is a server that cannot list its files, fsdp_config.json may be the
 * only file known. */
static tsr_status is_verl(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    uint64_t world = find_world(checkpoint->store, &kinds[0]);
    if (!world && checkpoint->store->file_count == 1) TSR_TRY(stated_world(checkpoint, &world, err));
    *is = world > 0;
    return TSR_OK;
}

/* Reports the ranks whose files are missing. */
static tsr_status check_ranks(tsr_checkpoint *checkpoint, const kind *k, uint64_t world, const tsr_numbered_files *files,
                              tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    tsr_str first = {NULL, 0};
    uint32_t at = 0;
    for (uint64_t rank = 0; rank < world; rank++) {
        const bool there = at < files->count && files->items[at].number == rank;
        at += there;
        if (there) continue;
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%s%llu_rank_%llu.pt", k->before,
                                              (unsigned long long)world, (unsigned long long)rank);
        if (!name.data) return TSR_E_NOMEM;
        if (!first.data) first = name;
        TSR_TRY(tsr_checkpoint_implies(checkpoint, name, err));
        if (names.count < TSR_NAMES_SHOWN) tsr_shown_names_add(&names, name);
        else names.count++;
    }
    if (!names.count) return TSR_OK;
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err, "%llu of %llu files %s missing: %s%s; copy them from where the checkpoint was written",
        (unsigned long long)names.count, (unsigned long long)world, names.count == 1 ? "is" : "are", names.text,
        tsr_shown_names_rest(&names));
    return tsr_checkpoint_is_incomplete(checkpoint, first, message, err);
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

/* Joins the ranks' files of a model or optimizer; other state is listed rank by rank. */
static tsr_status mount_files(tsr_checkpoint *checkpoint, const kind *k, const tsr_numbered_files *files, tsr_error *err)
{
    if (!k->per_rank) return tsr_folder_mount_joined(checkpoint, tsr_str_from(k->part), files, err);
    TSR_TRY(tsr_part_begin(checkpoint, tsr_str_from(k->part), false, err));
    return tsr_folder_mount_ranks(checkpoint, files, err);
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
    tsr_numbered_files files;
    uint64_t world = find_world(checkpoint->store, k);
    if (!world && k == kinds) TSR_TRY(stated_world(checkpoint, &world, err));
    if (!world) return imply_first(checkpoint, k, *common, err);
    if (!*common) *common = world;
    TSR_TRY(check_world(checkpoint, k, world, *common, err));
    const tsr_str before = tsr_arena_format(checkpoint->arena, err, "%s%llu_rank_", k->before, (unsigned long long)world);
    if (!before.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_folder_numbered(checkpoint, before.data, ".pt", &files, err));
    TSR_TRY(check_ranks(checkpoint, k, world, &files, err));
    return files.count ? mount_files(checkpoint, k, &files, err) : TSR_OK;
}

static tsr_status mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    uint64_t world = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) TSR_TRY(mount_kind(checkpoint, &kinds[k], &world, err));
    return TSR_OK;
}

static tsr_status open_verl(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount, err);
}

const tsr_reader tsr_reader_verl = {.format = TSR_FORMAT_VERL,
                                    .is_rare = true,
                                    .has_no_metadata = true,
                                    .recognizes = is_verl,
                                    .open = open_verl,
                                    TSR_MOUNTS_READER};
