/* The tables of options. They drive parsing (here), help (help.c) and suggestions (tsr_suggest). Options may appear anywhere
 * after the command's name; "--" ends them. */
#include <stdlib.h>

#include "cli/program/cli.h"

#include "tessera/sys/number_text.h"
#include "tessera/sys/suggest.h"

const cli_option cli_global_options[] = {
    {"quiet", 'q', CLI_FLAG, NULL, "Print nothing but errors and results", offsetof(cli_globals, quiet)},
    {"no-progress", 0, CLI_FLAG, NULL, "Do not show the progress line (shown only on a terminal)",
     offsetof(cli_globals, no_progress)},
    {"color", 0, CLI_CHOICE, "auto|always|never", "Use colors; auto respects NO_COLOR and TERM=dumb",
     offsetof(cli_globals, color)},
    {"threads", 0, CLI_COUNT, "N", "Use N threads, at most 256 (default: one per available core; more help with slow files)",
     offsetof(cli_globals, threads)},
    {"io-depth", 0, CLI_COUNT, "N", "Send up to N requests at once when reading from a server (default: 16)",
     offsetof(cli_globals, io_depth)},
    {"no-mpi", 0, CLI_FLAG, NULL, "Run as a single process, ignoring any MPI launcher", offsetof(cli_globals, no_mpi)},
    {"help", 'h', CLI_FLAG, NULL, "Show help for the command", offsetof(cli_globals, help)},
    {"version", 0, CLI_FLAG, NULL, "Show the version and the libraries it was built with", offsetof(cli_globals, version)},
    {0},
};

typedef struct target {
    const cli_option *option;
    char *base; /* the struct that contains option->field */
} target;

static const cli_option *find_long(const cli_option *options, const char *name, size_t size)
{
    for (; options->name; options++) {
        if (strlen(options->name) == size && memcmp(options->name, name, size) == 0) return options;
    }
    return NULL;
}

static const cli_option *find_letter(const cli_option *options, char letter)
{
    for (; options->name; options++) {
        if (options->letter == letter) return options;
    }
    return NULL;
}

static const char *suggest_option(const cli_command *command, const char *wrong)
{
    const char *words[64];
    size_t count = 0;
    for (const cli_option *o = command->options; o->name && count < 50; o++) words[count++] = o->name;
    for (const cli_option *o = cli_global_options; o->name; o++) words[count++] = o->name;
    words[count] = NULL;
    return tsr_suggest(wrong, words, sizeof *words);
}

static target find_option(cli *program, void *arguments, const char *name, size_t size, char letter)
{
    const cli_option *own =
        letter ? find_letter(program->command->options, letter) : find_long(program->command->options, name, size);
    if (own) return (target){own, own->field < CLI_OF_SOURCE ? arguments : (char *)&program->source};
    const cli_option *global = letter ? find_letter(cli_global_options, letter) : find_long(cli_global_options, name, size);
    return (target){global, (char *)&program->globals};
}

static bool store_choice(const cli *program, const cli_option *option, const char *value, unsigned *field)
{
    unsigned number = 1;
    for (const char *word = option->value; word; number++) {
        const char *bar = strchr(word, '|');
        size_t size = bar ? (size_t)(bar - word) : strlen(word);
        if (strlen(value) == size && memcmp(word, value, size) == 0) {
            *field = number;
            return true;
        }
        word = bar ? bar + 1 : NULL;
    }
    cli_fail(program, "--%s takes %s, not '%s'", option->name, option->value, value);
    return false;
}

static bool append(cli_list *list, const char *item, int most)
{
    if (!list->items) list->items = calloc((size_t)most, sizeof *list->items);
    if (!list->items) return false;
    list->items[list->count++] = item;
    return true;
}

static bool store_value(cli *program, target to, const char *value, int argc)
{
    void *field = to.base + to.option->field % CLI_OF_SOURCE;
    char *end;
    cli_real *real = field;
    switch (to.option->kind) {
    case CLI_FLAG: *(bool *)field = true; return true;
    case CLI_TEXT: *(const char **)field = cli_hide_secrets(program, value); return true;
    case CLI_LIST: return append(field, value, argc);
    case CLI_CHOICE: return store_choice(program, to.option, value, field);
    case CLI_BYTES:
        if (tsr_size_parse(value, field)) return true;
        cli_fail(program, "--%s takes a size such as 512MB or 2GiB, not '%s'", to.option->name, value);
        return false;
    case CLI_COUNT:
        *(uint64_t *)field = strtoull(value, &end, 10);
        if (*value >= '1' && *value <= '9' && *end == '\0' && strlen(value) < 19) return true;
        cli_fail(program, "--%s takes a whole number of 1 or more, not '%s'", to.option->name, value);
        return false;
    case CLI_REAL:
        *real = (cli_real){true, strtod(value, &end)};
        if (end != value && *end == '\0' && real->value >= 0) return true;
        cli_fail(program, "--%s takes a number of 0 or more, not '%s'", to.option->name, value);
        return false;
    }
    return false;
}

static const char *why_absent(const cli_command *command, const char *name, size_t size)
{
    for (const cli_absent *a = command->absent; a && a->name; a++)
        if (strlen(a->name) == size && memcmp(a->name, name, size) == 0) return a->why;
    return NULL;
}

/* Reports an option that the command does not have. */
static void fail_unknown(const cli *program, const char *text)
{
    const char *name = text[1] == '-' ? text + 2 : "", *meant = *name ? suggest_option(program->command, name) : NULL;
    const char *why = why_absent(program->command, name, strcspn(name, "="));
    if (why) cli_fail(program, "%s has no option --%.*s: %s", program->command->name, (int)strcspn(name, "="), name, why);
    else if (meant) cli_fail(program, "%s has no option %s; did you mean --%s?", program->command->name, text, meant);
    else cli_fail(program, "%s has no option %s; see tessera help %s", program->command->name, text, program->command->name);
}

/* Parses one argument that begins with a dash. If its value is the next argument, `*at` moves to it. */
static bool parse_option(cli *program, int argc, char **argv, int *at, void *arguments)
{
    const char *text = argv[*at], *value = NULL;
    target to;
    if (text[1] == '-') {
        const char *name = text + 2, *equals = strchr(name, '=');
        to = find_option(program, arguments, name, equals ? (size_t)(equals - name) : strlen(name), 0);
        value = equals ? equals + 1 : NULL;
    } else {
        to = find_option(program, arguments, NULL, 0, text[1]);
        value = text[2] ? text + 2 : NULL;
    }
    if (!to.option) {
        fail_unknown(program, text);
        return false;
    }
    if (to.option->kind == CLI_FLAG) {
        if (value) {
            cli_fail(program, "--%s takes no value", to.option->name);
            return false;
        }
    } else if (!value) {
        if (*at + 1 >= argc) {
            cli_fail(program, "--%s needs a value: %s", to.option->name, to.option->value);
            return false;
        }
        value = argv[++*at];
    }
    return store_value(program, to, value, argc);
}

bool cli_parse(cli *program, int argc, char **argv, void *arguments)
{
    const cli_command *command = program->command;
    bool options = true;
    for (int at = 0; at < argc; at++) {
        if (options && strcmp(argv[at], "--") == 0) options = false;
        else if (options && argv[at][0] == '-' && argv[at][1]) {
            if (!parse_option(program, argc, argv, &at, arguments)) return false;
        } else if (!append(&program->operands, cli_hide_secrets(program, argv[at]), argc)) {
            return false;
        }
    }
    if (program->globals.help || program->globals.version) return true;
    if (program->operands.count < command->least) {
        cli_fail(program, "%s needs %s; see tessera help %s", command->name, command->operands, command->name);
        return false;
    }
    if (program->operands.count > command->most) {
        cli_fail(program, "%s takes %s; unexpected argument '%s'", command->name,
                 *command->operands ? command->operands : "no operands", program->operands.items[command->most]);
        return false;
    }
    return true;
}

void cli_free_lists(const cli_command *command, void *arguments)
{
    for (const cli_option *o = command->options; o->name; o++) {
        if (o->kind == CLI_LIST && o->field < CLI_OF_SOURCE)
            free(((cli_list *)(void *)((char *)arguments + o->field))->items);
    }
}
