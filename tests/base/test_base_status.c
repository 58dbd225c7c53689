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

static bool names(const char *message, const char *path)
{
    tsr_error err = {0};
    tsr_fail(&err, TSR_E_IO, "%s", message);
    return tsr_error_names(&err, path);
}

static void test_base_status__a_message_names_a_path_as_a_whole_word(void **state)
{
    (void)state;
    assert_true(names("cannot open 'a/zip': no such file", "a/zip"));
    assert_true(names("zip is not in a recognized format", "zip"));
    assert_true(names("zip: it is empty", "zip"));
    assert_true(names("the server has no zip", "zip"));
    assert_true(names("no index in zip: 404", "zip"));
    assert_false(names("the zip file is damaged", "zip"));
    assert_false(names("cannot open 'zip/x'", "zip"));
    assert_false(names("", "zip"));
    assert_true(names("damaged", "")); /* there is nothing that could precede it */
    assert_true(names("damaged", NULL));
}

static void test_base_status__an_error_records_what_it_is_about(void **state)
{
    (void)state;
    tsr_error err = {0}, again = {0}, about = {0};
    tsr_fail(tsr_naming(&err), TSR_E_EXISTS, "the destination 'b' exists");
    assert_true(tsr_error_names(&err, "a"));
    tsr_fail(&again, TSR_E_USAGE, "out of range");
    assert_ptr_equal(tsr_naming(&again), &again); /* the first error has been raised without it */
    assert_false(tsr_error_names(&again, "a"));
    again = (tsr_error){0};
    assert_int_equal(tsr_raise_again(&again, TSR_E_IO, &err), TSR_E_IO);
    assert_int_equal(again.status, TSR_E_IO);
    assert_string_equal(again.message, "the destination 'b' exists");
    assert_true(tsr_error_names(&again, "a"));
    tsr_raise(&about, TSR_E_FORMAT, 5, "not a target");
    tsr_error_subject(&about, "--target %s", "t.json");
    assert_string_equal(about.message, "not a target, in --target t.json");
    assert_true(tsr_error_names(&about, "a"));
    tsr_error_subject(NULL, "x");
    assert_null(tsr_naming(NULL));
}

static void test_base_status__an_empty_error_is_raised_with_its_status(void **state)
{
    (void)state;
    const tsr_error nothing = {0};
    tsr_error err = {0};
    assert_int_equal(tsr_raise_again(&err, TSR_E_NOMEM, &nothing), TSR_E_NOMEM);
    assert_int_equal(err.status, TSR_E_NOMEM);
    assert_true(err.byte_position == TSR_NO_POSITION);
    assert_int_equal(tsr_raise_again(&err, TSR_E_IO, &nothing), TSR_E_IO); /* the first error is kept */
    assert_int_equal(err.status, TSR_E_NOMEM);
    assert_int_equal(tsr_raise_again(NULL, TSR_E_IO, &nothing), TSR_E_IO);
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
        cmocka_unit_test(test_base_status__a_message_names_a_path_as_a_whole_word),
        cmocka_unit_test(test_base_status__an_error_records_what_it_is_about),
        cmocka_unit_test(test_base_status__an_empty_error_is_raised_with_its_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
