/* Gets the state dicts of a model and of its optimizers under canonical names. */
#include "tessera/sys/collectives.h"
#include "tessera/sys/statedict.h"

#include "live/model/model_names.h"
#include "live/model/optimizer_names.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/try.h"

/* ---- full, or on the host ---- */

/* Gathers the tensors of `root`, copies them to the host, or leaves them as they are, according to the options. The nodes
 * live as long as `out`. */
static tsr_status full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
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

typedef struct gathered {
    const tsr_value *made; /* in the order of the list that was gathered */
    const tsr_map *places;
} gathered;

static tsr_status put_back(void *ctx, const tsr_tensor *tensor, const tsr_tensor **out, tsr_error *err)
{
    const gathered *g = ctx;
    const uint32_t at = tsr_map_get(g->places, (tsr_str){(const char *)&tensor, sizeof tensor}, UINT32_MAX);
    (void)err;
    if (at < g->made->count) *out = tsr_tensor_of(g->made->items[at]);
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
    if (!none && status == TSR_OK) {
        gathered g = {tsr_state_dict_root(out), places};
        const tsr_replacing how = {put_back, &g, out->arena, out->host->limits.depth};
        status = tsr_comm_agree(comm, tsr_tensors_replace(how, *root, root, err), err);
    }
    tsr_map_free(places);
    return status;
}

/* The same for the state dict of a model with units. Only tensors that units do not manage can still be distributed, even in
 * a FULL state dict. */
static tsr_status units_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options,
                                    tsr_state_dict *out, tsr_error *err)
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
    return tsr_fail(err, TSR_E_USAGE, "module %u is not in the model", (unsigned)module);
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
    *out = tsr_dict_of_pairs(&j->pairs, j->arena, err);
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
    const tsr_fsdp_bound given = {.model = g->model, .host = host, .arena = g->passing, .out = g->out};
    return tsr_model_items_open(&given, comm, g->options, &g->bound, &g->items, err);
}

static tsr_status make_state(getting *g, const tsr_value **root, tsr_error *err)
{
    for (int renamed = 0; renamed < 2; renamed++)
        for (size_t i = 0; i < g->items.count; i++)
            if (g->items.items[i].renamed == (renamed == 1)) TSR_TRY(put_item(g, &g->items.items[i], err));
    *root = tsr_dict_of_pairs(&g->pairs, g->out->arena, err);
    return *root ? TSR_OK : TSR_E_NOMEM;
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
    if (g->bound) TSR_TRY(units_full_or_cpu(root, comm, g->options, g->out, err));
    else TSR_TRY(full_or_cpu(root, comm, g->options, g->out, err));
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

/* ---- get optimizers ---- */

typedef struct getting_optimizers {
    tsr_model_optimizer *const *optimizers;
    size_t count;
    const tsr_state_options *options;
    tsr_comm *comm;
    tsr_state_dict *out;
    tsr_arena *passing;
    tsr_optimizer_names names;
    const tsr_value **native; /* one per optimizer: its state dict by number */
    tsr_name_list **groups;   /* one array per optimizer: the names of each param group */
} getting_optimizers;

/* Checks the options and takes each optimizer's own state dict, before the ranks compare their results. */
static tsr_status prepare_optimizers(getting_optimizers *g, const tsr_model *model, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(g->out);
    TSR_TRY(tsr_state_options_check(g->options, g->count, true, err));
    TSR_TRY(tsr_optimizer_names_of(model, g->comm, g->out->host, g->passing, &g->names, err));
    g->native = tsr_arena_array(g->passing, g->count, sizeof *g->native, err);
    g->groups = tsr_arena_array(g->passing, g->count, sizeof *g->groups, err);
    if (!g->native || !g->groups) return TSR_E_NOMEM;
    for (size_t i = 0; i < g->count; i++) {
        TSR_TRY(tsr_optimizer_unit_names(&g->names, g->optimizers[i], g->passing, &g->groups[i], err));
        TSR_TRY(tsr_optimizer_first(g->optimizers[i], &g->names, err));
        TSR_TRY(tsr_optimizer_native(g->optimizers[i], arena, &g->native[i], err));
    }
    return TSR_OK;
}

/* Copies names into `arena`, for a result that outlives the call. */
static tsr_status kept_names(const tsr_name_list *lists, size_t count, tsr_arena *arena, tsr_name_list **out, tsr_error *err)
{
    *out = tsr_arena_array(arena, count, sizeof **out, err);
    for (size_t g = 0; *out && g < count; g++) {
        tsr_str *names = tsr_arena_array(arena, lists[g].count, sizeof *names, err);
        for (size_t p = 0; names && p < lists[g].count; p++)
            if (!(names[p] = tsr_arena_str(arena, lists[g].names[p], err)).data) return TSR_E_NOMEM;
        (*out)[g] = (tsr_name_list){names, lists[g].count};
        if (!names) return TSR_E_NOMEM;
    }
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Converts each optimizer's state dict to names. One optimizer after another, because those of FSDP1's units need all
 * ranks. */
static tsr_status name_all(getting_optimizers *g, const tsr_value **parts, size_t *kept, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(g->out);
    tsr_status status = TSR_OK;
    if (g->names.fsdp) TSR_TRY(tsr_fsdp_optimizers_meet(g->names.fsdp, err));
    for (size_t i = 0; i < g->count && status == TSR_OK; i++) {
        const size_t count = g->optimizers[i]->group_count;
        tsr_name_list *names;
        if (g->names.fsdp) {
            const tsr_fsdp_state_call call = {g->names.fsdp, {g->groups[i], count}, g->options, g->out};
            status = tsr_fsdp_optimizer_get(&call, g->native[i], &parts[*kept], err);
            *kept += parts[*kept] != NULL;
            continue;
        }
        status = kept_names(g->groups[i], count, arena, &names, err);
        if (status == TSR_OK)
            status =
                tsr_optim_to_fqn(g->native[i], (tsr_group_names){names, count}, g->out->host, arena, &parts[(*kept)++], err);
    }
    return status;
}

static tsr_status make_optimizer_state(getting_optimizers *g, const tsr_value **root, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(g->out);
    const tsr_value **parts = tsr_arena_array(g->passing, g->count + 1, sizeof *parts, err);
    size_t kept = 0;
    TSR_TRY(tsr_comm_agree(g->comm, parts ? TSR_OK : TSR_E_NOMEM, err));
    TSR_TRY(name_all(g, parts, &kept, err));
    TSR_TRY(tsr_optim_merge(parts, kept, g->out->host, arena, root, err));
    return g->options->flatten_optimizer_state_dict ? tsr_optim_flatten(*root, g->out->host, arena, root, err) : TSR_OK;
}

static tsr_status get_optimizers(getting_optimizers *g, const tsr_model *model, tsr_error *err)
{
    const tsr_value *root = NULL;
    const tsr_status status = g->passing ? prepare_optimizers(g, model, err) : TSR_E_NOMEM;
    TSR_TRY(tsr_options_agree(g->comm, "get_optimizer_state_dict: options", g->options, g->count, status, err));
    TSR_TRY(tsr_comm_agree(g->comm, make_optimizer_state(g, &root, err), err));
    return g->names.fsdp ? units_full_or_cpu(root, g->comm, g->options, g->out, err)
                         : full_or_cpu(root, g->comm, g->options, g->out, err);
}

tsr_status tsr_get_optimizer_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                                        tsr_state_dict *out, tsr_error *err)
{
    tsr_call c;
    TSR_TRY(tsr_call_open(&c, call, out->host, err));
    getting_optimizers g = {.optimizers = optimizers.items,
                            .count = optimizers.count,
                            .options = &c.options,
                            .comm = c.given.comm,
                            .out = out,
                            .passing = tsr_arena_new(out->host->allocator, 0, err)};
    const tsr_status status = get_optimizers(&g, model, err);
    tsr_optimizer_names_free(&g.names);
    tsr_arena_free(g.passing);
    tsr_call_close(&c);
    return status;
}

/* ---- a model with its optimizers ---- */

tsr_status tsr_get_state_dict(const tsr_model *model, tsr_optimizers optimizers, const tsr_state_call *call,
                              tsr_state_dict *model_out, tsr_state_dict *optimizer_out, tsr_error *err)
{
    TSR_TRY(tsr_get_model_state_dict(model, call, model_out, err));
    return optimizers.count ? tsr_get_optimizer_state_dict(model, optimizers, call, optimizer_out, err) : TSR_OK;
}

static tsr_state_call call_of(const tsr_bound_state *b, tsr_arena *arena)
{
    return (tsr_state_call){.comm = b->comm, .options = &b->options, .host = b->host, .arena = arena};
}

static tsr_status model_get(void *ctx, tsr_state_dict *out, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    const tsr_state_call call = call_of(b, NULL);
    return tsr_get_model_state_dict(b->model, &call, out, err);
}

static tsr_status model_set(void *ctx, const tsr_value *state, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    tsr_arena *arena = tsr_arena_new(b->host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_state_call call = call_of(b, arena);
    const tsr_status status = tsr_set_model_state_dict(b->model, state, &call, err);
    tsr_arena_free(arena);
    return status;
}

static tsr_status optimizer_get(void *ctx, tsr_state_dict *out, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    const tsr_state_call call = call_of(b, NULL);
    return tsr_get_optimizer_state_dict(b->model, b->optimizers, &call, out, err);
}

static tsr_status optimizer_set(void *ctx, const tsr_value *state, tsr_error *err)
{
    const tsr_bound_state *b = ctx;
    const tsr_state_call call = call_of(b, NULL);
    return tsr_set_optimizer_state_dict(b->model, b->optimizers, state, &call, err);
}

tsr_state_calls tsr_model_state_calls(tsr_bound_state *bound)
{
    return (tsr_state_calls){model_get, model_set, bound};
}

tsr_state_calls tsr_optimizer_state_calls(tsr_bound_state *bound)
{
    return (tsr_state_calls){optimizer_get, optimizer_set, bound};
}
