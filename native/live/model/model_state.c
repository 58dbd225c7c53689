/* Gets a model's state dict under canonical names. */
#include "tessera/sys/collectives.h"
#include "tessera/sys/statedict.h"

#include <inttypes.h>

#include "live/fsdp/fsdp_model.h"
#include "live/model/model_names.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/options.h"

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

/* Makes the index. TSR_E_FORMAT for two items with one name. */
static tsr_status model_items_index(const tsr_host *host, tsr_model_items *out, tsr_error *err)
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
        status = out->items ? model_items_index(host, out, err) : TSR_E_NOMEM;
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

/* ---- bind ---- */

bool tsr_fsdp_is_in(const tsr_modules *modules)
{
    for (tsr_module_ref m = 0; m < tsr_modules_count(modules); m++)
        if (tsr_modules_at(modules, m)->wrapper == TSR_WRAPPER_FSDP1) return true;
    return false;
}

/* ---- what units do not manage ---- */

static tsr_status find_extra(tsr_fsdp_bound *b, tsr_str fqn, const tsr_value **out, tsr_error *err)
{
    const tsr_model *model = b->model;
    if (!b->out) {
        *out = tsr_value_int(b->arena, 0, err);
        return *out ? TSR_OK : TSR_E_NOMEM;
    }
    TSR_FAIL_IF(!model->get_extra, err, TSR_E_USAGE, "the model has no get_extra for '%.*s'", TSR_STR_ARG(fqn));
    return model->get_extra(model->ctx, fqn, b->out->arena, out, err);
}

static tsr_status find(void *ctx, tsr_str fqn, const tsr_module_tensor *tensor, const tsr_value **out, tsr_error *err)
{
    tsr_fsdp_bound *b = ctx;
    if (!tensor) return find_extra(b, fqn, out, err);
    const uint32_t id = tsr_tensor_ids_get(&b->ids, &tensor);
    const tsr_tensor *held = id == TSR_NO_ID ? NULL : b->held[id];
    TSR_FAIL_IF(!held, err, TSR_E_USAGE, "the model has no tensor for '%.*s'", TSR_STR_ARG(fqn));
    return tsr_state_dict_tensor(b->leaves, held, out, err);
}

static tsr_status set_extra(void *ctx, tsr_str fqn, const tsr_value *value, tsr_error *err)
{
    const tsr_fsdp_bound *b = ctx;
    return b->model->set_extra(b->model->ctx, fqn, value, err);
}

static void warn(void *ctx, const char *message)
{
    const tsr_fsdp_tree *tree = ((const tsr_fsdp_bound *)ctx)->model->fsdp;
    if (tree && tree->warn) tree->warn(tree->ctx, message);
}

static void bind_at(void *ctx, tsr_fsdp_moment moment, tsr_str fqn)
{
    const tsr_fsdp_tree *tree = ((const tsr_fsdp_bound *)ctx)->model->fsdp;
    if (tree && tree->at) tree->at(tree->ctx, moment, fqn);
}

/* ---- bind ---- */

static tsr_status bind(tsr_fsdp_bound *b, tsr_comm *comm, tsr_error *err)
{
    const tsr_model *model = b->model;
    tsr_fsdp_tree tree = {0};
    if (model->fsdp) tree = *model->fsdp;
    tree.modules = model->modules;
    tree.comm = comm;
    tree.plain = NULL;
    tree.warn = warn;
    tree.at = bind_at;
    tree.set_extra = model->set_extra ? set_extra : NULL;
    tree.ctx = b;
    b->leaves = b->out;
    if (!b->out) TSR_TRY(tsr_state_dict_new(b->host, &b->leaves, err));
    TSR_TRY(tsr_tensor_ids_of(model->modules, b->host, b->arena, &b->ids, err));
    TSR_TRY(tsr_model_held(model, &b->ids, b->arena, &b->held, err));
    return tsr_fsdp_model_open(&tree, (tsr_fsdp_finder){find, b}, b->host, &b->units, err);
}

tsr_status tsr_fsdp_bind(const tsr_fsdp_bound *given, tsr_comm *comm, tsr_fsdp_bound **bound, tsr_error *err)
{
    tsr_fsdp_bound *b = *bound = TSR_ARENA_NEW(given->arena, tsr_fsdp_bound, err);
    if (!b) return TSR_E_NOMEM;
    *b = *given;
    return bind(b, comm, err);
}

void tsr_fsdp_unbind(tsr_fsdp_bound *bound)
{
    if (!bound) return;
    tsr_fsdp_model_free(bound->units);
    tsr_tensor_ids_free(&bound->ids);
    if (!bound->out) tsr_state_dict_free(bound->leaves);
}

tsr_status tsr_fsdp_choose(const tsr_fsdp_bound *bound, const tsr_state_options *options, tsr_error *err)
{
    const tsr_fsdp_choice choice = tsr_state_fsdp_choice(options);
    bool gathered = false; /* DTensors are gathered by all their ranks */
    for (size_t i = 0; i < bound->units->nodes.count; i++)
        gathered = gathered || tsr_fsdp_is_transformed(&tsr_fsdp_nodes(bound->units)[i]);
    const tsr_fsdp_settings settings = {.type = choice.full ? TSR_FSDP_FULL : TSR_FSDP_SHARDED,
                                        .offload = choice.offload_to_cpu,
                                        .rank0_only = choice.model_rank0_only && !gathered};
    return tsr_fsdp_set_type(bound->units, 0, &settings, NULL, err);
}

/* ---- items ---- */

static tsr_status item_tensor(const tsr_fsdp_model *units, const tsr_fsdp_item *item, tsr_arena *arena, tsr_tensor **out,
                              tsr_error *err)
{
    if (item->kind == TSR_ITEM_EXTRA) return TSR_OK;
    if (item->kind == TSR_ITEM_PLAIN) {
        *out = (tsr_tensor *)(uintptr_t)tsr_tensor_of(item->value);
        return TSR_OK;
    }
    *out = TSR_ARENA_NEW(arena, tsr_tensor, err);
    if (!*out) return TSR_E_NOMEM;
    TSR_TRY(tsr_fsdp_parameter(&tsr_fsdp_nodes(units)[item->node], item->original, false, arena, *out, err));
    (*out)->spread = TSR_WHOLE;
    (*out)->device = NULL;
    (*out)->meta = true;
    return TSR_OK;
}

static tsr_state_kind kind_of(const tsr_fsdp_item *item)
{
    return item->kind == TSR_ITEM_EXTRA ? TSR_STATE_EXTRA : item->buffer ? TSR_STATE_BUFFER : TSR_STATE_PARAMETER;
}

tsr_status tsr_fsdp_model_items(const tsr_fsdp_bound *bound, tsr_arena *arena, tsr_model_items *out, tsr_error *err)
{
    const tsr_fsdp_model *units = bound->units;
    const tsr_fsdp_item *items = tsr_fsdp_items(units);
    out->items = tsr_arena_array(arena, units->items.count, sizeof *out->items, err);
    if (!out->items) return TSR_E_NOMEM;
    for (size_t i = 0; i < units->items.count; i++) {
        if (!tsr_fsdp_is_saved(units, &items[i])) continue;
        tsr_model_item *item = &out->items[out->count++];
        *item =
            (tsr_model_item){.raw = items[i].fqn, .kind = kind_of(&items[i]), .unit = items[i].kind == TSR_ITEM_ORIGINAL};
        TSR_TRY(item_tensor(units, &items[i], arena, &item->tensor, err));
        TSR_TRY(tsr_model_fqn(bound->model->modules, item->raw, arena, &item->fqn, &item->renamed, err));
    }
    return model_items_index(bound->host, out, err);
}

/* ---- full, or on the host ---- */

/* The distributed tensors of `root` by their paths, and in `places` (address of a tensor → its pair) where they are. */
static tsr_status distributed_in(const tsr_value *root, const tsr_host *host, tsr_arena *arena, tsr_map *places,
                                 const tsr_value **out, tsr_error *err)
{
    size_t count = 0;
    tsr_leaves leaves;
    TSR_TRY(tsr_leaves_of(root, host, true, arena, &leaves, err));
    const tsr_value **items = tsr_arena_array(arena, 2 * leaves.count, sizeof *items, err);
    for (size_t i = 0; items && i < leaves.count; i++) {
        const tsr_tensor *tensor = leaves.items[i].tensor;
        if (tensor->spread == TSR_WHOLE) continue;
        const tsr_str address = {(const char *)&leaves.items[i].tensor, sizeof tensor}; /* lives as long as `arena` */
        TSR_TRY(tsr_map_put(places, address, (uint32_t)count + 1, NULL, NULL, err));
        items[count++] = tsr_value_str(arena, leaves.items[i].path, err);
        items[count++] = leaves.items[i].value;
        if (!items[count - 2]) return TSR_E_NOMEM;
    }
    *out = items ? tsr_value_items(arena, TSR_VALUE_DICT, items, count, err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* `value` again with what was made of the tensors in `places`. Its depth was bounded when leaves were listed. */
static tsr_status put_back(const tsr_value *value, const tsr_value *made, const tsr_map *places, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    *out = value;
    if (value->kind == TSR_VALUE_TENSOR) {
        const tsr_tensor *tensor = tsr_tensor_of(value);
        const uint32_t at = tsr_map_get(places, (tsr_str){(const char *)&tensor, sizeof tensor}, UINT32_MAX);
        if (at < made->count) *out = made->items[at];
        return TSR_OK;
    }
    if (value->count == 0) return TSR_OK;
    tsr_value *copy = tsr_value_new(arena, value->kind, err);
    const tsr_value **items = tsr_arena_array(arena, value->count, sizeof *items, err);
    if (!copy || !items) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    for (size_t i = 0; i < value->count; i++) TSR_TRY(put_back(value->items[i], made, places, arena, &items[i], err));
    *out = copy;
    return TSR_OK;
}

/* Whether no rank has any. */
static tsr_status are_none(const tsr_value *list, tsr_comm *comm, bool *none, tsr_error *err)
{
    uint64_t count = list->count;
    TSR_TRY(comm->largest(comm, &count, err));
    *none = count == 0;
    return TSR_OK;
}

static tsr_status gather_rest(const tsr_value **root, tsr_comm *comm, bool root_only, tsr_state_dict *out, tsr_error *err)
{
    const uint32_t zero = 0;
    const tsr_gather_options gather = {.ranks_only = &zero, .ranks_only_count = root_only ? 1 : 0};
    const tsr_value *rest = NULL;
    bool none = false;
    tsr_map *places = tsr_map_new(out->host->allocator, 0, err);
    tsr_status status = places ? distributed_in(*root, out->host, out->arena, places, &rest, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = are_none(rest, comm, &none, err);
    none = none || status != TSR_OK;
    if (!none) status = tsr_state_dict_gather(rest, comm, &gather, out, err);
    if (!none && status == TSR_OK)
        status = tsr_comm_agree(comm, put_back(*root, tsr_state_dict_root(out), places, out->arena, root, err), err);
    tsr_map_free(places);
    return status;
}

tsr_status tsr_fsdp_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
                                tsr_error *err)
{
    const bool chosen = options->full_state_dict && options->cpu_offload;
    if (options->full_state_dict) TSR_TRY(gather_rest(&root, comm, chosen, out, err));
    if (chosen && comm->rank != 0) root = tsr_value_items(out->arena, TSR_VALUE_DICT, NULL, 0, err);
    tsr_status status = root ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && options->cpu_offload) status = tsr_state_dict_offload(root, NULL, NULL, out, err);
    else if (status == TSR_OK) tsr_state_dict_set_root(out, root);
    return tsr_comm_agree(comm, status, err);
}

/* ---- join ---- */

/* State dicts of several modules as one of the model (`_unflatten_model_state_dict`). */

typedef struct joining {
    const tsr_modules *modules;
    const tsr_named_module *named;
    size_t named_count;
    tsr_arena *arena;
    tsr_vec pairs; /* keys and values */
    tsr_map *places;
} joining;

static tsr_status prefix_of(const joining *j, tsr_module_ref module, tsr_str *out, tsr_error *err)
{
    for (size_t i = 0; i < j->named_count; i++) {
        tsr_str fqn = {NULL, 0};
        if (j->named[i].module != module) continue;
        if (j->named[i].raw.size == 0) return TSR_OK;
        TSR_TRY(tsr_model_fqn(j->modules, j->named[i].raw, j->arena, &fqn, NULL, err));
        *out = tsr_arena_format(j->arena, err, "%.*s.", TSR_STR_ARG(fqn));
        return out->data ? TSR_OK : TSR_E_NOMEM;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "module %u is not in the model", (unsigned)module);
}

/* As dict.update: a key that is there already gets the new value. */
static tsr_status put(joining *j, tsr_str prefix, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    uint32_t *at;
    bool fresh;
    TSR_FAIL_IF(key->kind != TSR_VALUE_STR, err, TSR_E_USAGE, "a key of a module's state is not a string");
    const tsr_str name = tsr_arena_format(j->arena, err, "%.*s%.*s", TSR_STR_ARG(prefix), TSR_STR_ARG(key->text));
    const tsr_value *text = name.data ? tsr_value_str(j->arena, name, err) : NULL;
    if (!text) return TSR_E_NOMEM;
    TSR_TRY(tsr_vec_reserve(&j->pairs, 2, err));
    TSR_TRY(tsr_map_put(j->places, name, (uint32_t)j->pairs.count, &at, &fresh, err));
    const tsr_value **items = j->pairs.items;
    if (fresh) {
        items[j->pairs.count] = text;
        j->pairs.count += 2;
    }
    items[*at + 1] = value;
    return TSR_OK;
}

static tsr_status join(joining *j, const tsr_module_state *parts, size_t count, const tsr_value **out, tsr_error *err)
{
    for (size_t p = 0; p < count; p++) {
        const tsr_value *state = parts[p].state;
        tsr_str prefix = TSR_STR("");
        TSR_FAIL_IF(!state || state->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the state of module %u is not a dict",
                    (unsigned)parts[p].module);
        TSR_TRY(prefix_of(j, parts[p].module, &prefix, err));
        for (size_t i = 0; i < state->count; i += 2) TSR_TRY(put(j, prefix, state->items[i], state->items[i + 1], err));
    }
    const tsr_value **items = tsr_arena_array(j->arena, j->pairs.count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    if (j->pairs.count) memcpy(items, j->pairs.items, j->pairs.count * sizeof *items);
    *out = tsr_value_items(j->arena, TSR_VALUE_DICT, items, j->pairs.count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_model_state_join(const tsr_modules *modules, tsr_module_states parts, const tsr_host *host, tsr_arena *arena,
                                const tsr_value **out, tsr_error *err)
{
    tsr_named_module *named;
    size_t named_count;
    TSR_TRY(tsr_fqn_named_modules(modules, host, arena, &named, &named_count, err));
    joining j = {.modules = modules,
                 .named = named,
                 .named_count = named_count,
                 .arena = arena,
                 .pairs = tsr_vec_of(host->allocator, sizeof(const tsr_value *)),
                 .places = tsr_map_new(host->allocator, 0, err)};
    const tsr_status status = j.places ? join(&j, parts.items, parts.count, out, err) : TSR_E_NOMEM;
    tsr_map_free(j.places);
    tsr_vec_free(&j.pairs);
    return status;
}

/* ---- get ---- */

typedef struct getting {
    const tsr_model *model;
    const tsr_state_options *options;
    tsr_state_dict *out;
    tsr_arena *passing;
    const tsr_module_ref *submodules;
    size_t submodule_count;
    tsr_name_list prefixes;
    tsr_model_items items;
    tsr_fsdp_bound *bound; /* of a tree with FSDP1's units, whose state is in `out` before it is named */
    tsr_map *frozen;       /* FQNs */
    tsr_map *taken;        /* names of the result */
    tsr_vec pairs;
    tsr_name_tally meta; /* without values */
} getting;

static tsr_status make_value(getting *g, const tsr_model_item *item, const tsr_value **out, tsr_error *err)
{
    const tsr_model *model = g->model;
    if (g->bound) {
        *out = tsr_state_dict_get(g->out, item->raw);
        return TSR_OK;
    }
    if (item->tensor) return tsr_state_dict_tensor(g->out, item->tensor, out, err);
    TSR_FAIL_IF(!model->get_extra, err, TSR_E_USAGE, "the model has no get_extra for '%.*s'", TSR_STR_ARG(item->raw));
    TSR_TRY(model->get_extra(model->ctx, item->raw, g->out->arena, out, err));
    return TSR_OK;
}

static tsr_status item_value(getting *g, const tsr_model_item *item, const tsr_value **out, tsr_error *err)
{
    const tsr_status status = make_value(g, item, out, err);
    if (status != TSR_OK) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(item->fqn));
    return status;
}

static tsr_status put_named(getting *g, const tsr_model_item *item, tsr_str name, const tsr_value *value, tsr_error *err)
{
    bool fresh;
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (tensor && tensor->meta) tsr_name_tally_add(&g->meta, item->fqn);
    if (tensor && tensor->meta) return TSR_OK;
    const tsr_str text = tsr_arena_str(g->out->arena, name, err);
    const tsr_value *key = text.data ? tsr_value_str(g->out->arena, text, err) : NULL;
    if (!key) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(g->taken, text, 0, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "'%.*s' of several submodules; '%.*s' is one of them", TSR_STR_ARG(name),
                TSR_STR_ARG(item->fqn));
    TSR_TRY(tsr_vec_reserve(&g->pairs, 2, err));
    *(const tsr_value **)tsr_vec_push(&g->pairs, err) = key;
    *(const tsr_value **)tsr_vec_push(&g->pairs, err) = value;
    return TSR_OK;
}

static tsr_status put_item(getting *g, const tsr_model_item *item, tsr_error *err)
{
    const tsr_value *value = NULL;
    if (tsr_map_get(g->frozen, item->fqn, 0)) return TSR_OK;
    TSR_TRY(item_value(g, item, &value, err));
    if (!value) return TSR_OK; /* FULL on another rank */
    if (g->submodule_count == 0) return put_named(g, item, item->fqn, value, err);
    for (size_t i = 0; i < g->prefixes.count; i++) {
        const tsr_str prefix = g->prefixes.names[i];
        if (!tsr_str_starts(item->fqn, prefix)) continue;
        if (g->options->keep_submodule_prefixes) return put_named(g, item, item->fqn, value, err);
        const tsr_str name = {item->fqn.data + prefix.size, item->fqn.size - prefix.size};
        TSR_TRY(put_named(g, item, name, value, err));
    }
    return TSR_OK;
}

/* Checks the options and lists what the model has, before the ranks compare their results. */
static tsr_status prepare(getting *g, tsr_comm *comm, tsr_error *err)
{
    const tsr_host *host = g->out->host;
    TSR_TRY(tsr_state_options_check(g->options, 0, false, err));
    if (g->submodule_count)
        TSR_TRY(tsr_fqn_submodule_prefixes(g->model->modules, (tsr_module_refs){g->submodules, g->submodule_count}, host,
                                           g->passing, &g->prefixes, err));
    g->frozen = tsr_map_new(host->allocator, 0, err);
    g->taken = g->frozen ? tsr_map_new(host->allocator, 0, err) : NULL;
    if (!g->taken) return TSR_E_NOMEM;
    if (g->options->ignore_frozen_params) TSR_TRY(tsr_model_frozen(g->model->modules, host, g->passing, g->frozen, err));
    if (!tsr_fsdp_is_in(g->model->modules)) return tsr_model_items_of(g->model, host, g->passing, &g->items, err);
    const tsr_fsdp_bound given = {.model = g->model, .host = host, .arena = g->passing, .out = g->out};
    TSR_TRY(tsr_fsdp_bind(&given, comm, &g->bound, err));
    TSR_TRY(tsr_fsdp_choose(g->bound, g->options, err));
    return tsr_fsdp_model_items(g->bound, g->passing, &g->items, err);
}

static tsr_status make_state(getting *g, const tsr_value **root, tsr_error *err)
{
    for (int renamed = 0; renamed < 2; renamed++)
        for (size_t i = 0; i < g->items.count; i++)
            if (g->items.items[i].renamed == (renamed == 1)) TSR_TRY(put_item(g, &g->items.items[i], err));
    const tsr_value **items = tsr_arena_array(g->out->arena, g->pairs.count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    if (g->pairs.count) memcpy(items, g->pairs.items, g->pairs.count * sizeof *items);
    *root = tsr_value_items(g->out->arena, TSR_VALUE_DICT, items, g->pairs.count, err);
    return *root ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_model_verify(const tsr_state_options *options, const tsr_value *state, bool submodules, tsr_arena *arena,
                            tsr_error *err)
{
    const size_t count = tsr_value_pairs(state);
    tsr_str *keys = tsr_arena_array(arena, count, sizeof *keys, err);
    if (!keys) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        TSR_FAIL_IF(state->items[2 * i]->kind != TSR_VALUE_STR, err, TSR_E_FORMAT,
                    "a key of the model state is not a string");
        keys[i] = state->items[2 * i]->text;
    }
    const tsr_state_request request = {
        .handle_model = true, .submodules = submodules, .model_keys = keys, .model_key_count = count};
    return tsr_state_dict_check(options, &request, err);
}

static tsr_status get_model(getting *g, tsr_comm *comm, tsr_error *err)
{
    const tsr_value *root = NULL;
    if (g->submodule_count && g->model->warn)
        g->model->warn(g->model->ctx,
                       "state dicts of some submodules are deprecated in PyTorch: get all of the state, and take "
                       "what is wanted from it");
    tsr_status status = g->passing ? prepare(g, comm, err) : TSR_E_NOMEM;
    TSR_TRY(tsr_options_agree(comm, "get_model_state_dict: options", g->options, 0, status, err));
    if (g->bound) TSR_TRY(tsr_fsdp_model_save(g->bound->units, g->out, err));
    TSR_TRY(tsr_comm_agree(comm, make_state(g, &root, err), err));
    if (g->bound) TSR_TRY(tsr_fsdp_full_or_cpu(root, comm, g->options, g->out, err));
    else TSR_TRY(tsr_full_or_cpu(root, comm, g->options, g->out, err));
    const tsr_warnings warnings = {g->model->warn, g->model->ctx};
    tsr_name_tally_warn(&g->meta, &warnings, "tensors on the meta device have no values and are left out");
    status = tsr_model_verify(g->options, tsr_state_dict_root(g->out), g->submodule_count > 0, g->passing, err);
    return tsr_comm_agree(comm, status, err);
}

tsr_status tsr_get_model_state_dict(const tsr_model *model, const tsr_state_call *call, tsr_state_dict *out, tsr_error *err)
{
    tsr_call c;
    TSR_TRY(tsr_call_open(&c, call, out->host, err));
    getting g = {.model = model,
                 .options = &c.options,
                 .out = out,
                 .passing = tsr_arena_new(out->host->allocator, 0, err),
                 .submodules = c.given.submodules,
                 .submodule_count = c.given.submodule_count,
                 .pairs = tsr_vec_of(out->host->allocator, sizeof(const tsr_value *))};
    const tsr_status status = get_model(&g, c.given.comm, err);
    tsr_model_items_free(&g.items);
    tsr_fsdp_unbind(g.bound);
    tsr_map_free(g.frozen);
    tsr_map_free(g.taken);
    tsr_vec_free(&g.pairs);
    tsr_arena_free(g.passing);
    tsr_call_close(&c);
    return status;
}
