/* The positions of entries in the optimizer's nested state, by paths or by flat names; and cases of a rank's reads that the
 * goldens of test_optim_state_rules do not have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "tessera/sys/optim_load.h"

static const uint64_t five_by_two[] = {5, 2};

typedef struct world {
    tsr_arena *arena;
    tsr_entry entry;
    tsr_tp_slice slices[2];
    tsr_optim_reads plan;
    tsr_error err;
} world;

static void open_world(world *w, const char *fqn)
{
    *w = (world){.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL),
                 .slices = {{TSR_STR("fc"), 2, NULL, five_by_two, five_by_two},
                            {TSR_STR("fc.weight"), 2, NULL, five_by_two, five_by_two}}};
    w->entry = (tsr_entry){
        .fqn = tsr_str_from(fqn), .kind = TSR_ENTRY_TENSOR, .dtype = TSR_FLOAT32, .ndim = 2, .shape = five_by_two};
}

static tsr_status plan(world *w, uint32_t rank, uint32_t ranks, bool tensor_parallel)
{
    const tsr_optim_mesh mesh = {rank, ranks, tensor_parallel, w->slices, 2};
    const tsr_catalog catalog = {.entries = &w->entry, .entry_count = 1};
    return tsr_optim_load(&catalog, TSR_STR("optim"), &mesh, w->arena, &w->plan, &w->err);
}

/* Formats a path as "a|b|#3": positions have a '#', int keys a '='. */
static void path_text(const tsr_optim_read *read, char *text, size_t size)
{
    *text = 0;
    for (uint32_t i = 0; i < read->path_length; i++) {
        const tsr_path_item *item = &read->path[i];
        const size_t at = strlen(text);
        if (item->kind == TSR_PATH_KEY) snprintf(text + at, size - at, "%s%.*s", i ? "|" : "", TSR_STR_ARG(item->key));
        else snprintf(text + at, size - at, "|%c%d", item->kind == TSR_PATH_INDEX ? '#' : '=', (int)item->integer);
    }
}

static void test_optim_load_path__E4_flat_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *path, *parameter;
        bool is_unknown;
    } rows[] = {
        {"optim.state.fc.weight.exp_avg", "optim|state|fc.weight|exp_avg", "fc.weight", false},
        {"optim.state.fc.weight.inv.0", "optim|state|fc.weight|inv.0", "fc.weight", false},
        {"optim.state.fc.step", "optim|state|fc|step", "fc", false},
        {"optim.state.other.weight.exp_avg", "optim|state|other.weight|exp_avg", "other.weight", true},
        {"optim.state.alone", "optim|state|alone", "alone", true},
        {"optim.param_groups.12.lr", "optim|param_groups|#12|lr", "", false},
        {"optim.param_groups.fc.lr", "optim|param_groups.fc.lr", "", false},
        {"optim.param_groups.1234567890.lr", "optim|param_groups.1234567890.lr", "", false},
        {"optim.extra", "optim|extra", "", false},
        {"optim", "optim", "", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[128];
        world w;
        open_world(&w, rows[i].name);
        if (plan(&w, 0, 1, false) != TSR_OK) fail_msg("%s: %s", rows[i].name, w.err.message);
        assert_int_equal(w.plan.count, 1);
        path_text(w.plan.reads, text, sizeof text);
        assert_string_equal(text, rows[i].path);
        assert_true(tsr_str_equal(w.plan.reads->parameter, tsr_str_from(rows[i].parameter)));
        assert_int_equal(w.plan.reads->is_unknown, rows[i].is_unknown);
        tsr_arena_free(w.arena);
    }
}

/* A stored path is never split; an entry below another key does not belong to the optimizer. */
static void test_optim_load_path__E4_paths_decide(void **state)
{
    (void)state;
    const tsr_path_item one[] = {{TSR_PATH_KEY, TSR_STR("optim.state.fc.step"), 0, NULL}};
    const tsr_path_item other[] = {{TSR_PATH_KEY, TSR_STR("optim.state"), 0, NULL}, {TSR_PATH_KEY, TSR_STR("fc"), 0, NULL}};
    const tsr_path_item ids[] = {{TSR_PATH_KEY, TSR_STR("optim"), 0, NULL},
                                 {TSR_PATH_KEY, TSR_STR("state"), 0, NULL},
                                 {TSR_PATH_INT_KEY, TSR_STR(""), 7, NULL},
                                 {TSR_PATH_KEY, TSR_STR("exp_avg"), 0, NULL}};
    char text[128];
    world w;
    open_world(&w, "optim.state.fc.step");
    w.entry.path = one;
    w.entry.path_length = 1;
    assert_int_equal(plan(&w, 0, 1, false), TSR_OK);
    path_text(w.plan.reads, text, sizeof text);
    assert_string_equal(text, "optim|state|fc|step");
    w.entry.path = other;
    w.entry.path_length = 2;
    assert_int_equal(plan(&w, 0, 1, false), TSR_E_NOT_FOUND);
    assert_non_null(strstr(w.err.message, "'optim.state'"));
    w.entry.path = ids; /* native state: no slice belongs to an id, so it is loaded completely */
    w.entry.path_length = 4;
    assert_int_equal(plan(&w, 1, 2, true), TSR_OK);
    path_text(w.plan.reads, text, sizeof text);
    assert_string_equal(text, "optim|state|=7|exp_avg");
    assert_true(tsr_str_equal(w.plan.reads->parameter, TSR_STR("7")) && w.plan.reads->is_unknown);
    assert_int_equal(w.plan.reads->sizes[0], 2);
    tsr_arena_free(w.arena);
}

/* More ranks than rows: torch.chunk gives the last ranks no shard, and the sharding spec for 2-D gives them an empty one. */
static void test_optim_load_path__E1_ranks_without_rows(void **state)
{
    (void)state;
    static const uint64_t none[] = {0, 3};
    world w;
    open_world(&w, "optim.state.fc.exp_avg");
    for (int two = 0; two < 2; two++) {
        assert_int_equal(plan(&w, 3, 4, two), TSR_OK);
        assert_int_equal(w.plan.reads->has_shard, two);
        assert_true(w.plan.reads->sizes[0] == 0 && w.plan.reads->dest_offsets[0] == 5);
        assert_int_equal(plan(&w, 2, 4, two), TSR_OK);
        assert_true(w.plan.reads->has_shard && w.plan.reads->sizes[0] == 1 && w.plan.reads->dest_offsets[0] == 4);
    }
    w.entry.shape = none;
    assert_int_equal(plan(&w, 3, 4, false), TSR_OK);
    assert_true(w.plan.reads->has_shard && w.plan.reads->sizes[0] == 0 && w.plan.reads->dest_offsets[0] == 0);
    tsr_arena_free(w.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_load_path__E4_flat_names),
        cmocka_unit_test(test_optim_load_path__E4_paths_decide),
        cmocka_unit_test(test_optim_load_path__E1_ranks_without_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
