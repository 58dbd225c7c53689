/* `tessera optim ACTION PATH DEST`: converts optimizer state from one form to another. The library does the conversion; this
 * file reads its documents, and writes its files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/writing/writing.h"
#include "io/sys.h"
#include "tessera/optim_convert.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/publication.h"
#include "tessera/sys/try.h"

/* A file whose text the library uses. */
typedef struct loaded {
    tsr_store *store;
    tsr_bytes bytes;
} loaded;

typedef struct job {
    cli *program;
    const tsr_command_options *arguments;
    tsr_optim_request request;
    loaded modules, flat_params;
    tsr_ring *ring;
    cli_files files;
    tsr_optim_job *optim;
    tsr_arena *arena;
    const char *source, *destination;
    cli_file_place place; /* of a single file */
    cli_progress progress;
    uint32_t files_written;
    uint64_t bytes_written;
    bool is_complete; /* an earlier run had written the same files, so nothing was written */
} job;

/* ---- arguments ---- */

static tsr_status read_document(job *j, const char *option, const char *path, loaded *file, tsr_optim_document *out,
                                tsr_error *err)
{
    if (!path) return TSR_OK;
    const tsr_status status = cli_load_file(j->program, path, &file->store, &file->bytes, err);
    *out = (tsr_optim_document){file->bytes.data, tsr_is_document(path) ? "document" : path};
    return cli_in_option(status, option, path, err);
}

static void free_document(loaded *file)
{
    tsr_bytes_free(&file->bytes);
    if (file->store) file->store->close(file->store);
}

static void warn(void *ctx, tsr_str message)
{
    cli_warn(ctx, "%.*s", TSR_STR_ARG(message));
}

static tsr_status read_request(job *j, tsr_error *err)
{
    const tsr_command_options *a = j->arguments;
    tsr_optim_request *r = &j->request;
    const bool shards = r->action == TSR_OPTIM_UNSHARD || r->action == TSR_OPTIM_SHARD;
    r->sharded = a->sharded;
    r->at = a->at ? tsr_str_from(a->at) : (tsr_str){NULL, 0};
    if (j->program->options.source.part) r->part = tsr_str_from(j->program->options.source.part);
    r->warn = warn;
    r->warn_ctx = j->program;
    r->has_world_size = a->ranks.given;
    r->world_size = a->ranks.value;
    r->has_rank = a->rank.given;
    r->rank = a->rank.value;
    tsr_status status = read_document(j, "modules", a->modules, &j->modules, &r->modules, err);
    if (status == TSR_OK && shards)
        status = read_document(j, "flat-params", a->flat_params, &j->flat_params, &r->flat_params, err);
    if (status == TSR_OK) status = tsr_ring_new(cli_host(j->program), (size_t)a->max_memory, &j->ring, err);
    r->ring = j->ring;
    return status;
}

enum { TO_DCP = 2 };

/* The forms that names such as out.safetensors ask for are not written here. */
static tsr_status check_name(const job *j, tsr_error *err)
{
    tsr_container named;
    const char *name = j->destination;
    const char *action = tsr_optim_action_names[j->request.action];
    const bool directory =
        j->request.action == TSR_OPTIM_SHARD || (j->request.action == TSR_OPTIM_UNSHARD && j->request.sharded);
    TSR_FAIL_IF(directory && j->arguments->to == TO_DCP, err, TSR_E_USAGE,
                "optim %s writes one torch file per rank; run tessera convert on the directory for a DCP",
                j->request.sharded ? "unshard --sharded" : action);
    if (j->arguments->to == TO_DCP || !cli_container_of_name(name, &named)) return TSR_OK;
    TSR_FAIL_IF(
        directory, tsr_naming(err), TSR_E_USAGE,
        "'%s' is the name of a single file, but optim %s writes a directory with one file per rank; leave out the extension",
        name, j->request.sharded ? "unshard --sharded" : action);
    TSR_FAIL_IF(
        named == TSR_TO_SAFETENSORS, tsr_naming(err), TSR_E_USAGE,
        "optim %s writes a torch file, because safetensors cannot hold param_groups; name it .pt instead of '%s', and "
        "run tessera convert with --objects sidecar on it if you need safetensors",
        action, name);
    return TSR_OK;
}

/* ---- command ---- */

/* What the result depends on apart from the source's bytes, so that no other job's unfinished files are continued. */
static tsr_str recipe_of(const job *j, tsr_arena *arena, tsr_error *err)
{
    const tsr_optim_request *r = &j->request;
    uint32_t sum = tsr_crc32(cli_host(j->program), 0, r->modules.text.data, r->modules.text.size);
    sum = tsr_crc32(cli_host(j->program), sum, r->flat_params.text.data, r->flat_params.text.size);
    return tsr_arena_format(arena, err, "optim %s %08" PRIx32 " %d %" PRIu64 " %.*s", tsr_optim_action_names[r->action], sum,
                            r->has_rank, r->rank, TSR_STR_ARG(r->at));
}

static tsr_status convert_result(job *j, cli_writing *w, tsr_store *result, tsr_error *err)
{
    const tsr_open_options any = {.purpose = TSR_FOR_FINDINGS};
    tsr_checkpoint *layer;
    tsr_status status = cli_open(j->program, j->source, &any, &w->source, err);
    if (status == TSR_OK) status = tsr_checkpoint_open(result, cli_host(j->program), NULL, &layer, err);
    if (status != TSR_OK) return status;
    cli_add_layer(&w->source, layer);
    w->source.recipe = recipe_of(j, w->arena, err);
    status = w->source.recipe.data ? cli_choose_container(w, 1 + TSR_TO_DCP, 0, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = cli_write(w, err);
    j->is_complete = w->job.is_complete;
    j->files_written = w->job.conversion.file_count;
    for (uint32_t i = 0; i < w->job.conversion.file_count; i++) j->bytes_written += w->job.conversion.file_sizes[i];
    return status;
}

/* Converts the torch file that would be written, as it is read from memory. */
static tsr_status write_dcp(job *j, tsr_error *err)
{
    const tsr_command_options options = {.modules = j->arguments->modules, /* recipe_of has their texts */
                                         .flat_params = j->arguments->flat_params,
                                         .max_memory = j->arguments->max_memory,
                                         .no_checksums = j->arguments->no_checksums,
                                         .overwrite = j->arguments->overwrite,
                                         .resume = j->arguments->resume,
                                         .allow_expansion = j->arguments->allow_expansion};
    cli_writing w = {.program = j->program,
                     .options = &options,
                     .what = tsr_optim_action_names[j->request.action],
                     .destination = j->destination,
                     .is_reported = true, /* as a torch file is */
                     .arena = tsr_arena_new(cli_host(j->program)->allocator, 0, err)};
    tsr_store *result = NULL;
    tsr_status status = w.arena ? tsr_optim_store(j->optim, &result, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = convert_result(j, &w, result, err);
    cli_writing_close(&w);
    tsr_arena_free(w.arena);
    cli_close(&w.source);
    if (result) result->close(result);
    return status;
}

/* ---- files ---- */

/* The name of the source, for a file in a directory. A directory that is read has a name without an extension. */
static tsr_str source_name(const job *j, tsr_error *err)
{
    const bool is_file = j->files.store->primary != TSR_NO_FILE;
    tsr_str name = is_file ? j->files.store->files[j->files.store->primary].name : tsr_str_from(j->source);
    while (name.size > 1 && name.data[name.size - 1] == '/') name.size--;
    for (size_t i = name.size; i-- > 0;) {
        if (name.data[i] != '/') continue;
        name = tsr_str_after(name, i + 1);
        break;
    }
    return tsr_arena_format(j->arena, err, "%.*s%s", TSR_STR_ARG(name), is_file ? "" : ".pt");
}

/* A destination that ends in '/' is a directory, in which a single file has the source's name. */
static tsr_status choose_place(job *j, tsr_error *err)
{
    j->place = (cli_file_place){j->destination, TSR_STR("")};
    if (tsr_optim_is_directory(j->optim)) return TSR_OK;
    const tsr_str name = source_name(j, err);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(cli_place_file(j->destination, name, j->arena, &j->place, err));
    j->destination = j->place.path;
    return TSR_OK;
}

static tsr_str file_name(const job *j, uint32_t index)
{
    return j->place.name.size ? j->place.name : tsr_optim_file_name(j->optim, index);
}

static bool is_directory(const job *j)
{
    return tsr_optim_is_directory(j->optim) || j->place.name.size;
}

static tsr_status write_files(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    job *j = ctx;
    j->files_written = 0;
    j->bytes_written = 0;
    for (uint32_t i = 0; i < tsr_optim_file_count(j->optim); i++) {
        tsr_tree_file file = {.output = output,
                              .name = file_name(j, i),
                              .ring = j->ring,
                              .progress = &j->progress.base,
                              .unsummed = j->arguments->no_checksums};
        TSR_TRY(tsr_optim_write(j->optim, i, &file, err));
        if (!is_directory(j)) *marker = file.number;
        j->bytes_written += file.bytes;
        j->files_written++;
    }
    return TSR_OK;
}

static tsr_status publish(job *j, tsr_error *err)
{
    const char *const documents[] = {j->arguments->modules, j->arguments->flat_params};
    cli_guard guard = {.program = j->program};
    tsr_texts sources;
    TSR_TRY(choose_place(j, err));
    TSR_TRY(cli_list_sources(j->program, j->source, NULL, j->arena, &sources, err));
    const size_t count = tsr_optim_file_count(j->optim);
    tsr_str *names = tsr_arena_array(j->arena, count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) names[i] = file_name(j, i);
    tsr_publication p = {.environment = cli_environment(&guard),
                         .host = cli_host(j->program),
                         .arena = j->arena,
                         .destination = j->destination,
                         .line = TSR_STR("optimizer state\n"),
                         .is_directory = is_directory(j),
                         .names = names,
                         .name_count = count,
                         .source = j->files.store,
                         .sources = sources.items,
                         .source_count = sources.count,
                         .documents = documents,
                         .document_count = 2,
                         .replaces = j->arguments->overwrite,
                         .resumes = j->arguments->resume,
                         .write = write_files,
                         .ctx = j};
    const tsr_status status = tsr_publication_run(&p, err);
    j->is_complete = p.is_complete;
    return status;
}

static tsr_status write_output(job *j, tsr_error *err)
{
    if (j->arguments->to == TO_DCP) return write_dcp(j, err);
    j->arena = tsr_arena_new(cli_host(j->program)->allocator, 0, err);
    if (!j->arena) return TSR_E_NOMEM;
    cli_progress_start(&j->progress, j->program, tsr_optim_action_names[j->request.action]);
    const tsr_status status = publish(j, err);
    cli_progress_end(&j->progress);
    return status;
}

static tsr_status run_job(job *j, tsr_error *err)
{
    const tsr_host *host = cli_host(j->program);
    tsr_status status = read_request(j, err);
    if (status == TSR_OK) status = tsr_optim_request_check(&j->request, err);
    if (status == TSR_OK) status = check_name(j, err);
    if (status == TSR_OK) status = cli_files_open(j->program, j->source, &j->files, err);
    if (status == TSR_OK) status = tsr_optim_open(j->files.store, host, &j->request, &j->optim, err);
    return status == TSR_OK ? write_output(j, err) : status;
}

static tsr_status report_json(const job *j, double seconds, tsr_error *err)
{
    tsr_json json;
    size_t count;
    const tsr_str *carried = tsr_optim_carried(j->optim, &count);
    cli_document_start(j->program, &json, err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.optim/1");
    tsr_json_put_text(&json, "action", tsr_optim_action_names[j->request.action]);
    tsr_json_put_text(&json, "source", j->source);
    tsr_json_put_text(&json, "destination", j->destination);
    tsr_json_put_uint(&json, "files", j->files_written);
    tsr_json_put_uint(&json, "bytes", j->bytes_written);
    tsr_json_put_double(&json, "seconds", seconds);
    tsr_json_put_array(&json, "carried");
    for (size_t i = 0; i < count; i++) tsr_json_str(&json, carried[i]);
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static void report_text(const job *j, double seconds)
{
    const bool is_complete = j->is_complete;
    if (!is_complete) fputs("wrote ", stderr);
    cli_put(stderr, tsr_str_from(j->destination));
    if (is_complete) {
        fprintf(stderr, " is already complete: %s in %s; nothing was written\n", cli_bytes(j->bytes_written).text,
                cli_plural(j->files_written, "file").text);
        return;
    }
    fprintf(stderr, ": %s in %s; %.2f s\n", cli_bytes(j->bytes_written).text, cli_plural(j->files_written, "file").text,
            seconds);
}

static void close_job(job *j)
{
    tsr_arena_free(j->arena);
    tsr_optim_close(j->optim);
    tsr_ring_free(j->ring);
    cli_files_close(&j->files);
    free_document(&j->modules);
    free_document(&j->flat_params);
}

static int run(cli *program, const tsr_command_options *a)
{
    tsr_error err = {0};
    job j = {
        .program = program, .arguments = a, .source = program->operands.items[1], .destination = program->operands.items[2]};
    const double started = tsr_seconds();
    cli_allow_expansion(program, a->allow_expansion);
    tsr_status status = tsr_optim_action_find(program->operands.items[0], &j.request.action, &err);
    if (status == TSR_OK) status = run_job(&j, &err);
    if (status == TSR_OK && a->json) status = report_json(&j, tsr_seconds() - started, &err);
    else if (status == TSR_OK && !program->options.quiet) report_text(&j, tsr_seconds() - started);
    const int result = status == TSR_OK ? CLI_DONE : cli_fail_error(program, j.files.store ? j.source : NULL, &err);
    close_job(&j);
    return result;
}

const cli_command cli_optim = {
    .name = "optim",
    .examples = "tessera optim flatten optim.pt flat.pt --modules modules.json\nFlatten {\"state\": …, "
                "\"param_groups\": …} to \"state.fc.weight.exp_avg\", …\n"
                "tessera optim to-fqn optim.pt named.pt --modules modules.json\nReplace parameter ids by names\n"
                "tessera optim unshard ranks/ full.pt --flat-params flat.json\n"
                "Join the raw FSDP1 states of all ranks to the full state\n"
                "tessera optim unshard ranks/ sharded/ --flat-params flat.json --sharded\n"
                "Write FSDP's sharded state, one file per rank\n"
                "tessera optim shard full.pt ranks/ --flat-params flat.json --world-size 8\n"
                "Shard the full state for any number of ranks\n",
    .run = run,
};
