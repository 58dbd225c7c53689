/* An output that compares a destination with what a job would write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "native/scratch.h"
#include "publish/destination.h"
#include "tessera/native_host.h"
#include "tessera/sys/try.h"

static tsr_native_host native;

/* Compares a directory with a file "data" of 12 bytes, of which a job writes "head" at 0 and "tail" at 8, and a marker whose
 * size it does not know beforehand. */
static tsr_status compare(bool has_marker, tsr_error *err)
{
    tsr_output *output;
    uint32_t data, marker = TSR_NO_FILE;
    tsr_status status = tsr_completed_open(&native.host, scratch_path("out"), &output, err);
    if (status != TSR_OK) return status;
    status = output->create(output, TSR_STR("data"), 12, &data, err);
    if (status == TSR_OK) status = output->write_at(output, data, 8, "tail", 4, err);
    if (status == TSR_OK) status = output->write_at(output, data, 0, "head", 4, err);
    if (status == TSR_OK && has_marker) status = output->create(output, TSR_STR("marker"), 0, &marker, err);
    if (status == TSR_OK && has_marker) status = output->write_at(output, marker, 0, "end", 3, err);
    if (status == TSR_OK) status = output->publish(output, marker, err);
    output->close(output);
    return status;
}

static void expect(bool has_marker, const char *why)
{
    tsr_error err = {0};
    assert_int_equal(compare(has_marker, &err), why ? TSR_E_EXISTS : TSR_OK);
    if (why) assert_non_null(strstr(err.message, why));
}

static void test_native_completed__every_byte_counts(void **state)
{
    (void)state;
    scratch_write("out/data", "head\0\0\0\0tail", 12);
    scratch_write("out/marker", "end", 3);
    expect(true, NULL);
    for (int at = 0; at < 12; at++) {
        char changed[] = "head\0\0\0\0tail";
        changed[at] ^= 1;
        scratch_write("out/data", changed, 12);
        expect(true, "'data' has other contents");
    }
    scratch_write("out/data", "head\0\0\0\0tail", 12);
    scratch_write("out/marker", "End", 3);
    expect(true, "'marker' has other contents");
}

static void test_native_completed__sizes_and_names_count(void **state)
{
    (void)state;
    tsr_error err = {0};
    assert_int_equal(compare(true, &err), TSR_E_EXISTS); /* there is no directory */
    assert_non_null(strstr(err.message, "is missing"));
    scratch_write("out/marker", "end", 3);
    expect(true, "'data' is missing");
    scratch_write("out/data", "head\0\0\0\0tai", 11);
    expect(true, "'data' has another size");
    scratch_write("out/data", "head\0\0\0\0tail", 12);
    expect(true, NULL);
    scratch_write("out/marker", "end\0", 4);
    expect(true, "'marker' is longer");
    scratch_write("out/marker", "en", 2);
    expect(true, "'marker' is shorter");
}

static void test_native_completed__files_of_others_count_where_no_marker_tells_them_apart(void **state)
{
    (void)state;
    static const char tensors[] = "\x02\0\0\0\0\0\0\0{}";
    scratch_write("out/data", "head\0\0\0\0tail", 12);
    scratch_write("out/config.json", "{}", 2);
    expect(false, NULL);
    scratch_write("out/marker", "end", 3);
    scratch_write("out/more.safetensors", tensors, 10);
    expect(true, NULL);
    expect(false, "'more.safetensors' is not written by it");
}

/* Opens "out" and the one file of 4 bytes that is compared with what is written. */
static tsr_output *opened(const char *name, uint32_t *file)
{
    tsr_output *output;
    tsr_error err = {0};
    assert_int_equal(tsr_completed_open(&native.host, scratch_path("out"), &output, &err), TSR_OK);
    assert_int_equal(output->create(output, tsr_str_from(name), 4, file, &err), TSR_OK);
    return output;
}

static void test_native_completed__a_file_is_not_a_directory(void **state)
{
    (void)state;
    tsr_error err = {0};
    uint32_t file;
    scratch_write("out", "text", 4);
    expect(true, "it is a single file");
    tsr_output *output = opened("", &file);
    assert_int_equal(output->write_at(output, file, 0, "text", 4, &err), TSR_OK);
    assert_int_equal(output->publish(output, TSR_NO_FILE, &err), TSR_OK);
    uint64_t bytes;
    assert_int_equal(tsr_completed_count(output, &bytes), 1);
    assert_int_equal(bytes, 4);
    output->close(output);
}

/* As when another process replaces the destination meanwhile. */
static void test_native_completed__a_file_that_vanishes_is_missing(void **state)
{
    (void)state;
    tsr_error err = {0};
    uint32_t data;
    scratch_write("out/data", "head", 4);
    tsr_output *output = opened("data", &data);
    assert_int_equal(unlink(scratch_path("out/data")), 0);
    assert_int_equal(output->write_at(output, data, 0, "head", 4, &err), TSR_E_EXISTS);
    assert_non_null(strstr(err.message, "'data' is missing"));
    output->close(output);
    scratch_write("out/data", "head", 4);
    err = (tsr_error){0};
    output = opened("data", &data);
    assert_int_equal(unlink(scratch_path("out/data")), 0);
    assert_int_equal(symlink("data", scratch_path("out/data")), 0); /* a file that cannot be opened */
    assert_int_not_equal(output->write_at(output, data, 0, "head", 4, &err), TSR_OK);
    assert_true(tsr_error_names(&err, "source"));
    assert_non_null(strstr(err.message, scratch_path("out")));
    output->close(output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(test_native_completed__every_byte_counts),
        SCRATCH_TEST(test_native_completed__sizes_and_names_count),
        SCRATCH_TEST(test_native_completed__files_of_others_count_where_no_marker_tells_them_apart),
        SCRATCH_TEST(test_native_completed__a_file_is_not_a_directory),
        SCRATCH_TEST(test_native_completed__a_file_that_vanishes_is_missing),
    };
    tsr_native_host_open(&native, 1);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tsr_native_host_close(&native);
    return failed;
}
