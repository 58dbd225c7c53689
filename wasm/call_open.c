/* The checkpoint of a call: opened again for it, and, with --map and --dequantize, under another model's names and layouts and with
 * scaled numbers multiplied. */
#include "tessera/mapping.h"

#include <stdlib.h>

#include "request.h"
#include "tessera/sys/casts.h"

static bool is_mapped(const call *c)
{
    return tessera_option_given(&c->request, "map") || tessera_option_given(&c->request, "dequantize");
}

/* ---- --map ---- */

static bool is_document(tsr_str text)
{
    size_t at = 0;
    while (at < text.size && strchr(" \t\r\n", text.data[at])) at++;
    return at < text.size && text.data[at] == '{';
}

tsr_str tessera_call_map_text(const call *c)
{
    const tsr_str given = tessera_option_text(&c->request, "map");
    return is_document(given) ? given : tsr_mapping_builtin(given);
}

static tsr_status parse_map(call *c, tsr_str given, const tsr_mapping_rules **rules, tsr_error *err)
{
    const bool document = is_document(given);
    const tsr_str text = tessera_call_map_text(c);
    if (!text.size) return tsr_mapping_unknown(given, err);
    tsr_status status = tsr_mapping_parse(text, &c->host, c->arena, rules, err);
    if (status == TSR_OK && tessera_option_given(&c->request, "inverse"))
        status = tsr_mapping_invert(*rules, c->arena, rules, err);
    if (status != TSR_OK && document) tsr_error_context(err, "--map");
    else if (status != TSR_OK) tsr_error_context(err, "--map %.*s", TSR_STR_ARG(given));
    return status;
}

static tsr_status apply_map(call *c, tsr_error *err)
{
    const tsr_str given = tessera_option_text(&c->request, "map");
    const tsr_mapping_rules *rules;
    tsr_status status = given.data ? parse_map(c, given, &rules, err) : TSR_OK;
    if (status != TSR_OK || !given.data) return status;
    tsr_checkpoint *below = c->checkpoint, *mapped = NULL;
    status = tsr_mapping_open(below, rules, &mapped, err);
    if (status == TSR_OK) c->checkpoint = mapped;
    return status;
}

/* ---- --dequantize ---- */

/* What is left of scaled numbers is of a kind that cannot be multiplied: nothing of it is passed over. */
static tsr_status dequantize(call *c, tsr_error *err)
{
    tsr_convert_options all = {.raw_cast = false};
    tsr_dtype dtype;
    tsr_status status = tsr_cast_parse(tessera_option_text(&c->request, "dtype"), false, &dtype, err);
    if (status == TSR_OK) status = tsr_mapping_dequantize(c->source, dtype, &all.dtype, &c->dequantized, err);
    if (status == TSR_OK) c->checkpoint = c->dequantized;
    return status == TSR_OK ? tsr_check_casts(c->dequantized, &all, err) : status;
}

static tsr_status map_checkpoint(call *c, tsr_error *err)
{
    if (tessera_option_given(&c->request, "inverse") && !tessera_option_given(&c->request, "map"))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--inverse needs --map MAP");
    if (!is_mapped(c)) return TSR_OK;
    c->source = c->checkpoint;
    const tsr_status status = tessera_option_given(&c->request, "dequantize") ? dequantize(c, err) : TSR_OK;
    return status == TSR_OK ? apply_map(c, err) : status;
}

static void unmap(call *c)
{
    if (c->checkpoint != c->dequantized && c->checkpoint != c->source) tsr_checkpoint_close(c->checkpoint);
    tsr_checkpoint_close(c->dequantized);
    tsr_checkpoint_close(c->source);
}

/* ---- opening ---- */

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
    if (is_mapped(c)) c->chosen.selects = NULL; /* the selection is of the names that the map gives */
    const tsr_status status = tsr_checkpoint_open(item->store, &c->host, &c->chosen, &c->checkpoint, err);
    return status == TSR_OK ? map_checkpoint(c, err) : status;
}

tsr_status tessera_call_ring(call *c, tsr_error *err)
{
    uint64_t bytes;
    const tsr_status status = tessera_option_size(&c->request, "max-mem", &bytes, err);
    return status == TSR_OK ? tsr_ring_new(&c->host, (size_t)bytes, &c->ring, err) : status;
}

void tessera_call_close(call *c)
{
    tsr_ring_free(c->ring);
    unmap(c);
    tsr_arena_free(c->arena);
}

/* ---- as a checkpoint of its own ---- */

static void release_call(void *below)
{
    tessera_call_close(below);
    free(below);
}

/* The checkpoint as a map makes it, for a comparison. It is closed with `handle`. Returns a handle. */
TSR_EXPORT(tessera_mapped)
uint32_t tessera_mapped(uint32_t handle, const tessera_option *options, uint32_t count, tsr_error *err)
{
    call *c = calloc(1, sizeof *c);
    if (!c) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return 0;
    }
    c->request = (request){options, count};
    if (tessera_call_open(c, handle, NULL, err) != TSR_OK) {
        release_call(c);
        return 0;
    }
    const tessera_view view = {c->checkpoint, c, release_call};
    if (c->dequantized == c->checkpoint) c->dequantized = NULL;
    c->checkpoint = NULL;
    return tessera_add_view(&view, handle, err);
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

/* The names of the built-in maps: a JSON array. */
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

/* The document of a built-in map, as a JSON string. */
TSR_EXPORT(tessera_map_text) document *tessera_map_text(const char *name, uint32_t size, tsr_error *err)
{
    const tsr_str text = tsr_mapping_builtin((tsr_str){name, size});
    if (text.size) return tessera_make_document(write_map, (void *)(uintptr_t)&text, err);
    tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no built-in map '%.*s'; see tessera map list", (int)size, name);
    return NULL;
}
