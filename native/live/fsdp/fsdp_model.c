/* A model with FSDP1 units: its settings, and what all ranks agree on before any data is sent. */
#include "live/fsdp/fsdp_model.h"
#include "tessera/sys/catalog.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

tsr_status tsr_fsdp_model_new(const tsr_fsdp_tree *tree, const tsr_host *host, tsr_fsdp_model **out, tsr_error *err)
{
    return tsr_fsdp_model_open(tree, (tsr_fsdp_finder){0}, host, out, err);
}

tsr_status tsr_fsdp_model_open(const tsr_fsdp_tree *tree, tsr_fsdp_finder finder, const tsr_host *host, tsr_fsdp_model **out,
                               tsr_error *err)
{
    *out = NULL;
    tsr_fsdp_model *model = tsr_alloc(host->allocator, 1, sizeof *model, err);
    if (!model) return TSR_E_NOMEM;
    *model = (tsr_fsdp_model){.tree = *tree,
                              .finder = finder,
                              .host = host,
                              .arena = tsr_arena_new(host->allocator, 0, err),
                              .nodes = tsr_vec_of(host->allocator, sizeof(tsr_fsdp_node)),
                              .items = tsr_vec_of(host->allocator, sizeof(tsr_fsdp_item))};
    const tsr_status status = model->arena ? tsr_fsdp_list(model, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = model;
    else tsr_fsdp_model_free(model);
    return status;
}

void tsr_fsdp_model_free(tsr_fsdp_model *model)
{
    if (!model) return;
    tsr_vec_free(&model->items);
    tsr_vec_free(&model->nodes);
    tsr_arena_free(model->arena);
    tsr_free(model->host->allocator, model, 1, sizeof *model);
}

/* ---- settings ---- */

static const char *type_name(tsr_fsdp_type type)
{
    return type == TSR_FSDP_FULL ? "FULL" : type == TSR_FSDP_LOCAL ? "LOCAL" : "SHARDED";
}

/* Marks `top` and all below it. */
static void mark_below(const tsr_modules *modules, tsr_module_ref top, bool *marked)
{
    const tsr_module *m = tsr_modules_at(modules, top);
    if (marked[top]) return;
    marked[top] = true;
    for (size_t i = 0; i < m->child_count; i++)
        mark_below(modules, tsr_modules_attribute(modules, top, m->children[i].name)->module, marked);
}

static bool same_settings(const tsr_fsdp_settings *a, const tsr_fsdp_settings *b)
{
    return a->type == b->type && a->offload == b->offload && a->rank0_only == b->rank0_only;
}

static tsr_str settings_text(const tsr_fsdp_settings *settings)
{
    static const char *const flags[] = {"", ", offload", ", rank0_only", ", offload, rank0_only"};
    return tsr_str_from(flags[(settings->offload ? 1 : 0) + (settings->rank0_only ? 2 : 0)]);
}

/* The settings of the marked units, which must be equal. */
static tsr_status common_settings(const tsr_fsdp_model *model, const bool *marked, tsr_fsdp_settings *out, tsr_error *err)
{
    const tsr_fsdp_node *first = NULL;
    *out = (tsr_fsdp_settings){0};
    for (size_t i = 0; i < model->nodes.count; i++) {
        const tsr_fsdp_node *node = &tsr_fsdp_nodes(model)[i];
        if (!marked[node->module]) continue;
        if (!first) first = node;
        TSR_FAIL_IF(!same_settings(&first->settings, &node->settings), err, TSR_E_USAGE,
                    "all units of a tree must have the same settings, but '%.*s' is set to %s%.*s and '%.*s' to %s%.*s",
                    TSR_STR_ARG(first->fqn), type_name(first->settings.type), TSR_STR_ARG(settings_text(&first->settings)),
                    TSR_STR_ARG(node->fqn), type_name(node->settings.type), TSR_STR_ARG(settings_text(&node->settings)));
    }
    if (first) *out = first->settings;
    return TSR_OK;
}

static tsr_status mark(const tsr_fsdp_model *model, tsr_module_ref module, bool **marked, tsr_error *err)
{
    const uint32_t count = tsr_modules_count(model->tree.modules);
    *marked = NULL;
    TSR_FAIL_IF(module >= count, err, TSR_E_USAGE, "there is no module %" PRIu32, module);
    *marked = tsr_alloc(model->host->allocator, count, sizeof **marked, err);
    if (!*marked) return TSR_E_NOMEM;
    memset(*marked, 0, count * sizeof **marked);
    mark_below(model->tree.modules, module, *marked);
    return TSR_OK;
}

tsr_status tsr_fsdp_get_type(const tsr_fsdp_model *model, tsr_module_ref module, tsr_fsdp_settings *out, tsr_error *err)
{
    bool *marked;
    tsr_status status = mark(model, module, &marked, err);
    if (status == TSR_OK) status = common_settings(model, marked, out, err);
    tsr_free(model->host->allocator, marked, tsr_modules_count(model->tree.modules), sizeof *marked);
    return status;
}

tsr_status tsr_fsdp_set_type(tsr_fsdp_model *model, tsr_module_ref module, const tsr_fsdp_settings *settings,
                             tsr_fsdp_settings *previous, tsr_error *err)
{
    tsr_fsdp_settings before;
    bool *marked;
    TSR_FAIL_IF(settings->rank0_only && settings->type != TSR_FSDP_FULL, err, TSR_E_USAGE,
                "rank0_only can only be used with FULL, not with %s", type_name(settings->type));
    tsr_status status = mark(model, module, &marked, err);
    if (status == TSR_OK) status = common_settings(model, marked, &before, err);
    for (size_t i = 0; i < model->nodes.count && status == TSR_OK; i++) {
        tsr_fsdp_node *node = &tsr_fsdp_nodes(model)[i];
        if (marked[node->module]) node->settings = *settings;
    }
    if (status == TSR_OK && previous) *previous = before;
    tsr_free(model->host->allocator, marked, tsr_modules_count(model->tree.modules), sizeof *marked);
    return status;
}

tsr_fsdp_settings tsr_fsdp_effective(const tsr_fsdp_node *node)
{
    return node->unit && !node->sharded ? (tsr_fsdp_settings){0} : node->settings;
}

bool tsr_fsdp_is_saved(const tsr_fsdp_model *model, const tsr_fsdp_item *item)
{
    if (item->kind == TSR_ITEM_ENTER || item->kind == TSR_ITEM_LEAVE) return false;
    if (item->node == TSR_NO_UNIT) return true;
    const tsr_fsdp_node *node = &tsr_fsdp_nodes(model)[item->node];
    const bool local = tsr_fsdp_effective(node).type == TSR_FSDP_LOCAL;
    if (item->kind == TSR_ITEM_FLAT) return local;
    return item->kind != TSR_ITEM_ORIGINAL || !local || node->flat->use_orig_params;
}

/* ---- before any data is sent ---- */

void tsr_fsdp_warn(const tsr_fsdp_model *model, const char *format, ...)
{
    char text[TSR_ERROR_MESSAGE_SIZE];
    va_list arguments;
    if (!model->tree.warn) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    model->tree.warn(model->tree.ctx, text);
}

void tsr_fsdp_tell(const tsr_fsdp_model *model, const tsr_fsdp_item *item, bool saving)
{
    const bool before = item->kind == TSR_ITEM_ENTER;
    const tsr_fsdp_moment moment = saving   ? before ? TSR_FSDP_BEFORE_SAVE : TSR_FSDP_AFTER_SAVE
                                   : before ? TSR_FSDP_BEFORE_LOAD
                                            : TSR_FSDP_AFTER_LOAD;
    if (model->tree.at) model->tree.at(model->tree.ctx, moment, item->fqn);
}

static tsr_status check_node(const tsr_fsdp_model *model, const tsr_fsdp_node *node, tsr_error *err)
{
    const tsr_fsdp_type type = tsr_fsdp_effective(node).type;
    if (!node->unit) return TSR_OK;
    TSR_FAIL_IF(type == TSR_FSDP_LOCAL && node->unit->mesh, err, TSR_E_USAGE,
                "unit '%.*s' has a device mesh, which LOCAL state dicts do not support; set it to SHARDED",
                TSR_STR_ARG(node->fqn));
    TSR_FAIL_IF(type == TSR_FSDP_LOCAL && node->unit->comm->size != model->tree.comm->size, err, TSR_E_UNSUPPORTED,
                "unit '%.*s' is split with replicas (HYBRID), which LOCAL state dicts do not support; set it to SHARDED",
                TSR_STR_ARG(node->fqn));
    for (size_t i = 0; i < node->flat->param_count && type == TSR_FSDP_SHARDED && !node->unit->extensions; i++)
        TSR_FAIL_IF(node->flat->params[i].ndim == 0, err, TSR_E_UNSUPPORTED,
                    "'%.*s%s%.*s' has no dimension that could be split", TSR_STR_ARG(node->fqn), node->fqn.size ? "." : "",
                    TSR_STR_ARG(node->flat->params[i].fqn));
    return TSR_OK;
}

static tsr_status add_node(tsr_agreement *agreement, const tsr_fsdp_node *node, size_t number, tsr_error *err)
{
    const tsr_fsdp_unit *unit = node->unit;
    const tsr_str order = tsr_arena_format(agreement->arena, err, "u%08zx", number);
    const tsr_str path = tsr_arena_format(agreement->arena, err, "unit '%.*s'", TSR_STR_ARG(node->fqn));
    const tsr_str words = tsr_arena_format(
        agreement->arena, err, "%s%.*s, %s of %" PRIu64 " in %" PRIu64 " slices%s%s%s%s", type_name(node->settings.type),
        TSR_STR_ARG(settings_text(&node->settings)), unit ? tsr_dtype_describe(unit->dtype)->name : "nothing",
        unit && tsr_fsdp_tp_size(unit) > 1 ? 0
                                           : node->layout.flat_numel, /* with uneven tensor parallelism, less is flattened */
        node->layout.ranks, unit && unit->no_shard ? ", NO_SHARD" : "", unit && unit->mesh ? ", mesh" : "",
        unit && unit->root_mesh ? ", tensor parallelism" : "",
        unit && (unit->extensions || unit->transforms) ? ", extensions" : "");
    if (!order.data || !path.data || !words.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_agreement_add(agreement, order, path, words, err));
    for (uint32_t i = 0; unit && i < node->flat->param_count; i++) {
        const tsr_flat_original *o = &node->flat->params[i];
        tsr_tensor tensor;
        TSR_TRY(tsr_fsdp_parameter(node, i, false, agreement->arena, &tensor, err));
        const tsr_str below = tsr_arena_format(agreement->arena, err, "%.*s %08" PRIx32, TSR_STR_ARG(order), i);
        const tsr_str name =
            tsr_arena_format(agreement->arena, err, "'%.*s' of unit '%.*s'", TSR_STR_ARG(o->fqn), TSR_STR_ARG(node->fqn));
        const tsr_str shape = tsr_tensor_words(&tensor, agreement->arena, err);
        if (!below.data || !name.data || !shape.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_agreement_add(agreement, below, name, shape, err));
    }
    return TSR_OK;
}

static tsr_status take_managed(const tsr_fsdp_model *model, const tsr_value *state, tsr_map *names, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(model);
    size_t count = 0;
    const tsr_value **pairs = tsr_arena_array(arena, state->count, sizeof *pairs, err);
    if (!pairs) return TSR_E_NOMEM;
    for (size_t i = 0; i < model->items.count; i++) {
        const bool original = items[i].kind == TSR_ITEM_ORIGINAL;
        if (!original && items[i].kind != TSR_ITEM_FLAT) continue;
        /* The slices of originals in a LOCAL state dict have a different size on each rank. */
        if (original && tsr_fsdp_effective(&tsr_fsdp_nodes(model)[items[i].node]).type == TSR_FSDP_LOCAL) continue;
        TSR_TRY(tsr_map_put(names, items[i].fqn, 1, NULL, NULL, err));
    }
    for (size_t i = 0; i < state->count; i += 2) {
        if (state->items[i]->kind != TSR_VALUE_STR || !tsr_map_get(names, state->items[i]->text, 0)) continue;
        pairs[count++] = state->items[i];
        pairs[count++] = state->items[i + 1];
    }
    *out = tsr_value_items(arena, TSR_VALUE_DICT, pairs, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* The part of a state dict that units manage. The rest belongs to each rank alone: experts, for instance, have different
 * names on each rank. */
static tsr_status managed(const tsr_fsdp_model *model, const tsr_value *state, tsr_arena *arena, const tsr_value **out,
                          tsr_error *err)
{
    tsr_map *names = tsr_map_new(model->host->allocator, 0, err);
    const tsr_status status = names ? take_managed(model, state, names, arena, out, err) : TSR_E_NOMEM;
    tsr_map_free(names);
    return status;
}

static tsr_status add_agreement(const tsr_fsdp_model *model, const char *call, const tsr_value *state,
                                tsr_agreement *agreement, tsr_error *err)
{
    tsr_leaves leaves = {0};
    const tsr_value *shared = state;
    TSR_TRY(tsr_agreement_add(agreement, TSR_STR(""), TSR_STR("the call"), tsr_str_from(call), err));
    if (state) TSR_FAIL_IF(state->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the state to load must be a dict");
    if (state) TSR_TRY(managed(model, state, agreement->arena, &shared, err));
    if (state) TSR_TRY(tsr_leaves_of(shared, model->host, true, agreement->arena, &leaves, err));
    TSR_TRY(tsr_agreement_add_leaves(agreement, "the state's ", &leaves, err));
    for (size_t i = 0; i < model->nodes.count; i++) {
        const tsr_fsdp_node *node = &tsr_fsdp_nodes(model)[i];
        TSR_TRY(add_node(agreement, node, i, err));
        TSR_TRY(check_node(model, node, err));
    }
    return TSR_OK;
}

tsr_status tsr_fsdp_begin(const tsr_fsdp_model *model, const char *call, const tsr_value *state, tsr_error *err)
{
    const tsr_allocator *allocator = model->host->allocator;
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    tsr_agreement agreement = {tsr_vec_of(allocator, 1), arena};
    tsr_status status = arena ? add_agreement(model, call, state, &agreement, err) : TSR_E_NOMEM;
    status = tsr_agreement_check(&agreement, model->tree.comm, status, allocator, err);
    for (size_t i = 0; i < model->nodes.count && status == TSR_OK; i++) {
        const tsr_fsdp_node *node = &tsr_fsdp_nodes(model)[i];
        if (node->unit && !node->sharded)
            tsr_fsdp_warn(model, "unit '%.*s' is NO_SHARD, so its state is FULL", TSR_STR_ARG(node->fqn));
    }
    tsr_arena_free(arena);
    return status;
}

size_t tsr_fsdp_leave(const tsr_fsdp_model *model, size_t enter)
{
    const tsr_fsdp_item *items = tsr_fsdp_items(model);
    size_t at = enter + 1;
    while (items[at].kind != TSR_ITEM_LEAVE || items[at].node != items[enter].node) at++;
    return at;
}
