/* Code that `tessera` and `tessera-mpi` share: finds the command, parses its arguments by the table of options and runs it. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "io/sys.h"

#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/text.h"

static int unknown_command(const cli *program, const char *name)
{
    const char *words[32];
    size_t count = 0;
    for (const tsr_command *c = tsr_commands; c->name; c++) words[count++] = c->name;
    words[count] = NULL;
    const char *meant = tsr_suggest(name, words, sizeof *words);
    if (meant) return cli_fail(program, "there is no command '%s'; did you mean '%s'?", name, meant);
    return cli_fail(program, "there is no command '%s'; see tessera help", name);
}

const tsr_command *cli_find_command(const cli *program, const char *name)
{
    const tsr_command *command = tsr_command_find(tsr_str_from(name));
    if (!command) unknown_command(program, name);
    return command;
}

static void put_version(void)
{
    tsr_native_parts parts = tsr_native_parts_built();
    printf("tessera %s\n", tsr_version());
    printf("built with: crc32 %s, sha256 %s, xxh3 %s, zstd %s\n", parts.crc32, parts.sha256, parts.xxh3,
           parts.zstd ? parts.zstd : "none");
}

/* A mapped file that is truncated while it is read causes SIGBUS. All that can be done then is to exit with a defined
 * status. */
static void on_bus_error(int signal_number)
{
    (void)signal_number;
    static const char text[] = "tessera: a file shrank or failed while it was read\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(CLI_TROUBLE);
}

static bool begin(cli *program)
{
    tsr_error err = {0};
    program->arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    if (!program->arena) cli_fail(program, "out of memory");
    return program->arena != NULL;
}

static int run(cli *program)
{
    if (program->options.threads > 1 && !tsr_threads_exist())
        return cli_fail(program, "--threads %" PRIu64 ": this program has one thread; leave the option out",
                        program->options.threads);
    return cli_command_of(program->command)->run(program, &program->options);
}

static void end(cli *program)
{
    char warning[1024];
    if (tsr_object_store_take_warning(warning, sizeof warning)) cli_warn(program, "%s", warning);
    cli_free_shards(program);
    tsr_arena_free(program->arena);
    if (program->host_is_open) tsr_native_host_close(&program->native);
    cli_forget_addresses(program);
}

static int run_command(cli *program, int argc, char **argv)
{
    const tsr_command_options *options = &program->options;
    int status = CLI_TROUBLE;
    if (!begin(program)) return status;
    if (cli_parse(program, argc, argv)) {
        program->out = cli_terminal_of(STDOUT_FILENO, options->color);
        program->err = cli_terminal_of(STDERR_FILENO, options->color);
        status = CLI_DONE;
        if (options->help) cli_put_help(program, program->command);
        else if (options->version) put_version();
        else status = run(program);
    }
    end(program);
    return status;
}

int cli_call(const cli_request *request, const cli_caller *caller, uint32_t threads)
{
    cli program = {.caller = caller, .default_threads = threads};
    int status = CLI_TROUBLE;
    cli_signals_leave();
    program.command = cli_find_command(&program, request->command);
    if (!program.command || !begin(&program)) return status;
    program.out = program.err = (cli_terminal){.columns = 80};
    if (cli_take(&program, request)) status = run(&program);
    end(&program);
    return status;
}

int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads)
{
    cli program = {.ranks = ranks, .default_threads = threads};
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ,
           SIG_IGN); /* a file beyond `ulimit -f` is then an error (EFBIG) with a message, after which we clean up */
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
        program.command = first[0] == '-' ? cli_find_command(&program, "help")
                                          : cli_find_command(&program, cli_hide_secrets(&program, first));
        status = program.command ? run_command(&program, argc - 2, argv + 2) : CLI_TROUBLE;
    }
    return cli_finish_stdout(&program, status);
}
