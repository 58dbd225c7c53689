/* See out_file.h. */
#include "cli/writing/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "publish/replacement.h"
#include "tessera/sys/try.h"

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

/* A FILE that writes to the output (fopencookie). */
static ssize_t write_on(void *ctx, const char *data, size_t size)
{
    cli_out_file *out = ctx;
    tsr_output *output = out->publication.output;
    if (output->write_at(output, out->file, out->size, data, size, &out->failed) != TSR_OK) return 0;
    out->size += size;
    return (ssize_t)size;
}

static tsr_status open_stream(cli_out_file *out, tsr_error *err)
{
    tsr_output *output = out->publication.output;
    TSR_TRY(output->create(output, TSR_STR(""), 0, &out->file, err));
    out->to = fopencookie(out, "wb", (cookie_io_functions_t){.write = write_on});
    return out->to ? TSR_OK : refuse("create", out->path, err);
}

/* `place` is the file itself, not a link to it. */
static tsr_status open_beside(cli_out_file *out, cli *program, const char *place, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    out->arena = tsr_arena_new(host->allocator, 0, err);
    const tsr_str destination = out->arena ? tsr_arena_str(out->arena, tsr_str_from(place), err) : (tsr_str){NULL, 0};
    out->guard = (cli_guard){.program = program};
    out->publication = (tsr_publication){.environment = cli_environment(&out->guard),
                                         .host = host,
                                         .arena = out->arena,
                                         .destination = destination.data,
                                         .line = TSR_STR("one file by -o\n"),
                                         .replaces = true};
    tsr_status status = destination.data ? tsr_publication_open(&out->publication, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_stream(out, err);
    if (status == TSR_OK) return status;
    tsr_publication_close(&out->publication, status);
    tsr_arena_free(out->arena);
    return status;
}

tsr_status cli_out_open(cli *program, const char *path, const cli_session *source, cli_out_file *out, tsr_error *err)
{
    struct stat info;
    *out = (cli_out_file){.path = path};
    if (strcmp(path, "-") == 0) {
        out->to = stdout;
        return TSR_OK;
    }
    TSR_TRY(refuse_source(path, source, err));
    const bool exists = stat(path, &info) == 0;
    if (exists && !S_ISREG(info.st_mode)) {
        out->to = fopen(path, "wb"); /* fails for a directory, with the reason in errno */
        return out->to ? TSR_OK : refuse("create", path, err);
    }
    char *there = exists ? realpath(path, NULL) : NULL;
    const tsr_status status =
        exists && !there ? refuse("create", path, err) : open_beside(out, program, there ? there : path, err);
    free(there);
    return status;
}

tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err)
{
    if (out->to == stdout) return status;
    if (fclose(out->to) != 0 && status == TSR_OK) status = refuse("write", out->path, err);
    if (!out->arena) return status;
    if (out->failed.status != TSR_OK) { /* says why, unlike what the caller made of it */
        *err = out->failed;
        status = err->status;
    }
    if (status == TSR_OK) status = tsr_publication_publish(&out->publication, out->file, err);
    tsr_publication_close(&out->publication, status);
    tsr_arena_free(out->arena);
    return status;
}
