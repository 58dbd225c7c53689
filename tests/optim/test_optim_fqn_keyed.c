/* Compares FQN-keyed optimizer state with real PyTorch: tests/golden/optim.json, made by tests/golden/make_optim.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "golden.h"
#include "tessera/optim.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optimizer.h"

/* One case of the golden file with its module tree. */
typedef struct scene {
    golden *g;
    const cJSON *json;
    tsr_modules *modules;
    tsr_params *params;
    tsr_error err;
} scene;

static scene open_scene(golden *g, const cJSON *json)
{
    scene s = {.g = g, .json = json};
    tsr_modules_document document;
    char *text = cJSON_PrintUnformatted(golden_get(json, "modules"));
    assert_int_equal(tsr_modules_parse(tsr_str_from(text), &g->host, g->arena, &document, &s.err), TSR_OK);
    cJSON_free(text);
    assert_int_equal(tsr_modules_new(document.root, &g->host, &s.modules, &s.err), TSR_OK);
    assert_int_equal(tsr_params_new(s.modules, &g->host, &s.params, &s.err), TSR_OK);
    return s;
}

static void close_scene(scene *s)
{
    tsr_params_free(s->params);
    tsr_modules_free(s->modules);
}

/* Runs `check` over all cases. */
static void for_all(void (*check)(scene *s))
{
    golden g = golden_open("optim.json");
    for (const cJSON *one = golden_get(g.document, "cases")->child; one; one = one->next) {
        scene s = open_scene(&g, one);
        check(&s);
        close_scene(&s);
    }
    golden_close(&g);
}

static void ok(const scene *s, tsr_status status)
{
    if (status != TSR_OK) fail_msg("%s: %s", s->json->string, s->err.message);
}

static void same(const scene *s, const tsr_value *value, const cJSON *json, bool ordered)
{
    if (!golden_same(s->g, value, json, ordered)) fail_msg("%s differs from PyTorch's", s->json->string);
}

static void check_flatten(scene *s)
{
    const tsr_value *out;
    ok(s, tsr_optim_flatten(golden_value(s->g, golden_get(s->json, "nested")), &s->g->host, s->g->arena, &out, &s->err));
    /* the same tensors, not copies */
    same(s, out, golden_get(s->json, "flat"), true);
}

static void test_optim_fqn_keyed__A9_flatten(void **state)
{
    (void)state;
    for_all(check_flatten);
}

/* The names in each group of each optimizer, in the form in which a module tree document lists groups. */
static tsr_name_list *list_groups(scene *s, const cJSON *optims, size_t *count)
{
    tsr_name_list *lists = tsr_arena_array(s->g->arena, 64, sizeof *lists, NULL);
    *count = 0;
    for (const cJSON *o = optims->child; o; o = o->next) {
        for (const cJSON *group = o->child; group; group = group->next) {
            tsr_str *names = tsr_arena_array(s->g->arena, 64, sizeof *names, NULL);
            lists[*count] = (tsr_name_list){names, 0};
            for (const cJSON *n = group->child; n; n = n->next) names[lists[*count].count++] = tsr_str_from(n->valuestring);
            if (lists[*count].count) ++*count; /* a group without parameters leaves no trace in the flat form */
        }
    }
    return lists;
}

static void check_unflatten(scene *s)
{
    const cJSON *want = golden_get(s->json, "unflattened");
    if (cJSON_GetArraySize(want) != 1 || cJSON_GetObjectItem(want->child, "error")) return;
    size_t count;
    tsr_name_list *groups = list_groups(s, golden_get(s->json, "names"), &count);
    const tsr_value *flat = golden_value(s->g, golden_get(s->json, "flat")), *out;
    ok(s, tsr_optim_unflatten(flat, &(tsr_unflatten){s->params, NULL, 0, NULL, NULL, NULL}, &s->g->host, s->g->arena, &out,
                              &s->err));
    /* PyTorch keeps the order of the live optimizer's options, which is also that of the flat form */
    same(s, out, want->child, false);
    ok(s, tsr_optim_unflatten(flat, &(tsr_unflatten){s->params, groups, count, NULL, NULL, NULL}, &s->g->host, s->g->arena,
                              &out, &s->err));
    same(s, out, want->child, false);
    ok(s, tsr_optim_unflatten(flat, &(tsr_unflatten){NULL, NULL, 0, NULL, NULL, NULL}, &s->g->host, s->g->arena, &out,
                              &s->err));
    if (tsr_value_get(out, TSR_STR("state"))->count) return;
    /* Without state, there are no names for which to add {}. */
    assert_int_equal(tsr_value_get(out, TSR_STR("param_groups"))->count, 1);
}

static void test_optim_fqn_keyed__A9_unflatten(void **state)
{
    (void)state;
    for_all(check_unflatten);
}

static void check_ids(scene *s)
{
    const tsr_value *parts[4], *merged, *native;
    size_t count = 0;
    const cJSON *optim_names = golden_get(s->json, "names")->child;
    for (const cJSON *n = golden_get(s->json, "natives")->child; n; n = n->next, optim_names = optim_names->next) {
        tsr_name_list lists[8];
        size_t groups = 0;
        for (const cJSON *group = optim_names->child; group; group = group->next) {
            tsr_str *names = tsr_arena_array(s->g->arena, 64, sizeof *names, NULL);
            lists[groups] = (tsr_name_list){names, 0};
            for (const cJSON *one = group->child; one; one = one->next)
                names[lists[groups].count++] = tsr_str_from(one->valuestring);
            groups++;
        }
        ok(s, tsr_optim_to_fqn(golden_value(s->g, n), (tsr_group_names){lists, groups}, &s->g->host, s->g->arena,
                               &parts[count], &s->err));
        ok(s, tsr_optim_to_id(parts[count], &s->g->host, s->g->arena, &native, &s->err));
        same(s, native, n, true);
        count++;
    }
    ok(s, tsr_optim_merge(parts, count, &s->g->host, s->g->arena, &merged, &s->err));
    same(s, merged, golden_get(s->json, "nested"), true);
}

static void test_optim_fqn_keyed__A10_ids_to_names_and_merge(void **state)
{
    (void)state;
    for_all(check_ids);
}

/* Where names come from if they are not listed. */
static void check_naming(scene *s)
{
    const cJSON *natives = golden_get(s->json, "natives"), *names = golden_get(s->json, "names")->child;
    if (cJSON_GetArraySize(natives) != 1) return;
    const tsr_value *native = golden_value(s->g, natives->child);
    const tsr_group_naming how = {.modules = s->modules};
    tsr_group_names lists;
    tsr_status status = tsr_optim_name_groups(native, &how, &s->g->host, s->g->arena, &lists, &s->err);
    if (cJSON_GetArraySize(names) > 1) {
        assert_int_equal(status, TSR_E_USAGE);
        return;
    }
    ok(s, status);
    assert_int_equal(lists.count, 1);
    size_t at = 0;
    for (const cJSON *n = names->child->child; n; n = n->next, at++)
        assert_true(tsr_str_equal(lists.groups[0].names[at], tsr_str_from(n->valuestring)));
    assert_int_equal(lists.groups[0].count, at);
}

static void test_optim_fqn_keyed__A10_names_of_a_single_group(void **state)
{
    (void)state;
    for_all(check_naming);
}

static void check_split(scene *s)
{
    const tsr_value *nested = golden_value(s->g, golden_get(s->json, "nested")), *out;
    const cJSON *want = golden_get(s->json, "split")->child;
    for (const cJSON *optim = golden_get(s->json, "names")->child; optim; optim = optim->next, want = want->next) {
        tsr_optimizer_group groups[8];
        size_t group_count = 0;
        for (const cJSON *group = optim->child; group; group = group->next) {
            size_t *params = tsr_arena_array(s->g->arena, 64, sizeof *params, NULL);
            groups[group_count] = (tsr_optimizer_group){params, 0};
            for (const cJSON *n = group->child; n; n = n->next)
                params[groups[group_count].count++] = tsr_params_find(s->params, tsr_str_from(n->valuestring));
            group_count++;
        }
        const tsr_split how = {s->params, &(tsr_optimizer){groups, group_count}, true};
        ok(s, tsr_optim_split(nested, &how, &s->g->host, s->g->arena, &out, &s->err));
        same(s, out, want, false);
    }
}

static void test_optim_fqn_keyed__A11_split(void **state)
{
    (void)state;
    for_all(check_split);
}

/* ---- errors ---- */

#define S(text)              "{\"s\":\"" text "\"}"
#define STATE(pairs)         "[" S("state") ",{\"D\":[" pairs "]}]"
#define GROUP(params, rest)  "{\"D\":[[" S("params") ",{\"L\":[" params "]}]" rest "]}"
#define GROUPS(groups)       "[" S("param_groups") ",{\"L\":[" groups "]}]"
#define OPTIM(state, groups) "{\"D\":[" STATE(state) "," GROUPS(groups) "]}"
#define T1                   "{\"T\":[\"float32\",[1],[1]]}"
#define T2                   "{\"T\":[\"float32\",[1],[2]]}"

typedef tsr_status attempt(golden *g, const tsr_value *value, const tsr_value **out, tsr_error *err);

static tsr_status try_flatten(golden *g, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    return tsr_optim_flatten(value, &g->host, g->arena, out, err);
}

static tsr_status try_unflatten(golden *g, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    return tsr_optim_unflatten(value, &(tsr_unflatten){NULL, NULL, 0, NULL, NULL, NULL}, &g->host, g->arena, out, err);
}

static tsr_status try_unflatten_listed(golden *g, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    static const tsr_str names[] = {{"a", 1}, {"b", 1}};
    const tsr_name_list list = {names, 2};
    return tsr_optim_unflatten(value, &(tsr_unflatten){NULL, &list, 1, NULL, NULL, NULL}, &g->host, g->arena, out, err);
}

static tsr_status try_to_id(golden *g, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    return tsr_optim_to_id(value, &g->host, g->arena, out, err);
}

static tsr_status try_merge(golden *g, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    const tsr_value *twice[] = {value, value};
    return tsr_optim_merge(twice, 2, &g->host, g->arena, out, err);
}

static void test_optim_fqn_keyed__what_is_refused(void **state)
{
    (void)state;
    static const struct {
        attempt *run;
        const char *value;
        tsr_status status;
        const char *message;
    } rows[] = {
        {try_flatten, "{\"L\":[]}", TSR_E_FORMAT, "found list"},
        {try_flatten, "{\"D\":[]}", TSR_E_FORMAT, "no dict 'state'"},
        {try_flatten, "{\"D\":[" STATE("") "]}", TSR_E_FORMAT, "no list 'param_groups'"},
        {try_flatten, OPTIM("", "{\"D\":[]}"), TSR_E_FORMAT, "param_groups[0] has no list 'params'"},
        {try_flatten, OPTIM("[" S("w") "," T1 "]", ""), TSR_E_FORMAT, "the state of 'w' is a tensor"},
        {try_flatten, OPTIM("[" S("w") ",{\"D\":[[" S("x") "," S("y") "]]}]", ""), TSR_E_UNSUPPORTED,
         "'state.w.x' is a str"},
        {try_flatten, OPTIM("[" S("w") ",{\"D\":[[" S("x") ",{\"n\":0}]]}]", ""), TSR_E_UNSUPPORTED,
         "'state.w.x' is a None"},
        {try_flatten, OPTIM("[" S("w") ",{\"D\":[[" S("x") ",{\"L\":[]}]]}]", ""), TSR_E_UNSUPPORTED,
         "'state.w.x' is a list"},
        {try_flatten, OPTIM("[" S("w") ",{\"D\":[[" S("x.y") "," T1 "]]}],[" S("w.x") ",{\"D\":[[" S("y") "," T2 "]]}]", ""),
         TSR_E_FORMAT, "two different values have the flat name 'state.w.x.y': "},
        {try_flatten, OPTIM("", GROUP(S("w"), ",[" S("lr") ",{\"i\":1}]") "," GROUP(S("w"), ",[" S("lr") ",{\"i\":2}]")),
         TSR_E_FORMAT, "'param_groups.w.lr'"},
        {try_unflatten, "{\"D\":[[" S("epoch") ",{\"i\":1}]]}", TSR_E_FORMAT, "'epoch' is not a key"},
        {try_unflatten, "{\"D\":[[{\"i\":3},{\"i\":1}]]}", TSR_E_FORMAT, "(not a string)"},
        {try_unflatten, "{\"D\":[[" S("state.w.step") ",{\"i\":1}]]}", TSR_E_FORMAT, "does not belong to a parameter"},
        {try_unflatten, "{\"D\":[[" S("param_groups.lr") ",{\"i\":1}]]}", TSR_E_FORMAT, "does not belong to a parameter"},
        {try_unflatten,
         "{\"D\":[[" S("state.w.a") ",{\"i\":1}],[" S("state.w.a.b") ",{\"i\":1}],[" S("param_groups.w.lr") ",{\"i\":1}]]}",
         TSR_E_FORMAT, "both as a value and as a dict"},
        {try_unflatten,
         "{\"D\":[[" S("state.w.a.b") ",{\"i\":1}],[" S("state.w.a") ",{\"i\":1}],[" S("param_groups.w.lr") ",{\"i\":1}]]}",
         TSR_E_FORMAT, "'state.w.a' occurs twice"},
        {try_unflatten_listed, "{\"D\":[[" S("param_groups.a.lr") ",{\"i\":1}],[" S("param_groups.b.lr") ",{\"i\":2}]]}",
         TSR_E_FORMAT, "'a' and 'b' are in the same group, but differ in 'lr': "},
        {try_unflatten_listed, "{\"D\":[[" S("param_groups.a.lr") ",{\"i\":1}]]}", TSR_E_FORMAT,
         "'b' of the listed groups has no param_groups key"},
        {try_unflatten_listed,
         "{\"D\":[[" S("param_groups.a.lr") ",{\"i\":1}],[" S("param_groups.b.lr") ",{\"i\":1}],[" S(
             "param_groups.c.lr") ",{\"i\":1}]]}",
         TSR_E_FORMAT, "'c' is not in any"},
        {try_to_id, OPTIM("[" S("w") ",{\"D\":[]}]", GROUP("", "")), TSR_E_FORMAT,
         "state for 'w', which is not in any param group"},
        {try_to_id, OPTIM("", GROUP(S("w") "," S("w"), "")), TSR_E_FORMAT, "'w' occurs twice"},
        {try_merge, OPTIM("[" S("w") ",{\"D\":[]}]", GROUP(S("w"), "")), TSR_E_FORMAT, "two optimizers have state for 'w'"},
    };
    golden g = golden_open("optim.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_error err = {0};
        const tsr_value *out;
        tsr_status status = rows[i].run(&g, golden_value(&g, golden_parse(&g, rows[i].value)), &out, &err);
        if (status != rows[i].status || !strstr(err.message, rows[i].message))
            fail_msg("row %zu gave %d: %s", i, status, err.message);
    }
    golden_close(&g);
}

/* A flat state dict may have been sorted, or built key by key. */
static void test_optim_fqn_keyed__A9_options_come_in_any_order(void **state)
{
    (void)state;
    static const char same[] = "{\"D\":[[" S("param_groups.a.lr") ",{\"i\":1}],[" S("param_groups.a.eps") ",{\"i\":2}],[" S(
        "param_groups.b.eps") ",{\"i\":2}],[" S("param_groups.b.lr") ",{\"i\":1}]]}";
    static const char less[] = "{\"D\":[[" S("param_groups.a.lr") ",{\"i\":1}],[" S("param_groups.b.eps") ",{\"i\":2}],[" S(
        "param_groups.b.lr") ",{\"i\":1}]]}";
    attempt *const ways[] = {try_unflatten, try_unflatten_listed};
    golden g = golden_open("optim.json");
    for (size_t i = 0; i < 2; i++) {
        tsr_error err = {0};
        const tsr_value *out;
        assert_int_equal(ways[i](&g, golden_value(&g, golden_parse(&g, same)), &out, &err), TSR_OK);
        const tsr_value *groups = tsr_value_get(out, TSR_STR("param_groups"));
        assert_int_equal(groups->count, 1);
        assert_int_equal(tsr_value_get(groups->items[0], TSR_STR("params"))->count, 2);
        assert_int_equal(tsr_value_get(groups->items[0], TSR_STR("eps"))->as.integer, 2);
    }
    const tsr_value *out;
    tsr_error err = {0};
    assert_int_equal(try_unflatten_listed(&g, golden_value(&g, golden_parse(&g, less)), &out, &err), TSR_E_FORMAT);
    assert_non_null(strstr(err.message, "'a' and 'b' are in the same group, but only one of them has 'eps'"));
    assert_int_equal(try_unflatten(&g, golden_value(&g, golden_parse(&g, less)), &out, &err), TSR_OK);
    assert_int_equal(tsr_value_get(out, TSR_STR("param_groups"))->count, 2);
    golden_close(&g);
}

/* Deep nesting and shared dicts must stop at the limits, without overflowing the stack or running for years. */
static void test_optim_fqn_keyed__bombs_end_at_the_limits(void **state)
{
    (void)state;
    golden g = golden_open("optim.json");
    const tsr_value *leaf = tsr_value_int(g.arena, 1, NULL), *dict = leaf, *out;
    for (int i = 0; i < 40; i++) { /* 2^40 paths */
        const tsr_value **items = tsr_arena_array(g.arena, 4, sizeof *items, NULL);
        items[0] = tsr_value_str(g.arena, TSR_STR("a"), NULL);
        items[2] = tsr_value_str(g.arena, TSR_STR("b"), NULL);
        items[1] = items[3] = dict;
        dict = tsr_value_items(g.arena, TSR_VALUE_DICT, items, 4, NULL);
    }
    const tsr_value *groups = tsr_value_items(g.arena, TSR_VALUE_LIST, NULL, 0, NULL);
    const tsr_value *optim[] = {tsr_value_str(g.arena, TSR_STR("state"), NULL), dict,
                                tsr_value_str(g.arena, TSR_STR("param_groups"), NULL), groups};
    g.host.limits.expansion = 100000;
    assert_int_equal(
        tsr_optim_flatten(tsr_value_items(g.arena, TSR_VALUE_DICT, optim, 4, NULL), &g.host, g.arena, &out, NULL),
        TSR_E_LIMIT);
    g.host.limits.depth = 8;
    assert_int_equal(
        tsr_optim_flatten(tsr_value_items(g.arena, TSR_VALUE_DICT, optim, 4, NULL), &g.host, g.arena, &out, NULL),
        TSR_E_LIMIT);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_fqn_keyed__A9_flatten),
        cmocka_unit_test(test_optim_fqn_keyed__A9_unflatten),
        cmocka_unit_test(test_optim_fqn_keyed__A10_ids_to_names_and_merge),
        cmocka_unit_test(test_optim_fqn_keyed__A10_names_of_a_single_group),
        cmocka_unit_test(test_optim_fqn_keyed__A11_split),
        cmocka_unit_test(test_optim_fqn_keyed__what_is_refused),
        cmocka_unit_test(test_optim_fqn_keyed__A9_options_come_in_any_order),
        cmocka_unit_test(test_optim_fqn_keyed__bombs_end_at_the_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
