/* See overlap.h. */
#include "publish/overlap.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_files.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

tsr_inputs tsr_inputs_of(const tsr_allocator *allocator)
{
    return (tsr_inputs){tsr_vec_of(allocator, sizeof(tsr_input)), tsr_vec_of(allocator, sizeof(tsr_input))};
}

void tsr_inputs_free(tsr_inputs *inputs)
{
    tsr_vec_free(&inputs->files);
    tsr_vec_free(&inputs->folders);
}

static tsr_status add(tsr_vec *list, uint64_t device, uint64_t inode, const char *name, tsr_error *err)
{
    tsr_input *input = tsr_vec_push(list, err);
    if (!input) return TSR_E_NOMEM;
    *input = (tsr_input){device, inode, name};
    return TSR_OK;
}

static tsr_status add_files(tsr_inputs *inputs, tsr_store *store, const bool *owned, tsr_error *err)
{
    tsr_status status = TSR_OK;
    tsr_file_id id;
    for (uint32_t f = 0; f < store->file_count && status == TSR_OK; f++) {
        if (!tsr_folder_store_identify(store, f, &id) || !(!owned || id.was_read || owned[f])) continue;
        status = add(&inputs->files, id.device, id.inode, store->files[f].name.data, err);
    }
    if (status == TSR_OK && tsr_folder_store_identify(store, TSR_NO_FILE, &id))
        status = add(&inputs->folders, id.device, id.inode, "", err);
    return status;
}

tsr_status tsr_inputs_add(tsr_inputs *inputs, tsr_store *store, tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = inputs->files.allocator;
    if (!checkpoint) return add_files(inputs, store, NULL, err);
    bool *owned = tsr_alloc(allocator, store->file_count, sizeof *owned, err);
    if (!owned) return TSR_E_NOMEM;
    tsr_status status = tsr_checkpoint_own_files(checkpoint, owned, err);
    if (status == TSR_OK) status = add_files(inputs, store, owned, err);
    tsr_free(allocator, owned, store->file_count, sizeof *owned);
    return status;
}

tsr_status tsr_inputs_add_path(tsr_inputs *inputs, const char *path, tsr_error *err)
{
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return TSR_OK;
    return add(&inputs->files, (uint64_t)info.st_dev, (uint64_t)info.st_ino, path, err);
}

static const tsr_input *find(const tsr_vec *list, int folder, const char *path)
{
    struct stat info;
    const tsr_input *inputs = list->items;
    if (fstatat(folder, path, &info, 0) != 0) return NULL;
    for (size_t i = 0; i < list->count; i++)
        if (inputs[i].inode == (uint64_t)info.st_ino && inputs[i].device == (uint64_t)info.st_dev) return &inputs[i];
    return NULL;
}

const tsr_input *tsr_inputs_find(const tsr_inputs *inputs, int folder, const char *path)
{
    return find(&inputs->files, folder, path);
}

const tsr_input *tsr_inputs_find_folder(const tsr_inputs *inputs, int folder, const char *path)
{
    return find(&inputs->folders, folder, path);
}
