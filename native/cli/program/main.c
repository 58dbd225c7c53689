/* What `tessera` and `tessera-mpi` have in common: finds the command, parses its arguments by the tables, runs it. */
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/program/launch.h"
#include "cli/program/shards_option.h"
#include "cli/program/term.h"

#include "tessera/sys/collectives.h"
#include "tessera/sys/suggest.h"

/* ---- ranks ---- */

bool cli_speaks(const cli *program)
{
    return !program->ranks || program->ranks->rank == 0;
}

/* What went wrong in the same way everywhere, or at rank 0, which decides for all, is said as by one process. */
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
    message(program, "", CLI_PLAIN, format, arguments);
    va_end(arguments);
    return CLI_TROUBLE;
}

int cli_fail_error(const cli *program, const char *path, const tsr_error *err)
{
    char place[48] = "";
    if (err->byte_position != TSR_NO_POSITION) snprintf(place, sizeof place, " (byte %" PRIu64 ")", err->byte_position);
    const char *text = *err->message ? err->message : tsr_status_name(err->status);
    bool named = !path || strstr(text, path) != NULL;
    return cli_fail(program, "%s%s%s%s", named ? "" : path, named ? "" : ": ", text, place);
}

void cli_warn(const cli *program, const char *format, ...)
{
    if (program->globals.quiet) return;
    va_list arguments;
    va_start(arguments, format);
    message(program, "warning: ", CLI_YELLOW, format, arguments);
    va_end(arguments);
}

void cli_note(const cli *program, const char *format, ...)
{
    if (program->globals.quiet) return;
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
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot write the output");
}

/* ---- program ---- */

const tsr_host *cli_host(cli *program)
{
    if (!program->host_is_open) {
        uint64_t threads = program->globals.threads;
        if (threads == 0) threads = program->default_threads;
        tsr_native_host_open(&program->native, threads < UINT32_MAX ? (uint32_t)threads : 0);
        program->host_is_open = true;
    }
    return &program->native.host;
}

void cli_allow_expansion(cli *program, bool allowed)
{
    cli_host(program);
    if (allowed) program->native.host.limits.repetition = UINT64_MAX;
}

static int unknown_command(const cli *program, const char *name)
{
    const char *words[32];
    size_t count = 0;
    for (const cli_command *const *c = cli_commands; *c; c++) words[count++] = (*c)->name;
    words[count] = NULL;
    const char *meant = tsr_suggest(name, words, sizeof *words);
    if (meant) return cli_fail(program, "there is no command '%s'; did you mean '%s'?", name, meant);
    return cli_fail(program, "there is no command '%s'; see tessera help", name);
}

const cli_command *cli_find_command(const cli *program, const char *name)
{
    for (const cli_command *const *c = cli_commands; *c; c++) {
        if (strcmp((*c)->name, name) == 0) return *c;
    }
    unknown_command(program, name);
    return NULL;
}

static void put_version(void)
{
    tsr_native_parts parts = tsr_native_parts_built();
    printf("tessera %s\n", TSR_VERSION);
    printf("built with: crc32 %s, sha256 %s, xxh3 %s, zstd %s\n", parts.crc32, parts.sha256 ? parts.sha256 : "none",
           parts.xxh3 ? parts.xxh3 : "none", parts.zstd ? parts.zstd : "none");
}

/* A mapped file that is truncated while it is read faults; nothing can be saved then but the exit status. */
static void on_bus_error(int signal_number)
{
    (void)signal_number;
    static const char text[] = "tessera: a file shrank or failed while it was read\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(CLI_TROUBLE);
}

static int run_command(cli *program, int argc, char **argv)
{
    const cli_command *command = program->command;
    void *arguments = calloc(1, command->arguments_size ? command->arguments_size : 1);
    if (!arguments) return cli_fail(program, "out of memory");
    int status = CLI_TROUBLE;
    if (cli_parse(program, argc, argv, arguments)) {
        program->out = cli_terminal_of(STDOUT_FILENO, program->globals.color);
        program->err = cli_terminal_of(STDERR_FILENO, program->globals.color);
        status = CLI_DONE;
        if (program->globals.help) cli_put_help(program, command);
        else if (program->globals.version) put_version();
        else status = command->run(program, arguments);
    }
    cli_free_lists(command, arguments);
    free(arguments);
    free(program->source.also.items);
    cli_free_shards(program);
    free(program->operands.items);
    if (program->host_is_open) tsr_native_host_close(&program->native);
    return status;
}

int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads)
{
    cli program = {.ranks = ranks, .default_threads = threads};
    signal(SIGBUS, on_bus_error);
    program.out = cli_terminal_of(STDOUT_FILENO, 0);
    program.err = cli_terminal_of(STDERR_FILENO, 0);
    const char *first = argc > 1 ? argv[1] : NULL;
    int status;
    if (!first) {
        cli_put_help(&program, NULL);
        status = CLI_TROUBLE;
    } else if (strcmp(first, "--version") == 0 || strcmp(first, "version") == 0) {
        put_version();
        status = CLI_DONE;
    } else if (first[0] == '-' && strcmp(first, "--help") != 0 && strcmp(first, "-h") != 0) {
        status = cli_fail(&program, "the command must come first: tessera COMMAND [OPTION]…; see tessera help");
    } else {
        program.command = first[0] == '-' ? cli_find_command(&program, "help") : cli_find_command(&program, cli_hide_secrets(&program, first));
        status = program.command ? run_command(&program, argc - 2, argv + 2) : CLI_TROUBLE;
    }
    status = cli_finish_stdout(&program, status);
    cli_forget_addresses(&program);
    return status;
}
