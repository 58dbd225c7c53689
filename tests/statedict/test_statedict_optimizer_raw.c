/* Rows B3, B6, B7 and B11: optimizers' own state dicts and FSDP1's forms of them, compared with real PyTorch
 * (tests/golden/make_optimizer_raw.py and make_optimizer_forms.py, whose records contain what was `given`). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "live_units.h"
#include "tessera/sys/optimizer.h"

static cJSON *golden, *forms;

typedef struct job {
    const cJSON *test;
    const char *what; /* "gets", "to_loads", "loads" */
    int number;
} job;

static const cJSON *record_of(const job *j, uint32_t rank)
{
    return cJSON_GetArrayItem(live_get(cJSON_GetArrayItem(live_get(j->test, "ranks"), (int)rank), j->what), j->number);
}

static const char *text_of(const cJSON *record, const char *key)
{
    const cJSON *value = cJSON_GetObjectItem(record, key);
    return value && cJSON_IsString(value) ? value->valuestring : "";
}

static tsr_status told(tsr_status status, const job *j, tsr_error *err)
{
    const cJSON *r = record_of(j, 0);
    if (status != TSR_OK)
        tsr_error_context(err, "%s, %s %d, %s %s %s", j->test->string, j->what, j->number, text_of(r, "of"),
                          text_of(r, "form"), text_of(r, "change"));
    return status;
}

/* ---- documents, changed ---- */

/* Returns the pair with a key in {"D": [[key, value], …]}. */
static cJSON *pair_of(const cJSON *dict, const char *key)
{
    for (cJSON *pair = live_get(dict, "D")->child; pair; pair = pair->next)
        if (strcmp(text_of(pair->child, "s"), key) == 0) return pair;
    return NULL;
}

static cJSON *under(const cJSON *dict, const char *key)
{
    cJSON *pair = pair_of(dict, key);
    assert_non_null(pair);
    return pair->child->next;
}

static cJSON *first_group(const cJSON *state)
{
    return cJSON_GetArrayItem(live_get(under(state, "param_groups"), "L"), 0);
}

static void append(cJSON *list, const char *json)
{
    cJSON_AddItemToArray(list, cJSON_Parse(json));
}

/* dict["other"] = dict.pop(from) */
static void rename_key(const cJSON *dict, const char *from)
{
    cJSON *pairs = (cJSON *)(uintptr_t)live_get(dict, "D"), *pair = cJSON_DetachItemViaPointer(pairs, pair_of(dict, from));
    cJSON_SetValuestring(cJSON_GetObjectItem(pair->child, "s"), "other");
    cJSON_AddItemToArray(pairs, pair);
}

static void reverse(cJSON *list)
{
    for (int i = 1; i < cJSON_GetArraySize(list); i++) cJSON_InsertItemInArray(list, 0, cJSON_DetachItemFromArray(list, i));
}

/* Makes the changes that make_optimizer_raw.py makes to a state dict before it is loaded, except those that live_changed
 * makes to all of it. */
static void change(cJSON *state, const char *what)
{
    cJSON *states = (cJSON *)(uintptr_t)live_get(under(state, "state"), "D"), *first = states->child;
    cJSON *groups = (cJSON *)(uintptr_t)live_get(under(state, "param_groups"), "L");
    if (strcmp(what, "no state") == 0) cJSON_DeleteItemFromArray(states, 0);
    if (strcmp(what, "short state") == 0) {
        cJSON *pairs = (cJSON *)(uintptr_t)live_get(first->child->next, "D");
        cJSON_Delete(cJSON_DetachItemViaPointer(pairs, pair_of(first->child->next, "exp_avg")));
    }
    if (strcmp(what, "other state") == 0) rename_key(first->child->next, "exp_avg");
    if (strcmp(what, "option") == 0)
        append((cJSON *)(uintptr_t)live_get(first_group(state), "D"), "[{\"s\":\"other\"},{\"f\":1}]");
    if (strcmp(what, "other option") == 0) rename_key(first_group(state), "eps");
    if (strcmp(what, "no group") == 0) cJSON_DeleteItemFromArray(groups, cJSON_GetArraySize(groups) - 1);
    if (strcmp(what, "other group") == 0) {
        cJSON *params = (cJSON *)(uintptr_t)live_get(under(first_group(state), "params"), "L");
        cJSON_DeleteItemFromArray(params, cJSON_GetArraySize(params) - 1);
    }
    if (strcmp(what, "order") == 0) reverse(groups);
    if (strcmp(what, "user") == 0)
        append(states, "[{\"s\":\"given\"},{\"D\":[[{\"s\":\"samples\"},{\"i\":3}],"
                       "[{\"s\":\"ema\"},{\"T\":[\"float32\",[2],[3,3]]}]]}]");
}

static void add_stranger(cJSON *state, bool named)
{
    append((cJSON *)(uintptr_t)live_get(under(first_group(state), "params"), "L"),
           named ? "{\"s\":\"stranger\"}" : "{\"i\":99}");
}

/* ---- comparing ---- */

static tsr_status same_loosely(const tsr_value *value, const cJSON *json, tsr_error *err);

static const tsr_value *find_number(const tsr_value *dict, int64_t number)
{
    for (size_t i = 0; i < dict->count; i += 2)
        if (dict->items[i]->kind == TSR_VALUE_INT && dict->items[i]->as.integer == number) return dict->items[i + 1];
    return NULL;
}

static tsr_status same_dict(const tsr_value *value, const cJSON *pairs, tsr_error *err)
{
    if (tsr_value_pairs(value) != (size_t)cJSON_GetArraySize(pairs))
        return tsr_raise(err, TSR_E_FORMAT, 0, "%zu pairs, not %d", tsr_value_pairs(value), cJSON_GetArraySize(pairs));
    for (const cJSON *pair = pairs->child; pair; pair = pair->next) {
        const cJSON *number = cJSON_GetObjectItem(pair->child, "i");
        const char *name = text_of(pair->child, "s");
        const tsr_value *mine =
            number ? find_number(value, (int64_t)number->valuedouble) : tsr_value_get(value, tsr_str_from(name));
        const tsr_status status =
            mine ? same_loosely(mine, pair->child->next, err) : tsr_raise(err, TSR_E_FORMAT, 0, "it is not there");
        if (status == TSR_OK) continue;
        tsr_error_context(err, "'%s'", name);
        return status;
    }
    return TSR_OK;
}

/* PyTorch leaves the description of a tensor in the place of a tensor inside a dict, when that dict is rank 0's state of no
 * parameter. Rank 0's "ema" is 1.5, and 1 more when it is loaded. */
static bool is_description(const cJSON *json)
{
    const cJSON *items = cJSON_GetObjectItem(json, "U");
    return items && cJSON_GetArraySize(items) == 2 && strcmp(text_of(cJSON_GetArrayItem(items, 1), "o"), "dtype") == 0;
}

/* Compares dicts in any order: PyTorch's order is that of its model, or of a set. */
static tsr_status same_loosely(const tsr_value *value, const cJSON *json, tsr_error *err)
{
    const cJSON *pairs = cJSON_GetObjectItem(json, "D"), *list = cJSON_GetObjectItem(json, "L");
    if (is_description(json)) {
        const tsr_tensor *tensor = tsr_tensor_of(value);
        return tensor && *(const float *)tensor->data == 2.5f ? TSR_OK : tsr_raise(err, TSR_E_FORMAT, 0, "not rank 0's");
    }
    if (pairs && value->kind == TSR_VALUE_DICT) return same_dict(value, pairs, err);
    if (!list || value->kind != TSR_VALUE_LIST) return live_same(value, json, false, err);
    if (value->count != (size_t)cJSON_GetArraySize(list)) return tsr_raise(err, TSR_E_FORMAT, 0, "%zu items", value->count);
    for (size_t i = 0; i < value->count; i++) TSR_TRY(same_loosely(value->items[i], cJSON_GetArrayItem(list, (int)i), err));
    return TSR_OK;
}

/* Whether a call did what PyTorch did: gave the same result, or failed as well. */
static tsr_status same_outcome(tsr_status status, const tsr_value *root, const cJSON *record, const tsr_error *own,
                               tsr_error *err)
{
    const cJSON *error = cJSON_GetObjectItem(record, "error");
    if (error && status != TSR_OK && status != TSR_E_NOMEM && status != TSR_E_IO) return TSR_OK;
    if (error) return tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch: %s; here: %d", error->valuestring, status);
    if (status != TSR_OK) return tsr_raise(err, status, 0, "%s", own->message);
    return same_loosely(root, live_get(record, "out"), err);
}

static tsr_fsdp_settings settings_of(const char *form)
{
    return (tsr_fsdp_settings){.type = strcmp(form, "sharded") == 0 ? TSR_FSDP_SHARDED : TSR_FSDP_FULL,
                               .rank0_only = strcmp(form, "rank0") == 0};
}

static const tsr_value *input_of(live_units *u, const cJSON *record)
{
    const cJSON *input = cJSON_GetObjectItem(record, "input");
    return input && !cJSON_IsNull(input) ? live_value(u->memory, input, u->w.comm->rank, NULL) : NULL;
}

/* ---- optim_state_dict ---- */

/* Returns the raw state dict that get number `j->number` converts. `kept` must live as long as it does. */
static const tsr_value *raw_of(live_units *u, const cJSON *record, cJSON **kept)
{
    const cJSON *given = cJSON_GetObjectItem(record, "given");
    if (given) return live_value(u->memory, given, u->w.comm->rank, NULL);
    const bool named = strcmp(text_of(record, "of"), "named") == 0;
    const cJSON *raw = named ? live_get(live_get(u->w.record, "named"), "out") : live_get(u->w.record, "raw");
    *kept = cJSON_Duplicate(raw, true);
    if (strcmp(text_of(record, "change"), "stranger") == 0) add_stranger(*kept, named);
    return live_value(u->memory, *kept, u->w.comm->rank, NULL);
}

static tsr_status get_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    tsr_error own = {0};
    cJSON *kept = NULL;
    TSR_TRY(live_units_open(&u, j->test, comm, false, err));
    const cJSON *record = record_of(j, comm->rank);
    const tsr_fsdp_settings settings = settings_of(text_of(record, "form"));
    const tsr_raw_optimizer raw = {.model = &u.model, .optimizer = u.at[0], .input = input_of(&u, record), .comm = comm};
    const tsr_value *given = raw.input ? NULL : raw_of(&u, record, &kept);
    tsr_status status = tsr_fsdp_optim_state_dict(&raw, given, &settings, u.out, &own);
    status = same_outcome(status, tsr_state_dict_root(u.out), record, &own, err);
    live_units_close(&u);
    cJSON_Delete(kept);
    return told(status, j, err);
}

static void run_of(const cJSON *of, const char *what, ranks_body *body)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(of, "cases")->child; test; test = test->next) {
        const cJSON *rank = cJSON_GetArrayItem(live_get(test, "ranks"), 0);
        for (int i = 0; i < cJSON_GetArraySize(live_get(rank, what)); i++) {
            job j = {test, what, i};
            count += live_run(2, body, &j);
        }
    }
    assert_true(count > 0);
}

static void run_all(const char *what, ranks_body *body)
{
    run_of(golden, what, body);
    run_of(forms, what, body);
}

static void test_statedict_optimizer_raw__B7_B11_optim_state_dict(void **state)
{
    (void)state;
    run_all("gets", get_case);
}

/* ---- optim_state_dict_to_load ---- */

static const tsr_value *to_load_of(live_units *u, const cJSON *record, cJSON **kept)
{
    const cJSON *given = cJSON_GetObjectItem(record, "given");
    const char *changes = text_of(record, "change");
    if (given) return live_value(u->memory, given, u->w.comm->rank, NULL);
    if (strcmp(changes, "no state") == 0) return tsr_value_dict(u->w.arena, 0);
    const cJSON *got = cJSON_GetArrayItem(live_get(u->w.record, "gets"), (int)live_get(record, "from")->valuedouble);
    *kept = cJSON_Duplicate(live_get(got, "out"), true);
    if (strcmp(changes, "stranger") == 0) add_stranger(*kept, true);
    return live_changed(u, live_value(u->memory, *kept, u->w.comm->rank, NULL),
                        strcmp(changes, "no groups") == 0 ? "param_groups" : NULL);
}

static tsr_status to_load_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    tsr_error own = {0};
    TSR_TRY(live_units_open(&u, j->test, comm, false, err));
    const cJSON *record = record_of(j, comm->rank);
    const tsr_fsdp_settings settings = settings_of(text_of(record, "form"));
    const tsr_raw_optimizer raw = {.model = &u.model,
                                   .optimizer = u.at[0],
                                   .input = input_of(&u, record),
                                   .comm = comm,
                                   .named = cJSON_IsTrue(live_get(record, "named"))};
    cJSON *kept = NULL;
    const tsr_value *state = to_load_of(&u, record, &kept);
    if (settings.rank0_only && comm->rank) state = NULL;
    tsr_status status = tsr_fsdp_optim_state_dict_to_load(&raw, state, &settings, u.out, &own);
    status = same_outcome(status, tsr_state_dict_root(u.out), record, &own, err);
    live_units_close(&u);
    cJSON_Delete(kept);
    return told(status, j, err);
}

static void test_statedict_optimizer_raw__B3_B6_B7_to_load(void **state)
{
    (void)state;
    run_all("to_loads", to_load_case);
}

/* ---- state_dict and load_state_dict ---- */

/* Finds what is loaded, and compares the optimizer's own state dict with PyTorch's. */
static tsr_status load_of(live_units *u, const cJSON *record, const tsr_raw_optimizer *raw, cJSON **kept,
                          const tsr_value **state, tsr_error *err)
{
    const cJSON *given = cJSON_GetObjectItem(record, "given");
    *state = given ? live_value(u->memory, given, u->w.comm->rank, NULL) : NULL;
    if (given) return TSR_OK;
    const cJSON *own = raw->named ? live_get(live_get(u->w.record, "named"), "out") : live_get(u->w.record, "raw");
    *kept = cJSON_Duplicate(own, true);
    change(*kept, text_of(record, "change"));
    TSR_TRY(tsr_optimizer_state_dict(raw, u->out, err));
    TSR_TRY(same_loosely(tsr_state_dict_root(u->out), own, err));
    *state = live_changed(u, live_value(u->memory, *kept, u->w.comm->rank, NULL), NULL);
    return TSR_OK;
}

/* PyTorch loads state of any shape in place of a parameter's, and groups without options
 * (native/live/DIFFERENCES.md). */
static bool is_misplaced(const char *change)
{
    static const char *const changes[] = {"order", "other names", "params reversed", "no options"};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        if (strcmp(change, changes[i]) == 0) return true;
    return false;
}

static tsr_status load_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    tsr_error own = {0};
    TSR_TRY(live_units_open(&u, j->test, comm, false, err));
    const cJSON *record = record_of(j, comm->rank), *error = cJSON_GetObjectItem(record, "error");
    const bool named = cJSON_IsTrue(live_get(record, "named"));
    const char *changes = text_of(record, "change");
    const tsr_raw_optimizer raw = {.model = &u.model, .optimizer = u.at[0], .comm = comm, .named = named};
    cJSON *kept = NULL;
    const tsr_value *state = NULL;
    TSR_TRY(load_of(&u, record, &raw, &kept, &state, err));
    for (size_t g = 0; strcmp(changes, "fresh") == 0 && g < u.at[0]->group_count; g++)
        for (size_t p = 0; p < u.at[0]->groups[g].count; p++) u.at[0]->groups[g].params[p].state = NULL;
    if (strcmp(changes, "fresh") == 0) u.at[0]->user_state = NULL;
    const tsr_status loaded = tsr_optimizer_load_state_dict(&raw, state, &u.w.host, &own);
    const bool misplaced = !error && !named && is_misplaced(changes);
    tsr_status status =
        (loaded != TSR_OK) == (error != NULL || misplaced)
            ? TSR_OK
            : tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch: %s; here: %s", error ? error->valuestring : "ok", own.message);
    if (status == TSR_OK && (loaded == TSR_OK || strcmp(changes, "fresh") != 0))
        status = live_units_same(&u, live_get(loaded == TSR_OK ? record : u.w.record, "optimizers"), err);
    live_units_close(&u);
    cJSON_Delete(kept);
    return told(status, j, err);
}

static void test_statedict_optimizer_raw__B7_B11_state_dict_and_load(void **state)
{
    (void)state;
    run_all("loads", load_case);
}

/* ---- bad input ---- */

static tsr_status refuse_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_units u;
    tsr_error told_of[5] = {{0}};
    const tsr_fsdp_settings full = {0}, rank0 = {.type = TSR_FSDP_SHARDED, .rank0_only = true};
    const tsr_fsdp_settings other = {.rank0_only = comm->rank == 1};
    TSR_TRY(live_units_open(&u, arg, comm, false, err));
    const tsr_value *input =
        tsr_value_list(u.w.arena, TSR_VALUE_LIST, 1, tsr_value_str(u.w.arena, TSR_STR("stranger"), err));
    const tsr_value *state = tsr_value_dict(u.w.arena, 0);
    tsr_raw_optimizer raw = {.model = &u.model, .comm = comm};
    NEED(tsr_fsdp_optim_state_dict(&raw, NULL, &full, u.out, &told_of[0]) == TSR_E_USAGE);
    raw.optimizer = u.at[0];
    NEED(tsr_fsdp_optim_state_dict(&raw, NULL, &rank0, u.out, &told_of[1]) == TSR_E_USAGE);
    NEED(tsr_fsdp_optim_state_dict(&raw, NULL, &other, u.out, &told_of[2]) == TSR_E_USAGE);
    raw.input = comm->rank ? input : NULL; /* when one rank fails, all ranks fail */
    NEED(tsr_fsdp_optim_state_dict(&raw, NULL, &full, u.out, &told_of[3]) == TSR_E_NOT_FOUND);
    raw.input = NULL;
    raw.optimizer = NULL;
    raw.named = true;
    NEED(tsr_fsdp_optim_state_dict_to_load(&raw, state, &full, u.out, &told_of[4]) == TSR_E_USAGE);
    live_units_close(&u);
    NEED(strstr(told_of[0].message, "neither an optimizer nor its state dict"));
    NEED(strstr(told_of[1].message, "rank0_only needs FULL"));
    NEED(strstr(told_of[2].message, "optim_state_dict: settings: rank 1 differs from rank 0"));
    NEED(strstr(told_of[3].message, "rank 1: optim: the optimizer's input lists 'stranger'"));
    NEED(strstr(told_of[4].message, "a named optimizer needs the optimizer itself"));
    return TSR_OK;
}

typedef struct heard {
    unsigned input, user, none; /* warnings about the optimizer's input, about state of no parameter, and about parameters
                                 * without state */
} heard;

static void hear(void *ctx, const char *message)
{
    heard *h = ctx;
    h->input += strstr(message, "optim_input is deprecated") != NULL;
    h->user += strstr(message, "does not belong to a parameter") != NULL;
    h->none += strstr(message, "the optimizer has no state for 'scale' on this rank") != NULL;
}

/* Warns as PyTorch does: about the deprecated argument, about every key that is not a parameter's (rank 1 has two), and
 * about parameters for which a named optimizer gets no state. */
static tsr_status warn_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_units u;
    heard h = {0};
    const tsr_fsdp_settings full = {0};
    TSR_TRY(live_units_open(&u, arg, comm, false, err));
    u.w.tree.warn = hear;
    u.w.tree.ctx = &h;
    tsr_raw_optimizer raw = {.model = &u.model, .optimizer = u.at[0], .comm = comm};
    const cJSON *record = cJSON_GetArrayItem(live_get(u.w.record, "to_loads"), 6); /* in this record the input is groups */
    raw.input = input_of(&u, record);
    NEED(raw.input && tsr_fsdp_optim_state_dict(&raw, NULL, &full, u.out, err) == TSR_OK);
    NEED(h.input == 1 && h.user == 1 + comm->rank);
    const tsr_value *state =
        live_value(u.memory, live_get(cJSON_GetArrayItem(live_get(u.w.record, "gets"), 0), "out"), comm->rank, NULL);
    raw.input = NULL;
    raw.named = true;
    for (size_t g = 0; g < u.at[0]->group_count; g++)
        for (size_t p = 0; p < u.at[0]->groups[g].count; p++) u.at[0]->groups[g].params[p].state = NULL;
    TSR_TRY(tsr_fsdp_optim_state_dict_to_load(&raw, state, &full, u.out, err));
    const bool here = tsr_value_pairs(tsr_value_get(tsr_state_dict_root(u.out), TSR_STR("state"))) > 0;
    live_units_close(&u);
    NEED(here && h.none == comm->rank && h.input == 1); /* rank 0 has all elements of it */
    return TSR_OK;
}

static void test_statedict_optimizer_raw__warnings(void **state)
{
    (void)state;
    live_run(2, warn_case, (void *)(uintptr_t)live_get(live_get(golden, "cases"), "user orig"));
}

static void test_statedict_optimizer_raw__refusals_reach_all_ranks(void **state)
{
    (void)state;
    live_run(2, refuse_case, (void *)(uintptr_t)live_get(live_get(golden, "cases"), "flat"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_optimizer_raw__B7_B11_optim_state_dict),
        cmocka_unit_test(test_statedict_optimizer_raw__B3_B6_B7_to_load),
        cmocka_unit_test(test_statedict_optimizer_raw__B7_B11_state_dict_and_load),
        cmocka_unit_test(test_statedict_optimizer_raw__warnings),
        cmocka_unit_test(test_statedict_optimizer_raw__refusals_reach_all_ranks),
    };
    ranks_begin(&argc, &argv);
    golden = live_golden("optimizer_raw.json");
    forms = live_golden("optimizer_forms.json");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(forms);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
