/* The order in which PyTorch visits a model's state (`_iterate_valid_model_state`, torch 2.13). */
#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

/* How many modules tsr_fqn_state_keys may enter, shared ones again under each name: far more than real models have. */
enum { MORE_MODULES = 1 << 16, NAMES_PER_MODULE = 64 };

typedef struct frame {
    tsr_module_ref ref;
    size_t next_child;
    tsr_str prefix; /* "" or "a.b." */
} frame;

typedef struct visit {
    const tsr_modules *modules;
    tsr_arena *arena;
    tsr_vec stack;  /* frame */
    tsr_vec items;  /* tsr_state_item */
    bool *seen;     /* by module */
    uint32_t *last; /* by tensor: the module that visited it last, see met_by */
    bool every;     /* shared modules under each of their names */
    uint64_t left;  /* with `every`: how many modules may still be entered */
} visit;

static tsr_status push_item(visit *v, tsr_str prefix, tsr_str name, tsr_state_item item, tsr_error *err)
{
    item.raw = tsr_arena_format(v->arena, err, "%.*s%.*s", TSR_STR_ARG(prefix), TSR_STR_ARG(name));
    tsr_state_item *slot = item.raw.data ? tsr_vec_push(&v->items, err) : NULL;
    if (!slot) return TSR_E_NOMEM;
    *slot = item;
    return TSR_OK;
}

/* A number for a module's buffers, or for its parameters: PyTorch skips duplicates separately in each of the two. */
static uint32_t met_by(tsr_module_ref ref, tsr_state_kind kind)
{
    return 2 * ref + 1 + (kind == TSR_STATE_PARAMETER);
}

/* A buffer counts as visited even if it is not persistent: the same tensor with a later, persistent name is then skipped. */
static tsr_status push_tensors(visit *v, const frame *f, const tsr_module_tensor *tensors, size_t count, tsr_state_kind kind,
                               tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t id = tsr_modules_attribute(v->modules, f->ref, tensors[i].name)->tensor_id;
        if (v->last[id] == met_by(f->ref, kind)) continue;
        v->last[id] = met_by(f->ref, kind);
        if (kind == TSR_STATE_BUFFER && !tensors[i].persistent) continue;
        TSR_TRY(push_item(v, f->prefix, tensors[i].name,
                          (tsr_state_item){.kind = kind, .tensor = &tensors[i], .tensor_id = id}, err));
    }
    return TSR_OK;
}

/* Adds the items of a module itself, after those of its children. */
static tsr_status leave(visit *v, const frame *f, tsr_error *err)
{
    const tsr_module *module = tsr_modules_at(v->modules, f->ref);
    TSR_TRY(push_tensors(v, f, module->buffers, module->buffer_count, TSR_STATE_BUFFER, err));
    TSR_TRY(push_tensors(v, f, module->parameters, module->parameter_count, TSR_STATE_PARAMETER, err));
    return module->extra_state
               ? push_item(v, f->prefix, TSR_STR("_extra_state"), (tsr_state_item){.kind = TSR_STATE_EXTRA}, err)
               : TSR_OK;
}

/* Whether keys skip a child, because `_fqn_modifiers` gives it different names. */
static bool is_hidden(const tsr_modules *modules, tsr_module_ref ref, tsr_str child)
{
    const tsr_module *module = tsr_modules_at(modules, ref);
    for (size_t i = 0; i < module->modifier_count; i++) {
        if (tsr_str_equal(module->modifiers[i].child, child)) return true;
    }
    return false;
}

static tsr_status enter(visit *v, tsr_module_ref ref, tsr_str prefix, tsr_error *err)
{
    frame *f = tsr_vec_push(&v->stack, err);
    if (!f) return TSR_E_NOMEM;
    *f = (frame){ref, 0, prefix};
    v->seen[ref] = true;
    return TSR_OK;
}

static tsr_status walk(visit *v, tsr_error *err)
{
    TSR_TRY(enter(v, 0, TSR_STR(""), err));
    while (v->stack.count) {
        frame *top = (frame *)v->stack.items + v->stack.count - 1;
        const tsr_module *module = tsr_modules_at(v->modules, top->ref);
        if (top->next_child == module->child_count) {
            TSR_TRY(leave(v, top, err));
            v->stack.count--;
            continue;
        }
        tsr_str name = module->children[top->next_child++].name, prefix = top->prefix;
        tsr_module_ref child = tsr_modules_attribute(v->modules, top->ref, name)->module;
        if (v->seen[child]) continue;
        if (!is_hidden(v->modules, top->ref, name)) {
            prefix = tsr_arena_format(v->arena, err, "%.*s%.*s.", TSR_STR_ARG(prefix), TSR_STR_ARG(name));
            if (!prefix.data) return TSR_E_NOMEM;
        }
        TSR_TRY(enter(v, child, prefix, err));
    }
    return TSR_OK;
}

static tsr_status hand_out(visit *v, tsr_state_item **out, size_t *count, tsr_error *err)
{
    *count = v->items.count;
    *out = tsr_arena_array(v->arena, v->items.count, sizeof **out, err);
    if (*out && v->items.count) memcpy(*out, v->items.items, v->items.count * sizeof **out);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static visit visit_of(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    return (visit){.modules = modules,
                   .arena = arena,
                   .stack = tsr_vec_of(host->allocator, sizeof(frame)),
                   .items = tsr_vec_of(host->allocator, sizeof(tsr_state_item)),
                   .seen = tsr_arena_array(arena, tsr_modules_count(modules), sizeof(bool), err),
                   .last = tsr_arena_array(arena, tsr_modules_tensor_count(modules), sizeof(uint32_t), err)};
}

static tsr_status finish(visit *v, tsr_status status, tsr_state_item **out, size_t *count, tsr_error *err)
{
    if (status == TSR_OK) status = hand_out(v, out, count, err);
    tsr_vec_free(&v->items);
    tsr_vec_free(&v->stack);
    return status;
}

tsr_status tsr_fqn_iterate(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                           size_t *count, tsr_error *err)
{
    visit v = visit_of(modules, host, arena, err);
    return finish(&v, v.seen && v.last ? walk(&v, err) : TSR_E_NOMEM, out, count, err);
}

/* Adds a module's own parameters, except those that already have a name. */
static tsr_status push_new_parameters(visit *v, const frame *f, tsr_error *err)
{
    const tsr_module *module = tsr_modules_at(v->modules, f->ref);
    for (size_t i = 0; i < module->parameter_count; i++) {
        const tsr_module_tensor *tensor = &module->parameters[i];
        uint32_t id = tsr_modules_attribute(v->modules, f->ref, tensor->name)->tensor_id;
        if (v->last[id]) continue;
        v->last[id] = 1;
        TSR_TRY(push_item(v, f->prefix, tensor->name, (tsr_state_item){TSR_STR(""), TSR_STATE_PARAMETER, tensor, id}, err));
    }
    return TSR_OK;
}

/* Adds a module's own parameters, persistent buffers and extra state under the names that they have here. */
static tsr_status push_state(visit *v, const frame *f, tsr_error *err)
{
    const tsr_module *module = tsr_modules_at(v->modules, f->ref);
    for (size_t i = 0; i < module->parameter_count + module->buffer_count; i++) {
        const bool is_buffer = i >= module->parameter_count;
        const tsr_module_tensor *tensor = is_buffer ? &module->buffers[i - module->parameter_count] : &module->parameters[i];
        if (is_buffer && !tensor->persistent) continue;
        const tsr_state_item item = {.kind = is_buffer ? TSR_STATE_BUFFER : TSR_STATE_PARAMETER,
                                     .tensor = tensor,
                                     .tensor_id = tsr_modules_attribute(v->modules, f->ref, tensor->name)->tensor_id};
        TSR_TRY(push_item(v, f->prefix, tensor->name, item, err));
    }
    if (!module->extra_state) return TSR_OK;
    return push_item(v, f->prefix, TSR_STR("_extra_state"), (tsr_state_item){.kind = TSR_STATE_EXTRA}, err);
}

static tsr_status push_module(visit *v, const frame *f, tsr_error *err)
{
    tsr_named_module *slot = tsr_vec_push(&v->items, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = (tsr_named_module){{f->prefix.data, f->prefix.size ? f->prefix.size - 1 : 0}, f->ref};
    return TSR_OK;
}

/* The prefix of a child's keys. State dicts leave out a child that `_fqn_modifiers` hides; named_modules does not. */
static tsr_status child_prefix(const visit *v, const frame *f, tsr_str name, tsr_str *out, tsr_error *err)
{
    *out = f->prefix;
    if (v->every && is_hidden(v->modules, f->ref, name)) return TSR_OK;
    *out = tsr_arena_format(v->arena, err, "%.*s%.*s.", TSR_STR_ARG(f->prefix), TSR_STR_ARG(name));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* Shared modules can make exponentially many names out of a small tree. */
static tsr_status check_left(visit *v, tsr_error *err)
{
    TSR_FAIL_IF(v->every && v->left == 0, err, TSR_E_LIMIT, "module tree: shared modules have too many names");
    v->left--;
    return TSR_OK;
}

/* Visits each module before its children, and a shared module only once, or under each of its names. */
static tsr_status walk_down(visit *v, tsr_status (*push)(visit *v, const frame *f, tsr_error *err), tsr_error *err)
{
    TSR_TRY(enter(v, 0, TSR_STR(""), err));
    while (v->stack.count) {
        frame *top = (frame *)v->stack.items + v->stack.count - 1;
        const tsr_module *module = tsr_modules_at(v->modules, top->ref);
        if (top->next_child == 0) TSR_TRY(push(v, top, err));
        if (top->next_child == module->child_count) {
            v->stack.count--;
            continue;
        }
        tsr_str name = module->children[top->next_child++].name;
        tsr_module_ref child = tsr_modules_attribute(v->modules, top->ref, name)->module;
        if (v->seen[child] && !v->every) continue;
        tsr_str prefix;
        TSR_TRY(check_left(v, err));
        TSR_TRY(child_prefix(v, top, name, &prefix, err));
        TSR_TRY(enter(v, child, prefix, err));
    }
    return TSR_OK;
}

tsr_status tsr_fqn_state_keys(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                              size_t *count, tsr_error *err)
{
    visit v = visit_of(modules, host, arena, err);
    v.every = true;
    v.left = MORE_MODULES + NAMES_PER_MODULE * (uint64_t)tsr_modules_count(modules);
    return finish(&v, v.seen && v.last ? walk_down(&v, push_state, err) : TSR_E_NOMEM, out, count, err);
}

tsr_status tsr_fqn_named_parameters(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                                    size_t *count, tsr_error *err)
{
    visit v = visit_of(modules, host, arena, err);
    return finish(&v, v.seen && v.last ? walk_down(&v, push_new_parameters, err) : TSR_E_NOMEM, out, count, err);
}

tsr_status tsr_fqn_named_modules(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_named_module **out,
                                 size_t *count, tsr_error *err)
{
    visit v = visit_of(modules, host, arena, err);
    v.items = tsr_vec_of(host->allocator, sizeof(tsr_named_module));
    tsr_status status = v.seen && v.last ? walk_down(&v, push_module, err) : TSR_E_NOMEM;
    if (status == TSR_OK) {
        *count = v.items.count;
        *out = tsr_arena_array(arena, *count, sizeof **out, err);
        if (*out) memcpy(*out, v.items.items, *count * sizeof **out); /* there is always at least the root */
        status = *out ? TSR_OK : TSR_E_NOMEM;
    }
    tsr_vec_free(&v.items);
    tsr_vec_free(&v.stack);
    return status;
}
