/* Reports: each form for several paths, a findings document as the source of another form, and failures of memory and of the
 * callback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/sys/document.h"

#define LIMITS \
    { \
        64, 100000, 1 << 20, 1 << 24, 1 << 20 \
    }
static const tsr_host host_libc = {.allocator = &tsr_allocator_libc, .limits = LIMITS};

static tsr_place at(const char *file, uint64_t byte_offset, const char *fqn)
{
    return (tsr_place){tsr_str_from(file), byte_offset, tsr_str_from(fqn)};
}

/* Two levels of one rule, a name with a lone surrogate, characters with a meaning in each form, and findings that are only counted. */
static tsr_findings *some_findings(const tsr_allocator *allocator, tsr_error *err)
{
    tsr_findings *findings = tsr_findings_new(allocator, 2, err);
    tsr_status status = findings ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK)
        status = tsr_finding_add(findings, "values/nan", at("a,1.pt", 7, "layer.w"), err, "50%% of 'layer.w' | <are> NaN");
    if (status == TSR_OK)
        status = tsr_finding_add_at(findings, (tsr_rated_rule){"values/nan", TSR_ERROR},
                                    at(NULL, TSR_NO_POSITION, "\xed\xa0\x80"), err, "a & b");
    if (status == TSR_OK) status = tsr_finding_add(findings, "layout/hole", TSR_NOWHERE, err, "a \"hole\"");
    if (status == TSR_OK) tsr_findings_count_more(findings, tsr_rule_find("values/nan"), TSR_WARNING, 12345);
    if (status == TSR_OK) tsr_findings_count_more(findings, tsr_rule_find("values/nan"), TSR_ERROR, 2);
    if (status == TSR_OK) return findings;
    tsr_findings_free(findings);
    return NULL;
}

static tsr_status write_one(const tsr_report_form *form, const tsr_findings *findings, tsr_vec *out,
                            const tsr_allocator *allocator, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, out, 1, err);
    tsr_report_one(form, &(tsr_reported){.path = TSR_STR("run/a,1.pt"), .findings = findings}, &json, allocator);
    return tsr_json_finish(&json);
}

static void expect_text(tsr_vec *text, const char *wanted)
{
    assert_int_equal(tsr_vec_append(text, "", 1, NULL), TSR_OK);
    assert_string_equal(text->items, wanted);
    tsr_vec_free(text);
}

static void test_documents_report__junit_has_the_numbers_before_the_cases(void **state)
{
    (void)state;
    tsr_error err = {0}, trouble = {0};
    tsr_json json;
    tsr_report report;
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_findings *findings = some_findings(&tsr_allocator_libc, &err),
                 *none = tsr_findings_new(&tsr_allocator_libc, 0, &err);
    tsr_raise(&trouble, TSR_E_IO, TSR_NO_POSITION, "no file & no directory");
    tsr_json_start(&json, tsr_vec_write, &text, 1, &err);
    tsr_report_start(&report, &tsr_report_junit, &json, &tsr_allocator_libc);
    tsr_report_add(&report, &(tsr_reported){.path = TSR_STR("a\x1b"), .findings = findings});
    tsr_report_add(&report, &(tsr_reported){.path = TSR_STR("<b>"), .trouble = &trouble});
    tsr_report_add(&report, &(tsr_reported){.path = TSR_STR("c"), .findings = none});
    assert_int_equal(tsr_report_end(&report), TSR_OK);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    expect_text(&text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                       "<testsuite name=\"tessera\" tests=\"3\" failures=\"1\" errors=\"1\">\n"
                       "  <testcase classname=\"tessera\" name=\"a\\x1b\">\n"
                       "    <system-out>note values/nan: 50% of 'layer.w' | &lt;are&gt; NaN</system-out>\n"
                       "    <failure type=\"values/nan\">error values/nan: \\xed\\xa0\\x80: a &amp; b</failure>\n"
                       "    <failure type=\"layout/hole\">error layout/hole: a &quot;hole&quot;</failure>\n"
                       "  </testcase>\n"
                       "  <testcase classname=\"tessera\" name=\"&lt;b&gt;\">\n"
                       "    <error>no file &amp; no directory</error>\n"
                       "  </testcase>\n"
                       "  <testcase classname=\"tessera\" name=\"c\">\n"
                       "  </testcase>\n"
                       "</testsuite>\n");
    tsr_findings_free(findings);
    tsr_findings_free(none);
}

static void test_documents_report__github_shows_ten_of_a_level(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_findings *findings = some_findings(&tsr_allocator_libc, &err);
    assert_int_equal(write_one(&tsr_report_github, findings, &text, &tsr_allocator_libc, &err), TSR_OK);
    expect_text(&text, "::error file=run/a%2C1.pt,title=values/nan::\\xed\\xa0\\x80: a & b\n"
                       "::error file=run/a%2C1.pt,title=layout/hole::a \"hole\"\n"
                       "::notice file=run/a%2C1.pt,title=values/nan::50%25 of 'layer.w' | <are> NaN\n");
    tsr_findings_free(findings);
    findings = tsr_findings_new(&tsr_allocator_libc, 0, &err);
    for (int i = 0; i < 12; i++) tsr_finding_add(findings, "layout/hole", TSR_NOWHERE, &err, "%d", i);
    tsr_findings_count_more(findings, tsr_rule_find("layout/hole"), TSR_ERROR, 1000);
    text = tsr_vec_of(&tsr_allocator_libc, 1);
    assert_int_equal(write_one(&tsr_report_github, findings, &text, &tsr_allocator_libc, &err), TSR_OK);
    assert_int_equal(tsr_vec_append(&text, "", 1, &err), TSR_OK);
    assert_non_null(strstr(text.items, "layout/hole::8\n::error title=tessera::1,003 findings more in run/a,1.pt; the step "
                                       "summary lists them\n"));
    tsr_vec_free(&text);
    tsr_findings_free(findings);
}

static void test_documents_report__a_report_of_nothing_is_empty_where_the_form_allows_it(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_findings *none = tsr_findings_new(&tsr_allocator_libc, 0, &err);
    tsr_vec github = tsr_vec_of(&tsr_allocator_libc, 1), gitlab = github;
    assert_int_equal(write_one(&tsr_report_github, none, &github, &tsr_allocator_libc, &err), TSR_OK);
    assert_int_equal(write_one(&tsr_report_gitlab, none, &gitlab, &tsr_allocator_libc, &err), TSR_OK);
    assert_int_equal(github.count, 0);
    expect_text(&gitlab, "[]\n");
    tsr_findings_free(none);
}

static void test_documents_report__a_findings_document_gives_the_same_reports(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_findings *findings = some_findings(&tsr_allocator_libc, &err);
    tsr_vec document = tsr_vec_of(&tsr_allocator_libc, 1);
    assert_int_equal(write_one(&tsr_report_json, findings, &document, &tsr_allocator_libc, &err), TSR_OK);
    for (size_t i = 0; i < TSR_REPORT_FORM_COUNT; i++) {
        const tsr_report_form *form = tsr_report_forms[i];
        tsr_vec direct = tsr_vec_of(&tsr_allocator_libc, 1), read = direct;
        tsr_json json;
        assert_ptr_equal(tsr_report_form_of(tsr_str_from(form->name), &err), form);
        assert_int_equal(write_one(form, findings, &direct, &tsr_allocator_libc, &err), TSR_OK);
        tsr_json_start(&json, tsr_vec_write, &read, 1, &err);
        assert_int_equal(tsr_report_document(form, TSR_STR("run/a,1.pt"), (tsr_str){document.items, document.count}, &json,
                                             &host_libc, &err),
                         TSR_OK);
        assert_int_equal(tsr_json_finish(&json), TSR_OK);
        assert_int_equal(direct.count, read.count);
        assert_memory_equal(direct.items, read.items, read.count);
        tsr_vec_free(&direct);
        tsr_vec_free(&read);
    }
    tsr_vec_free(&document);
    tsr_findings_free(findings);
}

static void test_documents_report__a_position_that_no_file_reaches_is_kept(void **state)
{
    (void)state;
    static const char document[] =
        "{\"schema\": \"tessera.findings/1\", \"findings\": [{\"rule\": \"zip/crc\", \"level\": \"error\", \"message\": \"\", "
        "\"file\": \"a\", \"byte_offset\": 9223372036854775808}], \"summary\": {\"notes\": 0, \"warnings\": 0, \"errors\": 1}}";
    tsr_error err = {0};
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, &text, 1, &err);
    assert_int_equal(tsr_report_document(&tsr_report_json, TSR_STR("a"), tsr_str_from(document), &json, &host_libc, &err),
                     TSR_OK);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    assert_int_equal(tsr_vec_append(&text, "", 1, &err), TSR_OK);
    assert_non_null(strstr(text.items, "\"byte_offset\": 9223372036854775808"));
    tsr_vec_free(&text);
}

static void test_documents_report__wrong_documents_and_forms_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"[]", "json: expected an object"},
        {"{\"schema\": \"tessera.diff/1\"}", "not of 'tessera.diff/1'"},
        {"{\"schema\": \"tessera.findings/1\", \"findings\": [{\"rule\": \"zip/crc\", \"level\": \"bad\", \"message\": \"\"}]}",
         "findings[0].level, found 'bad'"},
        {"{\"schema\": \"tessera.findings/1\", \"findings\": [{\"rule\": \"no/rule\", \"level\": \"note\", \"message\": \"\"}]}",
         "there is no rule 'no/rule'"},
        {"{\"schema\": \"tessera.findings/1\", \"findings\": [{\"rule\": \"zip/crc\", \"level\": \"note\", \"message\": \"\", "
         "\"byte_offset\": -1}]}",
         "at least 0 at findings[0].byte_offset, found -1"},
        {"{\"schema\": \"tessera.findings/1\", \"findings\": []}", "lacks 'summary'"},
        {"{\"schema\": \"tessera.findings/1\", \"findings\": [], \"summary\": {\"notes\": 0}}", "summary lacks 'warnings'"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_error err = {0};
        tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
        tsr_json json;
        tsr_json_start(&json, tsr_vec_write, &text, 1, &err);
        assert_int_not_equal(
            tsr_report_document(&tsr_report_junit, TSR_STR("a"), tsr_str_from(wrong[i][0]), &json, &host_libc, &err),
            TSR_OK);
        assert_non_null(strstr(err.message, wrong[i][1]));
        assert_int_equal(text.count, 0);
    }
    tsr_error err = {0};
    assert_null(tsr_report_form_of(TSR_STR("text"), &err));
    assert_string_equal(err.message, "format expects json, sarif, junit, github or gitlab, not 'text'");
}

static void test_documents_report__survives_every_allocation_failure(void **state)
{
    (void)state;
    static const tsr_entry entries[] = {{.fqn = {"a", 1}}, {.fqn = {"b", 1}}};
    const tsr_entry *added[] = {&entries[0]}, *removed[] = {&entries[1]};
    const tsr_diff diff = {NULL, 0, added, 1, removed, 1, NULL, 0, NULL, 0};
    const tsr_diff_document differences = {TSR_STR("a"), TSR_STR("b"), &diff, NULL, NULL};
    tsr_vec document = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_findings *findings = some_findings(&tsr_allocator_libc, NULL);
    assert_int_equal(write_one(&tsr_report_json, findings, &document, &tsr_allocator_libc, NULL), TSR_OK);
    tsr_findings_free(findings);
    for (size_t i = 0; i < TSR_REPORT_FORM_COUNT; i++) {
        for (size_t n = 0;; n++) {
            failing_allocator failing;
            failing_start(&failing, n);
            const tsr_host host = {.allocator = &failing.allocator, .limits = LIMITS};
            tsr_vec text = tsr_vec_of(&failing.allocator, 1);
            tsr_error err = {0};
            tsr_json json;
            tsr_policy *policy = tsr_policy_new(TSR_POLICY_DIFF, &host, &err);
            tsr_json_start(&json, tsr_vec_write, &text, 1, &err);
            tsr_status status = policy ? tsr_policy_rule(policy, "diff/*=note", &err) : TSR_E_NOMEM;
            if (status == TSR_OK)
                status = tsr_report_diff(tsr_report_forms[i], &differences, policy, &json, &failing.allocator, &err);
            if (status == TSR_OK) status = tsr_json_finish(&json);
            tsr_json_start(&json, tsr_vec_write, &text, 1, &err);
            if (status == TSR_OK)
                status = tsr_report_document(tsr_report_forms[i], TSR_STR("b"), (tsr_str){document.items, document.count},
                                             &json, &host, &err);
            if (status == TSR_OK) status = tsr_json_finish(&json);
            assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
            tsr_policy_free(policy);
            tsr_vec_free(&text);
            assert_int_equal(failing.live, 0);
            if (!failing.failed) break;
        }
    }
    tsr_vec_free(&document);
}

static tsr_status refuse(void *ctx, const char *data, size_t size, tsr_error *err)
{
    (void)data;
    (void)size;
    ++*(int *)ctx;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "the disk is full");
}

static void test_documents_report__the_first_failure_to_write_is_returned(void **state)
{
    (void)state;
    for (size_t i = 0; i < TSR_REPORT_FORM_COUNT; i++) {
        tsr_error err = {0};
        tsr_findings *findings = some_findings(&tsr_allocator_libc, &err);
        tsr_json json;
        tsr_report report;
        int calls = 0;
        tsr_json_start(&json, refuse, &calls, 1, &err);
        tsr_report_start(&report, tsr_report_forms[i], &json, &tsr_allocator_libc);
        for (int k = 0; k < 100; k++)
            tsr_report_add(&report, &(tsr_reported){.path = TSR_STR("a rather long path"), .findings = findings});
        tsr_report_end(&report);
        assert_int_equal(tsr_json_finish(&json), TSR_E_IO);
        assert_int_equal(calls, 1);
        assert_string_equal(err.message, "the disk is full");
        tsr_findings_free(findings);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_report__junit_has_the_numbers_before_the_cases),
        cmocka_unit_test(test_documents_report__github_shows_ten_of_a_level),
        cmocka_unit_test(test_documents_report__a_report_of_nothing_is_empty_where_the_form_allows_it),
        cmocka_unit_test(test_documents_report__a_findings_document_gives_the_same_reports),
        cmocka_unit_test(test_documents_report__a_position_that_no_file_reaches_is_kept),
        cmocka_unit_test(test_documents_report__wrong_documents_and_forms_are_refused),
        cmocka_unit_test(test_documents_report__survives_every_allocation_failure),
        cmocka_unit_test(test_documents_report__the_first_failure_to_write_is_returned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
