/* See shards_option.h. */
#include "cli/program/shards_option.h"

#include <stdlib.h>

#include "cli/program/session.h"
#include "tessera/document_read.h"

typedef struct cli_shards {
    tsr_arena *arena;
    tsr_shards map;
} cli_shards;

static tsr_status read_file(cli *program, const char *path, cli_shards *shards, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_status status = cli_load_file(program, path, &store, &bytes, err);
    if (status == TSR_E_NOT_FOUND)
        tsr_error_context(err, "--shards takes a file, or one of meta-llama, megatron-gpt and vllm");
    if (status == TSR_OK) {
        status = tsr_shards_read(bytes.data, cli_host(program), shards->arena, &shards->map, err);
        if (status != TSR_OK) tsr_error_context(err, "%s", path);
    }
    shards->map.name = tsr_str_from(path);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    return status;
}

tsr_status cli_read_shards(cli *program, const tsr_shards **out, tsr_error *err)
{
    const char *given = program->source.shards;
    *out = given ? tsr_shards_built_in(tsr_str_from(given)) : NULL;
    if (!given || *out) return TSR_OK;
    if (!program->shards) {
        cli_shards *shards = calloc(1, sizeof *shards);
        program->shards = shards;
        if (shards) shards->arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
        if (!shards || !shards->arena) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        const tsr_status status = read_file(program, given, shards, err);
        if (status != TSR_OK) return status;
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
