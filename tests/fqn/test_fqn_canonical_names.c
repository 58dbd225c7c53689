/* Canonical names of catalogs, as the comparison of two checkpoints uses them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "support/arena_job.h"
#include "tessera/fqn.h"
#include "tessera/sys/names.h"

/* Fills `entries` with a scalar float32 for each name. */
static tsr_catalog catalog_of(const char *const *names, tsr_entry *entries)
{
    uint64_t count = 0;
    for (; names[count]; count++)
        entries[count] = (tsr_entry){.fqn = tsr_str_from(names[count]), .kind = TSR_ENTRY_TENSOR, .dtype = TSR_FLOAT32};
    return (tsr_catalog){.format = TSR_FORMAT_SAFETENSORS, .entries = entries, .entry_count = count};
}

static tsr_canonical_names *names_of(const tsr_catalog *a, const tsr_catalog *b)
{
    const tsr_catalog *const both[] = {a, b};
    static const tsr_host host = {.allocator = &tsr_allocator_libc};
    tsr_canonical_names *names;
    assert_int_equal(tsr_canonical_names_new(both, NULL, 2, NULL, &host, &names, NULL), TSR_OK);
    return names;
}

static void check(tsr_canonical_names *names, const char *raw, const char *fqn)
{
    tsr_str found;
    assert_int_equal(tsr_canonical_names_find(names, tsr_str_from(raw), NULL, &found, NULL), TSR_OK);
    if (!tsr_str_equal(found, tsr_str_from(fqn))) fail_msg("%s became '%.*s'", raw, TSR_STR_ARG(found));
}

static void test_fqn_canonical_names__each_catalog_is_judged_by_its_own_keys(void **state)
{
    (void)state;
    tsr_entry ours[2], theirs[3];
    const tsr_catalog a = catalog_of((const char *const[]){"module.fc.weight", "module.fc.bias", NULL}, ours);
    const tsr_catalog b =
        catalog_of((const char *const[]){"module.head.weight", "other.weight", "net._orig_mod.w", NULL}, theirs);
    tsr_canonical_names *names = names_of(&a, &b);
    check(names, "module.fc.weight", "fc.weight");
    check(names, "module.fc.bias", "fc.bias");
    check(names, "module.head.weight", "module.head.weight"); /* it has siblings */
    check(names, "net._orig_mod.w", "net.w");
    check(names, "module.unknown", "module.unknown");
    check(names, "", "");
    tsr_canonical_names_free(names);
    tsr_canonical_names_free(NULL);
}

static void test_fqn_canonical_names__a_key_of_both_has_one_name(void **state)
{
    (void)state;
    tsr_entry ours[1], theirs[2];
    const tsr_catalog a = catalog_of((const char *const[]){"module.w", NULL}, ours);
    const tsr_catalog b = catalog_of((const char *const[]){"module.w", "other.w", NULL}, theirs);
    tsr_canonical_names *names = names_of(&a, &b);
    check(names, "module.w", "w");
    check(names, "other.w", "other.w");
    tsr_canonical_names_free(names);
    names = names_of(&b, &a);
    check(names, "module.w", "module.w");
    tsr_canonical_names_free(names);
}

static void refuse(const char *wrapped, const char *plain)
{
    tsr_entry ours[2], theirs[1];
    const tsr_catalog twice = catalog_of((const char *const[]){wrapped, plain, NULL}, ours);
    const tsr_catalog once = catalog_of((const char *const[]){plain, NULL}, theirs);
    const tsr_catalog *const both[] = {&once, &twice};
    static const tsr_host host = {.allocator = &tsr_allocator_libc};
    tsr_canonical_names *names;
    tsr_text_names *texts;
    tsr_error err = {0}, by_text = {0};
    char want[200];
    assert_int_equal(tsr_canonical_names_new(both, (const char *const[]){"ours", "theirs"}, 2, NULL, &host, &names, &err),
                     TSR_E_USAGE);
    assert_int_equal(tsr_text_names_new(both, 2, &tsr_allocator_libc, &texts, &by_text), TSR_E_USAGE);
    snprintf(want, sizeof want, "'%s' and '%s' would both be named '%s'", wrapped, plain, plain);
    assert_string_equal(by_text.message, want);
    snprintf(want + strlen(want), sizeof want - strlen(want), ", in theirs");
    assert_string_equal(err.message, want);
}

static void test_fqn_canonical_names__a_parameter_under_two_names_is_refused(void **state)
{
    (void)state;
    refuse("net._orig_mod.w", "net.w");
    refuse("_orig_mod.module.a", "module.a");
    refuse("m.module._orig_mod.module.b", "m.module.module.b");
    /* also where only the canonical names show it */
    tsr_entry entries[2];
    const tsr_catalog catalog = catalog_of((const char *const[]){"_orig_mod.x.a", "x.module.a", NULL}, entries);
    const tsr_catalog *const catalogs[] = {&catalog};
    tsr_text_names *texts;
    tsr_error err = {0};
    assert_int_equal(tsr_text_names_new(catalogs, 1, &tsr_allocator_libc, &texts, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "'_orig_mod.x.a' and 'x.module.a' would both be named 'x.a'");
    /* each name once, in one checkpoint each */
    const tsr_catalog one = catalog_of((const char *const[]){"net._orig_mod.w", "head.w", NULL}, entries);
    tsr_entry others[2];
    const tsr_catalog other = catalog_of((const char *const[]){"net.w", "head.w", NULL}, others);
    tsr_canonical_names_free(names_of(&one, &other));
}

static tsr_status make_names(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    (void)arena;
    const tsr_catalog *const catalogs[] = {ctx, ctx};
    tsr_canonical_names *names;
    const tsr_status status = tsr_canonical_names_new(catalogs, NULL, 2, NULL, host, &names, err);
    tsr_canonical_names_free(names);
    return status;
}

static void test_fqn_canonical_names__failed_allocations_leak_nothing(void **state)
{
    (void)state;
    tsr_entry entries[2];
    const tsr_catalog catalog = catalog_of((const char *const[]){"module.a", "module.b", NULL}, entries);
    must_bear_failed_allocations(make_names, &catalog, TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fqn_canonical_names__each_catalog_is_judged_by_its_own_keys),
        cmocka_unit_test(test_fqn_canonical_names__a_key_of_both_has_one_name),
        cmocka_unit_test(test_fqn_canonical_names__a_parameter_under_two_names_is_refused),
        cmocka_unit_test(test_fqn_canonical_names__failed_allocations_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
