/* Lists what a model with FSDP1 units saves. One walk over the module tree, in the order of nn.Module.state_dict, finds
 * the canonical form of every name and the position of every original parameter. */
#include "statedict/fsdp/fsdp_cut.h"
#include "tessera/sys/box.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/module_tree.h"

#include <inttypes.h>

/* The name of an original parameter in its module. The originals of one module form a linked list. */
typedef struct place {
    tsr_str name;
    uint32_t original;
    uint32_t next;
    bool listed;
} place;

#define END UINT32_MAX

/* The position of the walk. Prefixes are empty or end in a dot. */
typedef struct at {
    tsr_module_ref module;
    tsr_str prefix;   /* the canonical name from the root */
    tsr_str relative; /* the name from the module that the unit wraps */
    uint32_t node;
    bool ignored;
    uint32_t depth;
} at;

typedef struct walk {
    tsr_fsdp_model *model;
    tsr_vec places;
    tsr_map **chains; /* one per node: module prefix → first place in `places` */
    size_t chain_count;
    tsr_map *plain; /* key → index of its pair in the plain state */
    uint64_t visits;
} walk;

static tsr_str without_last_dot(tsr_str prefix)
{
    return prefix.size ? (tsr_str){prefix.data, prefix.size - 1} : prefix;
}

tsr_str tsr_fsdp_clean(tsr_str name, tsr_arena *arena, tsr_error *err)
{
    tsr_str copy = tsr_arena_str(arena, name, err);
    char *to = (char *)copy.data;
    if (!to) return copy;
    for (size_t i = 0; i < name.size;) {
        const char *dot = memchr(name.data + i, '.', name.size - i);
        const size_t end = dot ? (size_t)(dot - name.data) + 1 : name.size;
        const tsr_str part = {name.data + i, end - i - (dot != NULL)};
        const bool wrapper = dot && (tsr_str_equal(part, tsr_wrapper_child(TSR_WRAPPER_FSDP1)) ||
                                     tsr_str_equal(part, tsr_wrapper_child(TSR_WRAPPER_CHECKPOINT)));
        if (!wrapper) {
            memmove(to, name.data + i, end - i);
            to += end - i;
        }
        i = end;
    }
    copy.size = (size_t)(to - copy.data);
    return copy;
}

/* ---- units ---- */

static const tsr_fsdp_unit *unit_of(const tsr_fsdp_tree *tree, tsr_module_ref module)
{
    for (size_t i = 0; i < tree->unit_count; i++)
        if (tree->units[i].module == module) return &tree->units[i];
    return NULL;
}

static tsr_status add_place(walk *w, uint32_t node, tsr_str fqn, uint32_t original, tsr_error *err)
{
    uint32_t *first;
    bool fresh;
    const tsr_str name = tsr_fsdp_clean(fqn, w->model->arena, err);
    if (!name.data) return TSR_E_NOMEM;
    size_t split = name.size;
    while (split && name.data[split - 1] != '.') split--;
    const uint32_t number = (uint32_t)w->places.count;
    place *p = tsr_vec_push(&w->places, err);
    if (!p) return TSR_E_NOMEM;
    *p = (place){{name.data + split, name.size - split}, original, END, false};
    TSR_TRY(tsr_map_put(w->chains[node], (tsr_str){name.data, split}, number, &first, &fresh, err));
    if (fresh) return TSR_OK;
    place *places = w->places.items;
    uint32_t last = *first;
    while (places[last].next != END) last = places[last].next;
    places[last].next = number;
    return TSR_OK;
}

static uint32_t original_named(const tsr_module_flat *flat, tsr_str fqn)
{
    for (size_t i = 0; i < flat->param_count; i++)
        if (tsr_str_equal(flat->params[i].fqn, fqn)) return (uint32_t)i;
    return END;
}

static tsr_status list_places(walk *w, uint32_t number, tsr_error *err)
{
    const tsr_module_flat *flat = tsr_fsdp_nodes(w->model)[number].flat;
    for (size_t i = 0; i < flat->param_count; i++) TSR_TRY(add_place(w, number, flat->params[i].fqn, (uint32_t)i, err));
    for (size_t i = 0; i < flat->shared_count; i++) {
        const tsr_str of = flat->shared[i].of;
        const uint32_t original = original_named(flat, of);
        TSR_FAIL_IF(original == END, err, TSR_E_USAGE, "'%.*s' is tied to '%.*s', which the unit does not have",
                    TSR_STR_ARG(flat->shared[i].fqn), TSR_STR_ARG(of));
        TSR_TRY(add_place(w, number, flat->shared[i].fqn, original, err));
    }
    return TSR_OK;
}

static tsr_status check_mesh(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
{
    const tsr_fsdp_unit *unit = node->unit;
    const tsr_mesh *mesh = unit->mesh;
    if (!mesh) return TSR_OK;
    const bool fits = mesh->dim_count && tsr_mesh_ranks(mesh) == model->tree.comm->size &&
                      (unit->no_shard || mesh->shape[mesh->dim_count - 1] == unit->comm->size) &&
                      model->tree.comm->rank % mesh->shape[mesh->dim_count - 1] == unit->comm->rank;
    TSR_FAIL_IF(!fits, err, TSR_E_USAGE,
                "unit '%.*s': its mesh is not that of rank %" PRIu32 " of %" PRIu32 " with %" PRIu32 " slices",
                TSR_STR_ARG(node->fqn), model->tree.comm->rank, model->tree.comm->size, unit->comm->size);
    return TSR_OK;
}

/* Computes where the originals begin in the flat parameter, and which rank has which part. */
static tsr_status lay_out(tsr_fsdp_model *model, tsr_fsdp_node *node, tsr_error *err)
{
    const tsr_module_flat *flat = node->flat;
    uint64_t *numels = tsr_arena_array(model->arena, flat->param_count, sizeof *numels, err);
    tsr_flat_param *params = tsr_arena_array(model->arena, flat->param_count, sizeof *params, err);
    if (!numels || !params) return TSR_E_NOMEM;
    for (size_t i = 0; i < flat->param_count; i++) {
        const tsr_flat_original *o = &flat->params[i];
        TSR_FAIL_IF(o->ndim > TSR_MAX_NDIM || !tsr_box_volume((tsr_box){o->ndim, NULL, o->shape}, &numels[i]), err,
                    TSR_E_LIMIT, "'%.*s%s%.*s' is too large", TSR_STR_ARG(node->fqn), node->fqn.size ? "." : "",
                    TSR_STR_ARG(o->fqn));
    }
    node->itemsize = tsr_dtype_size(node->unit->dtype);
    TSR_FAIL_IF(node->itemsize == 0, err, TSR_E_USAGE, "unit '%.*s': %s elements are not byte-aligned",
                TSR_STR_ARG(node->fqn), tsr_dtype_describe(node->unit->dtype)->name);
    node->sharded = !node->unit->no_shard && node->unit->comm->size > 1;
    const uint32_t slices = node->sharded ? node->unit->comm->size : 1;
    TSR_TRY(tsr_flat_layout_make((tsr_flat_numels){numels, flat->param_count, flat->alignment}, slices, model->arena,
                                 &node->layout, err));
    TSR_FAIL_IF(node->layout.slice_numel > SIZE_MAX / 2 / slices / node->itemsize, err, TSR_E_LIMIT,
                "unit '%.*s' is too large", TSR_STR_ARG(node->fqn));
    for (size_t i = 0; i < flat->param_count; i++)
        params[i] = (tsr_flat_param){.fqn = flat->params[i].fqn,
                                     .ndim = flat->params[i].ndim,
                                     .shape = flat->params[i].shape,
                                     .flat_begin = node->layout.flat_offsets[i],
                                     .flat_end = node->layout.flat_offsets[i] + numels[i]};
    node->cut = (tsr_flat_unit){.fsdp_module = node->fqn,
                                .params = params,
                                .param_count = (uint32_t)flat->param_count,
                                .numel = node->layout.flat_numel,
                                .is_sharded = node->sharded};
    if (!node->unit->root_mesh) return check_mesh(model, node, err);
    TSR_TRY(tsr_fsdp_check_root_mesh(model, node, err));
    return tsr_fsdp_check_specs(model, node, err);
}

static tsr_status open_node(walk *w, const at *here, uint32_t *number, tsr_error *err)
{
    tsr_fsdp_model *model = w->model;
    const tsr_module_flat *flat = tsr_modules_at(model->tree.modules, here->module)->flat_param;
    *number = (uint32_t)model->nodes.count;
    tsr_fsdp_node *node = tsr_vec_push(&model->nodes, err);
    tsr_map **chains = tsr_arena_array(model->arena, model->nodes.count, sizeof *chains, err);
    if (!node || !chains) return TSR_E_NOMEM;
    *node = (tsr_fsdp_node){.module = here->module,
                            .fqn = without_last_dot(here->prefix),
                            .flat = flat,
                            .world_rank = model->tree.comm->rank,
                            .unit = unit_of(&model->tree, here->module)};
    TSR_FAIL_IF(flat && !node->unit, err, TSR_E_USAGE, "unit '%.*s' has a flat parameter, but no slice was passed for it",
                TSR_STR_ARG(node->fqn));
    TSR_FAIL_IF(!flat && node->unit, err, TSR_E_USAGE, "a slice was passed for unit '%.*s', which has no flat parameter",
                TSR_STR_ARG(node->fqn));
    if (w->chain_count) memcpy(chains, w->chains, w->chain_count * sizeof *chains);
    w->chains = chains;
    w->chains[w->chain_count] = tsr_map_new(model->host->allocator, 0, err);
    if (!w->chains[w->chain_count]) return TSR_E_NOMEM;
    w->chain_count++;
    if (!flat) return TSR_OK;
    TSR_TRY(lay_out(model, node, err));
    return list_places(w, *number, err);
}

/* ---- items ---- */

static tsr_status add_item(walk *w, const at *here, tsr_fsdp_item_kind kind, tsr_str name, tsr_fsdp_item **out,
                           tsr_error *err)
{
    tsr_fsdp_model *model = w->model;
    TSR_FAIL_IF(model->items.count >= model->host->limits.entries, err, TSR_E_LIMIT,
                "the model has more than %" PRIu64 " names", (uint64_t)model->host->limits.entries);
    tsr_fsdp_item *item = tsr_vec_push(&model->items, err);
    if (!item) return TSR_E_NOMEM;
    *item = (tsr_fsdp_item){.kind = kind, .node = here->node, .ignored = here->ignored};
    item->fqn = tsr_arena_format(model->arena, err, "%.*s%.*s", TSR_STR_ARG(here->prefix), TSR_STR_ARG(name));
    if (!item->fqn.data) return TSR_E_NOMEM;
    *out = item;
    return TSR_OK;
}

static tsr_status plain_value(const walk *w, tsr_str fqn, const tsr_module_tensor *tensor, const tsr_value **out,
                              tsr_error *err)
{
    const tsr_fsdp_finder *finder = &w->model->finder;
    if (finder->find) return finder->find(finder->ctx, fqn, tensor, out, err);
    const uint32_t pair = tsr_map_get(w->plain, fqn, UINT32_MAX);
    *out = pair == UINT32_MAX ? NULL : w->model->tree.plain->items[2 * (size_t)pair + 1];
    return TSR_OK;
}

static tsr_status add_plain(walk *w, const at *here, const tsr_module_tensor *tensor, bool buffer, tsr_error *err)
{
    tsr_fsdp_item *item = NULL;
    TSR_TRY(add_item(w, here, TSR_ITEM_PLAIN, tensor->name, &item, err));
    item->tensor = tensor;
    item->buffer = buffer;
    TSR_TRY(plain_value(w, item->fqn, tensor, &item->value, err));
    const tsr_tensor *live = item->value ? tsr_tensor_of(item->value) : NULL;
    TSR_FAIL_IF(!live, err, TSR_E_USAGE, "no tensor was passed for '%.*s'", TSR_STR_ARG(item->fqn));
    TSR_FAIL_IF(live->spread == TSR_WHOLE &&
                    !tsr_shape_equal(tensor->ndim, tensor->shape, live->entry.ndim, live->entry.shape),
                err, TSR_E_USAGE, "the tensor that was passed for '%.*s' has a different shape than in the module tree",
                TSR_STR_ARG(item->fqn));
    return TSR_OK;
}

static tsr_status add_original(walk *w, const at *here, place *p, const tsr_module_tensor *tensor, tsr_error *err)
{
    tsr_fsdp_item *item;
    const uint32_t original = p->original;
    TSR_TRY(add_item(w, here, TSR_ITEM_ORIGINAL, p->name, &item, err));
    p->listed = true;
    item->original = original;
    item->tensor = tensor;
    return TSR_OK;
}

static tsr_status list_parameter(walk *w, const at *here, uint32_t chain, const tsr_module_tensor *tensor, tsr_error *err)
{
    tsr_fsdp_item *item;
    place *places = w->places.items;
    for (uint32_t p = chain; p != END; p = places[p].next)
        if (tsr_str_equal(places[p].name, tensor->name)) return add_original(w, here, &places[p], tensor, err);
    const bool flat = here->node != TSR_NO_UNIT && here->relative.size == 0;
    if (!flat || !tsr_str_equal(tensor->name, TSR_STR("_flat_param"))) return add_plain(w, here, tensor, false, err);
    TSR_TRY(add_item(w, here, TSR_ITEM_FLAT, tensor->name, &item, err));
    item->tensor = tensor;
    return TSR_OK;
}

static tsr_status list_own(walk *w, const at *here, const tsr_module *m, tsr_error *err)
{
    tsr_fsdp_item *item;
    const bool transparent =
        m->wrapper == TSR_WRAPPER_FSDP1 || m->wrapper == TSR_WRAPPER_CHECKPOINT; /* the wrapped module has the names */
    const bool none = transparent || here->node == TSR_NO_UNIT;
    const uint32_t chain = none ? END : tsr_map_get(w->chains[here->node], here->relative, END);
    place *places = w->places.items;
    for (uint32_t p = chain; p != END; p = places[p].next) places[p].listed = false;
    for (size_t i = 0; i < m->parameter_count; i++) TSR_TRY(list_parameter(w, here, chain, &m->parameters[i], err));
    for (uint32_t p = chain; p != END; p = places[p].next)
        if (!places[p].listed) TSR_TRY(add_original(w, here, &places[p], NULL, err));
    for (size_t i = 0; i < m->buffer_count; i++)
        if (m->buffers[i].persistent) TSR_TRY(add_plain(w, here, &m->buffers[i], true, err));
    if (!m->extra_state) return TSR_OK;
    TSR_TRY(add_item(w, here, TSR_ITEM_EXTRA, TSR_STR("_extra_state"), &item, err));
    TSR_TRY(plain_value(w, item->fqn, NULL, &item->value, err));
    TSR_FAIL_IF(!item->value, err, TSR_E_USAGE, "no value was passed for '%.*s'", TSR_STR_ARG(item->fqn));
    return TSR_OK;
}

static bool is_ignored(const tsr_fsdp_tree *tree, tsr_str prefix)
{
    for (size_t i = 0; i < tree->ignored_count; i++)
        if (prefix.size && tsr_str_equal(tree->ignored[i], without_last_dot(prefix))) return true;
    return false;
}

static tsr_status visit(walk *w, at here, tsr_error *err);

static tsr_status visit_child(walk *w, const at *here, const tsr_module *m, tsr_str name, tsr_error *err)
{
    const tsr_attribute *child = tsr_modules_attribute(w->model->tree.modules, here->module, name);
    at below = *here;
    below.module = child->module;
    below.depth++;
    if (m->wrapper != TSR_WRAPPER_FSDP1 && m->wrapper != TSR_WRAPPER_CHECKPOINT) {
        below.prefix = tsr_arena_format(w->model->arena, err, "%.*s%.*s.", TSR_STR_ARG(here->prefix), TSR_STR_ARG(name));
        below.relative = tsr_arena_format(w->model->arena, err, "%.*s%.*s.", TSR_STR_ARG(here->relative), TSR_STR_ARG(name));
        if (!below.prefix.data || !below.relative.data) return TSR_E_NOMEM;
        below.ignored = below.ignored || is_ignored(&w->model->tree, below.prefix);
    }
    return visit(w, below, err);
}

static tsr_status visit(walk *w, at here, tsr_error *err)
{
    const tsr_module *m = tsr_modules_at(w->model->tree.modules, here.module);
    const bool unit = m->wrapper == TSR_WRAPPER_FSDP1;
    tsr_fsdp_item *item;
    TSR_FAIL_IF(here.depth > w->model->host->limits.depth, err, TSR_E_LIMIT, "the module tree is deeper than %" PRIu32,
                (uint32_t)w->model->host->limits.depth);
    TSR_FAIL_IF(++w->visits > w->model->host->limits.expansion, err, TSR_E_LIMIT, "shared modules make too many names");
    const tsr_str fqn = without_last_dot(here.prefix);
    uint32_t node = TSR_NO_UNIT;
    if (unit) {
        TSR_TRY(open_node(w, &here, &node, err));
        TSR_TRY(add_item(w, &here, TSR_ITEM_ENTER, TSR_STR(""), &item, err));
        item->fqn = fqn;
        item->node = node;
    }
    if (unit && m->flat_param) { /* a unit without a flat parameter leaves the parameters below it to the unit around it */
        here.node = node;
        here.relative = TSR_STR("");
    }
    TSR_TRY(list_own(w, &here, m, err));
    for (size_t i = 0; i < m->child_count; i++) TSR_TRY(visit_child(w, &here, m, m->children[i].name, err));
    if (!unit) return TSR_OK;
    if (m->flat_param && m->flat_param->use_orig_params)
        TSR_TRY(add_item(w, &here, TSR_ITEM_FLAT, TSR_STR("_flat_param"), &item, err));
    TSR_TRY(add_item(w, &here, TSR_ITEM_LEAVE, TSR_STR(""), &item, err));
    item->fqn = fqn;
    item->node = node;
    return TSR_OK;
}

static tsr_status index_plain(walk *w, tsr_error *err)
{
    const tsr_value *plain = w->model->tree.plain;
    w->plain = tsr_map_new(w->model->host->allocator, plain ? tsr_value_pairs(plain) : 0, err);
    if (!w->plain) return TSR_E_NOMEM;
    TSR_FAIL_IF(plain && plain->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the tensors outside the units must be a dict");
    for (size_t i = 0; plain && i < plain->count; i += 2) {
        TSR_FAIL_IF(plain->items[i]->kind != TSR_VALUE_STR, err, TSR_E_USAGE,
                    "a key of the tensors outside the units is not a string");
        TSR_TRY(tsr_map_put(w->plain, plain->items[i]->text, (uint32_t)(i / 2), NULL, NULL, err));
    }
    return TSR_OK;
}

static tsr_status check_units(const tsr_fsdp_model *model, tsr_error *err)
{
    for (size_t i = 0; i < model->tree.unit_count; i++) {
        bool met = false;
        for (size_t n = 0; n < model->nodes.count; n++) met = met || tsr_fsdp_nodes(model)[n].unit == &model->tree.units[i];
        TSR_FAIL_IF(!met, err, TSR_E_USAGE, "a slice was passed for module %" PRIu32 ", which is not a unit",
                    model->tree.units[i].module);
    }
    return TSR_OK;
}

tsr_status tsr_fsdp_list(tsr_fsdp_model *model, tsr_error *err)
{
    walk w = {.model = model, .places = tsr_vec_of(model->host->allocator, sizeof(place))};
    const at root = {.prefix = TSR_STR(""), .relative = TSR_STR(""), .node = TSR_NO_UNIT};
    tsr_status status = index_plain(&w, err);
    if (status == TSR_OK) status = visit(&w, root, err);
    if (status == TSR_OK) status = check_units(model, err);
    for (size_t i = 0; i < w.chain_count; i++) tsr_map_free(w.chains[i]);
    tsr_map_free(w.plain);
    tsr_vec_free(&w.places);
    return status;
}
