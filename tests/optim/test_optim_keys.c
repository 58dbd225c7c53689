/* Compares rows B6 and B7 with real PyTorch (tests/golden/make_optim_keys.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "golden.h"
#include "tessera/sys/optimizer.h"

typedef void check(golden *g, const cJSON *test, const tsr_modules *modules);

/* Runs `function` over all cases. */
static void for_all(check *function)
{
    golden g = golden_open("optim_keys.json");
    for (const cJSON *test = golden_get(g.document, "cases")->child; test; test = test->next) {
        tsr_modules_document document;
        tsr_modules *modules;
        char *text = cJSON_PrintUnformatted(golden_get(test, "modules"));
        assert_int_equal(tsr_modules_parse(tsr_str_from(text), &g.host, g.arena, &document, NULL), TSR_OK);
        cJSON_free(text);
        assert_int_equal(tsr_modules_new(document.root, &g.host, &modules, NULL), TSR_OK);
        function(&g, test, modules);
        tsr_modules_free(modules);
    }
    golden_close(&g);
}

static void same_names(const tsr_group_names *names, const cJSON *want, const char *test)
{
    size_t g = 0;
    for (const cJSON *group = want->child; group; group = group->next, g++) {
        size_t p = 0;
        if (g == names->count) fail_msg("%s: %zu groups", test, names->count);
        for (const cJSON *name = group->child; name; name = name->next, p++)
            if (p == names->groups[g].count || !tsr_str_equal(names->groups[g].names[p], tsr_str_from(name->valuestring)))
                fail_msg("%s: parameter %zu of group %zu is not %s", test, p, g, name->valuestring);
        assert_int_equal(p, names->groups[g].count);
    }
    assert_int_equal(g, names->count);
}

/* NULL for PyTorch's None. */
static const tsr_value *input_of(golden *g, const cJSON *json)
{
    const tsr_value *input = golden_value(g, json);
    return input->kind == TSR_VALUE_NONE ? NULL : input;
}

static void check_inputs(golden *g, const cJSON *test, const tsr_modules *modules)
{
    unsigned refused = 0, taken = 0;
    for (const cJSON *record = golden_get(test, "inputs")->child; record; record = record->next) {
        tsr_group_names names;
        tsr_error err = {0};
        const cJSON *error = cJSON_GetObjectItem(record, "error");
        const tsr_status status =
            tsr_optim_input_names(input_of(g, golden_get(record, "input")), modules, &g->host, g->arena, &names, &err);
        if (error && status != TSR_E_USAGE) fail_msg("%s: PyTorch: %s; here: %d", test->string, error->valuestring, status);
        if (!error && status != TSR_OK) fail_msg("%s: %s", test->string, err.message);
        if (!error) same_names(&names, golden_get(record, "out"), test->string);
        *(error ? &refused : &taken) += 1;
    }
    assert_true(refused >= 10 && taken >= 6);
}

static void test_optim_keys__B7_what_an_optimizer_was_made_of(void **state)
{
    (void)state;
    for_all(check_inputs);
}

/* The names of an optimizer's parameters by number: those in the record if the optimizer is given, otherwise those of the
 * input that it was created with. */
static tsr_group_names names_of(golden *g, const cJSON *record, const tsr_modules *modules)
{
    tsr_name_list *lists = tsr_arena_array(g->arena, 8, sizeof *lists, NULL);
    tsr_group_names names = {lists, 0};
    const cJSON *given = golden_get(record, "names"), *input = golden_get(record, "input");
    const char *how = golden_get(record, "how")->valuestring;
    if (strcmp(how, "optim") != 0) {
        const tsr_value *value = cJSON_IsNull(input) ? NULL : golden_value(g, input);
        assert_int_equal(tsr_optim_input_names(value, modules, &g->host, g->arena, &names, NULL), TSR_OK);
        return names;
    }
    for (const cJSON *group = given->child; group; group = group->next) {
        tsr_str *list = tsr_arena_array(g->arena, 64, sizeof *list, NULL);
        size_t count = 0;
        for (const cJSON *name = group->child; name; name = name->next) list[count++] = tsr_str_from(name->valuestring);
        lists[names.count++] = (tsr_name_list){list, count};
    }
    return names;
}

static void check_rekeys(golden *g, const cJSON *test, const tsr_modules *modules)
{
    for (const cJSON *record = golden_get(test, "rekeys")->child; record; record = record->next) {
        const tsr_value *out;
        tsr_error err = {0};
        const cJSON *error = cJSON_GetObjectItem(record, "error");
        const char *to = golden_get(record, "to")->valuestring;
        const tsr_group_names names = names_of(g, record, modules);
        const tsr_rekeying how = {.names = &names, .to_names = strcmp(to, "name") == 0};
        const tsr_value *given = golden_value(g, golden_get(record, "state"));
        const tsr_status status = tsr_optim_rekey(given, &how, &g->host, g->arena, &out, &err);
        const tsr_status want = !error ? TSR_OK : strstr(error->valuestring, "ValueError:") ? TSR_E_FORMAT : TSR_E_NOT_FOUND;
        if (status != want)
            fail_msg("%s to %s: PyTorch: %s; here: %d, %s", test->string, to, error ? error->valuestring : "ok", status,
                     err.message);
        if (!error && !golden_same(g, out, golden_get(record, "out"), true))
            fail_msg("%s to %s, %s: differs from PyTorch's", test->string, to, golden_get(record, "how")->valuestring);
        if (error && strstr(error->valuestring, "stranger.weight"))
            assert_non_null(strstr(err.message, "'stranger.weight', which is not a parameter of the optimizer"));
    }
}

static void test_optim_keys__B6_rekey(void **state)
{
    (void)state;
    for_all(check_rekeys);
}

/* ---- computed by hand ---- */

#define S(text)            "{\"s\":\"" text "\"}"
#define ONE                "{\"D\":[[" S("step") ",{\"i\":1}]]}"
#define SEEN               "[" S("seen") ",{\"i\":3}]"
#define GROUPS(params)     "{\"L\":[{\"D\":[[" S("params") ",{\"L\":[" params "]}]]}]}"
#define RAW(state, params) "{\"D\":[[" S("state") ",{\"D\":[" state "]}],[" S("param_groups") "," GROUPS(params) "]]}"
#define W                  "module._checkpoint_wrapped_module.w"

static void test_optim_keys__B7_named_optimizers(void **state)
{
    (void)state;
    static const tsr_str list[] = {{W, sizeof W - 1}, {"a", 1}};
    tsr_name_list group = {list, 2};
    const tsr_group_names names = {&group, 1};
    const tsr_rekeying to_numbers = {.names = &names, .raw_names = true, .keep_others = true};
    const tsr_rekeying to_names = {&names, true, true, true};
    golden g = golden_open("optim_keys.json");
    const char *by_name = RAW("[" S("a") "," ONE "]," SEEN, S("a") "," S(W));
    const tsr_value *named = golden_value(&g, golden_parse(&g, by_name)), *numbered, *again;
    tsr_error err = {0};
    assert_true(tsr_optim_is_named(named));
    assert_int_equal(tsr_optim_rekey(named, &to_numbers, &g.host, g.arena, &numbered, &err), TSR_OK);
    /* in the order of the group, including state that belongs to no parameter */
    const char *by_number = RAW("[{\"i\":1}," ONE "]," SEEN, "{\"i\":1},{\"i\":0}");
    assert_true(golden_same(&g, numbered, golden_parse(&g, by_number), true));
    assert_false(tsr_optim_is_named(numbered));
    assert_int_equal(tsr_optim_rekey(numbered, &to_names, &g.host, g.arena, &again, &err), TSR_OK);
    assert_true(golden_same(&g, again, golden_parse(&g, by_name), true));
    assert_false(tsr_optim_is_named(golden_value(&g, golden_parse(&g, RAW("", "")))));
    golden_close(&g);
}

static void test_optim_keys__bad_names(void **state)
{
    (void)state;
    static const struct {
        const char *input;
        tsr_status status;
        const char *message;
    } rows[] = {
        {"{\"L\":[" S("temp") "," S("temp") "]}", TSR_E_USAGE, "lists 'temp' twice"},
        {"{\"L\":[" S("emb.weight") "," S("head.weight") "]}", TSR_E_USAGE, "lists 'head.weight' twice"},
        {"{\"L\":[" S("stranger") "]}", TSR_E_NOT_FOUND, "lists 'stranger', which is not a parameter of the model"},
        {"{\"L\":[{\"D\":[[" S("params") "," S("temp") "]]}]}", TSR_E_USAGE,
         "\"params\" of group 0 of the optimizer's input is a str; expected a list"},
        {GROUPS("{\"i\":4}"), TSR_E_USAGE, "parameter 0 of group 0 of the optimizer's input is a int; expected the name"},
    };
    golden g = golden_open("optim_keys.json");
    const cJSON *test = golden_get(golden_get(g.document, "cases"), "all");
    char *text = cJSON_PrintUnformatted(golden_get(test, "modules"));
    tsr_modules_document document;
    tsr_modules *modules;
    assert_int_equal(tsr_modules_parse(tsr_str_from(text), &g.host, g.arena, &document, NULL), TSR_OK);
    assert_int_equal(tsr_modules_new(document.root, &g.host, &modules, NULL), TSR_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_error err = {0};
        tsr_group_names names;
        const tsr_value *input = golden_value(&g, golden_parse(&g, rows[i].input));
        const tsr_status status = tsr_optim_input_names(input, modules, &g.host, g.arena, &names, &err);
        if (status != rows[i].status || !strstr(err.message, rows[i].message))
            fail_msg("row %zu: %d, %s", i, status, err.message);
    }
    cJSON_free(text);
    tsr_modules_free(modules);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_keys__B7_what_an_optimizer_was_made_of),
        cmocka_unit_test(test_optim_keys__B6_rekey),
        cmocka_unit_test(test_optim_keys__B7_named_optimizers),
        cmocka_unit_test(test_optim_keys__bad_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
