/* See out_file.h. */
#include "cli/writing/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/overlap.h"

enum { MAX_TRIES = 1000 };

static tsr_status refuse(const char *what, const char *path, tsr_error *err)
{
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* Whether a file was written by `layout`, `manifest` or `get`, which no checkpoint consists of. Its content decides, because a
 * name says nothing about what would be lost. */
static bool is_earlier_output(const char *path)
{
    char head[128] = {0};
    int matched = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const size_t size = fread(head, 1, sizeof head - 1, file);
    fclose(file);
    if (tsr_str_starts((tsr_str){head, size}, TSR_STR("\x93NUMPY"))) return true;
    (void)sscanf(head, " { \"schema\" : \"tessera.layout/1\"%n", &matched);
    return matched > 0;
}

static tsr_status refuse_source(const char *path, const cli_session *source, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_of(&tsr_allocator_libc);
    tsr_status status = tsr_inputs_add(&inputs, source->store, NULL, err);
    const tsr_input *input = status == TSR_OK ? tsr_inputs_find(&inputs, AT_FDCWD, path) : NULL;
    if (input && !is_earlier_output(path))
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                           "the output '%s' is the file '%s' of the checkpoint that is being read; choose another name", path,
                           input->name);
    tsr_inputs_free(&inputs);
    return status;
}

/* A new file in the folder of `place`. */
static FILE *create_beside(cli_out_file *out)
{
    const size_t room = strlen(out->place) + 48;
    const char *slash = strrchr(out->place, '/');
    const int folder = slash ? (int)(slash - out->place + 1) : 0;
    out->temporary = malloc(room);
    for (unsigned tries = 0; out->temporary && tries < MAX_TRIES; tries++) {
        snprintf(out->temporary, room, "%.*s.%.100s.tessera-%u", folder, out->place, out->place + folder,
                 (unsigned)getpid() + tries);
        const int fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        out->made = fd >= 0;
        if (fd >= 0) return fdopen(fd, "wb");
        if (errno != EEXIST) break;
    }
    return NULL;
}

static void remove_unfinished(void *ctx)
{
    const cli_out_file *out = ctx;
    if (out->made) unlink(out->temporary);
}

/* A signal comes before the file is there, or when it is known. */
static FILE *create_guarded(cli_out_file *out)
{
    out->cleanup = (cli_cleanup){.remove = remove_unfinished, .ctx = out};
    cli_cleanup_add(&out->cleanup);
    cli_signals_hold();
    FILE *to = create_beside(out);
    cli_signals_release();
    if (!to) cli_cleanup_drop(&out->cleanup);
    return to;
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
        out->to = fopen(path, "wb"); /* fails for a directory, and errno says why */
    } else {
        out->place = exists ? realpath(path, NULL) : strdup(path);
        out->to = out->place ? create_guarded(out) : NULL;
    }
    if (out->to) return TSR_OK;
    const tsr_status status = refuse("create", path, err);
    free(out->place);
    free(out->temporary);
    return status;
}

tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err)
{
    if (out->to == stdout) return status;
    if (fclose(out->to) != 0 && status == TSR_OK) status = refuse("write", out->path, err);
    if (out->place) {
        cli_signals_hold();
        if (status == TSR_OK && rename(out->temporary, out->place) != 0) status = refuse("rename to", out->path, err);
        if (status != TSR_OK) remove(out->temporary);
        out->made = false;
        cli_signals_release();
        cli_cleanup_drop(&out->cleanup);
    }
    free(out->place);
    free(out->temporary);
    return status;
}
