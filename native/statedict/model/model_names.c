/* See model_names.h. */
#include "statedict/model/model_names.h"

#include "statedict/fsdp/fsdp_model.h"

#include <inttypes.h>

#include "tessera/sys/module_tree.h"
#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"

/* ---- tensors of the tree ---- */

static tsr_str address_of(const tsr_module_tensor *const *of)
{
    return (tsr_str){(const char *)of, sizeof *of};
}

/* Every tensor of every module, each module once. */
static size_t tensors_of(const tsr_modules *modules, const tsr_module_tensor **out, tsr_module_ref *owners)
{
    size_t count = 0;
    for (tsr_module_ref m = 0; m < tsr_modules_count(modules); m++) {
        const tsr_module *module = tsr_modules_at(modules, m);
        for (size_t i = 0; i < module->parameter_count + module->buffer_count; i++, count++) {
            if (!out) continue;
            out[count] =
                i < module->parameter_count ? &module->parameters[i] : &module->buffers[i - module->parameter_count];
            owners[count] = m;
        }
    }
    return count;
}

tsr_status tsr_tensor_ids_of(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_tensor_ids *out,
                             tsr_error *err)
{
    const size_t count = tensors_of(modules, NULL, NULL);
    out->keys = tsr_arena_array(arena, count, sizeof *out->keys, err);
    tsr_module_ref *owners = tsr_arena_array(arena, count, sizeof *owners, err);
    out->map = out->keys && owners ? tsr_map_new(host->allocator, count, err) : NULL;
    out->count = tsr_modules_tensor_count(modules);
    if (!out->map) return TSR_E_NOMEM;
    tensors_of(modules, out->keys, owners);
    for (size_t i = 0; i < count; i++) {
        const tsr_attribute *attribute = tsr_modules_attribute(modules, owners[i], out->keys[i]->name);
        if (attribute && attribute->tensor)
            TSR_TRY(tsr_map_put(out->map, address_of(&out->keys[i]), attribute->tensor_id, NULL, NULL, err));
    }
    return TSR_OK;
}

uint32_t tsr_tensor_ids_get(const tsr_tensor_ids *ids, const tsr_module_tensor *const *of)
{
    return tsr_map_get(ids->map, address_of(of), TSR_NO_ID);
}

void tsr_tensor_ids_free(tsr_tensor_ids *ids)
{
    tsr_map_free(ids->map);
    ids->map = NULL;
}

tsr_status tsr_model_held(const tsr_model *model, const tsr_tensor_ids *ids, tsr_arena *arena, tsr_tensor ***out,
                          tsr_error *err)
{
    tsr_tensor **held = *out = tsr_arena_array(arena, ids->count, sizeof *held, err);
    if (!held) return TSR_E_NOMEM;
    for (size_t i = 0; i < model->tensor_count; i++) {
        const char *name = model->tensors[i].name;
        const tsr_module_tensor *of = model->tensors[i].of;
        if (!of && name) of = tsr_modules_find(model->modules, name);
        TSR_FAIL_IF(!of && name, err, TSR_E_USAGE, "the module tree has no tensor '%s'", name);
        const uint32_t id = of ? tsr_tensor_ids_get(ids, &of) : TSR_NO_ID;
        TSR_FAIL_IF(id == TSR_NO_ID, err, TSR_E_USAGE, "tensor %zu of the model is not in its module tree", i);
        held[id] = model->tensors[i].tensor;
    }
    return TSR_OK;
}

/* ---- names ---- */

tsr_status tsr_model_fqn(const tsr_modules *modules, tsr_str raw, tsr_arena *arena, tsr_str *fqn, bool *renamed,
                         tsr_error *err)
{
    const tsr_fqn_options options = {0};
    tsr_name name;
    TSR_TRY(tsr_fqn_resolve(modules, raw, &options, arena, &name, err));
    TSR_FAIL_IF(name.fqn_count != 1, err, TSR_E_FORMAT, "'%.*s' has %zu canonical names, expected 1", TSR_STR_ARG(raw),
                name.fqn_count);
    *fqn = name.fqns[0];
    for (size_t i = 0; renamed && i < name.removed_count; i++)
        *renamed = *renamed || !tsr_str_equal(name.removed[i].component, tsr_wrapper_child(TSR_WRAPPER_CHECKPOINT));
    return TSR_OK;
}

tsr_status tsr_model_frozen(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_map *names,
                            tsr_error *err)
{
    tsr_state_item *named;
    size_t count;
    TSR_TRY(tsr_fqn_named_parameters(modules, host, arena, &named, &count, err));
    for (size_t i = 0; i < count; i++) {
        tsr_name name;
        if (named[i].tensor->requires_grad) continue;
        TSR_TRY(tsr_fqn_resolve(modules, named[i].raw, NULL, arena, &name, err));
        for (size_t n = 0; n < name.fqn_count; n++) {
            const tsr_str fqn = tsr_fsdp_clean(name.fqns[n], arena, err);
            if (!fqn.data) return TSR_E_NOMEM;
            TSR_TRY(tsr_map_put(names, fqn, 1, NULL, NULL, err));
        }
    }
    return TSR_OK;
}

/* ---- the walk ---- */

typedef struct walking {
    const tsr_model *model;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_tensor_ids ids;
    tsr_tensor **held; /* by id */
    tsr_vec items;     /* of tsr_model_item */
} walking;

static tsr_str joined(walking *w, tsr_str prefix, tsr_str name, tsr_error *err)
{
    return tsr_arena_format(w->arena, err, "%.*s%s%.*s", TSR_STR_ARG(prefix), prefix.size ? "." : "", TSR_STR_ARG(name));
}

static tsr_status fits_tree(const tsr_module_tensor *of, const tsr_tensor *tensor, tsr_str raw, tsr_arena *arena,
                            tsr_error *err)
{
    const tsr_dtype dtype = of->dtype == TSR_DTYPE_NONE ? tensor->entry.dtype : of->dtype;
    const tsr_tensor want = tsr_tensor_whole(dtype, of->ndim, of->shape, NULL);
    const tsr_status status =
        tsr_tensor_same_place(tensor, &want, &(tsr_likeness){"memory", "the module tree", false}, arena, err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(raw));
    return status;
}

static tsr_status add_item(walking *w, tsr_str prefix, const tsr_module_tensor *of, tsr_state_kind kind, tsr_error *err)
{
    const tsr_str raw = joined(w, prefix, of ? of->name : TSR_STR("_extra_state"), err);
    if (!raw.data) return TSR_E_NOMEM;
    TSR_FAIL_IF(w->items.count >= w->host->limits.entries, err, TSR_E_LIMIT, "model: more than %" PRIu64 " names",
                (uint64_t)w->host->limits.entries);
    tsr_model_item item = {.raw = raw, .kind = kind};
    if (of) {
        const uint32_t id = tsr_tensor_ids_get(&w->ids, &of);
        item.tensor = id == TSR_NO_ID ? NULL : w->held[id];
        TSR_FAIL_IF(!item.tensor, err, TSR_E_USAGE, "the model has no tensor for '%.*s'", TSR_STR_ARG(raw));
        TSR_TRY(fits_tree(of, item.tensor, raw, w->arena, err));
    }
    TSR_TRY(tsr_model_fqn(w->model->modules, raw, w->arena, &item.fqn, &item.renamed, err));
    tsr_model_item *place = tsr_vec_push(&w->items, err);
    if (!place) return TSR_E_NOMEM;
    *place = item;
    return TSR_OK;
}

static bool modified_away(const tsr_module *module, tsr_str child)
{
    for (size_t i = 0; i < module->modifier_count; i++)
        if (tsr_str_equal(module->modifiers[i].child, child)) return true;
    return false;
}

static tsr_status add_own(walking *w, const tsr_module *module, tsr_str prefix, tsr_error *err)
{
    for (size_t i = 0; i < module->parameter_count; i++)
        TSR_TRY(add_item(w, prefix, &module->parameters[i], TSR_STATE_PARAMETER, err));
    for (size_t i = 0; i < module->buffer_count; i++)
        if (module->buffers[i].persistent) TSR_TRY(add_item(w, prefix, &module->buffers[i], TSR_STATE_BUFFER, err));
    return module->extra_state ? add_item(w, prefix, NULL, TSR_STATE_EXTRA, err) : TSR_OK;
}

/* The tree is no deeper than limits.depth: tsr_modules_new has seen to it. */
static tsr_status walk(walking *w, const tsr_module *module, tsr_str prefix, tsr_error *err)
{
    TSR_TRY(add_own(w, module, prefix, err));
    for (size_t i = 0; i < module->child_count; i++) {
        const tsr_module_child *child = &module->children[i];
        const tsr_str below = modified_away(module, child->name) ? prefix : joined(w, prefix, child->name, err);
        if (!below.data) return TSR_E_NOMEM;
        TSR_TRY(walk(w, child->module, below, err));
    }
    return TSR_OK;
}

tsr_status tsr_model_items_index(const tsr_host *host, tsr_model_items *out, tsr_error *err)
{
    out->index = tsr_map_new(host->allocator, out->count, err);
    if (!out->index) return TSR_E_NOMEM;
    for (size_t i = 0; i < out->count; i++) {
        uint32_t *at;
        bool fresh;
        TSR_TRY(tsr_map_put(out->index, out->items[i].fqn, (uint32_t)i, &at, &fresh, err));
        TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "'%.*s' and '%.*s' both have the canonical name '%.*s'",
                    TSR_STR_ARG(out->items[*at].raw), TSR_STR_ARG(out->items[i].raw), TSR_STR_ARG(out->items[i].fqn));
    }
    return TSR_OK;
}

tsr_status tsr_model_items_of(const tsr_model *model, const tsr_host *host, tsr_arena *arena, tsr_model_items *out,
                              tsr_error *err)
{
    walking w = {.model = model, .host = host, .arena = arena, .items = tsr_vec_of(host->allocator, sizeof(tsr_model_item))};
    *out = (tsr_model_items){0};
    tsr_status status = tsr_tensor_ids_of(model->modules, host, arena, &w.ids, err);
    if (status == TSR_OK) status = tsr_model_held(model, &w.ids, arena, &w.held, err);
    if (status == TSR_OK) status = walk(&w, tsr_modules_at(model->modules, 0), TSR_STR(""), err);
    if (status == TSR_OK) {
        out->count = w.items.count;
        out->items = tsr_arena_array(arena, out->count, sizeof *out->items, err);
        if (out->items && out->count) memcpy(out->items, w.items.items, out->count * sizeof *out->items);
        status = out->items ? tsr_model_items_index(host, out, err) : TSR_E_NOMEM;
    }
    tsr_vec_free(&w.items);
    tsr_tensor_ids_free(&w.ids);
    return status;
}

void tsr_model_items_free(tsr_model_items *items)
{
    tsr_map_free(items->index);
    items->index = NULL;
}

/* ---- ranks ---- */

tsr_status tsr_options_agree(tsr_comm *comm, const char *call, const tsr_state_options *options, size_t optimizers,
                             tsr_status mine, tsr_error *err)
{
    TSR_TRY(tsr_comm_agree(comm, mine, err));
    const uint64_t facts[8] = {
        options->full_state_dict,
        options->cpu_offload,
        options->ignore_frozen_params,
        options->strict,
        options->broadcast_from_rank0,
        options->flatten_optimizer_state_dict,
        optimizers,
        options->keep_submodule_prefixes,
    };
    return tsr_comm_same(comm, (tsr_str){(const char *)facts, sizeof facts}, call, err);
}

tsr_status tsr_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
                           tsr_error *err)
{
    const uint32_t root_only = 0;
    const bool chosen = options->full_state_dict && options->cpu_offload;
    if (options->full_state_dict) {
        const tsr_gather_options gather = {
            .ranks_only = &root_only, .ranks_only_count = chosen ? 1 : 0, .offload = options->cpu_offload};
        return tsr_state_dict_gather(root, comm, &gather, out, err);
    }
    if (options->cpu_offload) return tsr_state_dict_offload(root, NULL, NULL, out, err);
    tsr_state_dict_set_root(out, root);
    return TSR_OK;
}

/* ---- calls ---- */

tsr_status tsr_call_open(tsr_call *call, const tsr_state_call *given, const tsr_host *host, tsr_error *err)
{
    const tsr_state_options defaults = tsr_state_options_default();
    tsr_state_call own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, given, tsr_state_call, err));
    *call = (tsr_call){.given = own};
    TSR_TRY(TSR_OPTIONS_COPY(&call->options, own.options ? own.options : &defaults, tsr_state_options, err));
    if (own.comm) return TSR_OK;
    TSR_TRY(tsr_comm_self(host->allocator, &call->self, err));
    call->given.comm = call->self;
    return TSR_OK;
}

void tsr_call_close(tsr_call *call)
{
    if (call->self) call->self->close(call->self);
}
