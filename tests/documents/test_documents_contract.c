/* The documents from which contracts are read: layouts with rules and digests, module trees, index files, lists of names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/document_read.h"
#include "tessera/glob.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"

static const tsr_host *host_of(const tsr_allocator *allocator)
{
    static tsr_host host;
    host = (tsr_host){.allocator = allocator, .limits = tsr_limits_default()};
    return &host;
}

#define LAYOUT(entries, more) "{\"schema\": \"tessera.layout/1\", \"entries\": [" entries "]" more "}"
#define ENTRY                 "{\"fqn\": \"a.w\", \"kind\": \"tensor\", \"dtype\": \"int8\", \"shape\": [2, 3]"
#define HASH(algorithm)       ", \"hash\": {\"algorithm\": \"" algorithm "\", \"digest\": \"00ff\"}"
#define RULE(text)            ", \"rules\": [" text "]"

static const struct {
    const char *text;
    tsr_status status;
    const char *message; /* a part of the message */
} refusals[] = {
    {"{", TSR_E_FORMAT, ""},
    {"{}", TSR_E_FORMAT, "schema"},
    {"[]", TSR_E_FORMAT, "object"},
    {"{\"schema\": \"tessera.plan/1\"}", TSR_E_FORMAT, "tessera.plan/1"},
    {"{\"weight_map\": 3}", TSR_E_FORMAT, "weight_map"},
    {"{\"schema\": \"tessera.modules/1\"}", TSR_E_FORMAT, "root"},
    {"a\nb\0c\n", TSR_E_FORMAT, "NUL"},
    {LAYOUT(ENTRY HASH("md5") "}", ""), TSR_E_FORMAT, "'md5' at entries[0].hash"},
    {LAYOUT(ENTRY HASH("xxh3") "}, " ENTRY HASH("sha256") "}", ""), TSR_E_FORMAT, "entries[1].hash"},
    {LAYOUT(ENTRY ", \"hash\": {}}", ""), TSR_E_FORMAT, "algorithm"},
    {LAYOUT(ENTRY ", \"hash\": 7}", ""), TSR_E_FORMAT, "expected an object at entries[0].hash"},
    {LAYOUT(ENTRY ", \"hash\": {\"algorithm\": \"xxh3\"}}", ""), TSR_E_FORMAT, "'digest'"},
    {LAYOUT("", ", \"rules\": 7"), TSR_E_FORMAT, "expected an array at rules"},
    {LAYOUT("", RULE("3")), TSR_E_FORMAT, "rules[0]"},
    {LAYOUT("", RULE("{\"match\": \"*\", \"allow\": 7}")), TSR_E_FORMAT, "expected an array at rules[0]"},
    {LAYOUT("", RULE("{\"match\": \"*\", \"dtypes\": 7}")), TSR_E_FORMAT, "expected an array at rules[0]"},
    {LAYOUT("", RULE("{\"match\": \"*\", \"dtypes\": [7]}")), TSR_E_FORMAT, "expected a string at rules[0]"},
    {LAYOUT("", RULE("")), TSR_OK, ""},
    {" \t\r\n[", TSR_E_FORMAT, ""},
    {"{\"weight_map\": {}}", TSR_OK, ""},
    {" \n", TSR_OK, ""},
    {LAYOUT("", RULE("{}")), TSR_E_FORMAT, "match"},
    {LAYOUT("", RULE("{\"match\": \"*\", \"allow\": [\"all\"]}")), TSR_E_FORMAT, "'all' at rules[0] cannot be allowed"},
    {LAYOUT("", RULE("{\"match\": \"*\", \"allow\": [1]}")), TSR_E_FORMAT, "string"},
    {LAYOUT("", RULE("{\"match\": \"*\"}, {\"match\": \"*\", \"dtypes\": [\"int9\"]}")), TSR_E_FORMAT, "'int9' at rules[1]"},
};

static void test_documents_contract__refusals_say_what_and_where(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        tsr_error err = {0};
        tsr_contract contract;
        const tsr_str text = {refusals[i].text, i == 6 ? 6 : strlen(refusals[i].text)};
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
        const tsr_status status = tsr_contract_read(text, host_of(&tsr_allocator_libc), arena, &contract, &err);
        if (status != refusals[i].status || !strstr(err.message, refusals[i].message))
            fail_msg("%s: status %d, '%s'", refusals[i].text, (int)status, err.message);
        tsr_arena_free(arena);
    }
}

static const char with_rules[] = LAYOUT(
    ENTRY HASH("sha256") "}, {\"fqn\": \"n\", \"kind\": \"object\"}",
    RULE(
        "{\"match\": \"a.*\", \"allow\": [\"missing\", \"value\"], \"dtypes\": [\"uint8\"]}, {\"match\": \"**\", \"allow\": [\"extra\"]}"));
static const char index_file[] = "{\"metadata\": {}, \"weight_map\": {\"b\": \"f\", \"a\": \"f\"}}";
static const char names[] = "# two\n\nx.y\r\n  z";
static const char modules[] =
    "{\"schema\": \"tessera.modules/1\", \"root\": {\"class\": \"Net\", \"wrapper\": \"none\", \"parameters\": {}, \"buffers\": {},"
    "\"extra_state\": true, \"children\": {\"l\": {\"class\": \"Linear\", \"wrapper\": \"none\", \"buffers\": {}, \"children\": {},"
    "\"parameters\": {\"weight\": {\"shape\": [4, 2], \"dtype\": \"float32\", \"requires_grad\": true}}}}}}";

static void read_all(const tsr_host *host, tsr_arena *arena, tsr_contract out[4], tsr_status status[4])
{
    const char *const texts[] = {with_rules, index_file, names, modules};
    tsr_error err = {0};
    for (int i = 0; i < 4; i++) status[i] = tsr_contract_read(tsr_str_from(texts[i]), host, arena, &out[i], &err);
}

static void test_documents_contract__says_what_the_documents_say(void **state)
{
    (void)state;
    tsr_contract c[4];
    tsr_status status[4];
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    read_all(host_of(&tsr_allocator_libc), arena, c, status);
    for (int i = 0; i < 4; i++) assert_int_equal(status[i], TSR_OK);

    c[0].match = tsr_glob_match;
    assert_int_equal(c[0].expected.entry_count, 2);
    assert_int_equal(c[0].algorithm, TSR_DIGEST_SHA256);
    assert_true(tsr_str_equal(c[0].digests[0], TSR_STR("00ff")));
    assert_int_equal(c[0].digests[1].size, 0);
    assert_int_equal(tsr_contract_allows(&c[0], TSR_STR("a.w")), TSR_MAY_MISS | TSR_ANY_VALUE);
    assert_int_equal(tsr_contract_allows(&c[0], TSR_STR("other.w")), TSR_MAY_EXCEED);
    assert_int_equal(c[0].rules[0].dtypes[0], TSR_UINT8);

    assert_int_equal(c[1].expected.entry_count, 2);
    assert_true(tsr_str_equal(c[1].expected.entries[1].fqn, TSR_STR("a")));
    assert_true(c[1].any_kind && c[2].any_kind && !c[3].any_kind);

    assert_int_equal(c[2].expected.entry_count, 2);
    assert_true(tsr_str_equal(c[2].expected.entries[0].fqn, TSR_STR("x.y")));
    assert_true(tsr_str_equal(c[2].expected.entries[1].fqn, TSR_STR("  z"))); /* names may begin with any character */

    assert_int_equal(c[3].expected.entry_count, 2);
    const tsr_entry *weight = &c[3].expected.entries[1]; /* state dicts begin with the state of the model itself */
    assert_true(tsr_str_equal(weight->fqn, TSR_STR("l.weight")));
    assert_int_equal(weight->dtype, TSR_FLOAT32);
    assert_int_equal(weight->shape[0], 4);
    assert_int_equal(c[3].expected.entries[0].kind, TSR_ENTRY_OBJECT);
    assert_true(c[3].object_trees && !c[0].object_trees);
    tsr_arena_free(arena);
}

static void test_documents_contract__every_allocation_failure_is_clean(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_contract c[4];
        tsr_status status[4] = {TSR_OK};
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, NULL);
        if (arena) read_all(host_of(&failing.allocator), arena, c, status);
        for (int i = 0; arena && i < 4; i++) assert_true(status[i] == TSR_OK || status[i] == TSR_E_NOMEM);
        tsr_arena_free(arena);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_contract__refusals_say_what_and_where),
        cmocka_unit_test(test_documents_contract__says_what_the_documents_say),
        cmocka_unit_test(test_documents_contract__every_allocation_failure_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
