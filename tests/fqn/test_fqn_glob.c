/* Compares GLOB patterns with a table and with a simple recursive matcher; and renames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/glob.h"
#include "tessera/sys/names.h"

static void test_fqn_glob__table_of_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool matches;
    } rows[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"**", "", true},
        {"a.b", "a.b", true},
        {"a.b", "a.bc", false},
        {"*", "weight", true},
        {"*", "h.weight", false},
        {"**", "h.0.weight", true},
        {"h.*.weight", "h.12.weight", true},
        {"h.*.weight", "h.1.attn.weight", false},
        {"h.**.weight", "h.1.attn.weight", true},
        {"h.**.weight", "h.weight", false},
        {"**.weight", "weight", false},
        {"**weight", "weight", true},
        {"h.*", "h.", true},
        {"*.*", "a.b", true},
        {"*.*", "a.b.c", false},
        {"?", "a", true},
        {"?", ".", false},
        {"?", "\xc3\xa9", true},
        {"??", "\xc3\xa9", false},
        {"?", "\xff", true},
        {"?", "", false},
        {"h.[0-3].w", "h.2.w", true},
        {"h.[0-3].w", "h.4.w", false},
        {"h.[!0-3].w", "h.4.w", true},
        {"h.[^0-3].w", "h.3.w", false},
        {"a[.]b", "a.b", false},
        {"a[!x]b", "a.b", false},
        {"[*]", "*", true},
        {"[*]", "a", false},
        {"[?]x", "?x", true},
        {"[[]x]", "[x]", true},
        {"[]]", "]", true},
        {"[!]]", "]", false},
        {"[!]]", "a", true},
        {"[a-]", "-", true},
        {"[", "[", true},
        {"[ab", "[ab", true},
        {"[", "a", false},
        {"[\xc3\xa0-\xc3\xaf]", "\xc3\xa9", true},
        {"\\*", "\\abc", true},
        {"\\*", "*", false},
        {"a***b", "a.x.b", true},
        {"**a*b", "a.ab", true},
        {"**a*b", "ax.b", false},
        {"**.a*", "x.y.abc", true},
        {"*a*a*a", "aaaa", true},
        {"**q*", "w.q", true},
        /* each byte that is not valid UTF-8 counts as one character */
        {"?", "\xf8", true},
        {"?", "\x80", true},
        {"?", "\xc3", true},
        {"?",
         "\xc3"
         "A",
         false},
        {"??",
         "\xc3"
         "A",
         true},
        {"??", "\xe0\xa0", true},
        {"?", "\xe2\x82\xac", true},
        {"?", "\xf0\x9f\x98\x80", true},
        {"??", "\xf0\x9f\x98\x80", false},
        {"[b-c]", "a", false},
        {"[a-c-e]", "-", true},
        {"[a-c-e]", "d", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool got = tsr_glob_match(tsr_str_from(rows[i].pattern), tsr_str_from(rows[i].name));
        if (got != rows[i].matches) fail_msg("'%s' on '%s' gave %d", rows[i].pattern, rows[i].name, got);
    }
}

/* The definition of a match, trying every choice. */
static bool oracle(const char *p, const char *n)
{
    if (!*p) return !*n;
    if (*p == '*') {
        bool across = p[1] == '*';
        const char *rest = p + 1;
        while (*rest == '*') rest++;
        for (;; n++) {
            if (oracle(rest, n)) return true;
            if (!*n || (!across && *n == '.')) return false;
        }
    }
    return *n && (*p == '?' ? *n != '.' : *p == *n) && oracle(p + 1, n + 1);
}

static void word(uint32_t number, const char *alphabet, char *out)
{
    size_t base = strlen(alphabet) + 1, at = 0;
    for (; number; number /= (uint32_t)base) {
        uint32_t digit = number % (uint32_t)base;
        if (digit) out[at++] = alphabet[digit - 1];
    }
    out[at] = 0;
}

static void test_fqn_glob__agrees_with_exhaustive_search(void **state)
{
    (void)state;
    uint32_t random = 1;
    char pattern[32], name[32];
    for (uint32_t i = 0; i < 400000; i++) {
        random = random * 1664525u + 1013904223u;
        word(random >> 4, "ab.**?*", pattern);
        random = random * 1664525u + 1013904223u;
        word(random >> 8, "ab.", name);
        bool got = tsr_glob_match(tsr_str_from(pattern), tsr_str_from(name));
        if (got != oracle(pattern, name)) fail_msg("'%s' on '%s' gave %d", pattern, name, got);
    }
}

static void test_fqn_glob__many_stars_do_not_explode(void **state)
{
    (void)state;
    char name[4001], pattern[4001];
    memset(name, 'a', 4000);
    for (size_t i = 0; i < 4000; i += 4) memcpy(pattern + i, "a***", 4);
    pattern[3999] = 'b';
    assert_false(tsr_glob_match((tsr_str){pattern, 4000}, (tsr_str){name, 4000}));
    for (size_t i = 0; i < 4000; i += 2) memcpy(pattern + i, "a*", 2);
    pattern[3999] = 'b';
    assert_false(tsr_glob_match((tsr_str){pattern, 4000}, (tsr_str){name, 4000}));
    enum { LONG = 4 << 20 }; /* a component is scanned once, not again from each of its bytes, which would take minutes */
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'a', LONG);
    memcpy(text + LONG - 2, ".b", 2);
    assert_false(tsr_glob_match(TSR_STR("**a*c"), (tsr_str){text, LONG}));
    assert_false(tsr_glob_match(TSR_STR("**a*c.b"), (tsr_str){text, LONG}));
    assert_true(tsr_glob_match(TSR_STR("**a*a.b"), (tsr_str){text, LONG}));
    free(text);
}

static void test_fqn_glob__rename(void **state)
{
    (void)state;
    static const struct {
        const char *rename, *name, *result; /* NULL result: refused */
    } rows[] = {
        {"model.=", "model.w", "w"},
        {"model.=", "amodel.w", "amodel.w"},
        {"a=b", "ab", "bb"},
        {"h.*.w=layers.*.weight", "h.1.w", "layers.1.weight"},
        {"h.*.w=layers.*.weight", "h.1.x.w", "layers.1.x.weight"},
        {"h.*.w=layers.*.weight", "h.w", "h.w"},
        {"*=m.*", "w", "m.w"},
        {"a=b=c", "ax", "b=cx"},
        {"nothing", "", NULL},
        {"=x", "", "x"},
        {"=model.", "w", "model.w"},
        {"a*=b", "", NULL},
        {"a=b*", "", NULL},
        {"a*b*=c*", "", NULL},
        {"", "", NULL},
        {"ab*ba=x*", "aba", "aba"},
        {"a*=b*c*", "", NULL},
    };
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, &err);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_rename r;
        tsr_str out;
        tsr_status status = tsr_rename_parse(tsr_str_from(rows[i].rename), &r, &(tsr_error){0});
        assert_int_equal(status, rows[i].result ? TSR_OK : TSR_E_USAGE);
        if (status != TSR_OK) continue;
        assert_int_equal(tsr_rename_apply(&r, 1, tsr_str_from(rows[i].name), arena, &out, &err), TSR_OK);
        if (!tsr_str_equal(out, tsr_str_from(rows[i].result))) fail_msg("%s: got '%.*s'", rows[i].rename, TSR_STR_ARG(out));
    }
    tsr_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fqn_glob__table_of_patterns),
        cmocka_unit_test(test_fqn_glob__agrees_with_exhaustive_search),
        cmocka_unit_test(test_fqn_glob__many_stars_do_not_explode),
        cmocka_unit_test(test_fqn_glob__rename),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
