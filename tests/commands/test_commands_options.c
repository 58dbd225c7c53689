#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tessera/sys/commands.h"

static tsr_arena *arena;
static tsr_error err;

static int set_up(void **state)
{
    (void)state;
    arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    return arena ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    tsr_arena_free(arena);
    return 0;
}

static tsr_status set(const char *command, const char *name, const char *value, tsr_command_options *options)
{
    const tsr_option *option = tsr_option_find(tsr_command_find(tsr_str_from(command))->options, tsr_str_from(name));
    assert_non_null(option);
    err = (tsr_error){0};
    return tsr_option_set(option, value, arena, options, &err);
}

static void refuses(const char *command, const char *name, const char *value, const char *message)
{
    tsr_command_options options = {.deep = false};
    assert_int_equal(set(command, name, value, &options), TSR_E_USAGE);
    assert_string_equal(err.message, message);
}

/* Help ends with the default, and no default is only in a text. */
static void states_default(const tsr_option *option)
{
    char end[200];
    assert_int_equal(strstr(option->help, "default") != NULL, option->by_default != NULL);
    assert_true(!option->by_default || option->value); /* a flag is off by default */
    if (!option->by_default) return;
    snprintf(end, sizeof end, " (default: %s)", option->by_default);
    assert_true(tsr_str_ends(tsr_str_from(option->help), tsr_str_from(end)));
}

static void test_commands_options__the_table_is_complete(void **state)
{
    (void)state;
    for (const tsr_command *command = tsr_commands; command->name; command++) {
        assert_ptr_equal(tsr_command_find(tsr_str_from(command->name)), command);
        assert_true(*command->summary && command->operands && command->least <= command->most);
        for (const tsr_option *const *o = command->options; *o; o++) {
            assert_true(*(*o)->help && (*o)->field < sizeof(tsr_command_options));
            assert_int_equal((*o)->value == NULL, (*o)->type == TSR_OPTION_FLAG);
            states_default(*o);
            /* No name is listed twice, or is one of those that every command has. */
            assert_ptr_equal(tsr_option_find(command->options, tsr_str_from((*o)->name)), *o);
            assert_null(tsr_option_find(tsr_global_options, tsr_str_from((*o)->name)));
        }
        for (const tsr_absent_option *a = command->absent; a && a->name; a++)
            assert_null(tsr_option_find(command->options, tsr_str_from(a->name)));
    }
    for (const tsr_option *const *o = tsr_global_options; *o; o++) states_default(*o);
    assert_null(tsr_command_find(TSR_STR("inspec")));
    assert_null(tsr_option_find(tsr_command_find(TSR_STR("inspect"))->options, TSR_STR("deep")));
}

static void test_commands_options__options_of_one_field_have_one_type(void **state)
{
    (void)state;
    tsr_option_type types[sizeof(tsr_command_options)];
    bool seen[sizeof(tsr_command_options)] = {false};
    for (const tsr_command *command = tsr_commands; command->name; command++) {
        for (const tsr_option *const *o = command->options; *o; o++) {
            /* All that are a text in C may share a field. */
            const tsr_option_type type = (*o)->type >= TSR_OPTION_DOCUMENT ? TSR_OPTION_TEXT : (*o)->type;
            if (seen[(*o)->field]) assert_int_equal(types[(*o)->field], type);
            seen[(*o)->field] = true;
            types[(*o)->field] = type;
        }
    }
}

static void test_commands_options__values_are_stored(void **state)
{
    (void)state;
    tsr_command_options o = {.deep = false};
    assert_int_equal(set("validate", "deep", NULL, &o), TSR_OK);
    assert_int_equal(set("convert", "to", "dcp", &o), TSR_OK);
    assert_int_equal(set("convert", "max-shard-size", "5GB", &o), TSR_OK);
    assert_int_equal(set("convert", "dtype", "float16", &o), TSR_OK);
    assert_int_equal(set("convert", "dtype", "bfloat16", &o), TSR_OK);
    assert_int_equal(set("convert", "world-size", "12", &o), TSR_OK);
    assert_int_equal(set("optim", "rank", "0", &o), TSR_OK);
    assert_int_equal(set("diff", "atol", "0", &o), TSR_OK);
    assert_true(o.deep && o.rank.given && o.atol.given && !o.rtol.given);
    assert_int_equal(o.to, 3);
    assert_int_equal(o.max_shard_size, 5000000000);
    assert_string_equal(o.dtype, "bfloat16");
    assert_int_equal(o.world_size, 12);
}

static void test_commands_options__lists_keep_every_value_in_order(void **state)
{
    (void)state;
    static const char *const names[] = {"a.*", "b.*", "c.*", "d.*", "e.*", "f.*", "g.*", "h.*", "i.*"};
    enum { COUNT = sizeof names / sizeof *names };
    tsr_command_options o = {.deep = false};
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(set("inspect", "include", names[i], &o), TSR_OK);
    assert_int_equal(o.selection.include.count, COUNT);
    for (size_t i = 0; i < COUNT; i++) assert_ptr_equal(o.selection.include.items[i], names[i]);
    assert_int_equal(o.selection.exclude.count, 0);
}

static void test_commands_options__wrong_values_are_refused(void **state)
{
    (void)state;
    refuses("optim", "to", "safetensors", "--to takes torch|dcp, not 'safetensors'");
    refuses("optim", "to", "", "--to takes torch|dcp, not ''");
    refuses("convert", "max-mem", "x", "--max-mem takes a size such as 512MB or 2GiB, not 'x'");
    refuses("convert", "world-size", "0", "--world-size takes a whole number of 1 or more, not '0'");
    refuses("convert", "world-size", "1234567890123456789",
            "--world-size takes a whole number of 1 or more, not '1234567890123456789'");
    refuses("optim", "rank", "-1", "--rank takes a whole number of 0 or more, not '-1'");
    refuses("optim", "rank", "", "--rank takes a whole number of 0 or more, not ''");
    refuses("diff", "rtol", "-1", "--rtol takes a number of 0 or more, not '-1'");
    refuses("diff", "rtol", "nan", "--rtol takes a number of 0 or more, not 'nan'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_options__the_table_is_complete),
        cmocka_unit_test(test_commands_options__options_of_one_field_have_one_type),
        cmocka_unit_test_setup_teardown(test_commands_options__values_are_stored, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_commands_options__lists_keep_every_value_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_commands_options__wrong_values_are_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
