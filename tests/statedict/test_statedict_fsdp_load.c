/* Rows C2, C3, C5 and C6, loading, compared with real PyTorch (tests/golden/make_fsdp_state.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "fsdp_world.h"

static cJSON *golden;

typedef struct job {
    const cJSON *test, *load;
    bool on_device;
} job;

static bool refused(const cJSON *load)
{
    bool any = false;
    for (const cJSON *r = live_get(load, "ranks")->child; r; r = r->next) any = any || cJSON_GetObjectItem(r, "error");
    return any;
}

/* The golden's names are sorted. */
static bool same_names(const tsr_str *names, size_t count, const cJSON *want)
{
    if ((size_t)cJSON_GetArraySize(want) != count) return false;
    for (const cJSON *n = want->child; n; n = n->next) {
        bool found = false;
        for (size_t i = 0; i < count; i++) found = found || tsr_str_equal(names[i], tsr_str_from(n->valuestring));
        if (!found) return false;
    }
    return true;
}

/* Expects that nothing was written. */
static tsr_status untouched(const fsdp_world *w, tsr_error *err)
{
    tsr_comm *comm = w->comm;
    for (size_t u = 0; u < w->tree.unit_count; u++)
        for (uint64_t i = 0; i < w->slices[u]->entry.shape[0]; i++) NEED(((const float *)w->slices[u]->data)[i] == 99);
    return TSR_OK;
}

static tsr_status load_on(const job *j, fsdp_world *w, tsr_arena *arena, tsr_state_dict *in, tsr_fsdp_keys *keys,
                          tsr_error *err)
{
    tsr_comm *comm = w->comm;
    const cJSON *record = cJSON_GetArrayItem(live_get(j->load, "ranks"), (int)comm->rank);
    const tsr_fsdp_settings settings = fsdp_world_settings(live_get(j->load, "type")->valuestring);
    const tsr_value *state = live_value(in, live_get(record, "in"), comm->rank, j->on_device ? &w->device.base : NULL);
    tsr_error own = {0};
    TSR_TRY(tsr_fsdp_set_type(w->model, 0, &settings, NULL, err));
    fsdp_world_scramble(w);
    const tsr_status status =
        tsr_fsdp_model_load(w->model, state, cJSON_IsTrue(live_get(j->load, "strict")), arena, keys, &own);
    if (refused(j->load)) {
        NEED(status == TSR_E_USAGE);
        NEED(!strstr(own.message, "_fsdp_wrapped_module") && !strstr(own.message, "_checkpoint_wrapped_module"));
        return j->on_device ? TSR_OK : untouched(w, err);
    }
    if (status != TSR_OK) return tsr_raise(err, status, TSR_NO_POSITION, "%s", own.message);
    NEED(w->extras == (tsr_value_get(w->tree.plain, TSR_STR("ignored._extra_state")) != NULL));
    const bool shardless = live_is(j->load, "change", "no_shards") && comm->rank == 0;
    NEED(!shardless || w->warnings == 1);
    return fsdp_world_same(w, live_get(record, "slices"), live_get(record, "plain"), err);
}

static tsr_status load(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    fsdp_world w;
    tsr_state_dict *in;
    tsr_fsdp_keys keys = {0};
    TSR_TRY(fsdp_world_open(&w, j->test, comm, j->on_device, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &in, err));
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    const tsr_status status = load_on(j, &w, arena, in, &keys, err);
    if (status != TSR_OK)
        tsr_error_context(err, "%s: %s %s, rank %u", j->test->string, live_get(j->load, "type")->valuestring,
                          live_get(j->load, "change")->valuestring, (unsigned)comm->rank);
    tsr_state_dict_free(in);
    fsdp_world_close(&w);
    NEED(w.device.allocated == 0);
    /* The keys are in the arena, so they outlive the model and the state. */
    const cJSON *record = cJSON_GetArrayItem(live_get(j->load, "ranks"), (int)comm->rank);
    const bool same =
        refused(j->load) || (same_names(keys.missing, keys.missing_count, live_get(record, "missing")) &&
                             same_names(keys.unexpected, keys.unexpected_count, live_get(record, "unexpected")));
    tsr_arena_free(arena);
    NEED(status != TSR_OK || same);
    return status;
}

static void load_cases(const char *type, bool on_device)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        for (const cJSON *l = live_get(test, "loads")->child; l; l = l->next) {
            job j = {test, l, on_device};
            if (live_is(l, "type", type)) count += live_run((uint32_t)cJSON_GetArraySize(live_get(test, "ranks")), load, &j);
        }
    }
    assert_true(count > 0);
}

static void test_statedict_fsdp_load__C2_full(void **state)
{
    (void)state;
    load_cases("full", false);
    load_cases("full", true);
}
static void test_statedict_fsdp_load__C3_local(void **state)
{
    (void)state;
    load_cases("local", false);
    load_cases("local", true);
}
static void test_statedict_fsdp_load__C5_sharded(void **state)
{
    (void)state;
    load_cases("sharded", false);
    load_cases("sharded", true);
}

/* ---- C5: extensions ---- */

typedef struct calls {
    unsigned chunked, gathered;
    uint32_t fail_on; /* on this rank the callbacks fail */
} calls;

/* Every rank keeps the whole tensor, negated. */
static tsr_status chunk(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                        const tsr_tensor **result, tsr_error *err)
{
    calls *c = ctx;
    const tsr_value *value;
    uint64_t count = 1;
    if (comm->rank == c->fail_on) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "no chunk of %.*s", TSR_STR_ARG(fqn));
    TSR_TRY(tsr_state_dict_allocate(out, whole, &value, err));
    for (uint32_t i = 0; i < whole->entry.ndim; i++) count *= whole->entry.shape[i];
    for (uint64_t i = 0; i < count; i++) ((float *)tsr_tensor_of(value)->data)[i] = -((const float *)whole->data)[i];
    c->chunked++;
    *result = tsr_tensor_of(value);
    return TSR_OK;
}

static tsr_status gather(void *ctx, tsr_str fqn, const tsr_tensor *sharded, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **whole, tsr_error *err)
{
    calls *c = ctx, inner = {.fail_on = c->fail_on};
    c->gathered++;
    return chunk(&inner, fqn, sharded, comm, out, whole, err);
}

static tsr_status extended(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    calls c = {.fail_on = UINT32_MAX};
    const tsr_fsdp_extensions extensions = {chunk, gather, &c};
    const tsr_fsdp_settings sharded = {.type = TSR_FSDP_SHARDED};
    tsr_error own = {0}, late = {0};
    fsdp_world w;
    tsr_state_dict *out, *broken;
    TSR_TRY(fsdp_world_open(&w, j->test, comm, false, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &out, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &broken, err));
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    w.units[0].extensions = &extensions;
    TSR_TRY(tsr_fsdp_set_type(w.model, 0, &sharded, NULL, err));
    TSR_TRY(tsr_fsdp_model_save(w.model, out, err));
    NEED(c.chunked == 2); /* scale and emb.weight; head.weight is tied */
    const tsr_value *tied = tsr_state_dict_get(out, TSR_STR("head.weight"));
    NEED(tied == tsr_state_dict_get(out, TSR_STR("emb.weight")) && tsr_tensor_of(tied)->spread == TSR_WHOLE);
    fsdp_world_scramble(&w);
    TSR_TRY(tsr_fsdp_model_load(w.model, tsr_state_dict_root(out), true, arena, NULL, err));
    NEED(c.gathered == 3);
    /* Plain tensors are the memory of the state itself. */
    TSR_TRY(fsdp_world_same(&w, live_get(w.record, "slices"), NULL, err));
    c.fail_on = 1;
    NEED(tsr_fsdp_model_save(w.model, broken, &own) == TSR_E_IO && strstr(own.message, "rank 1: no chunk of scale"));
    NEED(tsr_fsdp_model_load(w.model, tsr_state_dict_root(out), true, arena, NULL, &late) == TSR_E_IO);
    tsr_arena_free(arena);
    tsr_state_dict_free(broken);
    tsr_state_dict_free(out);
    fsdp_world_close(&w);
    return TSR_OK;
}

static void test_statedict_fsdp_load__C5_extensions_chunk_and_gather(void **state)
{
    (void)state;
    job j = {live_get(live_get(golden, "cases"), "flat_w3"), NULL, false};
    assert_true(live_run(3, extended, &j) || ranks_count(3) < 3);
}

/* ---- bad input ---- */

/* One rank's state does not have a key: every rank must get the error, and nothing may be written. */
static tsr_status differing(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    tsr_error own = {0};
    fsdp_world w;
    tsr_state_dict *in;
    TSR_TRY(fsdp_world_open(&w, j->test, comm, false, err));
    TSR_TRY(tsr_state_dict_new(&w.host, &in, err));
    const tsr_value *full = live_value(in, live_get(live_get(live_get(w.record, "saves"), "full"), "out"), comm->rank, NULL);
    tsr_value less = *full;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    if (comm->rank == 2) less.count -= 2;
    fsdp_world_scramble(&w);
    NEED(tsr_fsdp_model_load(w.model, &less, false, arena, NULL, &own) == TSR_E_USAGE);
    NEED(strstr(own.message, "ranks 0 and 2 differ: the state's 'head.weight'"));
    TSR_TRY(untouched(&w, err));
    tsr_arena_free(arena);
    tsr_state_dict_free(in);
    fsdp_world_close(&w);
    return TSR_OK;
}

static void test_statedict_fsdp_load__C2_ranks_that_differ_are_named(void **state)
{
    (void)state;
    job j = {live_get(live_get(golden, "cases"), "flat_w3"), NULL, false};
    assert_true(live_run(3, differing, &j) || ranks_count(3) < 3);
}

/* Descriptions that do not fit their tree. */
static tsr_status bad_trees(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    static const char *const messages[] = {"no slice was passed", "which is not a unit", "no tensor was passed for",
                                           "mesh is not"};
    const uint64_t shape = comm->size + 1;
    const tsr_mesh mesh = {1, &shape, &TSR_STR("shard")};
    fsdp_world w;
    TSR_TRY(fsdp_world_open(&w, j->test, comm, false, err));
    for (int i = 0; i < 4; i++) {
        tsr_error own = {0};
        tsr_fsdp_model *model;
        tsr_fsdp_tree tree = w.tree;
        tsr_fsdp_unit units[MOST_UNITS + 1];
        memcpy(units, w.units, sizeof w.units);
        tree.units = units;
        if (i == 0) tree.unit_count--;
        if (i == 1) units[tree.unit_count++] = (tsr_fsdp_unit){.module = TSR_NO_MODULE};
        if (i == 2) tree.plain = NULL;
        if (i == 3) units[1].mesh = &mesh;
        NEED(tsr_fsdp_model_new(&tree, &w.host, &model, &own) == TSR_E_USAGE && !model);
        NEED(strstr(own.message, messages[i]));
    }
    fsdp_world_close(&w);
    return TSR_OK;
}

static void test_statedict_fsdp_load__descriptions_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    job j = {live_get(live_get(golden, "cases"), "flat_w3"), NULL, false};
    assert_true(live_run(3, bad_trees, &j) || ranks_count(3) < 3);
}

/* ---- no memory on one rank ---- */

typedef struct failing {
    tsr_allocator base;
    uint64_t left; /* number of allocations that succeed; 0: none */
    bool failed;
} failing;

static void *fail_later(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    failing *f = ctx;
    if (new_size > old_size && f->left == 0) {
        f->failed = true;
        return NULL;
    }
    f->left -= new_size > old_size;
    return tsr_allocator_libc.resize(tsr_allocator_libc.ctx, pointer, old_size, new_size);
}

typedef struct short_of {
    const cJSON *test;
    const char *type;
    uint64_t allocations;
    bool failed[2]; /* as the ranks agreed */
} short_of;

static tsr_status save_and_load(const short_of *s, fsdp_world *w, failing *f, tsr_status *result, tsr_error *err)
{
    const tsr_fsdp_settings settings = fsdp_world_settings(s->type);
    tsr_error own = {0};
    tsr_state_dict *out;
    TSR_TRY(tsr_fsdp_set_type(w->model, 0, &settings, NULL, err));
    TSR_TRY(tsr_state_dict_new(&w->host, &out, err));
    tsr_arena *arena = tsr_arena_new(&f->base, 0, err);
    if (w->comm->rank == 1) f->left = s->allocations;
    tsr_status status = tsr_fsdp_model_save(w->model, out, &own);
    if (status == TSR_OK) status = tsr_fsdp_model_load(w->model, tsr_state_dict_root(out), true, arena, NULL, &own);
    f->left = UINT64_MAX;
    tsr_arena_free(arena);
    tsr_state_dict_free(out);
    *result = status;
    return TSR_OK;
}

static tsr_status run_short(void *arg, tsr_comm *comm, tsr_error *err)
{
    short_of *s = arg;
    failing f = {{fail_later, &f}, UINT64_MAX, false};
    tsr_status result = TSR_OK;
    fsdp_world w;
    TSR_TRY(fsdp_world_open(&w, s->test, comm, false, err));
    const tsr_allocator *before = w.host.allocator;
    w.host.allocator = &f.base;
    tsr_status status = save_and_load(s, &w, &f, &result, err);
    uint64_t failed = f.failed;
    if (status == TSR_OK) status = comm->largest(comm, &failed, err);
    w.host.allocator = before;
    s->failed[comm->rank] = failed;
    fsdp_world_close(&w);
    TSR_TRY(status);
    NEED(result == (failed ? TSR_E_NOMEM : TSR_OK));
    return TSR_OK;
}

/* Every allocation of rank 1 fails once: no rank may wait, nothing may leak, and all ranks must return the same status. */
static void test_statedict_fsdp_load__no_memory_on_a_rank_is_told_to_all(void **state)
{
    (void)state;
    static const char *const types[] = {"full", "sharded", "local"};
    if (ranks_count(2) != 2) return;
    for (int t = 0; t < 3; t++) {
        short_of s = {.test = live_get(live_get(golden, "cases"), "flat_w2_ignored_half"), .type = types[t]};
        do {
            s.failed[0] = s.failed[1] = false;
            assert_true(live_run(2, run_short, &s));
            s.allocations++;
        } while (s.failed[0] || s.failed[1]);
        assert_true(s.allocations > 20);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_fsdp_load__C2_full),
        cmocka_unit_test(test_statedict_fsdp_load__C3_local),
        cmocka_unit_test(test_statedict_fsdp_load__C5_sharded),
        cmocka_unit_test(test_statedict_fsdp_load__C5_extensions_chunk_and_gather),
        cmocka_unit_test(test_statedict_fsdp_load__C2_ranks_that_differ_are_named),
        cmocka_unit_test(test_statedict_fsdp_load__descriptions_that_do_not_fit_are_refused),
        cmocka_unit_test(test_statedict_fsdp_load__no_memory_on_a_rank_is_told_to_all),
    };
    golden = live_golden("fsdp_state.json");
    ranks_begin(&argc, &argv);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
