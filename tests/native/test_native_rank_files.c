/* Files of ranks, which get their names together: a save that ends at any of its calls leaves the old checkpoint or the new one, or, where
 * files have to be moved, none that has its marker. The next save removes the rest, and nothing of others. */
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
#include <unistd.h>

#include "native/scratch.h"
#include "publish/saves.h"
#include "tessera/status.h"
#include "tessera/store.h"

#define INDEX  "model.safetensors.index.json"
#define WHOLE  "model-1.safetensors"
#define SHARD  "sharded/shard-1.safetensors"
#define DURING "what another program has written during the save"

static tsr_status open_files(const tsr_sys *sys, tsr_rank_files **out, tsr_error *err)
{
    const tsr_rank_files_request request = {.sys = sys, .path = scratch_path("d"), .ranks = 2, .is_durable = true};
    *out = NULL;
    return tsr_rank_files_open(&request, out, err);
}

/* Writes one of the new files, as a rank does. */
static bool put(const tsr_sys *sys, const char *name)
{
    char directory[PATH_MAX], path[PATH_MAX + 64];
    if (tsr_rank_files_directory(scratch_path("d"), directory, NULL) != TSR_OK) return false;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    const int fd = sys->open_at(sys, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    const bool done = fd >= 0 && sys->write_at(sys, fd, "new", 3, 0) == 3;
    if (fd >= 0) sys->close(sys, fd);
    return done;
}

static bool put_shard(const tsr_sys *sys)
{
    char directory[PATH_MAX];
    const tsr_str names[] = {TSR_STR(SHARD)};
    const tsr_rank_files_request request = {.sys = sys, .path = scratch_path("d"), .ranks = 2};
    if (tsr_rank_files_journal(&request, 1, (tsr_journal_files){names, 1}, NULL) != TSR_OK) return false;
    if (tsr_rank_files_directory(scratch_path("d"), directory, NULL) != TSR_OK) return false;
    strcat(directory, "/sharded");
    return sys->make_directory(sys, AT_FDCWD, directory, 0700) == 0 && put(sys, SHARD);
}

static tsr_status begin(tsr_rank_files *files, tsr_error *err)
{
    const tsr_str own[] = {TSR_STR(WHOLE), TSR_STR(INDEX)}, old[] = {TSR_STR(INDEX), TSR_STR(WHOLE), TSR_STR(SHARD)};
    return tsr_rank_files_begin(files, (tsr_journal_files){own, 2}, old, 3, err);
}

/* Writes a file of whole tensors, as joining the shards does. */
static bool put_whole(tsr_rank_files *files)
{
    uint32_t file;
    tsr_output *output = tsr_rank_files_output(files);
    return output->create(output, TSR_STR(WHOLE), 3, &file, NULL) == TSR_OK &&
           output->write_at(output, file, 0, "new", 3, NULL) == TSR_OK;
}

static tsr_status publish(tsr_rank_files *files, tsr_error *err)
{
    const tsr_str names[] = {TSR_STR(SHARD), TSR_STR(INDEX)};
    return tsr_rank_files_publish(files, names, 2, 1, err);
}

/* Saves like tessera.torch.StorageWriter(…, form="safetensors"). */
static bool save(const tsr_sys *sys)
{
    tsr_rank_files *files;
    const bool done = open_files(sys, &files, NULL) == TSR_OK && begin(files, NULL) == TSR_OK && put_shard(sys) &&
                      put_whole(files) && put(sys, INDEX) && publish(files, NULL) == TSR_OK;
    tsr_rank_files_close(files);
    return done;
}

static void start_over(bool has_directory)
{
    static const char *const names[] = {"d/" INDEX, "d/" WHOLE, "d/" SHARD, "d/notes"};
    scratch_remove();
    scratch_make();
    assert_true(mkdir(scratch_path("d"), 0777) == 0 && mkdir(scratch_path("d/sharded"), 0777) == 0);
    if (has_directory) assert_int_equal(mkdir(scratch_path("d/mine"), 0777), 0);
    for (size_t i = 0; i < 4; i++) scratch_write(names[i], "old", 3);
}

/* The first letter of what a file contains, 'o' for old and 'n' for new, or '-' if there is none. */
static char state_of(const char *name)
{
    char text[64];
    return scratch_read(name, text, sizeof text) > 0 ? text[0] : '-';
}

static char checkpoint(void)
{
    const char marker = state_of("d/" INDEX);
    if (marker != '-') assert_true(state_of("d/" WHOLE) == marker && state_of("d/" SHARD) == marker);
    return marker;
}

static void clean_up(bool has_directory)
{
    static const char *const others[] = {"notes", "mine notes"};
    const char before = checkpoint();
    char want[256];
    tsr_rank_files *next;
    assert_int_equal(open_files(NULL, &next, NULL), TSR_OK);
    tsr_rank_files_close(next);
    assert_int_equal(checkpoint(), before);
    snprintf(want, sizeof want, before == '-' ? "%s" : "%s sharded", others[has_directory]);
    if (before == '-') assert_string_equal(scratch_list("d"), want);
    else assert_true(state_of("d/notes") == 'o');
    assert_string_equal(scratch_list(""), "d");
}

enum { NOBODY = 65534 };

/* Makes it impossible to create anything next to the directory, for root by being somebody else. */
static void close_parent(void)
{
    static const char *const names[] = {"d", "d/sharded", "d/" INDEX, "d/" WHOLE, "d/" SHARD, "d/notes"};
    assert_int_equal(chmod(scratch_path(""), 0555), 0);
    if (geteuid()) return;
    for (size_t i = 0; i < 6; i++) assert_int_equal(chown(scratch_path(names[i]), NOBODY, (gid_t)-1), 0);
    assert_int_equal(seteuid(NOBODY), 0);
}

static void open_parent(void)
{
    if (geteuid() != getuid()) assert_int_equal(seteuid(getuid()), 0);
    assert_int_equal(chmod(scratch_path(""), 0700), 0);
}

static void end_at_every_call(bool has_directory, bool is_within, const char *possible)
{
    bool done = false, seen[3] = {false};
    unsigned long n = 0;
    while (!done) {
        start_over(has_directory);
        if (is_within) close_parent();
        faulty_sys killed = faulty_sys_make();
        killed.fail_at = ++n;
        killed.stays = killed.writes_only = true;
        killed.error = EIO;
        done = save(&killed.sys);
        const char *at = strchr(possible, checkpoint());
        assert_non_null(at);
        seen[at - possible] = true;
        clean_up(has_directory);
        if (is_within) open_parent();
    }
    for (size_t i = 0; i < strlen(possible); i++) assert_true(seen[i]);
    assert_true(n > 20);
    assert_int_equal(checkpoint(), 'n');
}

static void test_native_rank_files__one_that_is_killed_leaves_the_old_or_the_new_checkpoint(void **state)
{
    (void)state;
    end_at_every_call(false, false, "on");
}

static void test_native_rank_files__where_files_are_moved_there_is_no_marker_in_between(void **state)
{
    (void)state;
    end_at_every_call(true, false, "o-n");
    struct stat info;
    assert_int_equal(stat(scratch_path("d/mine"), &info), 0);
}

static void test_native_rank_files__where_nothing_can_be_made_next_to_the_directory_it_is_made_in_it(void **state)
{
    (void)state;
    end_at_every_call(false, true, "o-n");
}

static void test_native_rank_files__what_looks_like_ours_stays(void **state)
{
    tsr_error err = {0};
    tsr_rank_files *files;
    char directory[PATH_MAX], path[PATH_MAX + 32];
    (void)state;
    start_over(false);
    assert_int_equal(tsr_rank_files_directory(scratch_path("d"), directory, NULL), TSR_OK);
    assert_int_equal(mkdir(directory, 0777), 0);
    const char *name = strrchr(directory, '/') + 1;
    snprintf(path, sizeof path, "%s/" WHOLE, name);
    scratch_write(path, "theirs", 6);
    assert_int_equal(mkdir(scratch_path(".d.tessera-save-0123456789abcdef"), 0777), 0);
    scratch_write(".d.tessera-save-0123456789abcdef/" WHOLE, "theirs", 6);
    assert_int_equal(open_files(NULL, &files, NULL), TSR_OK);
    assert_int_equal(begin(files, &err), TSR_E_EXISTS);
    assert_non_null(strstr(err.message, name));
    tsr_rank_files_close(files);
    assert_int_equal(state_of(path), 't');
    assert_int_equal(state_of(".d.tessera-save-0123456789abcdef/" WHOLE), 't');
    assert_int_equal(checkpoint(), 'o');
}

static void test_native_rank_files__a_file_that_another_program_put_among_them_is_neither_published_nor_removed(void **state)
{
    tsr_error err = {0};
    tsr_rank_files *files;
    char directory[PATH_MAX], path[PATH_MAX + 32];
    (void)state;
    start_over(false);
    assert_int_equal(open_files(NULL, &files, NULL), TSR_OK);
    assert_int_equal(begin(files, NULL), TSR_OK);
    assert_true(put_shard(&tsr_sys_posix) && put_whole(files) && put(&tsr_sys_posix, INDEX));
    assert_int_equal(tsr_rank_files_directory(scratch_path("d"), directory, NULL), TSR_OK);
    snprintf(path, sizeof path, "%s/theirs", strrchr(directory, '/') + 1);
    scratch_write(path, "theirs", 6);
    assert_int_equal(publish(files, &err), TSR_E_EXISTS);
    tsr_rank_files_close(files);
    assert_int_equal(checkpoint(), 'o');
    assert_int_equal(state_of(path), 't');
}

static void test_native_rank_files__what_another_program_changed_is_not_replaced(void **state)
{
    (void)state;
    for (int has_directory = 0; has_directory < 2; has_directory++) {
        tsr_error err = {0};
        tsr_rank_files *files;
        start_over(has_directory);
        assert_int_equal(open_files(NULL, &files, NULL), TSR_OK);
        assert_int_equal(begin(files, NULL), TSR_OK);
        assert_true(put_shard(&tsr_sys_posix) && put_whole(files) && put(&tsr_sys_posix, INDEX));
        scratch_write("d/" SHARD, DURING, sizeof DURING);
        assert_int_equal(publish(files, &err), TSR_E_CHANGED);
        assert_non_null(strstr(err.message, SHARD));
        tsr_rank_files_close(files);
        assert_true(state_of("d/" INDEX) == 'o' && state_of("d/" WHOLE) == 'o');
        assert_string_equal(scratch_list(""), "d");
    }
}

static void test_native_rank_files__a_name_that_somebody_else_has_taken_is_an_error_and_keeps_the_old_checkpoint(
    void **state)
{
    const tsr_str own[] = {TSR_STR("model-2.safetensors")}, old[] = {TSR_STR(INDEX), TSR_STR(WHOLE), TSR_STR(SHARD)};
    (void)state;
    for (int has_directory = 0; has_directory < 2; has_directory++) {
        tsr_rank_files *files;
        start_over(has_directory);
        assert_int_equal(open_files(NULL, &files, NULL), TSR_OK);
        assert_int_equal(tsr_rank_files_begin(files, (tsr_journal_files){own, 1}, old, 3, NULL), TSR_OK);
        assert_true(put(&tsr_sys_posix, "model-2.safetensors"));
        scratch_write("d/model-2.safetensors", DURING, sizeof DURING);
        assert_int_equal(tsr_rank_files_publish(files, own, 1, TSR_NO_FILE, NULL), TSR_E_EXISTS);
        tsr_rank_files_close(files);
        assert_int_equal(checkpoint(), 'o');
        assert_int_equal(state_of("d/model-2.safetensors"), 'w');
        assert_string_equal(scratch_list(""), "d");
    }
}

static void test_native_rank_files__what_ranks_write_after_their_coordinator_has_left_is_removed_by_the_next_save(
    void **state)
{
    tsr_rank_files *files;
    (void)state;
    start_over(false);
    assert_int_equal(open_files(NULL, &files, NULL), TSR_OK);
    assert_int_equal(begin(files, NULL), TSR_OK);
    tsr_rank_files_leave(files);
    assert_true(put_shard(&tsr_sys_posix));
    clean_up(false);
    assert_int_equal(checkpoint(), 'o');
}

static void test_native_rank_files__only_one_job_writes_to_a_directory(void **state)
{
    tsr_error err = {0};
    tsr_rank_files *first, *second;
    tsr_save *save = NULL;
    (void)state;
    start_over(false);
    assert_int_equal(open_files(NULL, &first, NULL), TSR_OK);
    assert_int_equal(open_files(NULL, &second, &err), TSR_E_EXISTS);
    assert_non_null(strstr(err.message, "another process is replacing 'd'"));
    const tsr_save_request options = {.path = scratch_path("d"), .rank = -1};
    assert_int_equal(tsr_save_open(&options, &save, NULL), TSR_E_EXISTS);
    tsr_rank_files_close(first);
    assert_int_equal(open_files(NULL, &second, NULL), TSR_OK);
    tsr_rank_files_close(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_rank_files__one_that_is_killed_leaves_the_old_or_the_new_checkpoint),
        SCRATCH_TEST(test_native_rank_files__where_files_are_moved_there_is_no_marker_in_between),
        SCRATCH_TEST(test_native_rank_files__where_nothing_can_be_made_next_to_the_directory_it_is_made_in_it),
        SCRATCH_TEST(test_native_rank_files__what_looks_like_ours_stays),
        SCRATCH_TEST(test_native_rank_files__a_file_that_another_program_put_among_them_is_neither_published_nor_removed),
        SCRATCH_TEST(test_native_rank_files__what_another_program_changed_is_not_replaced),
        SCRATCH_TEST(test_native_rank_files__a_name_that_somebody_else_has_taken_is_an_error_and_keeps_the_old_checkpoint),
        SCRATCH_TEST(test_native_rank_files__what_ranks_write_after_their_coordinator_has_left_is_removed_by_the_next_save),
        SCRATCH_TEST(test_native_rank_files__only_one_job_writes_to_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
