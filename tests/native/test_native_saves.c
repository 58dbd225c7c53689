/* Saves in place: one that ends at any of its calls leaves the old checkpoint or the new one, and the next one, or a run that replaces the
 * directory, removes the rest. Saves and replacements exclude each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "native/scratch.h"
#include "publish/saves.h"

#define TOKEN "0123456789abcdef"
#define OLD   "__0_00000000000000aa.distcp"
#define NEW   "__0_" TOKEN ".distcp"

static tsr_status open_save(const tsr_sys *sys, int64_t rank, tsr_save **out, tsr_error *err)
{
    const tsr_save_request options = {.sys = sys, .path = scratch_path("d"), .rank = rank, .is_durable = true};
    return tsr_save_open(&options, out, err);
}

static bool put(const tsr_sys *sys, const char *name)
{
    const int fd = sys->open_at(sys, AT_FDCWD, scratch_path(name), O_WRONLY | O_CREAT | O_EXCL, 0600);
    const bool done = fd >= 0 && sys->write_at(sys, fd, "new", 3, 0) == 3;
    if (fd >= 0) sys->close(sys, fd);
    return done;
}

/* Saves like tessera.torch.StorageWriter. The order of the calls is that of _save_directory.py. */
static bool save(const tsr_sys *sys)
{
    const tsr_str old[] = {TSR_STR(".metadata"), TSR_STR(OLD)}, new[] = {TSR_STR(NEW)};
    tsr_save *s = NULL;
    bool done = open_save(sys, -1, &s, NULL) == TSR_OK && tsr_save_begin(s, ".metadata", old, 2, NULL) == TSR_OK &&
                tsr_save_journal(sys, scratch_path("d"), TOKEN, new, 1, true, NULL) == TSR_OK && put(sys, "d/" NEW) &&
                put(sys, "d/.tessera-save-" TOKEN ".metadata") && tsr_save_record(s, TOKEN, new, 1, NULL) == TSR_OK &&
                tsr_save_unchanged(s, NULL) == TSR_OK &&
                sys->rename(sys, AT_FDCWD, scratch_path("d/.tessera-save-" TOKEN ".metadata"), AT_FDCWD,
                            scratch_path("d/.metadata")) == 0 &&
                tsr_save_end(s, TOKEN, new, 1, NULL) == TSR_OK;
    tsr_save_close(s);
    return done;
}

static void start_over(void)
{
    static const char *const names[] = {"d/.metadata", "d/" OLD, "d/notes"};
    for (size_t i = 0; i < 3; i++) scratch_write(names[i], "old", 3);
}

static bool is_new(void)
{
    char text[3];
    assert_int_equal(scratch_read("d/.metadata", text, sizeof text), 3);
    return memcmp(text, "new", 3) == 0;
}

static void test_native_saves__one_that_is_killed_leaves_the_old_or_the_new_checkpoint(void **state)
{
    bool done = false, seen[2] = {false};
    unsigned long n = 0;
    (void)state;
    while (!done) {
        scratch_remove();
        scratch_make();
        start_over();
        faulty_sys killed = faulty_sys_make();
        killed.fail_at = ++n;
        killed.stays = killed.writes_only = true;
        killed.error = EIO;
        done = save(&killed.sys);
        const bool new = is_new();
        seen[new] = true;
        const tsr_str now[] = {TSR_STR(".metadata"), new ? TSR_STR(NEW) : TSR_STR(OLD)};
        tsr_save *s;
        assert_int_equal(open_save(NULL, -1, &s, NULL), TSR_OK);
        assert_int_equal(tsr_save_begin(s, ".metadata", now, 2, NULL), TSR_OK);
        tsr_save_close(s);
        assert_int_equal(is_new(), new);
        assert_string_equal(scratch_list("d"), new ? ".metadata " NEW " notes" : ".metadata " OLD " notes");
    }
    assert_true(seen[0] && seen[1] && n > 10);
}

static void test_native_saves__what_another_program_changed_is_not_replaced(void **state)
{
    const tsr_str old[] = {TSR_STR(".metadata"), TSR_STR(OLD)};
    tsr_error err = {0};
    tsr_save *s;
    (void)state;
    start_over();
    assert_int_equal(open_save(NULL, -1, &s, NULL), TSR_OK);
    assert_int_equal(tsr_save_begin(s, ".metadata", old, 2, NULL), TSR_OK);
    assert_int_equal(tsr_save_unchanged(s, NULL), TSR_OK);
    scratch_write("d/" OLD, "theirs", 6);
    assert_int_equal(tsr_save_unchanged(s, &err), TSR_E_CHANGED);
    assert_non_null(strstr(err.message, OLD));
    tsr_save_close(s);
}

static tsr_status hold(tsr_error *err)
{
    tsr_journals journals;
    uint64_t cleared;
    assert_int_equal(tsr_journals_open(NULL, &tsr_allocator_libc, scratch_path("d"), &journals, NULL), TSR_OK);
    const tsr_status status = tsr_journals_hold(&journals, scratch_path("d"), &cleared, err);
    tsr_journals_close(&journals);
    return status;
}

static void test_native_saves__a_directory_is_saved_to_or_replaced_but_not_both(void **state)
{
    tsr_error err = {0}, twice = {0};
    tsr_save *all, *first, *second, *again = NULL;
    (void)state;
    start_over();
    assert_int_equal(open_save(NULL, -1, &all, NULL), TSR_OK);
    assert_int_equal(hold(&err), TSR_E_EXISTS);
    assert_non_null(strstr(err.message, "another process is replacing 'd'"));
    assert_int_equal(open_save(NULL, -1, &again, &twice), TSR_E_EXISTS);
    assert_non_null(strstr(twice.message, "another process is saving to this directory"));
    tsr_save_close(all);
    assert_int_equal(hold(NULL), TSR_OK);
    /* Ranks on their own do not exclude each other. */
    assert_int_equal(open_save(NULL, 0, &first, NULL), TSR_OK);
    assert_int_equal(open_save(NULL, 1, &second, NULL), TSR_OK);
    assert_int_equal(open_save(NULL, 1, &again, NULL), TSR_E_EXISTS);
    assert_int_equal(hold(NULL), TSR_E_EXISTS);
    tsr_save_close(first);
    tsr_save_close(second);
    assert_string_equal(scratch_list("d"), ".metadata " OLD " notes");
}

static void test_native_saves__a_replacement_removes_what_a_killed_save_left_and_nothing_else(void **state)
{
    const tsr_str names[] = {TSR_STR(NEW), TSR_STR("notes"), TSR_STR("../outside")};
    (void)state;
    scratch_write("d/notes", "mine", 4);
    scratch_write("outside", "mine", 4);
    scratch_write("d/" NEW, "half", 4);
    scratch_write("d/.tessera-save-fedcba9876543210.journal", "of somebody else", 16);
    assert_int_equal(tsr_save_journal(NULL, scratch_path("d"), TOKEN, names, 3, false, NULL), TSR_OK);
    assert_int_equal(hold(NULL), TSR_OK);
    assert_string_equal(scratch_list("d"), ".tessera-save-fedcba9876543210.journal notes");
    assert_string_equal(scratch_list(""), "d outside");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_saves__one_that_is_killed_leaves_the_old_or_the_new_checkpoint),
        SCRATCH_TEST(test_native_saves__what_another_program_changed_is_not_replaced),
        SCRATCH_TEST(test_native_saves__a_directory_is_saved_to_or_replaced_but_not_both),
        SCRATCH_TEST(test_native_saves__a_replacement_removes_what_a_killed_save_left_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
