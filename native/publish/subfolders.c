/* See subfolders.h. Each directory is listed once, after its parents. */
#include "publish/subfolders.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

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

static tsr_status make(folder_output *output, const char *name, size_t size, tsr_error *err)
{
    const char *copy = tsr_arena_str(output->arena, (tsr_str){name, size}, err).data;
    const char **noted = copy ? tsr_vec_push(&output->folders, err) : NULL;
    if (!noted) return TSR_E_NOMEM;
    *noted = copy;
    if (output->sys->make_folder(output->sys, output->work, copy, 0777) == 0) return TSR_OK;
    struct stat info; /* a link could lead out of the output */
    if (errno == EEXIST && output->sys->link_stat_at(output->sys, output->work, copy, &info) == 0 && S_ISDIR(info.st_mode))
        return TSR_OK;
    output->folders.count--;
    return tsr_sys_raise(err, "create", copy);
}

tsr_status tsr_output_make_subfolders(folder_output *output, const char *name, tsr_error *err)
{
    const char *slash = strchr(name, '/');
    if (slash && output->mode != OUTPUT_NEW_FOLDER)
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

tsr_status tsr_output_sync_subfolders(const folder_output *output, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < output->folders.count && status == TSR_OK; i++) {
        const int fd = tsr_sys_open(output->sys, output->work, folder_at(output, i), O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (fd < 0) return tsr_sys_raise(err, "open", folder_at(output, i));
        status = tsr_sys_sync(output->sys, fd, folder_at(output, i), err);
        output->sys->close(output->sys, fd);
    }
    return status;
}

void tsr_output_remove_subfolders(const folder_output *output)
{
    for (size_t i = output->folders.count; i-- > 0;)
        output->sys->unlink(output->sys, output->work, folder_at(output, i), true);
}
