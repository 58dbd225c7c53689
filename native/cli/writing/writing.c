/* From the options of a writing command to its job (publish/job_state.h). */
#include "cli/writing/writing.h"

#include "cli/program/map_options.h"
#include "io/sys.h"
#include "publish/replacement.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
            err, TSR_E_USAGE, TSR_NO_POSITION,
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
            err, TSR_E_USAGE, TSR_NO_POSITION,
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
    return status == TSR_OK && w->against ? cli_check_against(w, err) : status;
}

/* ---- the environment ---- */

static tsr_status warn_of(void *ctx, tsr_str text, bool lasts, tsr_error *err)
{
    const cli_guard *g = ctx;
    cli_warn(g->program, "%.*s", TSR_STR_ARG(text));
    return lasts && g->writing ? cli_keep_warning(g->writing, text, err) : TSR_OK;
}

static void guard(void *ctx, bool (*remove)(void *state), void *state)
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
    return cli_describe_work(ctx, text, err);
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
    if (w->part) return w->finish ? TSR_JOB_SHARE_AND_FINISH : TSR_JOB_SHARE;
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
                       .is_folder = w->form.is_folder,
                       .file_name = w->form.file_name,
                       .marker = w->form.marker,
                       .source = w->source.checkpoint,
                       .options = options,
                       .has_holes = tsr_folder_store_has_holes(w->source.store),
                       .sources = w->sources.items,
                       .source_count = w->sources.count,
                       .replaces = w->options->overwrite,
                       .resumes = w->options->resume,
                       .discards_parts = w->options->discard_parts,
                       .is_trusting = w->options->no_verify,
                       .extent = extent_of(w),
                       .part = w->part,
                       .parts = w->parts,
                       .describe = describe,
                       .list_inputs = list_inputs,
                       .unchanged = unchanged,
                       .ctx = w,
                       .conversion = planned};
    w->job.environment.ranks = w->program->ranks;
}

static tsr_status write_all(cli_writing *w, const tsr_progress *progress, tsr_error *err)
{
    tsr_convert_options options;
    tsr_status status = cli_list_sources(w->program, w->source.path, &w->source, w->arena, &w->sources, err);
    if (status == TSR_OK) status = check_names(w, err);
    if (status == TSR_OK) status = make_options(w, progress, &options, err);
    if (status == TSR_OK) status = decide(w, &options, err);
    status = cli_agree(w->program, status, err);
    if (status != TSR_OK) return status;
    make_job(w, &options);
    return w->options->dry_run ? tsr_job_check(&w->job, err) : tsr_job_run(&w->job, err);
}

tsr_status cli_write(cli_writing *w, tsr_error *err)
{
    cli_progress progress;
    double start = tsr_seconds();
    w->warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    cli_allow_expansion(w->program, w->options->allow_expansion);
    cli_progress_start(&progress, w->program, w->what);
    tsr_status status = write_all(w, &progress.base, err);
    cli_progress_end(&progress);
    w->seconds = tsr_seconds() - start;
    return status == TSR_OK && cli_speaks(w->program) ? cli_report_writing(w, err) : status;
}

void cli_writing_close(cli_writing *w)
{
    tsr_vec_free(&w->warnings);
}

static tsr_status refuse(const char *what, const char *path, tsr_error *err)
{
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot %s '%s': %s", what, path, strerror(errno));
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
    tsr_inputs inputs = tsr_inputs_of(&tsr_allocator_libc);
    tsr_status status = tsr_inputs_add(&inputs, source->store, NULL, err);
    const tsr_input *input = status == TSR_OK ? tsr_inputs_find(&inputs, AT_FDCWD, path) : NULL;
    if (input && !is_earlier_output(path))
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
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
