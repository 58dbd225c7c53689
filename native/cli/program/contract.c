/* See contract.h. */
#include "cli/program/contract.h"

#include <sys/stat.h>

#include "tessera/glob.h"

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool begins_like_json(tsr_str text)
{
    size_t at = 0;
    while (at < text.size &&
           (text.data[at] == ' ' || text.data[at] == '\n' || text.data[at] == '\r' || text.data[at] == '\t'))
        at++;
    return at < text.size && (text.data[at] == '{' || text.data[at] == '[');
}

/* Takes names, dtypes and shapes from another checkpoint. Its chunks are ignored. */
static tsr_status take_checkpoint(cli *program, const char *path, cli_contract *out, tsr_error *err)
{
    tsr_status status = cli_open_compared(program, path, &(tsr_open_options){.skip_objects = true}, &out->session, err);
    if (status != TSR_OK) return status;
    out->contract =
        (tsr_contract){.expected = *out->session.catalog, .called = "the other checkpoint", .allow = TSR_ANY_CHUNKS};
    return TSR_OK;
}

static tsr_status read_document(cli *program, cli_contract *out, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    out->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    return out->arena ? tsr_contract_read(out->text.data, host, out->arena, &out->contract, err) : TSR_E_NOMEM;
}

/* JSON is a document. Anything else is a checkpoint or, if its format is not recognized, a list of names. */
static tsr_status take_file(cli *program, const char *path, cli_contract *out, tsr_error *err)
{
    tsr_error unknown = {0};
    tsr_status status = cli_load_file(program, path, &out->store, &out->text, err);
    if (status != TSR_OK) return status;
    if (begins_like_json(out->text.data)) return read_document(program, out, err);
    status = take_checkpoint(program, path, out, &unknown);
    if (status == TSR_E_UNSUPPORTED) return read_document(program, out, err);
    if (status != TSR_OK) *err = unknown;
    return status;
}

tsr_status cli_contract_open(cli *program, const char *path, cli_contract *out, tsr_error *err)
{
    *out = (cli_contract){0};
    const tsr_status status =
        is_folder(path) ? take_checkpoint(program, path, out, err) : take_file(program, path, out, err);
    out->contract.match = tsr_glob_match;
    return status;
}

void cli_contract_free(cli_contract *contract)
{
    tsr_bytes_free(&contract->text);
    if (contract->store) contract->store->close(contract->store);
    cli_close(&contract->session);
    tsr_arena_free(contract->arena);
}
