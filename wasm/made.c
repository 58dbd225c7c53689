/* What is made from a checkpoint: optimizer state in another form, as a checkpoint whose tensors are read from the source on
 * request, and conversions, which are written in steps. */
#include "request.h"
#include "tessera/convert.h"
#include "tessera/optim_convert.h"
#include "tessera/output.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"
#include "tessera/sys/work.h"

#include <stdlib.h>

struct made {
    tsr_host host;
    tsr_ring *ring;
    tsr_optim_job *job;
    tsr_store *store; /* of the result */
    tsr_arena *arena;
    tsr_vec warnings; /* of tsr_str, in the arena */
    bool is_complete;
};

static void free_made(made *m)
{
    if (m->store) m->store->close(m->store);
    tsr_optim_close(m->job);
    tsr_ring_free(m->ring);
    tsr_vec_free(&m->warnings);
    tsr_arena_free(m->arena);
    free(m);
}

/* Remembers a warning. It is lost if there is no memory; then the following calls fail for the same reason. */
static void note_warning(void *ctx, tsr_str message)
{
    made *m = ctx;
    if (m->is_complete) return; /* writing repeats the earlier warnings */
    const tsr_str copy = tsr_arena_str(m->arena, message, NULL);
    tsr_str *noted = copy.data ? tsr_vec_push(&m->warnings, NULL) : NULL;
    if (noted) *noted = copy;
}

static tsr_str text_at(uint32_t pointer, uint32_t size)
{
    return (tsr_str){(const char *)(uintptr_t)pointer, size};
}

static tsr_optim_request request_of(made *m, tsr_str part, const tessera_optim_options *o)
{
    return (tsr_optim_request){.part = part,
                               .modules = {.text = text_at(o->modules, o->modules_size)},
                               .flat_params = {.text = text_at(o->flat_params, o->flat_params_size)},
                               .at = text_at(o->at, o->at_size),
                               .sharded = o->flags & TESSERA_OPTIM_SHARDED,
                               .has_world_size = o->flags & TESSERA_OPTIM_HAS_WORLD_SIZE,
                               .has_rank = o->flags & TESSERA_OPTIM_HAS_RANK,
                               .world_size = o->world_size,
                               .rank = o->rank,
                               .ring = m->ring,
                               .warn = note_warning,
                               .warn_ctx = m};
}

/* Files that are not one checkpoint may still be those of ranks. Then there is no checkpoint, so its store cannot be asked
 * for. */
static tsr_store *store_of(const opened *source)
{
    return source->checkpoint ? tsr_checkpoint_store(source->checkpoint) : source->store;
}

static tsr_status new_ring(made *m, const tessera_optim_options *options, tsr_error *err)
{
    const tsr_str given = text_at(options->max_mem, options->max_mem_size);
    uint64_t bytes = 0;
    if (given.data && !tsr_size_parse(given.data, &bytes))
        return tsr_fail(err, TSR_E_USAGE, "--max-mem takes a size such as 512MB or 2GiB, not '%.*s'", TSR_STR_ARG(given));
    return tsr_ring_new(&m->host, (size_t)bytes, &m->ring, err);
}

static tsr_status convert(made *m, const opened *source, const tessera_optim_options *options, tsr_error *err)
{
    m->warnings = tsr_vec_of(m->host.allocator, sizeof(tsr_str));
    m->arena = tsr_arena_new(m->host.allocator, 0, err);
    tsr_status status = m->arena ? new_ring(m, options, err) : TSR_E_NOMEM;
    tsr_optim_request request = request_of(m, source->chosen.part, options);
    if (status == TSR_OK) status = tsr_optim_action_find((const char *)(uintptr_t)options->action, &request.action, err);
    if (status == TSR_OK) status = tsr_optim_open(store_of(source), &m->host, &request, &m->job, err);
    if (status == TSR_OK) status = tsr_optim_store(m->job, &m->store, err);
    if (status != TSR_OK) return status;
    m->store->unsummed = true;
    m->is_complete = true;
    return TSR_OK;
}

/* Opens the result of an optimizer conversion as a checkpoint, which is closed together with `handle`. Returns a handle. */
TSR_EXPORT(tessera_optimizer)
uint32_t tessera_optimizer(uint32_t handle, const tessera_optim_options *options, tsr_error *err)
{
    const opened *source = tessera_item_of(handle, HANDLE_CHECKPOINT, err);
    made *m = source ? calloc(1, sizeof *m) : NULL;
    if (!m) {
        if (source) tsr_fail(err, TSR_E_NOMEM, "out of memory");
        return 0;
    }
    m->host = source->host;
    if (options->flags & TESSERA_OPTIM_ALLOW_EXPANSION) m->host.limits.repetition = UINT64_MAX;
    if (convert(m, source, options, err) == TSR_OK) return tessera_open_made(m, m->store, free_made, handle, err);
    free_made(m);
    return 0;
}

/* Whether a map of shards was given and `source` has no ranks to join. */
static bool ignores_shards(const tsr_open_options *chosen, const tsr_checkpoint *source)
{
    return chosen->shards && !tsr_checkpoint_joined_ranks(source);
}

static tsr_status write_warnings(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    const opened *item = ctx;
    const made *m = item->made;
    tsr_json_array(json);
    for (size_t i = 0; m && i < m->warnings.count; i++) tsr_json_str(json, ((const tsr_str *)m->warnings.items)[i]);
    if (item->checkpoint && ignores_shards(&item->chosen, item->checkpoint)) tsr_json_text(json, TSR_SHARDS_UNUSED);
    tsr_json_array_end(json);
    return json->status;
}

/* Returns the warnings that the command line prints when it writes this result, or opens this checkpoint, as a JSON array of
 * texts. */
TSR_EXPORT(tessera_warnings) document *tessera_warnings(uint32_t handle, tsr_error *err)
{
    opened *item = tessera_item_of(handle, HANDLE_CHECKPOINT, err);
    return item ? tessera_make_document(write_warnings, item, err) : NULL;
}

/* Sets the names and sizes of the result's files, allocated in `arena`. */
static tsr_status list_made(const made *m, tsr_arena *arena, tsr_conversion *out, tsr_error *err)
{
    const uint32_t count = tsr_optim_file_count(m->job);
    tsr_str *names = tsr_arena_array(arena, count, sizeof *names, err);
    uint64_t *sizes = tsr_arena_array(arena, count, sizeof *sizes, err);
    if (!names || !sizes) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        names[i] = tsr_optim_file_name(m->job, i);
        const uint32_t file = names[i].size ? tsr_store_find(m->store, names[i]) : m->store->primary;
        sizes[i] = m->store->files[file].size;
    }
    out->files = names;
    out->file_sizes = sizes;
    out->file_count = count;
    return TSR_OK;
}

/* Writes file `index` in the same way as `tessera optim`. */
static tsr_status write_made(made *m, uint32_t index, tsr_output *output, const tsr_progress *progress, tsr_error *err)
{
    tsr_tree_file file = {
        .output = output, .name = tsr_optim_file_name(m->job, index), .ring = m->ring, .progress = progress};
    return tsr_optim_write(m->job, index, &file, err);
}

/* ---- an output whose files the host writes ---- */

typedef struct host_sink {
    tsr_output output; /* must be first, because the output's functions cast back */
    uint32_t number;   /* the number to pass to tsr_create and tsr_write */
    uint32_t files;
} host_sink;

/* The files whose presence makes a DCP, a sharded safetensors, a Megatron-Core and a DeepSpeed universal checkpoint complete. */
static const char *const markers[] = {".metadata", "model.safetensors.index.json", "metadata.json", "latest_universal"};

static bool is_marker(tsr_str name)
{
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        if (tsr_str_equal(name, tsr_str_from(markers[i]))) return true;
    return false;
}

/* Provided by the host: create a file of `size` bytes (0: not yet known), and write bytes to it. They return 0 on success.
 * `marker` is set for the file whose presence makes the checkpoint complete. */
__attribute__((import_module("env"), import_name("tsr_create"))) extern uint32_t tsr_create(uint32_t sink, uint32_t file,
                                                                                            const void *name,
                                                                                            uint32_t name_size,
                                                                                            uint64_t size, uint32_t marker);
__attribute__((import_module("env"), import_name("tsr_write"))) extern uint32_t tsr_write(uint32_t sink, uint32_t file,
                                                                                          uint64_t offset, const void *data,
                                                                                          uint32_t size);

static tsr_status create_file(tsr_output *output, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    host_sink *sink = (host_sink *)output;
    *file = sink->files++;
    if (tsr_create(sink->number, *file, name.data, (uint32_t)name.size, size, is_marker(name)) == 0) return TSR_OK;
    return tsr_fail(err, TSR_E_IO, "'%.*s' cannot be created", TSR_STR_ARG(name));
}

static tsr_status write_at(tsr_output *output, uint32_t file, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    const host_sink *sink = (host_sink *)output;
    if (tsr_write(sink->number, file, offset, data, (uint32_t)size) == 0) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, offset, "%zu bytes cannot be written", size);
}

/* ---- convert and reshard, in steps of bounded size, into a sink of the host ---- */

typedef struct conversion {
    call call;
    tsr_convert_options options;
    tsr_target_texts texts;
    tsr_target target;
    tsr_plan *plan; /* only for reshard */
    tsr_work *work; /* NULL if the files of `made` are written as they are */
    made *made;     /* the optimizer state that is written, or NULL */
    tsr_conversion result;
    tsr_vec warnings; /* of tsr_str */
    host_sink sink;
    uint32_t sidecar_file;
    bool in_directory, is_open, is_done;
    uint64_t step, steps;
    tsr_progress progress;
    uint64_t byte_done, byte_before; /* in this step, and in all steps before it */
} conversion;

static void free_conversion(void *pointer)
{
    conversion *c = pointer;
    tsr_work_free(c->work);
    tsr_plan_free(c->plan);
    tsr_vec_free(&c->warnings);
    tessera_call_close(&c->call);
    free(c);
}

/* ---- options ---- */

static bool note_progress(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    (void)byte_total;
    ((conversion *)ctx)->byte_done = byte_done;
    return true;
}

/* The format, and whether the result is a directory. */
static tsr_status choose_container(conversion *c, bool reshards, tsr_container *to, tsr_error *err)
{
    const tsr_command_options *asked = &c->call.request.options;
    if (!asked->to && !reshards)
        return tsr_fail(
            err, TSR_E_USAGE,
            "cannot infer the output format; pass --to safetensors, torch, dcp, megatron-dist, deepspeed-universal or ranks");
    *to = asked->to ? (tsr_container)(asked->to - 1) : tsr_container_for(tsr_checkpoint_catalog(c->call.checkpoint)->format);
    if (asked->max_shard_size && *to != TSR_TO_SAFETENSORS)
        return tsr_fail(err, TSR_E_USAGE, "--max-shard-size can only be used with --to safetensors");
    return TSR_OK;
}

/* The map of shards that the checkpoint was opened with also cuts the output. */
static tsr_status read_options(conversion *c, bool reshards, tsr_error *err)
{
    const call *call = &c->call;
    const tsr_command_options *asked = &call->request.options;
    tsr_container to;
    TSR_TRY(choose_container(c, reshards, &to, err));
    TSR_TRY(tsr_conversion_options(asked, to, call->arena, &c->options, err));
    TSR_TRY(tsr_conversion_ranks(asked, call->chosen.shards, call->checkpoint, &c->options, err));
    c->progress = (tsr_progress){note_progress, c};
    c->options.progress = &c->progress;
    c->options.max_shard_size = asked->max_shard_size;
    c->options.per_part = !reshards && to == TSR_TO_SAFETENSORS && !asked->max_shard_size &&
                          tsr_checkpoint_catalog(call->checkpoint)->part_count;
    c->in_directory =
        reshards || asked->max_shard_size || c->options.per_part || (to != TSR_TO_SAFETENSORS && to != TSR_TO_TORCH);
    return TSR_OK;
}

/* ---- preparation ---- */

/* Whether a result of `optim` is converted to torch without other options. It is then written as `tessera optim` writes
 * it. */
static bool is_plain(const request *r, uint32_t option_count)
{
    return option_count == 1 && r->options.to == 1 + TSR_TO_TORCH;
}

/* Lists the entries as a conversion does, if one is possible. If ranks have different tensors, no entries are listed. */
static tsr_status decide_made(conversion *c, tsr_error *err)
{
    tsr_error ignored = {0};
    tsr_work *work = NULL;
    if (tsr_checkpoint_require(c->call.checkpoint, TSR_FOR_VALUES, &ignored) == TSR_OK &&
        tsr_work_new(c->call.checkpoint, &c->options, 0, c->call.arena, &work, &ignored) == TSR_OK)
        c->result = *tsr_work_conversion(work);
    tsr_work_free(work);
    c->result.marker = TSR_NO_FILE;
    c->steps = tsr_optim_file_count(c->made->job);
    return list_made(c->made, c->call.arena, &c->result, err);
}

/* Reports options that select nothing, and warns of those that have no effect. */
static tsr_status check_names(conversion *c, tsr_error *err)
{
    tsr_name_choice choice;
    TSR_TRY(tessera_name_choice(&c->call, &c->texts, &choice, err));
    return tsr_name_choice_warnings(&choice, c->call.arena, &c->warnings, err);
}

static tsr_status decide(conversion *c, bool reshards, tsr_error *err)
{
    tsr_status status = read_options(c, reshards, err);
    if (status == TSR_OK) status = check_names(c, err);
    if (status == TSR_OK && c->made) return decide_made(c, err);
    if (status == TSR_OK && reshards) status = tessera_make_plan(&c->call, &c->texts, &c->target, NULL, &c->plan, err);
    c->options.plan = c->plan;
    if (status == TSR_OK) status = tsr_work_new(c->call.checkpoint, &c->options, 0, c->call.arena, &c->work, err);
    if (status != TSR_OK) return status;
    c->result = *tsr_work_conversion(c->work);
    c->steps = tsr_work_units(c->work); /* each step writes about one unit, or nothing */
    return TSR_OK;
}

static tsr_status open_conversion(conversion *c, uint32_t handle, bool reshards, uint32_t option_count, tsr_error *err)
{
    tsr_open_options wanted = {.selects = tsr_globs_select, .selects_ctx = &c->call.request.options.selection};
    const opened *item = tessera_checkpoint_of(handle, err);
    if (!item) return err->status;
    if (!reshards && is_plain(&c->call.request, option_count)) c->made = item->made;
    if (c->made) wanted.purpose = TSR_FOR_FINDINGS; /* files per rank may have different tensors */
    tsr_status status = tessera_call_open(&c->call, handle, &wanted, false, err);
    c->call.path = TSR_STR("");
    if (status == TSR_OK && reshards) status = tessera_read_target(&c->call, &c->texts, &c->target, err);
    if (status == TSR_OK) status = decide(c, reshards, err);
    return status == TSR_OK ? tessera_check_conversion(&c->call, &c->result, err) : status;
}

/* Prepares a conversion and reports all errors that can be found before writing. `sink` is the number to pass to tsr_create
 * and tsr_write. Returns a handle. */
TSR_EXPORT(tessera_convert)
uint32_t tessera_convert(uint32_t handle, uint32_t sink, uint32_t reshards, const tessera_option *options, uint32_t count,
                         tsr_error *err)
{
    conversion *c = calloc(1, sizeof *c);
    if (!c) {
        tsr_fail(err, TSR_E_NOMEM, "out of memory");
        return 0;
    }
    c->warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    c->sink = (host_sink){.output = {.create = create_file, .write_at = write_at}, .number = sink};
    tsr_status status = tessera_call_start(&c->call, reshards ? "reshard" : "convert", options, count, err);
    if (status == TSR_OK) status = open_conversion(c, handle, reshards, count, err);
    if (status == TSR_OK)
        return tessera_add_handle(HANDLE_CONVERSION, c, free_conversion, handle, tessera_call_adapter(&c->call), err);
    free_conversion(c);
    return 0;
}

/* ---- writing ---- */

/* Creates every file whose size is known. The host's sink may take a while for that, so nothing else is written in this
 * step. */
static tsr_status open_files(conversion *c, tsr_error *err)
{
    tsr_output *output = &c->sink.output;
    const tsr_str sidecar = c->in_directory ? TSR_STR("objects.json") : TSR_STR(".objects.json"); /* next to a single file */
    uint32_t file;
    tsr_status status = c->work ? tsr_work_open(c->work, output, err) : TSR_OK;
    for (uint32_t f = 0; c->made && f < c->result.file_count && status == TSR_OK; f++)
        status = output->create(output, c->result.files[f], c->result.file_sizes[f], &file, err);
    if (status == TSR_OK && c->result.sidecar.size)
        status = output->create(output, sidecar, c->result.sidecar.size, &c->sidecar_file, err);
    c->is_open = status == TSR_OK;
    return status;
}

static tsr_status write_sidecar(conversion *c, tsr_error *err)
{
    const tsr_str text = c->result.sidecar;
    return text.size ? c->sink.output.write_at(&c->sink.output, c->sidecar_file, 0, text.data, text.size, err) : TSR_OK;
}

/* Collects the notes of maps and adapters, and the warnings of the conversion. */
static tsr_status add_warnings(conversion *c, tsr_error *err)
{
    const tsr_selection selection = {tsr_globs_select, &c->call.request.options.selection};
    tsr_str *warning = ignores_shards(&c->call.chosen, c->call.source) && c->options.to != TSR_TO_RANKS
                           ? tsr_vec_push(&c->warnings, err)
                           : NULL;
    if (warning) *warning = TSR_STR(TSR_SHARDS_UNUSED);
    TSR_TRY(tsr_opening_warnings(c->call.source, c->call.arena, &c->warnings, err));
    TSR_TRY(tsr_mapping_add_notes(c->call.checkpoint, false, &c->warnings, err));
    return tsr_conversion_warnings(c->call.checkpoint, &c->result, c->options.to, &selection, c->call.arena, &c->warnings,
                                   err);
}

static tsr_status finish(conversion *c, tsr_error *err)
{
    tsr_status status = write_sidecar(c, err);
    if (status == TSR_OK && c->work) status = tsr_work_finish(c->work, err);
    if (status == TSR_OK && c->work) c->result = *tsr_work_conversion(c->work);
    if (status == TSR_OK && c->work) status = add_warnings(c, err);
    c->is_done = status == TSR_OK;
    return status;
}

static tsr_status write_step(conversion *c, tsr_error *err)
{
    if (c->made) return write_made(c->made, (uint32_t)c->step, &c->sink.output, &c->progress, err);
    return tsr_work_run(c->work, c->step, c->steps, NULL, err);
}

static tsr_status take_step(conversion *c, tsr_error *err)
{
    if (!c->is_open) return open_files(c, err);
    if (c->step == c->steps) return finish(c, err);
    const tsr_status status = write_step(c, err);
    c->step++;
    c->byte_before += c->byte_done;
    c->byte_done = 0;
    return status;
}

/* Writes about 16 MiB. Returns TESSERA_MORE or TESSERA_DONE. The last step writes everything except tensors, and the
 * marker. */
TSR_EXPORT(tessera_convert_step) uint32_t tessera_convert_step(uint32_t handle, tsr_error *err)
{
    conversion *c = tessera_item_of(handle, HANDLE_CONVERSION, err);
    if (!c || take_step(c, err) != TSR_OK) return 0;
    return c->is_done ? TESSERA_DONE : TESSERA_MORE;
}

/* Returns how many bytes of tensors were written, or with `all` how many there are. */
TSR_EXPORT(tessera_convert_bytes) uint64_t tessera_convert_bytes(uint32_t handle, uint32_t all)
{
    const conversion *c = tessera_item_of(handle, HANDLE_CONVERSION, NULL);
    if (!c) return 0;
    return all || c->is_done || c->byte_before > c->result.byte_total ? c->result.byte_total : c->byte_before;
}

typedef struct result {
    const conversion *conversion;
    double seconds;
} result;

static tsr_status write_result(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    const result *r = ctx;
    const conversion *c = r->conversion;
    const tsr_vec *warnings = c->made ? &c->made->warnings : &c->warnings;
    return tsr_document_conversion(&(tsr_conversion_document){.schema = TSR_STR("tessera.convert/1"),
                                                              .source = c->call.path,
                                                              .destination = TSR_STR(""),
                                                              .to = c->options.to,
                                                              .conversion = &c->result,
                                                              .seconds = r->seconds,
                                                              .warnings = warnings->items,
                                                              .warning_count = warnings->count},
                                   json);
}

/* Returns the tessera.convert/1 document after the last step. */
TSR_EXPORT(tessera_convert_document) document *tessera_convert_document(uint32_t handle, double seconds, tsr_error *err)
{
    result r = {tessera_item_of(handle, HANDLE_CONVERSION, err), seconds};
    return r.conversion ? tessera_make_document(write_result, &r, err) : NULL;
}
