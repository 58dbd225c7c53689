/* Records of publications: a file counts as the recorded one only while nothing but its name has changed. A file that
 * another process puts in its place may have the same name and the same inode number; here, such a file is made by writing
 * into the recorded one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "native/scratch.h"
#include "publish/record.h"

static const char tag[] = "w0123456789abcdef";

static struct stat look_at(const char *name)
{
    struct stat info;
    assert_int_equal(lstat(scratch_path(name), &info), 0);
    return info;
}

static tsr_recorded_file recorded(const char *name, bool old)
{
    char path[64];
    snprintf(path, sizeof path, "out/%s", name);
    const struct stat info = look_at(path);
    return (tsr_recorded_file){tsr_str_from(name), tsr_identity_of(&info), old};
}

/* Writes other bytes and sets another time, with the same inode and size. */
static void replace(const char *name)
{
    const struct timespec times[] = {{0, UTIME_OMIT}, {1000000000, 5}};
    scratch_write(name, "theirs", 6);
    assert_int_equal(utimensat(AT_FDCWD, scratch_path(name), times, 0), 0);
}

static uint64_t device(void)
{
    return (uint64_t)look_at("").st_dev;
}

/* Writes the record next to "out", then cleans up as the next run does. */
static void settle(const tsr_record *record)
{
    tsr_journals journals;
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    assert_int_equal(tsr_journals_open(NULL, &tsr_allocator_libc, scratch_path("out"), &journals, NULL), TSR_OK);
    assert_int_equal(tsr_record_put(record, &text, NULL), TSR_OK);
    assert_int_equal(tsr_journals_publishing(&journals, tag, (tsr_str){text.items, text.count}, true, NULL), TSR_OK);
    assert_int_equal(tsr_journals_discard(&journals, tag, NULL), TSR_OK);
    tsr_vec_free(&text);
    tsr_journals_close(&journals);
    assert_string_equal(scratch_list(""), "out");
}

static bool is_published(const tsr_record *record)
{
    tsr_journals journals;
    assert_int_equal(tsr_journals_open(NULL, &tsr_allocator_libc, scratch_path("out"), &journals, NULL), TSR_OK);
    const bool published = tsr_record_is_published(record, &journals);
    tsr_journals_close(&journals);
    return published;
}

static void write_directory(void)
{
    static const char *const names[] = {"out/.metadata", "out/new", "out/old", "out/replaced"};
    for (size_t i = 0; i < 4; i++) scratch_write(names[i], "ours..", 6);
}

/* The new checkpoint is in place: the files that the old one listed are removed. */
static void test_native_record__an_old_file_that_was_replaced_stays(void **state)
{
    (void)state;
    write_directory();
    const tsr_recorded_file files[] = {recorded(".metadata", false), recorded("new", false), recorded("old", true),
                                       recorded("replaced", true)};
    const tsr_record record = {TSR_SWITCH_MARKER, TSR_STR(".metadata"), device(), files[0].identity, files, 4};
    replace("out/replaced");
    settle(&record);
    assert_string_equal(scratch_list("out"), ".metadata new replaced");
}

/* The new checkpoint is not in place: the new files are removed. */
static void test_native_record__a_new_file_that_was_replaced_stays(void **state)
{
    (void)state;
    write_directory();
    const tsr_recorded_file files[] = {recorded(".metadata", false), recorded("new", false), recorded("replaced", false)};
    const tsr_record record = {TSR_SWITCH_MARKER, TSR_STR(".metadata"), device(), files[0].identity, files, 3};
    replace("out/.metadata");
    replace("out/replaced");
    settle(&record);
    assert_string_equal(scratch_list("out"), ".metadata old replaced");
}

static void test_native_record__a_directory_is_known_by_what_is_in_it(void **state)
{
    (void)state;
    static const tsr_switch kinds[] = {TSR_SWITCH_NEW_DIRECTORY, TSR_SWITCH_DIRECTORIES};
    for (size_t i = 0; i < 2; i++) {
        write_directory();
        const tsr_recorded_file files[] = {recorded("new", false), recorded("old", true)};
        const struct stat info = look_at("out");
        const tsr_record record = {kinds[i], TSR_STR(""), device(), tsr_identity_of(&info), files, 2};
        assert_true(is_published(&record));
        replace("out/new");
        assert_false(is_published(&record));
    }
}

static void test_native_record__one_file_is_known_by_more_than_its_number(void **state)
{
    (void)state;
    scratch_write("out", "ours..", 6);
    const struct stat info = look_at("out");
    const tsr_recorded_file file = {TSR_STR("out"), tsr_identity_of(&info), false};
    const tsr_record record = {TSR_SWITCH_FILE, TSR_STR(""), device(), file.identity, &file, 1};
    assert_true(is_published(&record));
    replace("out");
    assert_false(is_published(&record));
}

/* A file system may get another device number after a restart. Until then the number identifies it. */
static void test_native_record__devices_count_until_they_are_numbered_again(void **state)
{
    (void)state;
    scratch_write("out", "ours..", 6);
    const struct stat info = look_at("out");
    tsr_recorded_file file = {TSR_STR("out"), tsr_identity_of(&info), false};
    file.identity.device++;
    tsr_record record = {TSR_SWITCH_FILE, TSR_STR(""), device(), file.identity, &file, 1};
    assert_false(is_published(&record));
    record.device++;
    assert_true(is_published(&record));
}

static void test_native_record__a_text_gives_the_record_it_was_made_of(void **state)
{
    (void)state;
    const tsr_recorded_file files[] = {{TSR_STR("a b"), {1, UINT64_MAX, 3, 4, 999999999}, false},
                                       {TSR_STR("c"), {0, 5, 0, 0, 0}, true}};
    const tsr_record record = {TSR_SWITCH_MARKER, TSR_STR(".metadata"), 77, files[0].identity, files, 2};
    tsr_record parsed;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    assert_int_equal(tsr_record_put(&record, &text, NULL), TSR_OK);
    assert_true(tsr_record_parse((tsr_str){text.items, text.count}, arena, &parsed));
    assert_true(parsed.kind == record.kind && parsed.device == 77 && parsed.count == 2);
    assert_memory_equal(&parsed.identity, &record.identity, sizeof record.identity);
    for (size_t i = 0; i < 2; i++) {
        assert_memory_equal(&parsed.files[i].identity, &files[i].identity, sizeof files[i].identity);
        assert_true(tsr_str_equal(parsed.files[i].name, files[i].name) && parsed.files[i].old == files[i].old);
    }
    for (size_t size = 0; size < text.count; size++) /* cut off by a power loss */
        assert_false(tsr_record_parse((tsr_str){text.items, size}, arena, &parsed));
    tsr_vec_free(&text);
    tsr_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_record__an_old_file_that_was_replaced_stays),
        SCRATCH_TEST(test_native_record__a_new_file_that_was_replaced_stays),
        SCRATCH_TEST(test_native_record__a_directory_is_known_by_what_is_in_it),
        SCRATCH_TEST(test_native_record__one_file_is_known_by_more_than_its_number),
        SCRATCH_TEST(test_native_record__devices_count_until_they_are_numbered_again),
        SCRATCH_TEST(test_native_record__a_text_gives_the_record_it_was_made_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
