/* Outputs are published as a whole or not at all, whichever call fails and wherever the process stops. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/sys.h"
#include "native/scratch.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/store.h"

/* Writes a file of `size` bytes `fill` in two halves, the second half first. */
static tsr_status put(tsr_output *output, const char *name, char fill, size_t size, uint32_t *file, tsr_error *err)
{
    char bytes[256];
    memset(bytes, fill, sizeof bytes);
    tsr_status status = output->create(output, tsr_str_from(name), size, file, err);
    if (status == TSR_OK) status = output->write_at(output, *file, size / 2, bytes, size - size / 2, err);
    if (status == TSR_OK) status = output->write_at(output, *file, 0, bytes, size / 2, err);
    return status;
}

/* Writes a checkpoint of two data files and a marker, all filled with `fill`. The names of the data files depend on the
 * generation. */
static tsr_status save(const tsr_sys *sys, const char *path, bool overwrite, const tsr_str *obsolete, size_t obsolete_count,
                       char fill, tsr_error *err)
{
    tsr_directory_output_options options = {.is_directory = true,
                                            .existing = overwrite ? TSR_EXISTING_REPLACED : TSR_EXISTING_REFUSED,
                                            .obsolete = obsolete,
                                            .obsolete_count = obsolete_count};
    static const char *const names[2][2] = {{"__0_0.distcp", "__1_0.distcp"}, {"__0_1.distcp", "__1_1.distcp"}};
    tsr_output *output;
    uint32_t file, marker;
    tsr_status status = overwrite ? tsr_directory_next_generation(sys, path, &options.generation, err) : TSR_OK;
    if (status == TSR_OK) status = tsr_directory_output_open(sys, &tsr_allocator_libc, path, &options, &output, err);
    if (status != TSR_OK) return status;
    const char *const *chosen = names[output->generation];
    for (int i = 0; i < 2 && status == TSR_OK; i++) status = put(output, chosen[i], fill, 200, &file, err);
    if (status == TSR_OK) status = put(output, ".metadata", fill, 50, &marker, err);
    if (status == TSR_OK) status = output->publish(output, marker, err);
    output->close(output);
    return status;
}

/* Returns the letter that fills all files of the checkpoint named by the marker, 0 when there is none, or '!' for a
 * mixture. */
static char verdict(const char *directory)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "%s/.metadata", directory);
    if (scratch_read(path, text, sizeof text) != 50) return 0;
    char fill = text[0];
    int complete = 0;
    for (int set = 0; set < 2; set++) {
        bool whole = true;
        for (int rank = 0; rank < 2; rank++) {
            snprintf(path, sizeof path, "%s/__%d_%d.distcp", directory, rank, set);
            whole &= scratch_read(path, text, sizeof text) == 200 && text[0] == fill && text[199] == fill;
        }
        complete += whole;
    }
    return complete ? fill : '!';
}

static void test_native_directory_output__a_new_directory_appears_whole(void **state)
{
    (void)state;
    tsr_error err = {0};
    assert_int_equal(save(NULL, scratch_path("ckpt"), false, NULL, 0, 'n', &err), TSR_OK);
    assert_string_equal(scratch_list(""), "ckpt");
    assert_string_equal(scratch_list("ckpt"), ".metadata __0_0.distcp __1_0.distcp");
    assert_int_equal(verdict("ckpt"), 'n');
}

static void test_native_directory_output__an_existing_destination_is_refused(void **state)
{
    (void)state;
    tsr_error err = {0};
    scratch_write("ckpt/other", "x", 1);
    assert_int_equal(save(NULL, scratch_path("ckpt"), false, NULL, 0, 'n', &err), TSR_E_EXISTS);
    assert_non_null(strstr(err.message, "exists"));
    assert_string_equal(scratch_list("ckpt"), "other");
}

static void test_native_directory_output__what_is_no_file_is_never_replaced(void **state)
{
    (void)state;
    tsr_error err = {0};
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    assert_int_equal(save(NULL, scratch_path("pipe"), true, NULL, 0, 'n', &err), TSR_E_USAGE);
    assert_non_null(strstr(err.message, "neither a file nor a directory"));
    assert_string_equal(scratch_list(""), "pipe");
    assert_int_equal(unlink(scratch_path("pipe")), 0);
}

static void test_native_directory_output__replacing_keeps_what_is_not_the_old_checkpoint(void **state)
{
    (void)state;
    const tsr_str obsolete[] = {TSR_STR("__0_0.distcp"), TSR_STR("__1_0.distcp"), TSR_STR(".metadata"), TSR_STR("gone")};
    tsr_error err = {0};
    assert_int_equal(save(NULL, scratch_path("ckpt"), false, NULL, 0, 'o', &err), TSR_OK);
    scratch_write("ckpt/notes.txt", "mine", 4);
    assert_int_equal(save(NULL, scratch_path("ckpt"), true, obsolete, 4, 'n', &err), TSR_OK);
    assert_string_equal(scratch_list("ckpt"), ".metadata __0_1.distcp __1_1.distcp notes.txt");
    assert_int_equal(verdict("ckpt"), 'n');
}

/* R6: the n-th call fails once. The run must fail with an error or end well, and must leave nothing temporary. */
static void test_native_directory_output__a_failing_call_leaves_no_trace(void **state)
{
    (void)state;
    static const int errors[] = {EIO, ENOSPC};
    for (int e = 0; e < 2; e++) {
        for (unsigned long n = 1;; n++) {
            faulty_sys faulty = faulty_sys_make();
            faulty.writes_only = true;
            faulty.fail_at = n;
            faulty.error = errors[e];
            faulty.short_transfers = 77;
            tsr_error err = {0};
            tsr_status status = save(&faulty.sys, scratch_path("ckpt"), false, NULL, 0, 'n', &err);
            bool reached = faulty.calls >= n;
            if (status == TSR_OK) assert_int_equal(verdict("ckpt"), 'n');
            else assert_true(err.message[0] && status == TSR_E_IO);
            assert_string_equal(scratch_list(""), verdict("ckpt") ? "ckpt" : "");
            scratch_remove();
            scratch_make();
            if (!reached) {
                assert_true(n > 15);
                break;
            }
        }
    }
}

/* R7: from the n-th writing call on nothing happens any more, as after a kill. The checkpoint must be the old or the new
 * one, never a mixture. */
static void test_native_directory_output__stopping_anywhere_leaves_old_or_new(void **state)
{
    (void)state;
    const tsr_str obsolete[] = {TSR_STR("__0_0.distcp"), TSR_STR("__1_0.distcp"), TSR_STR(".metadata")};
    char last = 'o';
    for (unsigned long n = 1;; n++) {
        tsr_error err = {0};
        assert_int_equal(save(NULL, scratch_path("ckpt"), false, NULL, 0, 'o', &err), TSR_OK);
        faulty_sys faulty = faulty_sys_make();
        faulty.writes_only = true;
        faulty.fail_at = n;
        faulty.stays = true;
        faulty.error = EIO;
        tsr_status status = save(&faulty.sys, scratch_path("ckpt"), true, obsolete, 3, 'n', &err);
        char now = verdict("ckpt");
        assert_true(now == 'o' || now == 'n');
        assert_true(now >= 'n' && last >= now); /* once it is new, it stays new */
        last = now;
        scratch_remove();
        scratch_make();
        if (faulty.calls < n) {
            assert_int_equal(status, TSR_OK);
            assert_int_equal(now, 'n');
            break;
        }
    }
}

static void test_native_directory_output__one_file_is_replaced_by_its_rename(void **state)
{
    (void)state;
    for (unsigned long n = 0; n < 12; n++) {
        scratch_write("m.pt", "old", 3);
        faulty_sys faulty = faulty_sys_make();
        faulty.writes_only = true;
        faulty.fail_at = n;
        faulty.error = EIO;
        const tsr_directory_output_options options = {.existing = TSR_EXISTING_REPLACED};
        tsr_error err = {0};
        tsr_output *output;
        uint32_t file;
        char text[256] = "";
        assert_int_equal(
            tsr_directory_output_open(&faulty.sys, &tsr_allocator_libc, scratch_path("m.pt"), &options, &output, &err),
            TSR_OK);
        tsr_status status = put(output, "", 'n', 100, &file, &err);
        assert_int_equal(scratch_read("m.pt", text, sizeof text), 3);
        if (status == TSR_OK) status = output->publish(output, file, &err);
        output->close(output);
        long size = scratch_read("m.pt", text, sizeof text);
        assert_true(status == TSR_OK ? size == 100 && text[99] == 'n' : size == 3 || size == 100);
        if (n == 0) assert_int_equal(status, TSR_OK);
        assert_string_equal(scratch_list(""), "m.pt");
    }
}

/* A killed run with the same process number (usual in containers) has left its temporary names. */
static void test_native_directory_output__leftovers_do_not_stop_a_run(void **state)
{
    (void)state;
    const tsr_str obsolete[] = {TSR_STR("__0_0.distcp"), TSR_STR("__1_0.distcp"), TSR_STR(".metadata")};
    char name[64];
    tsr_error err = {0};
    snprintf(name, sizeof name, ".ckpt.tessera-%u/x", (unsigned)getpid());
    scratch_write(name, "x", 1);
    assert_int_equal(save(NULL, scratch_path("ckpt"), false, NULL, 0, 'o', &err), TSR_OK);
    snprintf(name, sizeof name, "ckpt/.tessera-%u-1", (unsigned)getpid());
    scratch_write(name, "x", 1);
    assert_int_equal(save(NULL, scratch_path("ckpt"), true, obsolete, 3, 'n', &err), TSR_OK);
    assert_int_equal(verdict("ckpt"), 'n');
}

/* Two outputs with one tag are two processes of one job: each writes its half, and one publishes. */
static void test_native_directory_output__outputs_of_one_tag_share_their_files(void **state)
{
    (void)state;
    static const bool kinds[] = {true, false};
    for (int k = 0; k < 2; k++) {
        tsr_directory_output_options options = {.is_directory = kinds[k], .tag = "job-1", .unfinished = TSR_UNFINISHED_KEPT};
        const tsr_str name = kinds[k] ? TSR_STR("data") : TSR_STR("");
        tsr_output *outputs[2];
        uint32_t files[2];
        char text[9] = {0};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(
                tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path("out"), &options, &outputs[i], NULL),
                TSR_OK);
            assert_int_equal(outputs[i]->create(outputs[i], name, 8, &files[i], NULL), TSR_OK);
            options.begun = TSR_BEGUN_JOINED;
        }
        assert_int_equal(outputs[1]->write_at(outputs[1], files[1], 4, "EFGH", 4, NULL), TSR_OK);
        assert_int_equal(outputs[0]->write_at(outputs[0], files[0], 0, "ABCD", 4, NULL), TSR_OK);
        outputs[1]->close(outputs[1]);
        assert_string_equal(scratch_list(""), ".out.tessera-job-1"); /* kept */
        assert_int_equal(outputs[0]->sync(outputs[0], NULL), TSR_OK);
        assert_int_equal(outputs[0]->publish(outputs[0], files[0], NULL), TSR_OK);
        outputs[0]->close(outputs[0]);
        assert_string_equal(scratch_list(""), "out");
        assert_int_equal(scratch_read(kinds[k] ? "out/data" : "out", text, 8), 8);
        assert_string_equal(text, "ABCDEFGH");
        scratch_remove();
        scratch_make();
    }
}

/* Zeros become holes, and everything is read back as it was written. */
static void test_native_directory_output__zeros_become_holes(void **state)
{
    (void)state;
    enum { SIZE = 3 << 20, AT = (1 << 20) + 17 };
    const tsr_directory_output_options options = {.holes = true};
    static uint8_t bytes[SIZE], back[SIZE];
    tsr_output *output;
    tsr_store *store;
    uint32_t file;
    struct stat info;
    memset(bytes, 0, SIZE);
    memset(bytes + AT, 7, 70000);
    bytes[SIZE - 1] = 9;
    assert_int_equal(tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path("out"), &options, &output, NULL),
                     TSR_OK);
    assert_int_equal(output->create(output, TSR_STR(""), SIZE, &file, NULL), TSR_OK);
    for (size_t at = 0, n; at < SIZE; at += n) {     /* in pieces of an odd size */
        n = SIZE - at < 300001 ? SIZE - at : 300001; /* pieces share blocks */
        assert_int_equal(output->write_at(output, file, at, bytes + at, n, NULL), TSR_OK);
    }
    assert_int_equal(output->publish(output, file, NULL), TSR_OK);
    output->close(output);
    assert_int_equal(stat(scratch_path("out"), &info), 0);
    assert_int_equal(info.st_size, SIZE);
    assert_int_equal(tsr_directory_store_open(NULL, &tsr_allocator_libc, scratch_path("out"), &store, NULL), TSR_OK);
    assert_int_equal(tsr_store_read(store, 0, 0, back, SIZE, NULL), TSR_OK);
    assert_memory_equal(back, bytes, SIZE);
    if ((size_t)info.st_blocks * 512 < SIZE) { /* the file system supports holes */
        assert_true(tsr_directory_store_has_holes(store));
        assert_true((size_t)info.st_blocks * 512 < (1 << 20));
    }
    memset(back, 1, SIZE);
    assert_int_equal(tsr_store_read(store, 0, 2 << 20, back, 1 << 19, NULL), TSR_OK); /* all of it is a hole */
    assert_memory_equal(back, bytes + (2 << 20), 1 << 19);
    store->close(store);
}

static void test_native_directory_output__destinations_in_the_source_are_refused(void **state)
{
    (void)state;
    scratch_write("src/.metadata", "x", 1);
    scratch_write("one.pt", "x", 1);
    const struct {
        const char *destination, *source;
        bool is_directory;
    } cases[] = {{"src/out", "src", true}, {"src", "src", true}, {"src/out.pt", "src", false}, {"one.pt", "one.pt", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char source[600];
        snprintf(source, sizeof source, "%s", scratch_path(cases[i].source));
        const char *const sources[] = {"elsewhere", source};
        const tsr_directory_output_options options = {
            .is_directory = cases[i].is_directory, .existing = TSR_EXISTING_REPLACED, .sources = sources, .source_count = 2};
        tsr_error err = {0};
        tsr_output *output;
        assert_int_equal(tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path(cases[i].destination), &options,
                                                   &output, &err),
                         TSR_E_USAGE);
        assert_non_null(strstr(err.message, "source"));
    }
    assert_string_equal(scratch_list("src"), ".metadata");
}

static void test_native_directory_output__copies_ranges_between_files(void **state)
{
    (void)state;
    scratch_write("in/data", "0123456789", 10);
    tsr_error err = {0};
    tsr_store *store;
    tsr_output *output;
    uint32_t file;
    char text[16];
    faulty_sys faulty = faulty_sys_make();
    faulty.short_transfers = 3;
    assert_int_equal(tsr_directory_store_open(NULL, &tsr_allocator_libc, scratch_path("in"), &store, &err), TSR_OK);
    const tsr_directory_output_options options = {.is_directory = false};
    assert_int_equal(
        tsr_directory_output_open(&faulty.sys, &tsr_allocator_libc, scratch_path("out"), &options, &output, &err), TSR_OK);
    assert_int_equal(output->create(output, TSR_STR(""), 8, &file, &err), TSR_OK);
    tsr_status status = output->copy_range(output, file, 0, &(tsr_copied_range){store, 0, 2, 8}, &err);
    if (status == TSR_OK) {
        assert_int_equal(output->publish(output, file, &err), TSR_OK);
        assert_int_equal(scratch_read("out", text, sizeof text), 8);
        assert_memory_equal(text, "23456789", 8);
    } else {
        assert_int_equal(status, TSR_E_UNSUPPORTED); /* on a file system that cannot copy ranges */
    }
    output->close(output);
    store->close(store);
}

/* ---- another program changes the destination in the meantime ---- */

/* Writes over "out" (a directory with "data", ".metadata" and "notes.txt"; or a file) what a run decided to replace, while
 * `meanwhile` happens just before the output is published. */
static tsr_status replace_while(const tsr_directory_output_options *options, void (*meanwhile)(void), tsr_error *err)
{
    tsr_output *output;
    uint32_t file, marker = TSR_NO_FILE;
    const bool directory = options->is_directory;
    assert_int_equal(tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path("out"), options, &output, err),
                     TSR_OK);
    assert_int_equal(put(output,
                         !directory                                  ? ""
                         : options->existing == TSR_EXISTING_SWAPPED ? "data"
                                                                     : "data1",
                         'n', 9, &file, err),
                     TSR_OK);
    if (directory) assert_int_equal(put(output, ".metadata", 'n', 9, &marker, err), TSR_OK);
    meanwhile();
    const tsr_status status = output->publish(output,
                                              !directory                                  ? file
                                              : options->existing == TSR_EXISTING_SWAPPED ? TSR_NO_FILE
                                                                                          : marker,
                                              err);
    output->close(output);
    return status;
}

static void save_data(void)
{
    char to[256];
    snprintf(to, sizeof to, "%s", scratch_path("out/data"));
    scratch_write("out/saved", "newer", 5);
    assert_int_equal(rename(scratch_path("out/saved"), to), 0);
}

static void save_marker(void)
{
    scratch_write("out/.metadata", "newer", 5);
}

static void move_away(void)
{
    char to[256];
    snprintf(to, sizeof to, "%s", scratch_path("mine"));
    assert_int_equal(rename(scratch_path("out"), to), 0);
}

static void move_away_and_begin_another(void)
{
    move_away();
    scratch_write("out/data", "newer", 5);
}

static void start_with(bool directory, bool marker)
{
    scratch_remove();
    scratch_make();
    if (!directory) return;
    scratch_write("out/data", "old", 3);
    scratch_write("out/notes.txt", "mine", 4);
    if (marker) scratch_write("out/.metadata", "old", 3);
}

static void test_native_directory_output__what_another_program_saved_is_not_replaced(void **state)
{
    (void)state;
    static const tsr_str obsolete[] = {{"data", 4}, {".metadata", 9}};
    static void (*const acts[])(void) = {save_data, save_marker, move_away, move_away_and_begin_another};
    for (int a = 0; a < 4; a++) {
        for (int swap = 0; swap < 2; swap++) {
            const tsr_directory_output_options options = {.is_directory = true,
                                                          .existing = swap ? TSR_EXISTING_SWAPPED : TSR_EXISTING_REPLACED,
                                                          .obsolete = obsolete,
                                                          .obsolete_count = 2};
            tsr_error err = {0};
            char text[16];
            start_with(true, true);
            assert_int_equal(replace_while(&options, acts[a], &err), TSR_E_CHANGED);
            assert_non_null(strstr(err.message, "'out'"));
            assert_string_equal(scratch_list(""), a == 2 ? "mine" : a == 3 ? "mine out" : "out");
            assert_string_equal(scratch_list(a < 2 ? "out" : "mine"), ".metadata data notes.txt");
            assert_int_equal(scratch_read(a < 2 ? "out/data" : "mine/data", text, sizeof text), a == 0 ? 5 : 3);
            assert_int_equal(scratch_read(a < 2 ? "out/.metadata" : "mine/.metadata", text, sizeof text), a == 1 ? 5 : 3);
            if (a == 3) assert_int_equal(scratch_read("out/data", text, sizeof text), 5);
        }
    }
}

static void test_native_directory_output__a_marker_that_appears_is_not_replaced(void **state)
{
    (void)state;
    const tsr_directory_output_options options = {.is_directory = true, .existing = TSR_EXISTING_REPLACED};
    tsr_error err = {0};
    char text[16];
    start_with(true, false);
    assert_int_equal(replace_while(&options, save_marker, &err), TSR_E_EXISTS);
    assert_non_null(strstr(err.message, ".metadata"));
    assert_string_equal(scratch_list("out"), ".metadata data notes.txt");
    assert_int_equal(scratch_read("out/.metadata", text, sizeof text), 5);
}

static void write_file(void)
{
    scratch_write("out", "newer", 5);
}

static void remove_file(void)
{
    assert_int_equal(unlink(scratch_path("out")), 0);
}

static void test_native_directory_output__a_file_that_another_program_wrote_is_not_replaced(void **state)
{
    (void)state;
    const tsr_directory_output_options options = {.existing = TSR_EXISTING_REPLACED};
    char text[16];
    for (int existed = 0; existed < 2; existed++) {
        tsr_error err = {0};
        start_with(false, false);
        if (existed) scratch_write("out", "old", 3);
        assert_int_equal(replace_while(&options, write_file, &err), TSR_E_CHANGED);
        assert_non_null(strstr(err.message, "'out'"));
        assert_string_equal(scratch_list(""), "out");
        assert_int_equal(scratch_read("out", text, sizeof text), 5);
    }
    start_with(false, false);
    scratch_write("out", "old", 3);
    assert_int_equal(replace_while(&options, remove_file, NULL), TSR_OK); /* nothing of anybody is replaced */
    assert_int_equal(scratch_read("out", text, sizeof text), 9);
}

static void test_native_directory_output__many_files_need_few_descriptors(void **state)
{
    (void)state;
    const tsr_directory_output_options options = {.is_directory = true};
    tsr_error err = {0};
    tsr_output *output;
    uint32_t files[400];
    char name[16], text[8];
    assert_int_equal(tsr_directory_output_open(NULL, &tsr_allocator_libc, scratch_path("many"), &options, &output, &err),
                     TSR_OK);
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "%03d", i);
        assert_int_equal(output->create(output, tsr_str_from(name), 0, &files[i], &err), TSR_OK);
    }
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "%03d", i);
        assert_int_equal(output->write_at(output, files[i], 0, name, 3, &err), TSR_OK);
    }
    for (int i = 0; i < 400; i++) { /* in another order, in which most have to be opened again */
        const int file = i * 271 % 400;
        snprintf(name, sizeof name, "%03d", 399 - file);
        assert_int_equal(output->write_at(output, files[file], 3, name, 3, &err), TSR_OK);
    }
    assert_int_equal(output->publish(output, TSR_NO_FILE, &err), TSR_OK);
    output->close(output);
    for (int i = 0; i < 400; i++) {
        char path[24], wanted[24];
        snprintf(path, sizeof path, "many/%03d", i);
        snprintf(wanted, sizeof wanted, "%03d%03d", i, 399 - i);
        assert_int_equal(scratch_read(path, text, sizeof text), 6);
        assert_memory_equal(text, wanted, 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_directory_output__a_new_directory_appears_whole),
        SCRATCH_TEST(test_native_directory_output__an_existing_destination_is_refused),
        SCRATCH_TEST(test_native_directory_output__what_is_no_file_is_never_replaced),
        SCRATCH_TEST(test_native_directory_output__replacing_keeps_what_is_not_the_old_checkpoint),
        SCRATCH_TEST(test_native_directory_output__a_failing_call_leaves_no_trace),
        SCRATCH_TEST(test_native_directory_output__stopping_anywhere_leaves_old_or_new),
        SCRATCH_TEST(test_native_directory_output__one_file_is_replaced_by_its_rename),
        SCRATCH_TEST(test_native_directory_output__leftovers_do_not_stop_a_run),
        SCRATCH_TEST(test_native_directory_output__outputs_of_one_tag_share_their_files),
        SCRATCH_TEST(test_native_directory_output__zeros_become_holes),
        SCRATCH_TEST(test_native_directory_output__destinations_in_the_source_are_refused),
        SCRATCH_TEST(test_native_directory_output__copies_ranges_between_files),
        SCRATCH_TEST(test_native_directory_output__what_another_program_saved_is_not_replaced),
        SCRATCH_TEST(test_native_directory_output__a_marker_that_appears_is_not_replaced),
        SCRATCH_TEST(test_native_directory_output__a_file_that_another_program_wrote_is_not_replaced),
        SCRATCH_TEST(test_native_directory_output__many_files_need_few_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
