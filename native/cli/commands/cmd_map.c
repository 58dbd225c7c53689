/* `tessera map`: the built-in maps. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "tessera/mapping.h"

static int list_maps(void)
{
    tsr_str name;
    for (size_t i = 0; (name = tsr_mapping_builtin_name(i)).size; i++) printf("%.*s\n", TSR_STR_ARG(name));
    return CLI_DONE;
}

static int run(cli *program, const void *given)
{
    const cli_list *words = &program->operands;
    const char *what = words->items[0];
    (void)given;
    if (!strcmp(what, "list") && words->count == 1) return list_maps();
    if (strcmp(what, "show") || words->count != 2)
        return cli_fail(program, "expected 'map list' or 'map show NAME', found 'map %s'; see tessera help map", what);
    const tsr_str text = tsr_mapping_builtin(tsr_str_from(words->items[1]));
    if (!text.size) return cli_fail(program, "there is no built-in map '%s'; see tessera map list", words->items[1]);
    fwrite(text.data, 1, text.size, stdout);
    return CLI_DONE;
}

static const cli_option options[] = {{0}};

const cli_command cli_map = {
    .name = "map",
    .summary = "List the built-in maps, or print one",
    .operands = "list|show [NAME]",
    .least = 1,
    .most = 2,
    .examples = "tessera map list\nList the maps that --map takes by name\n"
                "tessera map show torchtitan-llama3 > mine.json\nPrint a map, as a start for your own\n",
    .options = options,
    .run = run,
};
