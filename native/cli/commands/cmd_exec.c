/* `tessera exec PLAN DEST`: carries out a plan, completely or in shares. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/writing/writing.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

typedef struct execution {
    cli *program;
    cli_writing writing;
    tsr_target target;
    tsr_plan *plan;
    tsr_store *store; /* of the plan's document */
    tsr_bytes document;
} execution;

/* Parses "3/8". */
static tsr_status parse_share(const char *text, cli_writing *w, tsr_error *err)
{
    char *slash, *end;
    if (!text) return TSR_OK;
    w->share = strtoull(text, &slash, 10);
    w->shares = *slash == '/' ? strtoull(slash + 1, &end, 10) : 0;
    const bool digits = strspn(text, "0123456789/") == strlen(text) && slash != text && w->shares && *end == '\0';
    if (digits && w->share >= 1 && w->share <= w->shares) return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "--share expects i/N with i from 1 to N, such as 3/8, not '%s'", text);
}

/* The options become those of the plan's request, but for those that were given to exec. */
static tsr_status read_plan(execution *e, tsr_error *err)
{
    cli *program = e->program;
    cli_writing *w = &e->writing;
    const tsr_command_options given = program->options;
    const char *path = program->operands.items[0];
    tsr_status status = cli_load_file(program, path, &e->store, &e->document, err);
    if (status == TSR_OK) status = tsr_plan_job_read(e->document.data, cli_host(program), w->arena, &w->plan_job, err);
    if (status == TSR_OK) program->options = w->plan_job.request.options;
    tsr_options_override(program->command, &given, &program->options);
    if (status == TSR_OK && w->plan_job.target.mesh.size)
        status = tsr_target_from_texts(&w->plan_job.target, tsr_glob_match, w->arena, &e->target, err);
    if (status != TSR_OK) tsr_error_context(err, "%s", path);
    return status;
}

/* A plan contains the URL of its source without secrets. */
static tsr_status find_source(const execution *e, const char *given, const char **path, tsr_error *err)
{
    *path = given ? given : cli_hide_secrets(e->program, e->writing.plan_job.source.path.data);
    if (given || !tsr_is_url(*path) || !strstr(*path, "***")) return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE,
                    "the plan does not contain the secrets of its source's URL '%s'; pass the full URL with --source",
                    *path);
}

static tsr_status check_source(execution *e, const tsr_plan_source *planned, const cli_session *session, tsr_error *err)
{
    tsr_plan_source found = {.digest_algorithm = planned->digest_algorithm};
    const tsr_status status = cli_describe_source(e->program, session, e->writing.arena, &found, err);
    return status == TSR_OK ? tsr_plan_source_check(planned, &found, err) : status;
}

static tsr_status open_source(execution *e, tsr_error *err)
{
    cli_writing *w = &e->writing;
    const char *path;
    tsr_status status = find_source(e, w->options->source_path, &path, err);
    if (status != TSR_OK) return status;
    status = w->plan_job.target.mesh.size ? cli_open_reshard(w, path, &e->target, &e->plan, err)
                                          : cli_open_conversion(w, path, err);
    if (status == TSR_OK) status = check_source(e, &w->plan_job.source, &w->source, err);
    if (status == TSR_OK && w->plan_job.adapter.path.size)
        status = check_source(e, &w->plan_job.adapter, w->source.others, err);
    return status;
}

static tsr_status execute(execution *e, tsr_error *err)
{
    cli_writing *w = &e->writing;
    w->arena = tsr_arena_new(cli_host(e->program)->allocator, 0, err);
    tsr_status status = w->arena ? parse_share(w->options->share, w, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = read_plan(e, err);
    if (status == TSR_OK) status = open_source(e, err);
    /* A share writes only units. What publishes them also copies the settings. */
    const bool publishes = !w->share || w->finish;
    cli_config_copy config = {.text = TSR_STR("")};
    if (status == TSR_OK && publishes) status = cli_config_plan(w, &config, err);
    if (status == TSR_OK) status = cli_write(w, err);
    return status == TSR_OK ? cli_config_write(w, &config, err) : status;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    execution e = {.program = program};
    e.writing = (cli_writing){.program = program,
                              .options = arguments,
                              .what = "writing",
                              .plan_path = program->operands.items[0],
                              .destination = program->operands.items[1],
                              .is_exec = true,
                              .finish = arguments->finish};
    tsr_status status = execute(&e, &err);
    int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
    cli_writing_close(&e.writing);
    tsr_plan_free(e.plan);
    tsr_bytes_free(&e.document);
    if (e.store) e.store->close(e.store);
    tsr_arena_free(e.writing.arena);
    cli_close(&e.writing.source);
    return result;
}

const cli_command cli_exec = {
    .name = "exec",
    .examples = "tessera exec plan.json ckpt-3/\n"
                "Carry out a plan of `tessera plan --json`, unless its source changed since\n"
                "tessera exec plan.json ckpt-3/ --share $SLURM_ARRAY_TASK_ID/8\nWrite one of eight shares, numbered from 1\n"
                "tessera exec plan.json ckpt-3/ --finish\nPublish the checkpoint when all eight shares are written\n"
                "tessera exec plan.json s3://bucket/ckpt-3 --share $SLURM_ARRAY_TASK_ID/8\n"
                "Upload one of eight shares, on any machine; nothing is visible before `--finish`\n",
    .run = run,
};
