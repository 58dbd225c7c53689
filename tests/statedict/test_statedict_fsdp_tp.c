/* Rows B10 and B13: FSDP1 over tensor parallelism, and FSDP extensions, compared with real PyTorch
 * (tests/golden/make_fsdp_tp.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "live_units.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"

static cJSON *golden;

typedef struct job {
    const cJSON *test;
    const char *gets; /* "gets" or "optimizer_gets" */
    tsr_state_options options;
    int number; /* index of the record that it is compared with */
    bool on_device;
} job;

/* Runs the case on a world of its size. When there are at least twice as many processes, it does nothing: tests/mpi/run has
 * runs with fewer processes. */
static bool run_case(const job *j, ranks_body *body)
{
    const uint32_t world = (uint32_t)live_get(live_get(j->test, "case"), "world")->valuedouble;
    return ranks_count(world) >= 2 * world || live_run(world, body, (void *)(uintptr_t)j);
}

static tsr_status told(tsr_status status, const job *j, tsr_error *err)
{
    const tsr_state_options *o = &j->options;
    if (status != TSR_OK)
        tsr_error_context(err, "%s %s full %d offload %d broadcast %d flat %d", j->test->string, j->gets, o->full_state_dict,
                          o->cpu_offload, o->broadcast_from_rank0, o->flatten_optimizer_state_dict);
    return status;
}

/* ---- the extensions of make_fsdp_tp.py: matrices are stored transposed, and are cut by columns ---- */

static tsr_status transpose(const tsr_tensor *from, tsr_state_dict *out, const tsr_tensor **result, tsr_error *err)
{
    const uint64_t *shape = from->entry.shape, turned[2] = {from->entry.ndim == 2 ? shape[1] : 0, shape[0]};
    const tsr_value *value;
    *result = from;
    if (from->entry.ndim != 2) return TSR_OK;
    const tsr_tensor like = tsr_tensor_whole(from->entry.dtype, 2, turned, NULL);
    TSR_TRY(tsr_state_dict_allocate(out, &like, &value, err));
    const uint32_t size = tsr_dtype_size(from->entry.dtype);
    for (uint64_t r = 0; r < shape[0]; r++)
        for (uint64_t c = 0; c < shape[1]; c++)
            memcpy((char *)tsr_tensor_of(value)->data + (c * shape[0] + r) * size,
                   (const char *)from->data + (r * shape[1] + c) * size, size);
    *result = tsr_tensor_of(value);
    return TSR_OK;
}

static tsr_status turn(void *ctx, tsr_str fqn, const tsr_tensor *tensor, tsr_comm *comm, tsr_state_dict *out,
                       const tsr_tensor **result, tsr_error *err)
{
    (void)ctx;
    (void)comm;
    if (fqn.size == 0 || tensor->device) return tsr_raise(err, TSR_E_USAGE, 0, "not a named tensor of the host");
    return transpose(tensor, out, result, err);
}

static tsr_status chunk(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                        const tsr_tensor **result, tsr_error *err)
{
    const uint32_t ndim = whole->entry.ndim, size = tsr_dtype_size(whole->entry.dtype);
    const uint64_t last = whole->entry.shape[ndim - 1], step = (last + comm->size - 1) / comm->size;
    const uint64_t begin = comm->rank * step < last ? comm->rank * step : last;
    const uint64_t end = begin + step < last ? begin + step : last, rows = ndim == 2 ? whole->entry.shape[0] : 1;
    const uint64_t offsets[2] = {ndim == 2 ? 0 : begin, begin}, sizes[2] = {ndim == 2 ? rows : end - begin, end - begin};
    const tsr_tensor_part part = {offsets, sizes, NULL};
    const tsr_tensor like = tsr_tensor_in_boxes(whole->entry.dtype, ndim, whole->entry.shape, &part, end > begin);
    const tsr_value *value;
    (void)ctx;
    (void)fqn;
    TSR_TRY(tsr_state_dict_allocate(out, &like, &value, err));
    *result = tsr_tensor_of(value);
    for (uint64_t r = 0; r < rows && end > begin; r++)
        memcpy((char *)(*result)->parts[0].data + r * (end - begin) * size,
               (const char *)whole->data + (r * last + begin) * size, (end - begin) * size);
    return TSR_OK;
}

static tsr_status gather(void *ctx, tsr_str fqn, const tsr_tensor *sharded, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **whole, tsr_error *err)
{
    const tsr_value *items[2] = {tsr_value_str(tsr_state_dict_arena(out), fqn, err)};
    (void)ctx;
    TSR_TRY(tsr_state_dict_tensor(out, sharded, &items[1], err));
    const tsr_value *state = tsr_value_items(tsr_state_dict_arena(out), TSR_VALUE_DICT, items, 2, err);
    TSR_TRY(tsr_state_dict_gather(state, comm, NULL, out, err));
    return transpose(tsr_tensor_of(tsr_state_dict_root(out)->items[1]), out, whole, err);
}

static const tsr_fsdp_extensions by_columns = {chunk, gather, NULL};
static const tsr_fsdp_transforms transposed = {turn, turn, NULL};

static tsr_status open_units(live_units *u, const job *j, tsr_comm *comm, tsr_error *err)
{
    TSR_TRY(live_units_open(u, j->test, comm, j->on_device, err));
    u->w.extensions = by_columns;
    u->w.transforms = transposed;
    return TSR_OK;
}

/* ---- get ---- */

static bool is_optimizer(const job *j)
{
    return j->gets[0] == 'o';
}

static tsr_status get_one(live_units *u, const job *j, const tsr_state_options *options, const cJSON *submodules,
                          tsr_error *err)
{
    tsr_module_ref b = TSR_NO_MODULE;
    tsr_named_module *named;
    size_t count;
    if (is_optimizer(j))
        return tsr_get_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count},
                                            &(tsr_state_call){.comm = u->w.comm, .options = options}, u->out, err);
    TSR_TRY(tsr_fqn_named_modules(u->w.modules, &u->w.host, u->w.arena, &named, &count, err));
    for (size_t i = 0; i < count; i++)
        if (tsr_str_ends(named[i].raw, TSR_STR("_fsdp_wrapped_module.b"))) b = named[i].module;
    return tsr_get_model_state_dict(
        &u->model,
        &(tsr_state_call){.comm = u->w.comm, .options = options, .submodules = &b, .submodule_count = submodules ? 1 : 0},
        u->out, err);
}

static const cJSON *record_of(const job *j, const live_units *u)
{
    return cJSON_GetArrayItem(live_get(u->w.record, j->gets), j->number);
}

static tsr_status run_get(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    TSR_TRY(open_units(&u, j, comm, err));
    const cJSON *record = record_of(j, &u);
    tsr_status status = get_one(&u, j, &j->options, cJSON_GetObjectItem(record, "submodules"), err);
    const bool none = j->options.full_state_dict && j->options.cpu_offload && comm->rank;
    const tsr_value *root = tsr_state_dict_root(u.out);
    if (status == TSR_OK && none && root->count) status = tsr_raise(err, TSR_E_FORMAT, 0, "only rank 0 is to have it");
    if (status == TSR_OK && !none) status = live_same(root, live_get(record, "out"), false, err);
    live_units_close(&u);
    NEED(u.w.device.allocated == 0);
    return told(status, j, err);
}

static unsigned run_gets(const cJSON *test, const char *gets, bool on_device)
{
    const cJSON *records = live_get(cJSON_GetArrayItem(live_get(test, "ranks"), 0), gets);
    unsigned count = 0;
    for (int i = 0; i < cJSON_GetArraySize(records); i++) {
        const cJSON *record = cJSON_GetArrayItem(records, i);
        job j = {test, gets, live_options(live_get(record, "options")), i, on_device};
        const bool other = j.options.flatten_optimizer_state_dict || cJSON_GetObjectItem(record, "submodules");
        if (on_device && other) continue;
        count += run_case(&j, run_get);
        if (j.options.cpu_offload || other) continue;
        j.options.cpu_offload = true; /* for PyTorch's behaviour see make_fsdp_tp.py */
        count += run_case(&j, run_get);
    }
    return count;
}

static void each_get(const char *gets)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next)
        for (unsigned on_device = 0; on_device < 2; on_device++) count += run_gets(test, gets, on_device);
    assert_true(count > 0);
}

static void test_statedict_fsdp_tp__B13_get_model(void **state)
{
    (void)state;
    each_get("gets");
}

static void test_statedict_fsdp_tp__B10_B13_get_optimizers(void **state)
{
    (void)state;
    each_get("optimizer_gets");
}

/* ---- set ---- */

static tsr_status set_state(live_units *u, const job *j, const tsr_value *state, tsr_error *err)
{
    const tsr_host *host = &u->w.host;
    if (is_optimizer(j))
        return tsr_set_optimizer_state_dict(&u->model, (tsr_optimizers){u->at, u->count}, state,
                                            &(tsr_state_call){.comm = u->w.comm, .options = &j->options, .host = host}, err);
    return tsr_set_model_state_dict(
        &u->model, state, &(tsr_state_call){.comm = u->w.comm, .options = &j->options, .host = host, .arena = u->w.arena},
        err);
}

/* Returns the record of the values that ranks have after a broadcast: those of rank 0, where no dim of the mesh cuts. */
static const cJSON *given_record(const job *j, const live_units *u)
{
    return j->options.broadcast_from_rank0
               ? cJSON_GetArrayItem(live_get(cJSON_GetArrayItem(live_get(j->test, "ranks"), 0), j->gets), j->number)
               : record_of(j, u);
}

/* SHARDED mixes replicas that differ: where PyTorch cuts what is not a DTensor over the dim that replicates, and where it
 * cuts state that NO_SHARD does not cut. */
static bool mixes(const job *j)
{
    const cJSON *how = live_get(j->test, "case"), *mesh = cJSON_GetObjectItem(how, "mesh2d");
    const cJSON *strategy = cJSON_GetObjectItem(how, "strategy");
    if (j->options.full_state_dict || !strategy) return false;
    return cJSON_GetArraySize(mesh) > 2 || (is_optimizer(j) && strcmp(strategy->valuestring, "NO_SHARD") == 0);
}

/* Sets changed values and gets them again; then sets the values that PyTorch gave, which must restore what PyTorch has. */
static tsr_status set_both(live_units *u, const job *j, tsr_error *err)
{
    const uint32_t rank = u->w.comm->rank;
    const cJSON *out = live_get(given_record(j, u), "out");
    const bool has = !j->options.broadcast_from_rank0 || rank == 0;
    const tsr_value *none = tsr_value_items(u->w.arena, TSR_VALUE_DICT, NULL, 0, NULL);
    tsr_state_options again = j->options;
    again.broadcast_from_rank0 = again.cpu_offload = false;
    const tsr_value *state = has ? live_changed(u, live_value(u->memory, out, rank, NULL), NULL) : none;
    TSR_TRY(set_state(u, j, state, err));
    TSR_TRY(get_one(u, j, &again, NULL, err));
    TSR_TRY(live_same(live_unchanged(u, tsr_state_dict_root(u->out)), out, false, err));
    TSR_TRY(set_state(u, j, has ? live_value(u->memory, out, rank, NULL) : none, err));
    if (j->options.broadcast_from_rank0 || mixes(j)) return TSR_OK;
    if (is_optimizer(j)) return live_units_same(u, live_get(u->w.record, "optimizers"), err);
    return fsdp_world_same(&u->w, live_get(u->w.record, "slices"), live_get(u->w.record, "plain"), err);
}

static tsr_status run_set(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    TSR_TRY(open_units(&u, j, comm, err));
    const tsr_status status = set_both(&u, j, err);
    live_units_close(&u);
    NEED(u.w.device.allocated == 0);
    return told(status, j, err);
}

static unsigned run_sets(const cJSON *test, const char *gets)
{
    const cJSON *records = live_get(cJSON_GetArrayItem(live_get(test, "ranks"), 0), gets);
    unsigned count = 0;
    for (int i = 0; i < cJSON_GetArraySize(records); i++) {
        const cJSON *record = cJSON_GetArrayItem(records, i);
        job j = {test, gets, live_options(live_get(record, "options")), i, false};
        if (cJSON_GetObjectItem(record, "submodules") || j.options.cpu_offload) continue;
        count += run_case(&j, run_set);
        if (!j.options.full_state_dict || j.options.flatten_optimizer_state_dict) continue;
        if (cJSON_IsTrue(cJSON_GetObjectItem(live_get(test, "case"), "keys"))) continue;
        j.options.broadcast_from_rank0 = true;
        count += run_case(&j, run_set);
    }
    return count;
}

static void each_set(const char *gets)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) count += run_sets(test, gets);
    assert_true(count > 0);
}

static void test_statedict_fsdp_tp__B13_set_model(void **state)
{
    (void)state;
    each_set("gets");
}

static void test_statedict_fsdp_tp__B10_B13_set_optimizers(void **state)
{
    (void)state;
    each_set("optimizer_gets");
}

/* Compares with what PyTorch loads of a changed SHARDED state: the only set of model state that works there. */
static tsr_status run_torch_set(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    TSR_TRY(open_units(&u, j, comm, err));
    const cJSON *set = cJSON_GetArrayItem(live_get(j->test, "sets"), 0);
    const cJSON *want = cJSON_GetArrayItem(live_get(set, "ranks"), (int)comm->rank);
    const tsr_value *state = live_value(u.memory, live_get(record_of(j, &u), "out"), comm->rank, NULL);
    tsr_status status = set_state(&u, j, live_changed(&u, state, NULL), err);
    if (status == TSR_OK) status = fsdp_world_same(&u.w, live_get(want, "slices"), live_get(want, "plain"), err);
    live_units_close(&u);
    return told(status, j, err);
}

static void test_statedict_fsdp_tp__B13_set_model_as_pytorch(void **state)
{
    unsigned count = 0;
    (void)state;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        job j = {.test = test, .gets = "gets", .options = tsr_state_options_default()};
        if (cJSON_GetArraySize(live_get(test, "sets")) == 0) continue;
        count += run_case(&j, run_torch_set);
    }
    assert_true(count > 0);
}

/* ---- bad input ---- */

/* Descriptions that do not fit, on one rank; and states that are not over the root mesh. */
static tsr_status refuse_descriptions(live_units *u, const job *j, tsr_error *err)
{
    static const char *const messages[] = {"has a root mesh, but no mesh", "must have the dims of its mesh, plus one",
                                           "does not put rank 1 of 4 at slice 0",
                                           "which is not this rank's shard of float32 [8, 3]"};
    static const uint64_t other[3] = {2, 1, 2}, wide[2] = {8, 3}, turned[2] = {1, 4};
    const tsr_mesh three = {3, other, NULL}, swapped = {2, turned, NULL}, one = {1, turned, NULL};
    const tsr_fsdp_unit own = u->w.units[1];
    tsr_fsdp_spec specs[4];
    memcpy(specs, own.specs, sizeof specs);
    specs[0].shape = wide;
    for (int i = 0; i < 4; i++) {
        tsr_error told = {0};
        tsr_fsdp_unit *unit = &u->w.units[1];
        if (u->w.comm->rank == 1) {
            if (i == 0) unit->mesh = NULL;
            if (i == 1) unit->root_mesh = &three;
            if (i == 2) unit->root_mesh = &swapped, unit->mesh = &one;
            if (i == 3) unit->specs = specs;
        }
        const tsr_status status = get_one(u, j, &j->options, NULL, &told);
        *unit = own;
        if (status != TSR_E_USAGE || !strstr(told.message, messages[i]) || !strstr(told.message, "rank 1: "))
            return tsr_raise(err, TSR_E_FORMAT, 0, "%d: status %d, %s", i, (int)status, told.message);
    }
    return TSR_OK;
}

static tsr_status refuse_state(live_units *u, const job *j, tsr_error *err)
{
    const tsr_comm *comm = u->w.comm;
    static const uint64_t shape[2] = {6, 3};
    static float zeros[18];
    const tsr_tensor whole = tsr_tensor_whole(TSR_FLOAT32, 2, shape, zeros);
    const tsr_value *state = live_value(u->memory, live_get(record_of(j, u), "out"), comm->rank, NULL), *value;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_tensor(u->memory, &whole, &value, err));
    for (size_t i = 0; i < state->count; i += 2)
        if (tsr_str_equal(state->items[i]->text, TSR_STR("a.0.weight"))) ((const tsr_value **)state->items)[i + 1] = value;
    NEED(set_state(u, j, state, &told) == TSR_E_USAGE);
    NEED(strstr(told.message, "'a.0.weight' is whole in the state, but the unit's state dict type requires a DTensor"));
    return fsdp_world_same(&u->w, live_get(u->w.record, "slices"), live_get(u->w.record, "plain"), err);
}

static tsr_status refuse(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    live_units u;
    TSR_TRY(open_units(&u, j, comm, err));
    tsr_status status = refuse_descriptions(&u, j, err);
    if (status == TSR_OK) status = refuse_state(&u, j, err);
    live_units_close(&u);
    return status;
}

static void test_statedict_fsdp_tp__what_does_not_fit_is_refused_on_all_ranks(void **state)
{
    job j = {live_get(live_get(golden, "cases"), "flat_w4"), "gets", tsr_state_options_default(), 0, false};
    (void)state;
    assert_true(live_run(4, refuse, &j) || ranks_count(4) < 4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_fsdp_tp__B13_get_model),
        cmocka_unit_test(test_statedict_fsdp_tp__B10_B13_get_optimizers),
        cmocka_unit_test(test_statedict_fsdp_tp__B13_set_model),
        cmocka_unit_test(test_statedict_fsdp_tp__B13_set_model_as_pytorch),
        cmocka_unit_test(test_statedict_fsdp_tp__what_does_not_fit_is_refused_on_all_ranks),
        cmocka_unit_test(test_statedict_fsdp_tp__B10_B13_set_optimizers),
    };
    ranks_begin(&argc, &argv);
    golden = live_golden("fsdp_tp.json");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
