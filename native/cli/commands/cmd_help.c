/* `tessera help COMMAND`, on the terminal or as a manual page. */
#include "cli/commands/commands.h"
#include "cli/program/cli.h"

typedef struct help_arguments {
    bool man;
} help_arguments;

static int run(cli *program, const void *given)
{
    const help_arguments *arguments = given;
    const cli_command *command = NULL;
    if (program->operands.count && strcmp(program->operands.items[0], "formats") == 0) {
        if (arguments->man) cli_put_formats_man();
        else cli_put_formats(program);
        return CLI_DONE;
    }
    if (program->operands.count && !(command = cli_find_command(program, program->operands.items[0]))) return CLI_TROUBLE;
    if (arguments->man) cli_put_man(command);
    else cli_put_help(program, command);
    return CLI_DONE;
}

static const cli_option options[] = {
    {"man", 0, CLI_FLAG, NULL, "Print a manual page: tessera help --man COMMAND | man -l -", offsetof(help_arguments, man)},
    {0},
};

const cli_command cli_help = {
    .name = "help",
    .summary = "Show how to use a command, starting with examples",
    .operands = "[COMMAND|formats]",
    .least = 0,
    .most = 1,
    .examples = "tessera help\nList all commands\ntessera help convert\nShow how to use convert\n"
                "tessera help formats\nDescribe the documents that options read, with examples\n",
    .options = options,
    .arguments_size = sizeof(help_arguments),
    .run = run,
};
