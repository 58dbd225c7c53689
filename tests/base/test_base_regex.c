#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/arena_job.h"
#include "tessera/sys/text.h"

/* Cuts the next cell off a line of regexes.tsv and removes its escapes. */
static tsr_str next_cell(char **line)
{
    char *cell = *line, *out = cell;
    const size_t size = strcspn(cell, "\t");
    *line = cell[size] ? cell + size + 1 : cell + size;
    for (size_t i = 0; i < size; i++) {
        if (cell[i] == '\\') i++, *out++ = cell[i] == 'n' ? '\n' : '\\';
        else *out++ = cell[i];
    }
    return (tsr_str){cell, (size_t)(out - cell)};
}

static void check_line(char *line, tsr_arena *arena)
{
    const tsr_str pattern = next_cell(&line), verdict = next_cell(&line);
    tsr_regex *regex;
    tsr_error err = {0};
    const tsr_status status = tsr_regex_compile(pattern, &tsr_allocator_libc, arena, &regex, &err);
    if ((status == TSR_OK) != (verdict.data[0] == 'y'))
        fail_msg("'%.*s' gives %d: %s", TSR_STR_ARG(pattern), status, err.message);
    while (*line) {
        const tsr_str cell = next_cell(&line), name = {cell.data + 1, cell.size - 1};
        uint64_t work = TSR_REGEX_WORK;
        bool matches;
        assert_int_equal(tsr_regex_match(regex, name, &work, &matches, &err), TSR_OK);
        if (matches != (cell.data[0] == '1'))
            fail_msg("'%.*s' matches '%.*s': %d", TSR_STR_ARG(pattern), TSR_STR_ARG(name), matches);
    }
}

/* tests/golden/regexes.tsv has what Python's re.match finds. */
static void test_base_regex__matches_as_python_does(void **state)
{
    static char line[1 << 14];
    size_t rows = 0;
    (void)state;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    FILE *file = fopen(TSR_TEST_DATA "/tests/golden/regexes.tsv", "r");
    assert_non_null(file);
    for (; fgets(line, sizeof line, file); rows++) {
        line[strcspn(line, "\n")] = '\0';
        check_line(line, arena);
    }
    fclose(file);
    tsr_arena_free(arena);
    assert_in_range(rows, 500, 10000);
}

static void test_base_regex__names_what_it_does_not_understand(void **state)
{
    static const char *const cases[][2] = {
        {"(?!a)b", "a lookahead"},        {"(?<=a)b", "a lookbehind"},  {"(a)\\1", "a reference to a group"},
        {"a*+", "possessive repetition"}, {"(?i)a", "flags"},           {"\xc3\xa9", "characters that are not ASCII"},
        {"a**", "multiple repeat"},       {"(a", "a group without ')'"}};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_regex *regex;
        tsr_error err = {0};
        assert_int_equal(tsr_regex_compile(tsr_str_from(cases[i][0]), &tsr_allocator_libc, arena, &regex, &err),
                         TSR_E_UNSUPPORTED);
        if (!strstr(err.message, cases[i][1])) fail_msg("%s: %s", cases[i][0], err.message);
    }
    tsr_arena_free(arena);
}

static tsr_status match_once(const void *pattern, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_regex *regex;
    uint64_t work = TSR_REGEX_WORK;
    bool matches;
    const tsr_status status = tsr_regex_compile(tsr_str_from(pattern), host->allocator, arena, &regex, err);
    return status == TSR_OK ? tsr_regex_match(regex, TSR_STR("abc"), &work, &matches, err) : status;
}

static void test_base_regex__bounds_what_repetition_writes_out(void **state)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_error err = {0};
    const tsr_host host = {.allocator = &tsr_allocator_libc};
    (void)state;
    assert_int_equal(match_once("(((a{60}){60}){60}){60}", &host, arena, &err), TSR_E_LIMIT);
    assert_int_equal(match_once("((((((((((a*)*)*)*)*)*)*)*)*)*)*b", &host, arena, &err), TSR_OK);
    tsr_arena_free(arena);
}

static void test_base_regex__bounds_the_work_for_one_input(void **state)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_regex *regex;
    tsr_error err = {0};
    uint64_t work = 20;
    bool matches;
    (void)state;
    assert_int_equal(tsr_regex_compile(TSR_STR("ab"), &tsr_allocator_libc, arena, &regex, &err), TSR_OK);
    assert_int_equal(tsr_regex_match(regex, TSR_STR("abc"), &work, &matches, &err), TSR_OK);
    assert_true(matches);
    assert_int_equal(work, 20 - 3 * 4);
    assert_int_equal(tsr_regex_match(regex, TSR_STR("abc"), &work, &matches, &err), TSR_E_LIMIT);
    assert_int_equal(work, 20 - 3 * 4);
    tsr_arena_free(arena);
}

static void test_base_regex__frees_all_when_memory_is_short(void **state)
{
    (void)state;
    must_bear_failed_allocations(match_once, "(a|b{2,3})*[c-e]", TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_base_regex__matches_as_python_does),
                                       cmocka_unit_test(test_base_regex__names_what_it_does_not_understand),
                                       cmocka_unit_test(test_base_regex__bounds_what_repetition_writes_out),
                                       cmocka_unit_test(test_base_regex__bounds_the_work_for_one_input),
                                       cmocka_unit_test(test_base_regex__frees_all_when_memory_is_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
