/* PyTorch's `_get_fqns`, with the reasons for each removal.
 *
 * The walk along the name keeps the current object, as PyTorch does: the class of that object, not the text, decides what a
 * component means.
 *
 *     module . _orig_mod . blocks . 0 . _fsdp_wrapped_module . 2 . weight
 *     DDP      compiled    plain    list FSDP1                 Sequential
 *     removed  removed     kept     kept removed               kept kept       → blocks.0.2.weight
 *
 * Source: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13. Two details matter: "_checkpoint_wrapped_module." is
 * removed as text, both before and after the walk; and every component that is kept must be an attribute, except
 * "_extra_state". */
#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/options.h"
#include "tessera/sys/try.h"

#define CHECKPOINT_PREFIX TSR_STR("_checkpoint_wrapped_module.")
#define FLAT_PARAM        TSR_STR("_flat_param")
#define EXTRA_STATE       TSR_STR("_extra_state")

typedef struct walk {
    const tsr_modules *modules;
    tsr_fqn_options options;
    tsr_name *out;
    tsr_str name;         /* without the checkpoint prefixes */
    tsr_removed *removed; /* has room for every component */
    size_t *prefixes_at;  /* where in `name` checkpoint prefixes were */
    size_t prefix_count, prefixes_told;
    char *kept; /* the FQN so far; has room for the whole name */
    size_t kept_size;
    tsr_module_ref at;           /* the current object; TSR_NO_MODULE for a tensor */
    const tsr_module_flat *flat; /* set if the walk ended at a flat parameter */
} walk;

static void remove_component(walk *w, tsr_str component, const char *why)
{
    w->removed[w->out->removed_count++] = (tsr_removed){component, tsr_str_from(why)};
}

/* Records the checkpoint prefixes that were before byte `at` of the name, in order. */
static void tell_prefixes(walk *w, size_t at)
{
    for (; w->prefixes_told < w->prefix_count && w->prefixes_at[w->prefixes_told] <= at; w->prefixes_told++) {
        tsr_str component = {CHECKPOINT_PREFIX.data, CHECKPOINT_PREFIX.size - 1};
        remove_component(w, component, "activation checkpointing's name for the module it wraps, removed from the name");
    }
}

static void keep_component(walk *w, tsr_str component)
{
    if (w->kept_size) w->kept[w->kept_size++] = '.';
    if (component.size) memcpy(w->kept + w->kept_size, component.data, component.size);
    w->kept_size += component.size;
}

/* Python's str.replace(prefix, "") into `out`, which must be large enough. Stores the positions in `at_out` unless it is
 * NULL. */
static size_t strip_prefixes(tsr_str text, char *out, size_t *at_out, size_t *count)
{
    size_t size = 0;
    *count = 0;
    for (size_t i = 0; i < text.size;) {
        if (tsr_str_starts(tsr_str_after(text, i), CHECKPOINT_PREFIX)) {
            if (at_out) at_out[*count] = size;
            ++*count;
            i += CHECKPOINT_PREFIX.size;
        } else {
            out[size++] = text.data[i++];
        }
    }
    return size;
}

static tsr_status wrong_place(const walk *w, tsr_str component, tsr_str expected, tsr_error *err)
{
    return tsr_fail(err, TSR_E_FORMAT, "fqn: '%.*s' has '%.*s' where its wrapper expects '%.*s'", TSR_STR_ARG(w->out->raw),
                    TSR_STR_ARG(component), TSR_STR_ARG(expected));
}

/* Moves to the attribute `name` of the current object. */
static tsr_status go_to(walk *w, tsr_str name, tsr_error *err)
{
    const tsr_attribute *a = w->at == TSR_NO_MODULE ? NULL : tsr_modules_attribute(w->modules, w->at, name);
    if (a) {
        w->at = a->kind == TSR_ATTRIBUTE_MODULE ? a->module : TSR_NO_MODULE;
        return TSR_OK;
    }
    tsr_str class_name = w->at == TSR_NO_MODULE ? TSR_STR("tensor") : tsr_modules_at(w->modules, w->at)->class_name;
    return tsr_fail(err, TSR_E_NOT_FOUND, "fqn: '%.*s': the %.*s at '%.*s' has no attribute '%.*s'",
                    TSR_STR_ARG(w->out->raw), TSR_STR_ARG(class_name), (int)w->kept_size, w->kept, TSR_STR_ARG(name));
}

static tsr_status step_wrapper(walk *w, tsr_str component, tsr_str expected, bool keep, const char *why, tsr_error *err)
{
    if (!tsr_str_equal(component, expected)) return wrong_place(w, component, expected, err);
    if (keep) keep_component(w, component);
    else remove_component(w, component, why);
    return go_to(w, expected, err);
}

static tsr_status step_fsdp(walk *w, tsr_str component, tsr_str next, tsr_error *err)
{
    const char *why = "FullyShardedDataParallel's name for the module it wraps";
    const tsr_module *module = tsr_modules_at(w->modules, w->at);
    tsr_str inner = tsr_wrapper_child(TSR_WRAPPER_FSDP1);
    if (next.data && tsr_str_equal(next, FLAT_PARAM)) {
        TSR_FAIL_IF(!module->flat_param, err, TSR_E_NOT_FOUND,
                    "fqn: '%.*s': the module tree has no flat_param for the fsdp1 unit at '%.*s'", TSR_STR_ARG(w->out->raw),
                    (int)w->kept_size, w->kept);
        remove_component(w, component, why);
        remove_component(w, next, "a flat parameter stands for its original parameters");
        w->flat = module->flat_param;
        return TSR_OK;
    }
    TSR_TRY(go_to(w, inner, err));
    if (tsr_str_equal(component, inner)) {
        remove_component(w, component, why);
        return TSR_OK;
    }
    TSR_TRY(go_to(w, component, err));
    keep_component(w, component);
    return TSR_OK;
}

/* `_fqn_modifiers` of the current object, which may be an attribute of the module that it wraps. */
static const tsr_module *modifiers_of(const walk *w)
{
    for (tsr_module_ref ref = w->at; ref != TSR_NO_MODULE;) {
        const tsr_module *module = tsr_modules_at(w->modules, ref);
        if (module->modifier_count || module->wrapper == TSR_WRAPPER_NONE || module->wrapper == TSR_WRAPPER_DDP)
            return module;
        ref = tsr_modules_attribute(w->modules, ref, tsr_wrapper_child(module->wrapper))->module;
    }
    return NULL;
}

static tsr_status step_plain(walk *w, tsr_str component, bool last, tsr_error *err)
{
    const tsr_module *module = modifiers_of(w);
    for (size_t i = 0; module && i < module->modifier_count; i++) {
        if (!tsr_str_equal(module->modifiers[i].name, component)) continue;
        const tsr_attribute *child = tsr_modules_attribute(w->modules, w->at, module->modifiers[i].child);
        if (child) w->at = child->kind == TSR_ATTRIBUTE_MODULE ? child->module : TSR_NO_MODULE;
        break;
    }
    if (tsr_str_equal(component, EXTRA_STATE)) {
        TSR_FAIL_IF(!last, err, TSR_E_FORMAT, "fqn: '%.*s' continues after '_extra_state', which must come last",
                    TSR_STR_ARG(w->out->raw));
    } else {
        TSR_TRY(go_to(w, component, err));
    }
    keep_component(w, component);
    return TSR_OK;
}

static tsr_status step(walk *w, tsr_str component, tsr_str next, tsr_error *err)
{
    tsr_wrapper wrapper = w->at == TSR_NO_MODULE ? TSR_WRAPPER_NONE : tsr_modules_at(w->modules, w->at)->wrapper;
    tsr_str expected = tsr_wrapper_child(wrapper);
    switch (wrapper) {
    case TSR_WRAPPER_DDP:
        return step_wrapper(w, component, expected, w->options.keep_ddp,
                            "DistributedDataParallel's name for the module it wraps", err);
    case TSR_WRAPPER_COMPILED:
        return step_wrapper(w, component, expected, w->options.keep_compiler, "torch.compile's name for the module it wraps",
                            err);
    case TSR_WRAPPER_FSDP1: return step_fsdp(w, component, next, err);
    case TSR_WRAPPER_NONE:
    case TSR_WRAPPER_CHECKPOINT: break;
    }
    return step_plain(w, component, !next.data, err);
}

static tsr_status walk_name(walk *w, tsr_error *err)
{
    tsr_str rest = w->name;
    while (rest.data && !w->flat) {
        const char *dot = rest.size ? memchr(rest.data, '.', rest.size) : NULL;
        tsr_str component = {rest.data, dot ? (size_t)(dot - rest.data) : rest.size};
        tell_prefixes(w, (size_t)(rest.data - w->name.data));
        rest = dot ? (tsr_str){dot + 1, rest.size - component.size - 1} : (tsr_str){NULL, 0};
        const char *end = rest.size ? memchr(rest.data, '.', rest.size) : NULL;
        TSR_TRY(step(w, component, (tsr_str){rest.data, end ? (size_t)(end - rest.data) : rest.size}, err));
    }
    tell_prefixes(w, w->name.size);
    return TSR_OK;
}

/* Returns one FQN, or those of the originals if the walk ended at a flat parameter. */
static tsr_status finish(walk *w, tsr_arena *arena, tsr_error *err)
{
    size_t count = w->flat ? w->flat->param_count : 1, ignored;
    tsr_str *fqns = tsr_arena_array(arena, count, sizeof *fqns, err);
    if (!fqns) return TSR_E_NOMEM;
    for (size_t i = 0; w->flat && i < count; i++) {
        fqns[i] = tsr_arena_format(arena, err, "%.*s%s%.*s", (int)w->kept_size, w->kept, w->kept_size ? "." : "",
                                   TSR_STR_ARG(w->flat->params[i].fqn));
        if (!fqns[i].data) return TSR_E_NOMEM;
    }
    if (!w->flat) {
        char *fqn = tsr_arena_array(arena, w->kept_size, 1, err);
        if (!fqn) return TSR_E_NOMEM;
        fqns[0] = (tsr_str){fqn, strip_prefixes((tsr_str){w->kept, w->kept_size}, fqn, NULL, &ignored)};
    }
    w->out->fqns = fqns;
    w->out->fqn_count = count;
    w->out->flat = w->flat;
    w->out->removed = w->removed;
    return TSR_OK;
}

tsr_status tsr_fqn_resolve(const tsr_modules *modules, tsr_str raw, const tsr_fqn_options *options, tsr_arena *arena,
                           tsr_name *out, tsr_error *err)
{
    size_t components = 1;
    for (size_t i = 0; i < raw.size; i++) components += raw.data[i] == '.';
    *out = (tsr_name){.raw = raw};
    walk w = {.modules = modules, .out = out};
    TSR_TRY(TSR_OPTIONS_COPY(&w.options, options, tsr_fqn_options, err));
    char *name = tsr_arena_array(arena, raw.size, 1, err);
    w.kept = tsr_arena_array(arena, raw.size + 1, 1, err);
    w.removed = tsr_arena_array(arena, components, sizeof *w.removed, err);
    w.prefixes_at = tsr_arena_array(arena, components, sizeof *w.prefixes_at, err);
    if (!name || !w.kept || !w.removed || !w.prefixes_at) return TSR_E_NOMEM;
    w.name = (tsr_str){name, strip_prefixes(raw, name, w.prefixes_at, &w.prefix_count)};
    if (w.name.size && memchr(w.name.data, '.', w.name.size)) {
        TSR_TRY(walk_name(&w, err));
    } else {
        tell_prefixes(&w, w.name.size);
        keep_component(&w, w.name);
    }
    return finish(&w, arena, err);
}

tsr_status tsr_fqn_resolve_all(const tsr_modules *modules, const tsr_name_list *raws, const tsr_host *host, tsr_arena *arena,
                               tsr_names *out, tsr_error *err)
{
    tsr_state_item *items = NULL;
    size_t count = raws ? raws->count : 0;
    if (!raws) TSR_TRY(tsr_fqn_iterate(modules, host, arena, &items, &count, err));
    *out = (tsr_names){tsr_arena_array(arena, count, sizeof *out->names, err), count};
    if (!out->names) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        TSR_TRY(tsr_fqn_resolve(modules, raws ? raws->names[i] : items[i].raw, NULL, arena, &out->names[i], err));
    return TSR_OK;
}

tsr_status tsr_fqn_submodule_prefixes(const tsr_modules *modules, tsr_module_refs submodules, const tsr_host *host,
                                      tsr_arena *arena, tsr_name_list *out, tsr_error *err)
{
    tsr_named_module *named;
    size_t named_count, count = 0;
    TSR_TRY(tsr_fqn_named_modules(modules, host, arena, &named, &named_count, err));
    bool *wanted = tsr_arena_array(arena, tsr_modules_count(modules), sizeof *wanted, err);
    tsr_str *prefixes = tsr_arena_array(arena, submodules.count, sizeof *prefixes, err);
    if (!wanted || !prefixes) return TSR_E_NOMEM;
    for (size_t i = 0; i < submodules.count; i++) wanted[submodules.refs[i]] = true;
    for (size_t i = 0; i < named_count; i++) {
        tsr_name name;
        if (!wanted[named[i].module]) continue;
        TSR_TRY(tsr_fqn_resolve(modules, named[i].raw, NULL, arena, &name, err));
        prefixes[count] = tsr_arena_format(arena, err, "%.*s.", TSR_STR_ARG(name.fqns[0]));
        if (!prefixes[count++].data) return TSR_E_NOMEM;
    }
    *out = (tsr_name_list){prefixes, count};
    return TSR_OK;
}
