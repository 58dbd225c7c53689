#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tessera/sys/try.h"

static void test_base_status__first_error_wins(void **state)
{
    (void)state;
    tsr_error err = {0};
    assert_int_equal(tsr_raise(&err, TSR_E_FORMAT, 7, "bad %s", "thing"), TSR_E_FORMAT);
    assert_int_equal(tsr_raise(&err, TSR_E_IO, 9, "later"), TSR_E_IO);
    assert_int_equal(err.status, TSR_E_FORMAT);
    assert_int_equal(err.byte_position, 7);
    assert_string_equal(err.message, "bad thing");
}

static void test_base_status__failing_has_no_position(void **state)
{
    (void)state;
    tsr_error err = {0};
    assert_int_equal(tsr_fail(&err, TSR_E_USAGE, "%d is %s", 4, "too many"), TSR_E_USAGE);
    assert_int_equal(tsr_fail(&err, TSR_E_LIMIT, "later"), TSR_E_LIMIT);
    assert_int_equal(tsr_fail(NULL, TSR_E_IO, "unseen"), TSR_E_IO);
    assert_int_equal(err.status, TSR_E_USAGE);
    assert_true(err.byte_position == TSR_NO_POSITION);
    assert_string_equal(err.message, "4 is too many");
}

static void test_base_status__context_is_appended_to_errors_only(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_error_context(&err, "file %d", 1);
    assert_string_equal(err.message, "");
    tsr_raise(&err, TSR_E_LIMIT, TSR_NO_POSITION, "too deep");
    tsr_error_context(&err, "file %d", 1);
    assert_string_equal(err.message, "too deep, in file 1");
    tsr_error_context(&err, "file %d", 1); /* named already */
    assert_string_equal(err.message, "too deep, in file 1");
    tsr_error_context(&err, "file");
    assert_string_equal(err.message, "too deep, in file 1");
    tsr_error_context(&err, "le 1"); /* a part of a word does not name it */
    tsr_error_context(&err, "1");    /* nor is a name of one letter recognized */
    assert_string_equal(err.message, "too deep, in file 1, in le 1, in 1");
}

static void test_base_status__hostile_text_is_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *given, *shown;
    } cases[] = {
        {"a\033[31mb", "a\\x1b[31mb"},
        {"line\nbreak", "line\\x0abreak"},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"\xff\xc3", "\\xff\\xc3"},
        {"\x7f", "\\x7f"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsr_error err = {0};
        tsr_raise(&err, TSR_E_FORMAT, 0, "%s", cases[i].given);
        assert_string_equal(err.message, cases[i].shown);
    }
}

static void test_base_status__long_messages_are_clipped_whole(void **state)
{
    (void)state;
    char name[4 * TSR_ERROR_MESSAGE_SIZE];
    memset(name, '\x01', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    tsr_error err = {0};
    tsr_raise(&err, TSR_E_FORMAT, 0, "%s", name);
    size_t length = strlen(err.message);
    assert_true(length < TSR_ERROR_MESSAGE_SIZE && length % 4 == 0);
}

static void test_base_status__null_error_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(tsr_raise(NULL, TSR_E_IO, 0, "x"), TSR_E_IO);
    tsr_error_context(NULL, "x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_status__first_error_wins),
        cmocka_unit_test(test_base_status__failing_has_no_position),
        cmocka_unit_test(test_base_status__context_is_appended_to_errors_only),
        cmocka_unit_test(test_base_status__hostile_text_is_escaped),
        cmocka_unit_test(test_base_status__long_messages_are_clipped_whole),
        cmocka_unit_test(test_base_status__null_error_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
