/* `tessera layout`: writes the layout file that a repository commits and that CI checks checkpoints against. */
#include "cli/commands/commands.h"
#include "cli/commands/layout_file.h"

static int run(cli *program, const tsr_command_options *arguments)
{
    const tsr_layout_options layout = {.selection = {tsr_globs_select, &arguments->selection},
                                       .no_chunks = arguments->no_chunks,
                                       .hash = (tsr_digest_algorithm)arguments->hash};
    return cli_write_layout(program, arguments, &layout);
}

const cli_command cli_layout = {
    .name = "layout",
    .examples = "tessera layout ckpt/ -o layout.json\n"
                "Write a file to commit; `tessera validate --layout layout.json` checks against it\n"
                "tessera layout ckpt/ --no-chunks\nRecord names, dtypes and shapes, for any sharding\n",
    .run = run,
};
