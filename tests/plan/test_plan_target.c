#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/glob.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/target.h"

static tsr_entry named(const char *fqn, uint32_t ndim)
{
    return (tsr_entry){.fqn = tsr_str_from(fqn), .kind = TSR_ENTRY_TENSOR, .ndim = ndim};
}

static void assert_placements(const tsr_target *target, tsr_arena *arena, const char *fqn, uint32_t ndim, const char *want,
                              bool want_replicated)
{
    const tsr_entry entry = named(fqn, ndim);
    const tsr_placement *placements;
    bool replicated;
    assert_int_equal(tsr_target_placements(target, &entry, arena, &placements, &replicated, NULL), TSR_OK);
    assert_string_equal(tsr_placements_text(placements, target->mesh.dim_count, arena, NULL).data, want);
    assert_int_equal(replicated, want_replicated);
}

static tsr_mesh mesh_of(const char *text, tsr_arena *arena)
{
    tsr_mesh mesh;
    assert_int_equal(tsr_mesh_parse(tsr_str_from(text), arena, &mesh, NULL), TSR_OK);
    return mesh;
}

static void test_plan_target__the_first_rule_that_matches_wins(void **state)
{
    (void)state;
    static const tsr_placement rows[] = {{TSR_SHARD, 0, 0}}, cols[] = {{TSR_SHARD, -1, 0}}, all[] = {{TSR_REPLICATE, 0, 0}};
    const tsr_target_rule rules[] = {{.match = TSR_STR("**.norm.*"), .placements = all},
                                     {.match = TSR_STR("h.*.weight"), .placements = cols}};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    const tsr_target target = {mesh_of("dp=4", arena), rules, 2, rows, TSR_STRIDED_FSDP, tsr_glob_match};
    assert_placements(&target, arena, "h.norm.weight", 1, "replicate", false);
    assert_placements(&target, arena, "h.0.weight", 2, "shard(-1)", false);
    assert_placements(&target, arena, "h.0.bias", 1, "shard(0)", false);
    assert_placements(&target, arena, "step", 0, "replicate", true);
    const tsr_entry scalar = named("h.1.weight", 0);
    const tsr_placement *placements;
    bool replicated;
    tsr_error err = {0};
    assert_int_equal(tsr_target_placements(&target, &scalar, arena, &placements, &replicated, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "the rule 'h.*.weight' splits dim -1 of 'h.1.weight', which has 0 dims");
    tsr_arena_free(arena);
}

static void test_plan_target__texts_must_fit_each_other(void **state)
{
    (void)state;
    const struct {
        const char *mesh, *placements, *message_part;
    } cases[] = {
        {"dp=2,tp=2", "shard(0)", "of the mesh 'dp=2,tp=2' (2), found 1 in 'shard(0)'"},
        {"dp=2", "shard(0),replicate", "of the mesh 'dp=2' (1), found 2"},
        {"dp=2", "partial", "a checkpoint cannot store such values"},
        {"dp=", "shard(0)", "expected a number"},
        {"dp=2", "shard(x)", "expected a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        tsr_target target;
        tsr_error err = {0};
        assert_int_equal(
            tsr_target_parse(tsr_str_from(cases[i].mesh), tsr_str_from(cases[i].placements), arena, &target, &err),
            TSR_E_USAGE);
        if (!strstr(err.message, cases[i].message_part)) fail_msg("%s", err.message);
        tsr_arena_free(arena);
    }
}

static void test_plan_target__strategies_are_those_of_pytorch(void **state)
{
    (void)state;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_target target;
    assert_int_equal(tsr_target_strategy(TSR_STRATEGY_FSDP2, mesh_of("dp=4", arena), arena, &target, NULL), TSR_OK);
    assert_placements(&target, arena, "w", 2, "shard(0)", false);
    assert_int_equal(tsr_target_strategy(TSR_STRATEGY_HSDP, mesh_of("r=2,s=4", arena), arena, &target, NULL), TSR_OK);
    assert_placements(&target, arena, "w", 2, "replicate,shard(0)", false);
    assert_placements(&target, arena, "t", 0, "replicate,replicate", true);
    assert_int_equal(tsr_target_strategy(TSR_STRATEGY_DDP, mesh_of("dp=4", arena), arena, &target, NULL), TSR_OK);
    assert_placements(&target, arena, "t", 0, "replicate", false);
    tsr_error err = {0};
    assert_int_equal(tsr_target_strategy(TSR_STRATEGY_HSDP, mesh_of("4", arena), arena, &target, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "hsdp needs a mesh of 2 dims, but this one has 1");
    tsr_arena_free(arena);
}

static void test_plan_target__tensor_parallel_cuts_modules_by_style(void **state)
{
    (void)state;
    const tsr_tp_rule rules[] = {{TSR_STR("**.wq"), TSR_TP_COLUMN},
                                 {TSR_STR("**.wo"), TSR_TP_ROW},
                                 {TSR_STR("tok"), TSR_TP_EMBEDDING_ROW},
                                 {TSR_STR("pos"), TSR_TP_EMBEDDING_COLUMN}};
    const struct {
        const char *fqn;
        uint32_t ndim;
        const char *alone, *below_fsdp2;
    } cases[] = {
        {"h.0.wq.weight", 2, "shard(0)", "strided_shard(0, 2),shard(0)"},
        {"h.0.wq.bias", 1, "shard(0)", "strided_shard(0, 2),shard(0)"},
        {"h.0.wo.weight", 2, "shard(1)", "shard(0),shard(1)"},
        {"h.0.wo.bias", 1, "replicate", "shard(0),replicate"},
        {"tok.weight", 2, "shard(0)", "strided_shard(0, 2),shard(0)"},
        {"pos.weight", 2, "shard(1)", "shard(0),shard(1)"},
        {"norm.weight", 1, "replicate", "shard(0),replicate"},
    };
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_target alone, below;
    assert_int_equal(tsr_target_tensor_parallel(mesh_of("tp=2", arena), rules, 4, arena, &alone, NULL), TSR_OK);
    assert_int_equal(tsr_target_tensor_parallel(mesh_of("dp=3,tp=2", arena), rules, 4, arena, &below, NULL), TSR_OK);
    alone.match = below.match = tsr_glob_match;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_placements(&alone, arena, cases[i].fqn, cases[i].ndim, cases[i].alone, false);
        assert_placements(&below, arena, cases[i].fqn, cases[i].ndim, cases[i].below_fsdp2, false);
    }
    assert_int_equal(tsr_target_tensor_parallel(mesh_of("1,1,1", arena), rules, 4, arena, &below, NULL), TSR_E_USAGE);
    tsr_arena_free(arena);
}

static bool no_step(void *ctx, tsr_str fqn)
{
    (void)ctx;
    return !tsr_str_equal(fqn, TSR_STR("step"));
}

static void test_plan_target__fsdp1_deals_parameters_to_wrap_units(void **state)
{
    (void)state;
    static const uint64_t three_by_five[] = {3, 5}, seven[] = {7};
    const tsr_entry entries[] = {
        {.fqn = {"emb", 3}, .dtype = TSR_FLOAT32, .ndim = 1, .shape = seven},
        {.fqn = {"h.0.w", 5}, .dtype = TSR_FLOAT32, .ndim = 2, .shape = three_by_five},
        {.fqn = {"step", 4}, .dtype = TSR_INT64},
        {.fqn = {"h.1.w", 5}, .dtype = TSR_BFLOAT16, .ndim = 2, .shape = three_by_five},
        {.fqn = {"h.0.b", 5}, .dtype = TSR_FLOAT32, .ndim = 1, .shape = seven},
        {.fqn = {"h.1.b", 5}, .dtype = TSR_BFLOAT16, .ndim = 1, .shape = seven},
    };
    const tsr_str units[] = {TSR_STR("h.0.**"), TSR_STR("h.*.*")};
    const tsr_catalog catalog = {.entries = entries, .entry_count = 6};
    tsr_fsdp1 options = {units, 2, tsr_glob_match, no_step, NULL, true, 4};
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, NULL);
        const tsr_fsdp1_unit *list;
        tsr_status status = arena ? tsr_target_fsdp1(&catalog, &options, arena, &list, NULL) : TSR_E_NOMEM;
        if (status == TSR_OK) {
            assert_true(list[0].count == 2 && list[1].count == 2 && list[2].count == 1);
            assert_ptr_equal(list[0].entries[1], &entries[4]);
            assert_int_equal(list[0].flat.flat_offsets[1], 16); /* 15 elements, rounded up to a multiple of 16 bytes */
            assert_int_equal(list[0].flat.flat_numel, 24);      /* 16 + 7, padded to 4 ranks */
            assert_int_equal(list[0].slice_bytes, 6 * 4);
            assert_int_equal(list[1].slice_bytes, 6 * 2);
            assert_int_equal(list[2].slice_bytes, 2 * 4);
            assert_int_equal(list[2].match.size, 0);
        }
        tsr_arena_free(arena);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
    tsr_error err = {0};
    const tsr_fsdp1_unit *list;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    options.want = NULL;
    assert_int_equal(tsr_target_fsdp1(&catalog, &options, arena, &list, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "'emb' is float32 but 'step' is int64; a flat parameter has a single dtype "
                                     "(buffers can be listed in the strategy's \"ignored\")");
    tsr_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_target__the_first_rule_that_matches_wins),
        cmocka_unit_test(test_plan_target__texts_must_fit_each_other),
        cmocka_unit_test(test_plan_target__strategies_are_those_of_pytorch),
        cmocka_unit_test(test_plan_target__tensor_parallel_cuts_modules_by_style),
        cmocka_unit_test(test_plan_target__fsdp1_deals_parameters_to_wrap_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
