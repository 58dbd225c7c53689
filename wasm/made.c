/* Optimizer state in another form, as a checkpoint whose tensors are read from the source on request. */
#include "made.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"

#include <stdlib.h>

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
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--max-mem takes a size such as 512MB or 2GiB, not '%.*s'",
                         TSR_STR_ARG(given));
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
        if (source) tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return 0;
    }
    m->host = source->host;
    if (options->flags & TESSERA_OPTIM_ALLOW_EXPANSION) m->host.limits.repetition = UINT64_MAX;
    if (convert(m, source, options, err) == TSR_OK) return tessera_open_made(m, m->store, free_made, handle, err);
    free_made(m);
    return 0;
}

static tsr_status write_warnings(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    const opened *item = ctx;
    const made *m = item->made;
    tsr_json_array(json);
    for (size_t i = 0; m && i < m->warnings.count; i++) tsr_json_str(json, ((const tsr_str *)m->warnings.items)[i]);
    if (item->checkpoint && tessera_ignores_shards(&item->chosen, item->checkpoint)) tsr_json_text(json, TSR_SHARDS_UNUSED);
    tsr_json_array_end(json);
    return json->status;
}

bool tessera_ignores_shards(const tsr_open_options *chosen, const tsr_checkpoint *source)
{
    return chosen->shards && !tsr_checkpoint_joined_ranks(source);
}

/* Returns the warnings that the command line prints when it writes this result, or opens this checkpoint, as a JSON array of
 * texts. */
TSR_EXPORT(tessera_warnings) document *tessera_warnings(uint32_t handle, tsr_error *err)
{
    opened *item = tessera_item_of(handle, HANDLE_CHECKPOINT, err);
    return item ? tessera_make_document(write_warnings, item, err) : NULL;
}

tsr_status tessera_made_files(const made *m, tsr_arena *arena, tsr_conversion *out, tsr_error *err)
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

tsr_status tessera_made_write(made *m, uint32_t index, tsr_output *output, const tsr_progress *progress, tsr_error *err)
{
    tsr_tree_file file = {
        .output = output, .name = tsr_optim_file_name(m->job, index), .ring = m->ring, .progress = progress};
    return tsr_optim_write(m->job, index, &file, err);
}
