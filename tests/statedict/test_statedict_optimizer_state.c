/* Rows A12 and A13 compared with real PyTorch (tests/golden/make_optimizer_state.py, make_optimizer_mesh.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "live_model.h"
#include "tessera/save_load.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"

static cJSON *golden, *over_meshes;

typedef struct live_optimizers {
    live_model m;
    tsr_model_optimizer list[8], *at[8];
    size_t count;
    tsr_state_dict *out;
} live_optimizers;

static const tsr_module_tensor *tensor_of(const live_model *m, const char *raw)
{
    for (size_t i = 0; i < m->item_count; i++)
        if (tsr_str_equal(m->items[i].raw, tsr_str_from(raw))) return m->items[i].tensor;
    return NULL;
}

static void read_group(live_model *m, const cJSON *json, tsr_model_group *out, uint32_t rank)
{
    const cJSON *params = live_get(json, "params"), *states = live_get(json, "state");
    out->options = live_value(m->home, live_get(json, "options"), rank, NULL);
    out->count = (size_t)cJSON_GetArraySize(params);
    out->params = tsr_arena_array(m->arena, out->count, sizeof *out->params, NULL);
    for (int p = 0; p < (int)out->count; p++) {
        const cJSON *state = cJSON_GetArrayItem(states, p);
        out->params[p].of = tensor_of(m, cJSON_GetArrayItem(params, p)->valuestring);
        out->params[p].state = cJSON_IsNull(state) ? NULL : live_value(m->home, state, rank, NULL);
    }
}

static tsr_algorithm algorithm_of(const cJSON *optimizer)
{
    static const struct {
        const char *name;
        tsr_algorithm algorithm;
    } known[] = {{"SGD", TSR_SGD},         {"Adam", TSR_ADAM},       {"AdamW", TSR_ADAMW}, {"Adadelta", TSR_ADADELTA},
                 {"Adagrad", TSR_ADAGRAD}, {"Adamax", TSR_ADAMAX},   {"ASGD", TSR_ASGD},   {"NAdam", TSR_NADAM},
                 {"RAdam", TSR_RADAM},     {"RMSprop", TSR_RMSPROP}, {"Rprop", TSR_RPROP}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (live_is(optimizer, "algorithm", known[i].name)) return known[i].algorithm;
    fail_msg("the golden has an algorithm that this test does not know");
    return TSR_OTHER_ALGORITHM;
}

/* `optimizers` NULL: uses those of the case. */
static tsr_status open_with(live_optimizers *l, const cJSON *test, const cJSON *optimizers, uint32_t rank, tsr_error *err)
{
    *l = (live_optimizers){0};
    TSR_TRY(live_model_open(&l->m, test, rank, err));
    TSR_TRY(tsr_state_dict_new(&l->m.host, &l->out, err));
    if (!optimizers) optimizers = live_get(l->m.rank, "optimizers");
    for (const cJSON *o = optimizers->child; o; o = o->next) {
        tsr_model_optimizer *optimizer = l->at[l->count] = &l->list[l->count];
        const cJSON *groups = live_get(o, "groups");
        optimizer->algorithm = algorithm_of(o);
        optimizer->memory = l->m.home;
        optimizer->group_count = (size_t)cJSON_GetArraySize(groups);
        optimizer->groups = tsr_arena_array(l->m.arena, optimizer->group_count, sizeof *optimizer->groups, err);
        for (int g = 0; g < (int)optimizer->group_count; g++)
            read_group(&l->m, cJSON_GetArrayItem(groups, g), &optimizer->groups[g], rank);
        const cJSON *user = cJSON_GetObjectItem(o, "user");
        optimizer->user_state = user ? live_value(l->m.home, user, rank, NULL) : NULL;
        l->count++;
    }
    return TSR_OK;
}

static tsr_status open_all(live_optimizers *l, const cJSON *test, uint32_t rank, tsr_error *err)
{
    return open_with(l, test, NULL, rank, err);
}

static void close_all(live_optimizers *l)
{
    tsr_state_dict_free(l->out);
    live_model_close(&l->m);
}

static const cJSON *case_of(const char *name)
{
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next)
        if (live_is(test, "of", name)) return test;
    return NULL;
}

static tsr_status run_get(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_error own = {0};
    const cJSON *record = live_record_of(arg, "gets", comm->rank);
    const tsr_state_options options = live_options(live_get(record, "options"));
    TSR_TRY(open_all(&l, ((live_record *)arg)->test, comm->rank, err));
    tsr_status status = tsr_get_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count},
                                                     &(tsr_state_call){.comm = comm, .options = &options}, l.out, &own);
    if (cJSON_GetObjectItem(record, "error"))
        status = status == TSR_OK ? tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch refuses") : TSR_OK;
    else if (status == TSR_OK) status = live_same(tsr_state_dict_root(l.out), live_get(record, "out"), false, err);
    else tsr_raise(err, status, 0, "%s", own.message);
    close_all(&l);
    return live_record_told(status, arg, record, err);
}

static void test_statedict_optimizer_state__A12_get(void **state)
{
    (void)state;
    live_records(golden, "gets", run_get);
}

static tsr_status run_set(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_error own = {0};
    const cJSON *record = live_record_of(arg, "sets", comm->rank);
    const tsr_state_options options = live_options(live_get(record, "options"));
    TSR_TRY(open_all(&l, ((live_record *)arg)->test, comm->rank, err));
    const tsr_value *given = live_value(l.m.out, live_get(record, "state"), comm->rank, NULL);
    tsr_status status =
        tsr_set_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, given,
                                     &(tsr_state_call){.comm = comm, .options = &options, .host = &l.m.host}, &own);
    if (cJSON_GetObjectItem(record, "error") || live_is(record, "of", "no groups")) { /* in PyTorch, a group without lr */
        status = status == TSR_OK ? tsr_raise(err, TSR_E_FORMAT, 0, "this does not refuse") : TSR_OK;
    } else if (status == TSR_OK) {
        status = tsr_get_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, &(tsr_state_call){.comm = comm},
                                              l.out, err);
        if (status == TSR_OK) status = live_same(tsr_state_dict_root(l.out), live_get(record, "after"), false, err);
    } else {
        tsr_raise(err, status, 0, "%s", own.message);
    }
    close_all(&l);
    return live_record_told(status, arg, record, err);
}

static void test_statedict_optimizer_state__A12_set(void **state)
{
    (void)state;
    live_records(golden, "sets", run_set);
}

/* ---- A11, A12: a state dict with state that the optimizer does not have, and the reverse ---- */

static void put_gradients(live_optimizers *l, const cJSON *gradients)
{
    for (int o = 0; o < (int)l->count; o++) {
        for (int g = 0; g < (int)l->list[o].group_count; g++) {
            tsr_model_group *group = &l->list[o].groups[g];
            const cJSON *has = cJSON_GetArrayItem(cJSON_GetArrayItem(gradients, o), g);
            for (int p = 0; p < (int)group->count; p++)
                group->params[p].has_gradient = cJSON_IsTrue(cJSON_GetArrayItem(has, p));
        }
    }
}

static tsr_status same_group(const tsr_model_group *group, const cJSON *want, tsr_error *err)
{
    TSR_TRY(live_same(group->options, live_get(want, "options"), false, err));
    for (int p = 0; p < (int)group->count; p++) {
        const cJSON *state = cJSON_GetArrayItem(live_get(want, "state"), p);
        const tsr_value *mine = group->params[p].state;
        const char *name = cJSON_GetArrayItem(live_get(want, "params"), p)->valuestring;
        if ((mine == NULL) != cJSON_IsNull(state))
            return tsr_raise(err, TSR_E_FORMAT, 0, "'%s' %s state", name, mine ? "has" : "lacks");
        const tsr_status status = mine ? live_same(mine, state, false, err) : TSR_OK;
        if (status == TSR_OK) continue;
        tsr_error_context(err, "'%s'", name);
        return status;
    }
    return TSR_OK;
}

static tsr_status same_optimizers(const live_optimizers *l, const cJSON *want, tsr_error *err)
{
    for (int o = 0; o < (int)l->count; o++) {
        const cJSON *optimizer = cJSON_GetArrayItem(want, o), *user = cJSON_GetObjectItem(optimizer, "user");
        if ((user != NULL) != (l->list[o].user_state != NULL))
            return tsr_raise(err, TSR_E_FORMAT, 0, "state of no parameter");
        if (user) TSR_TRY(live_same(l->list[o].user_state, user, false, err));
        for (int g = 0; g < (int)l->list[o].group_count; g++)
            TSR_TRY(same_group(&l->list[o].groups[g], cJSON_GetArrayItem(live_get(optimizer, "groups"), g), err));
    }
    return TSR_OK;
}

/* The error must name the key that PyTorch names. */
static tsr_status refuse_get(live_optimizers *l, const cJSON *want, const tsr_state_options *options, tsr_comm *comm,
                             tsr_error *err)
{
    tsr_error own = {0};
    const char *key = strstr(want->valuestring, "KeyError: ");
    const tsr_status status = tsr_get_optimizer_state_dict(
        &l->m.model, (tsr_optimizers){l->at, l->count}, &(tsr_state_call){.comm = comm, .options = options}, l->out, &own);
    NEED(key && status == TSR_E_FORMAT && strstr(own.message, key + strlen("KeyError: ")));
    return TSR_OK;
}

static tsr_status run_unlike(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_error own = {0};
    const cJSON *record = live_record_of(arg, "unlike", comm->rank), *error = cJSON_GetObjectItem(record, "error");
    const tsr_state_options options = live_options(live_get(record, "options"));
    TSR_TRY(open_with(&l, ((live_record *)arg)->test, live_get(record, "optimizers"), comm->rank, err));
    put_gradients(&l, live_get(record, "gradients"));
    if (cJSON_GetObjectItem(record, "get")) TSR_TRY(refuse_get(&l, live_get(record, "get"), &options, comm, err));
    const size_t count = live_is(record, "of", "first only") ? 1 : l.count;
    const tsr_value *given = live_value(l.m.out, live_get(record, "state"), comm->rank, NULL);
    tsr_status status =
        tsr_set_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, count}, given,
                                     &(tsr_state_call){.comm = comm, .options = &options, .host = &l.m.host}, &own);
    if (error && status == TSR_OK) status = tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch: %s", error->valuestring);
    else if (error) status = same_optimizers(&l, live_get(record, "optimizers"), err);
    else if (status == TSR_OK) status = same_optimizers(&l, live_get(record, "then"), err);
    else tsr_raise(err, status, 0, "%s", own.message);
    const char *key = error && strstr(error->valuestring, "KeyError: '") ? error->valuestring + strlen("KeyError: ") : NULL;
    if (status == TSR_OK && key && !strstr(own.message, key)) /* exactly the key that PyTorch names */
        status = tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch names %s: %s", key, own.message);
    close_all(&l);
    return live_record_told(status, arg, record, err);
}

static void test_statedict_optimizer_state__A11_A12_unlike_optimizers(void **state)
{
    (void)state;
    live_records(golden, "unlike", run_unlike);
}

/* ---- DTensors over one, two and three dims of a mesh ---- */

static void test_statedict_optimizer_state__A12_over_meshes_get(void **state)
{
    (void)state;
    live_records(over_meshes, "gets", run_get);
}

static void test_statedict_optimizer_state__A12_over_meshes_set(void **state)
{
    (void)state;
    live_records(over_meshes, "unlike", run_unlike);
}

/* ---- B7, B11: the optimizer's own state dict ---- */

/* Compares states in any order. Of a named optimizer's groups, only the parameters are compared, which are sorted. */
static tsr_status same_raw(const tsr_value *raw, const cJSON *want, bool named, tsr_error *err)
{
    const cJSON *states = live_get(cJSON_GetArrayItem(live_get(want, "D"), 0)->child->next, "D");
    const cJSON *groups = cJSON_GetArrayItem(live_get(want, "D"), 1)->child->next;
    const tsr_value *state = tsr_value_get(raw, TSR_STR("state"));
    size_t same = 0;
    for (size_t i = 0; i < state->count; i += 2) {
        const tsr_value *key = state->items[i];
        for (const cJSON *pair = states->child; pair; pair = pair->next) {
            const cJSON *number = cJSON_GetObjectItem(pair->child, "i"), *name = cJSON_GetObjectItem(pair->child, "s");
            if (number ? key->kind != TSR_VALUE_INT || key->as.integer != (int64_t)number->valuedouble
                       : key->kind != TSR_VALUE_STR || !tsr_str_equal(key->text, tsr_str_from(name->valuestring)))
                continue;
            TSR_TRY(live_same(state->items[i + 1], pair->child->next, false, err));
            same++;
        }
    }
    if (same != state->count / 2 || same != (size_t)cJSON_GetArraySize(states))
        return tsr_raise(err, TSR_E_FORMAT, 0, "%zu states of %d", same, cJSON_GetArraySize(states));
    if (!named) return live_same(tsr_value_get(raw, TSR_STR("param_groups")), groups, false, err);
    const tsr_value *list = tsr_value_get(raw, TSR_STR("param_groups"));
    for (size_t g = 0; g < list->count; g++) { /* "params" is first in PyTorch, and last here */
        const cJSON *group = cJSON_GetArrayItem(live_get(groups, "L"), (int)g);
        const cJSON *params = live_get(group, "D")->child->child->next;
        TSR_TRY(live_same(tsr_value_get(list->items[g], TSR_STR("params")), params, false, err));
    }
    return TSR_OK;
}

static tsr_status run_raw(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_error own = {0};
    const cJSON *record = live_record_of(arg, "raws", comm->rank), *error = cJSON_GetObjectItem(record, "error");
    const cJSON *want = cJSON_GetObjectItem(record, "raw"), *given = cJSON_GetObjectItem(record, "state");
    const bool named = cJSON_IsTrue(live_get(record, "named"));
    TSR_TRY(open_with(&l, ((live_record *)arg)->test, live_get(record, "optimizers"), comm->rank, err));
    const tsr_raw_optimizer raw = {.model = &l.m.model, .optimizer = l.at[0], .comm = comm, .named = named};
    tsr_status status = tsr_optimizer_state_dict(&raw, l.out, &own);
    if (want) TSR_TRY(status);
    if (want) TSR_TRY(same_raw(tsr_state_dict_root(l.out), want, named, err));
    if (given) status = tsr_optimizer_load_state_dict(&raw, live_value(l.m.out, given, comm->rank, NULL), &l.m.host, &own);
    if ((status != TSR_OK) != (error != NULL))
        status = tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch: %s; here: %s", error ? error->valuestring : "ok", own.message);
    else status = same_optimizers(&l, live_get(record, error ? "optimizers" : "then"), err);
    close_all(&l);
    return live_record_told(status, arg, record, err);
}

static void test_statedict_optimizer_state__B7_B11_own_state_dicts(void **state)
{
    (void)state;
    live_records(golden, "raws", run_raw);
}

/* A flat state dict without a state that the optimizer has: PyTorch puts an empty dict in its place. */
static tsr_status lacks_state(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_error own = {0};
    tsr_state_options options = tsr_state_options_default();
    options.flatten_optimizer_state_dict = true;
    TSR_TRY(open_all(&l, arg, comm->rank, err));
    TSR_TRY(tsr_get_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count},
                                         &(tsr_state_call){.comm = comm, .options = &options}, l.out, err));
    const tsr_value *all = tsr_state_dict_root(l.out), **items = tsr_arena_array(l.m.arena, all->count, sizeof *items, err);
    size_t count = 0;
    for (size_t i = 0; i < all->count; i += 2) {
        if (tsr_str_equal(all->items[i]->text, TSR_STR("state.body.0.bias.exp_avg"))) continue;
        items[count++] = all->items[i];
        items[count++] = all->items[i + 1];
    }
    const tsr_value *given = tsr_value_items(l.m.arena, TSR_VALUE_DICT, items, count, err);
    NEED(count + 2 == all->count);
    tsr_status status =
        tsr_set_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, given,
                                     &(tsr_state_call){.comm = comm, .options = &options, .host = &l.m.host}, &own);
    NEED(status == TSR_E_NOT_FOUND && strstr(own.message, "no 'state.body.0.bias.exp_avg'"));
    options.strict = false;
    status = tsr_set_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, given,
                                          &(tsr_state_call){.comm = comm, .options = &options, .host = &l.m.host}, err);
    close_all(&l);
    return status;
}

static void test_statedict_optimizer_state__A9_flat_state_that_lacks_one(void **state)
{
    (void)state;
    live_run(2, lacks_state, (void *)(uintptr_t)case_of("ddp"));
}

/* ---- A13 ---- */

static void add_one(live_model *m)
{
    for (size_t i = 0; i < m->item_count; i++) {
        uint64_t bytes = 0;
        if (m->tensors[i].entry.dtype != TSR_FLOAT32) continue;
        if (tsr_tensor_held(&m->tensors[i], m->arena, &bytes, NULL) != TSR_OK) return;
        for (uint64_t k = 0; k < bytes / sizeof(float); k++) ((float *)m->tensors[i].data)[k] += 1;
    }
}

/* A program that does not know names saves and loads by its own calls. */
static tsr_status program_save(const tsr_state_calls *calls, tsr_comm *comm, const char *path, const tsr_host *host,
                               tsr_error *err)
{
    tsr_state_dict *state;
    const tsr_save_options options = {.overwrite = true};
    TSR_TRY(tsr_state_dict_new(host, &state, err));
    tsr_status status = calls->state_dict(calls->ctx, state, err);
    if (status == TSR_OK) status = tsr_state_dict_save(tsr_state_dict_root(state), comm, path, &options, host, err);
    tsr_state_dict_free(state);
    return status;
}

static tsr_status program_load(const tsr_state_calls *calls, tsr_comm *comm, const char *path, const tsr_host *host,
                               tsr_error *err)
{
    tsr_state_dict *state, *loaded;
    TSR_TRY(tsr_state_dict_new(host, &state, err));
    TSR_TRY(tsr_state_dict_new(host, &loaded, err));
    tsr_status status = calls->state_dict(calls->ctx, state, err);
    if (status == TSR_OK) status = tsr_state_dict_load(path, tsr_state_dict_root(state), comm, NULL, loaded, err);
    if (status == TSR_OK) status = calls->load_state_dict(calls->ctx, tsr_state_dict_root(loaded), err);
    tsr_state_dict_free(loaded);
    tsr_state_dict_free(state);
    return status;
}

static tsr_status calls_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    char model_path[512], optimizer_path[512];
    snprintf(model_path, sizeof model_path, "%s/model", ranks_scratch());
    snprintf(optimizer_path, sizeof optimizer_path, "%s/optimizer", ranks_scratch());
    TSR_TRY(open_all(&l, arg, comm->rank, err));
    const cJSON *rank = cJSON_GetArrayItem(live_get(arg, "ranks"), (int)comm->rank);
    const cJSON *first = cJSON_GetArrayItem(live_get(rank, "gets"), 0);
    tsr_bound_state bound = {&l.m.model, {l.at, l.count}, comm, tsr_state_options_default(), &l.m.host};
    const tsr_state_calls model = tsr_model_state_calls(&bound), optimizer = tsr_optimizer_state_calls(&bound);
    TSR_TRY(program_save(&model, comm, model_path, &l.m.host, err));
    TSR_TRY(program_save(&optimizer, comm, optimizer_path, &l.m.host, err));
    add_one(&l.m);
    const tsr_value *state = l.list[0].groups[0].params[0].state;
    if (state) ((float *)tsr_tensor_of(state->items[1])->data)[0] += 7;
    TSR_TRY(program_load(&model, comm, model_path, &l.m.host, err));
    TSR_TRY(program_load(&optimizer, comm, optimizer_path, &l.m.host, err));
    for (size_t i = 0; i < l.m.item_count; i++) {
        char raw[128];
        const tsr_value *value;
        if (!l.m.tensors[i].entry.dtype) continue;
        snprintf(raw, sizeof raw, "%.*s", TSR_STR_ARG(l.m.items[i].raw));
        TSR_TRY(tsr_state_dict_tensor(l.m.out, &l.m.tensors[i], &value, err));
        TSR_TRY(live_same(value, live_get(live_get(l.m.rank, "tensors"), raw), false, err));
    }
    TSR_TRY(tsr_get_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, &(tsr_state_call){.comm = comm}, l.out,
                                         err));
    TSR_TRY(live_same(tsr_state_dict_root(l.out), live_get(first, "out"), false, err));
    close_all(&l);
    return TSR_OK;
}

static void test_statedict_optimizer_state__A13_calls_save_and_load(void **state)
{
    (void)state;
    live_run(2, calls_case, (void *)(uintptr_t)case_of("ddp"));
    live_run(2, calls_case, (void *)(uintptr_t)case_of("sharded"));
}

/* ---- A12: the model and its optimizers in one call ---- */

static tsr_status both_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_state_dict *model, *optimizer;
    tsr_unmatched_keys keys;
    tsr_state_options options = tsr_state_options_default();
    options.full_state_dict = options.broadcast_from_rank0 = true;
    TSR_TRY(open_all(&l, arg, comm->rank, err));
    TSR_TRY(tsr_state_dict_new(&l.m.host, &model, err));
    TSR_TRY(tsr_state_dict_new(&l.m.host, &optimizer, err));
    TSR_TRY(tsr_get_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count},
                               &(tsr_state_call){.comm = comm, .options = &options}, model, optimizer, err));
    const tsr_value *root = comm->rank == 0 ? tsr_state_dict_root(optimizer) : NULL;
    add_one(&l.m);
    TSR_TRY(tsr_set_state_dict(
        &l.m.model, (tsr_optimizers){l.at, l.count}, comm->rank == 0 ? tsr_state_dict_root(model) : NULL, root,
        &(tsr_state_call){.comm = comm, .options = &options, .host = &l.m.host, .arena = l.m.arena, .unmatched = &keys},
        err));
    NEED(keys.missing_count == 0 && keys.unexpected_count == 0);
    for (size_t i = 0; i < l.m.item_count; i++) {
        const tsr_tensor *tensor = &l.m.tensors[i];
        char raw[128];
        const tsr_value *value;
        if (tensor->spread != TSR_OVER_MESH) continue;
        snprintf(raw, sizeof raw, "%.*s", TSR_STR_ARG(l.m.items[i].raw));
        TSR_TRY(tsr_state_dict_tensor(l.m.out, tensor, &value, err));
        TSR_TRY(live_same(value, live_get(live_get(l.m.rank, "tensors"), raw), false, err));
    }
    NEED(tsr_get_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, 0}, &(tsr_state_call){.comm = comm}, l.out, NULL) ==
         TSR_E_USAGE);
    tsr_state_dict_free(optimizer);
    tsr_state_dict_free(model);
    close_all(&l);
    return TSR_OK;
}

static double sum_of(live_model *m)
{
    double sum = 0;
    for (size_t i = 0; i < m->item_count; i++) {
        uint64_t bytes = 0;
        if (m->tensors[i].entry.dtype != TSR_FLOAT32) continue;
        if (tsr_tensor_held(&m->tensors[i], m->arena, &bytes, NULL) != TSR_OK) return sum;
        for (uint64_t k = 0; k < bytes / sizeof(float); k++) sum += ((const float *)m->tensors[i].data)[k];
    }
    return sum;
}

/* When the state of the model or of an optimizer is rejected, neither the model nor its optimizers are loaded. */
static tsr_status refused_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_state_dict *model, *optimizer;
    tsr_state_options full = tsr_state_options_default();
    full.full_state_dict = true; /* full state is a copy */
    TSR_TRY(open_all(&l, arg, comm->rank, err));
    TSR_TRY(tsr_state_dict_new(&l.m.host, &model, err));
    TSR_TRY(tsr_state_dict_new(&l.m.host, &optimizer, err));
    const tsr_optimizers optimizers = {l.at, l.count};
    const tsr_state_call call = {.comm = comm, .options = &full, .host = &l.m.host, .arena = l.m.arena};
    TSR_TRY(tsr_get_state_dict(&l.m.model, optimizers, &call, model, optimizer, err));
    add_one(&l.m);
    const tsr_value *options = l.at[0]->groups[0].options, *state = l.at[0]->groups[0].params[0].state;
    const double sum = sum_of(&l.m);
    tsr_error own = {0};
    NEED(tsr_set_state_dict(&l.m.model, optimizers, tsr_state_dict_root(model), tsr_value_dict(l.m.arena, 0), &call, NULL) !=
         TSR_OK);
    NEED(sum_of(&l.m) == sum);
    const tsr_value *stranger = tsr_value_dict(l.m.arena, 1, "stranger", tsr_value_int(l.m.arena, 1, err));
    NEED(tsr_set_state_dict(&l.m.model, optimizers, stranger, tsr_state_dict_root(optimizer), &call, &own) ==
         TSR_E_NOT_FOUND);
    NEED(strstr(own.message, "unexpected, first 'stranger'"));
    NEED(l.at[0]->groups[0].options == options && l.at[0]->groups[0].params[0].state == state); /* loading replaces both */
    tsr_state_dict_free(optimizer);
    tsr_state_dict_free(model);
    close_all(&l);
    return TSR_OK;
}

static void test_statedict_optimizer_state__A12_both_or_none(void **state)
{
    (void)state;
    live_run(2, refused_case, (void *)(uintptr_t)case_of("sharded"));
}

static void count_warning(void *ctx, const char *message)
{
    live_model *m = ctx;
    m->warnings += strstr(message, "submodules") != NULL;
}

/* Loads the model's state of one submodule, and the state of all optimizers. */
static tsr_status submodule_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_state_dict *model;
    tsr_named_module *named;
    size_t count;
    tsr_module_ref body = TSR_NO_MODULE;
    TSR_TRY(open_all(&l, arg, comm->rank, err));
    TSR_TRY(tsr_state_dict_new(&l.m.host, &model, err));
    l.m.model.warn = count_warning;
    TSR_TRY(tsr_fqn_named_modules(l.m.modules, &l.m.host, l.m.arena, &named, &count, err));
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(named[i].raw, TSR_STR("body"))) body = named[i].module;
    TSR_TRY(tsr_get_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count},
                               &(tsr_state_call){.comm = comm, .submodules = &body, .submodule_count = 1}, model, l.out,
                               err));
    const tsr_value *root = tsr_state_dict_root(model);
    NEED(tsr_value_pairs(root) == 3 && l.m.warnings == 1);
    for (size_t i = 0; i < root->count; i += 2) NEED(tsr_str_starts(root->items[i]->text, TSR_STR("body.")));
    TSR_TRY(live_same(tsr_state_dict_root(l.out), live_get(cJSON_GetArrayItem(live_get(l.m.rank, "gets"), 0), "out"), false,
                      err));
    tsr_state_dict_free(model);
    close_all(&l);
    return TSR_OK;
}

static void test_statedict_optimizer_state__A1_A12_submodules(void **state)
{
    (void)state;
    live_run(2, submodule_case, (void *)(uintptr_t)case_of("sharded"));
}

static void test_statedict_optimizer_state__A12_both(void **state)
{
    (void)state;
    live_run(2, both_case, (void *)(uintptr_t)case_of("sharded"));
}

/* ---- bad input ---- */

typedef struct refusal {
    const char *what;
    tsr_status status;
    const char *want;
} refusal;

static const tsr_value *dict_of(tsr_arena *arena, const char *key, const tsr_value *value, const char *other,
                                const tsr_value *second)
{
    const tsr_value **items = tsr_arena_array(arena, 4, sizeof *items, NULL);
    items[0] = tsr_value_str(arena, tsr_str_from(key), NULL);
    items[1] = value;
    items[2] = tsr_value_str(arena, tsr_str_from(other), NULL);
    items[3] = second;
    return tsr_value_items(arena, TSR_VALUE_DICT, items, 4, NULL);
}

/* Returns the optimizer's own state dict with one thing wrong. */
static const tsr_value *spoil(const char *what, tsr_state_dict *dict, const tsr_value *good)
{
    tsr_arena *arena = tsr_state_dict_arena(dict);
    const uint64_t shape[1] = {5};
    const tsr_tensor wrong = tsr_tensor_whole(TSR_FLOAT32, 1, shape, NULL);
    const tsr_value *tensor, *number = tsr_value_int(arena, 1, NULL);
    const tsr_value *state = tsr_value_get(good, TSR_STR("state")), *groups = tsr_value_get(good, TSR_STR("param_groups"));
    if (tsr_state_dict_allocate(dict, &wrong, &tensor, NULL) != TSR_OK) return NULL;
    if (strcmp(what, "state") == 0) return dict_of(arena, "state", number, "param_groups", groups);
    if (strcmp(what, "numbered") == 0)
        return dict_of(arena, "state", dict_of(arena, "a", number, "b", number), "none", number);
    if (strcmp(what, "group") == 0) {
        const tsr_value **one = tsr_arena_array(arena, 1, sizeof *one, NULL);
        one[0] = number;
        const tsr_value *list = tsr_value_items(arena, TSR_VALUE_LIST, one, 1, NULL);
        return dict_of(arena, "state", tsr_value_items(arena, TSR_VALUE_DICT, NULL, 0, NULL), "param_groups", list);
    }
    const tsr_value **items = tsr_arena_array(arena, state->count, sizeof *items, NULL);
    memcpy(items, state->items, state->count * sizeof *items);
    items[1] = strcmp(what, "shape") == 0 ? dict_of(arena, "exp_avg", tensor, "other", number) : number;
    return dict_of(arena, "state", tsr_value_items(arena, TSR_VALUE_DICT, items, state->count, NULL), "param_groups",
                   groups);
}

static const refusal *refused;

static tsr_status refuse_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_optimizers l;
    tsr_error own = {0};
    TSR_TRY(open_all(&l, arg, comm->rank, err));
    TSR_TRY(tsr_get_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, &(tsr_state_call){.comm = comm}, l.out,
                                         err));
    const tsr_value *good = tsr_state_dict_root(l.out);
    const tsr_value *given = comm->rank == 1 ? spoil(refused->what, l.m.out, good) : good;
    const tsr_value *before = l.list[0].groups[0].options;
    const tsr_status status = tsr_set_optimizer_state_dict(&l.m.model, (tsr_optimizers){l.at, l.count}, given,
                                                           &(tsr_state_call){.comm = comm, .host = &l.m.host}, &own);
    if (status != refused->status || !strstr(own.message, refused->want))
        return tsr_raise(err, TSR_E_FORMAT, 0, "%s: %d, %s", refused->what, status, own.message);
    NEED(l.list[0].groups[0].options == before);
    close_all(&l);
    return TSR_OK;
}

static void test_statedict_optimizer_state__A12_bad_state_is_refused_on_all_ranks(void **state)
{
    (void)state;
    const refusal cases[] = {
        {"shape", TSR_E_USAGE, "float32 [5] in the state dict, float32 [3] over dp=2: shard(0) in the optimizer"},
        {"number", TSR_E_FORMAT, "rank 1: it is not a dict, in the state of 'scale'"},
        {"state", TSR_E_FORMAT, "rank 1: optim: the state dict has no dict 'state'"},
        {"numbered", TSR_E_FORMAT, "rank 1: optim: the state dict has no list 'param_groups'"},
        {"group", TSR_E_FORMAT, "rank 1: optim: param_groups[0] has no list 'params'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused = &cases[i];
        live_run(2, refuse_case, (void *)(uintptr_t)case_of("sharded"));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_optimizer_state__A12_get),
        cmocka_unit_test(test_statedict_optimizer_state__A12_set),
        cmocka_unit_test(test_statedict_optimizer_state__A11_A12_unlike_optimizers),
        cmocka_unit_test(test_statedict_optimizer_state__A12_over_meshes_get),
        cmocka_unit_test(test_statedict_optimizer_state__A12_over_meshes_set),
        cmocka_unit_test(test_statedict_optimizer_state__B7_B11_own_state_dicts),
        cmocka_unit_test(test_statedict_optimizer_state__A9_flat_state_that_lacks_one),
        cmocka_unit_test(test_statedict_optimizer_state__A1_A12_submodules),
        cmocka_unit_test(test_statedict_optimizer_state__A12_both),
        cmocka_unit_test(test_statedict_optimizer_state__A12_both_or_none),
        cmocka_unit_test(test_statedict_optimizer_state__A12_bad_state_is_refused_on_all_ranks),
        cmocka_unit_test(test_statedict_optimizer_state__A13_calls_save_and_load),
    };
    ranks_begin(&argc, &argv);
    golden = live_golden("optimizer_state.json");
    over_meshes = live_golden("optimizer_mesh.json");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(over_meshes);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
