/* A deep check in parts has the same findings, in the same order, as one rank's, whoever checks which part. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <dirent.h>

#include "support/checked.h"
#include "support/random.h"
#include "tessera/check.h"
#include "tessera/sys/check.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"

enum { MOST_PARTS = 7, MOST_PATH = 512 };

static bool open_at(checked *o, const char *path)
{
    tsr_error err = {0};
    return checked_open(o, path, &(tsr_open_options){.purpose = TSR_FOR_FINDINGS}, &err) == TSR_OK;
}

/* All of a list as text, so that a difference can be read. */
static char *text_of(const tsr_findings *findings)
{
    size_t rules, size = 0, room = 1 << 20;
    const tsr_rule *table = tsr_rules(&rules);
    char *text = calloc(1, room);
    for (size_t i = 0; i < tsr_findings_count(findings) && size < room; i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        size += (size_t)snprintf(text + size, room - size, "%s %s %.*s|%.*s|%.*s|%llu\n", f->rule->id,
                                 tsr_level_name(f->level), TSR_STR_ARG(f->message), TSR_STR_ARG(f->file),
                                 TSR_STR_ARG(f->fqn), (unsigned long long)f->byte_offset);
    }
    for (size_t r = 0; r < rules; r++)
        for (int level = TSR_NOTE; level <= TSR_ERROR && size < room; level++)
            size += (size_t)snprintf(text + size, room - size, "%llu ",
                                     (unsigned long long)tsr_findings_unlisted(findings, &table[r], (tsr_level)level));
    assert_true(size < room);
    return text;
}

/* Two checkpoints take turns with the parts, the last one first; the second of them joins what both found. */
static char *findings_in_parts(const char *path, uint32_t count)
{
    checked both[2];
    tsr_vec found[MOST_PARTS], all = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_error err = {0};
    assert_true(open_at(&both[0], path) && open_at(&both[1], path));
    const size_t before = tsr_findings_count(tsr_checkpoint_findings(both[1].checkpoint));
    for (uint32_t i = count; i-- > 0;) {
        checked *one = &both[i % 2];
        found[i] = tsr_vec_of(&tsr_allocator_libc, 1);
        if (tsr_check_deep_part(one->checkpoint, (tsr_check_part){i, count}, one->ring, &found[i], &err))
            fail_msg("%s: %s", path, err.message);
    }
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(tsr_vec_append(&all, found[i].items, found[i].count, &err), TSR_OK);
        tsr_vec_free(&found[i]);
    }
    assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(both[1].checkpoint)), before);
    const tsr_str parts = {all.items, all.count};
    if (tsr_check_deep_join(both[1].checkpoint, parts, count, both[1].ring, &err)) fail_msg("%s: %s", path, err.message);
    assert_int_equal(tsr_check_deep_join(both[0].checkpoint, parts, count + 1, both[0].ring, &err), TSR_E_USAGE);
    char *text = text_of(tsr_checkpoint_findings(both[1].checkpoint));
    tsr_vec_free(&all);
    checked_close(&both[0]);
    checked_close(&both[1]);
    return text;
}

/* Returns how many findings the bytes have. */
static size_t compare(const char *path)
{
    checked one;
    tsr_error err = {0};
    size_t deep = 0;
    if (open_at(&one, path)) {
        const size_t before = tsr_findings_count(tsr_checkpoint_findings(one.checkpoint));
        tsr_comm *self;
        assert_int_equal(tsr_comm_self(&tsr_allocator_libc, &self, &err), TSR_OK);
        if (tsr_check_deep_shared(one.checkpoint, self, one.ring, NULL, &err)) fail_msg("%s: %s", path, err.message);
        self->close(self);
        deep = tsr_findings_count(tsr_checkpoint_findings(one.checkpoint)) - before;
        char *want = text_of(tsr_checkpoint_findings(one.checkpoint));
        for (uint32_t count = 1; count <= MOST_PARTS; count += 2) {
            char *text = findings_in_parts(path, count);
            if (strcmp(text, want) != 0) fail_msg("%s in %u parts:\n%s\ninstead of\n%s", path, (unsigned)count, text, want);
            free(text);
        }
        free(want);
    }
    checked_close(&one);
    return deep;
}

/* Every directory in `below`. */
static void compare_all(const char *below, size_t *checkpoints, size_t *deep)
{
    char path[MOST_PATH];
    snprintf(path, sizeof path, "%s/%s", TSR_TEST_DATA, below);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *at; (at = readdir(directory));) {
        if (at->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s/%s", TSR_TEST_DATA, below, at->d_name);
        const size_t found = compare(path);
        *deep += found;
        *checkpoints += found > 0;
    }
    closedir(directory);
}

static void test_check_parts__findings_are_those_of_the_whole(void **state)
{
    (void)state;
    size_t checkpoints = 0, deep = 0;
    compare_all("samples/checkpoints", &checkpoints, &deep);
    compare_all("tests/golden/megatron", &checkpoints, &deep);
    compare_all("tests/golden/deepspeed", &checkpoints, &deep);
    compare_all("tests/golden/checksums", &checkpoints, &deep);
    print_message("%zu checkpoints with %zu findings\n", checkpoints, deep);
    assert_true(checkpoints >= 8 && deep >= 16);
}

/* What is joined may come from anywhere: changed and cut bytes are refused, or joined as if they were a part's. */
static void test_check_parts__what_is_not_of_a_part_is_refused(void **state)
{
    (void)state;
    checked one;
    tsr_error err = {0};
    tsr_vec found = tsr_vec_of(&tsr_allocator_libc, 1);
    random_source random = {91};
    char path[MOST_PATH];
    size_t refused = 0, tries = 3000;
    snprintf(path, sizeof path, "%s/samples/checkpoints/broken_dcp_blob_shape", TSR_TEST_DATA);
    assert_true(open_at(&one, path));
    if (tsr_check_deep_part(one.checkpoint, (tsr_check_part){0, 1}, one.ring, &found, &err)) fail_msg("%s", err.message);
    for (size_t n = 0; n < tries; n++) {
        const size_t size = n % 2 ? found.count : random_in(&random, 0, found.count - 1);
        char *bytes = malloc(size + 1);
        memcpy(bytes, found.items, size);
        for (unsigned k = 0; size && k < 1 + n % 3; k++)
            bytes[random_in(&random, 0, n % 5 ? size - 1 : size < 64 ? size - 1 : 63)] = (char)random_next(&random);
        err = (tsr_error){0};
        const tsr_status status = tsr_check_deep_join(one.checkpoint, (tsr_str){bytes, size}, 1, one.ring, &err);
        if (status != TSR_OK && status != TSR_E_USAGE) fail_msg("status %d: %s", status, err.message);
        refused += status != TSR_OK;
        free(bytes);
    }
    assert_true(refused > tries / 2);
    tsr_vec_free(&found);
    checked_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check_parts__findings_are_those_of_the_whole),
                                       cmocka_unit_test(test_check_parts__what_is_not_of_a_part_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
