/* See out_file.h. */
#include "cli/writing/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/overlap.h"
#include "publish/permissions.h"
#include "publish/stem.h"

#define JOB TSR_STR("one file by -o\n")

static tsr_status refuse(const char *what, const char *path, tsr_error *err)
{
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* Whether a file was written by `layout`, `manifest` or `get`, so that it is not part of a checkpoint. Its content decides,
 * because a name does not show what would be lost. */
static bool is_earlier_output(const char *path)
{
    char head[128] = {0};
    char kind[16];
    int matched = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const size_t size = fread(head, 1, sizeof head - 1, file);
    fclose(file);
    if (tsr_str_starts((tsr_str){head, size}, TSR_STR("\x93NUMPY"))) return true;
    if (sscanf(head, " { \"schema\" : \"tessera.%15[a-z]/1\"%n", kind, &matched) != 1 || !matched) return false;
    return strcmp(kind, "layout") == 0 || strcmp(kind, "manifest") == 0;
}

static tsr_status refuse_source(const char *path, const cli_session *source, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_of(&tsr_allocator_libc);
    tsr_status status = tsr_inputs_add(&inputs, source->store, NULL, err);
    const tsr_input *input = status == TSR_OK ? tsr_inputs_find(&inputs, AT_FDCWD, path) : NULL;
    if (input && !is_earlier_output(path))
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                           "the output '%s' is the file '%s' of the checkpoint that is being read; choose another name",
                           path, input->name);
    tsr_inputs_free(&inputs);
    return status;
}

/* Creates a file in the directory of `place`. If it replaces another one, it is private until it gets that file's
 * permissions. */
static FILE *create_beside(cli_out_file *out, bool exists)
{
    const size_t room = strlen(out->place) + 64;
    const char *slash = strrchr(out->place, '/');
    const int folder = slash ? (int)(slash - out->place + 1) : 0;
    char stem[TSR_STEM_SIZE + 1];
    out->temporary = malloc(room);
    if (!out->temporary) return NULL;
    snprintf(out->temporary, room, "%.*s.%s.tessera-%s", folder, out->place, tsr_stem_of(out->place + folder, stem),
             out->publication.tag);
    const int fd =
        open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, exists ? TSR_PRIVATE_FILE : 0666);
    out->made = fd >= 0;
    return fd >= 0 ? fdopen(fd, "wb") : NULL;
}

static bool remove_unfinished(void *ctx)
{
    const cli_out_file *out = ctx;
    tsr_sys_stop_naming();
    if (out->made) unlink(out->temporary);
    tsr_publication_discard(&out->publication);
    return false;
}

static tsr_status begin(cli_out_file *out, bool exists, tsr_error *err)
{
    const tsr_status status = tsr_publication_begin(&out->publication, JOB, 0, NULL, 0, err);
    if (status != TSR_OK) return status;
    out->to = create_beside(out, exists);
    return out->to ? TSR_OK : refuse("create", out->path, err);
}

/* Creates the journal and the file. A signal can arrive before both exist or when both are recorded, but not in between. */
static tsr_status open_beside(cli_out_file *out, bool exists, tsr_error *err)
{
    tsr_status status = tsr_publication_open(&tsr_allocator_libc, out->place, JOB, &out->publication, err);
    if (status != TSR_OK) return status;
    out->cleanup = (cli_cleanup){.remove = remove_unfinished, .ctx = out};
    cli_cleanup_add(&out->cleanup);
    cli_signals_hold();
    status = begin(out, exists, err);
    if (status != TSR_OK) tsr_publication_close(&out->publication);
    cli_signals_release();
    if (status != TSR_OK) cli_cleanup_drop(&out->cleanup);
    return status;
}

static void free_names(cli_out_file *out)
{
    free(out->place);
    free(out->temporary);
}

tsr_status cli_out_open(const char *path, const cli_session *source, cli_out_file *out, tsr_error *err)
{
    struct stat info;
    *out = (cli_out_file){.path = path};
    if (strcmp(path, "-") == 0) {
        out->to = stdout;
        return TSR_OK;
    }
    const tsr_status refused = refuse_source(path, source, err);
    if (refused != TSR_OK) return refused;
    const bool exists = stat(path, &info) == 0;
    if (exists && !S_ISREG(info.st_mode)) {
        out->to = fopen(path, "wb"); /* fails for a directory, with the reason in errno */
        return out->to ? TSR_OK : refuse("create", path, err);
    }
    out->place = exists ? realpath(path, NULL) : strdup(path);
    const tsr_status status = out->place ? open_beside(out, exists, err) : refuse("create", path, err);
    if (status != TSR_OK) free_names(out);
    return status;
}

static tsr_status give_name(cli_out_file *out, tsr_status status, tsr_error *err)
{
    if (status == TSR_OK) tsr_keep_permissions_of(AT_FDCWD, out->place, fileno(out->to));
    if (fclose(out->to) != 0 && status == TSR_OK) status = refuse("write", out->path, err);
    if (status == TSR_OK && rename(out->temporary, out->place) != 0) status = refuse("rename to", out->path, err);
    if (status != TSR_OK) unlink(out->temporary);
    out->made = false;
    tsr_publication_close(&out->publication);
    return status;
}

tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err)
{
    if (out->to == stdout) return status;
    if (!out->place) return fclose(out->to) != 0 && status == TSR_OK ? refuse("write", out->path, err) : status;
    /* Done here, because signals have to wait below. */
    if (fflush(out->to) != 0 && status == TSR_OK) status = refuse("write", out->path, err);
    cli_signals_hold();
    status = give_name(out, status, err);
    cli_signals_release();
    cli_cleanup_drop(&out->cleanup);
    free_names(out);
    return status;
}
