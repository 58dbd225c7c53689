/* See folder_output.h. Each directory is listed once, after its parents. */
#include "publish/folder_output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tessera/sys/try.h"

static const char *folder_at(const folder_output *output, size_t i)
{
    return ((const char *const *)output->folders.items)[i];
}

/* Searches from the end, because the files of one directory are usually created one after the other. */
static bool is_noted(const folder_output *output, const char *name, size_t size)
{
    for (size_t i = output->folders.count; i-- > 0;)
        if (strncmp(folder_at(output, i), name, size) == 0 && folder_at(output, i)[size] == '\0') return true;
    return false;
}

/* Makes a directory, or accepts the one that is there. A link could lead out of the output. */
static tsr_status make_at(const folder_output *output, int folder, const char *name, tsr_error *err)
{
    struct stat info;
    if (output->sys->make_folder(output->sys, folder, name, 0777) == 0) return TSR_OK;
    if (errno == EEXIST && output->sys->link_stat_at(output->sys, folder, name, &info) == 0 && S_ISDIR(info.st_mode))
        return TSR_OK;
    return tsr_sys_raise(err, "create", name);
}

static tsr_status make(folder_output *output, const char *name, size_t size, tsr_error *err)
{
    const char *copy = tsr_arena_str(output->arena, (tsr_str){name, size}, err).data;
    const char **noted = copy ? tsr_vec_push(&output->folders, err) : NULL;
    if (!noted) return TSR_E_NOMEM;
    *noted = copy;
    const tsr_status status = make_at(output, output->work, copy, err);
    if (status != TSR_OK) output->folders.count--;
    return status;
}

tsr_status tsr_output_make_subfolders(folder_output *output, const char *name, tsr_error *err)
{
    const char *slash = strchr(name, '/');
    if (slash && output->mode != OUTPUT_NEW_FOLDER && output->options.existing != TSR_EXISTING_EITHER)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "'%s' exists, and a checkpoint with subdirectories can only be written to a new directory",
                         output->name);
    for (; slash; slash = strchr(slash + 1, '/')) {
        if (is_noted(output, name, (size_t)(slash - name))) continue;
        tsr_status status = make(output, name, (size_t)(slash - name), err);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

bool tsr_output_is_subfolder(const folder_output *output, const char *name)
{
    return is_noted(output, name, strlen(name));
}

tsr_status tsr_output_sync_subfolders(const folder_output *output, int folder, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < output->folders.count && status == TSR_OK; i++) {
        const int fd = tsr_sys_open(output->sys, folder, folder_at(output, i), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (fd < 0) return tsr_sys_raise(err, "open", folder_at(output, i));
        status = tsr_sys_sync(output->sys, fd, folder_at(output, i), err);
        output->sys->close(output->sys, fd);
    }
    return status;
}

tsr_status tsr_output_copy_subfolders(const folder_output *output, int folder, tsr_error *err)
{
    for (size_t i = 0; i < output->folders.count; i++) TSR_TRY(make_at(output, folder, folder_at(output, i), err));
    return TSR_OK;
}

void tsr_output_remove_subfolders(const folder_output *output)
{
    for (size_t i = output->folders.count; i-- > 0;)
        output->sys->unlink(output->sys, output->work, folder_at(output, i), true);
}
