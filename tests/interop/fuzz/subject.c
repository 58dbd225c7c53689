/* See subject.h. */
#include "subject.h"

#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/names.h"

static const tsr_value none = {.kind = TSR_VALUE_NONE};

static const tsr_value *get(const tsr_value *dict, const char *key)
{
    const tsr_value *value = dict->kind == TSR_VALUE_DICT ? tsr_value_get(dict, tsr_str_from(key)) : NULL;
    return value ? value : &none;
}

const tsr_value *subject_get(const subject *s, const char *key)
{
    return get(s->job, key);
}

bool subject_is(const tsr_value *dict, const char *key, const char *text)
{
    const tsr_value *value = get(dict, key);
    return value->kind == TSR_VALUE_STR && tsr_str_equal(value->text, tsr_str_from(text));
}

/* ---- the model ---- */

static tsr_status get_extra(void *ctx, tsr_str raw, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const subject *s = ctx;
    (void)arena;
    *out = tsr_value_get(subject_get(s, "extra"), raw);
    return *out ? TSR_OK : tsr_raise(err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "no extra state '%.*s'", TSR_STR_ARG(raw));
}

/* Copies a value by writing and reading it, because it is freed when the call that returned it ends. */
static tsr_status copy_of(subject *s, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    tsr_vec bytes = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = wire_write(&bytes, value, s->arena, err);
    wire_in in = {bytes.items, (const uint8_t *)bytes.items + bytes.count, s->home, s->comm->rank,
                  tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_value *))};
    if (status == TSR_OK) status = wire_read(&in, out, err);
    tsr_vec_free(&in.shared);
    tsr_vec_free(&bytes);
    return status;
}

static tsr_status set_extra(void *ctx, tsr_str raw, const tsr_value *value, tsr_error *err)
{
    subject *s = ctx;
    if (s->extra_count == tsr_value_pairs(subject_get(s, "extra")))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "more extra state than there is");
    s->extra_names[s->extra_count] = tsr_arena_str(s->arena, raw, err);
    TSR_TRY(copy_of(s, value, &s->extra_set[s->extra_count], err));
    s->extra_count++;
    return TSR_OK;
}

static void warn(void *ctx, const char *message)
{
    subject *s = ctx;
    const tsr_value **slot = tsr_vec_push(&s->warnings, NULL);
    if (slot) *slot = tsr_value_str(s->arena, tsr_arena_str(s->arena, tsr_str_from(message), NULL), NULL);
}

static tsr_status open_modules(subject *s, tsr_error *err)
{
    tsr_modules_document document;
    TSR_TRY(tsr_modules_parse(subject_get(s, "modules")->text, &s->host, s->arena, &document, err));
    return tsr_modules_new(document.root, &s->host, &s->modules, err);
}

static tsr_status open_model(subject *s, tsr_error *err)
{
    const tsr_value *tensors = subject_get(s, "tensors"), *extra = subject_get(s, "extra");
    const size_t count = tsr_value_pairs(tensors);
    tsr_model_tensor *bound = tsr_arena_array(s->arena, count, sizeof *bound, err);
    s->extra_names = tsr_arena_array(s->arena, tsr_value_pairs(extra), sizeof *s->extra_names, err);
    s->extra_set = tsr_arena_array(s->arena, tsr_value_pairs(extra), sizeof *s->extra_set, err);
    if (!bound || !s->extra_names || !s->extra_set) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        bound[i].name = tensors->items[2 * i]->text.data; /* tsr_arena_str ends it with a NUL */
        bound[i].tensor = (tsr_tensor *)(uintptr_t)tsr_tensor_of(tensors->items[2 * i + 1]);
    }
    s->model = (tsr_model){.modules = s->modules,
                           .tensors = bound,
                           .tensor_count = count,
                           .get_extra = get_extra,
                           .set_extra = set_extra,
                           .ctx = s,
                           .memory = s->home,
                           .warn = warn};
    return TSR_OK;
}

/* ---- optimizers ---- */

static tsr_algorithm algorithm_of(const tsr_value *optimizer)
{
    if (subject_is(optimizer, "algorithm", "SGD")) return TSR_SGD;
    if (subject_is(optimizer, "algorithm", "Adam")) return TSR_ADAM;
    return subject_is(optimizer, "algorithm", "AdamW") ? TSR_ADAMW : TSR_OTHER_ALGORITHM;
}

/* Sets the states that the job lists for the groups of an optimizer; None stands for a parameter without state. */
static void put_states(tsr_model_optimizer *o, const tsr_value *groups, const char *key)
{
    for (size_t g = 0; g < o->group_count; g++) {
        const tsr_value *states = get(groups->items[g], key);
        for (size_t p = 0; p < o->groups[g].count; p++)
            o->groups[g].params[p].state = states->items[p]->kind == TSR_VALUE_NONE ? NULL : states->items[p];
    }
}

typedef struct first_states {
    tsr_model_optimizer *optimizer;
    const tsr_value *groups;
    const tsr_value *error; /* the error of PyTorch's optimizer if its step failed, or None */
} first_states;

static tsr_status first_state(void *ctx, tsr_error *err)
{
    const first_states *first = ctx;
    if (first->error->kind == TSR_VALUE_STR)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the first step: %s", first->error->text.data);
    put_states(first->optimizer, first->groups, "first");
    return TSR_OK;
}

static tsr_status open_group(subject *s, const tsr_value *json, tsr_model_group *out, tsr_error *err)
{
    const tsr_value *params = get(json, "params"), *gradients = get(json, "gradients");
    out->options = get(json, "options");
    out->count = params->count;
    out->params = tsr_arena_array(s->arena, out->count, sizeof *out->params, err);
    if (!out->params) return TSR_E_NOMEM;
    for (size_t p = 0; p < out->count; p++)
        out->params[p] =
            (tsr_model_param){.name = params->items[p]->text.data, .has_gradient = gradients->items[p]->as.boolean};
    return TSR_OK;
}

static tsr_status open_optimizer(subject *s, const tsr_value *json, tsr_model_optimizer *o, tsr_error *err)
{
    const tsr_value *groups = get(json, "groups"), *user = get(json, "user");
    first_states *first = TSR_ARENA_NEW(s->arena, first_states, err);
    o->algorithm = algorithm_of(json);
    o->memory = s->home;
    o->group_count = groups->count;
    o->groups = tsr_arena_array(s->arena, groups->count, sizeof *o->groups, err);
    if (!o->groups || !first) return TSR_E_NOMEM;
    *first = (first_states){o, groups, get(json, "first_error")};
    o->ctx = first;
    o->first_state = get(json, "has_first")->as.boolean ? first_state : NULL;
    o->user_state = user->kind == TSR_VALUE_DICT ? user : NULL;
    for (size_t g = 0; g < groups->count; g++) TSR_TRY(open_group(s, groups->items[g], &o->groups[g], err));
    put_states(o, groups, "state");
    return TSR_OK;
}

static tsr_status open_optimizers(subject *s, tsr_error *err)
{
    const tsr_value *optimizers = subject_get(s, "optimizers");
    s->list = tsr_arena_array(s->arena, optimizers->count, sizeof *s->list, err);
    s->at = tsr_arena_array(s->arena, optimizers->count, sizeof(tsr_model_optimizer *), err);
    if (!s->list || !s->at) return TSR_E_NOMEM;
    for (s->count = 0; s->count < optimizers->count; s->count++) {
        s->at[s->count] = &s->list[s->count];
        TSR_TRY(open_optimizer(s, optimizers->items[s->count], s->at[s->count], err));
    }
    return TSR_OK;
}

/* ---- FSDP1 ---- */

static tsr_status open_unit(subject *s, const tsr_value *json, const tsr_mesh *mesh, tsr_fsdp_unit *unit, tsr_error *err)
{
    const tsr_value *slice = get(json, "slice");
    const tsr_tensor *tensor = tsr_tensor_of(slice);
    tsr_named_module *named;
    size_t count;
    if (!tensor) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "a unit without a slice");
    TSR_TRY(tsr_fqn_named_modules(s->modules, &s->host, s->arena, &named, &count, err));
    *unit = (tsr_fsdp_unit){.module = TSR_NO_MODULE,
                            .comm = s->group,
                            .no_shard = subject_is(json, "strategy", "NO_SHARD"),
                            .mesh = mesh,
                            .dtype = tensor->entry.dtype,
                            .slice = tensor->data};
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(named[i].raw, get(json, "module")->text)) unit->module = named[i].module;
    return TSR_OK;
}

static tsr_status open_units(subject *s, tsr_error *err)
{
    const tsr_value *units = subject_get(s, "units"), *mesh_text = subject_get(s, "fsdp_mesh");
    tsr_mesh *mesh = NULL;
    if (units->kind == TSR_VALUE_NONE) return TSR_OK;
    if (mesh_text->kind == TSR_VALUE_STR) {
        mesh = TSR_ARENA_NEW(s->arena, tsr_mesh, err);
        if (!mesh) return TSR_E_NOMEM;
        TSR_TRY(tsr_mesh_parse(mesh_text->text, s->arena, mesh, err));
    }
    TSR_TRY(s->comm->split(s->comm, (uint32_t)subject_get(s, "fsdp_group")->as.integer, s->comm->rank, &s->group, err));
    tsr_fsdp_unit *list = tsr_arena_array(s->arena, units->count, sizeof *list, err);
    if (!list) return TSR_E_NOMEM;
    for (size_t i = 0; i < units->count; i++) TSR_TRY(open_unit(s, units->items[i], mesh, &list[i], err));
    const tsr_value *ignored = subject_get(s, "ignored");
    tsr_str *names = tsr_arena_array(s->arena, ignored->count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < ignored->count; i++) names[i] = ignored->items[i]->text;
    s->tree = (tsr_fsdp_tree){.modules = s->modules,
                              .comm = s->comm,
                              .units = list,
                              .unit_count = units->count,
                              .ignored = names,
                              .ignored_count = ignored->count,
                              .warn = warn,
                              .ctx = s};
    s->model.fsdp = &s->tree;
    return TSR_OK;
}

/* ---- the whole subject ---- */

tsr_status subject_open(subject *s, tsr_str bytes, tsr_comm *comm, tsr_error *err)
{
    *s = (subject){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}, .comm = comm};
    s->warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_value *));
    s->arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    if (!s->arena) return TSR_E_NOMEM;
    TSR_TRY(tsr_state_dict_new(&s->host, &s->home, err));
    wire_in in = {(const uint8_t *)bytes.data, (const uint8_t *)bytes.data + bytes.size, s->home, comm->rank,
                  tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_value *))};
    const tsr_status status = wire_read(&in, &s->job, err);
    tsr_vec_free(&in.shared);
    if (status != TSR_OK) return status;
    if (subject_get(s, "modules")->kind != TSR_VALUE_STR) return TSR_OK; /* the job only has state dicts */
    TSR_TRY(open_modules(s, err));
    TSR_TRY(open_model(s, err));
    TSR_TRY(open_optimizers(s, err));
    return open_units(s, err);
}

void subject_close(subject *s)
{
    tsr_vec_free(&s->warnings);
    if (s->group) s->group->close(s->group);
    tsr_modules_free(s->modules);
    tsr_state_dict_free(s->home);
    if (s->arena) tsr_arena_free(s->arena);
}

static const tsr_value *optimizer_now(subject *s, size_t number, tsr_error *err)
{
    const tsr_model_optimizer *o = &s->list[number];
    const tsr_value **groups = tsr_arena_array(s->arena, o->group_count, sizeof *groups, err);
    for (size_t g = 0; groups && g < o->group_count; g++) {
        const tsr_model_group *group = &o->groups[g];
        const tsr_value **states = tsr_arena_array(s->arena, group->count, sizeof *states, err);
        if (!states) return NULL;
        for (size_t p = 0; p < group->count; p++) states[p] = group->params[p].state ? group->params[p].state : &none;
        const tsr_value *list = tsr_value_items(s->arena, TSR_VALUE_LIST, states, group->count, err);
        groups[g] = tsr_value_dict(s->arena, 2, "options", group->options, "state", list);
        if (!groups[g]) return NULL;
    }
    const tsr_value *list = groups ? tsr_value_items(s->arena, TSR_VALUE_LIST, groups, o->group_count, err) : NULL;
    return tsr_value_dict(s->arena, 2, "groups", list, "user", o->user_state ? o->user_state : &none);
}

static const tsr_value *extra_now(subject *s, tsr_error *err)
{
    const tsr_value *before = subject_get(s, "extra");
    const tsr_value **items = tsr_arena_array(s->arena, before->count, sizeof *items, err);
    if (!items) return NULL;
    if (before->count) memcpy(items, before->items, before->count * sizeof *items);
    for (size_t i = 0; i < before->count; i += 2)
        for (size_t e = 0; e < s->extra_count; e++)
            if (tsr_str_equal(items[i]->text, s->extra_names[e])) items[i + 1] = s->extra_set[e];
    return tsr_value_items(s->arena, TSR_VALUE_DICT, items, before->count, err);
}

tsr_status subject_now(subject *s, const tsr_value **out, tsr_error *err)
{
    const tsr_value **optimizers = tsr_arena_array(s->arena, s->count, sizeof *optimizers, err);
    if (!optimizers) return TSR_E_NOMEM;
    for (size_t i = 0; i < s->count; i++) {
        optimizers[i] = optimizer_now(s, i, err);
        if (!optimizers[i]) return TSR_E_NOMEM;
    }
    const tsr_value *list = tsr_value_items(s->arena, TSR_VALUE_LIST, optimizers, s->count, err);
    *out = tsr_value_dict(s->arena, 4, "tensors", subject_get(s, "tensors"), "extra", extra_now(s, err), "optimizers", list,
                          "units", subject_get(s, "units"));
    return *out ? TSR_OK : TSR_E_NOMEM;
}
