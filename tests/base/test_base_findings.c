#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "support/failing_allocator.h"
#include "tessera/findings.h"
#include "tessera/sys/finding_add.h"

static void test_base_findings__rules_are_sorted_and_complete(void **state)
{
    (void)state;
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(tsr_rule_find(rules[i].id), &rules[i]);
        assert_non_null(strchr(rules[i].id, '/'));
        assert_true(strlen(rules[i].summary) > 10 && strlen(rules[i].help) > 10);
        if (i) assert_true(strcmp(rules[i - 1].id, rules[i].id) < 0);
    }
    assert_null(tsr_rule_find("zip/no-such-rule"));
}

static void test_base_findings__keeps_place_and_level(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_findings *f = tsr_findings_new(&tsr_allocator_libc, 0, &err);
    assert_int_equal(tsr_finding_add(f, "zip/crc", (tsr_place){TSR_STR("a.pt"), 12, TSR_STR("w")}, &err, "is %d", 3),
                     TSR_OK);
    assert_int_equal(tsr_finding_add_at(f, (tsr_rated_rule){"zip/crc", TSR_NOTE}, TSR_NOWHERE, &err, "\033"), TSR_OK);
    assert_int_equal(tsr_findings_count(f), 2);
    const tsr_finding *first = tsr_findings_at(f, 0);
    assert_int_equal(first->level, TSR_ERROR);
    assert_int_equal(first->byte_offset, 12);
    assert_true(tsr_str_equal(first->message, TSR_STR("is 3")));
    assert_true(tsr_str_equal(tsr_findings_at(f, 1)->message, TSR_STR("\\x1b")));
    assert_int_equal(tsr_findings_total(f, TSR_NOTE), 1);
    tsr_findings_free(f);
}

static void test_base_findings__endless_names_are_cut_at_a_character(void **state)
{
    (void)state;
    static char name[9001];
    for (size_t i = 0; i < 9000; i += 3) memcpy(name + i, "\xe2\x82\xac", 3);
    tsr_findings *f = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
    assert_int_equal(tsr_finding_add(f, "zip/crc", (tsr_place){{name, 9000}, 0, {name, 4096}}, NULL, "x"), TSR_OK);
    assert_int_equal(tsr_findings_at(f, 0)->file.size, 4095);
    assert_int_equal(tsr_findings_at(f, 0)->fqn.size, 4096);
    tsr_findings_free(f);
}

static void test_base_findings__counts_beyond_the_bound(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_findings *f = tsr_findings_new(&tsr_allocator_libc, 5, &err);
    for (int i = 0; i < 100; i++) tsr_finding_add(f, "zip/crc", TSR_NOWHERE, &err, "x");
    assert_int_equal(tsr_findings_count(f), 5);
    assert_int_equal(tsr_findings_total(f, TSR_ERROR), 100);
    tsr_findings_free(f);
}

static void test_base_findings__survives_every_allocation_failure(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_findings *f = tsr_findings_new(&failing.allocator, 0, NULL);
        tsr_status status = f ? TSR_OK : TSR_E_NOMEM;
        for (int i = 0; i < 40 && status == TSR_OK; i++) {
            status = tsr_finding_add(f, "zip/crc", (tsr_place){TSR_STR("f"), 0, TSR_STR("w")}, NULL, "%d", i);
        }
        tsr_findings_free(f);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_findings__rules_are_sorted_and_complete),
        cmocka_unit_test(test_base_findings__keeps_place_and_level),
        cmocka_unit_test(test_base_findings__endless_names_are_cut_at_a_character),
        cmocka_unit_test(test_base_findings__counts_beyond_the_bound),
        cmocka_unit_test(test_base_findings__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
