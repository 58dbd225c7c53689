/* Parses the command line by the table of options. */
#include <stdlib.h>

#include "cli/program/cli.h"

#include "tessera/sys/text.h"

const cli_command *cli_command_of(const tsr_command *command)
{
    const cli_command *const *c = cli_commands;
    while (strcmp((*c)->name, command->name) != 0) c++;
    return *c;
}

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

static bool check_operands(const cli *program)
{
    const tsr_command *command = program->command;
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

bool cli_parse(cli *program, int argc, char **argv)
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
    return program->options.help || program->options.version || check_operands(program);
}

bool cli_take(cli *program, const cli_request *request)
{
    if (!make_operands(program, request->operand_count)) return false;
    for (size_t i = 0; i < request->operand_count; i++) add_operand(program, request->operands[i]);
    for (size_t i = 0; i < request->option_count; i++) {
        const tsr_option *option = find_option(program, tsr_str_from(request->options[i].name), 0);
        if (!option) return fail_unknown(program, request->options[i].name), false;
        if (!set_option(program, option, request->options[i].value)) return false;
    }
    program->options.json = program->options.format == 0;
    return check_operands(program);
}
