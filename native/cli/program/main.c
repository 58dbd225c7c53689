/* Code that `tessera` and `tessera-mpi` share: finds the command, parses its arguments by the table of options and runs it. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/program/cli.h"
#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "io/sys.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/text.h"

/* ---- the command line ---- */

static const tsr_option *find_letter(const tsr_option *const *options, char letter)
{
    while (*options && (*options)->letter != letter) options++;
    return *options;
}

/* Finds an option of the command or of all commands by its name, or by `letter` if that is not 0. */
static const tsr_option *find_option(const cli *program, tsr_str name, char letter)
{
    const tsr_option *const *own = program->command->options, *const *global = tsr_global_options;
    const tsr_option *found = letter ? find_letter(own, letter) : tsr_option_find(own, name);
    if (found) return found;
    return letter ? find_letter(global, letter) : tsr_option_find(global, name);
}

static const char *suggest_option(const tsr_command *command, const char *wrong)
{
    const char *words[64];
    size_t count = 0;
    for (const tsr_option *const *o = command->options; *o && count < 50; o++) words[count++] = (*o)->name;
    for (const tsr_option *const *o = tsr_global_options; *o; o++) words[count++] = (*o)->name;
    words[count] = NULL;
    return tsr_suggest(wrong, words, sizeof *words);
}

static const char *why_absent(const tsr_command *command, tsr_str name)
{
    for (const tsr_absent_option *a = command->absent; a && a->name; a++)
        if (tsr_str_equal(tsr_str_from(a->name), name)) return a->why;
    return NULL;
}

/* Reports an option that the command does not have. */
static void fail_unknown(const cli *program, const char *text)
{
    const char *name = text[0] != '-'   ? text
                       : text[1] == '-' ? text + 2
                                        : "",
               *meant = *name ? suggest_option(program->command, name) : NULL;
    const tsr_str whole = {name, strcspn(name, "=")};
    const char *why = why_absent(program->command, whole);
    if (why) cli_fail(program, "%s has no option --%.*s: %s", program->command->name, TSR_STR_ARG(whole), why);
    else if (meant) cli_fail(program, "%s has no option %s; did you mean --%s?", program->command->name, text, meant);
    else cli_fail(program, "%s has no option %s; see tessera help %s", program->command->name, text, program->command->name);
}

/* Sets an option of the command. Returns false after printing a message. */
static bool set_option(cli *program, const tsr_option *option, const char *value)
{
    tsr_error err = {0};
    /* The paths of --also are opened as they are given. */
    if (value && option->type != TSR_OPTION_TEXTS) value = cli_hide_secrets(program, value);
    if (tsr_option_set(option, value, program->arena, &program->options, &err) == TSR_OK) return true;
    cli_fail(program, "%s", err.message);
    return false;
}

static bool make_operands(cli *program, size_t most)
{
    tsr_error err = {0};
    program->operands.items = tsr_arena_array(program->arena, most, sizeof *program->operands.items, &err);
    if (!program->operands.items) cli_fail(program, "%s", err.message);
    return program->operands.items != NULL;
}

static void add_operand(cli *program, const char *text)
{
    program->operands.items[program->operands.count++] = cli_hide_secrets(program, text);
}

bool cli_check_operands(const cli *program, bool after_first, const char *operands, size_t least, size_t most)
{
    const tsr_texts *given = &program->operands;
    const char *name = program->command->name, *space = after_first ? " " : "", *first = after_first ? given->items[0] : "";
    const size_t count = given->count - after_first;
    if (count < least) cli_fail(program, "%s%s%s needs %s; see tessera help %s", name, space, first, operands, name);
    else if (count > most)
        cli_fail(program, "%s%s%s takes %s; unexpected argument '%s'", name, space, first,
                 *operands ? operands : "no operands", given->items[most + after_first]);
    return least <= count && count <= most;
}

/* Checks what no option alone shows. Returns false after printing a message. */
static bool check_request(const cli *program)
{
    const tsr_command *command = program->command;
    if (!cli_check_operands(program, false, command->operands, command->least, command->most)) return false;
    if (program->options.threads > 1 && !tsr_threads_exist()) {
        cli_fail(program, "--threads %" PRIu64 ": this program has one thread; leave the option out",
                 program->options.threads);
        return false;
    }
    return true;
}

/* Parses one argument that begins with a dash. If its value is the next argument, `*at` moves to it. */
static bool parse_option(cli *program, int argc, char **argv, int *at)
{
    const char *text = argv[*at], *value = NULL;
    const tsr_option *option;
    if (text[1] == '-') {
        const char *name = text + 2, *equals = strchr(name, '=');
        option = find_option(program, (tsr_str){name, equals ? (size_t)(equals - name) : strlen(name)}, 0);
        value = equals ? equals + 1 : NULL;
    } else {
        option = find_option(program, TSR_STR(""), text[1]);
        value = text[2] ? text + 2 : NULL;
    }
    if (!option) {
        fail_unknown(program, text);
        return false;
    }
    if (option->type == TSR_OPTION_FLAG) {
        if (value) {
            cli_fail(program, "--%s takes no value", option->name);
            return false;
        }
    } else if (!value) {
        if (*at + 1 >= argc) {
            cli_fail(program, "--%s needs a value: %s", option->name, option->value);
            return false;
        }
        value = argv[++*at];
    }
    return set_option(program, option, value);
}

/* Parses everything after the command's name into program->options and program->operands. Options may appear anywhere; "--" ends
 * them. Returns false after printing a message; the program then ends with CLI_TROUBLE. The results point into argv. */
static bool parse(cli *program, int argc, char **argv)
{
    bool options = true;
    if (!make_operands(program, (size_t)argc)) return false;
    for (int at = 0; at < argc; at++) {
        if (options && strcmp(argv[at], "--") == 0) options = false;
        else if (options && argv[at][0] == '-' && argv[at][1]) {
            if (!parse_option(program, argc, argv, &at)) return false;
        } else {
            add_operand(program, argv[at]);
        }
    }
    return program->options.help || program->options.version || check_request(program);
}

/* The same for a request that another program makes. The results point into it. */
static bool take(cli *program, const cli_request *request)
{
    if (!make_operands(program, request->operand_count)) return false;
    for (size_t i = 0; i < request->operand_count; i++) add_operand(program, request->operands[i]);
    for (size_t i = 0; i < request->option_count; i++) {
        const tsr_option *option = find_option(program, tsr_str_from(request->options[i].name), 0);
        if (!option) return fail_unknown(program, request->options[i].name), false;
        if (!set_option(program, option, request->options[i].value)) return false;
    }
    program->options.json = program->options.format == 0;
    return check_request(program);
}

/* ---- running a command ---- */

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

static void end(cli *program)
{
    char warning[1024];
    if (tsr_object_store_take_warning(warning, sizeof warning)) cli_warn(program, "%s", warning);
    cli_free_shards(program);
    tsr_arena_free(program->arena);
    if (program->host_is_open) tsr_native_host_close(&program->native);
    cli_forget_addresses(program);
}

/* Reads the properties of the descriptor and the environment (NO_COLOR, TERM, COLUMNS). */
static cli_terminal terminal_of(int fd, unsigned color_choice)
{
    cli_terminal terminal = {isatty(fd) == 1, false, 80};
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR"), *columns = getenv("COLUMNS");
    struct winsize size;
    bool plain = (no_color && *no_color) || !term || strcmp(term, "dumb") == 0;
    terminal.color = color_choice == 2 || (color_choice != 3 && terminal.is_terminal && !plain);
    if (terminal.is_terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.columns = size.ws_col;
    else if (columns && atoi(columns) > 0) terminal.columns = (unsigned)atoi(columns);
    if (terminal.columns < 40) terminal.columns = 40;
    return terminal;
}

static int run_command(cli *program, int argc, char **argv)
{
    const tsr_command_options *options = &program->options;
    int status = CLI_TROUBLE;
    if (!begin(program)) return status;
    if (parse(program, argc, argv)) {
        program->out = terminal_of(STDOUT_FILENO, options->color);
        program->err = terminal_of(STDERR_FILENO, options->color);
        status = CLI_DONE;
        if (options->help) cli_put_help(program, program->command);
        else if (options->version) put_version();
        else status = cli_command_of(program->command)->run(program, options);
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
    if (take(&program, request)) status = cli_command_of(program.command)->run(&program, &program.options);
    end(&program);
    return status;
}

/* Returns `status`, or CLI_TROUBLE after a message if stdout could not be written. A command that failed has said why. */
static int finish_stdout(const cli *program, int status)
{
    errno = 0;
    const bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (!failed || status == CLI_TROUBLE) return status;
    return cli_fail(program, "cannot write to standard output%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
}

/* Reports an option in place of a command. */
static int fail_early_option(const cli *program, const char *text)
{
    static const tsr_option *const no_options[] = {NULL};
    static const tsr_command none = {.options = no_options};
    const char *name = text[1] == '-' ? text + 2 : "";
    const tsr_str whole = {name, strcspn(name, "=")};
    const char *meant = *name && !tsr_option_find(tsr_global_options, whole) ? suggest_option(&none, name) : NULL;
    if (meant) return cli_fail(program, "there is no option %s; did you mean --%s?", text, meant);
    return cli_fail(program, "the command must come first: tessera COMMAND [OPTION]…; see tessera help");
}

int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads)
{
    cli program = {.ranks = ranks, .default_threads = threads};
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ,
           SIG_IGN); /* a file beyond `ulimit -f` is then an error (EFBIG) with a message, after which we clean up */
    program.out = terminal_of(STDOUT_FILENO, 0);
    program.err = terminal_of(STDERR_FILENO, 0);
    const char *first = argc > 1 ? argv[1] : NULL;
    int status;
    if (!first) {
        cli_put_help(&program, NULL);
        status = CLI_TROUBLE;
    } else if (strcmp(first, "--version") == 0 || strcmp(first, "version") == 0) {
        put_version();
        status = CLI_DONE;
    } else if (first[0] == '-' && strcmp(first, "--help") != 0 && strcmp(first, "-h") != 0) {
        status = fail_early_option(&program, first);
    } else {
        program.command = first[0] == '-' ? cli_find_command(&program, "help")
                                          : cli_find_command(&program, cli_hide_secrets(&program, first));
        status = program.command ? run_command(&program, argc - 2, argv + 2) : CLI_TROUBLE;
    }
    return finish_stdout(&program, status);
}
