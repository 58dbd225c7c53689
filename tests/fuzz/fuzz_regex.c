/* Matches a text with a regular expression: the input up to the first newline is the pattern, and the rest the text. A pattern that
 * is accepted must be accepted in a group, too, and find the same. */
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/text.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) abort(); \
    } while (0)

static void check(tsr_str pattern, tsr_str text, tsr_arena *arena)
{
    tsr_regex *regex, *grouped;
    uint64_t work = TSR_REGEX_WORK, work_grouped = TSR_REGEX_WORK;
    bool matches, matches_grouped;
    if (tsr_regex_compile(pattern, &tsr_allocator_libc, arena, &regex, NULL)) return;
    const tsr_str group = tsr_arena_format(arena, NULL, "(?:%.*s)", TSR_STR_ARG(pattern));
    if (memchr(pattern.data, 0, pattern.size)) return;
    const tsr_status status = tsr_regex_compile(group, &tsr_allocator_libc, arena, &grouped, NULL);
    CHECK(status == TSR_OK || status == TSR_E_UNSUPPORTED); /* nested one deeper */
    if (status) return;
    const tsr_status first = tsr_regex_match(regex, text, &work, &matches, NULL);
    CHECK(first == tsr_regex_match(grouped, text, &work_grouped, &matches_grouped, NULL));
    CHECK(first || matches == matches_grouped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tsr_str pattern = {(const char *)data, size}, text = {pattern.data, 0};
    const char *newline = size ? memchr(pattern.data, '\n', size) : NULL;
    if (newline) {
        pattern.size = (size_t)(newline - pattern.data);
        text = (tsr_str){newline + 1, size - pattern.size - 1};
    }
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 64 << 20, NULL);
    if (arena) check(pattern, text, arena);
    tsr_arena_free(arena);
    return 0;
}
