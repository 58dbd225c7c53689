/* Checkpoints of the package torch_checkpointing: a torch.save file per item and rank ("model_0.pt"), and metadata.pkl, a plain
 * pickle. Source of the names: torch_checkpointing/checkpoint_layout.py, metadata_serialization.py. */
#include "formats/common/shown_names.h"
#include "formats/folders/folders.h"
#include "tessera/sys/try.h"

#define METADATA "metadata.pkl"

/* "model" for a file "model_0.pt" in the root; empty for any other name. */
static tsr_str item_of(tsr_str name)
{
    const tsr_str after = TSR_STR(".pt");
    size_t at = name.size > after.size && tsr_str_ends(name, after) ? name.size - after.size : 0;
    const size_t end = at;
    while (at && name.data[at - 1] >= '0' && name.data[at - 1] <= '9') at--;
    const bool is = at > 1 && at < end && name.data[at - 1] == '_' && !memchr(name.data, '/', name.size);
    return is ? (tsr_str){name.data, at - 1} : (tsr_str){NULL, 0};
}

static tsr_status is_torch_checkpointing(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = false;
    for (uint32_t f = 0; f < checkpoint->store->file_count && !*is; f++)
        *is = item_of(checkpoint->store->files[f].name).size > 0;
    *is = *is && tsr_folder_has(checkpoint->store, METADATA);
    return TSR_OK;
}

/* Reports missing files: every rank below the highest one must have written the item, too. */
static tsr_status check_ranks(tsr_checkpoint *checkpoint, tsr_str item, const tsr_numbered_files *files, tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    const uint64_t ranks = files->items[files->count - 1].number + 1;
    uint32_t at = 0;
    for (uint64_t rank = 0; rank < ranks && names.count < TSR_NAMES_SHOWN; rank++) {
        if (files->items[at].number == rank) {
            at++;
            continue;
        }
        const tsr_str name =
            tsr_arena_format(checkpoint->arena, err, "%.*s_%llu.pt", TSR_STR_ARG(item), (unsigned long long)rank);
        if (!name.data) return TSR_E_NOMEM;
        tsr_shown_names_add(&names, name);
    }
    if (ranks == files->count) return TSR_OK;
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err, "%llu of %llu files %s missing: %s%s; copy them from where the checkpoint was written",
        (unsigned long long)(ranks - files->count), (unsigned long long)ranks, ranks - files->count == 1 ? "is" : "are",
        names.text, tsr_shown_names_rest(&names));
    return tsr_checkpoint_is_incomplete(checkpoint, (tsr_str){NULL, 0}, message, err);
}

static tsr_status mount_item(tsr_checkpoint *checkpoint, tsr_str item, tsr_error *err)
{
    tsr_numbered_files files;
    const tsr_str before = tsr_arena_format(checkpoint->arena, err, "%.*s_", TSR_STR_ARG(item));
    if (!before.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_folder_numbered(checkpoint, before.data, ".pt", &files, err));
    if (!files.count) return TSR_OK;
    TSR_TRY(check_ranks(checkpoint, item, &files, err));
    return tsr_folder_mount_joined(checkpoint, item, &files, err);
}

static bool is_earlier(const tsr_store *store, uint32_t before, tsr_str item)
{
    for (uint32_t f = 0; f < before; f++)
        if (tsr_str_equal(item_of(store->files[f].name), item)) return true;
    return false;
}

static tsr_status mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_str last = {NULL, 0};
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str item = item_of(store->files[f].name);
        if (!item.size || tsr_str_equal(item, last) || is_earlier(store, f, item)) continue;
        last = item;
        TSR_TRY(mount_item(checkpoint, item, err));
    }
    TSR_TRY(tsr_part_begin(checkpoint, TSR_STR("metadata"), false, err));
    return tsr_part_mount_value(checkpoint, tsr_store_find(store, TSR_STR(METADATA)), TSR_FORMAT_PICKLE, err);
}

static tsr_status open_torch_checkpointing(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount, err);
}

const tsr_reader tsr_reader_torch_checkpointing = {.format = TSR_FORMAT_TORCH_CHECKPOINTING,
                                                   .is_rare = true,
                                                   .has_no_metadata = true,
                                                   .recognizes = is_torch_checkpointing,
                                                   .open = open_torch_checkpointing,
                                                   TSR_MOUNTS_READER};
