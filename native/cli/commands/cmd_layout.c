/* `tessera layout`: writes the layout file that a repository commits and that CI checks checkpoints against. */
#include "cli/commands/commands.h"
#include "cli/commands/layout_file.h"

static int run(cli *program, const tsr_command_options *arguments)
{
    return cli_write_layout(program, program->operands.items[0], arguments);
}

const cli_command cli_layout = {
    .name = "layout",
    .examples = "tessera layout ckpt/ -o layout.json\n"
                "Write a file to commit; `tessera validate --layout layout.json` checks against it\n"
                "tessera layout ckpt/ --no-chunks\nRecord names, dtypes and shapes, for any sharding\n",
    .run = run,
};
