/* Prints help from the table of options. Examples come first, because they are what most people want. */
#include <stdio.h>

#include "cli/program/cli.h"
#include "cli/program/help.h"
#include "cli/program/term.h"

const cli_command *cli_command_of(const tsr_command *command)
{
    const cli_command *const *c = cli_commands;
    while (strcmp((*c)->name, command->name) != 0) c++;
    return *c;
}

static void heading(const cli *program, const char *text)
{
    cli_on(&program->out, stdout, CLI_BOLD);
    puts(text);
    cli_off(&program->out, stdout);
}

/* Prints text in lines that fit the terminal, indented by `indent` after `used` columns of the first line. */
static void put_text(const cli *program, unsigned indent, unsigned used, tsr_str text)
{
    if (used < indent) cli_pad(stdout, indent - used);
    cli_put_wrapped(stdout, text, indent, indent, program->out.columns);
}

/* Lines come in pairs: a command, which is not wrapped, so that it can be copied, and what it does. */
static void put_examples(const cli *program, const char *examples)
{
    bool is_command = true;
    for (const char *line = examples; *line; is_command = !is_command) {
        const tsr_str text = {line, strcspn(line, "\n")};
        cli_on(&program->out, stdout, is_command ? CLI_CYAN : CLI_DIM);
        if (is_command) printf("  %.*s\n", TSR_STR_ARG(text));
        else put_text(program, 6, 0, text);
        cli_off(&program->out, stdout);
        line += text.size + (line[text.size] == '\n');
    }
}

/* Where texts begin next to what they describe. On a narrow terminal, those of options are below the option. */
enum { HELP_COLUMN = 30, NARROW_HELP_COLUMN = 10, LEAST_FOR_TWO_COLUMNS = 60, COMMAND_COLUMN = 14, FORMAT_COLUMN = 16 };

static void put_options(const cli *program, const tsr_option *const *options)
{
    const unsigned column = program->out.columns < LEAST_FOR_TWO_COLUMNS ? NARROW_HELP_COLUMN : HELP_COLUMN;
    for (; *options; options++) {
        const tsr_option *option = *options;
        char left[96];
        int used = snprintf(left, sizeof left, "  %c%c%s--%s%s%s", option->letter ? '-' : ' ',
                            option->letter ? option->letter : ' ', option->letter ? ", " : "  ", option->name,
                            option->value ? " " : "", option->value ? option->value : "");
        fputs(left, stdout);
        if (used >= (int)column - 1) {
            putchar('\n');
            used = 0;
        }
        put_text(program, column, (unsigned)used, tsr_str_from(option->help));
    }
}

static void help_command(const cli *program, const tsr_command *command)
{
    put_text(program, 0, 0, tsr_str_from(command->summary));
    putchar('\n');
    heading(program, "Examples");
    put_examples(program, cli_command_of(command)->examples);
    putchar('\n');
    heading(program, "Usage");
    printf("  tessera %s%s%s%s\n\n", command->name, *command->operands ? " " : "", command->operands,
           *command->options ? " [OPTION]…" : "");
    if (*command->options) {
        heading(program, "Options");
        put_options(program, command->options);
        putchar('\n');
    }
    heading(program, "Global options");
    put_options(program, tsr_global_options);
    putchar('\n');
    put_text(program, 0, 0, TSR_STR("Exit status: 0 success, identical or valid; 1 differences or findings; 2 error."));
}

const char *const cli_overview_summary = "Inspect, validate, diff, convert and reshard PyTorch checkpoints";
const char *const cli_overview_examples =
    "tessera inspect ckpt/\nShow what a checkpoint contains, and what is wrong with it\n"
    "tessera validate --deep ckpt/\nRead and check every byte\n"
    "tessera convert ckpt/ model.safetensors --to safetensors\nConvert DCP to a single file, without loading the "
    "model into memory\n";

const char *const cli_formats_summary = "The documents that options of tessera read";

/* Prints the lines of the examples of a format: names of files and commands start further left than contents. */
static void put_format_examples(const cli *program, const char *examples)
{
    bool is_name = true;
    for (const char *line = examples; *line;) {
        const int size = (int)strcspn(line, "\n");
        const bool is_command = strncmp(line, "tessera ", 8) == 0;
        if (is_name) {
            printf("\n  Example, in %.*s:\n", size, line);
        } else if (size) {
            fputs(is_command ? "  " : "    ", stdout);
            if (is_command) cli_on(&program->out, stdout, CLI_CYAN);
            printf("%.*s", size, line);
            if (is_command) cli_off(&program->out, stdout);
            putchar('\n');
        }
        is_name = size == 0;
        line += size + (line[size] == '\n');
    }
}

void cli_put_formats(const cli *program)
{
    put_text(program, 0, 0, tsr_str_from(cli_formats_summary));
    putchar('\n');
    put_text(program, 0, 0,
             TSR_STR("A GLOB matches whole names: * within a component, ** across components, ?, [...]. The schemas of all "
                     "documents are installed in share/tessera/schemas."));
    for (const cli_format *format = cli_formats; format->name; format++) {
        putchar('\n');
        heading(program, format->name);
        put_text(program, 2, 0, tsr_str_from(format->summary));
        for (const cli_format_key *key = format->keys; key->name; key++) {
            unsigned used = (unsigned)printf("  %s", key->name);
            if (used >= FORMAT_COLUMN - 1) {
                putchar('\n');
                used = 0;
            }
            put_text(program, FORMAT_COLUMN, used, tsr_str_from(key->help));
        }
        put_format_examples(program, format->examples);
    }
}

void cli_put_help(const cli *program, const tsr_command *command)
{
    if (command) {
        help_command(program, command);
        return;
    }
    put_text(program, 0, 0, tsr_str_from(cli_overview_summary));
    putchar('\n');
    heading(program, "Examples");
    put_examples(program, cli_overview_examples);
    putchar('\n');
    heading(program, "Commands");
    for (const tsr_command *c = tsr_commands; c->name; c++) {
        if (c->group) {
            putchar('\n');
            heading(program, c->group);
        }
        put_text(program, COMMAND_COLUMN, (unsigned)printf("  %s", c->name), tsr_str_from(c->summary));
    }
    putchar('\n');
    put_text(
        program, 0, 0,
        TSR_STR("Run `tessera help COMMAND` for details, and `tessera help formats` for the documents that options read. "
                "Tessera never executes anything in a checkpoint."));
}
