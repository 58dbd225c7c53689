/* What is synced, and how often: every file after its last write and before it is published, and not again without need. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "native/scratch.h"
#include "tessera/sys/directory.h"

enum { FILES = 3 };

static char order[256]; /* the calls in their order: "s" and the file's number for a sync, "w" for a write, "d" for a sync
                         * of a directory, "r" for a rename */
static ino_t inodes[FILES];

static void note(char what, int fd)
{
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    const size_t used = strlen(order);
    assert_true(used + 4 < sizeof order);
    if (S_ISDIR(info.st_mode)) {
        strcpy(order + used, what == 's' ? "d " : "r ");
        return;
    }
    for (int i = 0; i < FILES; i++)
        if (inodes[i] == info.st_ino) snprintf(order + used, sizeof order - used, "%c%d ", what, i);
}

static int noted_sync(const tsr_sys *sys, int fd)
{
    (void)sys;
    note('s', fd);
    return tsr_sys_posix.sync(&tsr_sys_posix, fd);
}

static ssize_t noted_write(const tsr_sys *sys, int fd, const void *data, size_t size, uint64_t offset)
{
    (void)sys;
    note('w', fd);
    return tsr_sys_posix.write_at(&tsr_sys_posix, fd, data, size, offset);
}

static int noted_rename(const tsr_sys *sys, int directory, const char *from, int to_directory, const char *to)
{
    (void)sys;
    note('r', directory);
    return tsr_sys_posix.rename_new(&tsr_sys_posix, directory, from, to_directory, to);
}

static tsr_sys noting;

static int setup(void **state)
{
    (void)state;
    scratch_make();
    noting = tsr_sys_posix;
    noting.sync = noted_sync;
    noting.write_at = noted_write;
    noting.rename_new = noted_rename;
    return 0;
}

static tsr_output *begin(uint32_t files[FILES])
{
    const tsr_directory_output_options options = {.is_directory = true, .tag = "w0"};
    tsr_output *output;
    assert_int_equal(tsr_directory_output_open(&noting, &tsr_allocator_libc, scratch_path("out"), &options, &output, NULL),
                     TSR_OK);
    for (int i = 0; i < FILES; i++) {
        char name[16], path[64];
        struct stat info;
        snprintf(name, sizeof name, "f%d", i);
        assert_int_equal(output->create(output, tsr_str_from(name), 4, &files[i], NULL), TSR_OK);
        snprintf(path, sizeof path, ".out.tessera-w0/%s", name);
        assert_int_equal(stat(scratch_path(path), &info), 0);
        inodes[i] = info.st_ino;
    }
    order[0] = '\0';
    return output;
}

static void write_file(tsr_output *output, uint32_t file)
{
    assert_int_equal(output->write_at(output, file, 0, "abcd", 4, NULL), TSR_OK);
}

static void test_native_syncs__a_file_is_synced_once_behind_its_last_write(void **state)
{
    (void)state;
    uint32_t files[FILES];
    tsr_output *output = begin(files);
    for (int i = 0; i < FILES; i++) write_file(output, files[i]);
    assert_int_equal(output->sync(output, NULL), TSR_OK);
    assert_int_equal(output->publish(output, files[0], NULL), TSR_OK);
    output->close(output);
    assert_string_equal(order, "w0 w1 w2 s0 s1 s2 d d r d ");
}

static void test_native_syncs__a_step_syncs_what_it_wrote(void **state)
{
    (void)state;
    uint32_t files[FILES];
    tsr_output *output = begin(files);
    write_file(output, files[1]);
    assert_int_equal(output->sync(output, NULL), TSR_OK); /* the other files were created */
    write_file(output, files[2]);
    assert_int_equal(output->sync(output, NULL), TSR_OK);
    write_file(output, files[2]);
    write_file(output, files[0]);
    assert_int_equal(output->publish(output, files[0], NULL), TSR_OK);
    output->close(output);
    assert_string_equal(order, "w1 s0 s1 s2 d d w2 s2 w2 w0 s0 s2 r d ");
}

/* A file that another process created is synced too: its size must be durable before this process records what it wrote. */
static void test_native_syncs__who_joins_syncs_every_file_once(void **state)
{
    (void)state;
    uint32_t files[FILES];
    tsr_output *first = begin(files), *second;
    const tsr_directory_output_options options = {
        .is_directory = true, .tag = "w0", .begun = TSR_BEGUN_JOINED, .unfinished = TSR_UNFINISHED_KEPT};
    assert_int_equal(tsr_directory_output_open(&noting, &tsr_allocator_libc, scratch_path("out"), &options, &second, NULL),
                     TSR_OK);
    for (int i = 0; i < FILES; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        assert_int_equal(second->create(second, tsr_str_from(name), 4, &files[i], NULL), TSR_OK);
    }
    write_file(second, files[1]);
    assert_int_equal(second->sync(second, NULL), TSR_OK);
    second->close(second);
    first->close(first);
    assert_string_equal(order, "w1 s0 s1 s2 d d ");
}

/* A file whose sync failed does not count as synced. */
static int failing_sync(const tsr_sys *sys, int fd)
{
    struct stat info;
    (void)sys;
    assert_int_equal(fstat(fd, &info), 0);
    if (info.st_ino != inodes[1]) return noted_sync(sys, fd);
    errno = EIO;
    return -1;
}

static void test_native_syncs__a_failed_sync_is_tried_again(void **state)
{
    (void)state;
    uint32_t files[FILES];
    tsr_output *output = begin(files);
    noting.sync = failing_sync;
    assert_int_equal(output->sync(output, NULL), TSR_E_IO);
    assert_int_equal(output->sync(output, NULL), TSR_E_IO);
    noting.sync = noted_sync;
    assert_int_equal(output->sync(output, NULL), TSR_OK);
    output->close(output);
    assert_string_equal(order, "s0 s1 s2 d d ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_native_syncs__a_file_is_synced_once_behind_its_last_write, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_syncs__a_step_syncs_what_it_wrote, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_syncs__who_joins_syncs_every_file_once, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_syncs__a_failed_sync_is_tried_again, setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
