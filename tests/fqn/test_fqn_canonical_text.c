/* Canonical names from text alone: wrappers, names that only look like wrappers, ambiguity, and collisions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/fqn.h"
#include "tessera/sys/names.h"

typedef struct fixture {
    tsr_arena *arena;
    tsr_name names[16];
    size_t count;
} fixture;

static fixture read_names(const char *const *raws)
{
    fixture f = {tsr_arena_new(&tsr_allocator_libc, 0, NULL), {{.raw = {NULL, 0}}}, 0};
    tsr_str all[16];
    for (; raws[f.count]; f.count++) all[f.count] = tsr_str_from(raws[f.count]);
    assert_int_equal(tsr_fqn_from_text(all, f.count, &tsr_allocator_libc, f.arena, f.names, NULL), TSR_OK);
    return f;
}

static void check(const char *const *raws, const char *const *fqns, const size_t *removed, const bool *ambiguous)
{
    fixture f = read_names(raws);
    for (size_t i = 0; i < f.count; i++) {
        assert_int_equal(f.names[i].fqn_count, 1);
        if (!tsr_str_equal(f.names[i].fqns[0], tsr_str_from(fqns[i])))
            fail_msg("%s became '%.*s'", raws[i], TSR_STR_ARG(f.names[i].fqns[0]));
        assert_int_equal(f.names[i].removed_count, removed[i]);
        assert_int_equal(f.names[i].ambiguity.size > 0, ambiguous[i]);
    }
    tsr_arena_free(f.arena);
}

static void test_fqn_canonical_text__wrappers_go(void **state)
{
    (void)state;
    check((const char *const[]){"module._orig_mod.fc.weight", "module._orig_mod.fc.bias", NULL},
          (const char *const[]){"fc.weight", "fc.bias"}, (const size_t[]){2, 2}, (const bool[]){true, true});
    check((const char *const[]){"_orig_mod.fc.weight", NULL}, (const char *const[]){"fc.weight"}, (const size_t[]){1},
          (const bool[]){false});
    check((const char *const[]){"_fsdp_wrapped_module.a._checkpoint_wrapped_module.w", "b", NULL},
          (const char *const[]){"a.w", "b"}, (const size_t[]){2, 0}, (const bool[]){false, false});
    check((const char *const[]){"optim.state.module.w.exp_avg", "optim.state.module.b.exp_avg",
                                "optim.param_groups.module.w.lr", NULL},
          (const char *const[]){"optim.state.w.exp_avg", "optim.state.b.exp_avg", "optim.param_groups.w.lr"},
          (const size_t[]){1, 1, 1}, (const bool[]){true, true, true});
}

static void test_fqn_canonical_text__look_alikes_stay(void **state)
{
    (void)state;
    check((const char *const[]){"module.weight", "inner.weight", NULL},
          (const char *const[]){"module.weight", "inner.weight"}, (const size_t[]){0, 0}, (const bool[]){true, false});
    check((const char *const[]){"module", "", ".", "module.", NULL}, (const char *const[]){"module", "", ".", "module."},
          (const size_t[]){0, 0, 0, 0}, (const bool[]){false, false, false, true});
    check((const char *const[]){"a.module", "my_module.w", "x_orig_mod.w", NULL},
          (const char *const[]){"a.module", "my_module.w", "x_orig_mod.w"}, (const size_t[]){0, 0, 0},
          (const bool[]){false, false, false});
}

static void test_fqn_canonical_text__collisions(void **state)
{
    (void)state;
    fixture f = read_names(
        (const char *const[]){"a._fsdp_wrapped_module.w", "b", "a.w", "a.w", "b", "a._checkpoint_wrapped_module.w", NULL});
    tsr_collision *found;
    size_t count;
    assert_int_equal(tsr_fqn_collisions(f.names, f.count, f.arena, &found, &count, NULL), TSR_OK);
    assert_int_equal(count, 1);
    assert_true(tsr_str_equal(found[0].fqn, TSR_STR("a.w")));
    assert_int_equal(found[0].count, 3);
    assert_int_equal(found[0].names[0], 0);
    assert_int_equal(found[0].names[1], 2);
    assert_int_equal(found[0].names[2], 5);
    tsr_arena_free(f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fqn_canonical_text__wrappers_go),
        cmocka_unit_test(test_fqn_canonical_text__look_alikes_stay),
        cmocka_unit_test(test_fqn_canonical_text__collisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
