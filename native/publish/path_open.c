/* Opening a checkpoint by its path. A server lists no directory, so the data files that a remote checkpoint's metadata names
 * are asked for once it was read, and the checkpoint is opened again over all of them. */
#include "tessera/path.h"

#include "io/try.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/remote.h"
#include "tessera/sys/store_read.h"

/* Copies, because the names belong to the checkpoint that is closed before the store may change. */
static tsr_status copy_names(const tsr_str *names, size_t count, tsr_arena *arena, tsr_str **out, tsr_error *err)
{
    tsr_str *copies = *out = tsr_arena_array(arena, count, sizeof *copies, err);
    if (!copies) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        copies[i] = tsr_arena_str(arena, names[i], err);
        if (!copies[i].data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status open_again(tsr_checkpoint **checkpoint, const tsr_open_options *options, tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_given_store(*checkpoint);
    const tsr_host *host = tsr_checkpoint_host(*checkpoint);
    size_t count, added;
    const tsr_str *missing = tsr_checkpoint_missing(*checkpoint, &count);
    tsr_str *names;
    if (count == 0) return TSR_OK;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? copy_names(missing, count, arena, &names, err) : TSR_E_NOMEM;
    tsr_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    if (status == TSR_OK) status = tsr_remote_store_add(store, host, names, count, &added, err);
    tsr_arena_free(arena);
    return status == TSR_OK ? tsr_checkpoint_open(store, host, options, checkpoint, err) : status;
}

tsr_status tsr_path_open(const char *path, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                         tsr_error *err)
{
    const bool is_remote = tsr_is_address(path);
    tsr_store *store = NULL;
    *out = NULL;
    if (is_remote) TSR_TRY(tsr_remote_store_open(host->allocator, path, &store, err));
    else TSR_TRY(tsr_folder_store_open(NULL, host->allocator, path, &store, err));
    tsr_status status = tsr_checkpoint_open(store, host, options, out, err);
    if (status == TSR_OK && is_remote) status = open_again(out, options, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(*out);
    *out = NULL;
    store->close(store);
    return status;
}

tsr_status tsr_paths_open(const char *const *paths, size_t count, const tsr_host *host, const tsr_open_options *options,
                          tsr_checkpoint **out, tsr_error *err)
{
    tsr_store *store;
    *out = NULL;
    if (count == 1) return tsr_path_open(paths[0], host, options, out, err);
    TSR_TRY(tsr_joined_store_open(host->allocator, paths, count, &store, err));
    const tsr_status status = tsr_checkpoint_open(store, host, options, out, err);
    if (status != TSR_OK) store->close(store);
    return status;
}

void tsr_path_close(tsr_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    tsr_store *store = tsr_checkpoint_given_store(checkpoint);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}

tsr_status tsr_path_load(const char *path, const tsr_host *host, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_store *store;
    tsr_bytes bytes = {0};
    TSR_TRY(tsr_folder_store_open(NULL, host->allocator, path, &store, err));
    const uint32_t file = store->primary;
    tsr_status status = TSR_OK;
    if (file == TSR_NO_FILE) status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%s' is a directory, not a file", path);
    else status = tsr_store_load(store, host, file, 0, store->files[file].size, &bytes, err);
    if (status == TSR_OK) *out = tsr_arena_str(arena, bytes.data, err);
    if (status == TSR_OK && !out->data) status = TSR_E_NOMEM;
    tsr_bytes_free(&bytes);
    store->close(store);
    return status;
}
