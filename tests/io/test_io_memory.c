#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "io/store_view.h"
#include "support/failing_allocator.h"
#include "tessera/output.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

static const tsr_memory_file files[] = {{{"b", 1}, {"second", 6}}, {{"a", 1}, {"first", 5}}};

static void test_io_memory__store_is_sorted_and_bounded(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_store *store;
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, files, 2, &store, &err), TSR_OK);
    assert_int_equal(tsr_store_find(store, TSR_STR("a")), 0);
    assert_int_equal(tsr_store_find(store, TSR_STR("b")), 1);
    assert_int_equal(tsr_store_find(store, TSR_STR("ab")), TSR_NO_FILE);
    char buffer[4];
    assert_int_equal(tsr_store_read(store, 1, 2, buffer, 4, &err), TSR_OK);
    assert_memory_equal(buffer, "cond", 4);
    static const struct {
        uint32_t file;
        uint64_t offset, size;
        tsr_status status;
    } cases[] = {{0, 5, 0, TSR_OK},
                 {0, 5, 1, TSR_E_IO},
                 {0, 6, 0, TSR_E_IO},
                 {0, 2, UINT64_MAX, TSR_E_IO},
                 {2, 0, 0, TSR_E_NOT_FOUND}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(tsr_store_read(store, cases[i].file, cases[i].offset, buffer, (size_t)cases[i].size, NULL),
                         cases[i].status);
    }
    store->close(store);
}

/* Reads through a store that cannot map files, so that loading must allocate. */
static tsr_status load_unmapped(const tsr_allocator *allocator, uint64_t limit, tsr_error *err)
{
    tsr_store *store;
    tsr_status status = tsr_store_from_memory(allocator, files, 2, &store, err);
    if (status != TSR_OK) return status;
    store->map = NULL;
    tsr_host host = {.allocator = allocator, .limits = tsr_limits_default()};
    host.limits.metadata_bytes = limit;
    tsr_bytes bytes;
    status = tsr_range_load((tsr_range){store, 1, 1, 4}, &host, &bytes, err);
    if (status == TSR_OK) assert_true(tsr_str_equal(bytes.data, TSR_STR("econ")));
    tsr_bytes_free(&bytes);
    store->close(store);
    return status;
}

static void test_io_memory__load_keeps_the_limit_and_survives_failures(void **state)
{
    (void)state;
    tsr_error err = {0};
    assert_int_equal(load_unmapped(&tsr_allocator_libc, 3, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "the limit of 3"));
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_status status = load_unmapped(&failing.allocator, 100, NULL);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

static void test_io_memory__output_takes_writes_in_any_order(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_output *output;
    uint32_t file;
    assert_int_equal(tsr_output_to_memory(&tsr_allocator_libc, &output, &err), TSR_OK);
    assert_int_equal(output->create(output, TSR_STR("x"), 0, &file, &err), TSR_OK);
    assert_int_equal(output->write_at(output, file, 4, "cd", 2, &err), TSR_OK);
    assert_int_equal(output->write_at(output, file, 0, "ab", 2, &err), TSR_OK);
    assert_int_equal(output->publish(output, TSR_NO_FILE, &err), TSR_OK);
    tsr_str bytes = tsr_output_memory_file(output, TSR_STR("x"));
    assert_int_equal(bytes.size, 6);
    assert_memory_equal(bytes.data, "ab\0\0cd", 6);
    assert_int_equal(output->create(output, TSR_STR("x"), 0, &file, &err), TSR_E_EXISTS);
    output->close(output);
}

/* Where 100,000 steps are opened one after the other, each must cost only what is in it. */
static void test_io_memory__a_directory_of_many_takes_what_is_in_it(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static const char *const wanted[] = {"s500/a", "s500/b/c"};
    static char names[COUNT][16];
    static tsr_memory_file many[COUNT];
    tsr_error err = {0};
    tsr_store *store, *below;
    bool is_own, holds_files;
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "s%zu/x", i + 1000);
        many[i] = (tsr_memory_file){tsr_str_from(names[i]), TSR_STR("")};
    }
    const char *const others[] = {"s500", "s500-1/a", "s500.b", "s5000/y", wanted[1], wanted[0]};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        many[i * 3000] = (tsr_memory_file){tsr_str_from(others[i]), TSR_STR("12")};
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, many, COUNT, &store, &err), TSR_OK);
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 4096, &err);
    assert_int_equal(tsr_store_open_below(store, TSR_STR("s500"), arena, &below, &is_own, &holds_files, &err), TSR_OK);
    assert_true(!is_own && holds_files);
    assert_int_equal(below->file_count, 2);
    for (uint32_t f = 0; f < 2; f++) {
        char bytes[2];
        assert_string_equal(below->files[f].name.data, wanted[f] + 5);
        assert_int_equal(tsr_store_read(below, f, 0, bytes, 2, &err), TSR_OK);
        assert_memory_equal(bytes, "12", 2);
    }
    assert_int_equal(tsr_store_open_below(store, TSR_STR("s50"), arena, &below, &is_own, &holds_files, &err), TSR_OK);
    assert_false(holds_files);
    tsr_arena_free(arena);
    store->close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_io_memory__store_is_sorted_and_bounded),
        cmocka_unit_test(test_io_memory__load_keeps_the_limit_and_survives_failures),
        cmocka_unit_test(test_io_memory__output_takes_writes_in_any_order),
        cmocka_unit_test(test_io_memory__a_directory_of_many_takes_what_is_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
