/* What collective calls report on each rank apart from failures: nothing is ignored without a warning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <sys/stat.h>

#include "live.h"
#include "tessera/native_host.h"
#include "tessera/optimizer_state.h"
#include "tessera/save_load.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/statedict.h"

/* The warnings on one rank. */
typedef struct told {
    unsigned count;
    char all[1000]; /* one per line */
} told;

static void tell(void *ctx, const char *message)
{
    told *t = ctx;
    const size_t used = strlen(t->all);
    t->count++;
    snprintf(t->all + used, sizeof t->all - used, "%s\n", message);
}

static tsr_status need(const told *t, unsigned count, const char *text, tsr_error *err)
{
    const bool right = t->count == count && (!text || strstr(t->all, text));
    return right ? TSR_OK
                 : tsr_raise(err, TSR_E_FORMAT, 0, "told %u times, not %u with '%s': %s", t->count, count, text ? text : "",
                             t->all);
}

/* A rank's memory, and a tensor of two elements that is whole or cut in rows. */
typedef struct scene {
    tsr_host host;
    tsr_native_host native;
    tsr_arena *arena;
    tsr_state_dict *dict, *out;
    tsr_mesh mesh;
    uint64_t mesh_shape[1];
} scene;

static const uint64_t two[1] = {2};
static const tsr_placement rows = {TSR_SHARD, 0, 0};

static tsr_status open_scene(scene *s, const tsr_comm *comm, tsr_error *err)
{
    tsr_native_host_open(&s->native, 1);
    s->host = s->native.host;
    s->mesh_shape[0] = comm->size;
    s->mesh = (tsr_mesh){.dim_count = 1, .shape = s->mesh_shape};
    TSR_TRY(tsr_state_dict_new(&s->host, &s->dict, err));
    s->arena = tsr_state_dict_arena(s->dict);
    return tsr_state_dict_new(&s->host, &s->out, err);
}

static void close_scene(scene *s)
{
    tsr_state_dict_free(s->out);
    tsr_state_dict_free(s->dict);
    tsr_native_host_close(&s->native);
}

static const tsr_value *tensor_of(scene *s, const tsr_comm *comm, bool whole)
{
    const tsr_value *value = NULL;
    tsr_tensor tensor = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 1, two, NULL), &s->mesh, &rows, comm->rank);
    if (whole) tensor.spread = TSR_WHOLE;
    if (tsr_state_dict_allocate(s->dict, &tensor, &value, NULL) != TSR_OK) return NULL;
    for (int i = 0; i < (whole ? 2 : 1); i++) ((float *)tsr_tensor_of(value)->data)[i] = 1 + (float)(i + (int)comm->rank);
    return value;
}

/* ---- save and load ---- */

static tsr_status save_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    const char *path = arg;
    scene s;
    told first = {0}, second = {0};
    TSR_TRY(open_scene(&s, comm, err));
    /* The values have the same names, in another order on rank 1. */
    const tsr_value *step = tsr_value_int(s.arena, 7 + comm->rank, err);
    const tsr_value *note = tsr_value_str(s.arena, TSR_STR("both"), err);
    const tsr_value *w = tensor_of(&s, comm, false),
                    *state = comm->rank ? tsr_value_dict(s.arena, 3, "note", note, "step", step, "w", w)
                                        : tsr_value_dict(s.arena, 3, "w", w, "step", step, "note", note);
    tsr_save_options options = {.overwrite = true, .warnings = {tell, &first}};
    TSR_TRY(tsr_state_dict_save(state, comm, path, &options, &s.host, err));
    options.warnings.ctx = &second;
    TSR_TRY(tsr_state_dict_save(state, comm, path, &options, &s.host, err));
    close_scene(&s);
    const char *differs = "saved rank 0's values, which differ from this rank's: 'step'\n";
    TSR_TRY(need(&first, comm->rank ? 1 : 0, comm->rank ? differs : NULL, err));
    return need(&second, 1, comm->rank ? differs : "replaced the checkpoint that was at '", err);
}

static tsr_status load_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    scene s;
    told lacks = {0}, all = {0};
    TSR_TRY(open_scene(&s, comm, err));
    const tsr_value *none = tsr_value_none(s.arena, err), *w = tensor_of(&s, comm, true);
    tsr_load_options options = {.allow_missing = true, .warnings = {tell, &lacks}};
    TSR_TRY(tsr_state_dict_load(arg, tsr_value_dict(s.arena, 3, "w", w, "x", none, "y", none), comm, &options, s.out, err));
    options.warnings.ctx = &all;
    const tsr_value *whole = tsr_value_dict(s.arena, 3, "w", w, "step", none, "note", none);
    TSR_TRY(tsr_state_dict_load(arg, whole, comm, &options, s.out, err));
    close_scene(&s);
    TSR_TRY(need(&all, 0, NULL, err));
    TSR_TRY(need(&lacks, 2, "the checkpoint lacks some values, which stay as they are: 'x' and 1 other\n", err));
    return need(&lacks, 2, "the state dict has no place for some entries of the checkpoint: '", err);
}

static void test_statedict_warnings__save_and_load(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/told", ranks_scratch());
    mkdir(path, 0777); /* it is empty, so nothing is replaced */
    live_run(2, save_case, path);
    live_run(2, load_case, path);
}

/* ---- gather and broadcast ---- */

static tsr_status gather_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    static const uint32_t root[] = {0};
    scene s;
    told t = {0};
    TSR_TRY(open_scene(&s, comm, err));
    tsr_value *class = tsr_value_new(s.arena, TSR_VALUE_GLOBAL, err);
    class->text = TSR_STR("torch.nn.Linear");
    const tsr_value *state = tsr_value_dict(s.arena, 2, "w", tensor_of(&s, comm, false), "in",
                                            tsr_value_list(s.arena, TSR_VALUE_LIST, 1, (const tsr_value *)class));
    const tsr_gather_options options = {.any_type = true, .ranks_only = root, .ranks_only_count = 1, .warnings = {tell, &t}};
    TSR_TRY(tsr_state_dict_gather(state, comm, &options, s.out, err));
    close_scene(&s);
    return comm->rank ? need(&t, 0, NULL, err)
                      : need(&t, 1, "values of types that a checkpoint cannot hold are kept as they are: 'in[0]'\n", err);
}

static tsr_status broadcast_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    const bool strict = arg != NULL;
    scene s;
    told t = {0};
    TSR_TRY(open_scene(&s, comm, err));
    const tsr_value *w = tensor_of(&s, comm, true), *local = tsr_value_dict(s.arena, 3, "w", w, "a", w, "b", w);
    const tsr_value *full = comm->rank ? NULL : tsr_value_dict(s.arena, 2, "w", w, "z", w);
    const tsr_broadcast_options options = {.strict = strict, .warnings = {tell, &t}};
    TSR_TRY(tsr_state_dict_broadcast(full, local, comm, &options, s.out, err));
    close_scene(&s);
    TSR_TRY(need(&t, 2, "the local state has no place for some keys of the full state: 'z'\n", err));
    return need(&t, 2,
                strict ? "the full state lacks some keys, which are left out of the result: 'a' and 1 other\n"
                       : "the full state lacks some keys, whose values stay as they are: 'a' and 1 other\n",
                err);
}

static void test_statedict_warnings__gather_and_broadcast(void **state)
{
    (void)state;
    live_run(2, gather_case, NULL);
    live_run(2, broadcast_case, NULL);
    live_run(2, broadcast_case, "strict");
}

/* ---- get and set ---- */

typedef struct live_pair {
    tsr_module_tensor params[2];
    tsr_module module;
    tsr_modules *tree;
    tsr_tensor tensors[2];
    tsr_model_tensor bound[2];
    float data[2][2];
    tsr_model_param optimized[2];
    tsr_model_group group;
    tsr_model_optimizer optimizer, *list[1];
    tsr_model model;
} live_pair;

/* Makes the parameters "a", which SGD steps, and "b", which has no memory. */
static tsr_status make_pair(live_pair *p, scene *s, told *t, tsr_error *err)
{
    *p = (live_pair){0};
    for (int i = 0; i < 2; i++) {
        p->params[i] = (tsr_module_tensor){
            .name = i ? TSR_STR("b") : TSR_STR("a"), .dtype = TSR_FLOAT32, .ndim = 1, .shape = two, .requires_grad = true};
        p->tensors[i] = tsr_tensor_whole(TSR_FLOAT32, 1, two, p->data[i]);
        p->bound[i] = (tsr_model_tensor){&p->params[i], &p->tensors[i], NULL};
    }
    p->tensors[1].meta = true;
    p->module = (tsr_module){.class_name = TSR_STR("Net"), .parameters = p->params, .parameter_count = 2};
    TSR_TRY(tsr_modules_new(&p->module, &s->host, &p->tree, err));
    p->model =
        (tsr_model){.modules = p->tree, .tensors = p->bound, .tensor_count = 2, .memory = s->dict, .warn = tell, .ctx = t};
    p->optimized[0] = (tsr_model_param){.name = "a"};
    const tsr_value *lr = tsr_value_float(s->arena, 0.5, err), *momentum = tsr_value_float(s->arena, 0, err);
    p->group = (tsr_model_group){tsr_value_dict(s->arena, 2, "lr", lr, "momentum", momentum), p->optimized, 1};
    p->optimizer = (tsr_model_optimizer){.algorithm = TSR_SGD, .groups = &p->group, .group_count = 1, .memory = s->dict};
    p->list[0] = &p->optimizer;
    return TSR_OK;
}

/* Returns an optimizer state, nested or flat, with the state of 'stranger', which no optimizer here has. */
static const tsr_value *strangers_too(scene *s, bool flat)
{
    const tsr_value *lr = tsr_value_float(s->arena, 0.25, NULL), *momentum = tsr_value_float(s->arena, 0, NULL);
    const tsr_value *one = tsr_value_int(s->arena, 1, NULL), *a = tsr_value_str(s->arena, TSR_STR("a"), NULL);
    if (flat)
        return tsr_value_dict(s->arena, 3, "state.stranger.step", one, "param_groups.a.lr", lr, "param_groups.a.momentum",
                              momentum);
    const tsr_value *group = tsr_value_dict(s->arena, 3, "lr", lr, "momentum", momentum, "params",
                                            tsr_value_list(s->arena, TSR_VALUE_LIST, 1, a));
    return tsr_value_dict(s->arena, 2, "state",
                          tsr_value_dict(s->arena, 1, "stranger", tsr_value_dict(s->arena, 1, "step", one)), "param_groups",
                          tsr_value_list(s->arena, TSR_VALUE_LIST, 1, group));
}

static tsr_status model_case(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    scene s;
    live_pair p;
    told t = {0};
    tsr_state_options options = tsr_state_options_default();
    TSR_TRY(open_scene(&s, comm, err));
    TSR_TRY(make_pair(&p, &s, &t, err));
    TSR_TRY(tsr_get_model_state_dict(&p.model, &(tsr_state_call){.comm = comm}, s.out, err));
    NEED(tsr_value_pairs(tsr_state_dict_root(s.out)) == 1);
    TSR_TRY(need(&t, 1, "tensors on the meta device have no values and are left out: 'b'\n", err));
    options.strict = false;
    for (int flat = 0; flat < 2; flat++) {
        t = (told){0};
        TSR_TRY(tsr_set_optimizer_state_dict(&p.model, (tsr_optimizers){p.list, 1}, strangers_too(&s, flat),
                                             &(tsr_state_call){.comm = comm, .options = &options, .host = &s.host}, err));
        TSR_TRY(need(&t, 1,
                     flat ? "the optimizer state dict has keys that none of the optimizers wants: 'state.stranger.step'\n"
                          : "the optimizer state dict has keys that none of the optimizers wants: 'stranger'\n",
                     err));
        NEED(tsr_value_get(p.group.options, TSR_STR("lr"))->as.real == 0.25);
    }
    tsr_modules_free(p.tree);
    close_scene(&s);
    return TSR_OK;
}

static void test_statedict_warnings__get_and_set(void **state)
{
    (void)state;
    live_run(2, model_case, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_warnings__save_and_load),
        cmocka_unit_test(test_statedict_warnings__gather_and_broadcast),
        cmocka_unit_test(test_statedict_warnings__get_and_set),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
