/* Messages of the running program on stderr, which ranks print only once if they are all the same; and the program's
 * host. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/program/cli.h"
#include "cli/program/term.h"

#include "tessera/sys/collectives.h"

/* ---- ranks ---- */

bool cli_speaks(const cli *program)
{
    return !program->ranks || program->ranks->rank == 0;
}

/* An error that is the same on all ranks, or that occurs on rank 0 because it decides for all, is reported as if there were
 * one process. */
tsr_status cli_agree(const cli *program, tsr_status status, tsr_error *err)
{
    tsr_error other = {0};
    uint64_t failed = status != TSR_OK;
    if (!program->ranks) return status;
    if (program->ranks->largest(program->ranks, &failed, &other) != TSR_OK) {
        if (status == TSR_OK) *err = other;
        return err->status;
    }
    if (!failed) return TSR_OK;
    if (tsr_comm_same(program->ranks, tsr_str_from(err->message), "errors", &other) == TSR_OK) return status;
    status = tsr_comm_agree(program->ranks, status, err);
    static const char first[] = "rank 0: ";
    if (tsr_str_starts(tsr_str_from(err->message), TSR_STR(first)))
        memmove(err->message, err->message + sizeof first - 1, strlen(err->message) + 2 - sizeof first);
    return status;
}

/* ---- messages ---- */

static void message(const cli *program, const char *kind, cli_style style, const char *format, va_list arguments)
{
    char text[2048];
    if (!cli_speaks(program)) return;
    vsnprintf(text, sizeof text, format, arguments);
    fflush(stdout);
    fputs("tessera: ", stderr);
    cli_on(&program->err, stderr, style);
    fputs(kind, stderr);
    cli_off(&program->err, stderr);
    cli_put(stderr, tsr_str_from(text));
    fputc('\n', stderr);
}

int cli_fail(const cli *program, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    cli_fail_with(program, format, arguments);
    va_end(arguments);
    return CLI_TROUBLE;
}

void cli_fail_with(const cli *program, const char *format, va_list arguments)
{
    message(program, "", CLI_PLAIN, format, arguments);
}

int cli_fail_error(const cli *program, const char *path, const tsr_error *err)
{
    char place[48] = "", stated[48] = "";
    const char *text = *err->message ? err->message : tsr_status_name(err->status);
    snprintf(stated, sizeof stated, "at byte %" PRIu64 " ", err->byte_position);
    if (err->byte_position != TSR_NO_POSITION && !strstr(text, stated))
        snprintf(place, sizeof place, " (byte %" PRIu64 ")", err->byte_position);
    bool named = !path || strstr(text, path) != NULL;
    return cli_fail(program, "%s%s%s%s", named ? "" : path, named ? "" : ": ", text, place);
}

void cli_warn(const cli *program, const char *format, ...)
{
    if (program->options.quiet) return;
    va_list arguments;
    va_start(arguments, format);
    message(program, "warning: ", CLI_YELLOW, format, arguments);
    va_end(arguments);
}

void cli_note(const cli *program, const char *format, ...)
{
    if (program->options.quiet) return;
    va_list arguments;
    va_start(arguments, format);
    message(program, "note: ", CLI_BLUE, format, arguments);
    va_end(arguments);
}

int cli_finish_stdout(const cli *program, int status)
{
    if (fflush(stdout) != 0 || ferror(stdout)) return cli_fail(program, "cannot write to standard output");
    return status;
}

tsr_status cli_write_file(void *ctx, const char *data, size_t size, tsr_error *err)
{
    if (fwrite(data, 1, size, ctx) == size) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot write the output: %s", strerror(errno));
}

/* ---- host ---- */

const tsr_host *cli_host(cli *program)
{
    if (!program->host_is_open) {
        uint64_t threads = program->options.threads;
        if (threads == 0) threads = program->default_threads;
        tsr_native_host_open(&program->native, threads < UINT32_MAX ? (uint32_t)threads : 0);
        program->native.host.io_depth = program->options.io_depth < UINT32_MAX ? (uint32_t)program->options.io_depth : 0;
        program->host_is_open = true;
    }
    return &program->native.host;
}

void cli_allow_expansion(cli *program, bool allowed)
{
    cli_host(program);
    if (allowed) program->native.host.limits.repetition = UINT64_MAX;
}
