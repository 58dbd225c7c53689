/* See shards_option.h. */
#include "cli/program/shards_option.h"

#include <stdlib.h>

#include "tessera/sys/path_choices.h"

typedef struct cli_shards {
    tsr_arena *arena;
    tsr_shards map;
} cli_shards;

tsr_status cli_read_shards(cli *program, const tsr_shards **out, tsr_error *err)
{
    const char *given = program->options.source.shards;
    *out = NULL;
    if (!given) return TSR_OK;
    if (!program->shards) {
        cli_shards *shards = calloc(1, sizeof *shards);
        program->shards = shards;
        if (shards) shards->arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
        if (!shards || !shards->arena) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        const tsr_status status =
            tsr_path_load_shards(cli_given_address(program, given), cli_host(program), shards->arena, &shards->map, err);
        if (status != TSR_OK) {
            cli_free_shards(program);
            return status;
        }
    }
    *out = &program->shards->map;
    return TSR_OK;
}

void cli_free_shards(cli *program)
{
    if (!program->shards) return;
    tsr_arena_free(program->shards->arena);
    free(program->shards);
    program->shards = NULL;
}
