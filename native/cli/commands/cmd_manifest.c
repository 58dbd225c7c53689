/* `tessera manifest`: writes checksums of a checkpoint's values. They do not depend on its sharding or format: the file is
 * like a layout without chunks but with hashes. */
#include "cli/commands/commands.h"
#include "cli/commands/layout_file.h"

typedef struct manifest_arguments {
    cli_layout_file file;
    bool json;
} manifest_arguments;

static int run(cli *program, const void *given)
{
    cli_layout_file file = ((const manifest_arguments *)given)->file;
    file.no_chunks = file.is_manifest = true;
    if (!file.hash) file.hash = cli_host(program)->xxh3 ? TSR_DIGEST_XXH3 : TSR_DIGEST_SHA256;
    return cli_write_layout(program, program->operands.items[0], &file);
}

static const cli_option options[] = {
    {"output", 'o', CLI_TEXT, "FILE", "Write to FILE; - (the default) is standard output",
     offsetof(manifest_arguments, file.output)},
    {"hash", 0, CLI_CHOICE, CLI_HASHES, "Use this digest algorithm (default: xxh3)",
     offsetof(manifest_arguments, file.hash)},
    CLI_SELECTION_OPTIONS(manifest_arguments, file.selection),
    {"json", 0, CLI_FLAG, NULL, "Accepted for consistency; the output is always JSON", offsetof(manifest_arguments, json)},
    CLI_MAP_OPTIONS(manifest_arguments, file.map),
    CLI_MULTIPLY_OPTION(manifest_arguments, file.map, ""),
    CLI_EXPANSION_OPTION(manifest_arguments, file.allow_expansion),
    CLI_SOURCE_OPTIONS,
    {0},
};

const cli_command cli_manifest = {
    .name = "manifest",
    .summary = "Write checksums of all values that are the same for any sharding and format",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples = "tessera manifest ckpt/ -o manifest.json\nWrite a manifest; `tessera verify` checks against it\n"
                "cmp <(tessera manifest on-8-ranks/) <(tessera manifest on-64-ranks/)\n"
                "Compare two checkpoints by their manifests\n",
    .options = options,
    .arguments_size = sizeof(manifest_arguments),
    .run = run,
};
