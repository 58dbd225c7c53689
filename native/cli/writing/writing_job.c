/* Describes a job as lines of text: two runs with the same lines write the same bytes. */
#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/writing/writing.h"
#include "publish/job_state.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/try.h"

#include <inttypes.h>
#include <stdio.h>

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

/* Reports what was written: a line for people, a document for scripts. */

static bool resumed_remotely(const cli_writing *w)
{
    return w->options->resume && w->job.published && tsr_is_object_url(w->destination);
}

static void report_text(const cli_writing *w)
{
    tsr_conversion_counts t;
    tsr_conversion_count(&w->job.conversion, &t);
    if (w->options->json || w->program->options.quiet) return;
    if (w->job.is_complete) {
        cli_put(stderr, tsr_str_from(w->destination));
        fprintf(stderr, " is already complete: %s, %s in %s; nothing was written\n", cli_plural(t.tensors, "tensor").text,
                cli_bytes(w->job.conversion.byte_total).text, cli_plural(w->job.conversion.file_count, "file").text);
        return;
    }
    if (resumed_remotely(w)) cli_report_resumed(w->program, &w->job.resumed);
    if (w->job.units_found && !w->finish) {
        fprintf(stderr, "resumed: %s of %s %s done already\n", cli_number(w->job.units_found).text,
                cli_plural(w->job.units, "unit").text, w->job.units_found == 1 ? "was" : "were");
    }
    if (w->part && !w->job.published) {
        fprintf(stderr, "part %" PRIu64 " of %" PRIu64 " of ", w->part, w->parts);
        cli_put(stderr, tsr_str_from(w->destination));
        fprintf(stderr, " is done; %.2f s\n", w->seconds);
        return;
    }
    fprintf(stderr, "%s ", w->options->dry_run ? "would write" : "wrote");
    cli_put(stderr, tsr_str_from(w->destination));
    fprintf(stderr, ": %s", cli_plural(t.tensors, "tensor").text);
    if (t.objects) fprintf(stderr, ", %s", cli_plural(t.objects, "object").text);
    fprintf(stderr, ", %s in %s", cli_bytes(w->job.conversion.byte_total).text,
            cli_plural(w->job.conversion.file_count, "file").text);
    if (t.cast) fprintf(stderr, ", %s cast", cli_number(t.cast).text);
    if (t.kept) fprintf(stderr, ", %s of optimizer state not cast", cli_plural(t.kept, "scalar").text);
    if (t.left_out) fprintf(stderr, ", %s left out", cli_number(t.left_out).text);
    if (t.replicated) fprintf(stderr, ", %s replicated (too few dims)", cli_number(t.replicated).text);
    if (!w->options->dry_run && w->seconds > 0) {
        fprintf(stderr, "; %.2f s, %s/s", w->seconds,
                cli_bytes((uint64_t)((double)w->job.conversion.byte_total / w->seconds)).text);
    }
    fputc('\n', stderr);
}

/* Writes how many units of work (tessera/sys/work.h) there are, and how many of them are done. */
static void put_run(void *ctx, tsr_json *json)
{
    const cli_writing *w = ctx;
    tsr_json_put_bool(json, "dry_run", w->options->dry_run);
    if (w->options->dry_run && cli_has_map_table(&w->source)) tsr_mapping_put_table(w->source.checkpoint, json);
    if (!w->job.is_planned) return;
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"units", w->job.units},
                  {"found_done", w->job.units_found},
                  {"left", w->job.units_left},
                  {"part", w->part},
                  {"parts", w->parts}};
    tsr_json_put_bool(json, "published", w->job.published);
    tsr_json_put_object(json, "work");
    for (size_t i = 0; i < (w->part ? 5u : 3u); i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_object_end(json);
    if (resumed_remotely(w)) cli_put_resumed(json, &w->job.resumed);
}

static tsr_status report_json(const cli_writing *w, tsr_error *err)
{
    tsr_json json;
    const tsr_conversion_document document = {.schema =
                                                  w->is_exec ? TSR_STR("tessera.exec/1") : TSR_STR("tessera.convert/1"),
                                              .source = tsr_str_from(w->source.path),
                                              .destination = tsr_str_from(w->destination),
                                              .to = w->to,
                                              .conversion = &w->job.conversion,
                                              .seconds = w->seconds,
                                              .warnings = w->warnings.items,
                                              .warning_count = w->warnings.count,
                                              .more = put_run,
                                              .more_ctx = (void *)(uintptr_t)w};
    cli_document_start(w->program, &json, 1, err);
    const tsr_status status = tsr_document_conversion(&document, &json);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

tsr_status cli_keep_warning(cli_writing *w, tsr_str text, tsr_error *err)
{
    tsr_str *warning = text.data ? tsr_vec_push(&w->warnings, err) : NULL;
    if (!warning) return TSR_E_NOMEM;
    *warning = text;
    return TSR_OK;
}

/* Prints warnings about the conversion, and keeps them for the document. */
static tsr_status warn(cli_writing *w, tsr_error *err)
{
    /* These were printed earlier. */
    if (w->source.ignores_shards) TSR_TRY(cli_keep_warning(w, TSR_STR(TSR_SHARDS_UNUSED), err));
    if (w->source.leaves_settings) TSR_TRY(cli_keep_warning(w, TSR_STR(CLI_SETTINGS_UNREAD), err));
    TSR_TRY(tsr_opening_warnings(cli_source_checkpoint(&w->source), w->arena, &w->warnings, err));
    TSR_TRY(tsr_mapping_add_notes(w->source.checkpoint, w->options->config, &w->warnings, err));
    const size_t before = w->warnings.count;
    tsr_status status =
        tsr_conversion_warnings(w->source.checkpoint, &w->job.conversion, w->to, w->arena, &w->warnings, err);
    const tsr_selection selection = {tsr_globs_select, &w->options->selection};
    if (status == TSR_OK && (w->to == TSR_TO_TORCH || w->to == TSR_TO_RANKS))
        status =
            tsr_conversion_changed_dicts(w->source.catalog, &w->job.conversion, &selection, w->arena, &w->warnings, err);
    if (status == TSR_OK && w->to == TSR_TO_DCP)
        status = tsr_conversion_text_keys(w->source.checkpoint, &w->job.conversion, w->arena, &w->warnings, err);
    const tsr_str *warnings = w->warnings.items;
    for (size_t i = before; i < w->warnings.count; i++) cli_warn(w->program, "%.*s", TSR_STR_ARG(warnings[i]));
    return status;
}

tsr_status cli_report_writing(cli_writing *w, tsr_error *err)
{
    const tsr_status status = warn(w, err);
    if (status != TSR_OK) return status;
    report_text(w);
    return w->options->json ? report_json(w, err) : TSR_OK;
}

/* ---- against ---- */

/* --against: refuses to write a checkpoint that could not be loaded. */

tsr_status cli_check_against(const cli_writing *w, tsr_error *err)
{
    cli_contract against;
    tsr_status status = cli_contract_open(w->program, w->against, &against, err);
    if (status != TSR_OK) tsr_error_context(err, "--against '%s'", w->against);
    else status = tsr_conversion_check(&w->job.conversion, &against.contract, cli_host(w->program), err);
    cli_contract_free(&against);
    return status;
}
