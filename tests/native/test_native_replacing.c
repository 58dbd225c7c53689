/* Replacing a directory as a whole: what cannot be done is found before anything is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "native/scratch.h"
#include "tessera/sys/directory.h"

static int setup(void **state)
{
    (void)state;
    scratch_make();
    scratch_write("out/data", "old", 3);
    scratch_write("out/notes.txt", "mine", 4);
    return 0;
}

static tsr_status open_swapped(const tsr_sys *sys, tsr_output **out, tsr_error *err)
{
    static const tsr_str obsolete[] = {{"data", 4}};
    const tsr_directory_output_options options = {
        .is_directory = true, .existing = TSR_EXISTING_SWAPPED, .tag = "w0", .obsolete = obsolete, .obsolete_count = 1};
    return tsr_directory_output_open(sys, &tsr_allocator_libc, scratch_path("out"), &options, out, err);
}

/* ---- files that stay ---- */

static int refused_link_error;

static int refuse_link(const tsr_sys *sys, int directory, const char *name, int to_directory, const char *to)
{
    (void)sys, (void)directory, (void)name, (void)to_directory, (void)to;
    errno = refused_link_error;
    return -1;
}

static void test_native_replacing__a_file_that_cannot_be_linked_is_refused_before_writing(void **state)
{
    (void)state;
    static const int errors[] = {EPERM, EMLINK, EXDEV, EOPNOTSUPP};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        tsr_sys sys = tsr_sys_posix;
        tsr_output *output;
        tsr_error err = {0};
        sys.link = refuse_link;
        refused_link_error = errors[i];
        assert_int_equal(open_swapped(&sys, &output, &err), TSR_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "'notes.txt' in 'out'"));
        assert_non_null(strstr(err.message, strerror(errors[i])));
        assert_string_equal(scratch_list(""), "out");
        assert_string_equal(scratch_list("out"), "data notes.txt");
    }
}

static void test_native_replacing__files_that_stay_are_still_there(void **state)
{
    (void)state;
    tsr_output *output;
    uint32_t file;
    char text[5] = "";
    assert_int_equal(open_swapped(NULL, &output, NULL), TSR_OK);
    assert_string_equal(scratch_list(".out.tessera-w0"), ""); /* the trial is over, and left nothing */
    assert_int_equal(output->create(output, TSR_STR("data"), 3, &file, NULL), TSR_OK);
    assert_int_equal(output->write_at(output, file, 0, "new", 3, NULL), TSR_OK);
    assert_int_equal(output->publish(output, file, NULL), TSR_OK);
    output->close(output);
    assert_string_equal(scratch_list(""), "out");
    assert_string_equal(scratch_list("out"), "data notes.txt");
    assert_int_equal(scratch_read("out/data", text, 4), 3);
    assert_string_equal(text, "new");
}

/* ---- killed after the change of permissions ---- */

/* Opens what a killed run left that was to replace the file "one". `publishing`: its renaming had begun. */
static tsr_status open_again(bool publishing, tsr_error *err)
{
    const tsr_directory_output_options options = {.existing = TSR_EXISTING_REPLACED,
                                                  .tag = "w0",
                                                  .begun = publishing ? TSR_BEGUN_PUBLISHING : TSR_BEGUN_JOINED,
                                                  .unfinished = TSR_UNFINISHED_KEPT};
    tsr_output *output;
    uint32_t file;
    tsr_status status = tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path("one"), &options, &output, err);
    if (status != TSR_OK) return status;
    status = output->create(output, TSR_STR(""), 3, &file, err);
    if (status == TSR_OK) status = output->write_at(output, file, 0, "new", 3, err);
    output->close(output);
    return status;
}

static void test_native_replacing__a_run_goes_on_with_a_file_that_was_given_away(void **state)
{
    (void)state;
    tsr_error err = {0};
    if (geteuid() != 0) {
        print_message("skipped: only root may give files away\n");
        skip();
    }
    scratch_write("one", "old", 3);
    scratch_write(".one.tessera-w0", "new", 3);
    assert_int_equal(chown(scratch_path("one"), 1234, 1234), 0);
    assert_int_equal(chown(scratch_path(".one.tessera-w0"), 1234, 1234), 0);
    assert_int_equal(open_again(false, &err), TSR_E_EXISTS);
    assert_int_equal(open_again(true, &err), TSR_OK);
    /* Neither this user's nor the old file's owner. */
    assert_int_equal(chown(scratch_path(".one.tessera-w0"), 4321, 1234), 0);
    assert_int_equal(open_again(true, &err), TSR_E_EXISTS);
}

/* Root may write everything, so this runs as another user, in a process of its own. */
static tsr_status open_again_as_nobody(bool publishing)
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        tsr_error err = {0};
        if (geteuid() == 0 && setuid(65534) != 0) _exit(99);
        _exit((int)open_again(publishing, &err));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 99);
    return (tsr_status)WEXITSTATUS(status);
}

static void test_native_replacing__a_run_goes_on_with_a_read_only_file(void **state)
{
    (void)state;
    static const char *const names[] = {"one", ".one.tessera-w0", ""};
    scratch_write("one", "old", 3);
    scratch_write(".one.tessera-w0", "new", 3);
    for (int i = 0; i < 2; i++) assert_int_equal(chmod(scratch_path(names[i]), 0400), 0);
    for (int i = 0; i < 3 && geteuid() == 0; i++) assert_int_equal(chown(scratch_path(names[i]), 65534, 65534), 0);
    assert_int_equal(open_again_as_nobody(false), TSR_E_IO);
    assert_int_equal(open_again_as_nobody(true), TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_native_replacing__a_file_that_cannot_be_linked_is_refused_before_writing, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_replacing__files_that_stay_are_still_there, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_replacing__a_run_goes_on_with_a_file_that_was_given_away, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_replacing__a_run_goes_on_with_a_read_only_file, setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
