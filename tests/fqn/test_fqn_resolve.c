/* Compares names in a module tree with real PyTorch: tests/golden/fqns.json, made by tests/golden/make_fqns.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/json.h"
#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/names.h"

typedef struct fixture {
    tsr_host host;
    cJSON *golden;
} fixture;

typedef struct tree {
    tsr_arena *arena;
    tsr_modules *modules;
} tree;

static char *read_whole(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    char *text = read_whole(TSR_TEST_DATA "/tests/golden/fqns.json");
    f->golden = cJSON_Parse(text);
    free(text);
    *state = f;
    return f->golden ? 0 : -1;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    cJSON_Delete(f->golden);
    free(f);
    return 0;
}

static tree open_tree(const fixture *f, const char *text)
{
    tsr_error err = {0};
    tree t = {tsr_arena_new(&tsr_allocator_libc, 0, &err), NULL};
    tsr_modules_document document;
    if (tsr_modules_parse(tsr_str_from(text), &f->host, t.arena, &document, &err) != TSR_OK) fail_msg("%s", err.message);
    if (tsr_modules_new(document.root, &f->host, &t.modules, &err) != TSR_OK) fail_msg("%s", err.message);
    return t;
}

static tree open_case(const fixture *f, const cJSON *one)
{
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(one, "modules"));
    tree t = open_tree(f, text);
    cJSON_free(text);
    return t;
}

static void close_tree(tree t)
{
    tsr_modules_free(t.modules);
    tsr_arena_free(t.arena);
}

static bool same_set(const tsr_str *fqns, size_t count, const cJSON *list)
{
    if ((size_t)cJSON_GetArraySize(list) != count) return false;
    for (const cJSON *want = list->child; want; want = want->next) {
        bool found = false;
        for (size_t i = 0; i < count; i++) found = found || tsr_str_equal(fqns[i], tsr_json_text_of(want));
        if (!found) return false;
    }
    return true;
}

static void check_names(const cJSON *one, tree t, const char *section, const tsr_fqn_options *options)
{
    for (const cJSON *want = cJSON_GetObjectItemCaseSensitive(one, section)->child; want; want = want->next) {
        tsr_name name;
        tsr_error err = {0};
        tsr_status status = tsr_fqn_resolve(t.modules, tsr_json_key_of(want), options, t.arena, &name, &err);
        if (cJSON_IsArray(want) != (status == TSR_OK))
            fail_msg("%s: '%s': status %d, %s", one->string, want->string, status, err.message);
        if (status != TSR_OK) {
            const char *type = cJSON_GetObjectItemCaseSensitive(want, "error")->valuestring;
            assert_int_equal(status, strcmp(type, "AttributeError") == 0 ? TSR_E_NOT_FOUND : TSR_E_FORMAT);
        } else if (!same_set(name.fqns, name.fqn_count, want)) {
            fail_msg("%s: '%s' became '%.*s', …", one->string, want->string, TSR_STR_ARG(name.fqns[0]));
        }
    }
}

static void test_fqn_resolve__A2_as_get_fqns(void **state)
{
    const fixture *f = *state;
    const tsr_fqn_options keep = {.keep_ddp = true, .keep_compiler = true};
    for (const cJSON *one = cJSON_GetObjectItemCaseSensitive(f->golden, "cases")->child; one; one = one->next) {
        tree t = open_case(f, one);
        check_names(one, t, "get_fqns", NULL);
        check_names(one, t, "with_prefixes", &keep);
        close_tree(t);
    }
}

static void test_fqn_resolve__A3_as_iterate_valid_model_state(void **state)
{
    const fixture *f = *state;
    static const char *const kinds[] = {"parameter", "buffer", "extra"};
    for (const cJSON *one = cJSON_GetObjectItemCaseSensitive(f->golden, "cases")->child; one; one = one->next) {
        tree t = open_case(f, one);
        tsr_state_item *items;
        size_t count, at = 0;
        assert_int_equal(tsr_fqn_iterate(t.modules, &f->host, t.arena, &items, &count, NULL), TSR_OK);
        const cJSON *want = cJSON_GetObjectItemCaseSensitive(one, "iterate");
        if ((size_t)cJSON_GetArraySize(want) != count)
            fail_msg("%s: %zu items, PyTorch has %d", one->string, count, cJSON_GetArraySize(want));
        for (want = want->child; want; want = want->next, at++) {
            if (!tsr_str_equal(items[at].raw, tsr_json_text_of(want->child)))
                fail_msg("%s: item %zu is '%.*s'", one->string, at, TSR_STR_ARG(items[at].raw));
            assert_string_equal(kinds[items[at].kind], want->child->next->valuestring);
        }
        close_tree(t);
    }
}

/* Every tensor is found under its raw name and under its canonical one, except for originals in flat parameters. */
static void test_fqn_resolve__tensors_by_name(void **state)
{
    const fixture *f = *state;
    unsigned found = 0;
    for (const cJSON *one = cJSON_GetObjectItemCaseSensitive(f->golden, "cases")->child; one; one = one->next) {
        tree t = open_case(f, one);
        tsr_state_item *items;
        size_t count;
        assert_int_equal(tsr_fqn_iterate(t.modules, &f->host, t.arena, &items, &count, NULL), TSR_OK);
        for (size_t i = 0; i < count; i++) {
            const char *raw = tsr_arena_format(t.arena, NULL, "%.*s", TSR_STR_ARG(items[i].raw)).data;
            tsr_name name;
            if (items[i].kind == TSR_STATE_EXTRA) continue;
            const tsr_module_tensor *tensor = tsr_modules_find(t.modules, raw);
            if (!tensor || !tsr_str_equal(tensor->identity, items[i].tensor->identity)) fail_msg("%s: %s", one->string, raw);
            assert_int_equal(tsr_fqn_resolve(t.modules, items[i].raw, NULL, t.arena, &name, NULL), TSR_OK);
            const char *fqn = tsr_arena_format(t.arena, NULL, "%.*s", TSR_STR_ARG(name.fqns[0])).data;
            tensor = strstr(raw, "_flat_param") ? items[i].tensor : tsr_modules_find(t.modules, fqn);
            if (!tensor || !tsr_str_equal(tensor->identity, items[i].tensor->identity))
                fail_msg("%s: %s as %s", one->string, raw, fqn);
            found++;
        }
        static const char *const none[] = {"", ".", "nosuch", "emb", "emb.", ".weight", "emb.nosuch", "emb.weight.more"};
        for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) assert_null(tsr_modules_find(t.modules, none[i]));
        close_tree(t);
    }
    assert_true(found > 100);
}

/* Every module is found under its raw name, and an FSDP1 unit also under the name of the module that it wraps. */
static void test_fqn_resolve__modules_by_name(void **state)
{
    const fixture *f = *state;
    unsigned found = 0, units = 0;
    for (const cJSON *one = cJSON_GetObjectItemCaseSensitive(f->golden, "cases")->child; one; one = one->next) {
        tree t = open_case(f, one);
        tsr_named_module *named;
        size_t count;
        assert_int_equal(tsr_fqn_named_modules(t.modules, &f->host, t.arena, &named, &count, NULL), TSR_OK);
        for (size_t i = 0; i < count; i++, found++) {
            const char *raw = tsr_arena_format(t.arena, NULL, "%.*s", TSR_STR_ARG(named[i].raw)).data;
            const char *clean = raw + strlen("_fsdp_wrapped_module.");
            if (tsr_modules_find_module(t.modules, raw) != named[i].module) fail_msg("%s: '%s'", one->string, raw);
            if (strstr(raw, "_fsdp_wrapped_module.") != raw || strstr(clean, "_wrapped_module")) continue;
            if (tsr_modules_find_module(t.modules, clean) != named[i].module) fail_msg("%s: '%s'", one->string, clean);
            units++;
        }
        static const char *const none[] = {".", "nosuch", "emb.", "emb.weight", "emb.nosuch", ".emb"};
        for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
            assert_int_equal(tsr_modules_find_module(t.modules, none[i]), TSR_NO_MODULE);
        close_tree(t);
    }
    if (found < 100 || units < 5) fail_msg("%u modules, %u in units", found, units);
}

static void test_fqn_resolve__A4_as_verify_options(void **state)
{
    const fixture *f = *state;
    for (const cJSON *one = cJSON_GetObjectItemCaseSensitive(f->golden, "cases")->child; one; one = one->next) {
        tree t = open_case(f, one);
        tsr_params *params;
        assert_int_equal(tsr_params_new(t.modules, &f->host, &params, NULL), TSR_OK);
        const cJSON *want = cJSON_GetObjectItemCaseSensitive(one, "params");
        if ((size_t)cJSON_GetArraySize(want) != tsr_params_count(params))
            fail_msg("%s: %zu tensors", one->string, tsr_params_count(params));
        size_t at = 0;
        for (want = want->child; want; want = want->next, at++) {
            const tsr_param *p = tsr_params_at(params, at);
            if (!same_set(p->fqns, p->fqn_count, cJSON_GetObjectItemCaseSensitive(want, "fqns")))
                fail_msg("%s: names of tensor %zu", one->string, at);
            assert_int_equal(p->shared, cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(want, "shared")));
            for (size_t i = 0; i < p->fqn_count; i++) assert_int_equal(tsr_params_find(params, p->fqns[i]), at);
        }
        assert_true(tsr_params_find(params, TSR_STR("no such")) == SIZE_MAX);
        tsr_params_free(params);
        close_tree(t);
    }
}

static void test_fqn_resolve__says_what_it_removed(void **state)
{
    const fixture *f = *state;
    tree t = open_tree(f, "{\"schema\":\"tessera.modules/"
                          "1\",\"root\":{\"class\":\"DDP\",\"wrapper\":\"ddp\",\"children\":{\"module\":{\"class\":\"W\","
                          "\"wrapper\":\"checkpoint\",\"children\":{\"_checkpoint_wrapped_module\":{\"class\":\"M\","
                          "\"parameters\":{\"w\":{\"shape\":[1]}}}}}}}}");
    tsr_name name;
    assert_int_equal(tsr_fqn_resolve(t.modules, TSR_STR("module._checkpoint_wrapped_module.w"), NULL, t.arena, &name, NULL),
                     TSR_OK);
    assert_true(tsr_str_equal(name.fqns[0], TSR_STR("w")));
    assert_int_equal(name.removed_count, 2);
    assert_true(tsr_str_equal(name.removed[0].component, TSR_STR("module")));
    assert_true(tsr_str_equal(name.removed[1].component, TSR_STR("_checkpoint_wrapped_module")));
    close_tree(t);
}

#define TREE(rest)   "{\"schema\":\"tessera.modules/1\",\"root\":" rest "}"
#define W(shape, id) "{\"shape\":" shape ",\"id\":" id "}"

static void test_fqn_resolve__bad_trees_are_refused(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"schema\":\"tessera.modules/2\",\"root\":{}}", "expected tessera.modules/1"},
        {TREE("3"), "root"},
        {TREE("{}"), "class"},
        {TREE("{\"class\":\"M\",\"wrapper\":\"fsdp3\"}"), "'fsdp3'"},
        {TREE("{\"class\":\"M\",\"wrapper\":\"ddp\"}"), "no module 'module'"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"a.b\":" W("[1]", "1") "}}"), "contain a dot"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"\":" W("[1]", "1") "}}"), "empty"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"a\":" W("[1]", "1") "},\"buffers\":{\"a\":" W("[1]", "2") "}}"), "twice"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"a\":" W("[1]", "1") ",\"b\":" W("[2]", "1") "}}"),
         "'a' and 'b' share the id 1"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"a\":" W("[1]", "[]") "}}"), "id"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"a\":" W("[-1]", "1") "}}"), "parameters.a"},
        {TREE("{\"class\":\"M\",\"parameters\":{\"a\":{\"shape\":[1],\"dtype\":\"float31\"}}}"), "'float31'"},
        {TREE("{\"class\":\"M\",\"children\":{\"a\":{\"same_as\":\"\"}}}"), "contains itself"},
        {TREE("{\"class\":\"M\",\"children\":{\"a\":{\"same_as\":\"b\"}}}"), "does not describe a module"},
        {TREE("{\"same_as\":\"\"}"), "same as"},
        {TREE("{\"class\":\"M\",\"flat_param\":{\"params\":[]}}"), "only fsdp1 wrappers"},
        {TREE("{\"class\":\"F\",\"wrapper\":\"fsdp1\",\"children\":{\"_fsdp_wrapped_module\":{\"class\":\"M\"}},"
              "\"flat_param\":{\"params\":[{\"fqn\":\"x.w\",\"shape\":[1]}]}}"),
         "no module 'x'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_error err = {0};
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
        tsr_modules_document document;
        tsr_modules *modules = NULL;
        tsr_status status = tsr_modules_parse(tsr_str_from(rows[i].text), &f->host, arena, &document, &err);
        if (status == TSR_OK) status = tsr_modules_new(document.root, &f->host, &modules, &err);
        if (status != TSR_E_FORMAT || !strstr(err.message, rows[i].message))
            fail_msg("%s gave %d: %s", rows[i].text, status, err.message);
        tsr_arena_free(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fqn_resolve__A2_as_get_fqns),
        cmocka_unit_test(test_fqn_resolve__A3_as_iterate_valid_model_state),
        cmocka_unit_test(test_fqn_resolve__tensors_by_name),
        cmocka_unit_test(test_fqn_resolve__modules_by_name),
        cmocka_unit_test(test_fqn_resolve__A4_as_verify_options),
        cmocka_unit_test(test_fqn_resolve__says_what_it_removed),
        cmocka_unit_test(test_fqn_resolve__bad_trees_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
