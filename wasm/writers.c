/* The second module: checkpoints that are made from others. It gives the result's files as bytes to read, which the first
 * module opens like any files. */
#include <stdlib.h>

#include "handles.h"
#include "tessera/optim_convert.h"
#include "tessera/sys/optim_request.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/vec.h"

typedef struct made {
    host_store files;
    tsr_host host;
    tsr_ring *ring;
    tsr_optim_job *job;
    tsr_store *store; /* of the result */
    tsr_arena *arena;
    tsr_vec warnings; /* tsr_str in the arena */
} made;

static void free_made(void *pointer)
{
    made *m = pointer;
    if (m->store) m->store->close(m->store);
    tsr_optim_close(m->job);
    tsr_ring_free(m->ring);
    tsr_vec_free(&m->warnings);
    tsr_arena_free(m->arena);
    tessera_host_store_close(&m->files);
    free(m);
}

/* A warning that there is no memory for is lost; what follows will fail for the same reason. */
static void note_warning(void *ctx, tsr_str message)
{
    made *m = ctx;
    const tsr_str copy = tsr_arena_str(m->arena, message, NULL);
    tsr_str *noted = copy.data ? tsr_vec_push(&m->warnings, NULL) : NULL;
    if (noted) *noted = copy;
}

static tsr_str text_at(uint32_t pointer, uint32_t size)
{
    return (tsr_str){(const char *)(uintptr_t)pointer, size};
}

static tsr_optim_request request_of(made *m, const tessera_optim_options *o)
{
    return (tsr_optim_request){.modules = {.text = text_at(o->modules, o->modules_size)},
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

static tsr_status convert(made *m, const tessera_optim_options *options, tsr_error *err)
{
    m->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    m->warnings = tsr_vec_of(m->host.allocator, sizeof(tsr_str));
    m->arena = tsr_arena_new(m->host.allocator, 0, err);
    tsr_status status = m->arena ? tsr_ring_new(&m->host, 0, &m->ring, err) : TSR_E_NOMEM;
    tsr_optim_request request = request_of(m, options);
    if (status == TSR_OK)
        status = tsr_optim_action_find((const char *)(uintptr_t)options->action, &request.action, err);
    if (status == TSR_OK) status = tsr_optim_open(&m->files.store, &m->host, &request, &m->job, err);
    return status == TSR_OK ? tsr_optim_store(m->job, &m->store, err) : status;
}

/* What a conversion of an optimizer gives. Arguments as those of tessera_open. Returns a handle. */
TSR_EXPORT(tessera_optimizer)
uint32_t tessera_optimizer(uint32_t store, const tessera_file *files, uint32_t count, uint32_t primary, uint32_t unsummed,
                           const tessera_optim_options *options, tsr_error *err)
{
    made *m = calloc(1, sizeof *m);
    if (!m) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return 0;
    }
    tsr_status status = tessera_host_store_open(&m->files, store, files, count, primary, err);
    m->files.store.unsummed = unsummed != 0;
    if (status == TSR_OK) status = convert(m, options, err);
    if (status == TSR_OK) return tessera_add_handle(HANDLE_MADE, m, free_made, 0, 0, err);
    free_made(m);
    return 0;
}

static tsr_status write_made(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    const made *m = ctx;
    const tsr_str *warnings = m->warnings.items;
    tsr_json_object(json);
    tsr_json_key(json, "single");
    tsr_json_bool(json, m->store->primary != TSR_NO_FILE);
    tsr_json_key(json, "files");
    tsr_json_array(json);
    for (uint32_t i = 0; i < m->store->file_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "name");
        tsr_json_str(json, m->store->files[i].name);
        tsr_json_key(json, "size");
        tsr_json_uint(json, m->store->files[i].size);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_key(json, "warnings");
    tsr_json_array(json);
    for (size_t i = 0; i < m->warnings.count; i++) tsr_json_str(json, warnings[i]);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    return json->status;
}

/* The result's files, whether the only one is the result itself, and what the command line warns of when it writes them. */
TSR_EXPORT(tessera_made_document) document *tessera_made_document(uint32_t handle, tsr_error *err)
{
    made *m = tessera_item_of(handle, HANDLE_MADE, err);
    return m ? tessera_make_document(write_made, m, err) : NULL;
}

/* Bytes of a file of the result. Returns 1. */
TSR_EXPORT(tessera_made_read)
uint32_t tessera_made_read(uint32_t handle, uint32_t file, uint64_t offset, void *pointer, uint32_t size, tsr_error *err)
{
    const made *m = tessera_item_of(handle, HANDLE_MADE, err);
    if (!m) return 0;
    if (file >= m->store->file_count) {
        tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no file %u", (unsigned)file);
        return 0;
    }
    return tsr_store_read(m->store, file, offset, pointer, size, err) == TSR_OK;
}
