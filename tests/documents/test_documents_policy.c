/* Policies: levels, baselines, and findings that are only counted. Failing allocations must not leak memory or lose a
 * finding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"

#define LIMITS \
    { \
        64, 1000, 1 << 20, 1 << 24, 1 << 20 \
    }
static const tsr_host host_libc = {.allocator = &tsr_allocator_libc, .limits = LIMITS};
static const char known_nan[] =
    "{\"schema\": \"tessera.findings/1\", \"findings\": ["
    "{\"rule\": \"values/nan\", \"fqn\": \"w\"}, {\"rule\": \"zip/crc\", \"file\": \"a.pt\", \"fqn\": \"w\"},"
    "{\"rule\": \"values/nan\", \"fqn\": \"bad\xEF\xBF\xBD\"}],"
    "\"summary\": {\"unlisted\": {\"values/bool\": 3, \"of/another-version\": 9}}}";

static tsr_place at(const char *file, const char *fqn)
{
    return (tsr_place){tsr_str_from(file), 7, tsr_str_from(fqn)};
}

static tsr_policy *policy_of(tsr_policy_scope scope, const char *const *rules, const char *baseline)
{
    tsr_error err = {0};
    tsr_policy *policy = tsr_policy_new(scope, &host_libc, &err);
    for (; *rules; rules++) assert_int_equal(tsr_policy_rule(policy, *rules, &err), TSR_OK);
    if (baseline) assert_int_equal(tsr_policy_baseline(policy, tsr_str_from(baseline), &err), TSR_OK);
    return policy;
}

static void test_documents_policy__findings_keep_their_order_and_get_levels(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_policy_result result = {0};
    tsr_findings *from = tsr_findings_new(&tsr_allocator_libc, 2, &err),
                 *to = tsr_findings_new(&tsr_allocator_libc, 0, &err);
    tsr_policy *policy =
        policy_of(TSR_POLICY_VALIDATE, (const char *[]){"values/*=error", "zip/crc-absent=off", NULL}, known_nan);
    tsr_finding_add(from, "values/nan", at(NULL, "v"), &err, "first");
    tsr_finding_add(from, "values/nan", at(NULL, "w"), &err, "known");
    tsr_finding_add(from, "values/nan", at(NULL, "x"), &err, "beyond what is stored");
    tsr_finding_add(from, "zip/crc", at("a.pt", "w"), &err, "known, whatever it says");
    tsr_finding_add(from, "zip/crc", at("b.pt", "w"), &err, "of another file");
    tsr_finding_add(from, "zip/crc-absent", TSR_NOWHERE, &err, "off");
    tsr_findings_count_more(from, tsr_rule_find("values/bool"), TSR_WARNING, 5);
    assert_int_equal(tsr_policy_findings(policy, from, to, &result, &err), TSR_OK);
    assert_int_equal(tsr_findings_count(to), 2);
    assert_true(tsr_str_equal(tsr_findings_at(to, 0)->message, TSR_STR("first")));
    assert_int_equal(tsr_findings_at(to, 0)->level, TSR_ERROR);
    assert_true(tsr_str_equal(tsr_findings_at(to, 1)->file, TSR_STR("b.pt")));
    assert_int_equal(tsr_findings_at(to, 1)->byte_offset, 7);
    assert_int_equal(result.left_out, 2 + 3);
    assert_int_equal(result.turned_off, 1);
    assert_int_equal(tsr_findings_unlisted(to, tsr_rule_find("values/nan"), TSR_ERROR), 1);
    assert_int_equal(tsr_findings_unlisted(to, tsr_rule_find("values/bool"), TSR_ERROR), 2);
    assert_int_equal(tsr_findings_total(to, TSR_ERROR), 2 + 1 + 2);
    assert_int_equal(tsr_findings_total(to, TSR_WARNING) + tsr_findings_total(to, TSR_NOTE), 0);
    tsr_policy_free(policy);
    tsr_findings_free(from);
    tsr_findings_free(to);
}

/* Documents have U+FFFD in place of bytes that are not UTF-8. */
static void test_documents_policy__names_are_known_as_documents_write_them(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_policy_result result = {0};
    tsr_findings *from = tsr_findings_new(&tsr_allocator_libc, 0, &err),
                 *to = tsr_findings_new(&tsr_allocator_libc, 0, &err);
    tsr_policy *policy = policy_of(TSR_POLICY_VALIDATE, (const char *[]){NULL}, known_nan);
    tsr_finding_add(from, "values/nan", at(NULL, "bad\xff"), &err, "known");
    tsr_finding_add(from, "values/nan", at(NULL, "bad"), &err, "new");
    tsr_finding_add(from, "values/nan", at("", ""), &err, "new");
    assert_int_equal(tsr_policy_findings(policy, from, to, &result, &err), TSR_OK);
    assert_int_equal(result.left_out, 1);
    assert_int_equal(tsr_findings_count(to), 2);
    tsr_policy_free(policy);
    tsr_findings_free(from);
    tsr_findings_free(to);
}

static const tsr_entry entries[] = {{.fqn = {"a", 1}}, {.fqn = {"b", 1}}, {.fqn = {"c", 1}}};

static void test_documents_policy__pairs_of_a_diff_keep_their_positions(void **state)
{
    (void)state;
    static const char known[] = "{\"schema\": \"tessera.diff/1\", \"added\": [\"c\"], \"removed\": [\"b\"], \"renamed\": [],"
                                "\"changed\": [{\"fqn\": \"a\", \"what\": [\"dtype\"]}]}";
    tsr_error err = {0};
    tsr_policy_result result = {0};
    tsr_diff_pair pairs[] = {{&entries[0], &entries[0], TSR_DIFF_DTYPE | TSR_DIFF_SHAPE},
                             {&entries[1], &entries[1], 0},
                             {&entries[1], &entries[1], TSR_DIFF_VALUE}};
    const tsr_entry *added[] = {&entries[1], &entries[2]}, *removed[] = {&entries[1]};
    const tsr_diff from = {pairs, 3, added, 2, removed, 1, NULL, 0, NULL, 0};
    tsr_diff to;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    tsr_policy *policy = policy_of(TSR_POLICY_DIFF, (const char *[]){"diff/value=off", "diff/added=note", NULL}, known);
    assert_int_equal(tsr_policy_diff(policy, &from, arena, &to, &result, &err), TSR_OK);
    assert_int_equal(to.pair_count, 3);
    assert_int_equal(to.pairs[0].what, TSR_DIFF_SHAPE);
    assert_int_equal(to.pairs[2].what, 0);
    assert_int_equal(pairs[2].what, TSR_DIFF_VALUE);
    assert_int_equal(to.added_count, 1);
    assert_ptr_equal(to.added[0], &entries[1]);
    assert_int_equal(to.removed_count, 0);
    assert_int_equal(result.left_out, 3);
    assert_int_equal(result.turned_off, 1);
    assert_int_equal(result.pairs, 1);
    assert_int_equal(result.totals[TSR_ERROR], 1);
    assert_int_equal(result.totals[TSR_NOTE], 1);
    tsr_policy_free(policy);
    tsr_arena_free(arena);
}

static void test_documents_policy__survives_every_allocation_failure(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_host host = {.allocator = &failing.allocator, .limits = LIMITS};
        tsr_policy_result result = {0};
        tsr_policy *policy = tsr_policy_new(TSR_POLICY_VALIDATE, &host, NULL);
        tsr_findings *from = tsr_findings_new(&failing.allocator, 0, NULL),
                     *to = tsr_findings_new(&failing.allocator, 0, NULL);
        tsr_status status = policy && from && to ? tsr_policy_baseline(policy, tsr_str_from(known_nan), NULL) : TSR_E_NOMEM;
        for (int i = 0; i < 20 && status == TSR_OK; i++)
            status = tsr_finding_add(from, "values/nan", at("f", i % 2 ? "w" : "v"), NULL, "%d", i);
        if (status == TSR_OK) status = tsr_policy_findings(policy, from, to, &result, NULL);
        if (status == TSR_OK) assert_int_equal(tsr_findings_count(to), 20);
        tsr_policy_free(policy);
        tsr_findings_free(from);
        tsr_findings_free(to);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_policy__findings_keep_their_order_and_get_levels),
        cmocka_unit_test(test_documents_policy__names_are_known_as_documents_write_them),
        cmocka_unit_test(test_documents_policy__pairs_of_a_diff_keep_their_positions),
        cmocka_unit_test(test_documents_policy__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
