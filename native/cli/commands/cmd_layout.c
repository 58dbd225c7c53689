/* `tessera layout`: writes the layout file that a repository commits and that CI checks checkpoints against. */
#include "cli/commands/commands.h"
#include "cli/commands/layout_file.h"

typedef struct layout_arguments {
    cli_layout_file file;
    bool json;
} layout_arguments;

static int run(cli *program, const void *given)
{
    return cli_write_layout(program, program->operands.items[0], &((const layout_arguments *)given)->file);
}

static const cli_option options[] = {
    {"output", 'o', CLI_TEXT, "FILE", "Write to FILE; - (the default) is standard output",
     offsetof(layout_arguments, file.output)},
    {"no-chunks", 0, CLI_FLAG, NULL, "Leave out the chunks: record only names, dtypes and shapes",
     offsetof(layout_arguments, file.no_chunks)},
    {"hash", 0, CLI_CHOICE, CLI_HASHES, "Add a digest of each entry's values (reads every byte)",
     offsetof(layout_arguments, file.hash)},
    CLI_SELECTION_OPTIONS(layout_arguments, file.selection),
    {"json", 0, CLI_FLAG, NULL, "Accepted for consistency; the output is always JSON", offsetof(layout_arguments, json)},
    CLI_EXPANSION_OPTION(layout_arguments, file.allow_expansion),
    CLI_SOURCE_OPTIONS,
    {0},
};

const cli_command cli_layout = {
    .name = "layout",
    .summary = "Write a layout file for CI to check later checkpoints against",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples = "tessera layout ckpt/ -o layout.json\n"
                "Write a file to commit; `tessera validate --layout layout.json` checks against it\n"
                "tessera layout ckpt/ --no-chunks\nRecord names, dtypes and shapes, for any sharding\n",
    .options = options,
    .arguments_size = sizeof(layout_arguments),
    .run = run,
};
