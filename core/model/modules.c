/* The module tree, checked and indexed.
 *
 * Every distinct tsr_module becomes a node with its attributes sorted by name. Originals of flat parameters, which their
 * modules have as plain attributes, are in one table sorted by (node, name):
 *
 *     node 0 ─ attributes: [_fsdp_wrapped_module → node 1]
 *     node 1 ─ attributes: [_flat_param, emb → node 2, …]
 *     originals: (2, "weight"), …                            from "emb.weight" of node 0's flat parameter */
#include "tessera/modules.h"

#include <inttypes.h>
#include <stdlib.h>

#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct node {
    const tsr_module *module;
    tsr_attribute *attributes; /* sorted by name */
    size_t attribute_count;
    tsr_module_ref parent; /* the first parent in which it was found */
    tsr_str name;          /* its name in that parent */
    bool on_path;          /* true while its subtree is walked: reaching it again means a cycle */
} node;

typedef struct original {
    tsr_module_ref module;
    tsr_attribute attribute;
} original;

/* The first tensor with an identity, and the module in which it was found. */
typedef struct known_tensor {
    const tsr_module_tensor *tensor;
    tsr_module_ref module;
    bool is_parameter;
} known_tensor;

struct tsr_modules {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec nodes;      /* node */
    tsr_vec originals;  /* original, sorted */
    tsr_vec tensors;    /* known_tensor, indexed by tensor_id */
    tsr_map *by_module; /* bytes of the pointer → node */
    tsr_map *by_identity;
};

tsr_str tsr_wrapper_child(tsr_wrapper wrapper)
{
    static const char *const names[] = {"", "module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"};
    return tsr_str_from(names[wrapper]);
}

static node *node_at(const tsr_modules *m, tsr_module_ref ref)
{
    return (node *)m->nodes.items + ref;
}

/* The path "a.b.c" of a name below a node, for messages; just the name if out of memory. */
static tsr_str path_of(const tsr_modules *m, tsr_module_ref ref, tsr_str name)
{
    tsr_str path = tsr_arena_format(m->arena, NULL, "%.*s", TSR_STR_ARG(name));
    for (; path.data && ref != 0; ref = node_at(m, ref)->parent) {
        tsr_str parent = node_at(m, ref)->name;
        path = tsr_arena_format(m->arena, NULL, "%.*s%s%.*s", TSR_STR_ARG(parent), path.size ? "." : "", TSR_STR_ARG(path));
    }
    return path.data ? path : name;
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_attribute *)a)->name, ((const tsr_attribute *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const original *x = a, *y = b;
    if (x->module != y->module) return x->module < y->module ? -1 : 1;
    return by_name(&x->attribute, &y->attribute);
}

/* Whether two tensors can be the same one. A parameter may also be registered as a buffer, whose requires_grad is not
 * known. */
static bool same_tensor(const tsr_module_tensor *a, const tsr_module_tensor *b, bool same_kind)
{
    return a->dtype == b->dtype && (!same_kind || a->requires_grad == b->requires_grad) &&
           tsr_shape_equal(a->ndim, a->shape, b->ndim, b->shape);
}

/* Sets the tensor's id: that of the tensor with the same identity, or a new one. */
static tsr_status number_tensor(tsr_modules *m, tsr_module_ref ref, const tsr_module_tensor *tensor, bool is_parameter,
                                uint32_t *id, tsr_error *err)
{
    uint32_t fresh_id = (uint32_t)m->tensors.count, *known = &fresh_id;
    TSR_FAIL_IF(fresh_id >= m->host->limits.entries, err, TSR_E_LIMIT,
                "module tree: more than %" PRIu64 " parameters and buffers", m->host->limits.entries);
    if (tensor->identity.size) TSR_TRY(tsr_map_put(m->by_identity, tensor->identity, fresh_id, &known, NULL, err));
    *id = *known;
    if (*id == fresh_id) {
        known_tensor *slot = tsr_vec_push(&m->tensors, err);
        if (!slot) return TSR_E_NOMEM;
        *slot = (known_tensor){tensor, ref, is_parameter};
        return TSR_OK;
    }
    const known_tensor *first = (known_tensor *)m->tensors.items + *id;
    if (same_tensor(first->tensor, tensor, first->is_parameter == is_parameter)) return TSR_OK;
    tsr_str a = path_of(m, first->module, first->tensor->name), b = path_of(m, ref, tensor->name);
    return tsr_fail(err, TSR_E_FORMAT,
                    "module tree: '%.*s' and '%.*s' share the id %.*s, but differ in dtype, shape or requires_grad",
                    TSR_STR_ARG(a), TSR_STR_ARG(b), TSR_STR_ARG(tensor->identity));
}

static tsr_status check_names(const tsr_modules *m, tsr_module_ref ref, tsr_error *err)
{
    const node *n = node_at(m, ref);
    for (size_t i = 0; i < n->attribute_count; i++) {
        tsr_str name = n->attributes[i].name;
        bool bad = name.size == 0 || memchr(name.data, '.', name.size);
        bool twice = i && tsr_str_equal(name, n->attributes[i - 1].name);
        if (!bad && !twice) continue;
        tsr_str path = path_of(m, ref, TSR_STR(""));
        return tsr_fail(err, TSR_E_FORMAT, "module tree: '%.*s' under '%.*s' %s", TSR_STR_ARG(name), TSR_STR_ARG(path),
                        twice ? "is listed twice" : "is not a valid name: it must not be empty or contain a dot");
    }
    return TSR_OK;
}

/* Adds a module that was not seen before. Its children become nodes later; until then, their attributes have
 * TSR_NO_MODULE. */
static tsr_status add_node(tsr_modules *m, const tsr_module *module, tsr_module_ref parent, tsr_str name, tsr_error *err)
{
    tsr_module_ref ref = (tsr_module_ref)m->nodes.count;
    size_t count = module->parameter_count + module->buffer_count + module->child_count;
    tsr_attribute *attributes = tsr_arena_array(m->arena, count, sizeof *attributes, err);
    node *n = attributes ? tsr_vec_push(&m->nodes, err) : NULL;
    if (!n) return TSR_E_NOMEM;
    *n = (node){module, attributes, count, parent, name, true};
    tsr_attribute *a = attributes;
    for (size_t i = 0; i < module->parameter_count; i++, a++) {
        *a = (tsr_attribute){module->parameters[i].name, TSR_ATTRIBUTE_PARAMETER, TSR_NO_MODULE, &module->parameters[i], 0};
        TSR_TRY(number_tensor(m, ref, a->tensor, true, &a->tensor_id, err));
    }
    for (size_t i = 0; i < module->buffer_count; i++, a++) {
        *a = (tsr_attribute){module->buffers[i].name, TSR_ATTRIBUTE_BUFFER, TSR_NO_MODULE, &module->buffers[i], 0};
        TSR_TRY(number_tensor(m, ref, a->tensor, false, &a->tensor_id, err));
    }
    for (size_t i = 0; i < module->child_count; i++, a++)
        *a = (tsr_attribute){module->children[i].name, TSR_ATTRIBUTE_MODULE, TSR_NO_MODULE, NULL, 0};
    if (count) qsort(attributes, count, sizeof *attributes, by_name);
    return check_names(m, ref, err);
}

static tsr_attribute *own_attribute(const node *n, tsr_str name)
{
    tsr_attribute key = {.name = name};
    return n->attribute_count ? bsearch(&key, n->attributes, n->attribute_count, sizeof key, by_name) : NULL;
}

/* Finds or adds a child of `parent`. `*fresh` is set if its subtree must still be walked. */
static tsr_status find_or_add(tsr_modules *m, tsr_module_ref parent, const tsr_module_child *child, tsr_module_ref *out,
                              bool *fresh, tsr_error *err)
{
    const tsr_module **cell = TSR_ARENA_NEW(m->arena, const tsr_module *, err);
    if (!cell) return TSR_E_NOMEM;
    *cell = child->module;
    uint32_t *known;
    TSR_TRY(tsr_map_put(m->by_module, (tsr_str){(const char *)cell, sizeof *cell}, (uint32_t)m->nodes.count, &known, fresh,
                        err));
    *out = *known;
    TSR_FAIL_IF(m->nodes.count >= m->host->limits.entries, err, TSR_E_LIMIT, "module tree: more than %" PRIu64 " modules",
                m->host->limits.entries);
    if (*fresh) return add_node(m, child->module, parent, child->name, err);
    if (!node_at(m, *out)->on_path) return TSR_OK;
    tsr_str path = path_of(m, parent, child->name);
    return tsr_fail(err, TSR_E_FORMAT, "module tree: '%.*s' contains itself", TSR_STR_ARG(path));
}

typedef struct frame {
    tsr_module_ref ref;
    size_t next_child;
} frame;

static tsr_status push_frame(tsr_modules *m, tsr_vec *stack, tsr_module_ref ref, tsr_error *err)
{
    TSR_FAIL_IF(stack->count >= m->host->limits.depth, err, TSR_E_LIMIT, "module tree: deeper than %" PRIu32 " modules",
                m->host->limits.depth);
    frame *f = tsr_vec_push(stack, err);
    if (!f) return TSR_E_NOMEM;
    f->ref = ref;
    return TSR_OK;
}

static tsr_status walk(tsr_modules *m, const tsr_module *root, tsr_vec *stack, tsr_error *err)
{
    tsr_module_ref ref;
    bool fresh;
    TSR_TRY(find_or_add(m, TSR_NO_MODULE, &(tsr_module_child){.name = TSR_STR(""), .module = root}, &ref, &fresh, err));
    TSR_TRY(push_frame(m, stack, ref, err));
    while (stack->count) {
        frame *top = (frame *)stack->items + stack->count - 1;
        const tsr_module *module = node_at(m, top->ref)->module;
        if (top->next_child == module->child_count) {
            node_at(m, top->ref)->on_path = false;
            stack->count--;
            continue;
        }
        const tsr_module_child *child = &module->children[top->next_child++];
        tsr_module_ref parent = top->ref;
        TSR_TRY(find_or_add(m, parent, child, &ref, &fresh, err));
        own_attribute(node_at(m, parent), child->name)->module = ref;
        if (fresh) TSR_TRY(push_frame(m, stack, ref, err));
    }
    return TSR_OK;
}

/* The module to which `ref` forwards attribute look-ups, or TSR_NO_MODULE. DDP does not forward them. */
static tsr_module_ref forwards_to(const tsr_modules *m, tsr_module_ref ref)
{
    const node *n = node_at(m, ref);
    if (n->module->wrapper == TSR_WRAPPER_NONE || n->module->wrapper == TSR_WRAPPER_DDP) return TSR_NO_MODULE;
    const tsr_attribute *inner = own_attribute(n, tsr_wrapper_child(n->module->wrapper));
    return inner ? inner->module : TSR_NO_MODULE;
}

static tsr_status add_original(tsr_modules *m, tsr_module_ref unit, tsr_str fqn, tsr_vec *found, tsr_error *err)
{
    tsr_module_ref at = unit;
    tsr_str rest = fqn;
    for (const char *dot; rest.size && (dot = memchr(rest.data, '.', rest.size));) {
        tsr_str name = {rest.data, (size_t)(dot - rest.data)};
        const tsr_attribute *a = tsr_modules_attribute(m, at, name);
        if (!a || a->kind != TSR_ATTRIBUTE_MODULE) {
            tsr_str path = path_of(m, unit, fqn);
            return tsr_fail(err, TSR_E_FORMAT, "module tree: flat_param lists '%.*s', but its path has no module '%.*s'",
                            TSR_STR_ARG(path), TSR_STR_ARG(name));
        }
        at = a->module;
        rest = (tsr_str){dot + 1, rest.size - name.size - 1};
    }
    for (tsr_module_ref inner; (inner = forwards_to(m, at)) != TSR_NO_MODULE;) at = inner;
    if (own_attribute(node_at(m, at), rest)) return TSR_OK; /* with use_orig_params it is still a parameter */
    original *o = tsr_vec_push(found, err);
    if (!o) return TSR_E_NOMEM;
    *o = (original){at, {rest, TSR_ATTRIBUTE_ORIGINAL, TSR_NO_MODULE, NULL, 0}};
    return TSR_OK;
}

static tsr_status check_wrapper(const tsr_modules *m, tsr_module_ref ref, tsr_error *err)
{
    const node *n = node_at(m, ref);
    tsr_str inner = tsr_wrapper_child(n->module->wrapper);
    const tsr_attribute *child = inner.size ? own_attribute(n, inner) : NULL;
    bool childless = inner.size && (!child || child->kind != TSR_ATTRIBUTE_MODULE);
    if (!childless && (!n->module->flat_param || n->module->wrapper == TSR_WRAPPER_FSDP1)) return TSR_OK;
    tsr_str path = path_of(m, ref, TSR_STR(""));
    TSR_FAIL_IF(childless, err, TSR_E_FORMAT, "module tree: the wrapper at '%.*s' has no module '%.*s'", TSR_STR_ARG(path),
                TSR_STR_ARG(inner));
    return tsr_fail(err, TSR_E_FORMAT, "module tree: '%.*s' has a flat_param, but only fsdp1 wrappers have one",
                    TSR_STR_ARG(path));
}

/* Collects all originals. Look-ups do not use the table until it is complete and sorted. */
static tsr_status add_originals(tsr_modules *m, tsr_vec *found, tsr_error *err)
{
    for (tsr_module_ref ref = 0; ref < m->nodes.count; ref++) TSR_TRY(check_wrapper(m, ref, err));
    for (tsr_module_ref ref = 0; ref < m->nodes.count; ref++) {
        const tsr_module_flat *flat = node_at(m, ref)->module->flat_param;
        for (size_t i = 0; flat && i < flat->param_count; i++)
            TSR_TRY(add_original(m, ref, flat->params[i].fqn, found, err));
        for (size_t i = 0; flat && i < flat->shared_count; i++)
            TSR_TRY(add_original(m, ref, flat->shared[i].fqn, found, err));
    }
    if (found->count) qsort(found->items, found->count, sizeof(original), by_place);
    return TSR_OK;
}

static tsr_status build(tsr_modules *m, const tsr_module *root, tsr_error *err)
{
    m->arena = tsr_arena_new(m->host->allocator, (size_t)m->host->limits.memory_bytes, err);
    m->by_module = tsr_map_new(m->host->allocator, 0, err);
    m->by_identity = tsr_map_new(m->host->allocator, 0, err);
    if (!m->arena || !m->by_module || !m->by_identity) return TSR_E_NOMEM;
    tsr_vec stack = tsr_vec_of(m->host->allocator, sizeof(frame));
    tsr_status status = walk(m, root, &stack, err);
    tsr_vec_free(&stack);
    tsr_vec found = tsr_vec_of(m->host->allocator, sizeof(original));
    if (status == TSR_OK) status = add_originals(m, &found, err);
    m->originals = found;
    return status;
}

tsr_status tsr_modules_new(const tsr_module *root, const tsr_host *host, tsr_modules **out, tsr_error *err)
{
    tsr_modules *m = tsr_alloc(host->allocator, 1, sizeof *m, err);
    if (!m) return TSR_E_NOMEM;
    *m = (tsr_modules){.host = host,
                       .nodes = tsr_vec_of(host->allocator, sizeof(node)),
                       .tensors = tsr_vec_of(host->allocator, sizeof(known_tensor))};
    tsr_status status = build(m, root, err);
    if (status == TSR_OK) *out = m;
    else tsr_modules_free(m);
    return status;
}

void tsr_modules_free(tsr_modules *m)
{
    if (!m) return;
    tsr_map_free(m->by_identity);
    tsr_map_free(m->by_module);
    tsr_vec_free(&m->tensors);
    tsr_vec_free(&m->originals);
    tsr_vec_free(&m->nodes);
    tsr_arena_free(m->arena);
    tsr_free(m->host->allocator, m, 1, sizeof *m);
}

uint32_t tsr_modules_count(const tsr_modules *modules)
{
    return (uint32_t)modules->nodes.count;
}

const tsr_module *tsr_modules_at(const tsr_modules *modules, tsr_module_ref ref)
{
    return node_at(modules, ref)->module;
}

uint32_t tsr_modules_tensor_count(const tsr_modules *modules)
{
    return (uint32_t)modules->tensors.count;
}

const tsr_attribute *tsr_modules_attribute(const tsr_modules *modules, tsr_module_ref module, tsr_str name)
{
    for (; module != TSR_NO_MODULE; module = forwards_to(modules, module)) {
        const tsr_attribute *own = own_attribute(node_at(modules, module), name);
        if (own) return own;
        original key = {module, {.name = name}};
        const original *o = modules->originals.count
                                ? bsearch(&key, modules->originals.items, modules->originals.count, sizeof key, by_place)
                                : NULL;
        if (o) return &o->attribute;
    }
    return NULL;
}

/* The attribute that `_fqn_modifiers` makes available under this name. */
static const tsr_attribute *modified(const tsr_modules *m, tsr_module_ref module, tsr_str name)
{
    const tsr_module *at = node_at(m, module)->module;
    for (size_t i = 0; i < at->modifier_count; i++) {
        const tsr_attribute *child = tsr_modules_attribute(m, module, at->modifiers[i].child);
        if (tsr_str_equal(at->modifiers[i].name, name) && child && child->kind == TSR_ATTRIBUTE_MODULE)
            return tsr_modules_attribute(m, child->module, name);
    }
    return NULL;
}

/* Finds the attribute with a dotted name, either a module or a tensor; NULL if there is none. Raw names are tried first,
 * because a model wrapped in DDP may have its own child "module". Each step goes down, so the tree bounds the recursion. */
static const tsr_attribute *find(const tsr_modules *m, tsr_module_ref module, const char *name, bool module_wanted)
{
    const char *dot = strchr(name, '.');
    const tsr_str step = {name, dot ? (size_t)(dot - name) : strlen(name)};
    const tsr_wrapper wrapper = node_at(m, module)->module->wrapper;
    const tsr_attribute *found = tsr_modules_attribute(m, module, step), *inner = NULL, *below = NULL;
    if (!found) found = modified(m, module, step);
    const bool is_module = found && found->kind == TSR_ATTRIBUTE_MODULE;
    if (found && !dot && is_module == module_wanted) return is_module || found->tensor ? found : NULL;
    if (dot && is_module) below = find(m, found->module, dot + 1, module_wanted);
    if (!below && wrapper != TSR_WRAPPER_NONE) inner = own_attribute(node_at(m, module), tsr_wrapper_child(wrapper));
    return inner ? find(m, inner->module, name, module_wanted) : below;
}

const tsr_module_tensor *tsr_modules_find(const tsr_modules *modules, const char *name)
{
    const tsr_attribute *found = find(modules, 0, name, false);
    return found ? found->tensor : NULL;
}

tsr_module_ref tsr_modules_find_module(const tsr_modules *modules, const char *name)
{
    const tsr_attribute *found = *name ? find(modules, 0, name, true) : NULL;
    return found ? found->module : *name ? TSR_NO_MODULE : 0;
}
