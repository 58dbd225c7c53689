/* Finds renames for pairs of names: few of them, never a wrong one, and none for names that a rename cannot express. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/fqn.h"
#include "tessera/glob.h"
#include "tessera/sys/names.h"

#define MOST 12

typedef struct row {
    const char *pairs[MOST][2]; /* `to` NULL: no counterpart */
    const char *rules[MOST];
    size_t left; /* pairs that no rule settles */
} row;

static const row rows[] = {
    {{{"module.fc.weight", "fc.weight"}, {"module.fc.bias", "fc.bias"}}, {"module.="}, 0},
    {{{"fc.weight", "model.fc.weight"}, {"fc.bias", "model.fc.bias"}}, {"=model."}, 0},
    /* an empty FROM would also match the name without a counterpart */
    {{{"fc.weight", "model.fc.weight"}, {"fc.bias", "model.fc.bias"}, {"step", NULL}}, {"fc.=model.fc."}, 0},
    /* a prefix per layer, or an end per parameter: whichever settles more pairs */
    {{{"h.0._orig_mod.w", "h.0.w"}, {"h.1._orig_mod.w", "h.1.w"}, {"h.2._orig_mod.w", "h.2.w"}}, {"*._orig_mod.w=*.w"}, 0},
    {{{"h.0._orig_mod.a", "h.0.a"}, {"h.0._orig_mod.b", "h.0.b"}, {"h.0._orig_mod.c", "h.0.c"}}, {"h.0._orig_mod.=h.0."}, 0},
    {{{"h.0.attn.w", "h.0.attention.w"}, {"h.1.attn.w", "h.1.attention.w"}}, {"*.attn.w=*.attention.w"}, 0},
    {{{"a", "a"}, {"b", "b"}}, {NULL}, 0},
    {{{"tok.weight", "embed.weight"}, {"other.weight", "other.weight"}}, {"tok.=embed."}, 0},
    /* a name without a counterpart must not get another one's name */
    {{{"module.a", "a"}, {"module.b", NULL}, {"b", "b"}}, {"module.a=a"}, 0},
    {{{"x.a=b", "y.a"}, {"x*.c", "z.c"}}, {NULL}, 2},
    {{{"", "root"}}, {"=root"}, 0},
};

/* Checks that the names after the rules are the wanted ones, and all different. */
static size_t apply(const row *r, size_t count, const tsr_rename_rule *rules, size_t rule_count, tsr_arena *arena)
{
    tsr_rename renames[MOST];
    size_t left = 0;
    for (size_t i = 0; i < rule_count; i++) assert_int_equal(tsr_rename_parse(rules[i].text, &renames[i], NULL), TSR_OK);
    for (size_t i = 0; i < count; i++) {
        tsr_str name;
        assert_int_equal(tsr_rename_apply(renames, rule_count, tsr_str_from(r->pairs[i][0]), arena, &name, NULL), TSR_OK);
        if (!r->pairs[i][1]) {
            for (size_t p = 0; p < count; p++)
                assert_false(r->pairs[p][1] && tsr_str_equal(name, tsr_str_from(r->pairs[p][1])));
        } else if (!tsr_str_equal(name, tsr_str_from(r->pairs[i][1]))) {
            assert_true(tsr_str_equal(name, tsr_str_from(r->pairs[i][0])));
            left++;
        }
    }
    return left;
}

static void test_fqn_rename_rules__few_and_never_wrong(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        tsr_name_pair pairs[MOST];
        tsr_rename_rule *rules;
        size_t count = 0, rule_count;
        for (; count < MOST && rows[r].pairs[count][0]; count++)
            pairs[count] = (tsr_name_pair){tsr_str_from(rows[r].pairs[count][0]), tsr_str_from(rows[r].pairs[count][1])};
        assert_int_equal(tsr_fqn_rename_rules(pairs, count, arena, &rules, &rule_count, NULL), TSR_OK);
        for (size_t i = 0; i < rule_count; i++) {
            if (!rows[r].rules[i] || !tsr_str_equal(rules[i].text, tsr_str_from(rows[r].rules[i])))
                fail_msg("row %zu: rule %zu is '%.*s'", r, i, TSR_STR_ARG(rules[i].text));
        }
        assert_null(rows[r].rules[rule_count]);
        assert_int_equal(apply(&rows[r], count, rules, rule_count, arena), rows[r].left);
        tsr_arena_free(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fqn_rename_rules__few_and_never_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
