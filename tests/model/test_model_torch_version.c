/* Versions of PyTorch as written by people and in `torch.__version__`, and the features of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tessera/sys/catalog.h"
#include "tessera/torch_version.h"

static void test_model_torch_version__supported_versions_are_read(void **state)
{
    static const struct {
        const char *text;
        tsr_torch_version version;
    } rows[] = {{"2.3", 3},           {"2.3.1", 3}, {"2.13.0+cpu", 13}, {"2.14", 14}, {"2.15.0a0+git1234567", 15},
                {"2.15.0+cu132", 15}, {"2.10", 10}, {"2.15+local", 15}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_torch_version version = 0;
        tsr_error err = {0};
        if (tsr_torch_version_parse(tsr_str_from(rows[i].text), &version, &err))
            fail_msg("%s: %s", rows[i].text, err.message);
        assert_int_equal(version, rows[i].version);
    }
}

static void test_model_torch_version__other_texts_are_refused_with_the_range(void **state)
{
    static const char *const texts[] = {"",     "2",    "2.",   "2.2",    "2.16",   "3.3",    "1.13", "2.x",
                                        "v2.3", "2.3x", "2,13", "2.013x", "2.1000", "latest", ".3"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tsr_torch_version version = 77;
        tsr_error err = {0};
        if (tsr_torch_version_parse(tsr_str_from(texts[i]), &version, &err) != TSR_E_USAGE)
            fail_msg("'%s' is taken", texts[i]);
        assert_int_equal(version, 77);
        assert_non_null(strstr(err.message, "choose one from 2.3 to 2.15"));
    }
}

static void test_model_torch_version__dtypes_have_a_first_version(void **state)
{
    (void)state;
    assert_true(tsr_torch_version_has(3, TSR_UINT16));
    assert_true(tsr_torch_version_has(3, TSR_FLOAT8_E5M2FNUZ));
    assert_false(tsr_torch_version_has(6, TSR_FLOAT8_E8M0FNU));
    assert_true(tsr_torch_version_has(7, TSR_FLOAT8_E8M0FNU));
    assert_false(tsr_torch_version_has(7, TSR_FLOAT4_E2M1FN_X2));
    assert_true(tsr_torch_version_has(8, TSR_FLOAT4_E2M1FN_X2));
    assert_true(tsr_torch_version_has(0, TSR_FLOAT4_E2M1FN_X2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_torch_version__supported_versions_are_read),
        cmocka_unit_test(test_model_torch_version__other_texts_are_refused_with_the_range),
        cmocka_unit_test(test_model_torch_version__dtypes_have_a_first_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
