/* Gets a model's state dict under canonical names. */
#include "statedict/model/fsdp_bind.h"
#include "statedict/tensor/warn.h"

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
