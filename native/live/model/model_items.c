/* Lists what a model has under canonical names: the items of its module tree, or what its FSDP1 units save. */
#include <inttypes.h>

#include "live/model/model_names.h"

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

static tsr_status add_item(walking *w, tsr_str prefix, const tsr_module_tensor *of, tsr_error *err)
{
    const tsr_str raw = joined(w, prefix, of ? of->name : TSR_STR("_extra_state"), err);
    if (!raw.data) return TSR_E_NOMEM;
    TSR_FAIL_IF(w->items.count >= w->host->limits.entries, err, TSR_E_LIMIT, "model: more than %" PRIu64 " names",
                (uint64_t)w->host->limits.entries);
    tsr_model_item item = {.raw = raw};
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
    for (size_t i = 0; i < module->parameter_count; i++) TSR_TRY(add_item(w, prefix, &module->parameters[i], err));
    for (size_t i = 0; i < module->buffer_count; i++)
        if (module->buffers[i].persistent) TSR_TRY(add_item(w, prefix, &module->buffers[i], err));
    return module->extra_state ? add_item(w, prefix, NULL, err) : TSR_OK;
}

/* The tree is no deeper than limits.depth, because tsr_modules_new refuses deeper ones. */
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

static tsr_status items_of(const tsr_model *model, const tsr_host *host, tsr_arena *arena, tsr_model_items *out,
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

tsr_status tsr_fsdp_bind(const tsr_fsdp_bound *given, tsr_comm *comm, tsr_fsdp_bound **bound, tsr_error *err)
{
    const tsr_model *model = given->model;
    tsr_fsdp_tree tree = {0};
    tsr_fsdp_bound *b = *bound = TSR_ARENA_NEW(given->arena, tsr_fsdp_bound, err);
    if (!b) return TSR_E_NOMEM;
    *b = *given;
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

void tsr_fsdp_unbind(tsr_fsdp_bound *bound)
{
    if (!bound) return;
    tsr_fsdp_model_free(bound->units);
    tsr_tensor_ids_free(&bound->ids);
    if (!bound->out) tsr_state_dict_free(bound->leaves);
}

/* Sets all units to FULL or SHARDED, according to the options. */
static tsr_status choose(const tsr_fsdp_bound *bound, const tsr_state_options *options, tsr_error *err)
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

/* Lists what units save. `raw` is FSDP1's key; the `tensor` of an original is a whole meta tensor. */
static tsr_status unit_items(const tsr_fsdp_bound *bound, tsr_arena *arena, tsr_model_items *out, tsr_error *err)
{
    const tsr_fsdp_model *units = bound->units;
    const tsr_fsdp_item *items = tsr_fsdp_items(units);
    out->items = tsr_arena_array(arena, units->items.count, sizeof *out->items, err);
    if (!out->items) return TSR_E_NOMEM;
    for (size_t i = 0; i < units->items.count; i++) {
        if (!tsr_fsdp_is_saved(units, &items[i])) continue;
        tsr_model_item *item = &out->items[out->count++];
        *item = (tsr_model_item){.raw = items[i].fqn, .unit = items[i].kind == TSR_ITEM_ORIGINAL};
        TSR_TRY(item_tensor(units, &items[i], arena, &item->tensor, err));
        TSR_TRY(tsr_model_fqn(bound->model->modules, item->raw, arena, &item->fqn, &item->renamed, err));
    }
    return model_items_index(bound->host, out, err);
}

tsr_status tsr_model_items_open(const tsr_fsdp_bound *given, tsr_comm *comm, const tsr_state_options *options,
                                tsr_fsdp_bound **bound, tsr_model_items *out, tsr_error *err)
{
    if (!tsr_fsdp_is_in(given->model->modules)) return items_of(given->model, given->host, given->arena, out, err);
    TSR_TRY(tsr_fsdp_bind(given, comm, bound, err));
    TSR_TRY(choose(*bound, options, err));
    return unit_items(*bound, given->arena, out, err);
}
