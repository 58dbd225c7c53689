/* The descriptors of an output's files. At most MAX_OPEN_FILES are open; to open another one, a file that nobody uses is
 * closed. */
#include "io/locked.h"
#include "publish/folder_output.h"

#include <assert.h>
#include <fcntl.h>

#define MAX_OPEN_FILES 256

void tsr_output_make_room(folder_output *output)
{
    assert(tsr_is_locked(&output->lock));
    if (output->open_files < MAX_OPEN_FILES) return;
    for (uint32_t i = 0; i < output->files.count; i++) {
        output_file *f = tsr_output_file(output, i);
        if (f->fd < 0 || f->users) continue;
        output->sys->close(output->sys, f->fd);
        f->fd = -1;
        output->open_files--;
        return;
    }
}

int tsr_output_open_file(folder_output *output, const char *name)
{
    return tsr_sys_open(output->sys, output->work, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
}

tsr_status tsr_output_take(folder_output *output, uint32_t file, int *fd, const char **name, tsr_error *err)
{
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&output->lock);
    output_file *f = file < output->files.count ? tsr_output_file(output, file) : NULL;
    if (!f) {
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no output file number %u", file);
    } else if (f->fd < 0) {
        tsr_output_make_room(output);
        f->fd = tsr_output_open_file(output, f->temporary);
        if (f->fd < 0) status = tsr_sys_raise(err, "open", f->name);
        else output->open_files++;
    }
    if (status == TSR_OK) {
        f->users++;
        *fd = f->fd;
        *name = f->name;
    }
    pthread_mutex_unlock(&output->lock);
    return status;
}

void tsr_output_give(folder_output *output, uint32_t file)
{
    pthread_mutex_lock(&output->lock);
    assert(tsr_output_file(output, file)->users);
    tsr_output_file(output, file)->users--;
    pthread_mutex_unlock(&output->lock);
}
