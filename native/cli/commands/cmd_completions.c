/* `tessera completions SHELL`: prints the script with which a shell completes commands, options and their values. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/help.h"
#include "cli/program/session.h"

#include "tessera/sys/text.h"

enum { MOST_NAMES = 1000 };

/* Whether a name consists of visible characters only, so that it can be typed and a shell can show it. */
static bool is_visible(tsr_str name)
{
    size_t at = 0, length = 1;
    for (; at < name.size && length; at += length) length = tsr_str_visible((tsr_str){name.data + at, name.size - at});
    return name.size && length;
}

/* `tessera completions names PATH PREFIX`, which the scripts call while someone types `tessera get PATH …`. Prints nothing
 * on an error. */
static void put_names(cli *program)
{
    tsr_error err = {0};
    cli_session session;
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_NAMES};
    tsr_str prefix = tsr_str_from(program->operands.count > 2 ? program->operands.items[2] : "");
    if (program->operands.count < 2 || cli_open(program, program->operands.items[1], &options, &session, &err) != TSR_OK)
        return;
    unsigned left = MOST_NAMES;
    for (uint64_t i = 0; i < session.catalog->entry_count && left; i++) {
        tsr_str fqn = session.catalog->entries[i].fqn;
        if (!is_visible(fqn) || !tsr_str_starts(fqn, prefix)) continue;
        printf("%.*s\n", TSR_STR_ARG(fqn));
        left--;
    }
    cli_close(&session);
}

/* `tessera completions json`, from which the options of the npm package and the tests of Python's are made. */
static int put_table(const cli *program)
{
    tsr_json json;
    tsr_error err = {0};
    cli_document_start(program, &json, 1, &err);
    return tsr_commands_write(&json) == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    (void)arguments;
    const char *shell = program->operands.items[0];
    if (strcmp(shell, "bash") == 0) cli_put_bash();
    else if (strcmp(shell, "zsh") == 0) cli_put_zsh();
    else if (strcmp(shell, "fish") == 0) cli_put_fish();
    else if (strcmp(shell, "names") == 0) put_names(program);
    else if (strcmp(shell, "json") == 0) return put_table(program);
    else return cli_fail(program, "cannot write completions for '%s'; choose bash, zsh or fish", shell);
    return CLI_DONE;
}

const cli_command cli_completions = {
    .name = "completions",
    .examples = "source <(tessera completions bash)\nComplete in this shell; packages install the script for all\n"
                "tessera completions zsh >~/.zsh/_tessera\nInstall it in a directory of $fpath\n"
                "tessera completions fish >~/.config/fish/completions/tessera.fish\nInstall it for all new shells\n",
    .run = run,
};
