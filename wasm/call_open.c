/* Opens the checkpoint of a call again, with the layers of --map, --dequantize and so on over it (call_layers.c). */
#include "tessera/mapping.h"
#include "tessera/sys/mapping.h"

#include <stdlib.h>

#include "request.h"

/* ---- opening ---- */

uint32_t tessera_call_adapter(const call *c)
{
    return (uint32_t)strtoul(tessera_option_given(&c->request, "lora") ? tessera_option_text(&c->request, "lora").data : "0",
                             NULL, 10);
}

static tsr_status open_adapter(call *c, tsr_error *err)
{
    if (!tessera_option_given(&c->request, "lora")) return TSR_OK;
    c->adapter = calloc(1, sizeof *c->adapter);
    if (!c->adapter) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    const tsr_status status = tessera_call_open(c->adapter, tessera_call_adapter(c), NULL, err);
    if (status != TSR_OK) tsr_error_context(err, "adapter");
    return status;
}

tsr_status tessera_call_open(call *c, uint32_t handle, const tsr_open_options *wanted, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    if (!item) return err->status;
    c->host = item->host;
    if (tessera_option_given(&c->request, "allow-expansion")) c->host.limits.repetition = UINT64_MAX;
    c->path = tessera_option_text(&c->request, "path");
    if (!c->path.data) c->path = TSR_STR("");
    c->arena = tsr_arena_new(c->host.allocator, 0, err);
    if (!c->arena) return TSR_E_NOMEM;
    c->chosen = tessera_wanted_of(item, wanted);
    if (tessera_call_is_layered(c)) c->chosen.selects = NULL; /* it selects names of the topmost layer */
    tsr_status status = tsr_checkpoint_open(item->store, &c->host, &c->chosen, &c->source, err);
    c->checkpoint = c->source;
    if (status == TSR_OK) status = open_adapter(c, err);
    return status == TSR_OK ? tessera_call_add_layers(c, err) : status;
}

tsr_status tessera_call_ring(call *c, tsr_error *err)
{
    uint64_t bytes;
    const tsr_status status = tessera_option_size(&c->request, "max-mem", &bytes, err);
    return status == TSR_OK ? tsr_ring_new(&c->host, (size_t)bytes, &c->ring, err) : status;
}

static void release_call(void *below)
{
    tessera_call_close(below);
    free(below);
}

void tessera_call_close(call *c)
{
    tsr_ring_free(c->ring);
    while (c->layer_count) tsr_checkpoint_close(c->layers[--c->layer_count]);
    if (c->adapter) release_call(c->adapter);
    tsr_checkpoint_close(c->source);
    tsr_arena_free(c->arena);
}

/* ---- as a separate checkpoint ---- */

/* Opens the checkpoint with the layers that the options of a call ask for; with the option "names", for a list of names only.
 * It is closed together with `handle`. Returns a handle. */
TSR_EXPORT(tessera_mapped)
uint32_t tessera_mapped(uint32_t handle, const tessera_option *options, uint32_t count, tsr_error *err)
{
    call *c = calloc(1, sizeof *c);
    if (!c) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return 0;
    }
    c->request = (request){options, count};
    const tsr_open_options wanted = {.purpose = tessera_option_given(&c->request, "names") ? TSR_FOR_NAMES : TSR_FOR_VALUES};
    if (tessera_call_open(c, handle, &wanted, err) != TSR_OK) {
        release_call(c);
        return 0;
    }
    const tessera_view view = {c->checkpoint, c, release_call};
    if (c->layer_count) c->layer_count--; /* the view closes it */
    else c->source = NULL;
    return tessera_add_view(&view, handle, err);
}

/* Returns whether the tensors that a map leaves out as copies of others are equal to them: 1, or 0 with the reason. */
TSR_EXPORT(tessera_tied) uint32_t tessera_tied(uint32_t handle, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    return item && tsr_mapping_check_tied(item->checkpoint, err) == TSR_OK;
}

/* ---- the built-in maps ---- */

static tsr_status write_names(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)ctx, (void)err;
    tsr_str name;
    tsr_json_array(json);
    for (size_t i = 0; (name = tsr_mapping_builtin_name(i)).size; i++) tsr_json_str(json, name);
    tsr_json_array_end(json);
    return json->status;
}

/* Returns the names of the built-in maps, as a JSON array. */
TSR_EXPORT(tessera_maps) document *tessera_maps(tsr_error *err)
{
    return tessera_make_document(write_names, NULL, err);
}

static tsr_status write_map(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    tsr_json_str(json, *(const tsr_str *)ctx);
    return json->status;
}

/* Returns the document of a built-in map, as a JSON string. */
TSR_EXPORT(tessera_map_text) document *tessera_map_text(const char *name, uint32_t size, tsr_error *err)
{
    const tsr_str text = tsr_mapping_builtin((tsr_str){name, size});
    if (text.size) return tessera_make_document(write_map, (void *)(uintptr_t)&text, err);
    tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no built-in map '%.*s'; see tessera map list", (int)size, name);
    return NULL;
}
