/* `tessera exec PLAN DEST`: carries out a plan, completely or in parts. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/writing/source.h"
#include "cli/writing/writing.h"
#include "tessera/sys/path_store.h"

typedef struct execution {
    cli *program;
    cli_writing writing;
    tsr_command_options options; /* those given, completed with what the plan contains */
    tsr_plan_job planned;
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
    w->part = strtoull(text, &slash, 10);
    w->parts = *slash == '/' ? strtoull(slash + 1, &end, 10) : 0;
    const bool digits = strspn(text, "0123456789/") == strlen(text) && slash != text && w->parts && *end == '\0';
    if (digits && w->part >= 1 && w->part <= w->parts) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--share expects i/N with i from 1 to N, such as 3/8, not '%s'",
                     text);
}

/* Finds a word of the plan among the words of an option. */
static tsr_status find_word(const char *what, tsr_str word, const char *const *words, size_t count, unsigned *out,
                            tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        *out = (unsigned)i;
        if (tsr_str_equal(word, tsr_str_from(words[i]))) return TSR_OK;
    }
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "plan: unknown destination.%s '%.*s'", what, TSR_STR_ARG(word));
}

static tsr_status copy_list(const tsr_str *items, size_t count, tsr_arena *arena, tsr_texts *out, tsr_error *err)
{
    out->items = tsr_arena_array(arena, count, sizeof *out->items, err);
    if (!out->items) return TSR_E_NOMEM;
    for (; out->count < count; out->count++) out->items[out->count] = items[out->count].data;
    return TSR_OK;
}

static tsr_status read_plan(execution *e, tsr_error *err)
{
    const char *path = e->program->operands.items[0];
    cli_writing *w = &e->writing;
    unsigned to = 0;
    tsr_status status = cli_load_file(e->program, path, &e->store, &e->document, err);
    if (status == TSR_OK) status = tsr_plan_job_read(e->document.data, cli_host(e->program), w->arena, &e->planned, err);
    if (status == TSR_OK) status = find_word("to", e->planned.to, tsr_container_words, 4, &to, err);
    if (status == TSR_OK) status = find_word("objects", e->planned.objects, tsr_objects_words, 5, &e->options.objects, err);
    w->to = (tsr_container)to;
    if (e->planned.dtype.size) e->options.dtype = e->planned.dtype.data;
    e->options.raw_cast = e->planned.raw_cast;
    tsr_name_globs *selection = &e->options.selection;
    const tsr_plan_job *p = &e->planned;
    if (status == TSR_OK) status = copy_list(p->include, p->include_count, w->arena, &selection->include, err);
    if (status == TSR_OK) status = copy_list(p->exclude, p->exclude_count, w->arena, &selection->exclude, err);
    w->job.target = p->target;
    w->job.storage = p->storage;
    if (status == TSR_OK) status = tsr_target_from_texts(&w->job.target, tsr_glob_match, w->arena, &e->target, err);
    if (status != TSR_OK) tsr_error_context(err, "%s", path);
    return status;
}

/* A plan contains the URL of its source without secrets. */
static tsr_status find_source(const execution *e, const char *given, const char **path, tsr_error *err)
{
    *path = given ? given : cli_hide_secrets(e->program, e->planned.source_path.data);
    if (given || !tsr_is_url(*path) || !strstr(*path, "***")) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "the plan does not contain the secrets of its source's URL '%s'; pass the full URL with --source",
                     *path);
}

static tsr_status open_source(execution *e, const char *given, tsr_error *err)
{
    cli_writing *w = &e->writing;
    const char *path;
    tsr_plan_job found = {.digest_algorithm = e->planned.digest_algorithm};
    const tsr_open_options used = {.selects = tsr_globs_select, .selects_ctx = &e->options.selection};
    tsr_status status = find_source(e, given, &path, err);
    if (e->planned.source_part.size) e->program->options.source.part = e->planned.source_part.data;
    if (e->planned.source_step.size) e->program->options.source.step = e->planned.source_step.data;
    e->options.inverse = e->planned.source_inverse;
    const cli_map_options map = {.options = &e->options,
                                 .document = e->planned.source_map.size ? e->planned.source_map : (tsr_str){NULL, 0}};
    if (status == TSR_OK) status = cli_open_mapped(e->program, path, &used, &map, &w->source, err);
    if (status == TSR_OK) status = cli_describe_source(e->program, &w->source, w->arena, &found, err);
    return status == TSR_OK ? tsr_plan_job_check(&e->planned, &found, err) : status;
}

static tsr_status execute(execution *e, const tsr_command_options *arguments, tsr_error *err)
{
    cli_writing *w = &e->writing;
    w->arena = tsr_arena_new(cli_host(e->program)->allocator, 0, err);
    tsr_status status = w->arena ? parse_share(arguments->share, w, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = read_plan(e, err);
    if (status == TSR_OK) status = open_source(e, arguments->source_path, err);
    if (status != TSR_OK) return status;
    w->documents[0] = e->program->operands.items[0];
    w->is_folder = true;
    w->marker = tsr_marker_of(w->to);
    const tsr_plan_options options = {.want = tsr_globs_want, .want_ctx = &e->options.selection};
    status = tsr_plan_for_texts(w->source.catalog, &(tsr_planning){&w->job.target, &e->target, &options},
                                cli_host(e->program), w->arena, &e->plan, err);
    w->plan = e->plan;
    return status == TSR_OK ? cli_write(w, err) : status;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    execution e = {.program = program, .options = *arguments};
    e.writing = (cli_writing){.program = program,
                              .options = &e.options,
                              .what = "resharding",
                              .destination = program->operands.items[1],
                              .is_exec = true,
                              .finish = arguments->finish};
    tsr_status status = execute(&e, arguments, &err);
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
