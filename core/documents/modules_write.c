/* Writes module trees as tessera.modules/1 documents, like samples/describe_modules.py. A module that occurs a second time
 * is written as a reference to the first one.
 *
 * The emitter can nest 63 levels and a module takes two, so trees with more than 28 levels are rejected. */
#include <inttypes.h>
#include <stdlib.h>

#include "tessera/modules.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/json.h"
#include "tessera/sys/map.h"
#include "tessera/sys/module_tree.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

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
    double real = strtod(digits, &end);
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
    tsr_json_put_text(json, "wrapper", tsr_wrapper_name(module->wrapper));
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
