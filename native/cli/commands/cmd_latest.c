/* `tessera latest`: prints the newest checkpoint of a run that would load, for the script that resumes it. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "tessera/sys/document.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

static tsr_status find(cli *program, bool deep, const char *run, tsr_arena *arena, tsr_latest *out, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    cli_deep_check check = {.program = program};
    const tsr_latest_options options = {.size = sizeof options, .check = deep ? cli_check_deep : NULL, .check_ctx = &check};
    tsr_store *store = NULL;
    tsr_status status = tsr_run_store_open(host, cli_given_address(program, run), &store, err);
    if (status == TSR_OK) status = tsr_latest_find(store, host, &options, arena, out, err);
    if (store) store->close(store);
    tsr_ring_free(check.ring);
    return status;
}

/* Names what is not the answer on stderr. */
static tsr_status put_passed_over(const cli *program, const tsr_latest *latest, const char *run, tsr_arena *arena,
                                  tsr_error *err)
{
    for (size_t i = 0; i < latest->passed_count; i++) {
        const tsr_passed_over *passed = &latest->passed_over[i];
        tsr_str path;
        TSR_TRY(tsr_latest_path(tsr_str_from(run), passed->path, arena, &path, err));
        cli_warn(program, "passed over %.*s: %.*s", TSR_STR_ARG(path), TSR_STR_ARG(passed->reason));
    }
    if (latest->unlisted.size)
        cli_warn(program, "%s: '%.*s' cannot be listed, so checkpoints in it are not known: %.*s", run,
                 TSR_STR_ARG(latest->unlisted), TSR_STR_ARG(latest->unlisted_why));
    if (!latest->found)
        cli_note(program, "%s: %s%s", run,
                 latest->passed_count ? "no checkpoint is without errors" : "there are no checkpoints",
                 latest->deeper ? "; directories more than three levels down were not searched" : "");
    return TSR_OK;
}

/* A script gets the path as it is, even if its bytes are not visible characters. */
static void put_text(const cli *program, tsr_str path)
{
    if (program->out.is_terminal) cli_put(stdout, path);
    else fwrite(path.data, 1, path.size, stdout);
    putchar('\n');
}

static tsr_status put(cli *program, bool as_json, const tsr_latest *latest, const char *run, tsr_arena *arena,
                      tsr_error *err)
{
    tsr_json json;
    tsr_str path;
    tsr_status status = put_passed_over(program, latest, run, arena, err);
    if (status == TSR_OK) status = tsr_latest_path(tsr_str_from(run), latest->path, arena, &path, err);
    if (status == TSR_OK && !as_json && latest->found) put_text(program, path);
    if (status != TSR_OK || !as_json) return status;
    cli_document_start(program, &json, err);
    status = tsr_document_latest(latest, tsr_str_from(run), arena, &json, err);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *path = program->operands.items[0];
    tsr_latest latest = {.found = false};
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = arena ? find(program, arguments->deep, path, arena, &latest, &err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = put(program, arguments->json, &latest, path, arena, &err);
    const int result = status != TSR_OK ? cli_fail_error(program, path, &err) : latest.found ? CLI_DONE : CLI_DIFFERS;
    tsr_arena_free(arena);
    return result;
}

const cli_command cli_latest = {
    .name = "latest",
    .examples = "tessera latest run/\nPrint the path of the newest step without errors; exit with 1 if there is none\n"
                "RESUME=$(tessera latest run/) || [ $? = 1 ] || exit 2\n"
                "Resume from it in a job script, start a new run if there is none, and stop if it cannot be decided\n"
                "tessera latest s3://bucket/run --deep\nRead every byte first, in an object store\n"
                "tessera inspect run/ --step latest-valid\nOpen it with another command\n",
    .run = run,
};
