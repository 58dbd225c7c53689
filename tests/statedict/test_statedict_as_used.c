/* State dicts as a program uses them, through installed headers only: a model with two optimizers, a copy of their state in
 * host memory that is made once and filled again at each step, and calls that stand in for a program's own save and load. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/native_host.h"
#include "tessera/optimizer_state.h"
#include "tessera/sys/statedict.h"

#define OK(call) assert_int_equal((call), TSR_OK)

static const char tree[] =
    "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"Linear\",\"wrapper\":\"none\",\"parameters\":{"
    "\"weight\":{\"shape\":[2,3],\"dtype\":\"float32\",\"requires_grad\":true},"
    "\"bias\":{\"shape\":[2],\"dtype\":\"float32\",\"requires_grad\":true}}}}";

/* SGD with momentum optimizes the weight, and RMSprop the bias. */
typedef struct program {
    tsr_native_host native;
    const tsr_host *host;
    tsr_state_dict *memory;
    tsr_arena *arena;
    tsr_modules *modules;
    tsr_model model;
    float weight[6], bias[2], momentum[6], square_avg[2], step;
    tsr_tensor tensors[2], states[3];
    tsr_model_tensor bound[2];
    tsr_model_param params[2];
    tsr_model_group groups[2];
    tsr_model_optimizer optimizers[2], *both[2];
} program;

static const tsr_value *leaf(program *p, tsr_tensor *tensor, uint32_t ndim, const uint64_t *shape, float *data)
{
    const tsr_value *value;
    *tensor = tsr_tensor_whole(TSR_FLOAT32, ndim, shape, data);
    OK(tsr_state_dict_tensor(p->memory, tensor, &value, NULL));
    return value;
}

static void fill(program *p, float number)
{
    for (int i = 0; i < 6; i++) p->weight[i] = number + (float)i;
    for (int i = 0; i < 6; i++) p->momentum[i] = number + 10 + (float)i;
    for (int i = 0; i < 2; i++) p->bias[i] = number + 20 + (float)i;
    for (int i = 0; i < 2; i++) p->square_avg[i] = number + 30 + (float)i;
    p->step = number + 40;
}

static void expect(const program *p, float model, float optimizers)
{
    for (int i = 0; i < 6; i++) assert_true(p->weight[i] == model + (float)i);
    for (int i = 0; i < 2; i++) assert_true(p->bias[i] == model + 20 + (float)i);
    for (int i = 0; i < 6; i++) assert_true(p->momentum[i] == optimizers + 10 + (float)i);
    for (int i = 0; i < 2; i++) assert_true(p->square_avg[i] == optimizers + 30 + (float)i);
    assert_true(p->step == optimizers + 40);
}

static void start(program *p)
{
    static const uint64_t rows[2] = {2, 3};
    static const char *const names[2] = {"weight", "bias"};
    tsr_modules_document document;
    *p = (program){.both = {&p->optimizers[0], &p->optimizers[1]}};
    tsr_native_host_open(&p->native, 1);
    p->host = &p->native.host;
    OK(tsr_state_dict_new(p->host, &p->memory, NULL));
    p->arena = tsr_state_dict_arena(p->memory);
    OK(tsr_modules_parse((tsr_str){tree, sizeof tree - 1}, p->host, p->arena, &document, NULL));
    OK(tsr_modules_new(document.root, p->host, &p->modules, NULL));
    p->tensors[0] = tsr_tensor_whole(TSR_FLOAT32, 2, rows, p->weight);
    p->tensors[1] = tsr_tensor_whole(TSR_FLOAT32, 1, rows, p->bias);
    p->params[0].state = tsr_value_dict(p->arena, 1, "momentum_buffer", leaf(p, &p->states[0], 2, rows, p->momentum));
    p->params[1].state = tsr_value_dict(p->arena, 2, "step", leaf(p, &p->states[1], 0, NULL, &p->step), "square_avg",
                                        leaf(p, &p->states[2], 1, rows, p->square_avg));
    for (int i = 0; i < 2; i++) {
        p->bound[i] = (tsr_model_tensor){.name = names[i], .tensor = &p->tensors[i]};
        p->params[i].name = names[i];
        p->groups[i] =
            (tsr_model_group){tsr_value_dict(p->arena, 1, "lr", tsr_value_float(p->arena, 0.5 + i, NULL)), &p->params[i], 1};
        p->optimizers[i] = (tsr_model_optimizer){
            .algorithm = i ? TSR_RMSPROP : TSR_SGD, .groups = &p->groups[i], .group_count = 1, .memory = p->memory};
    }
    p->model = (tsr_model){.modules = p->modules, .tensors = p->bound, .tensor_count = 2, .memory = p->memory};
    fill(p, 100);
}

static void stop(program *p)
{
    tsr_modules_free(p->modules);
    tsr_state_dict_free(p->memory);
    tsr_native_host_close(&p->native);
}

static void test_statedict_as_used__A12_D4_D5_two_optimizers_copied_at_each_step(void **state)
{
    (void)state;
    program p;
    tsr_state_dict *live, *host_copy, *copied;
    start(&p);
    const tsr_optimizers optimizers = {p.both, 2};
    const tsr_state_call call = {.host = p.host, .arena = p.arena};
    OK(tsr_state_dict_new(p.host, &live, NULL));
    OK(tsr_state_dict_new(p.host, &host_copy, NULL));
    OK(tsr_get_optimizer_state_dict(&p.model, optimizers, &call, live, NULL));
    OK(tsr_state_dict_create(tsr_state_dict_root(live), NULL, host_copy, NULL));
    for (float number = 200; number < 400; number += 100) {
        fill(&p, number); /* a step: the state dict shares the optimizers' memory */
        OK(tsr_state_dict_new(p.host, &copied, NULL));
        OK(tsr_state_dict_copy(tsr_state_dict_root(live), tsr_state_dict_root(host_copy), false, copied, NULL));
        fill(&p, 900);
        OK(tsr_set_optimizer_state_dict(&p.model, optimizers, tsr_state_dict_root(copied), &call, NULL));
        expect(&p, 900, number);
        tsr_state_dict_free(copied);
    }
    tsr_state_dict_free(host_copy);
    tsr_state_dict_free(live);
    stop(&p);
}

/* What a program calls that knows nothing of models and optimizers. */
static void save_and_load(const tsr_state_calls *calls, program *p)
{
    tsr_state_dict *live, *saved;
    const tsr_host *host = p->host;
    OK(tsr_state_dict_new(host, &live, NULL));
    OK(tsr_state_dict_new(host, &saved, NULL));
    OK(calls->state_dict(calls->ctx, live, NULL));
    OK(tsr_state_dict_create(tsr_state_dict_root(live), NULL, saved, NULL));
    OK(tsr_state_dict_copy(tsr_state_dict_root(live), tsr_state_dict_root(saved), false, saved, NULL));
    fill(p, 900);
    OK(calls->load_state_dict(calls->ctx, tsr_state_dict_root(saved), NULL));
    tsr_state_dict_free(saved);
    tsr_state_dict_free(live);
}

static void test_statedict_as_used__A13_patched_calls(void **state)
{
    (void)state;
    program p;
    start(&p);
    tsr_bound_state bound = {
        .model = &p.model, .optimizers = {p.both, 2}, .options = tsr_state_options_default(), .host = p.host};
    const tsr_state_calls model = tsr_model_state_calls(&bound), optimizers = tsr_optimizer_state_calls(&bound);
    save_and_load(&model, &p);
    expect(&p, 100, 900);
    fill(&p, 100);
    save_and_load(&optimizers, &p);
    expect(&p, 900, 100);
    stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_as_used__A12_D4_D5_two_optimizers_copied_at_each_step),
        cmocka_unit_test(test_statedict_as_used__A13_patched_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
