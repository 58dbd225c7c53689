/* Lightning's distributed checkpoints (ModelParallelStrategy, FSDP with sharded state dicts): a DCP, and meta.pt with
 * everything that is not a tensor, which is written last. Source of the names:
 * lightning/fabric/strategies/model_parallel.py, fsdp.py. */
#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

static tsr_status is_lightning(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = tsr_folder_has(checkpoint->store, ".metadata") && tsr_folder_has(checkpoint->store, "meta.pt");
    return TSR_OK;
}

static tsr_status mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    uint32_t *metadata = TSR_ARENA_NEW(checkpoint->arena, uint32_t, err);
    if (!metadata) return TSR_E_NOMEM;
    *metadata = tsr_store_find(checkpoint->store, TSR_STR(".metadata"));
    const tsr_form form = {&tsr_reader_dcp, metadata, 1};
    TSR_TRY(tsr_part_begin(checkpoint, TSR_STR(""), true, err));
    TSR_TRY(tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .form = &form}, err));
    return tsr_folder_mount_file(checkpoint, "meta", tsr_store_find(checkpoint->store, TSR_STR("meta.pt")), err);
}

static tsr_status open_lightning(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount, err);
}

const tsr_reader tsr_reader_lightning = {.format = TSR_FORMAT_LIGHTNING_DIST,
                                         .is_rare = true,
                                         .recognizes = is_lightning,
                                         .open = open_lightning,
                                         TSR_MOUNTS_READER};

/* Whether the name begins like "optimizer_0.state.…", which is how Lightning names the optimizers of a Trainer. */
static bool is_of_optimizer(tsr_str fqn)
{
    const tsr_str before = TSR_STR("optimizer_");
    size_t at = before.size;
    if (!tsr_str_starts(fqn, before)) return false;
    while (at < fqn.size && fqn.data[at] >= '0' && fqn.data[at] <= '9') at++;
    return at > before.size && at < fqn.size && fqn.data[at] == '.';
}

tsr_status tsr_check_lightning(tsr_checkpoint *checkpoint, tsr_error *err)
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
    if (!weights || !optimizers || tsr_folder_has(checkpoint->store, "meta.pt")) return TSR_OK;
    const tsr_str message =
        TSR_STR("'meta.pt' is missing: Lightning writes it last, so the save was interrupted, or the file was not copied");
    return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR("meta.pt"), message, err);
}
