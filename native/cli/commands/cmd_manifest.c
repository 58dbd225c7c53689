/* `tessera manifest`: writes checksums of a checkpoint's values. They do not depend on its sharding or format: the file is
 * like a layout without chunks but with hashes. */
#include "cli/commands/commands.h"
#include "cli/commands/layout_file.h"

static int run(cli *program, const tsr_command_options *arguments)
{
    const tsr_digest_algorithm usual = cli_host(program)->xxh3 ? TSR_DIGEST_XXH3 : TSR_DIGEST_SHA256;
    const tsr_layout_options manifest = {.selection = {tsr_globs_select, &arguments->selection},
                                         .no_chunks = true,
                                         .is_manifest = true,
                                         .hash = arguments->hash ? (tsr_digest_algorithm)arguments->hash : usual};
    return cli_write_layout(program, arguments, &manifest);
}

const cli_command cli_manifest = {
    .name = "manifest",
    .examples = "tessera manifest ckpt/ -o manifest.json\nWrite a manifest; `tessera verify` checks against it\n"
                "cmp <(tessera manifest on-8-ranks/) <(tessera manifest on-64-ranks/)\n"
                "Compare two checkpoints by their manifests\n",
    .run = run,
};
