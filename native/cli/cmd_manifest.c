/* `tessera manifest`: checksums of a checkpoint's values that do not depend on its sharding or container: a layout without
 * chunks and with hashes. */
#include "cli/layout_file.h"

typedef struct manifest_arguments {
    cli_layout_file file;
    bool json;
} manifest_arguments;

static int run(cli *program, const void *given)
{
    cli_layout_file file = ((const manifest_arguments *)given)->file;
    file.no_chunks = true;
    if (!file.hash) file.hash = cli_host(program)->xxh3 ? TSR_DIGEST_XXH3 : TSR_DIGEST_SHA256;
    return cli_write_layout(program, program->operands.items[0], &file);
}

static const cli_option options[] = {
    {"output", 'o', CLI_TEXT, "FILE", "write to FILE; - (the default) is standard output",
     offsetof(manifest_arguments, file.output)},
    {"hash", 0, CLI_CHOICE, CLI_HASHES, "the digest algorithm (default xxh3)", offsetof(manifest_arguments, file.hash)},
    {"include", 0, CLI_LIST, "GLOB", "only names that match (repeatable)",
     offsetof(manifest_arguments, file.selection.include)},
    {"exclude", 0, CLI_LIST, "GLOB", "no names that match (repeatable); beats --include",
     offsetof(manifest_arguments, file.selection.exclude)},
    {"json", 0, CLI_FLAG, NULL, "accepted for uniformity: the output is always JSON", offsetof(manifest_arguments, json)},
    CLI_EXPANSION_OPTION(manifest_arguments, file.allow_expansion),
    {0},
};

const cli_command cli_manifest = {
    .name = "manifest",
    .summary = "writes checksums of all values, the same for any sharding and container",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples = "tessera manifest ckpt/ -o manifest.json\nto keep next to it; `tessera verify` checks against it\n"
                "cmp <(tessera manifest on-8-ranks/) <(tessera manifest on-64-ranks/)\nthe same values give the same file\n",
    .options = options,
    .arguments_size = sizeof(manifest_arguments),
    .run = run,
};
