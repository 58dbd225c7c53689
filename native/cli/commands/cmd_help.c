/* `tessera help COMMAND`, on the terminal or as a manual page. */
#include "cli/commands/commands.h"
#include "cli/program/cli.h"

static int run(cli *program, const tsr_command_options *arguments)
{
    const tsr_command *command = NULL;
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

const cli_command cli_help = {
    .name = "help",
    .examples = "tessera help\nList all commands\ntessera help convert\nShow how to use convert\n"
                "tessera help formats\nDescribe the documents that options read, with examples\n",
    .run = run,
};
