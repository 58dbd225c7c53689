/* Rows A1, A6 and A7 compared with real PyTorch (tests/golden/make_model_state.py), and cases that PyTorch leaves undone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "live_model.h"

#include "tessera/sys/names.h"

static cJSON *golden;

/* ---- A6: get ---- */

static tsr_status get_one(const cJSON *test, const cJSON *record, tsr_comm *comm, tsr_error *err)
{
    live_model m;
    tsr_module_ref submodules[8];
    tsr_named_module *named;
    size_t named_count, count = 0;
    tsr_error own = {0};
    const tsr_state_options options = live_options(live_get(record, "options"));
    TSR_TRY(live_model_open(&m, test, comm->rank, err));
    TSR_TRY(tsr_fqn_named_modules(m.modules, &m.host, m.arena, &named, &named_count, err));
    for (const cJSON *n = live_get(record, "submodules")->child; n; n = n->next)
        for (size_t i = 0; i < named_count; i++)
            if (tsr_str_equal(named[i].raw, tsr_str_from(n->valuestring))) submodules[count++] = named[i].module;
    const tsr_status got = tsr_get_model_state_dict(
        &m.model, &(tsr_state_call){.comm = comm, .options = &options, .submodules = submodules, .submodule_count = count},
        m.out, &own);
    tsr_status status = TSR_OK;
    if (cJSON_GetObjectItem(record, "error")) {
        if (got == TSR_OK) status = tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch refuses, this does not");
    } else {
        status = got == TSR_OK ? live_same(tsr_state_dict_root(m.out), live_get(record, "out"), false, err)
                               : tsr_raise(err, got, 0, "%s", own.message);
    }
    live_model_close(&m);
    return status;
}

static tsr_status run_get(void *arg, tsr_comm *comm, tsr_error *err)
{
    const cJSON *record = live_record_of(arg, "gets", comm->rank);
    return live_record_told(get_one(((live_record *)arg)->test, record, comm, err), arg, record, err);
}

static void test_statedict_model_state__A6_get(void **state)
{
    (void)state;
    live_records(golden, "gets", run_get);
}

/* ---- A7: set ---- */

static bool same_names(const tsr_str *names, size_t count, const cJSON *list)
{
    if ((size_t)cJSON_GetArraySize(list) != count) return false;
    for (const cJSON *n = list->child; n; n = n->next) {
        bool found = false;
        char want[128]; /* PyTorch's missing keys are local ones, with the wrappers' names */
        const char *inside = strstr(n->valuestring, "_checkpoint_wrapped_module.");
        const int before = inside ? (int)(inside - n->valuestring) : 0;
        snprintf(want, sizeof want, "%.*s%s", before, n->valuestring, inside ? strchr(inside, '.') + 1 : n->valuestring);
        for (size_t i = 0; i < count; i++) found = found || tsr_str_ends(tsr_str_from(want), names[i]);
        if (!found) return false;
    }
    return true;
}

static tsr_status expect_model(live_model *m, const cJSON *record, tsr_error *err)
{
    for (size_t i = 0; i < m->item_count; i++) {
        char raw[128];
        const tsr_value *value;
        if (!m->tensors[i].entry.dtype) continue;
        snprintf(raw, sizeof raw, "%.*s", TSR_STR_ARG(m->items[i].raw));
        TSR_TRY(tsr_state_dict_tensor(m->out, &m->tensors[i], &value, err));
        const tsr_status status = live_same(value, live_get(live_get(record, "tensors"), raw), false, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "'%s'", raw);
            return status;
        }
    }
    const bool kept = live_get(record, "extra")->child->child->child->next->child->valueint == 3;
    if (kept && m->extra) return tsr_raise(err, TSR_E_FORMAT, 0, "extra state was set");
    return kept ? TSR_OK : m->extra ? live_same(m->extra, live_get(record, "extra"), false, err) : TSR_E_FORMAT;
}

/* Whether PyTorch reports no missing key here: with full state it does so except in a strict broadcast. Tessera reports the
 * key. */
static bool missing_goes_unseen(const cJSON *record, const tsr_state_options *o)
{
    return live_is(record, "of", "missing") && o->full_state_dict && !(o->broadcast_from_rank0 && o->strict);
}

static tsr_status set_one(const cJSON *test, const cJSON *record, tsr_comm *comm, tsr_error *err)
{
    live_model m;
    tsr_unmatched_keys keys;
    tsr_error own = {0};
    const tsr_state_options options = live_options(live_get(record, "options"));
    const bool refused = cJSON_GetObjectItem(record, "error") != NULL;
    TSR_TRY(live_model_open(&m, test, comm->rank, err));
    const tsr_value *state = live_value(m.out, live_get(record, "state"), comm->rank, NULL);
    const tsr_status got = tsr_set_model_state_dict(
        &m.model, state,
        &(tsr_state_call){.comm = comm, .options = &options, .host = &m.host, .arena = m.arena, .unmatched = &keys}, &own);
    tsr_status status = TSR_OK;
    if (missing_goes_unseen(record, &options)) {
        const bool named = keys.missing_count == 1 && tsr_str_equal(keys.missing[0], TSR_STR("body.0.bias"));
        if (!named || (got == TSR_OK) == options.strict) status = tsr_raise(err, TSR_E_FORMAT, 0, "a key is missing unseen");
        if (status == TSR_OK && got == TSR_OK) status = expect_model(&m, record, err);
    } else if (refused != (got != TSR_OK)) {
        status = tsr_raise(err, TSR_E_FORMAT, 0, "PyTorch %s; %s", refused ? "refuses" : "does not refuse", own.message);
    } else if (!refused) {
        status = expect_model(&m, record, err);
        if (!same_names(keys.missing, keys.missing_count, live_get(record, "missing")) ||
            (comm->rank == 0 && !same_names(keys.unexpected, keys.unexpected_count, live_get(record, "unexpected"))))
            status =
                tsr_raise(err, TSR_E_FORMAT, 0, "%zu missing, %zu unexpected", keys.missing_count, keys.unexpected_count);
    }
    live_model_close(&m);
    return status;
}

static tsr_status run_set(void *arg, tsr_comm *comm, tsr_error *err)
{
    const cJSON *record = live_record_of(arg, "sets", comm->rank);
    return live_record_told(set_one(((live_record *)arg)->test, record, comm, err), arg, record, err);
}

static void test_statedict_model_state__A7_set(void **state)
{
    (void)state;
    live_records(golden, "sets", run_set);
}

/* ---- what PyTorch leaves undone ---- */

static const cJSON *case_of(const char *name)
{
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next)
        if (live_is(test, "of", name)) return test;
    return NULL;
}

static tsr_status meta_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_model m, other;
    tsr_state_options options = tsr_state_options_default();
    TSR_TRY(live_model_open(&m, arg, comm->rank, err));
    TSR_TRY(live_model_open(&other, arg, comm->rank, err));
    tsr_tensor *weight = m.model.tensors[1].tensor;
    const tsr_tensor was = *weight;
    weight->meta = true;
    weight->data = NULL;
    TSR_TRY(tsr_get_model_state_dict(&m.model, &(tsr_state_call){.comm = comm, .options = &options}, m.out, err));
    TSR_TRY(tsr_get_model_state_dict(&other.model, &(tsr_state_call){.comm = comm, .options = &options}, other.out, err));
    NEED(tsr_value_pairs(tsr_state_dict_root(m.out)) + 1 == tsr_value_pairs(tsr_state_dict_root(other.out)));
    TSR_TRY(tsr_set_model_state_dict(&m.model, tsr_state_dict_root(other.out),
                                     &(tsr_state_call){.comm = comm, .options = &options, .host = &m.host, .arena = m.arena},
                                     err));
    uint64_t bytes;
    NEED(!weight->meta && weight->data != was.data);
    TSR_TRY(tsr_tensor_held(weight, m.arena, &bytes, err));
    NEED(memcmp(weight->data, was.data, (size_t)bytes) == 0);
    live_model_close(&m);
    live_model_close(&other);
    return TSR_OK;
}

/* A meta tensor of a device gets memory on that device; with cpu_offload and broadcast_from_rank0 it gets memory on the
 * host. */
static tsr_status offloaded_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    for (unsigned bits = 0; bits < 4; bits++) {
        live_model m, other;
        live_device device;
        tsr_state_options options = tsr_state_options_default();
        options.full_state_dict = true;
        options.cpu_offload = bits & 1;
        options.broadcast_from_rank0 = bits & 2;
        live_device_open(&device);
        TSR_TRY(live_model_open(&m, arg, comm->rank, err));
        TSR_TRY(live_model_open(&other, arg, comm->rank, err));
        TSR_TRY(tsr_get_model_state_dict(&other.model, &(tsr_state_call){.comm = comm}, other.out, err));
        tsr_tensor *weight = m.model.tensors[1].tensor;
        *weight = *other.model.tensors[1].tensor;
        weight->meta = true;
        weight->data = NULL;
        weight->device = &device.base;
        const tsr_value *state = tsr_state_dict_root(other.out);
        TSR_TRY(tsr_set_model_state_dict(
            &m.model, state, &(tsr_state_call){.comm = comm, .options = &options, .host = &m.host, .arena = m.arena}, err));
        NEED(!weight->meta && weight->data && weight->device == (bits == 3 ? NULL : &device.base));
        live_model_close(&m);
        live_model_close(&other);
        NEED(device.allocated == 0);
    }
    return TSR_OK;
}

static void test_statedict_model_state__A1_cpu_offload_of_what_is_set(void **state)
{
    (void)state;
    live_run(2, offloaded_case, (void *)(uintptr_t)case_of("plain"));
}

static void test_statedict_model_state__A6_meta_tensors_are_left_out_and_get_memory_when_set(void **state)
{
    (void)state;
    live_run(2, meta_case, (void *)(uintptr_t)case_of("plain"));
    live_run(2, meta_case, (void *)(uintptr_t)case_of("sharded"));
}

/* Describes a state dict with one tensor changed. Nothing of the model may change. */
typedef struct refusal {
    const char *model;
    tsr_dtype dtype;
    uint64_t rows;
    bool full;
    const char *want;
} refusal;

static tsr_status refuse_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    const refusal *r = arg;
    live_model m;
    tsr_error own = {0};
    const uint64_t shape[1] = {r->rows};
    const tsr_tensor tensor = tsr_tensor_whole(r->dtype, 1, shape, NULL);
    const tsr_value *value;
    tsr_state_options options = tsr_state_options_default();
    TSR_TRY(live_model_open(&m, case_of(r->model), comm->rank, err));
    options.full_state_dict = r->full;
    TSR_TRY(tsr_get_model_state_dict(&m.model, &(tsr_state_call){.comm = comm, .options = &options}, m.out, err));
    const tsr_value *root = tsr_state_dict_root(m.out);
    tsr_state_dict *given;
    TSR_TRY(tsr_state_dict_new(&m.host, &given, err));
    for (size_t i = 0; i < tsr_value_pairs(root); i++)
        TSR_TRY(tsr_state_dict_put(given, root->items[2 * i]->text, root->items[2 * i + 1], err));
    TSR_TRY(tsr_state_dict_allocate(given, &tensor, &value, err));
    if (comm->rank == 0) TSR_TRY(tsr_state_dict_put(given, TSR_STR("scale"), value, err));
    const tsr_status status = tsr_set_model_state_dict(
        &m.model, tsr_state_dict_root(given),
        &(tsr_state_call){.comm = comm, .options = &options, .host = &m.host, .arena = m.arena}, &own);
    NEED(status == TSR_E_USAGE);
    if (!strstr(own.message, r->want)) return tsr_raise(err, TSR_E_FORMAT, 0, "%s: %s", r->want, own.message);
    NEED(!m.extra);
    tsr_state_dict_free(given);
    live_model_close(&m);
    return TSR_OK;
}

static void test_statedict_model_state__A7_refusals_name_both_sides(void **state)
{
    (void)state;
    refusal cases[] = {
        {"plain", TSR_FLOAT32, 4, false, "float32 [4] in the state dict, float32 [3] in the model, in 'scale'"},
        {"plain", TSR_FLOAT64, 3, false, "float64 [3] in the state dict, float32 [3] in the model, in 'scale'"},
        {"plain", TSR_INT32, 3, true, "int32 [3] in the state dict, float32 [3] in the model, in 'scale'"},
        {"plain", TSR_FLOAT8_E4M3FN, 3, true, "float8_e4m3fn [3] in the state dict, float32 [3] in the model, in 'scale'"},
        {"sharded", TSR_FLOAT32, 3, false,
         "float32 [3] in the state dict, float32 [3] over dp=2: shard(0) in the model, in 'scale'"},
        {"sharded", TSR_FLOAT32, 2, true,
         "float32 [2] in the state dict, float32 [3] over dp=2: shard(0) in the model, in 'scale'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) live_run(2, refuse_case, &cases[i]);
}

static tsr_status disagree(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_model m;
    tsr_error own = {0};
    tsr_state_options options = tsr_state_options_default();
    options.full_state_dict = comm->rank == 1;
    TSR_TRY(live_model_open(&m, arg, comm->rank, err));
    NEED(tsr_get_model_state_dict(&m.model, &(tsr_state_call){.comm = comm, .options = &options}, m.out, &own) ==
         TSR_E_USAGE);
    NEED(strstr(own.message, "get_model_state_dict: options: rank 1 differs from rank 0"));
    if (comm->rank == 0) m.model.tensor_count--;
    options.full_state_dict = false;
    memset(&own, 0, sizeof own);
    NEED(tsr_get_model_state_dict(&m.model, &(tsr_state_call){.comm = comm, .options = &options}, m.out, &own) ==
         TSR_E_USAGE);
    NEED(strstr(own.message, "rank 0: the model has no tensor for '"));
    live_model_close(&m);
    return TSR_OK;
}

static void test_statedict_model_state__A1_ranks_that_differ_are_told(void **state)
{
    (void)state;
    live_run(2, disagree, (void *)(uintptr_t)case_of("plain"));
}

static void test_statedict_model_state__A6_two_keys_with_one_canonical_name_are_refused(void **state)
{
    (void)state;
    const uint64_t shape[1] = {1};
    float numbers[2] = {1, 2};
    const tsr_module_tensor weights[2] = {{.name = TSR_STR("w"), .dtype = TSR_FLOAT32, .ndim = 1, .shape = shape},
                                          {.name = TSR_STR("w"), .dtype = TSR_FLOAT32, .ndim = 1, .shape = shape}};
    const tsr_module leaf = {.class_name = TSR_STR("A"), .parameters = &weights[0], .parameter_count = 1};
    const tsr_module_child below[1] = {{TSR_STR("_checkpoint_wrapped_module"), &leaf}};
    const tsr_module wrapped = {.class_name = TSR_STR("B"),
                                .wrapper = TSR_WRAPPER_CHECKPOINT,
                                .parameters = &weights[1],
                                .parameter_count = 1,
                                .children = below,
                                .child_count = 1};
    const tsr_module_child top[1] = {{TSR_STR("net"), &wrapped}};
    const tsr_module root = {.class_name = TSR_STR("C"), .children = top, .child_count = 1};
    const tsr_host host = live_host(NULL);
    tsr_tensor tensors[2] = {tsr_tensor_whole(TSR_FLOAT32, 1, shape, &numbers[0]),
                             tsr_tensor_whole(TSR_FLOAT32, 1, shape, &numbers[1])};
    const tsr_model_tensor bound[2] = {{&weights[0], &tensors[0], NULL}, {&weights[1], &tensors[1], NULL}};
    tsr_modules *modules;
    tsr_state_dict *out;
    tsr_error err = {0};
    assert_int_equal(tsr_modules_new(&root, &host, &modules, &err), TSR_OK);
    assert_int_equal(tsr_state_dict_new(&host, &out, &err), TSR_OK);
    const tsr_model model = {.modules = modules, .tensors = bound, .tensor_count = 2};
    assert_int_equal(tsr_get_model_state_dict(&model, &(tsr_state_call){0}, out, &err), TSR_E_FORMAT);
    assert_string_equal(err.message,
                        "rank 0: 'net.w' and 'net._checkpoint_wrapped_module.w' both have the canonical name 'net.w'");
    tsr_state_dict_free(out);
    tsr_modules_free(modules);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_model_state__A6_get),
        cmocka_unit_test(test_statedict_model_state__A7_set),
        cmocka_unit_test(test_statedict_model_state__A1_cpu_offload_of_what_is_set),
        cmocka_unit_test(test_statedict_model_state__A6_meta_tensors_are_left_out_and_get_memory_when_set),
        cmocka_unit_test(test_statedict_model_state__A7_refusals_name_both_sides),
        cmocka_unit_test(test_statedict_model_state__A1_ranks_that_differ_are_told),
        cmocka_unit_test(test_statedict_model_state__A6_two_keys_with_one_canonical_name_are_refused),
    };
    ranks_begin(&argc, &argv);
    golden = live_golden("model_state.json");
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(golden);
    return ranks_end(failed);
}
