/* Parsing slices of tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/box.h"
#include "tessera/sys/layout.h"

static const uint64_t shape[] = {4, 5, 6};

static void test_layout_slice__parts_are_those_of_python(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t offsets[3], sizes[3], shape[3];
        uint32_t ndim;
    } rows[] = {
        {"0", {0, 0, 0}, {1, 5, 6}, {5, 6}, 2},
        {"-1,:,2", {3, 0, 2}, {1, 5, 1}, {5}, 1},
        {"1:3,...,-2:", {1, 0, 4}, {2, 5, 2}, {2, 5, 2}, 3},
        {"...", {0, 0, 0}, {4, 5, 6}, {4, 5, 6}, 3},
        {"9:,3:1", {4, 3, 0}, {0, 0, 6}, {0, 0, 6}, 3},
        {" 1 , :-1 ", {1, 0, 0}, {1, 4, 6}, {4, 6}, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_slice slice;
        assert_int_equal(tsr_slice_parse(tsr_str_from(rows[i].text), 3, shape, &slice, NULL), TSR_OK);
        assert_int_equal(slice.ndim, rows[i].ndim);
        assert_memory_equal(slice.offsets, rows[i].offsets, sizeof rows[i].offsets);
        assert_memory_equal(slice.sizes, rows[i].sizes, sizeof rows[i].sizes);
        assert_memory_equal(slice.shape, rows[i].shape, rows[i].ndim * sizeof *rows[i].shape);
    }
}

static void test_layout_slice__what_is_no_slice_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "4", "-5", "x", "1:2:3", "0,0,0,0", "...,...", "0,"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tsr_slice slice;
        tsr_error err = {0};
        assert_int_equal(tsr_slice_parse(tsr_str_from(texts[i]), 3, shape, &slice, &err), TSR_E_USAGE);
        assert_true(err.message[0] != 0);
    }
}

static void test_layout_slice__names_and_slices_come_apart(void **state)
{
    (void)state;
    tsr_str inside;
    assert_true(tsr_str_equal(tsr_slice_split(TSR_STR("a[0].w[1:2]"), &inside), TSR_STR("a[0].w")));
    assert_true(tsr_str_equal(inside, TSR_STR("1:2")));
    assert_true(tsr_str_equal(tsr_slice_split(TSR_STR("a[0].w"), &inside), TSR_STR("a[0].w")));
    assert_null(inside.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_slice__parts_are_those_of_python),
        cmocka_unit_test(test_layout_slice__what_is_no_slice_is_refused),
        cmocka_unit_test(test_layout_slice__names_and_slices_come_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
