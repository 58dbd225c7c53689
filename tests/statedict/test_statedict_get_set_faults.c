/* Rows A6, A7, A12 and B11 with a rank that fails: each of its allocations and each of its calls of the communicator fails
 * once. All ranks must end with the same status, and nothing may leak (the sanitizers check that). The ordinary run tests an
 * even selection of the points, and TSR_TEST_FULL=1 all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_call.h"
#include "live_model.h"
#include "live_units.h"
#include "support/failing_allocator.h"
#include "support/full_counts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optimizer.h"

static cJSON *plain, *units, *tp;

typedef enum operation {
    GET_MODEL,
    GET_OPTIMIZERS,
    SET_MODEL,
    SET_OPTIMIZERS,
    FROM_RAW, /* only of units */
    TO_LOAD,
    OPERATIONS
} operation;

typedef struct point {
    const cJSON *test;
    bool with_units, extended;
    operation operation;
    tsr_state_options options;
    uint32_t rank;
    uint64_t allocation, call; /* the one that fails; UINT64_MAX: none */
    uint64_t points[16];       /* for each rank, how many there were before the end */
} point;

/* A model of either kind. */
typedef struct subject {
    live_model m;
    live_units u;
    const tsr_model *model;
    tsr_model_optimizer one, *at[2];
    tsr_model_optimizer *const *optimizers;
    size_t count;
    tsr_host *host;
    tsr_arena *arena;
} subject;

/* The parameters of a model without units have an AdamW optimizer that has not stepped. */
static tsr_status add_optimizer(subject *s, tsr_error *err)
{
    tsr_arena *arena = s->m.arena;
    tsr_state_item *named;
    size_t count;
    TSR_TRY(tsr_fqn_named_parameters(s->m.modules, &s->m.host, arena, &named, &count, err));
    tsr_model_group *group = tsr_arena_array(arena, 1, sizeof *group, err);
    group->params = tsr_arena_array(arena, count, sizeof *group->params, err);
    const tsr_value **options = tsr_arena_array(arena, 2, sizeof *options, err);
    options[0] = tsr_value_str(arena, TSR_STR("lr"), err);
    tsr_value *lr = tsr_value_new(arena, TSR_VALUE_FLOAT, err);
    lr->as.real = 0.5;
    options[1] = lr;
    group->options = tsr_value_items(arena, TSR_VALUE_DICT, options, 2, err);
    for (size_t i = 0; i < count; i++) group->params[group->count++].of = named[i].tensor;
    s->one = (tsr_model_optimizer){.algorithm = TSR_ADAMW, .groups = group, .group_count = 1, .memory = s->m.home};
    s->at[0] = &s->one;
    s->optimizers = s->at;
    s->count = 1;
    return TSR_OK;
}

/* Extensions that keep every tensor whole: how states and parameters are cut does not matter here. */
static tsr_status keep(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                       const tsr_tensor **result, tsr_error *err)
{
    const tsr_value *value;
    (void)ctx;
    (void)fqn;
    /* An extension that communicates must agree like this. */
    TSR_TRY(tsr_comm_agree(comm, tsr_state_dict_allocate(out, whole, &value, err), err));
    *result = tsr_tensor_of(value);
    for (uint64_t i = 0; i < whole->entry.shape[0]; i++) ((char *)(*result)->data)[i] = ((const char *)whole->data)[i];
    return TSR_OK;
}

static const tsr_fsdp_extensions extensions = {keep, keep, NULL};

static tsr_status open_subject(subject *s, const point *p, tsr_comm *comm, tsr_error *err)
{
    if (p->with_units) {
        TSR_TRY(live_units_open(&s->u, p->test, comm, false, err));
        s->u.w.units[0].extensions = p->extended ? &extensions : NULL;
        s->model = &s->u.model;
        s->optimizers = s->u.at;
        s->count = s->u.count;
        s->host = &s->u.w.host;
        s->arena = s->u.w.arena;
        return TSR_OK;
    }
    TSR_TRY(live_model_open(&s->m, p->test, comm->rank, err));
    s->model = &s->m.model;
    s->host = &s->m.host;
    s->arena = s->m.arena;
    return add_optimizer(s, err);
}

static void close_subject(subject *s, const point *p)
{
    if (p->with_units) live_units_close(&s->u);
    else live_model_close(&s->m);
}

/* Converts the state of the first optimizer, which is a named optimizer when it loads. */
static tsr_status convert(subject *s, const point *p, tsr_comm *comm, const tsr_value *state, tsr_state_dict *out,
                          tsr_error *err)
{
    const tsr_raw_optimizer raw = {.model = s->model, .optimizer = s->optimizers[0], .comm = comm, .named = state != NULL};
    const tsr_fsdp_settings settings = {.type = p->options.full_state_dict ? TSR_FSDP_FULL : TSR_FSDP_SHARDED,
                                        .rank0_only = p->options.broadcast_from_rank0};
    return p->operation == FROM_RAW ? tsr_fsdp_optim_state_dict(&raw, NULL, &settings, out, err)
                                    : tsr_fsdp_optim_state_dict_to_load(&raw, state, &settings, out, err);
}

static tsr_status operate(subject *s, const point *p, tsr_comm *comm, const tsr_value *state, tsr_state_dict *out,
                          tsr_arena *arena, tsr_error *err)
{
    switch (p->operation) {
    case GET_MODEL:
        return tsr_get_model_state_dict(s->model, &(tsr_state_call){.comm = comm, .options = &p->options}, out, err);
    case GET_OPTIMIZERS:
        return tsr_get_optimizer_state_dict(s->model, (tsr_optimizers){s->optimizers, s->count},
                                            &(tsr_state_call){.comm = comm, .options = &p->options}, out, err);
    case SET_MODEL:
        return tsr_set_model_state_dict(
            s->model, state, &(tsr_state_call){.comm = comm, .options = &p->options, .host = s->host, .arena = arena}, err);
    case FROM_RAW:
    case TO_LOAD: return convert(s, p, comm, state, out, err);
    default:
        return tsr_set_optimizer_state_dict(s->model, (tsr_optimizers){s->optimizers, s->count}, state,
                                            &(tsr_state_call){.comm = comm, .options = &p->options, .host = s->host}, err);
    }
}

/* Makes the input of a set: by a get with the same options, but without the broadcast. */
static tsr_status make_given(subject *s, const point *p, tsr_comm *comm, tsr_state_dict *given, tsr_error *err)
{
    point before = *p;
    before.operation = p->operation == SET_MODEL ? GET_MODEL : p->operation == TO_LOAD ? FROM_RAW : GET_OPTIMIZERS;
    before.options.broadcast_from_rank0 = false;
    if (p->operation == GET_MODEL || p->operation == GET_OPTIMIZERS || p->operation == FROM_RAW) return TSR_OK;
    return operate(s, &before, comm, NULL, given, s->arena, err);
}

/* Expects the same status on all ranks: that of the failure, or success. */
static tsr_status judge(point *p, tsr_comm *comm, tsr_status got, const tsr_error *own, bool failed, tsr_error *err)
{
    uint64_t any = failed, low = UINT64_MAX - (uint64_t)got, high = (uint64_t)got;
    TSR_TRY(comm->largest(comm, &any, err));
    TSR_TRY(comm->largest(comm, &low, err));
    TSR_TRY(comm->largest(comm, &high, err));
    p->points[comm->rank] = any;
    if (UINT64_MAX - low != high || (any ? got == TSR_OK : got != TSR_OK) || (got != TSR_OK && !*own->message))
        return tsr_raise(err, TSR_E_FORMAT, 0, "status %d, failed %d: %s", (int)got, (int)any, own->message);
    if (strstr(own->message, "rank 0: rank ") || strstr(own->message, "rank 1: rank "))
        return tsr_raise(err, TSR_E_FORMAT, 0, "told twice: %s", own->message);
    return TSR_OK;
}

static tsr_status run_allocation(void *arg, tsr_comm *comm, tsr_error *err)
{
    point *p = arg;
    subject s = {.count = 0};
    failing_allocator f;
    tsr_state_dict *given, *out;
    tsr_comm *own_comm; /* may be unusable afterwards */
    tsr_error own = {0};
    failing_start(&f, SIZE_MAX);
    TSR_TRY(comm->split(comm, 0, comm->rank, &own_comm, err));
    TSR_TRY(open_subject(&s, p, own_comm, err));
    TSR_TRY(tsr_state_dict_new(s.host, &given, err));
    TSR_TRY(make_given(&s, p, own_comm, given, err));
    const tsr_allocator *before = s.host->allocator;
    s.host->allocator = &f.allocator;
    TSR_TRY(tsr_state_dict_new(s.host, &out, err));
    tsr_arena *arena = tsr_arena_new(&f.allocator, 0, err);
    if (comm->rank == p->rank) failing_after(&f, (size_t)p->allocation);
    const tsr_status got = operate(&s, p, own_comm, tsr_state_dict_root(given), out, arena, &own);
    failing_after(&f, SIZE_MAX);
    tsr_arena_free(arena);
    tsr_state_dict_free(out);
    s.host->allocator = before;
    tsr_state_dict_free(given);
    close_subject(&s, p);
    own_comm->close(own_comm);
    return judge(p, comm, got, &own, f.failed, err);
}

static tsr_status run_call(void *arg, tsr_comm *comm, tsr_error *err)
{
    point *p = arg;
    subject s = {.count = 0};
    tsr_state_dict *given, *out;
    tsr_comm *whole, *faulty;
    tsr_error own = {0};
    const tsr_fault fault = {TSR_FAULT_FAIL, p->rank, p->call, false};
    tsr_faults faults = {.list = &fault, .count = 1}, none = {.count = 0};
    TSR_TRY(comm->split(comm, 0, comm->rank, &whole, err));
    TSR_TRY(tsr_comm_faulty(whole, &none, &tsr_allocator_libc, &faulty, err));
    TSR_TRY(open_subject(&s, p, faulty, err));
    TSR_TRY(tsr_state_dict_new(s.host, &given, err));
    TSR_TRY(tsr_state_dict_new(s.host, &out, err));
    TSR_TRY(make_given(&s, p, faulty, given, err));
    none = faults;
    none.calls = 0;
    const tsr_status got = operate(&s, p, faulty, tsr_state_dict_root(given), out, s.arena, &own);
    const bool failed = comm->rank == p->rank && none.calls > p->call;
    tsr_state_dict_free(out);
    tsr_state_dict_free(given);
    close_subject(&s, p);
    faulty->close(faulty);
    return judge(p, comm, got, &own, failed, err);
}

static uint64_t step_of(uint64_t at, uint64_t ordinary)
{
    return full_counts() ? at + 1 : at + ordinary;
}

static void all_points(point p, uint32_t world, bool allocations)
{
    uint64_t count = 0;
    bool failed = true;
    if (ranks_count(world) != world) return;
    for (uint64_t at = 0; failed; at = step_of(at, at < 10 ? 1 : allocations ? 53 : 3), count++) {
        tsr_error err = {0};
        p.allocation = allocations ? at : UINT64_MAX;
        p.call = allocations ? UINT64_MAX : at;
        memset(p.points, 0, sizeof p.points);
        if (live_try(world, allocations ? run_allocation : run_call, &p, &err) != TSR_OK)
            fail_msg("%s, operation %d, rank %u, point %u: %s", p.with_units ? "units" : "plain", (int)p.operation,
                     (unsigned)p.rank, (unsigned)at, err.message);
        uint64_t any = p.points[p.rank];
        for (uint32_t r = 0; r < world; r++) any = any || p.points[r];
        failed = any;
    }
    assert_true(count > 3);
}

static const cJSON *plain_case(const char *name)
{
    for (const cJSON *test = live_get(plain, "cases")->child; test; test = test->next)
        if (live_is(test, "of", name)) return test;
    return NULL;
}

static const cJSON *units_case(const char *name)
{
    const cJSON *test = cJSON_GetObjectItem(live_get(tp, "cases"), name); /* over tensor parallelism */
    return test ? test : live_get(live_get(units, "cases"), name);
}

static void every_operation(bool allocations)
{
    static const struct {
        const char *of;
        bool with_units;
        uint32_t world;
        bool extended;
    } models[] = {{"sharded", false, 2, false},   {"mesh_w2", true, 2, false}, {"orig_w2", true, 2, false},
                  {"flat_w3", true, 3, false},    {"mesh_w2", true, 2, true},  {"flat_dp1_w2", true, 2, false},
                  {"orig_tp1_w2", true, 2, false}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        for (int full = 0; full < 3; full++) {
            for (int o = 0; o < (models[m].with_units ? OPERATIONS : FROM_RAW); o++) {
                /* FULL state over tensor parallelism has DTensors, which neither PyTorch nor Tessera scatters from rank
                 * 0. */
                if (full == 2 && o == TO_LOAD && cJSON_GetObjectItem(live_get(tp, "cases"), models[m].of)) continue;
                point p = {.with_units = models[m].with_units, .operation = (operation)o, .rank = (uint32_t)(o + full) % 2};
                p.extended = models[m].extended;
                p.test = p.with_units ? units_case(models[m].of) : plain_case(models[m].of);
                p.options = tsr_state_options_default();
                p.options.full_state_dict = full > 0;
                p.options.broadcast_from_rank0 = full == 2;
                p.options.flatten_optimizer_state_dict = full == 1;
                all_points(p, models[m].world, allocations);
            }
        }
    }
}

static void test_statedict_get_set_faults__no_memory_once_is_told_to_all(void **state)
{
    (void)state;
    every_operation(true);
}

static void test_statedict_get_set_faults__a_call_that_fails_is_told_to_all(void **state)
{
    (void)state;
    every_operation(false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_get_set_faults__no_memory_once_is_told_to_all),
        cmocka_unit_test(test_statedict_get_set_faults__a_call_that_fails_is_told_to_all),
    };
    ranks_begin(&argc, &argv);
    plain = live_golden("model_state.json");
    units = live_golden("fsdp_get_set.json");
    tp = live_golden("fsdp_tp.json");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(tp);
    cJSON_Delete(units);
    cJSON_Delete(plain);
    return ranks_end(failed);
}
