/* Row A8: the first states of live optimizers equal PyTorch's bit for bit (tests/golden/make_first_states.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "live.h"
#include "tessera/optimizer_state.h"

#define MOST_BYTES 1024

typedef struct first {
    const cJSON *test, *param;
    live_device device;
    bool on_device;
} first;

static uint64_t unhex(const char *text, uint8_t *out)
{
    uint64_t size = strlen(text) / 2;
    for (uint64_t i = 0; i < size; i++) {
        unsigned byte;
        assert_true(i < MOST_BYTES && sscanf(text + 2 * i, "%2x", &byte) == 1);
        out[i] = (uint8_t)byte;
    }
    return size;
}

static const uint8_t *on_host(const tsr_tensor *tensor, uint64_t bytes, uint8_t *copy)
{
    if (!tensor->device) return tensor->data;
    assert_int_equal(tensor->device->to_host(tensor->device, copy, tensor->data, bytes, NULL), TSR_OK);
    return copy;
}

static bool is_zero(const uint8_t *element, uint64_t size)
{
    for (uint64_t i = 0; i + 1 < size; i++)
        if (element[i]) return false;
    return (element[size - 1] & 0x7f) == 0;
}

/* Compares the bytes, except for the sign of zeros in complex numbers, which differs in PyTorch between whole vectors and
 * the elements after the last one. */
static bool same_bytes(const uint8_t *a, const uint8_t *b, uint64_t size, tsr_dtype dtype)
{
    const bool complex = dtype == TSR_COMPLEX64 || dtype == TSR_COMPLEX128;
    const uint64_t one = complex ? tsr_dtype_size(dtype) / 2 : tsr_dtype_size(dtype);
    for (uint64_t i = 0; i < size; i += one) {
        const bool zeros = complex && is_zero(a + i, one) && is_zero(b + i, one);
        if (memcmp(a + i, b + i, (size_t)one) != 0 && !zeros) return false;
    }
    return true;
}

/* Whether "step" is on the device of the parameter. */
static bool step_moves(const cJSON *options)
{
    char *text = cJSON_PrintUnformatted(options);
    const bool moves =
        strstr(text, "[{\"s\":\"fused\"},{\"b\":true}]") || strstr(text, "[{\"s\":\"capturable\"},{\"b\":true}]");
    cJSON_free(text);
    return moves;
}

static tsr_status same_state(const first *f, const tsr_value *state, const cJSON *want, tsr_comm *comm, tsr_error *err)
{
    size_t at = 0;
    NEED(tsr_value_pairs(state) == (size_t)cJSON_GetArraySize(want));
    for (const cJSON *one = want->child; one; one = one->next, at += 2) {
        uint8_t wanted[MOST_BYTES], copy[MOST_BYTES];
        const char *name = one->child->valuestring, *dtype = one->child->next->valuestring;
        const uint64_t size = unhex(one->child->next->next->valuestring, wanted);
        const tsr_tensor *tensor = tsr_tensor_of(state->items[at + 1]);
        const bool on_device = f->on_device && (strcmp(name, "step") != 0 || step_moves(live_get(f->test, "options")));
        NEED(tsr_str_equal(state->items[at]->text, tsr_str_from(name)));
        NEED(strcmp(tsr_dtype_describe(tensor->entry.dtype)->name, dtype) == 0);
        NEED((tensor->device != NULL) == on_device);
        if (!same_bytes(on_host(tensor, size, copy), wanted, size, tensor->entry.dtype))
            return tsr_raise(err, TSR_E_FORMAT, 0, "other bytes of '%s', %s", name, dtype);
    }
    return TSR_OK;
}

/* Makes a model with one parameter "w". */
static tsr_status open_model(const first *f, tsr_state_dict *home, const tsr_host *host, tsr_arena *arena, tsr_model *out,
                             tsr_modules **modules, tsr_error *err)
{
    tsr_modules_document document;
    uint8_t bytes[MOST_BYTES];
    const char *dtype = live_get(f->param, "dtype")->valuestring;
    const uint64_t size = unhex(live_get(f->param, "elements")->valuestring, bytes);
    uint64_t *shape = tsr_arena_array(arena, 1, sizeof *shape, err);
    *shape = size / tsr_dtype_size(tsr_dtype_from_name(tsr_str_from(dtype)));
    const tsr_str text = tsr_arena_format(
        arena, err,
        "{\"schema\":\"tessera.modules/"
        "1\",\"root\":{\"class\":\"Net\",\"wrapper\":\"none\",\"parameters\":{\"w\":{\"shape\":"
        "[%d],\"dtype\":\"%s\",\"requires_grad\":true,\"id\":0}},\"buffers\":{},\"extra_state\":false,\"children\":{}}}",
        (int)*shape, dtype);
    TSR_TRY(tsr_modules_parse(text, host, arena, &document, err));
    TSR_TRY(tsr_modules_new(document.root, host, modules, err));
    tsr_tensor like = tsr_tensor_whole(tsr_dtype_from_name(tsr_str_from(dtype)), 1, shape, NULL);
    like.device = f->on_device ? (tsr_device *)&f->device.base : NULL;
    const tsr_value *value;
    TSR_TRY(tsr_state_dict_allocate(home, &like, &value, err));
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (tensor->device) TSR_TRY(tensor->device->from_host(tensor->device, tensor->data, bytes, size, err));
    else memcpy(tensor->data, bytes, (size_t)size);
    tsr_model_tensor *bound = tsr_arena_array(arena, 1, sizeof *bound, err);
    *bound = (tsr_model_tensor){.name = "w", .tensor = (tsr_tensor *)tensor};
    *out = (tsr_model){.modules = *modules, .tensors = bound, .tensor_count = 1, .memory = home};
    return TSR_OK;
}

static tsr_algorithm algorithm_of(const cJSON *test)
{
    return live_is(test, "algorithm", "SGD") ? TSR_SGD : live_is(test, "algorithm", "Adam") ? TSR_ADAM : TSR_ADAMW;
}

static tsr_status first_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    first *f = arg;
    const tsr_host host = live_host(NULL);
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    tsr_state_dict *home, *out;
    tsr_modules *modules;
    tsr_model model;
    live_device_open(&f->device);
    TSR_TRY(tsr_state_dict_new(&host, &home, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(open_model(f, home, &host, arena, &model, &modules, err));
    tsr_model_param param = {.name = "w"};
    tsr_model_group group = {live_value(home, live_get(f->test, "options"), 0, NULL), &param, 1};
    tsr_model_optimizer optimizer = {.algorithm = algorithm_of(f->test), .groups = &group, .group_count = 1, .memory = home};
    tsr_model_optimizer *list[1] = {&optimizer};
    optimizer.default_dtype = live_is(f->test, "default", "float64") ? TSR_FLOAT64 : TSR_DTYPE_NONE;
    TSR_TRY(tsr_get_optimizer_state_dict(&model, (tsr_optimizers){list, 1}, &(tsr_state_call){.comm = comm}, out, err));
    const cJSON *want = live_get(f->param, "state");
    tsr_status status = TSR_OK;
    if (cJSON_GetArraySize(want) == 0) status = param.state ? tsr_raise(err, TSR_E_FORMAT, 0, "there is a state") : TSR_OK;
    else status = same_state(f, param.state, want, comm, err);
    tsr_state_dict_free(out);
    tsr_state_dict_free(home);
    tsr_modules_free(modules);
    tsr_arena_free(arena);
    NEED(f->device.allocated == 0);
    return status;
}

static void run_all(bool on_device)
{
    cJSON *golden = live_golden("first_states.json");
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        for (const cJSON *param = live_get(test, "params")->child; param; param = param->next, count++) {
            first f = {.test = test, .param = param, .on_device = on_device};
            tsr_error err = {0};
            char *options = cJSON_PrintUnformatted(live_get(test, "options"));
            if (live_try(1, first_case, &f, &err) != TSR_OK)
                fail_msg("%s %s of %s: %s", live_get(test, "algorithm")->valuestring, options,
                         live_get(param, "dtype")->valuestring, err.message);
            cJSON_free(options);
        }
    }
    assert_true(count > 50);
    cJSON_Delete(golden);
}

static void test_statedict_first_states__A8_bits(void **state)
{
    (void)state;
    run_all(false);
}

static void test_statedict_first_states__A8_devices(void **state)
{
    (void)state;
    run_all(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_first_states__A8_bits),
        cmocka_unit_test(test_statedict_first_states__A8_devices),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
