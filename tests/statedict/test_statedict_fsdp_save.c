/* Rows C1, C3, C4 and C6, saving, compared with real PyTorch (tests/golden/make_fsdp_state.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "fsdp_world.h"

static cJSON *golden;

typedef struct job {
    const cJSON *test;
    const char *save;
    bool on_device;
    bool offload;
} job;

/* Whether PyTorch failed on any rank. */
static bool refused(const job *j)
{
    bool any = false;
    for (const cJSON *r = live_get(j->test, "ranks")->child; r; r = r->next)
        any = any || cJSON_GetObjectItem(live_get(live_get(r, "saves"), j->save), "error");
    return any;
}

static uint32_t unsharded(const fsdp_world *w)
{
    uint32_t count = 0;
    for (size_t i = 0; i < w->tree.unit_count; i++) count += w->units[i].no_shard;
    return count;
}

static tsr_status compare(const fsdp_world *w, const job *j, tsr_state_dict *out, tsr_error *err)
{
    tsr_comm *comm = w->comm;
    const tsr_value *root = tsr_state_dict_root(out);
    const cJSON *how = live_get(j->test, "case");
    const bool bare = cJSON_GetObjectItem(how, "bare"); /* tensors outside of units stay on their device */
    const bool kept = bare || unsharded(w) > 0;         /* NO_SHARD uses the default settings */
    for (size_t i = 1; i < root->count && j->on_device && !kept; i += 2) {
        const tsr_tensor *tensor = tsr_tensor_of(root->items[i]);
        const bool offloaded = j->offload && !tsr_str_equal(root->items[i - 1]->text, TSR_STR("ignored.own"));
        NEED(!tensor || (tensor->device == NULL) == offloaded);
    }
    const tsr_status status = live_same(root, live_get(live_get(live_get(w->record, "saves"), j->save), "out"), false, err);
    if (status != TSR_OK) tsr_error_context(err, "%s %s, rank %u", j->test->string, j->save, (unsigned)comm->rank);
    return status;
}

static tsr_status save(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    fsdp_world w;
    tsr_state_dict *out;
    tsr_error own = {0};
    TSR_TRY(fsdp_world_open(&w, j->test, comm, j->on_device, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &out, err));
    tsr_fsdp_settings settings = fsdp_world_settings(j->save);
    settings.offload = j->offload;
    TSR_TRY(tsr_fsdp_set_type(w.model, 0, &settings, NULL, err));
    const tsr_status status = tsr_fsdp_model_save(w.model, out, &own);
    if (refused(j)) NEED(status == TSR_E_USAGE || status == TSR_E_UNSUPPORTED);
    else if (status != TSR_OK)
        return tsr_raise(err, status, TSR_NO_POSITION, "%s %s: %s", j->test->string, j->save, own.message);
    const tsr_status same = refused(j) ? TSR_OK : compare(&w, j, out, err);
    NEED(w.warnings == unsharded(&w));
    tsr_state_dict_free(out);
    fsdp_world_close(&w);
    NEED(w.device.allocated == 0);
    return same;
}

static void save_cases(const char *name, bool on_device, bool offload)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        job j = {test, name, on_device, offload};
        count += live_run((uint32_t)live_get(live_get(test, "case"), "world")->valuedouble, save, &j);
    }
    assert_true(count > 0);
}

static void test_statedict_fsdp_save__C1_full(void **state)
{
    (void)state;
    save_cases("full", false, false);
}
static void test_statedict_fsdp_save__C1_full_on_rank_0_only(void **state)
{
    (void)state;
    save_cases("rank0", false, false);
}
static void test_statedict_fsdp_save__C1_full_from_a_device_and_offloaded(void **state)
{
    (void)state;
    save_cases("full", true, false);
    save_cases("full", true, true);
}
static void test_statedict_fsdp_save__C3_local(void **state)
{
    (void)state;
    save_cases("local", false, false);
}
static void test_statedict_fsdp_save__C4_sharded(void **state)
{
    (void)state;
    save_cases("sharded", false, false);
}
static void test_statedict_fsdp_save__C4_sharded_from_a_device_and_offloaded(void **state)
{
    (void)state;
    save_cases("sharded", true, false);
    save_cases("sharded", true, true);
}

/* ---- C6 ---- */

static const cJSON *nested_case(void)
{
    return live_get(live_get(golden, "cases"), "flat_w3");
}

static tsr_status moments(void *arg, tsr_comm *comm, tsr_error *err)
{
    fsdp_world w;
    tsr_state_dict *out;
    char want[sizeof w.moments] = "";
    TSR_TRY(fsdp_world_open(&w, arg, comm, false, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &out, err));
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    TSR_TRY(tsr_fsdp_model_save(w.model, out, err));
    TSR_TRY(tsr_fsdp_model_load(w.model, tsr_state_dict_root(out), true, arena, NULL, err));
    for (const cJSON *m = live_get(w.record, "moments")->child; m; m = m->next) {
        const size_t used = strlen(want);
        snprintf(want + used, sizeof want - used, "%s %s\n", m->child->valuestring, m->child->next->valuestring);
    }
    if (strcmp(want, w.moments) != 0)
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "PyTorch: %s; here: %s", want, w.moments);
    tsr_arena_free(arena);
    tsr_state_dict_free(out);
    fsdp_world_close(&w);
    return TSR_OK;
}

static void test_statedict_fsdp_save__C6_order_over_nested_units(void **state)
{
    (void)state;
    assert_true(live_run(3, moments, (void *)nested_case()) || ranks_count(3) < 3);
}

static tsr_module_ref unit_b(const fsdp_world *w)
{
    return w->units[2].module;
}

static tsr_status types(void *arg, tsr_comm *comm, tsr_error *err)
{
    fsdp_world w;
    tsr_state_dict *out;
    tsr_fsdp_settings before, now;
    tsr_error own = {0};
    TSR_TRY(fsdp_world_open(&w, arg, comm, false, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &out, err));
    const cJSON *said = live_get(w.record, "types");
    const tsr_fsdp_settings sharded = {.type = TSR_FSDP_SHARDED}, local = {.type = TSR_FSDP_LOCAL}, full = {0};
    TSR_TRY(tsr_fsdp_set_type(w.model, 0, &sharded, NULL, err));
    TSR_TRY(tsr_fsdp_set_type(w.model, 0, &local, &before, err));
    TSR_TRY(tsr_fsdp_get_type(w.model, unit_b(&w), &now, err));
    NEED(now.type == TSR_FSDP_LOCAL && live_is(said, "within", "LOCAL_STATE_DICT"));
    TSR_TRY(tsr_fsdp_set_type(w.model, 0, &before, NULL, err));
    TSR_TRY(tsr_fsdp_get_type(w.model, 0, &now, err));
    NEED(now.type == TSR_FSDP_SHARDED && live_is(said, "after", "SHARDED_STATE_DICT"));
    TSR_TRY(tsr_fsdp_set_type(w.model, unit_b(&w), &local, NULL, err));
    NEED(cJSON_GetObjectItem(live_get(said, "get_mixed"), "error") &&
         tsr_fsdp_get_type(w.model, 0, &now, &own) == TSR_E_USAGE);
    NEED(strstr(own.message, "'b' to LOCAL"));
    NEED(cJSON_GetObjectItem(live_get(said, "set_mixed"), "error") &&
         tsr_fsdp_set_type(w.model, 0, &full, NULL, NULL) == TSR_E_USAGE);
    TSR_TRY(tsr_fsdp_get_type(w.model, unit_b(&w), &now, err));
    NEED(now.type == TSR_FSDP_LOCAL && live_is(live_get(said, "get_part"), "out", "LOCAL_STATE_DICT"));
    TSR_TRY(tsr_fsdp_model_save(w.model, out, err));
    const tsr_status same = live_same(tsr_state_dict_root(out), live_get(live_get(said, "save_mixed"), "out"), false, err);
    tsr_state_dict_free(out);
    fsdp_world_close(&w);
    return same;
}

static void test_statedict_fsdp_save__C6_types_are_set_restored_and_not_mixed(void **state)
{
    (void)state;
    assert_true(live_run(3, types, (void *)nested_case()) || ranks_count(3) < 3);
}

/* When ranks differ, every rank must get the error. */
static tsr_status differing(void *arg, tsr_comm *comm, tsr_error *err)
{
    fsdp_world w;
    tsr_state_dict *out;
    tsr_error own = {0};
    TSR_TRY(fsdp_world_open(&w, arg, comm, false, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &out, err));
    const tsr_fsdp_settings sharded = {.type = TSR_FSDP_SHARDED};
    if (comm->rank == 1) TSR_TRY(tsr_fsdp_set_type(w.model, unit_b(&w), &sharded, NULL, err));
    NEED(tsr_fsdp_model_save(w.model, out, &own) == TSR_E_USAGE);
    NEED(strstr(own.message, "ranks 0 and 1 differ: unit 'b' is FULL"));
    tsr_state_dict_free(out);
    fsdp_world_close(&w);
    return TSR_OK;
}

static void test_statedict_fsdp_save__C6_ranks_that_differ_are_named(void **state)
{
    (void)state;
    assert_true(live_run(3, differing, (void *)nested_case()) || ranks_count(3) < 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_fsdp_save__C1_full),
        cmocka_unit_test(test_statedict_fsdp_save__C1_full_on_rank_0_only),
        cmocka_unit_test(test_statedict_fsdp_save__C1_full_from_a_device_and_offloaded),
        cmocka_unit_test(test_statedict_fsdp_save__C3_local),
        cmocka_unit_test(test_statedict_fsdp_save__C4_sharded),
        cmocka_unit_test(test_statedict_fsdp_save__C4_sharded_from_a_device_and_offloaded),
        cmocka_unit_test(test_statedict_fsdp_save__C6_order_over_nested_units),
        cmocka_unit_test(test_statedict_fsdp_save__C6_types_are_set_restored_and_not_mixed),
        cmocka_unit_test(test_statedict_fsdp_save__C6_ranks_that_differ_are_named),
    };
    golden = live_golden("fsdp_state.json");
    ranks_begin(&argc, &argv);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
