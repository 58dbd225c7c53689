/* From the options of a writing command to its job (publish/job_state.h). */
#include "cli/writing/writing.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "io/sys.h"
#include "publish/job_state.h"
#include "publish/replacement.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/document.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

/* ---- what is said of a job: its source, what it continues, its description and report ---- */

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
static tsr_status describe_work(cli_writing *w, tsr_str *text, tsr_error *err)
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

/* "2 tensors, 1 object, 112 B in 2 files" */
static void put_contents(const cli_writing *w, const tsr_conversion_counts *t)
{
    fputs(cli_plural(t->tensors, "tensor").text, stderr);
    if (t->objects) fprintf(stderr, ", %s", cli_plural(t->objects, "object").text);
    fprintf(stderr, ", %s in %s", cli_bytes(w->job.conversion.byte_total).text,
            cli_plural(w->job.conversion.file_count, "file").text);
}

static void report_text(const cli_writing *w)
{
    tsr_conversion_counts t;
    tsr_conversion_count(&w->job.conversion, &t);
    if (w->options->json || w->is_reported || w->program->options.quiet) return;
    if (w->job.is_complete) {
        cli_put(stderr, tsr_str_from(w->destination));
        fputs(" is already complete: ", stderr);
        put_contents(w, &t);
        fputs("; nothing was written\n", stderr);
        return;
    }
    if (resumed_remotely(w)) cli_report_resumed(w->program, &w->job.resumed);
    if (w->job.units_found && !w->finish) {
        fprintf(stderr, "resumed: %s of %s %s done already\n", cli_number(w->job.units_found).text,
                cli_plural(w->job.units, "unit").text, w->job.units_found == 1 ? "was" : "were");
    }
    if (w->share && !w->job.published) {
        fprintf(stderr, "%sshare %" PRIu64 " of %" PRIu64 " of ", w->options->dry_run ? "would write " : "", w->share,
                w->shares);
        cli_put(stderr, tsr_str_from(w->destination));
        if (!w->options->dry_run) fprintf(stderr, " is done; %.2f s", w->seconds);
        fputc('\n', stderr);
        return;
    }
    fprintf(stderr, "%s ", w->options->dry_run ? "would write" : "wrote");
    cli_put(stderr, tsr_str_from(w->destination));
    fputs(": ", stderr);
    put_contents(w, &t);
    if (t.cast) fprintf(stderr, ", %s cast", cli_number(t.cast).text);
    if (t.kept) fprintf(stderr, ", %s of optimizer state not cast", cli_plural(t.kept, "scalar").text);
    if (t.set_aside) fprintf(stderr, ", %s in the sidecar", cli_plural(t.set_aside, "object").text);
    if (t.left_out > t.set_aside) fprintf(stderr, ", %s left out", cli_number(t.left_out - t.set_aside).text);
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
                  {"part", w->share},
                  {"parts", w->shares}};
    tsr_json_put_bool(json, "published", w->job.published);
    tsr_json_put_object(json, "work");
    for (size_t i = 0; i < (w->share ? 5u : 3u); i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
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
    cli_document_start(w->program, &json, err);
    const tsr_status status = tsr_document_conversion(&document, &json);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

/* Keeps a warning for the document. TSR_E_NOMEM if it has no data, too. */
static tsr_status keep_warning(cli_writing *w, tsr_str text, tsr_error *err)
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
    if (w->source.ignores_shards) TSR_TRY(keep_warning(w, TSR_STR(TSR_SHARDS_UNUSED), err));
    TSR_TRY(tsr_opening_warnings(cli_source_checkpoint(&w->source), w->arena, &w->warnings, err));
    TSR_TRY(tsr_mapping_add_notes(w->source.checkpoint, w->options->config, &w->warnings, err));
    const size_t before = w->warnings.count;
    const tsr_selection selection = {tsr_globs_select, &w->options->selection};
    const tsr_status status =
        tsr_conversion_warnings(w->source.checkpoint, &w->job.conversion, w->to, &selection, w->arena, &w->warnings, err);
    const tsr_str *warnings = w->warnings.items;
    for (size_t i = before; i < w->warnings.count; i++) cli_warn(w->program, "%.*s", TSR_STR_ARG(warnings[i]));
    return status;
}

/* Reports on stderr what was written; with --json, prints the document on stdout. */
static tsr_status report_writing(cli_writing *w, tsr_error *err)
{
    TSR_TRY(warn(w, err));
    report_text(w);
    return w->options->json ? report_json(w, err) : TSR_OK;
}

/* ---- against ---- */

/* --against: refuses to write a checkpoint that could not be loaded. */

/* Refuses a planned conversion whose names, shapes and dtypes do not fit those of --against. */
static tsr_status check_against(const cli_writing *w, tsr_error *err)
{
    cli_contract against;
    tsr_status status = cli_contract_open(w->program, w->against, &against, err);
    if (status != TSR_OK) cli_in_option(status, "against", w->against, err);
    else status = tsr_conversion_check(&w->job.conversion, &against.contract, cli_host(w->program), err);
    cli_contract_free(&against);
    return status;
}

/* ---- container ---- */

/* Decides which files DEST will consist of. */

bool cli_container_of_name(const char *path, tsr_container *out)
{
    static const struct {
        const char *suffix;
        tsr_container to;
    } suffixes[] = {
        {".safetensors", TSR_TO_SAFETENSORS}, {".pt", TSR_TO_TORCH}, {".pth", TSR_TO_TORCH}, {".bin", TSR_TO_TORCH}};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (!tsr_str_ends(tsr_str_from(path), tsr_str_from(suffixes[i].suffix))) continue;
        *out = suffixes[i].to;
        return true;
    }
    return false;
}

static bool ends_in_slash(const char *path)
{
    return tsr_str_ends(tsr_str_from(path), TSR_STR("/"));
}

/* --max-shard-size means safetensors where the extension of DEST does not mean anything else, and so does a directory with a
 * config.json: together they are a model as transformers saves it. */
static tsr_status infer(cli_writing *w, uint64_t max_shard_size, tsr_error *err)
{
    w->to = TSR_TO_SAFETENSORS;
    if (strcmp(w->destination, "-") == 0) return TSR_OK; /* tsr_destination_of refuses it */
    const bool is_model = max_shard_size || (w->options->config && ends_in_slash(w->destination));
    if (!cli_container_of_name(w->destination, &w->to) && !is_model)
        return tsr_raise(
            tsr_naming(err), TSR_E_USAGE, TSR_NO_POSITION,
            "cannot infer the output format from '%s'; pass --to safetensors, torch, dcp, megatron-dist, deepspeed-universal or ranks",
            w->destination);
    return TSR_OK;
}

static void choose_form(cli_writing *w)
{
    const tsr_convert_options known = {
        .to = w->to, .max_shard_size = w->max_shard_size, .per_part = w->per_part, .plan = w->plan};
    w->form = tsr_job_form_of(&known, w->destination);
}

tsr_status cli_choose_container(cli_writing *w, unsigned to, uint64_t max_shard_size, tsr_error *err)
{
    const tsr_status status = to ? TSR_OK : infer(w, max_shard_size, err);
    if (status != TSR_OK) return status;
    if (to) w->to = (tsr_container)(to - 1);
    if (max_shard_size && w->to != TSR_TO_SAFETENSORS)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--max-shard-size can only be used with --to safetensors");
    if (w->to == TSR_TO_DEEPSPEED_UNIVERSAL && w->options->overwrite)
        return tsr_raise(
            tsr_naming(err), TSR_E_USAGE, TSR_NO_POSITION,
            "--overwrite cannot be used with --to deepspeed-universal, which only writes a new directory; remove '%s' first if it exists",
            w->destination);
    w->max_shard_size = max_shard_size;
    choose_form(w);
    return TSR_OK;
}

/* A checkpoint with parts becomes a directory of safetensors files, one per part, unless DEST is the name of one file. */
void cli_choose_parts(cli_writing *w)
{
    const bool one_file = tsr_str_ends(tsr_str_from(w->destination), TSR_STR(".safetensors"));
    w->per_part = w->to == TSR_TO_SAFETENSORS && !w->max_shard_size && !one_file && w->source.catalog->part_count;
    choose_form(w);
}

tsr_status cli_place_file(const char *destination, tsr_str name, tsr_arena *arena, cli_file_place *out, tsr_error *err)
{
    struct stat info;
    *out = (cli_file_place){destination, TSR_STR("")};
    if (!ends_in_slash(destination)) return TSR_OK;
    if (!tsr_is_url(destination) && stat(destination, &info) != 0) {
        out->name = name;
        return TSR_OK;
    }
    out->path = tsr_arena_format(arena, err, "%s%.*s", destination, TSR_STR_ARG(name)).data;
    return out->path ? TSR_OK : TSR_E_NOMEM;
}

/* ---- source ---- */

/* Opens PATH with the layers that the options ask for. */
static tsr_status open_source(cli_writing *w, const char *path, tsr_error *err)
{
    const tsr_open_options used = {.selects = tsr_globs_select, .selects_ctx = &w->options->selection};
    const cli_map_options map = {.options = w->options, .lists = w->options->dry_run};
    return cli_open_mapped(w->program, path, &used, &map, &w->source, err);
}

tsr_status cli_open_conversion(cli_writing *w, const char *path, tsr_error *err)
{
    tsr_convert_options ranks;
    tsr_status status = cli_choose_container(w, w->options->to, w->options->max_shard_size, err);
    w->program->writes_ranks = w->to == TSR_TO_RANKS;
    if (status == TSR_OK) status = open_source(w, path, err);
    if (status == TSR_OK && w->to == TSR_TO_RANKS) status = cli_read_shards(w->program, &w->shards, err);
    ranks = (tsr_convert_options){.to = w->to};
    if (status == TSR_OK) status = tsr_conversion_ranks(w->options, w->shards, w->source.checkpoint, &ranks, err);
    w->world_size = ranks.world_size;
    if (status == TSR_OK) cli_choose_parts(w);
    return status;
}

tsr_status cli_open_reshard(cli_writing *w, const char *path, const tsr_target *target, tsr_plan **plan, tsr_error *err)
{
    tsr_status status = open_source(w, path, err);
    if (status != TSR_OK) return status;
    w->to = w->options->to ? (tsr_container)(w->options->to - 1) : tsr_container_for(w->source.catalog->format);
    const tsr_plan_options options = {.want = tsr_globs_want, .want_ctx = (void *)(uintptr_t)&w->options->selection};
    status = tsr_plan_for_texts(w->source.catalog, &(tsr_planning){&w->plan_job.target, target, &options},
                                cli_host(w->program), w->arena, plan, err);
    w->plan = *plan;
    choose_form(w);
    return status;
}

/* ---- options ---- */

static tsr_status make_options(cli_writing *w, const tsr_progress *progress, tsr_convert_options *out, tsr_error *err)
{
    const bool has_storage = w->plan && w->plan_job.storage.servers;
    tsr_status status = tsr_conversion_options(w->options, w->to, w->arena, out, err);
    if (status == TSR_OK && has_storage)
        status =
            tsr_storage_of(&w->plan_job.storage, w->source.catalog->store, cli_host(w->program), w->arena, &w->storage, err);
    out->max_shard_size = w->max_shard_size;
    out->per_part = w->per_part;
    out->shards = w->shards;
    out->world_size = w->world_size;
    out->progress = progress;
    out->plan = w->plan;
    out->storage = has_storage ? &w->storage : NULL;
    out->file_name = w->form.file_name;
    return status;
}

/* A plan's names were checked when the plan was made; all that can still be wrong is that it has none. */
static tsr_status check_names(cli_writing *w, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_status status =
        tsr_choice_of(w->source.catalog, w->options, w->plan ? &w->plan_job.target : NULL, w->arena, &choice, err);
    if (status == TSR_OK) status = tsr_name_choice_check(&choice, w->arena, err);
    return status == TSR_OK && !w->is_exec ? cli_warn_name_choice(w->program, &choice, w->arena, &w->warnings, err) : status;
}

/* For --dry-run and --against: plans the whole conversion before the destination is touched. */
static tsr_status decide(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    tsr_convert_options look = *options;
    if (!w->options->dry_run && !w->against) return TSR_OK;
    look.dry_run = true;
    const tsr_status status = tsr_convert(w->source.checkpoint, NULL, &look, w->arena, &w->job.conversion, err);
    return status == TSR_OK && w->against ? check_against(w, err) : status;
}

/* ---- the environment ---- */

static tsr_status warn_of(void *ctx, tsr_str text, bool lasts, tsr_error *err)
{
    const cli_guard *g = ctx;
    cli_warn(g->program, "%.*s", TSR_STR_ARG(text));
    return lasts && g->writing ? keep_warning(g->writing, text, err) : TSR_OK;
}

static void guard(void *ctx, tsr_remains (*remove)(void *state), void *state)
{
    cli_guard *g = ctx;
    g->cleanup = (cli_cleanup){.remove = remove, .ctx = state};
    cli_cleanup_add(&g->cleanup);
}

static void unguard(void *ctx)
{
    cli_guard *g = ctx;
    cli_cleanup_drop(&g->cleanup);
}

static void hold(void *ctx)
{
    (void)ctx;
    cli_signals_hold();
}

static void release(void *ctx)
{
    (void)ctx;
    cli_signals_release();
}

tsr_job_environment cli_environment(cli_guard *g)
{
    return (tsr_job_environment){NULL, warn_of, guard, unguard, hold, release, g};
}

/* ---- the job ---- */

static tsr_status describe(void *ctx, tsr_str *text, tsr_error *err)
{
    return describe_work(ctx, text, err);
}

static tsr_status list_inputs(void *ctx, tsr_inputs *inputs, tsr_error *err)
{
    const cli_writing *w = ctx;
    tsr_status status = tsr_inputs_add(inputs, w->source.store, cli_source_checkpoint(&w->source), err);
    for (size_t i = 0; i < w->source.other_count && status == TSR_OK; i++)
        status = tsr_inputs_add(inputs, w->source.others[i].store, cli_source_checkpoint(&w->source.others[i]), err);
    const tsr_command_options *o = w->options;
    const char *const documents[] = {w->plan_path, w->against,       o->target,  o->map,
                                     o->storage,   o->source.shards, o->modules, o->flat_params};
    for (size_t i = 0; i < sizeof documents / sizeof *documents && status == TSR_OK; i++)
        status = tsr_inputs_add_path(inputs, documents[i], err);
    return status;
}

static tsr_status unchanged(void *ctx, tsr_error *err)
{
    const cli_writing *w = ctx;
    return cli_unchanged(&w->source, err);
}

static tsr_job_extent extent_of(const cli_writing *w)
{
    if (!w->is_exec) return TSR_JOB_WHOLE;
    if (w->share) return w->finish ? TSR_JOB_SHARE_AND_FINISH : TSR_JOB_SHARE;
    return w->finish ? TSR_JOB_FINISH : TSR_JOB_REST;
}

/* What publish/job_state.h needs to know of the command. */
static void make_job(cli_writing *w, const tsr_convert_options *options)
{
    const tsr_conversion planned = w->job.conversion;
    w->guard = (cli_guard){.program = w->program, .writing = w};
    w->job = (tsr_job){.environment = cli_environment(&w->guard),
                       .host = cli_host(w->program),
                       .arena = w->arena,
                       .destination = w->destination,
                       .is_directory = w->form.is_directory,
                       .file_name = w->form.file_name,
                       .marker = w->form.marker,
                       .source = w->source.checkpoint,
                       .options = options,
                       .has_holes = tsr_directory_store_has_holes(w->source.store),
                       .sources = w->sources.items,
                       .source_count = w->sources.count,
                       .replaces = w->options->overwrite,
                       .resumes = w->options->resume,
                       .discards_parts = w->options->discard_parts,
                       .is_trusting = w->options->no_verify,
                       .extent = extent_of(w),
                       .share = w->share,
                       .shares = w->shares,
                       .describe = describe,
                       .list_inputs = list_inputs,
                       .unchanged = unchanged,
                       .ctx = w,
                       .conversion = planned};
    w->job.environment.ranks = w->program->ranks;
}

/* Both are options of exec, too, where other shares have written. */
static tsr_status check_trust(const cli_writing *w, tsr_error *err)
{
    TSR_FAIL_IF(w->options->no_verify && !w->options->resume && !w->is_exec, err, TSR_E_USAGE,
                "--no-verify needs --resume: only what an interrupted run has written is read again");
    return TSR_OK;
}

tsr_status cli_write(cli_writing *w, tsr_error *err)
{
    cli_progress progress;
    tsr_convert_options options;
    double start = tsr_seconds();
    w->warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    cli_allow_expansion(w->program, w->options->allow_expansion);
    cli_progress_start(&progress, w->program, w->what);
    tsr_status status = check_trust(w, err);
    if (status == TSR_OK) status = cli_list_sources(w->program, w->source.path, &w->source, w->arena, &w->sources, err);
    if (status == TSR_OK) status = check_names(w, err);
    if (status == TSR_OK) status = make_options(w, &progress.base, &options, err);
    if (status == TSR_OK) status = decide(w, &options, err);
    status = cli_agree(w->program, status, err);
    if (status == TSR_OK) {
        make_job(w, &options);
        status = w->options->dry_run ? tsr_job_check(&w->job, err) : tsr_job_run(&w->job, err);
    }
    cli_progress_end(&progress);
    w->seconds = tsr_seconds() - start;
    return status == TSR_OK && cli_speaks(w->program) ? report_writing(w, err) : status;
}

void cli_writing_close(cli_writing *w)
{
    tsr_vec_free(&w->warnings);
}

static tsr_status refuse(const char *what, const char *path, tsr_error *err)
{
    return tsr_raise(tsr_naming(err), TSR_E_IO, TSR_NO_POSITION, "cannot %s '%s': %s", what, path, strerror(errno));
}

/* Whether a file was written by `layout`, `manifest` or `get`, so that it is not part of a checkpoint. Its content decides,
 * because a name does not show what would be lost. */
static bool is_earlier_output(const char *path)
{
    char head[128] = {0};
    char kind[16];
    int matched = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    const size_t size = fread(head, 1, sizeof head - 1, file);
    fclose(file);
    if (tsr_str_starts((tsr_str){head, size}, TSR_STR("\x93NUMPY"))) return true;
    if (sscanf(head, " { \"schema\" : \"tessera.%15[a-z]/1\"%n", kind, &matched) != 1 || !matched) return false;
    return strcmp(kind, "layout") == 0 || strcmp(kind, "manifest") == 0;
}

static tsr_status refuse_source(const char *path, const cli_session *source, tsr_error *err)
{
    tsr_inputs inputs = tsr_inputs_new();
    tsr_status status = tsr_inputs_add(&inputs, source->store, NULL, err);
    const tsr_input *input = status == TSR_OK ? tsr_inputs_find(&inputs, AT_FDCWD, path) : NULL;
    if (input && !is_earlier_output(path))
        status = tsr_raise(tsr_naming(err), TSR_E_USAGE, TSR_NO_POSITION,
                           "the output '%s' is the file '%s' of the checkpoint that is being read; choose another name",
                           path, input->name);
    tsr_inputs_free(&inputs);
    return status;
}

/* A FILE that writes to the output (fopencookie). */
static ssize_t write_on(void *ctx, const char *data, size_t size)
{
    cli_out_file *out = ctx;
    tsr_output *output = out->publication.output;
    if (output->write_at(output, out->file, out->size, data, size, &out->failed) != TSR_OK) return 0;
    out->size += size;
    return (ssize_t)size;
}

static tsr_status open_stream(cli_out_file *out, tsr_error *err)
{
    tsr_output *output = out->publication.output;
    TSR_TRY(output->create(output, TSR_STR(""), 0, &out->file, err));
    out->to = fopencookie(out, "wb", (cookie_io_functions_t){.write = write_on});
    return out->to ? TSR_OK : refuse("create", out->path, err);
}

/* `place` is the file itself, not a link to it. */
static tsr_status open_beside(cli_out_file *out, cli *program, const char *place, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    out->arena = tsr_arena_new(host->allocator, 0, err);
    const tsr_str destination = out->arena ? tsr_arena_str(out->arena, tsr_str_from(place), err) : (tsr_str){NULL, 0};
    out->guard = (cli_guard){.program = program};
    out->publication = (tsr_publication){.environment = cli_environment(&out->guard),
                                         .host = host,
                                         .arena = out->arena,
                                         .destination = destination.data,
                                         .line = TSR_STR("one file by -o\n"),
                                         .replaces = true};
    tsr_status status = destination.data ? tsr_publication_open(&out->publication, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_stream(out, err);
    if (status == TSR_OK) return status;
    tsr_publication_close(&out->publication, status);
    tsr_arena_free(out->arena);
    return status;
}

tsr_status cli_out_open(cli *program, const char *path, const cli_session *source, cli_out_file *out, tsr_error *err)
{
    struct stat info;
    *out = (cli_out_file){.path = path};
    if (strcmp(path, "-") == 0) {
        out->to = stdout;
        return TSR_OK;
    }
    TSR_TRY(refuse_source(path, source, err));
    const bool exists = stat(path, &info) == 0;
    if (exists && !S_ISREG(info.st_mode)) {
        out->to = fopen(path, "wb"); /* fails for a directory, with the reason in errno */
        return out->to ? TSR_OK : refuse("create", path, err);
    }
    char *there = exists ? realpath(path, NULL) : NULL;
    const tsr_status status =
        exists && !there ? refuse("create", path, err) : open_beside(out, program, there ? there : path, err);
    free(there);
    return status;
}

tsr_status cli_out_close(cli_out_file *out, tsr_status status, tsr_error *err)
{
    if (out->to == stdout) return status;
    if (fclose(out->to) != 0 && status == TSR_OK) status = refuse("write", out->path, err);
    if (!out->arena) return status;
    if (out->failed.status != TSR_OK) { /* says why, unlike what the caller made of it */
        *err = out->failed;
        status = err->status;
    }
    if (status == TSR_OK) status = tsr_publication_publish(&out->publication, out->file, err);
    tsr_publication_close(&out->publication, status);
    tsr_arena_free(out->arena);
    return status;
}
