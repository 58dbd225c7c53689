/* The options of a call, and its checkpoint, opened again with the layers of --map, --dequantize and so on over it. */
#include "request.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

/* ---- options ---- */

static tsr_str str_of(const tessera_text *text)
{
    return (tsr_str){(const char *)(uintptr_t)text->data, text->size};
}

/* What calls pass besides the options of the command. Returns the member for `name`, or NULL. */
static const char **member_of(request *r, tsr_str name)
{
    const struct {
        const char *name, **member;
    } members[] = {{"path", &r->path},
                   {"manifest", &r->manifest},
                   {"against-names", &r->against_names},
                   {"against-checkpoint", &r->against_checkpoint},
                   {"names", &r->names}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (tsr_str_equal(name, tsr_str_from(members[i].name))) return members[i].member;
    return NULL;
}

tsr_status tessera_request_read(const char *command, const tessera_option *items, uint32_t count, tsr_arena *arena,
                                request *out, tsr_error *err)
{
    const tsr_command *row = tsr_command_find(tsr_str_from(command));
    *out = (request){.path = NULL};
    TSR_FAIL_IF(!row || !row->options, err, TSR_E_USAGE, "there is no call '%s'", command);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = str_of(&items[i].name), value = tsr_arena_str(arena, str_of(&items[i].value), err);
        const char **member = member_of(out, name);
        const tsr_option *option = member ? NULL : tsr_option_find(row->options, name);
        if (!value.data) return TSR_E_NOMEM;
        if (member) *member = value.data;
        else if (option) TSR_TRY(tsr_option_set(option, value.data, arena, &out->options, err));
        else return tsr_fail(err, TSR_E_USAGE, "%s has no option '%.*s'", command, TSR_STR_ARG(name));
    }
    return TSR_OK;
}

tsr_status tessera_call_start(call *c, const char *command, const tessera_option *items, uint32_t count, tsr_error *err)
{
    c->arena = tsr_arena_new(tessera_host().allocator, 0, err);
    return c->arena ? tessera_request_read(command, items, count, c->arena, &c->request, err) : TSR_E_NOMEM;
}

tsr_status tessera_name_choice(const call *c, const tsr_target_texts *target, tsr_name_choice *out, tsr_error *err)
{
    TSR_TRY(tsr_choice_of(tsr_checkpoint_catalog(c->checkpoint), &c->request.options, target, c->arena, out, err));
    return tsr_name_choice_check(out, c->arena, err);
}

/* ---- opening ---- */

uint32_t tessera_call_adapter(const call *c)
{
    return c->request.options.lora ? (uint32_t)strtoul(c->request.options.lora, NULL, 10) : 0;
}

static tsr_status open_adapter(call *c, tsr_error *err)
{
    if (!c->request.options.lora) return TSR_OK;
    c->adapter = calloc(1, sizeof *c->adapter);
    if (!c->adapter) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    const tsr_status status = tessera_call_open(c->adapter, tessera_call_adapter(c), NULL, true, err);
    if (status != TSR_OK) tsr_error_context(err, "adapter");
    return status;
}

/* The document of --map, which may name a built-in map, and what messages call it. */
static tsr_status read_map(call *c, const char **called, tsr_error *err)
{
    const tsr_str given = tsr_str_from(c->request.options.map);
    *called = "--map";
    c->map = given;
    if (!given.data || tessera_is_document(given)) return TSR_OK;
    c->map = tsr_mapping_builtin(given);
    if (!c->map.size) return tsr_mapping_unknown(given, err);
    *called = tsr_arena_format(c->arena, err, "--map %.*s", TSR_STR_ARG(given)).data;
    return *called ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_layers(call *c, bool lists, tsr_error *err)
{
    const tsr_open_options used = {.selects = tsr_globs_select, .selects_ctx = &c->request.options.selection};
    tsr_layering wanted = {.options = &c->request.options, .used = &used, .lists = lists};
    tsr_status status = read_map(c, &wanted.map_called, err);
    if (status == TSR_OK) status = open_adapter(c, err);
    if (status != TSR_OK) return status;
    wanted.map = c->map;
    if (c->request.options.canonical) wanted.modules = tsr_str_from(c->request.options.modules);
    wanted.adapter = c->adapter ? c->adapter->checkpoint : NULL;
    c->layers.top = c->source;
    status = tsr_layers_open(&c->layers, &wanted, c->arena, err);
    c->checkpoint = c->layers.top;
    return status;
}

tsr_status tessera_call_open(call *c, uint32_t handle, const tsr_open_options *wanted, bool lists, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    if (!item) return err->status;
    c->host = item->host;
    if (c->request.options.allow_expansion) c->host.limits.repetition = UINT64_MAX;
    c->path = tsr_str_from(c->request.path ? c->request.path : "");
    if (!c->arena) c->arena = tsr_arena_new(c->host.allocator, 0, err); /* an adapter has no options */
    if (!c->arena) return TSR_E_NOMEM;
    c->chosen = tessera_wanted_of(item, wanted);
    if (tsr_options_are_layered(&c->request.options)) c->chosen.selects = NULL; /* it selects names of the topmost layer */
    const tsr_status status = tsr_checkpoint_open(item->store, &c->host, &c->chosen, &c->source, err);
    c->checkpoint = c->source;
    return status == TSR_OK ? add_layers(c, lists, err) : status;
}

tsr_status tessera_call_ring(call *c, tsr_error *err)
{
    return tsr_ring_new(&c->host, (size_t)c->request.options.max_memory, &c->ring, err);
}

static void release_call(void *below)
{
    tessera_call_close(below);
    free(below);
}

void tessera_call_close(call *c)
{
    tsr_ring_free(c->ring);
    tsr_layers_close(&c->layers);
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
        tsr_fail(err, TSR_E_NOMEM, "out of memory");
        return 0;
    }
    tsr_status status = tessera_call_start(c, "convert", options, count, err);
    const tsr_open_options wanted = {.purpose = c->request.names ? TSR_FOR_NAMES : TSR_FOR_VALUES};
    if (status == TSR_OK) status = tessera_call_open(c, handle, &wanted, true, err);
    if (status != TSR_OK) {
        release_call(c);
        return 0;
    }
    const tessera_view view = {c->checkpoint, c, release_call};
    if (c->layers.count) c->layers.count--; /* the view closes it */
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

/* Returns the document of the built-in map with this name, which ends with a NUL, as a JSON string. */
TSR_EXPORT(tessera_map_text) document *tessera_map_text(const char *name, uint32_t size, tsr_error *err)
{
    tsr_str text;
    (void)size;
    if (tsr_mapping_named(name, &text, err) != TSR_OK) return NULL;
    return tessera_make_document(write_map, &text, err);
}
