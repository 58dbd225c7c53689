/* See fsdp_bind.h. */
#include "statedict/model/fsdp_bind.h"

#include "statedict/fsdp/fsdp_cut.h"
#include "tessera/sys/module_tree.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/value_walk.h"

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

static void at(void *ctx, tsr_fsdp_moment moment, tsr_str fqn)
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
    tree.at = at;
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
    return tsr_model_items_index(bound->host, out, err);
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
