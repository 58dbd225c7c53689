/* Module tree documents of real models (tests/golden/fqns.json, optim.json): read, written, and read again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
/* cmocka.h needs the headers above. */
#include <cjson/cJSON.h>
#include <cmocka.h>
#include <stdio.h>

#include "tessera/modules.h"
#include "tessera/sys/catalog.h"

static const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = {64, 1u << 20, 1u << 26, 1u << 28, 1u << 20}};

typedef struct text {
    char data[1 << 18];
    size_t size;
} text;

static tsr_status append(void *ctx, const char *data, size_t size, tsr_error *err)
{
    (void)err;
    text *t = ctx;
    assert_true(t->size + size < sizeof t->data);
    memcpy(t->data + t->size, data, size);
    t->size += size;
    t->data[t->size] = 0;
    return TSR_OK;
}

static cJSON *read_golden(const char *name)
{
    static char content[1 << 20];
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", TSR_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("no %s", path);
    content[fread(content, 1, sizeof content - 1, f)] = 0;
    fclose(f);
    return cJSON_Parse(content);
}

/* A tree does not store that a module has an empty dict of modifiers. */
static void drop_empty_modifiers(cJSON *json)
{
    cJSON *modifiers = cJSON_GetObjectItemCaseSensitive(json, "fqn_modifiers");
    if (modifiers && !modifiers->child) cJSON_DeleteItemFromObjectCaseSensitive(json, "fqn_modifiers");
    for (cJSON *c = json->child; c; c = c->next) drop_empty_modifiers(c);
}

static void check_round_trip(const char *where, const char *document)
{
    static text first, second;
    first.size = second.size = 0;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_modules_document doc, again;
    tsr_error err = {0};
    assert_int_equal(tsr_modules_parse(tsr_str_from(document), &host, arena, &doc, NULL), TSR_OK);
    if (tsr_modules_write(&doc, &tsr_allocator_libc, append, &first, &err) != TSR_OK) fail_msg("%s: %s", where, err.message);
    cJSON *wanted = cJSON_Parse(document), *got = cJSON_Parse(first.data);
    drop_empty_modifiers(wanted);
    if (!cJSON_Compare(wanted, got, true)) fail_msg("%s: written as %.400s", where, first.data);
    assert_int_equal(tsr_modules_parse((tsr_str){first.data, first.size}, &host, arena, &again, NULL), TSR_OK);
    assert_int_equal(tsr_modules_write(&again, &tsr_allocator_libc, append, &second, NULL), TSR_OK);
    assert_string_equal(first.data, second.data);
    cJSON_Delete(got);
    cJSON_Delete(wanted);
    tsr_arena_free(arena);
}

static void test_documents_modules__real_trees_come_back_as_they_were(void **state)
{
    (void)state;
    static const char *const goldens[] = {"fqns.json", "optim.json"};
    unsigned count = 0;
    for (size_t g = 0; g < 2; g++) {
        cJSON *golden = read_golden(goldens[g]);
        for (const cJSON *one = cJSON_GetObjectItemCaseSensitive(golden, "cases")->child; one; one = one->next, count++) {
            char *document = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(one, "modules"));
            check_round_trip(one->string, document);
            cJSON_free(document);
        }
        cJSON_Delete(golden);
    }
    assert_true(count > 20);
}

#define DOCUMENT(rest) "{\"schema\":\"tessera.modules/1\",\"root\":" rest "}"
#define FULL(parameters, children) \
    "{\"class\":\"M\",\"wrapper\":\"none\",\"parameters\":{" parameters \
    "},\"buffers\":{},\"extra_state\":false,\"children\":{" children "}}"

static void test_documents_modules__identities_groups_and_shared_modules(void **state)
{
    (void)state;
    check_round_trip(
        "identities",
        DOCUMENT(FULL("\"a\":{\"shape\":[],\"requires_grad\":true,\"id\":7},\"b\":{\"shape\":[2,0],\"dtype\":"
                      "\"int64\",\"requires_grad\":false,\"id\":\"seven \\\" 7\"},\"c\":{\"shape\":[1],"
                      "\"requires_grad\":true,\"id\":0.5},\"d\":{\"shape\":[1],\"requires_grad\":true,\"id\":true}",
                      "\"x\":" FULL("", "\"y\":" FULL("", "")) ",\"again\":{\"same_as\":\"x.y\"}")));
    check_round_trip("groups", "{\"schema\":\"tessera.modules/1\",\"root\":" FULL("", "") ",\"groups\":[[\"a\",\"b\"],[]]}");
}

static void test_documents_modules__cycles_and_depth(void **state)
{
    (void)state;
    static text out;
    out.size = 0;
    tsr_module cycle = {.class_name = TSR_STR("C")};
    const tsr_module_child self = {TSR_STR("self"), &cycle};
    cycle.children = &self;
    cycle.child_count = 1;
    assert_int_equal(tsr_modules_write(&(tsr_modules_document){.root = &cycle}, &tsr_allocator_libc, append, &out, NULL),
                     TSR_OK);
    assert_non_null(strstr(out.data, "\"self\":{\"same_as\":\"\"}"));
    tsr_module chain[29];
    tsr_module_child links[29];
    for (size_t depth = 28; depth <= 29; depth++) {
        tsr_error err = {0};
        for (size_t i = 0; i < depth; i++) {
            links[i] = (tsr_module_child){TSR_STR("m"), &chain[i + 1]};
            chain[i] = (tsr_module){.class_name = TSR_STR("C"), .children = &links[i], .child_count = i + 1 < depth};
        }
        out.size = 0;
        assert_int_equal(tsr_modules_write(&(tsr_modules_document){.root = chain}, &tsr_allocator_libc, append, &out, &err),
                         depth == 28 ? TSR_OK : TSR_E_LIMIT);
        cJSON *parsed = depth == 28 ? cJSON_Parse(out.data) : NULL;
        assert_true(depth == 29 || parsed);
        cJSON_Delete(parsed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_modules__real_trees_come_back_as_they_were),
        cmocka_unit_test(test_documents_modules__identities_groups_and_shared_modules),
        cmocka_unit_test(test_documents_modules__cycles_and_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
