/* FSDP1's forms of an optimizer's state dict, from a raw one and back: FSDP.optim_state_dict, optim_state_dict_to_load. */
#include <stdlib.h>

#include "live/model/optimizer_names.h"
#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* A call on the raw state dict of an optimizer. */
typedef struct tsr_raw {
    const tsr_raw_optimizer *of;
    tsr_comm *comm, *self; /* `self`: this process alone, owned by the call */
    tsr_arena *passing;
    tsr_optimizer_names names;
    const tsr_model_optimizer *optimizer; /* the caller's, or `made` from the groups of `input` */
    tsr_model_optimizer made;
    tsr_group_names raw; /* the names of the optimizer's parameters in named_parameters() */
    bool by_input;
} tsr_raw;

/* ---- optimizer named ---- */

/* Loads a state dict into a named optimizer (NamedOptimizer.load_state_dict). Parameters are matched by name, groups by
 * the names of all their parameters, and the state dict may contain nothing that the optimizer lacks. */

typedef struct named_taking {
    const tsr_raw *raw;
    const tsr_value *state, *groups; /* of what is loaded */
    tsr_map *states;                 /* name → index of its value in `state` */
    tsr_map *group_of;               /* all names of a group → its index in `groups` */
} named_taking;

static int by_text(const void *a, const void *b)
{
    return tsr_str_compare(*(const tsr_str *)a, *(const tsr_str *)b);
}

/* The names of a group, sorted, as one text. */
static tsr_status group_key(const named_taking *t, const tsr_str *names, size_t count, tsr_str *out, tsr_error *err)
{
    size_t size = 0;
    tsr_str *sorted = tsr_arena_array(t->raw->passing, count, sizeof *sorted, err);
    if (!sorted) return TSR_E_NOMEM;
    if (count) memcpy(sorted, names, count * sizeof *sorted);
    if (count) qsort(sorted, count, sizeof *sorted, by_text);
    for (size_t i = 0; i < count; i++) size += sorted[i].size + 1;
    char *text = tsr_arena_array(t->raw->passing, size + 1, 1, err);
    if (!text) return TSR_E_NOMEM;
    *out = (tsr_str){text, size};
    for (size_t i = 0; i < count; i++) {
        if (sorted[i].size) memcpy(text, sorted[i].data, sorted[i].size);
        text += sorted[i].size;
        *text++ = '/';
    }
    return TSR_OK;
}

static tsr_status index_group(named_taking *t, size_t at, tsr_error *err)
{
    const tsr_value *group = t->groups->items[at];
    const tsr_value *params = group->kind == TSR_VALUE_DICT ? tsr_value_get(group, TSR_STR("params")) : NULL;
    TSR_FAIL_IF(!params, err, TSR_E_FORMAT, "optim: param_groups[%zu] has no list 'params'", at);
    tsr_str key, *names = tsr_arena_array(t->raw->passing, params->count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t p = 0; p < params->count; p++) {
        TSR_FAIL_IF(params->items[p]->kind != TSR_VALUE_STR, err, TSR_E_FORMAT,
                    "optim: param_groups[%zu] must list names of parameters, because the optimizer is a named one", at);
        names[p] = params->items[p]->text;
    }
    uint32_t *place;
    TSR_TRY(group_key(t, names, params->count, &key, err));
    TSR_TRY(tsr_map_put(t->group_of, key, (uint32_t)at, &place, NULL, err));
    *place = (uint32_t)at; /* the last one of several groups with the same names counts */
    return TSR_OK;
}

static tsr_status index_given(named_taking *t, const tsr_value *given, tsr_error *err)
{
    t->state = tsr_value_get(given, TSR_STR("state"));
    t->groups = tsr_value_get(given, TSR_STR("param_groups"));
    TSR_FAIL_IF(!t->state || t->state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT,
                "optim: no dict 'state' in the state dict");
    TSR_FAIL_IF(!t->groups || t->groups->kind != TSR_VALUE_LIST, err, TSR_E_FORMAT,
                "optim: no list 'param_groups' in the state dict");
    for (size_t i = 0; i < t->state->count; i += 2)
        if (t->state->items[i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_map_put(t->states, t->state->items[i]->text, (uint32_t)i + 1, NULL, NULL, err));
    for (size_t g = 0; g < t->groups->count; g++) TSR_TRY(index_group(t, g, err));
    return TSR_OK;
}

/* ---- states ---- */

/* The state of one parameter: the optimizer's own keys with the loaded values. */
static tsr_status take_state(const named_taking *t, tsr_str name, const tsr_value *own, const tsr_value **out,
                             tsr_error *err)
{
    const uint32_t place = tsr_map_get(t->states, name, 0);
    const tsr_value *given = place ? t->state->items[place] : NULL;
    *out = own;
    if (!given) return TSR_OK;
    TSR_FAIL_IF(!own, err, TSR_E_FORMAT, "optim: the state dict has state for '%.*s', and the optimizer holds none",
                TSR_STR_ARG(name));
    TSR_FAIL_IF(given->kind != TSR_VALUE_DICT || given->count != own->count, err, TSR_E_FORMAT,
                "optim: %zu states of '%.*s' in the state dict, %zu in the optimizer", given->count / 2, TSR_STR_ARG(name),
                own->count / 2);
    const tsr_value **items = tsr_arena_array(t->raw->passing, own->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->count; i += 2) {
        const tsr_step step = {.key = own->items[i], .depth = 1};
        const tsr_str key = tsr_step_text(&step, t->raw->passing, err);
        if (!key.data) return TSR_E_NOMEM;
        items[i] = own->items[i];
        items[i + 1] = tsr_dict_find(given, own->items[i], i / 2);
        TSR_FAIL_IF(!items[i + 1], err, TSR_E_FORMAT, "optim: the state dict has no '%.*s' for '%.*s'", TSR_STR_ARG(key),
                    TSR_STR_ARG(name));
        TSR_FAIL_IF(tsr_tensor_of(own->items[i + 1]) && !tsr_tensor_of(items[i + 1]), err, TSR_E_FORMAT,
                    "optim: '%.*s' of '%.*s' is a tensor in the optimizer only", TSR_STR_ARG(key), TSR_STR_ARG(name));
    }
    *out = tsr_value_items(t->raw->passing, TSR_VALUE_DICT, items, own->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- groups ---- */

/* Only groups without parameters can have the same names. PyTorch loads the last of them. */
static bool has_later_twin(const named_taking *t, size_t g)
{
    const tsr_group_names *own = &t->raw->raw;
    bool later = false;
    for (size_t i = g + 1; i < own->count; i++) later = later || own->groups[i].count == 0;
    return later && own->groups[g].count == 0;
}

static tsr_status take_options(const named_taking *t, size_t g, const tsr_value **out, tsr_error *err)
{
    const tsr_name_list *names = &t->raw->raw.groups[g];
    const tsr_value *own = t->raw->optimizer->groups[g].options;
    tsr_str key;
    TSR_TRY(group_key(t, names->names, names->count, &key, err));
    const uint32_t place = tsr_map_get(t->group_of, key, UINT32_MAX);
    *out = own;
    if (place == UINT32_MAX || has_later_twin(t, g)) return TSR_OK;
    const tsr_value *given = t->groups->items[place];
    TSR_FAIL_IF(given->count != own->count + 2, err, TSR_E_FORMAT,
                "optim: param_groups[%u] of the state dict has %zu options, the optimizer's has %zu", (unsigned)place,
                given->count / 2 - 1, own->count / 2);
    const tsr_value **items = tsr_arena_array(t->raw->passing, own->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->count; i += 2) {
        items[i] = own->items[i];
        items[i + 1] = tsr_value_get(given, own->items[i]->text);
        TSR_FAIL_IF(!items[i + 1], err, TSR_E_FORMAT, "optim: param_groups[%u] of the state dict has no option '%.*s'",
                    (unsigned)place, TSR_STR_ARG(own->items[i]->text));
    }
    *out = tsr_value_items(t->raw->passing, TSR_VALUE_DICT, items, own->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- all ---- */

/* The optimizer's state dict with the loaded values, which is then written like any other state dict. */
static tsr_status take_all(const named_taking *t, tsr_model_optimizer *out, tsr_error *err)
{
    const tsr_model_optimizer *own = t->raw->optimizer;
    *out = *own;
    out->groups = tsr_arena_array(t->raw->passing, own->group_count, sizeof *out->groups, err);
    if (!out->groups) return TSR_E_NOMEM;
    for (size_t g = 0; g < own->group_count; g++) {
        tsr_model_group *group = &out->groups[g];
        *group = own->groups[g];
        group->params = tsr_arena_array(t->raw->passing, group->count, sizeof *group->params, err);
        if (!group->params) return TSR_E_NOMEM;
        TSR_TRY(take_options(t, g, &group->options, err));
        for (size_t p = 0; p < group->count; p++) {
            group->params[p] = own->groups[g].params[p];
            TSR_TRY(take_state(t, t->raw->raw.groups[g].names[p], group->params[p].state, &group->params[p].state, err));
        }
    }
    return TSR_OK;
}

/* As NamedOptimizer.load_state_dict: the optimizer's own state dict, keyed by number, with the values of `state`, which
 * is keyed by name. Lives in raw->passing. */
static tsr_status raw_named_load(const tsr_raw *raw, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    named_taking t = {.raw = raw,
                      .states = tsr_map_new(raw->names.host->allocator, 0, err),
                      .group_of = tsr_map_new(raw->names.host->allocator, 0, err)};
    tsr_model_optimizer taken;
    tsr_status status = t.states && t.group_of ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && !tsr_optimizer_has_state(raw->optimizer))
        status = tsr_fail(err, TSR_E_USAGE,
                          "the named optimizer holds no state that could be loaded into: take a step before loading");
    if (status == TSR_OK) status = index_given(&t, state, err);
    if (status == TSR_OK) status = take_all(&t, &taken, err);
    if (status == TSR_OK) status = tsr_optimizer_native(&taken, raw->passing, out, err);
    tsr_map_free(t.group_of);
    tsr_map_free(t.states);
    return status;
}

/* ---- an optimizer's own state dict and its keys ---- */

/* The param groups that an optimizer made from `input` would have. */
static tsr_status make_groups(tsr_raw *r, tsr_error *err)
{
    const tsr_model *model = r->of->model;
    TSR_TRY(tsr_optim_input_names(r->of->input, model->modules, r->names.host, r->passing, &r->raw, err));
    r->made.groups = tsr_arena_array(r->passing, r->raw.count, sizeof *r->made.groups, err);
    if (!r->made.groups) return TSR_E_NOMEM;
    r->made.group_count = r->raw.count;
    for (size_t g = 0; g < r->raw.count; g++) {
        const tsr_name_list *names = &r->raw.groups[g];
        tsr_model_param *params = tsr_arena_array(r->passing, names->count, sizeof *params, err);
        if (!params) return TSR_E_NOMEM;
        for (size_t p = 0; p < names->count; p++) {
            params[p].name = tsr_arena_format(r->passing, err, "%.*s", TSR_STR_ARG(names->names[p])).data;
            if (!params[p].name) return TSR_E_NOMEM;
        }
        r->made.groups[g] = (tsr_model_group){.params = params, .count = names->count};
    }
    r->optimizer = &r->made;
    return TSR_OK;
}

static tsr_status name_groups(tsr_raw *r, tsr_error *err)
{
    const tsr_model_optimizer *optimizer = r->optimizer = r->of->optimizer;
    tsr_str *by_id = tsr_arena_array(r->passing, r->names.ids.count, sizeof *by_id, err);
    tsr_name_list *lists = tsr_arena_array(r->passing, optimizer->group_count, sizeof *lists, err);
    tsr_state_item *items;
    size_t count;
    if (!by_id || !lists) return TSR_E_NOMEM;
    TSR_TRY(tsr_fqn_named_parameters(r->of->model->modules, r->names.host, r->passing, &items, &count, err));
    for (size_t i = 0; i < count; i++) by_id[items[i].tensor_id] = items[i].raw;
    r->raw = (tsr_group_names){lists, optimizer->group_count};
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        tsr_str *names = tsr_arena_array(r->passing, group->count, sizeof *names, err);
        if (!names) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++) {
            uint32_t id;
            TSR_TRY(tsr_optimizer_param_id(&r->names, &group->params[p], NULL, &id, err));
            names[p] = by_id[id];
        }
        lists[g] = (tsr_name_list){names, group->count};
    }
    return TSR_OK;
}

/* No communication. After a failure, `passing` or other parts of `out` are NULL; close it all the same. */
static tsr_status raw_open(const tsr_raw_optimizer *of, bool by_input, const tsr_host *host, tsr_raw *out, tsr_error *err)
{
    *out = (tsr_raw){.of = of, .comm = of->comm, .by_input = by_input && (of->input || !of->optimizer)};
    if (!of->comm) TSR_TRY(tsr_comm_self(host->allocator, &out->self, err));
    if (!of->comm) out->comm = out->self;
    out->passing = tsr_arena_new(host->allocator, 0, err);
    if (!out->passing) return TSR_E_NOMEM;
    TSR_FAIL_IF(!out->by_input && !of->optimizer, err, TSR_E_USAGE, "the call needs an optimizer");
    TSR_TRY(tsr_optimizer_names_of(of->model, out->comm, host, out->passing, &out->names, err));
    return out->by_input ? make_groups(out, err) : name_groups(out, err);
}

static void raw_close(tsr_raw *raw)
{
    tsr_optimizer_names_free(&raw->names);
    tsr_arena_free(raw->passing);
    if (raw->self) raw->self->close(raw->self);
}

/* Copies names for results that outlive the call. */
static tsr_status copy_names(const tsr_group_names *names, tsr_arena *arena, tsr_group_names *out, tsr_error *err)
{
    tsr_name_list *lists = tsr_arena_array(arena, names->count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t g = 0; g < names->count; g++) {
        const tsr_name_list *group = &names->groups[g];
        tsr_str *list = tsr_arena_array(arena, group->count, sizeof *list, err);
        if (!list) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++)
            if (!(list[p] = tsr_arena_str(arena, group->names[p], err)).data) return TSR_E_NOMEM;
        lists[g] = (tsr_name_list){list, group->count};
    }
    *out = (tsr_group_names){lists, names->count};
    return TSR_OK;
}

/* Replaces parameter numbers by names, or names by numbers, in `arena`. State that belongs to no parameter stays as it
 * is. */
static tsr_status raw_rekey(const tsr_raw *raw, const tsr_value *state_dict, bool to_names, tsr_arena *arena,
                            const tsr_value **out, tsr_error *err)
{
    tsr_group_names names = raw->raw;
    const tsr_rekeying how = {.names = &names, .to_names = to_names, .raw_names = true, .keep_others = true};
    if (to_names) TSR_TRY(copy_names(&raw->raw, arena, &names, err));
    return tsr_optim_rekey(state_dict, &how, raw->names.host, arena, out, err);
}

/* ---- got ---- */

static tsr_status get(const tsr_raw *r, tsr_state_dict *out, tsr_error *err)
{
    const tsr_model_optimizer *optimizer = r->optimizer;
    const tsr_value *root;
    TSR_FAIL_IF(r->of->named && optimizer->user_state && optimizer->user_state->count, err, TSR_E_UNSUPPORTED,
                "the optimizer has state that belongs to no parameter; a named optimizer's state dict cannot hold that");
    TSR_TRY(tsr_optimizer_native(optimizer, out->arena, &root, err));
    if (r->of->named) TSR_TRY(raw_rekey(r, root, true, out->arena, &root, err));
    tsr_state_dict_set_root(out, root);
    return TSR_OK;
}

tsr_status tsr_optimizer_state_dict(const tsr_raw_optimizer *optimizer, tsr_state_dict *out, tsr_error *err)
{
    tsr_raw r;
    tsr_status status = raw_open(optimizer, false, out->host, &r, err);
    if (status == TSR_OK) status = get(&r, out, err);
    raw_close(&r);
    return status;
}

/* ---- loaded ---- */

/* Parameters are matched by position, whatever their keys are, so names become numbers. */
static tsr_status number_by_place(const tsr_raw *r, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    const tsr_value *groups = tsr_value_get(state, TSR_STR("param_groups"));
    size_t count = 0, named = 0;
    *out = state;
    if (!groups) return TSR_OK; /* refused by what reads it */
    tsr_name_list *lists = tsr_arena_array(r->passing, groups->count, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (size_t g = 0; g < groups->count; g++) {
        const tsr_value *params = tsr_value_get(groups->items[g], TSR_STR("params"));
        tsr_str *list = params ? tsr_arena_array(r->passing, params->count, sizeof *list, err) : NULL;
        if (!params || (params->count && params->items[0]->kind != TSR_VALUE_STR)) return TSR_OK; /* numbers, or refused */
        if (!list) return TSR_E_NOMEM;
        for (size_t p = 0; p < params->count; p++) list[p] = params->items[p]->text;
        lists[count++] = (tsr_name_list){list, params->count};
        named += params->count;
    }
    if (!named) return TSR_OK;
    const tsr_group_names names = {lists, count};
    const tsr_rekeying how = {.names = &names, .raw_names = true, .keep_others = true};
    return tsr_optim_rekey(state, &how, r->names.host, r->passing, out, err);
}

/* Optimizer.load_state_dict() with a state dict keyed by number. With `in_place`, as named optimizers call it, values are
 * cast to the dtype of the tensors that they replace. No communication; nothing is written unless everything fits. */
static tsr_status load_numbered(const tsr_optimizer_names *names, tsr_model_optimizer *optimizer, const tsr_value *state,
                                bool in_place, tsr_error *err)
{
    tsr_loaded_state loaded = {.names = names, .optimizer = optimizer, .state = state, .in_place = in_place};
    uint64_t visited = 0;
    TSR_TRY(tsr_optimizer_bounded(state, names->host, &visited, err));
    TSR_TRY(tsr_optimizer_check_groups(optimizer, state, err));
    TSR_TRY(tsr_optimizer_check_states(&loaded, err));
    tsr_map *lent = tsr_map_new(names->host->allocator, 0, err);
    tsr_status status = lent ? tsr_optimizer_lend(state, lent, err) : TSR_E_NOMEM;
    loaded.lent = lent;
    if (status == TSR_OK) status = tsr_optimizer_write(&loaded, err);
    tsr_map_free(lent);
    return status;
}

static tsr_status load(const tsr_raw *r, const tsr_value *state, tsr_error *err)
{
    TSR_FAIL_IF(!state || state->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "the optimizer's state dict is not a dict");
    if (r->of->named) TSR_TRY(raw_named_load(r, state, &state, err));
    else TSR_TRY(number_by_place(r, state, &state, err));
    return load_numbered(&r->names, r->of->optimizer, state, r->of->named, err);
}

tsr_status tsr_optimizer_load_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *state, const tsr_host *host,
                                         tsr_error *err)
{
    tsr_raw r;
    tsr_status status = raw_open(optimizer, false, host, &r, err);
    if (status == TSR_OK) status = load(&r, state, err);
    raw_close(&r);
    return status;
}

/* ---- forms ---- */

typedef struct forming {
    tsr_raw raw;
    const tsr_fsdp_settings *settings;
    tsr_state_options options; /* that choose the same form */
    tsr_state_dict *out;
    tsr_name_list *groups; /* the names that the units' description has */
    size_t group_count;
} forming;

static bool is_full(const tsr_fsdp_settings *settings)
{
    return settings->type == TSR_FSDP_FULL;
}

/* cpu_offload with full_state_dict would be for rank 0 alone. */
static tsr_state_options options_of(const tsr_fsdp_settings *settings)
{
    tsr_state_options options = tsr_state_options_default();
    options.full_state_dict = is_full(settings);
    options.broadcast_from_rank0 = is_full(settings) && settings->rank0_only;
    options.cpu_offload = settings->offload && (settings->rank0_only || !is_full(settings));
    return options;
}

static tsr_status check(const tsr_raw_optimizer *of, const tsr_fsdp_settings *settings, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_fsdp_is_in(of->model->modules), err, TSR_E_USAGE,
                "the model has no FSDP1 units; tsr_get_optimizer_state_dict takes any model");
    TSR_FAIL_IF(!is_full(settings) && of->input, err, TSR_E_USAGE,
                "sharded state is converted by the optimizer's own groups; pass the optimizer, not its input");
    TSR_FAIL_IF(!is_full(settings) && !of->optimizer, err, TSR_E_USAGE, "sharded state needs the optimizer");
    TSR_FAIL_IF(!is_full(settings) && settings->rank0_only, err, TSR_E_USAGE,
                "every rank keeps its part of sharded state: rank0_only needs FULL");
    return TSR_OK;
}

static tsr_status open_forms(forming *f, const tsr_raw_optimizer *of, const tsr_fsdp_settings *settings, tsr_state_dict *out,
                             tsr_error *err)
{
    *f = (forming){.settings = settings, .options = options_of(settings), .out = out, .raw = {.of = of, .comm = of->comm}};
    const tsr_status checked = check(of, settings, err);
    tsr_error ignored = {0};
    tsr_status status = raw_open(of, true, out->host, &f->raw, checked == TSR_OK ? err : &ignored);
    if (checked != TSR_OK) status = checked;
    if (status != TSR_OK) return status;
    f->group_count = f->raw.optimizer->group_count;
    return tsr_optimizer_unit_names(&f->raw.names, f->raw.optimizer, f->raw.passing, &f->groups, err);
}

/* All ranks call in the same way, or fail together; then they learn which of them are replicas. */
static tsr_status agree(forming *f, const char *call, tsr_status mine, tsr_error *err)
{
    if (!f->raw.comm) return mine; /* there was no memory for a communicator of one rank */
    TSR_TRY(tsr_options_agree(f->raw.comm, call, &f->options, f->raw.by_input, mine, err));
    if (f->raw.of->input)
        tsr_fsdp_warn(f->raw.names.fsdp->bound->units, "optim_input is deprecated in PyTorch: pass the optimizer instead");
    return tsr_fsdp_optimizers_meet(f->raw.names.fsdp, err);
}

/* ---- from raw ---- */

static tsr_status number_raw(forming *f, const tsr_value *given, const tsr_value **out, tsr_error *err)
{
    const tsr_raw *r = &f->raw;
    TSR_FAIL_IF(!given && !r->of->optimizer, err, TSR_E_USAGE, "there is neither an optimizer nor its state dict");
    *out = given;
    if (!given) return tsr_optimizer_native(r->of->optimizer, f->out->arena, out, err);
    return tsr_optim_is_named(given) ? raw_rekey(r, given, false, f->out->arena, out, err) : TSR_OK;
}

/* Groups of the optimizer's parameters, without options, for a state dict that has none: KeyedOptimizer saves none. */
static tsr_status with_groups(forming *f, const tsr_value *given, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = f->out->arena;
    const tsr_group_names *names = &f->raw.raw;
    const tsr_value *state = tsr_value_get(given, TSR_STR("state"));
    const bool named = tsr_optim_is_named(given);
    const tsr_value **groups = tsr_arena_array(arena, names->count, sizeof *groups, err);
    if (!groups || !state) return groups ? TSR_OK : TSR_E_NOMEM; /* refused by what reads it */
    for (size_t g = 0, number = 0; g < names->count; g++) {
        const size_t count = names->groups[g].count;
        const tsr_value **params = tsr_arena_array(arena, count, sizeof *params, err);
        for (size_t p = 0; params && p < count; p++, number++) {
            const tsr_str name = named ? tsr_arena_str(arena, names->groups[g].names[p], err) : TSR_STR("");
            params[p] = named ? tsr_value_str(arena, name, err) : tsr_value_int(arena, (int64_t)number, err);
            if (!name.data || !params[p]) return TSR_E_NOMEM;
        }
        groups[g] =
            params ? tsr_value_dict(arena, 1, "params", tsr_value_items(arena, TSR_VALUE_LIST, params, count, err)) : NULL;
        if (!groups[g]) return tsr_fail(err, TSR_E_NOMEM, "no memory for param groups");
    }
    *out = tsr_value_dict(arena, 2, "state", state, "param_groups",
                          tsr_value_items(arena, TSR_VALUE_LIST, groups, names->count, err));
    return *out ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "no memory for param groups");
}

/* Without the groups that with_groups added. */
static tsr_status without_groups(forming *f, const tsr_value **root, tsr_error *err)
{
    const tsr_value *state = tsr_value_get(*root, TSR_STR("state"));
    if (state) *root = tsr_value_dict(f->out->arena, 1, "state", state);
    return *root ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "no memory for the state");
}

static tsr_fsdp_state_call state_call(const forming *f)
{
    return (tsr_fsdp_state_call){f->raw.names.fsdp, {f->groups, f->group_count}, &f->options, f->out};
}

static tsr_status convert_raw(forming *f, const tsr_value *given, tsr_error *err)
{
    const tsr_value *raw = NULL, *root = NULL;
    const tsr_fsdp_settings *s = f->settings;
    const bool lacks = given && given->kind == TSR_VALUE_DICT && !tsr_value_get(given, TSR_STR("param_groups"));
    tsr_status mine = lacks ? with_groups(f, given, &given, err) : TSR_OK;
    if (mine == TSR_OK) mine = number_raw(f, given, &raw, err);
    TSR_TRY(tsr_comm_agree(f->raw.comm, mine, err));
    const tsr_fsdp_state_call call = state_call(f);
    TSR_TRY(tsr_fsdp_optimizer_get(&call, raw, &root, err));
    if (!root) root = tsr_value_items(f->out->arena, TSR_VALUE_DICT, NULL, 0, err);
    tsr_status status = root ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && lacks) status = without_groups(f, &root, err);
    if (status == TSR_OK && s->offload && !f->options.cpu_offload)
        status = tsr_state_dict_offload(root, NULL, &(tsr_offload_options){.any_type = true}, f->out, err);
    else if (status == TSR_OK) tsr_state_dict_set_root(f->out, root);
    return tsr_comm_agree(f->raw.comm, status, err);
}

tsr_status tsr_fsdp_optim_state_dict(const tsr_raw_optimizer *optimizer, const tsr_value *raw,
                                     const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err)
{
    forming f;
    tsr_status status = open_forms(&f, optimizer, settings, out, err);
    status = agree(&f, "optim_state_dict: settings", status, err);
    if (status == TSR_OK) status = convert_raw(&f, raw, err);
    raw_close(&f.raw);
    return status;
}

/* ---- to load ---- */

/* The names of which some rank gives state. */
static tsr_status given_names(forming *f, const tsr_value *state, tsr_map *out, tsr_error *err)
{
    const tsr_value *states = state && state->kind == TSR_VALUE_DICT ? tsr_value_get(state, TSR_STR("state")) : NULL;
    const size_t most = states && states->kind == TSR_VALUE_DICT ? states->count / 2 : 0;
    tsr_str *mine = tsr_arena_array(f->raw.passing, most, sizeof *mine, err);
    const tsr_ranks ranks = {f->raw.comm, f->out->host->allocator};
    tsr_name_list all;
    size_t count = 0;
    TSR_TRY(tsr_comm_agree(f->raw.comm, mine && out ? TSR_OK : TSR_E_NOMEM, err));
    for (size_t i = 0; i < most; i++)
        if (states->items[2 * i]->kind == TSR_VALUE_STR) mine[count++] = states->items[2 * i]->text;
    TSR_TRY(tsr_flat_agree_on_keys(ranks, (tsr_name_list){mine, count}, true, f->raw.passing, &all, err));
    for (size_t i = 0; i < all.count; i++) TSR_TRY(tsr_map_put(out, all.names[i], 1, NULL, NULL, err));
    return TSR_OK;
}

/* The optimizer's own state of a parameter that has none in `native`; NULL: it is not missing, or there is none. */
static tsr_status own_state(forming *f, const tsr_model_param *param, const tsr_map *given, const tsr_value **out,
                            tsr_error *err)
{
    const tsr_fsdp_optimizers *fsdp = f->raw.names.fsdp;
    const tsr_taking taking = {.memory = f->out, .passing = f->raw.passing};
    uint32_t id;
    *out = NULL;
    TSR_TRY(tsr_optimizer_param_id(&f->raw.names, param, NULL, &id, err));
    if (!fsdp->local[id] || !tsr_map_get(given, fsdp->names[id], 0)) return TSR_OK;
    if (!param->state) {
        tsr_fsdp_warn(fsdp->bound->units, "the optimizer has no state for '%.*s' on this rank",
                      TSR_STR_ARG(fsdp->names[id]));
        return TSR_OK;
    }
    *out = tsr_optimizer_take(&taking, param->state, NULL, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Named optimizers want state of every parameter: those without elements here keep theirs. */
static tsr_status add_own(forming *f, const tsr_map *given, const tsr_value **native, tsr_error *err)
{
    tsr_arena *arena = f->out->arena;
    const tsr_model_optimizer *optimizer = f->raw.optimizer;
    const tsr_value *state = tsr_value_get(*native, TSR_STR("state"));
    size_t params = 0, count = state->count;
    for (size_t g = 0; g < optimizer->group_count; g++) params += optimizer->groups[g].count;
    const tsr_value **items = tsr_arena_array(arena, state->count + 2 * params, sizeof *items, err);
    bool *there = tsr_arena_array(f->raw.passing, params, sizeof *there, err);
    if (!items || !there) return TSR_E_NOMEM;
    if (count) memcpy(items, state->items, count * sizeof *items);
    for (size_t i = 0; i < state->count; i += 2)
        if (items[i]->kind == TSR_VALUE_INT && (uint64_t)items[i]->as.integer < params) there[items[i]->as.integer] = true;
    for (size_t g = 0, number = 0; g < optimizer->group_count; g++) {
        for (size_t p = 0; p < optimizer->groups[g].count; p++, number++) {
            const tsr_value *own = NULL;
            if (!there[number]) TSR_TRY(own_state(f, &optimizer->groups[g].params[p], given, &own, err));
            if (!own) continue;
            items[count++] = tsr_value_int(arena, (int64_t)number, err);
            items[count++] = own;
            if (!items[count - 2]) return TSR_E_NOMEM;
        }
    }
    const tsr_value *all = tsr_value_items(arena, TSR_VALUE_DICT, items, count, err);
    const tsr_value *groups = tsr_value_get(*native, TSR_STR("param_groups"));
    *native =
        groups ? tsr_value_dict(arena, 2, "state", all, "param_groups", groups) : tsr_value_dict(arena, 1, "state", all);
    return *native ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "no memory for the state of a named optimizer");
}

static tsr_status name_loaded(forming *f, const tsr_value *state, const tsr_value **native, tsr_error *err)
{
    tsr_status status = TSR_OK;
    if (f->raw.names.fsdp->flat.use_orig_params) {
        tsr_map *given = tsr_map_new(f->out->host->allocator, 0, err);
        status = given_names(f, state, given, err);
        if (status == TSR_OK) status = add_own(f, given, native, err);
        tsr_map_free(given);
    }
    return status == TSR_OK ? raw_rekey(&f->raw, *native, true, f->out->arena, native, err) : status;
}

static tsr_status convert_loaded(forming *f, const tsr_value *state, tsr_error *err)
{
    const tsr_value *native = NULL;
    const bool has = !f->options.broadcast_from_rank0 || f->raw.comm->rank == 0;
    tsr_status status = TSR_OK;
    if (has && (!state || state->kind != TSR_VALUE_DICT))
        status = tsr_fail(err, TSR_E_FORMAT, "the optimizer's state dict is not a dict");
    TSR_TRY(tsr_comm_agree(f->raw.comm, status, err));
    const tsr_fsdp_state_call call = state_call(f);
    TSR_TRY(tsr_fsdp_optimizer_set(&call, has ? state : NULL, &native, err));
    if (f->raw.of->named) status = name_loaded(f, has ? state : NULL, &native, err);
    TSR_TRY(tsr_comm_agree(f->raw.comm, status, err));
    tsr_state_dict_set_root(f->out, native);
    return TSR_OK;
}

tsr_status tsr_fsdp_optim_state_dict_to_load(const tsr_raw_optimizer *optimizer, const tsr_value *state,
                                             const tsr_fsdp_settings *settings, tsr_state_dict *out, tsr_error *err)
{
    forming f;
    tsr_status status = open_forms(&f, optimizer, settings, out, err);
    if (status == TSR_OK && optimizer->named && (optimizer->input || !optimizer->optimizer))
        status =
            tsr_fail(err, TSR_E_USAGE, "state for a named optimizer needs the optimizer itself; pass it, and not its input");
    status = agree(&f, "optim_state_dict_to_load: settings", status, err);
    if (status == TSR_OK) status = convert_loaded(&f, state, err);
    raw_close(&f.raw);
    return status;
}
