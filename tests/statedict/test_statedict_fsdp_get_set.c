/* Rows A6, A7 and A12 of models with FSDP1 units, compared with real PyTorch (tests/golden/make_fsdp_get_set.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "live_units.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/statedict.h"

static cJSON *golden;

typedef struct job {
    const cJSON *test;
    const cJSON *set; /* one item of `sets` */
    const char *gets; /* "gets" or "optimizer_gets" */
    int number;       /* index of the get */
    bool on_device;
} job;

static tsr_status told(tsr_status status, const job *j, const cJSON *record, tsr_error *err)
{
    if (status == TSR_OK) return status;
    char *text = cJSON_PrintUnformatted(live_get(record, "options"));
    const cJSON *what = cJSON_GetObjectItem(record, "what"), *drop = cJSON_GetObjectItem(record, "drop");
    tsr_error_context(err, "%s %s %s %s", j->test->string, what ? what->valuestring : j->gets, text, drop ? "without" : "");
    cJSON_free(text);
    return status;
}

static tsr_status get_one(live_units *u, const char *gets, const tsr_state_options *options, const cJSON *submodules,
                          tsr_comm *comm, tsr_error *err)
{
    tsr_module_ref b = TSR_NO_MODULE;
    tsr_named_module *named;
    size_t count;
    if (gets[0] == 'o')
        return tsr_get_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count},
                                            &(tsr_state_call){.comm = comm, .options = options}, u->out, err);
    TSR_TRY(tsr_fqn_named_modules(u->w.modules, &u->w.host, u->w.arena, &named, &count, err));
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(named[i].raw, TSR_STR("b")) || tsr_str_ends(named[i].raw, TSR_STR("_fsdp_wrapped_module.b")))
            b = named[i].module;
    return tsr_get_model_state_dict(
        &u->model,
        &(tsr_state_call){.comm = comm, .options = options, .submodules = &b, .submodule_count = submodules ? 1 : 0}, u->out,
        err);
}

/* With cpu_offload and original parameters, PyTorch on the CPU returns views of one buffer, all equal to the last state that
 * was gathered (native/live/DIFFERENCES.md). The values must be those without cpu_offload, in the same places. */
static int compared_with(const job *j, const live_units *u)
{
    enum { SHARDED, FULL, FULL_OFFLOADED, SHARDED_OFFLOADED };
    if (j->gets[0] != 'o' || !cJSON_GetObjectItem(live_get(j->test, "case"), "orig")) return j->number;
    if (j->number == FULL_OFFLOADED && u->w.comm->rank == 0) return FULL;
    return j->number == SHARDED_OFFLOADED ? SHARDED : j->number;
}

/* For state that rank 0 has and another rank does not have, PyTorch fails on all ranks; here the error must name it. */
static tsr_status refused_get(tsr_status status, const cJSON *want, const tsr_error *own, tsr_error *err)
{
    if (status != TSR_OK && strstr(own->message, "optim: rank 1 has no state for 'ignored.own', which rank 0 has"))
        return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch: %s; here: %s", live_get(want, "error")->valuestring, own->message);
}

static tsr_status run_get(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    TSR_TRY(live_units_open(&u, j->test, comm, j->on_device, err));
    const cJSON *record = cJSON_GetArrayItem(live_get(u.w.record, j->gets), j->number);
    const tsr_state_options options = live_options(live_get(record, "options"));
    const bool refuses = cJSON_GetObjectItem(live_get(j->test, "case"), "apart") && cJSON_GetObjectItem(record, "error");
    tsr_error own = {0};
    tsr_status status =
        get_one(&u, j->gets, &options, cJSON_GetObjectItem(record, "submodules"), comm, refuses ? &own : err);
    if (refuses) status = refused_get(status, record, &own, err);
    const cJSON *want = cJSON_GetArrayItem(live_get(u.w.record, j->gets), compared_with(j, &u));
    if (status == TSR_OK && !refuses) status = live_same(tsr_state_dict_root(u.out), live_get(want, "out"), false, err);
    live_units_close(&u);
    NEED(u.w.device.allocated == 0);
    return told(status, j, record, err);
}

static void run_gets(const char *gets, bool on_device)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        const cJSON *rank = cJSON_GetArrayItem(live_get(test, "ranks"), 0);
        for (int i = 0; i < cJSON_GetArraySize(live_get(rank, gets)); i++) {
            job j = {test, NULL, gets, i, on_device};
            count += live_run((uint32_t)live_get(live_get(test, "case"), "world")->valuedouble, run_get, &j);
        }
    }
    assert_true(count > 0);
}

static void test_statedict_fsdp_get_set__A6_get_model(void **state)
{
    (void)state;
    run_gets("gets", false);
    run_gets("gets", true);
}

static void test_statedict_fsdp_get_set__A12_B11_B13_get_optimizers(void **state)
{
    (void)state;
    run_gets("optimizer_gets", false);
    run_gets("optimizer_gets", true);
}

/* ---- set ---- */

static bool refused(const job *j)
{
    bool any = false;
    for (const cJSON *r = live_get(j->set, "ranks")->child; r; r = r->next) any = any || cJSON_GetObjectItem(r, "error");
    return any;
}

static bool strict(const job *j)
{
    return !cJSON_GetObjectItem(live_get(j->set, "options"), "strict");
}

/* Whether the call must be rejected. PyTorch also fails in cases that work here: keys that are missing when `strict` is off,
 * tied parameters in a broadcast, wrappers around units, and optimizers of compiled models. With use_orig_params it takes a
 * missing key for the parameter's own slice. A broadcast of flat state drops in PyTorch what only other ranks hold, and is
 * rejected here: the ranks of these cases hold different keys. */
static bool must_refuse(const job *j)
{
    const cJSON *options = live_get(j->set, "options");
    const bool flat = cJSON_GetObjectItem(options, "flatten_optimizer_state_dict");
    const cJSON *how = live_get(j->test, "case"); /* all originals of a flat parameter need its step */
    const bool scalars = !cJSON_GetObjectItem(how, "orig") && !cJSON_GetObjectItem(how, "two");
    if (cJSON_GetObjectItem(how, "apart") && flat && cJSON_GetObjectItem(options, "broadcast_from_rank0")) return strict(j);
    if (cJSON_GetObjectItem(how, "apart")) return refused(j);
    if (cJSON_GetObjectItem(j->set, "misshape")) return true;
    if (cJSON_GetObjectItem(j->set, "add")) return strict(j);
    if (cJSON_GetObjectItem(j->set, "drop")) return strict(j) || (live_is(j->set, "what", "optimizer") && scalars);
    return false;
}

static const tsr_value *with(live_units *u, const tsr_value *state, const char *key)
{
    static const uint64_t shape[1] = {2};
    static float ones[2] = {1, 1};
    const tsr_tensor tensor = tsr_tensor_whole(TSR_FLOAT32, 1, shape, ones);
    tsr_state_dict *dict = u->memory;
    const tsr_value *value;
    if (tsr_state_dict_tensor(dict, &tensor, &value, NULL) != TSR_OK) return NULL;
    const tsr_value **items = tsr_arena_array(u->w.arena, state->count + 2, sizeof *items, NULL);
    size_t at = state->count;
    memcpy(items, state->items, state->count * sizeof *items);
    for (size_t i = 0; i < state->count; i += 2)
        if (tsr_str_equal(state->items[i]->text, tsr_str_from(key))) at = i;
    items[at] = tsr_value_str(u->w.arena, tsr_str_from(key), NULL);
    items[at + 1] = value;
    return tsr_value_items(u->w.arena, TSR_VALUE_DICT, items, at == state->count ? at + 2 : state->count, NULL);
}

static const tsr_value *given_state(live_units *u, const job *j, const tsr_state_options *options)
{
    const cJSON *record = cJSON_GetArrayItem(live_get(u->w.record, j->gets), (int)live_get(j->set, "from")->valuedouble);
    const cJSON *drop = cJSON_GetObjectItem(j->set, "drop"), *add = cJSON_GetObjectItem(j->set, "add"),
                *misshape = cJSON_GetObjectItem(j->set, "misshape");
    if (options->broadcast_from_rank0 && u->w.comm->rank) return tsr_value_items(u->w.arena, TSR_VALUE_DICT, NULL, 0, NULL);
    const tsr_value *state = live_value(u->memory, live_get(record, "out"), u->w.comm->rank, NULL);
    state = live_changed(u, state, drop ? drop->valuestring : NULL);
    if (add) state = with(u, state, add->valuestring);
    return misshape ? with(u, state, misshape->valuestring) : state;
}

/* When PyTorch could not do it, the state is got again and must be what was given. */
static tsr_status same_again(live_units *u, const job *j, const tsr_state_options *options, tsr_comm *comm, tsr_error *err)
{
    const cJSON *record = cJSON_GetArrayItem(live_get(u->w.record, j->gets), (int)live_get(j->set, "from")->valuedouble);
    tsr_state_options again = *options;
    again.broadcast_from_rank0 = again.cpu_offload = false;
    if (cJSON_GetObjectItem(j->set, "drop") || cJSON_GetObjectItem(j->set, "add")) return TSR_OK;
    TSR_TRY(get_one(u, j->gets, &again, NULL, comm, err));
    return live_same(live_unchanged(u, tsr_state_dict_root(u->out)), live_get(record, "out"), false, err);
}

static bool names_one(const tsr_str *names, size_t count, const cJSON *name)
{
    return name ? count == 1 && tsr_str_equal(names[0], tsr_str_from(name->valuestring)) : count == 0;
}

static tsr_status set_one(live_units *u, const job *j, const tsr_state_options *options, tsr_unmatched_keys *keys,
                          tsr_comm *comm, tsr_error *err)
{
    const tsr_value *state = given_state(u, j, options);
    if (live_is(j->set, "what", "model"))
        return tsr_set_model_state_dict(
            &u->model, state,
            &(tsr_state_call){.comm = comm, .options = options, .host = &u->w.host, .arena = u->w.arena, .unmatched = keys},
            err);
    return tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, state,
                                        &(tsr_state_call){.comm = comm, .options = options, .host = &u->w.host}, err);
}

static tsr_status compare(live_units *u, const job *j, const tsr_state_options *options, const tsr_unmatched_keys *keys,
                          tsr_comm *comm, tsr_error *err)
{
    const cJSON *record = cJSON_GetArrayItem(live_get(j->set, "ranks"), (int)comm->rank);
    const bool model = live_is(j->set, "what", "model");
    if (model) NEED(names_one(keys->missing, keys->missing_count, cJSON_GetObjectItem(j->set, "drop")));
    if (model) NEED(names_one(keys->unexpected, keys->unexpected_count, cJSON_GetObjectItem(j->set, "add")));
    /* PyTorch pairs the names with and without `_orig_mod` in the order of two sets, so tensors of equal shape are loaded in
     * each other's place. */
    const bool mixed_up = model && cJSON_GetObjectItem(live_get(j->test, "case"), "compiled");
    if (refused(j) || mixed_up) return same_again(u, j, options, comm, err);
    if (!model) return live_units_same(u, live_get(record, "optimizers"), err);
    return fsdp_world_same(&u->w, live_get(record, "slices"), live_get(record, "plain"), err);
}

static tsr_status run_set(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    tsr_unmatched_keys keys = {0};
    tsr_error own = {0};
    const tsr_state_options options = live_options(live_get(j->set, "options"));
    TSR_TRY(live_units_open(&u, j->test, comm, false, err));
    tsr_status status = set_one(&u, j, &options, &keys, comm, &own);
    if (must_refuse(j) != (status != TSR_OK))
        status = tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch %s; %s", refused(j) ? "refuses" : "does not", own.message);
    else if (status == TSR_OK) status = compare(&u, j, &options, &keys, comm, err);
    else status = fsdp_world_same(&u.w, live_get(u.w.record, "slices"), live_get(u.w.record, "plain"), err);
    if (status == TSR_OK && must_refuse(j)) status = live_units_same(&u, live_get(u.w.record, "optimizers"), err);
    live_units_close(&u);
    return told(status, j, j->set, err);
}

static void run_sets(const char *what, const char *gets)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        for (const cJSON *set = live_get(test, "sets")->child; set; set = set->next) {
            job j = {.test = test, .set = set, .gets = gets};
            if (live_is(set, "what", what))
                count += live_run((uint32_t)live_get(live_get(test, "case"), "world")->valuedouble, run_set, &j);
        }
    }
    assert_true(count > 0);
}

static void test_statedict_fsdp_get_set__A7_set_model(void **state)
{
    (void)state;
    run_sets("model", "gets");
}

static void test_statedict_fsdp_get_set__A12_B3_B5_set_optimizers(void **state)
{
    (void)state;
    run_sets("optimizer", "optimizer_gets");
}

/* ---- flat state that lacks the state of one parameter ---- */

/* Returns the flat state dict without its first or last state. `gone`: the removed key. */
static const tsr_value *without_one(live_units *u, bool last, tsr_str *gone)
{
    const tsr_value *all = tsr_state_dict_root(u->out);
    const tsr_value **items = tsr_arena_array(u->w.arena, all->count, sizeof *items, NULL);
    size_t at = all->count, count = 0;
    for (size_t i = 0; i < all->count; i += 2)
        if (tsr_str_starts(all->items[i]->text, TSR_STR("state.")) && (last || at == all->count)) at = i;
    *gone = at < all->count ? all->items[at]->text : TSR_STR("");
    for (size_t i = 0; i < all->count; i += 2) {
        if (i == at) continue;
        items[count++] = all->items[i];
        items[count++] = all->items[i + 1];
    }
    return tsr_value_items(u->w.arena, TSR_VALUE_DICT, items, count, NULL);
}

/* PyTorch raises where parameters are flat (ValueError: Differing optimizer state types). */
static tsr_status lacks_one(live_units *u, tsr_comm *comm, tsr_error *err)
{
    tsr_state_options options = tsr_state_options_default();
    const cJSON *before = live_get(u->w.record, "optimizers");
    options.flatten_optimizer_state_dict = true;
    options.full_state_dict = true;
    TSR_TRY(get_one(u, "optimizer_gets", &options, NULL, comm, err));
    for (int last = 0; last < 2; last++) {
        tsr_error own = {0};
        tsr_str gone;
        char text[256];
        const tsr_value *given = without_one(u, last, &gone);
        NEED(gone.size);
        snprintf(text, sizeof text, "has no '%.*s', which the optimizer holds", TSR_STR_ARG(gone));
        const tsr_status status =
            tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, given,
                                         &(tsr_state_call){.comm = comm, .options = &options, .host = &u->w.host}, &own);
        if (status != TSR_E_NOT_FOUND || !strstr(own.message, text))
            return tsr_raise(err, TSR_E_FORMAT, 0, "without '%.*s': %s", TSR_STR_ARG(gone), own.message);
        TSR_TRY(live_units_same(u, before, err));
    }
    const tsr_value *all = tsr_state_dict_root(u->out);
    return tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, all,
                                        &(tsr_state_call){.comm = comm, .options = &options, .host = &u->w.host}, err);
}

/* Returns the state of a parameter that has one. */
static const tsr_value **some_state(live_units *u)
{
    tsr_model_group *group = &u->at[0]->groups[0];
    size_t p = 0;
    while (p + 1 < group->count && !group->params[p].state) p++;
    return &group->params[p].state;
}

/* Rank 0 broadcasts flat state. The last rank's optimizer has one more option, or one more state. */
static tsr_status lacks_others(live_units *u, bool option, tsr_comm *comm, tsr_error *err)
{
    tsr_state_options options = tsr_state_options_default();
    const tsr_value **more = option ? &u->at[0]->groups[0].options : some_state(u), *before = *more;
    tsr_error own = {0};
    options.flatten_optimizer_state_dict = options.full_state_dict = true;
    TSR_TRY(get_one(u, "optimizer_gets", &options, NULL, comm, err));
    options.broadcast_from_rank0 = true;
    const char *text = option ? ".mine': it must have every option of the optimizer's param groups"
                              : ".mine', which the optimizer holds; to load anyway, pass strict = false";
    if (comm->rank + 1 == comm->size) *more = with(u, *more, "mine");
    const tsr_value *all = comm->rank ? NULL : tsr_state_dict_root(u->out), *given = *more;
    const tsr_status status =
        tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, all,
                                     &(tsr_state_call){.comm = comm, .options = &options, .host = &u->w.host}, &own);
    NEED(status == TSR_E_NOT_FOUND && *more == given);
    if (!strstr(own.message, text)) return tsr_raise(err, TSR_E_FORMAT, 0, "not '%s': %s", text, own.message);
    *more = before;
    return TSR_OK;
}

static tsr_status run_lacking(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_units u;
    TSR_TRY(live_units_open(&u, arg, comm, false, err));
    tsr_status status = lacks_one(&u, comm, err);
    for (int option = 0; option < 2 && status == TSR_OK && comm->size > 1; option++)
        status = lacks_others(&u, option, comm, err);
    live_units_close(&u);
    if (status != TSR_OK) tsr_error_context(err, "%s", ((const cJSON *)arg)->string);
    return status;
}

static void test_statedict_fsdp_get_set__A9_flat_state_that_lacks_one(void **state)
{
    static const char *const cases[] = {"flat_w3", "orig_w2", "mesh_w2", "hybrid_w4", "mixed_w2"};
    unsigned count = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cJSON *test = live_get(live_get(golden, "cases"), cases[i]);
        count +=
            live_run((uint32_t)live_get(live_get(test, "case"), "world")->valuedouble, run_lacking, (void *)(uintptr_t)test);
    }
    assert_true(count > 0);
}

/* ---- B10: extensions ---- */

typedef struct calls {
    unsigned chunked, gathered;
    uint32_t fail_on; /* on this rank the callbacks fail */
    char names[512];
} calls;

/* Every rank keeps the whole tensor, negated. */
static tsr_status negate(const calls *c, tsr_str fqn, const tsr_tensor *from, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **result, tsr_error *err)
{
    const tsr_value *value;
    uint64_t count = 1;
    tsr_tensor like = *from;
    if (comm->rank == c->fail_on) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "nothing of %.*s", TSR_STR_ARG(fqn));
    like.device = NULL;
    TSR_TRY(tsr_state_dict_allocate(out, &like, &value, err));
    for (uint32_t i = 0; i < from->entry.ndim; i++) count *= from->entry.shape[i];
    for (uint64_t i = 0; i < count; i++) ((float *)tsr_tensor_of(value)->data)[i] = -((const float *)from->data)[i];
    *result = tsr_tensor_of(value);
    return TSR_OK;
}

static tsr_status chunk(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                        const tsr_tensor **result, tsr_error *err)
{
    calls *c = ctx;
    const size_t used = strlen(c->names);
    c->chunked++;
    snprintf(c->names + used, sizeof c->names - used, "%.*s\n", TSR_STR_ARG(fqn));
    return negate(c, fqn, whole, comm, out, result, err);
}

static tsr_status gather(void *ctx, tsr_str fqn, const tsr_tensor *sharded, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **whole, tsr_error *err)
{
    calls *c = ctx;
    c->gathered++;
    return negate(c, fqn, sharded, comm, out, whole, err);
}

static const cJSON *pair_of(const cJSON *dict, tsr_str key)
{
    for (const cJSON *pair = live_get(dict, "D")->child; pair; pair = pair->next)
        if (tsr_str_equal(key, tsr_str_from(live_get(pair->child, "s")->valuestring))) return pair->child->next;
    return NULL;
}

/* What `chunk` made equals FULL's, negated; everything else is as it is without extensions. */
static tsr_status same_but_negated(const live_units *u, const calls *c, tsr_state_dict *passing, unsigned *found,
                                   tsr_error *err)
{
    static const tsr_str key = {"state", 5};
    const cJSON *gets = live_get(u->w.record, "optimizer_gets");
    const cJSON *sharded = pair_of(live_get(cJSON_GetArrayItem(gets, 0), "out"), key);
    const cJSON *full = pair_of(live_get(cJSON_GetArrayItem(gets, 1), "out"), key);
    const tsr_value *state = tsr_value_get(tsr_state_dict_root(u->out), key);
    const calls back = {.fail_on = UINT32_MAX};
    for (size_t i = 0; i < state->count; i += 2) {
        const tsr_str fqn = state->items[i]->text;
        const tsr_value *keys = state->items[i + 1];
        char line[128];
        snprintf(line, sizeof line, "%.*s\n", TSR_STR_ARG(fqn));
        for (size_t k = 0; k < keys->count; k += 2) {
            const tsr_tensor *tensor = tsr_tensor_of(keys->items[k + 1]);
            const bool own = tensor && tensor->entry.ndim && strstr(c->names, line);
            const cJSON *want = pair_of(pair_of(own ? full : sharded, fqn), keys->items[k]->text);
            tsr_value value = *keys->items[k + 1];
            if (own) {
                TSR_TRY(negate(&back, fqn, tensor, u->w.comm, passing, &tensor, err));
                value.as.tensor = &tensor->entry;
            }
            *found += own;
            TSR_TRY(live_same(&value, want, false, err));
        }
    }
    return TSR_OK;
}

/* A get after the set must give the same state. `change` is undone in the result. */
static tsr_status got_again(live_units *u, const calls *c, bool change, tsr_state_dict *passing, tsr_error *err)
{
    const tsr_state_options options = tsr_state_options_default();
    unsigned found = 0;
    TSR_TRY(get_one(u, "optimizer_gets", &options, NULL, u->w.comm, err));
    if (change) tsr_state_dict_set_root(u->out, live_unchanged(u, tsr_state_dict_root(u->out)));
    return same_but_negated(u, c, passing, &found, err);
}

static tsr_status fail_in_extension(live_units *u, tsr_comm *comm, tsr_state_dict *broken, tsr_error *err)
{
    const tsr_state_options options = tsr_state_options_default();
    const tsr_value *state = tsr_state_dict_root(u->out);
    const tsr_host *host = &u->w.host;
    tsr_error get_error = {0}, set_error = {0};
    const tsr_status got =
        tsr_get_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count},
                                     &(tsr_state_call){.comm = comm, .options = &options}, broken, &get_error);
    const tsr_status set =
        tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, state,
                                     &(tsr_state_call){.comm = comm, .options = &options, .host = host}, &set_error);
    NEED(got == TSR_E_IO && strstr(get_error.message, "rank 1: nothing of"));
    NEED(set == TSR_E_IO && strstr(set_error.message, "rank 1: nothing of"));
    return TSR_OK;
}

static tsr_status extend(live_units *u, const job *j, tsr_comm *comm, tsr_error *err)
{
    const tsr_state_options options = tsr_state_options_default();
    calls c = {.fail_on = UINT32_MAX};
    const tsr_fsdp_extensions extensions = {chunk, gather, &c};
    tsr_state_dict *passing;
    unsigned found = 0;
    TSR_TRY(tsr_state_dict_new(&u->w.host, &passing, err));
    u->w.units[j->number].extensions = &extensions;
    TSR_TRY(get_one(u, "optimizer_gets", &options, NULL, comm, err));
    TSR_TRY(same_but_negated(u, &c, passing, &found, err));
    NEED(found > 0 && found == c.chunked && c.gathered == 0);
    const tsr_value *state = tsr_state_dict_root(u->out);
    if (!j->on_device) state = live_changed(u, state, NULL);
    TSR_TRY(tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, state,
                                         &(tsr_state_call){.comm = comm, .options = &options, .host = &u->w.host}, err));
    NEED(c.gathered == found);
    c.fail_on = 1;
    TSR_TRY(fail_in_extension(u, comm, passing, err));
    c.fail_on = UINT32_MAX;
    TSR_TRY(got_again(u, &c, !j->on_device, passing, err));
    tsr_state_dict_free(passing);
    return TSR_OK;
}

static tsr_status run_extended(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    TSR_TRY(live_units_open(&u, j->test, comm, j->on_device, err));
    const tsr_status status = extend(&u, j, comm, err);
    live_units_close(&u);
    if (status != TSR_OK) tsr_error_context(err, "%s, unit %d", j->test->string, j->number);
    return status;
}

static void test_statedict_fsdp_get_set__B10_extensions_of_optimizer_state(void **state)
{
    static const struct {
        const char *name;
        int unit;
    } cases[] = {{"flat_w3", 0}, {"flat_w3", 1}, {"orig_w2", 0}, {"mesh_w2", 1}, {"hybrid_w4", 0}, {"mixed_w2", 2}};
    unsigned count = 0;
    (void)state;
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        job j = {.test = live_get(live_get(golden, "cases"), cases[i / 2].name), .number = cases[i / 2].unit};
        j.on_device = i % 2;
        count += live_run((uint32_t)live_get(live_get(j.test, "case"), "world")->valuedouble, run_extended, &j);
    }
    assert_true(count > 0);
}

/* ---- bad input ---- */

static tsr_status refuse_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_units u;
    tsr_error told[4] = {{0}};
    tsr_state_options options = tsr_state_options_default();
    TSR_TRY(live_units_open(&u, arg, comm, false, err));
    const tsr_value *state =
        live_value(u.memory, live_get(cJSON_GetArrayItem(live_get(u.w.record, "gets"), 1), "out"), comm->rank, NULL);
    options.full_state_dict = true;
    u.model.fsdp = NULL;
    const tsr_status none =
        tsr_get_model_state_dict(&u.model, &(tsr_state_call){.comm = comm, .options = &options}, u.out, &told[0]);
    u.model.fsdp = &u.w.tree;
    tsr_tensor *pos = NULL;
    for (size_t i = 0; i < u.model.tensor_count; i++)
        if (tsr_str_equal(u.model.tensors[i].of->name, TSR_STR("pos"))) pos = u.model.tensors[i].tensor;
    NEED(pos);
    pos->meta = comm->rank == 1;
    const tsr_status meta = tsr_set_model_state_dict(
        &u.model, state, &(tsr_state_call){.comm = comm, .options = &options, .host = &u.w.host, .arena = u.w.arena},
        &told[1]);
    pos->meta = false;
    options.full_state_dict = comm->rank == 1;
    const tsr_status differ = tsr_get_optimizer_state_dict(
        &u.model, (tsr_optimizers){u.at, u.count}, &(tsr_state_call){.comm = comm, .options = &options}, u.out, &told[2]);
    options.full_state_dict = false;
    const tsr_status counts =
        tsr_get_optimizer_state_dict(&u.model, (tsr_optimizers){u.at, u.count - (comm->rank == 1)},
                                     &(tsr_state_call){.comm = comm, .options = &options}, u.out, &told[3]);
    const tsr_status same = fsdp_world_same(&u.w, live_get(u.w.record, "slices"), live_get(u.w.record, "plain"), err);
    live_units_close(&u);
    NEED(none == TSR_E_USAGE &&
         strstr(told[0].message, "rank 0: unit '' has a flat parameter, but no slice was passed for it"));
    NEED(meta == TSR_E_UNSUPPORTED && strstr(told[1].message, "rank 1: 'pos' is a meta tensor; outside FSDP1's units"));
    NEED(differ == TSR_E_USAGE && strstr(told[2].message, "get_optimizer_state_dict: options: rank 1 differs from rank 0"));
    NEED(counts == TSR_E_USAGE && strstr(told[3].message, "get_optimizer_state_dict: options: rank 1 differs from rank 0"));
    return same;
}

static void test_statedict_fsdp_get_set__A7_A12_refusals_reach_all_ranks(void **state)
{
    (void)state;
    live_run(2, refuse_case, (void *)(uintptr_t)live_get(live_get(golden, "cases"), "mesh_w2"));
}

/* Returns the case with another name for the buffer 'pos'. */
static cJSON *rename_pos(const cJSON *test)
{
    char *text = cJSON_PrintUnformatted(test);
    for (char *at = text; (at = strstr(at, "\"pos\"")) != NULL; at += 5) memcpy(at, "\"odd\"", 5);
    cJSON *renamed = cJSON_Parse(text);
    cJSON_free(text);
    return renamed;
}

/* Outside of the units, rank 1 has a name of its own, as with experts. Nothing may be loaded into the units, the rest of the
 * model, or its optimizers. */
static tsr_status refuse_names(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_units u;
    tsr_error own = {0};
    tsr_unmatched_keys keys;
    tsr_state_options options = tsr_state_options_default();
    cJSON *odd = comm->rank == 1 ? rename_pos(arg) : NULL;
    TSR_TRY(live_units_open(&u, odd ? odd : arg, comm, false, err));
    const tsr_optimizers optimizers = {u.at, u.count};
    const tsr_state_call call = {
        .comm = comm, .options = &options, .host = &u.w.host, .arena = u.w.arena, .unmatched = &keys};
    const cJSON *gets[] = {live_get(u.w.record, "gets"), live_get(u.w.record, "optimizer_gets")};
    const tsr_value *given[2]; /* the full state of the model and of the optimizers */
    for (size_t i = 0; i < 2; i++)
        given[i] =
            live_changed(&u, live_value(u.memory, live_get(cJSON_GetArrayItem(gets[i], 1), "out"), comm->rank, NULL), NULL);
    options.full_state_dict = options.broadcast_from_rank0 = true;
    const tsr_status status = tsr_set_state_dict(&u.model, optimizers, given[0], given[1], &call, &own);
    tsr_status same = fsdp_world_same(&u.w, live_get(u.w.record, "slices"), live_get(u.w.record, "plain"), err);
    if (same == TSR_OK) same = live_units_same(&u, live_get(u.w.record, "optimizers"), err);
    live_units_close(&u);
    cJSON_Delete(odd);
    TSR_TRY(same);
    if (status == TSR_E_USAGE && strstr(own.message, "'odd' is missing on rank 0, but no tensor on rank 1")) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, 0, "expected other names to be refused, not %d '%s'", (int)status, own.message);
}

static void test_statedict_fsdp_get_set__A12_other_names_are_refused_before_a_broadcast(void **state)
{
    (void)state;
    live_run(2, refuse_names, (void *)(uintptr_t)live_get(live_get(golden, "cases"), "mesh_w2"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_fsdp_get_set__A6_get_model),
        cmocka_unit_test(test_statedict_fsdp_get_set__A12_B11_B13_get_optimizers),
        cmocka_unit_test(test_statedict_fsdp_get_set__A7_set_model),
        cmocka_unit_test(test_statedict_fsdp_get_set__A9_flat_state_that_lacks_one),
        cmocka_unit_test(test_statedict_fsdp_get_set__B10_extensions_of_optimizer_state),
        cmocka_unit_test(test_statedict_fsdp_get_set__A7_A12_refusals_reach_all_ranks),
        cmocka_unit_test(test_statedict_fsdp_get_set__A12_other_names_are_refused_before_a_broadcast),
        cmocka_unit_test(test_statedict_fsdp_get_set__A12_B3_B5_set_optimizers),
    };
    ranks_begin(&argc, &argv);
    golden = live_golden("fsdp_get_set.json");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
