/* Describes a job as lines of text: two runs with the same lines write the same bytes. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/program/map_options.h"
#include "cli/program/term.h"
#include "cli/writing/writing.h"
#include "publish/job.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- source ---- */

tsr_status cli_describe_source(cli *program, const cli_session *session, tsr_arena *arena, tsr_plan_source *out,
                               tsr_error *err)
{
    out->path = tsr_str_from(session->path);
    tsr_status status = tsr_plan_source_describe(tsr_checkpoint_catalog(cli_source_checkpoint(session)), &program->options,
                                                 cli_host(program), arena, out, err);
    return status == TSR_OK ? tsr_job_date_source(session->store, session->is_remote, out, arena, err) : status;
}

tsr_status cli_options_with_texts(cli *program, const cli_session *session, const tsr_command_options *options,
                                  tsr_command_options *out, tsr_error *err)
{
    const tsr_shards *shards;
    TSR_TRY(cli_read_shards(program, &shards, err));
    *out = *options;
    out->source.shards = program->options.source.shards;
    if (session->map_text.data) {
        out->map =
            tsr_arena_str(session->arena, session->map_text, err).data; /* that of a built-in map has no NUL at its end */
        if (!out->map) return TSR_E_NOMEM;
    }
    if (session->modules_text.data) out->modules = session->modules_text.data;
    if (session->flat_text.data) out->flat_params = session->flat_text.data;
    if (shards && shards->document.size) out->source.shards = shards->document.data;
    return TSR_OK;
}

/* ---- resumed ---- */

void cli_report_resumed(const cli *program, const tsr_object_resumed *r)
{
    if (program->options.quiet) return;
    if (r->objects || r->parts) {
        fprintf(stderr, "resumed: %s and %s (%s) were uploaded already", cli_plural(r->objects, "object").text,
                cli_plural(r->parts, "part").text, cli_bytes(r->bytes).text);
    } else {
        fprintf(stderr, "resumed: nothing that can be continued was found; everything was uploaded");
    }
    if (r->differing)
        fprintf(stderr, "; %s with another size or checksum uploaded again", cli_plural(r->differing, "part").text);
    if (r->uploads_given_up) fprintf(stderr, "; %s given up", cli_plural(r->uploads_given_up, "other upload").text);
    fputc('\n', stderr);
    if (r->uploads_left)
        cli_warn(
            program,
            "the destination has %s unfinished upload%s of objects that this run does not write; nothing of them was removed",
            cli_number(r->uploads_left).text, r->uploads_left == 1 ? "" : "s");
}

void cli_report_continued(const tsr_object_resumed *r)
{
    if (r->bytes) {
        fprintf(stderr, "resumed: %s and %s (%s) had been copied already", cli_plural(r->objects, "file").text,
                cli_plural(r->parts, "chunk").text, cli_bytes(r->bytes).text);
    } else {
        fprintf(stderr, "resumed: nothing that can be continued was found; everything was copied");
    }
    if (r->differing) fprintf(stderr, "; %s with another digest copied again", cli_plural(r->differing, "chunk").text);
    fputc('\n', stderr);
}

void cli_put_resumed(tsr_json *json, const tsr_object_resumed *r)
{
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"objects", r->objects},
                  {"parts", r->parts},
                  {"bytes", r->bytes},
                  {"differing", r->differing},
                  {"uploads_given_up", r->uploads_given_up},
                  {"uploads_left", r->uploads_left}};
    tsr_json_put_object(json, "resumed");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_object_end(json);
}

/* ---- job ---- */

static tsr_status add_source(cli_writing *w, const cli_session *session, tsr_plan_source *source, tsr_str *text,
                             tsr_error *err)
{
    TSR_TRY(cli_describe_source(w->program, session, w->arena, source, err));
    return tsr_job_add_source(w->arena, text, source, err);
}

/* The target as its document, on one line, where it was not given by --mesh and --placements. */
static tsr_status add_target(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    tsr_json json;
    tsr_mesh mesh;
    tsr_vec line = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_status status = tsr_mesh_parse(w->plan_job.target.mesh, w->arena, &mesh, err);
    tsr_json_start(&json, tsr_vec_write, &line, 0, err);
    if (status == TSR_OK) tsr_target_texts_write(&json, &w->plan_job.target, &mesh);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    /* without the newline that ends a document */
    if (status == TSR_OK) status = tsr_job_add_line(w->arena, text, "target", (tsr_str){line.items, line.count - 1}, err);
    tsr_vec_free(&line);
    return status;
}

/* The options that affect the output. DEST and the target have decided some of them. */
static tsr_status add_options(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_option_value *values;
    size_t count;
    const tsr_command *command = w->is_exec ? w->plan_job.request.command : w->program->command;
    tsr_command_request request = {.command = command};
    tsr_command_options *options = &request.options;
    TSR_TRY(cli_options_with_texts(w->program, &w->source, w->options, options, err));
    options->to = 0;
    if (!w->source.modules_text.data) options->modules = NULL; /* optim has it in its recipe */
    if (!w->source.flat_text.data) options->flat_params = NULL;
    options->target = options->storage = NULL; /* see add_target */
    TSR_TRY(tsr_request_list(&request, w->arena, &values, &count, err));
    for (size_t i = 0; i < count; i++) {
        const char *name = values[i].option->name;
        const tsr_str value = tsr_str_from(values[i].text ? values[i].text : "");
        const bool is_document = values[i].option->type == TSR_OPTION_DOCUMENT;
        if (values[i].option->role == TSR_OPTION_OF_SOURCE) continue;
        if (is_document && tsr_is_document(values[i].text)) TSR_TRY(tsr_job_add_hash(w->arena, text, name, value, err));
        else TSR_TRY(tsr_job_add_line(w->arena, text, name, value, err));
    }
    return TSR_OK;
}

/* Writes one line for each property of the job that affects the output. */
tsr_status cli_describe_work(cli_writing *w, tsr_str *text, tsr_error *err)
{
    *text = TSR_STR(TSR_JOURNAL_MAGIC);
    TSR_TRY(tsr_job_add_line(w->arena, text, "tessera", TSR_STR(TSR_VERSION), err));
    TSR_TRY(add_source(w, &w->source, &w->plan_job.source, text, err));
    if (w->source.recipe.data) TSR_TRY(tsr_job_add_line(w->arena, text, "recipe", w->source.recipe, err));
    for (size_t i = 0; i < w->source.other_count; i++) {
        tsr_plan_source other = {.digest_algorithm = w->plan_job.source.digest_algorithm};
        TSR_TRY(add_source(w, &w->source.others[i], &other, text, err));
    }
    TSR_TRY(tsr_job_add_line(w->arena, text, "to", tsr_str_from(tsr_container_words[w->to]), err));
    if (w->form.file_name.size) TSR_TRY(tsr_job_add_line(w->arena, text, "file", w->form.file_name, err));
    TSR_TRY(add_options(w, text, err));
    return w->plan && !w->options->mesh ? add_target(w, text, err) : TSR_OK;
}
