/* The directory store: what it lists, that reads are complete, and that faults become errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "native/scratch.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/store.h"

static tsr_store *open_store(const char *path)
{
    tsr_error err = {0};
    tsr_store *store = NULL;
    if (tsr_directory_store_open(NULL, &tsr_allocator_libc, path, &store, &err) != TSR_OK) fail_msg("%s", err.message);
    return store;
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    scratch_write(".metadata", "meta", 4);
    scratch_write("__0_0.distcp", "0123456789", 10);
    scratch_write("step-1/.metadata", "m1", 2);
    scratch_write("m.index.json", " {\"weight_map\":{}}", 18);
    scratch_write("m.safetensors", "\x02\0\0\0\0\0\0\0{}", 10);
    symlink("__0_0.distcp", scratch_path("link.bin"));
    mkfifo(scratch_path("pipe"), 0600);
    return 0;
}

static void test_native_directory_store__lists_files_and_one_level_below(void **state)
{
    (void)state;
    static const char *const expected[] = {".metadata",    "__0_0.distcp",  "link.bin",
                                           "m.index.json", "m.safetensors", "step-1/.metadata"};
    tsr_store *store = open_store(scratch_path(""));
    assert_int_equal(store->file_count, 6); /* the pipe is not listed */
    for (uint32_t i = 0; i < 6; i++) assert_string_equal(store->files[i].name.data, expected[i]);
    assert_int_equal(store->primary, TSR_NO_FILE);
    char text[10];
    assert_int_equal(tsr_store_read(store, tsr_store_find(store, TSR_STR("link.bin")), 2, text, 4, NULL), TSR_OK);
    assert_memory_equal(text, "2345", 4);
    store->close(store);
}

/* What a killed writer leaves must never be taken for part of the checkpoint. The directory it leaves can still be opened by
 * itself. */
static void test_native_directory_store__temporary_names_are_not_listed(void **state)
{
    (void)state;
    scratch_write(".tessera-w0123456789abcdef-0", "x", 1);
    scratch_write(".m.tessera-w0123456789abcdef", "x", 1);
    scratch_write("step-1/.tessera-4711-0", "x", 1);
    scratch_write(".step-2.tessera-77/.metadata", "x", 1);
    scratch_write(".n.tessera-77", "{\"weight_map\":{}}", 17);
    tsr_store *store = open_store(scratch_path(""));
    for (uint32_t i = 0; i < store->file_count; i++) assert_null(strstr(store->files[i].name.data, "tessera"));
    assert_int_equal(store->file_count, 6);
    store->close(store);
    store = open_store(scratch_path(".step-2.tessera-77"));
    assert_int_equal(store->file_count, 1);
    store->close(store);
    store = open_store(scratch_path(".n.tessera-77"));
    assert_string_equal(store->files[store->primary].name.data, ".n.tessera-77");
    store->close(store);
}

static void test_native_directory_store__a_file_stands_for_itself_or_its_set(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t count;
        const char *primary;
    } cases[] = {{"m.safetensors", 1, "m.safetensors"},
                 {"__0_0.distcp", 1, "__0_0.distcp"},
                 {"m.index.json", 5, "m.index.json"},
                 {".metadata", 5, ".metadata"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_store *store = open_store(scratch_path(cases[i].path));
        assert_int_equal(store->file_count, cases[i].count);
        assert_string_equal(store->files[store->primary].name.data, cases[i].primary);
        store->close(store);
    }
}

static void test_native_directory_store__refuses_what_is_no_file(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        tsr_status status;
    } cases[] = {{"absent", TSR_E_NOT_FOUND}, {"pipe", TSR_E_UNSUPPORTED}};
    for (size_t i = 0; i < 2; i++) {
        tsr_error err = {0};
        tsr_store *store = NULL;
        assert_int_equal(tsr_directory_store_open(NULL, &tsr_allocator_libc, scratch_path(cases[i].path), &store, &err),
                         cases[i].status);
        assert_non_null(strstr(err.message, cases[i].path));
    }
}

static void test_native_directory_store__short_reads_and_eintr_are_made_whole(void **state)
{
    (void)state;
    faulty_sys faulty = faulty_sys_make();
    tsr_store *store;
    assert_int_equal(tsr_directory_store_open(&faulty.sys, &tsr_allocator_libc, scratch_path("__0_0.distcp"), &store, NULL),
                     TSR_OK);
    faulty.short_transfers = 3;
    faulty.calls = 0;
    faulty.fail_at = 3;
    faulty.error = EINTR;
    char text[10];
    assert_int_equal(tsr_store_read(store, 0, 0, text, 10, NULL), TSR_OK);
    assert_memory_equal(text, "0123456789", 10);
    assert_int_equal(faulty.calls, 6); /* open, 4 short reads, 1 interrupted */
    store->close(store);
}

static void test_native_directory_store__every_failing_call_is_an_error_that_names_the_file(void **state)
{
    (void)state;
    for (unsigned long n = 1; n < 100; n++) {
        faulty_sys faulty = faulty_sys_make();
        faulty.fail_at = n;
        faulty.error = EIO;
        tsr_error err = {0};
        tsr_store *store = NULL;
        char text[10];
        tsr_status status =
            tsr_directory_store_open(&faulty.sys, &tsr_allocator_libc, scratch_path("__0_0.distcp"), &store, &err);
        if (status == TSR_OK) {
            status = tsr_store_read(store, 0, 0, text, 10, &err);
            if (status == TSR_OK) status = tsr_directory_store_unchanged(store, &err);
            store->close(store);
        }
        if (faulty.calls < n) {
            assert_int_equal(status, TSR_OK);
            assert_true(n > 5);
            return;
        }
        if (status != TSR_OK) assert_int_equal(status, TSR_E_IO); /* a failed look for JSON is not an error */
    }
    fail();
}

static void test_native_directory_store__a_truncated_file_ends_early(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_store *store = open_store(scratch_path("__0_0.distcp"));
    assert_int_equal(truncate(scratch_path("__0_0.distcp"), 7), 0);
    char text[10];
    assert_int_equal(tsr_store_read(store, 0, 0, text, 10, &err), TSR_E_IO);
    assert_int_equal(err.byte_position, 7);
    err = (tsr_error){0};
    assert_int_equal(tsr_directory_store_unchanged(store, &err), TSR_E_CHANGED);
    assert_non_null(strstr(err.message, "__0_0.distcp"));
    store->close(store);
}

static void test_native_directory_store__keeps_few_descriptors_open(void **state)
{
    (void)state;
    char name[32];
    for (int i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "many/%03d", i);
        scratch_write(name, name, 8);
    }
    tsr_store *store = open_store(scratch_path("many"));
    assert_int_equal(store->file_count, 400);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 400; i++) {
            char text[8];
            assert_int_equal(tsr_store_read(store, i, 0, text, 8, NULL), TSR_OK);
            assert_memory_equal(text + 5, store->files[i].name.data, 3);
        }
    }
    int highest = open("/dev/null", O_RDONLY);
    assert_in_range(highest, 0, 256 + 32);
    close(highest);
    assert_int_equal(tsr_directory_store_unchanged(store, NULL), TSR_OK);
    store->close(store);
}

static void test_native_directory_store__maps_large_files(void **state)
{
    (void)state;
    char *big = calloc(1, 3 << 20);
    big[(3 << 20) - 1] = 'z';
    scratch_write("big/file", big, 3 << 20);
    free(big);
    tsr_store *store = open_store(scratch_path("big"));
    tsr_str mapped;
    assert_int_equal(store->map(store, 0, &mapped, NULL), TSR_OK);
    assert_int_equal(mapped.size, 3 << 20);
    assert_int_equal(mapped.data[mapped.size - 1], 'z');
    store->unmap(store, 0, mapped);
    store->close(store);
    store = open_store(scratch_path("__0_0.distcp"));
    assert_int_equal(store->map(store, 0, &mapped, NULL), TSR_E_UNSUPPORTED);
    store->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_native_directory_store__lists_files_and_one_level_below, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__temporary_names_are_not_listed, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__a_file_stands_for_itself_or_its_set, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__refuses_what_is_no_file, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__short_reads_and_eintr_are_made_whole, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__every_failing_call_is_an_error_that_names_the_file,
                                        setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__a_truncated_file_ends_early, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__keeps_few_descriptors_open, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_native_directory_store__maps_large_files, setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
