/* Reads module trees from tessera.modules/1 documents.
 *
 *     {"schema": "tessera.modules/1", "root": NODE, "groups"?: [[FQN…] | {"params": [FQN…]} …]}
 *     NODE = {"class", "wrapper"?, "fqn_modifiers"?, "parameters"?, "buffers"?, "extra_state"?, "children"?, "flat_param"?}
 *          | {"same_as": PATH}
 *
 * Nodes wait on an explicit stack, so that deep trees do not use up the C stack. Further names of shared modules are filled
 * in last. */
#include <inttypes.h>
#include <stdlib.h>

#include "codec/json.h"
#include "tessera/modules.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct pending {
    const cJSON *json;
    tsr_module_child *slot; /* the slot to store the module in */
    tsr_str path;           /* path in the module tree */
} pending;

typedef struct reader {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec stack;   /* pending nodes */
    tsr_vec aliases; /* pending same_as */
    tsr_vec modules; /* const tsr_module * */
    tsr_map *by_path;
} reader;

static tsr_status copy_text(reader *r, tsr_str text, tsr_str *out, tsr_error *err)
{
    *out = tsr_arena_str(r->arena, text, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status read_shape(reader *r, const cJSON *object, const char *where, uint32_t *ndim, const uint64_t **shape,
                             tsr_error *err)
{
    const cJSON *list;
    TSR_TRY(tsr_json_get(object, "shape", TSR_JSON_ARRAY, where, &list, err));
    uint64_t *sizes = tsr_arena_array(r->arena, tsr_json_count(list), sizeof *sizes, err);
    if (!sizes) return TSR_E_NOMEM;
    *ndim = 0;
    for (const cJSON *item = list->child; item; item = item->next)
        TSR_TRY(tsr_json_to_u64(item, where, &sizes[(*ndim)++], err));
    *shape = sizes;
    return TSR_OK;
}

static tsr_status read_bool(const cJSON *object, const char *key, const char *where, bool *out, tsr_error *err)
{
    const cJSON *item;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_BOOL, where, &item, err));
    if (item) *out = cJSON_IsTrue(item);
    return TSR_OK;
}

/* Reads any JSON scalar as text, in a form that distinguishes 1 from "1". null, or no member, means no identity. */
static tsr_status read_identity(reader *r, const cJSON *object, const char *where, tsr_str *out, tsr_error *err)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(object, "id");
    char number[TSR_REAL_TEXT];
    *out = (tsr_str){NULL, 0};
    if (!id || cJSON_IsNull(id)) return TSR_OK;
    if (cJSON_IsString(id)) *out = tsr_arena_format(r->arena, err, "\"%s\"", id->valuestring);
    else if (cJSON_IsNumber(id))
        *out = tsr_arena_str(r->arena, tsr_str_from(tsr_real_text(id->valuedouble, 17, number)), err);
    else if (cJSON_IsBool(id)) *out = cJSON_IsTrue(id) ? TSR_STR("true") : TSR_STR("false");
    else return tsr_fail(err, TSR_E_FORMAT, "modules: expected a number or a string as id at %s", where);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

typedef struct tensor_list {
    const tsr_module_tensor *tensors;
    size_t count;
} tensor_list;

static tsr_status read_tensors(reader *r, const cJSON *object, const char *key, const char *where, tensor_list *out,
                               tsr_error *err)
{
    const cJSON *map, *dtype;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_OBJECT, where, &map, err));
    tsr_module_tensor *tensors = tsr_arena_array(r->arena, tsr_json_count(map), sizeof *tensors, err);
    if (!tensors) return TSR_E_NOMEM;
    *out = (tensor_list){tensors, 0};
    for (const cJSON *m = map ? map->child : NULL; m; m = m->next) {
        tsr_module_tensor *t = &tensors[out->count++];
        tsr_str place = tsr_arena_format(r->arena, err, "%s.%s.%s", where, key, m->string);
        if (!place.data) return TSR_E_NOMEM;
        *t = (tsr_module_tensor){.requires_grad = true, .persistent = true};
        TSR_TRY(tsr_json_expect(m, TSR_JSON_OBJECT, place.data, err));
        TSR_TRY(copy_text(r, tsr_json_key_of(m), &t->name, err));
        TSR_TRY(read_shape(r, m, place.data, &t->ndim, &t->shape, err));
        TSR_TRY(tsr_json_find(m, "dtype", TSR_JSON_STRING, place.data, &dtype, err));
        if (dtype) t->dtype = tsr_dtype_from_name(tsr_json_text_of(dtype));
        TSR_FAIL_IF(dtype && t->dtype == TSR_DTYPE_NONE, err, TSR_E_FORMAT, "modules: '%s' at %s is not a PyTorch dtype",
                    dtype->valuestring, place.data);
        TSR_TRY(read_bool(m, "requires_grad", place.data, &t->requires_grad, err));
        TSR_TRY(read_bool(m, "persistent", place.data, &t->persistent, err));
        TSR_TRY(read_identity(r, m, place.data, &t->identity, err));
    }
    return TSR_OK;
}

/* As documents have it: "none", "ddp", "fsdp1", "compiled", "checkpoint". */
static const char *wrapper_name(tsr_wrapper wrapper)
{
    static const char *const names[] = {"none", "ddp", "fsdp1", "compiled", "checkpoint"};
    return names[wrapper];
}

static tsr_status read_wrapper(const cJSON *object, const char *where, tsr_wrapper *out, tsr_error *err)
{
    const cJSON *text;
    TSR_TRY(tsr_json_find(object, "wrapper", TSR_JSON_STRING, where, &text, err));
    for (unsigned i = 0; text && i <= TSR_WRAPPER_CHECKPOINT; i++) {
        *out = (tsr_wrapper)i;
        if (strcmp(text->valuestring, wrapper_name(*out)) == 0) return TSR_OK;
    }
    TSR_FAIL_IF(text, err, TSR_E_FORMAT,
                "modules: unknown wrapper '%s' at %s; expected none, ddp, fsdp1, compiled or checkpoint", text->valuestring,
                where);
    return TSR_OK;
}

static tsr_status read_modifiers(reader *r, const cJSON *object, const char *where, tsr_module *module, tsr_error *err)
{
    const cJSON *map;
    TSR_TRY(tsr_json_find(object, "fqn_modifiers", TSR_JSON_OBJECT, where, &map, err));
    tsr_module_modifier *modifiers = tsr_arena_array(r->arena, tsr_json_count(map), sizeof *modifiers, err);
    if (!modifiers) return TSR_E_NOMEM;
    for (const cJSON *m = map ? map->child : NULL; m; m = m->next) {
        tsr_module_modifier *modifier = &modifiers[module->modifier_count++];
        TSR_TRY(tsr_json_expect(m, TSR_JSON_STRING, where, err));
        TSR_TRY(copy_text(r, tsr_json_key_of(m), &modifier->name, err));
        TSR_TRY(copy_text(r, tsr_json_text_of(m), &modifier->child, err));
    }
    module->modifiers = modifiers;
    return TSR_OK;
}

static tsr_status read_string(reader *r, const cJSON *object, const char *key, const char *where, tsr_str *out,
                              tsr_error *err)
{
    const cJSON *text;
    TSR_TRY(tsr_json_get(object, key, TSR_JSON_STRING, where, &text, err));
    return copy_text(r, tsr_json_text_of(text), out, err);
}

static tsr_status read_flat_lists(reader *r, const cJSON *params, const cJSON *shared, const char *where,
                                  tsr_module_flat *flat, tsr_error *err)
{
    tsr_flat_original *originals = tsr_arena_array(r->arena, tsr_json_count(params), sizeof *originals, err);
    tsr_flat_shared *seconds = tsr_arena_array(r->arena, tsr_json_count(shared), sizeof *seconds, err);
    if (!originals || !seconds) return TSR_E_NOMEM;
    flat->params = originals;
    flat->shared = seconds;
    for (const cJSON *p = params->child; p; p = p->next) {
        tsr_flat_original *o = &originals[flat->param_count++];
        TSR_TRY(read_string(r, p, "fqn", where, &o->fqn, err));
        TSR_TRY(read_shape(r, p, where, &o->ndim, &o->shape, err));
    }
    for (const cJSON *s = shared ? shared->child : NULL; s; s = s->next) {
        tsr_flat_shared *second = &seconds[flat->shared_count++];
        TSR_TRY(read_string(r, s, "fqn", where, &second->fqn, err));
        TSR_TRY(read_string(r, s, "of", where, &second->of, err));
    }
    return TSR_OK;
}

static tsr_status read_flat(reader *r, const cJSON *object, const char *where, tsr_module *module, tsr_error *err)
{
    const cJSON *json, *params, *shared, *alignment;
    TSR_TRY(tsr_json_find(object, "flat_param", TSR_JSON_OBJECT, where, &json, err));
    if (!json) return TSR_OK;
    tsr_module_flat *flat = TSR_ARENA_NEW(r->arena, tsr_module_flat, err);
    tsr_str place = tsr_arena_format(r->arena, err, "%s.flat_param", where);
    if (!flat || !place.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_json_get(json, "params", TSR_JSON_ARRAY, place.data, &params, err));
    TSR_TRY(tsr_json_find(json, "shared", TSR_JSON_ARRAY, place.data, &shared, err));
    TSR_TRY(tsr_json_find(json, "alignment", TSR_JSON_NUMBER, place.data, &alignment, err));
    TSR_TRY(read_bool(json, "use_orig_params", place.data, &flat->use_orig_params, err));
    if (alignment) TSR_TRY(tsr_json_to_u64(alignment, place.data, &flat->alignment, err));
    TSR_TRY(read_flat_lists(r, params, shared, place.data, flat, err));
    module->flat_param = flat;
    return TSR_OK;
}

static tsr_status push_pending(tsr_vec *vec, const cJSON *json, tsr_module_child *slot, tsr_str path, tsr_error *err)
{
    pending *p = tsr_vec_push(vec, err);
    if (!p) return TSR_E_NOMEM;
    *p = (pending){json, slot, path};
    return TSR_OK;
}

static tsr_status read_children(reader *r, const cJSON *object, const char *where, tsr_str path, tsr_module *module,
                                tsr_error *err)
{
    const cJSON *map;
    TSR_TRY(tsr_json_find(object, "children", TSR_JSON_OBJECT, where, &map, err));
    tsr_module_child *children = tsr_arena_array(r->arena, tsr_json_count(map), sizeof *children, err);
    if (!children) return TSR_E_NOMEM;
    module->children = children;
    for (const cJSON *m = map ? map->child : NULL; m; m = m->next) {
        tsr_module_child *child = &children[module->child_count++];
        TSR_TRY(copy_text(r, tsr_json_key_of(m), &child->name, err));
        tsr_str below = tsr_arena_format(r->arena, err, "%s%s%s", path.data, path.size ? "." : "", child->name.data);
        if (!below.data) return TSR_E_NOMEM;
        TSR_TRY(push_pending(&r->stack, m, child, below, err));
    }
    return TSR_OK;
}

static tsr_status read_node(reader *r, pending p, tsr_error *err)
{
    tsr_str place = tsr_arena_format(r->arena, err, "module '%s'", p.path.data);
    if (!place.data) return TSR_E_NOMEM;
    const char *where = place.data;
    TSR_TRY(tsr_json_expect(p.json, TSR_JSON_OBJECT, where, err));
    if (cJSON_GetObjectItemCaseSensitive(p.json, "same_as")) return push_pending(&r->aliases, p.json, p.slot, p.path, err);
    tsr_module *module = TSR_ARENA_NEW(r->arena, tsr_module, err);
    const tsr_module **known = module ? tsr_vec_push(&r->modules, err) : NULL;
    if (!known) return TSR_E_NOMEM;
    *known = module;
    p.slot->module = module;
    TSR_TRY(tsr_map_put(r->by_path, p.path, (uint32_t)(r->modules.count - 1), NULL, NULL, err));
    TSR_TRY(read_string(r, p.json, "class", where, &module->class_name, err));
    TSR_TRY(read_wrapper(p.json, where, &module->wrapper, err));
    TSR_TRY(read_bool(p.json, "extra_state", where, &module->extra_state, err));
    tensor_list parameters, buffers;
    TSR_TRY(read_tensors(r, p.json, "parameters", where, &parameters, err));
    TSR_TRY(read_tensors(r, p.json, "buffers", where, &buffers, err));
    module->parameters = parameters.tensors;
    module->parameter_count = parameters.count;
    module->buffers = buffers.tensors;
    module->buffer_count = buffers.count;
    TSR_TRY(read_modifiers(r, p.json, where, module, err));
    TSR_TRY(read_flat(r, p.json, where, module, err));
    return read_children(r, p.json, where, p.path, module, err);
}

static tsr_status read_nodes(reader *r, const cJSON *root, tsr_module_child *slot, tsr_error *err)
{
    TSR_TRY(push_pending(&r->stack, root, slot, TSR_STR(""), err));
    while (r->stack.count) TSR_TRY(read_node(r, ((pending *)r->stack.items)[--r->stack.count], err));
    for (size_t i = 0; i < r->aliases.count; i++) {
        const pending *p = (pending *)r->aliases.items + i;
        const cJSON *text;
        TSR_TRY(tsr_json_get(p->json, "same_as", TSR_JSON_STRING, p->path.data, &text, err));
        uint32_t index = tsr_map_get(r->by_path, tsr_json_text_of(text), UINT32_MAX);
        TSR_FAIL_IF(index == UINT32_MAX, err, TSR_E_FORMAT,
                    "modules: '%s' is the same as '%s', which does not describe a module", p->path.data, text->valuestring);
        p->slot->module = ((const tsr_module **)r->modules.items)[index];
    }
    return TSR_OK;
}

static tsr_status read_groups(reader *r, const cJSON *root, tsr_modules_document *out, tsr_error *err)
{
    const cJSON *list;
    TSR_TRY(tsr_json_find(root, "groups", TSR_JSON_ARRAY, "", &list, err));
    if (!list) return TSR_OK;
    tsr_name_list *groups = tsr_arena_array(r->arena, tsr_json_count(list), sizeof *groups, err);
    if (!groups) return TSR_E_NOMEM;
    out->groups = groups;
    for (const cJSON *member = list->child; member; member = member->next) {
        const cJSON *g = member; /* a list of FQNs, or a param group with such a list under "params" */
        if (cJSON_IsObject(member)) TSR_TRY(tsr_json_get(member, "params", TSR_JSON_ARRAY, "groups", &g, err));
        TSR_TRY(tsr_json_expect(g, TSR_JSON_ARRAY, "groups", err));
        tsr_str *names = tsr_arena_array(r->arena, tsr_json_count(g), sizeof *names, err);
        if (!names) return TSR_E_NOMEM;
        tsr_name_list *group = &groups[out->group_count++];
        *group = (tsr_name_list){names, 0};
        for (const cJSON *name = g->child; name; name = name->next) {
            TSR_TRY(tsr_json_expect(name, TSR_JSON_STRING, "groups", err));
            TSR_TRY(copy_text(r, tsr_json_text_of(name), &names[group->count++], err));
        }
    }
    return TSR_OK;
}

static tsr_status read_document(reader *r, const cJSON *json, tsr_modules_document *out, tsr_error *err)
{
    const cJSON *schema, *root;
    tsr_module_child slot = {{NULL, 0}, NULL};
    TSR_TRY(tsr_json_get(json, "schema", TSR_JSON_STRING, "", &schema, err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.modules/1") != 0, err, TSR_E_FORMAT,
                "modules: unexpected schema '%s'; expected tessera.modules/1", schema->valuestring);
    TSR_TRY(tsr_json_get(json, "root", TSR_JSON_OBJECT, "", &root, err));
    r->by_path = tsr_map_new(r->host->allocator, 0, err);
    if (!r->by_path) return TSR_E_NOMEM;
    TSR_TRY(read_nodes(r, root, &slot, err));
    out->root = slot.module;
    TSR_FAIL_IF(!slot.module, err, TSR_E_FORMAT, "modules: the root is the same as itself");
    return read_groups(r, json, out, err);
}

tsr_status tsr_modules_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_modules_document *out, tsr_error *err)
{
    cJSON *json;
    TSR_TRY(tsr_json_parse(text, host, &json, err));
    reader r = {host,
                arena,
                tsr_vec_of(host->allocator, sizeof(pending)),
                tsr_vec_of(host->allocator, sizeof(pending)),
                tsr_vec_of(host->allocator, sizeof(const tsr_module *)),
                NULL};
    *out = (tsr_modules_document){NULL, NULL, 0};
    tsr_status status = read_document(&r, json, out, err);
    tsr_map_free(r.by_path);
    tsr_vec_free(&r.modules);
    tsr_vec_free(&r.aliases);
    tsr_vec_free(&r.stack);
    cJSON_Delete(json);
    return status;
}

/* ---- modules write ---- */

/* Writes module trees as tessera.modules/1 documents, like samples/describe_modules.py. A module that occurs a second time
 * is written as a reference to the first one.
 *
 * The emitter can nest 63 levels and a module takes two, so trees with more than 28 levels are rejected. */

#define MOST_LEVELS 28u

typedef struct level {
    const tsr_module *module;
    tsr_str path;
    size_t next; /* index of the next child */
} level;

typedef struct writer {
    tsr_json json;
    tsr_arena *arena;
    tsr_map *written; /* address of a module → its index in `paths` */
    tsr_vec paths;    /* tsr_str */
    level levels[MOST_LEVELS];
    uint32_t depth;
} writer;

/* Writes an identity as the JSON scalar from which it was read. */
static void put_identity(tsr_json *json, tsr_str id)
{
    char digits[40], *end = digits;
    size_t size = id.size < sizeof digits - 1 ? id.size : 0;
    if (size) memcpy(digits, id.data, size);
    digits[size] = 0;
    int64_t whole = strtoll(digits, &end, 10);
    if (size && *end == 0) {
        tsr_json_int(json, whole);
        return;
    }
    double real = tsr_real_read(digits, &end);
    bool quoted = id.size > 1 && id.data[0] == '"' && id.data[id.size - 1] == '"';
    if (size && *end == 0) tsr_json_double(json, real);
    else if (tsr_str_equal(id, TSR_STR("true")) || tsr_str_equal(id, TSR_STR("false"))) tsr_json_bool(json, id.size == 4);
    else tsr_json_str(json, quoted ? (tsr_str){id.data + 1, id.size - 2} : id);
}

static void put_tensors(tsr_json *json, const char *key, const tsr_module_tensor *tensors, size_t count, bool buffers)
{
    tsr_json_put_object(json, key);
    for (size_t i = 0; i < count; i++) {
        const tsr_module_tensor *t = &tensors[i];
        tsr_json_key_str(json, t->name);
        tsr_json_object(json);
        tsr_json_put_u64s(json, "shape", t->shape, t->ndim);
        if (t->dtype != TSR_DTYPE_NONE) tsr_json_put_text(json, "dtype", tsr_dtype_describe(t->dtype)->name);
        tsr_json_put_bool(json, "requires_grad", t->requires_grad);
        if (buffers) tsr_json_put_bool(json, "persistent", t->persistent);
        if (t->identity.size) {
            tsr_json_key(json, "id");
            put_identity(json, t->identity);
        }
        tsr_json_object_end(json);
    }
    tsr_json_object_end(json);
}

static void put_flat(tsr_json *json, const tsr_module_flat *flat)
{
    tsr_json_put_object(json, "flat_param");
    tsr_json_put_bool(json, "use_orig_params", flat->use_orig_params);
    tsr_json_put_uint(json, "alignment", flat->alignment);
    tsr_json_put_array(json, "params");
    for (size_t i = 0; i < flat->param_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "fqn", flat->params[i].fqn);
        tsr_json_put_u64s(json, "shape", flat->params[i].shape, flat->params[i].ndim);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_put_array(json, "shared");
    for (size_t i = 0; i < flat->shared_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "fqn", flat->shared[i].fqn);
        tsr_json_put_str(json, "of", flat->shared[i].of);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

static void put_modifiers(tsr_json *json, const tsr_module *module)
{
    tsr_json_put_object(json, "fqn_modifiers");
    for (size_t i = 0; i < module->modifier_count; i++) {
        tsr_json_key_str(json, module->modifiers[i].name);
        tsr_json_str(json, module->modifiers[i].child);
    }
    tsr_json_object_end(json);
}

/* Writes everything of a node except its children. The node's object stays open. */
static void open_node(tsr_json *json, const tsr_module *module)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "class", module->class_name);
    tsr_json_put_text(json, "wrapper", wrapper_name(module->wrapper));
    put_tensors(json, "parameters", module->parameters, module->parameter_count, false);
    put_tensors(json, "buffers", module->buffers, module->buffer_count, true);
    tsr_json_put_bool(json, "extra_state", module->extra_state);
    if (module->modifier_count) put_modifiers(json, module);
    if (module->flat_param) put_flat(json, module->flat_param);
    tsr_json_put_object(json, "children");
}

/* Writes a module, or a reference to where it was written. A new module becomes the innermost level, with `path`. */
static tsr_status enter(writer *w, const tsr_module *const *module, tsr_str path, tsr_error *err)
{
    uint32_t *at;
    bool fresh;
    TSR_TRY(tsr_map_put(w->written, (tsr_str){(const char *)module, sizeof *module}, (uint32_t)w->paths.count, &at, &fresh,
                        err));
    if (!fresh) {
        tsr_json_object(&w->json);
        tsr_json_put_str(&w->json, "same_as", ((const tsr_str *)w->paths.items)[*at]);
        tsr_json_object_end(&w->json);
        return TSR_OK;
    }
    tsr_str *slot = tsr_vec_push(&w->paths, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = path;
    TSR_FAIL_IF(w->depth == MOST_LEVELS, err, TSR_E_LIMIT,
                "modules: '%.*s' is nested deeper than %u levels, the limit for a document", TSR_STR_ARG(path), MOST_LEVELS);
    w->levels[w->depth++] = (level){*module, path, 0};
    open_node(&w->json, *module);
    return TSR_OK;
}

static tsr_status write_nodes(writer *w, const tsr_module *const *root, tsr_error *err)
{
    TSR_TRY(enter(w, root, TSR_STR(""), err));
    while (w->depth) {
        level *top = &w->levels[w->depth - 1];
        if (top->next == top->module->child_count) {
            tsr_json_object_end(&w->json);
            tsr_json_object_end(&w->json);
            w->depth--;
            continue;
        }
        const tsr_module_child *child = &top->module->children[top->next++];
        tsr_str path = tsr_arena_format(w->arena, err, "%.*s%s%.*s", TSR_STR_ARG(top->path), top->path.size ? "." : "",
                                        TSR_STR_ARG(child->name));
        if (!path.data) return TSR_E_NOMEM;
        tsr_json_key_str(&w->json, child->name);
        TSR_TRY(enter(w, &child->module, path, err));
    }
    return TSR_OK;
}

static void put_groups(tsr_json *json, const tsr_name_list *groups, size_t count)
{
    tsr_json_put_array(json, "groups");
    for (size_t g = 0; g < count; g++) {
        tsr_json_array(json);
        for (size_t i = 0; i < groups[g].count; i++) tsr_json_str(json, groups[g].names[i]);
        tsr_json_array_end(json);
    }
    tsr_json_array_end(json);
}

static tsr_status write_document(writer *w, const tsr_modules_document *document, tsr_error *err)
{
    tsr_json_object(&w->json);
    tsr_json_put_text(&w->json, "schema", "tessera.modules/1");
    tsr_json_key(&w->json, "root");
    TSR_TRY(write_nodes(w, &document->root, err));
    if (document->groups) put_groups(&w->json, document->groups, document->group_count);
    tsr_json_object_end(&w->json);
    return tsr_json_finish(&w->json);
}

tsr_status tsr_modules_write(const tsr_modules_document *document, const tsr_allocator *allocator, tsr_write_fn *write,
                             void *ctx, tsr_error *err)
{
    writer *w = tsr_alloc(allocator, 1, sizeof *w, err); /* the emitter's buffer is too large for the stack */
    if (!w) return TSR_E_NOMEM;
    *w = (writer){.arena = tsr_arena_new(allocator, 0, err),
                  .written = tsr_map_new(allocator, 0, err),
                  .paths = tsr_vec_of(allocator, sizeof(tsr_str))};
    tsr_json_start(&w->json, write, ctx, 0, err);
    tsr_status status = w->arena && w->written ? write_document(w, document, err) : TSR_E_NOMEM;
    tsr_vec_free(&w->paths);
    tsr_map_free(w->written);
    tsr_arena_free(w->arena);
    tsr_free(allocator, w, 1, sizeof *w);
    return status;
}
