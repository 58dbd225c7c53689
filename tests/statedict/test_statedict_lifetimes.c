/* Results outlive what they are not documented to borrow: everything else is freed before they are read. Only a build with
 * AddressSanitizer notices all that goes wrong here; arenas have a block per allocation there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/comm_threads.h"
#include "tessera/fqn.h"
#include "tessera/native_host.h"
#include "tessera/optim.h"
#include "tessera/optimizer_state.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"

#define OK(call) assert_int_equal((call), TSR_OK)
#define TRY(call) \
    do { \
        const tsr_status try_status = (call); \
        if (try_status != TSR_OK) return try_status; \
    } while (0)

/* ---- reading results ---- */

static uint64_t read_bytes(const void *data, size_t size)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++) sum += ((const uint8_t *)data)[i];
    return sum;
}

static uint64_t read_sizes(const uint64_t *sizes, size_t count)
{
    return sizes ? read_bytes(sizes, count * sizeof *sizes) : 0;
}

static uint64_t read_text(tsr_str text)
{
    return read_bytes(text.data, text.size);
}

static uint64_t read_tensor(const tsr_tensor *tensor)
{
    const uint32_t ndim = tensor->entry.ndim;
    uint64_t sum = read_sizes(tensor->entry.shape, ndim) + read_text(tensor->entry.fqn), elements = 1;
    for (uint32_t d = 0; d < ndim; d++) elements *= tensor->entry.shape[d];
    if (tensor->spread == TSR_WHOLE && !tensor->meta && tensor->data)
        sum += read_bytes(tensor->data, elements * sizeof(float));
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        const tsr_tensor_part *part = &tensor->parts[i];
        sum += read_sizes(part->offsets, ndim) + read_sizes(part->sizes, ndim);
        elements = 1;
        for (uint32_t d = 0; d < ndim; d++) elements *= part->sizes[d];
        sum += read_bytes(part->data, elements * sizeof(float));
    }
    if (tensor->spread == TSR_OVER_MESH)
        sum += read_sizes(tensor->mesh->shape, tensor->mesh->dim_count) + (uint64_t)tensor->placements[0].kind;
    return sum;
}

static uint64_t read_value(const tsr_value *value)
{
    uint64_t sum = (uint64_t)value->kind;
    switch (value->kind) {
    case TSR_VALUE_STR:
    case TSR_VALUE_BYTES: return sum + read_text(value->text);
    case TSR_VALUE_TENSOR: return sum + read_tensor(tsr_tensor_of(value));
    case TSR_VALUE_DICT:
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
        for (size_t i = 0; i < value->count; i++) sum += read_value(value->items[i]);
        return sum;
    default: return sum;
    }
}

static bool holds(const tsr_str *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(names[i], tsr_str_from(name))) return true;
    return false;
}

/* ---- a program's model ---- */

static const char compiled[] =
    "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"OptimizedModule\",\"wrapper\":\"compiled\",\"children\":{\"_orig_mod\":"
    "{\"class\":\"Net\",\"wrapper\":\"none\",\"children\":{\"fc\":{\"class\":\"Linear\",\"wrapper\":\"none\",\"parameters\":{"
    "\"weight\":{\"shape\":[3,4],\"dtype\":\"float32\",\"requires_grad\":true},"
    "\"bias\":{\"shape\":[3],\"dtype\":\"float32\",\"requires_grad\":true}}}}}}}}";
static const char sharded[] =
    "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"FullyShardedDataParallel\",\"wrapper\":\"fsdp1\","
    "\"flat_param\":{\"params\":[{\"fqn\":\"fc.weight\",\"shape\":[3,4]},{\"fqn\":\"fc.bias\",\"shape\":[3]}]},"
    "\"children\":{\"_fsdp_wrapped_module\":{\"class\":\"Net\",\"wrapper\":\"none\","
    "\"parameters\":{\"_flat_param\":{\"shape\":[8],\"dtype\":\"float32\",\"requires_grad\":true}},"
    "\"children\":{\"fc\":{\"class\":\"Linear\",\"wrapper\":\"none\"}}}}}}";
static const uint64_t shape[2] = {3, 4};

enum { RANKS = 2, SLICE = 8 };

/* The tree is in an arena of its own, and the names of parameters are copies: forget frees them and the tree. */
typedef struct program {
    const tsr_host *host;
    tsr_arena *tree, *results;
    tsr_modules *modules;
    tsr_state_dict *memory; /* of the optimizer's state */
    float weight[12], bias[3], slice[SLICE];
    tsr_tensor tensors[2];
    tsr_model_tensor *bound;
    tsr_model_param *params;
    tsr_model_group group;
    tsr_model_optimizer optimizer, *optimizers[1];
    tsr_fsdp_unit unit;
    tsr_fsdp_tree units;
    tsr_model model;
    char *names[2];
} program;

static char *copy_of(const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    if (copy) memcpy(copy, text, strlen(text) + 1);
    return copy;
}

static tsr_status begin(program *p, const tsr_host *host, const char *tree, tsr_error *err)
{
    tsr_modules_document document;
    *p = (program){.host = host, .optimizers = {&p->optimizer}};
    p->tree = tsr_arena_new(host->allocator, 0, err);
    p->results = tsr_arena_new(host->allocator, 0, err);
    p->bound = calloc(2, sizeof *p->bound);
    p->params = calloc(2, sizeof *p->params);
    if (!p->tree || !p->results || !p->bound || !p->params) return TSR_E_NOMEM;
    TRY(tsr_state_dict_new(host, &p->memory, err));
    TRY(tsr_modules_parse(tsr_str_from(tree), host, p->tree, &document, err));
    TRY(tsr_modules_new(document.root, host, &p->modules, err));
    tsr_arena *arena = tsr_state_dict_arena(p->memory);
    const tsr_value *betas =
        tsr_value_list(arena, TSR_VALUE_TUPLE, 2, tsr_value_float(arena, 0.9, err), tsr_value_float(arena, 0.999, err));
    p->group = (tsr_model_group){.options = tsr_value_dict(arena, 4, "lr", tsr_value_float(arena, 0.01, err), "betas", betas,
                                                           "eps", tsr_value_float(arena, 1e-8, err), "amsgrad",
                                                           tsr_value_bool(arena, false, err)),
                                 .params = p->params};
    p->optimizer = (tsr_model_optimizer){.algorithm = TSR_ADAMW, .groups = &p->group, .group_count = 1, .memory = p->memory};
    p->model = (tsr_model){.modules = p->modules, .tensors = p->bound, .memory = p->memory};
    return TSR_OK;
}

static tsr_status begin_compiled(program *p, const tsr_host *host, tsr_error *err)
{
    TRY(begin(p, host, compiled, err));
    p->tensors[0] = tsr_tensor_whole(TSR_FLOAT32, 2, shape, p->weight);
    p->tensors[1] = tsr_tensor_whole(TSR_FLOAT32, 1, shape, p->bias);
    for (int i = 0; i < 2; i++) {
        p->names[i] = copy_of(i ? "_orig_mod.fc.bias" : "_orig_mod.fc.weight");
        p->bound[i] = (tsr_model_tensor){.name = p->names[i], .tensor = &p->tensors[i]};
        p->params[i].name = p->names[i];
    }
    p->model.tensor_count = p->group.count = 2;
    return TSR_OK;
}

static tsr_status begin_sharded(program *p, const tsr_host *host, tsr_comm *comm, tsr_error *err)
{
    TRY(begin(p, host, sharded, err));
    p->names[0] = copy_of("_fsdp_wrapped_module._flat_param");
    p->params[0].name = p->names[0];
    p->group.count = 1;
    p->unit = (tsr_fsdp_unit){.comm = comm, .dtype = TSR_FLOAT32, .slice = p->slice};
    p->units = (tsr_fsdp_tree){
        .modules = p->modules, .comm = comm, .units = &p->unit, .unit_count = 1, .plain = tsr_value_dict(p->tree, 0)};
    p->model.fsdp = &p->units;
    return TSR_OK;
}

/* Frees the tree and all names: what results may not need. */
static void forget(program *p)
{
    tsr_modules_free(p->modules);
    tsr_arena_free(p->tree);
    for (int i = 0; i < 2; i++) free(p->names[i]);
    free(p->bound);
    free(p->params);
    p->modules = NULL;
    p->tree = NULL;
}

static void end(program *p)
{
    tsr_arena_free(p->results);
    tsr_state_dict_free(p->memory);
}

/* ---- names ---- */

static void test_statedict_lifetimes__names_outlive_the_modules(void **state)
{
    const tsr_host *host = *state;
    program p;
    tsr_name name;
    tsr_state_item *items;
    tsr_group_names by_input, by_groups;
    const tsr_value *named, *flat, *rekeyed, *joined;
    tsr_state_key *keys;
    size_t count, key_count;
    OK(begin_compiled(&p, host, NULL));
    tsr_arena *memory = tsr_state_dict_arena(p.memory);
    OK(tsr_fqn_resolve(p.modules, tsr_str_from(p.names[0]), NULL, p.results, &name, NULL));
    OK(tsr_fqn_iterate(p.modules, host, p.results, &items, &count, NULL));
    OK(tsr_optim_input_names(NULL, p.modules, host, p.results, &by_input, NULL));
    const tsr_raw_optimizer raw = {.model = &p.model, .optimizer = &p.optimizer};
    tsr_state_dict *own;
    OK(tsr_state_dict_new(host, &own, NULL));
    OK(tsr_optimizer_state_dict(&raw, own, NULL));
    const tsr_value *params =
        tsr_value_list(memory, TSR_VALUE_LIST, 1,
                       tsr_value_dict(memory, 2, "lr", tsr_value_float(memory, 0.5, NULL), "params",
                                      tsr_value_list(memory, TSR_VALUE_LIST, 2, tsr_value_int(memory, 0, NULL),
                                                     tsr_value_int(memory, 1, NULL))));
    const tsr_value *native = tsr_value_dict(memory, 2, "state", tsr_value_dict(memory, 0), "param_groups", params);
    const tsr_group_naming how = {.modules = p.modules};
    OK(tsr_optim_name_groups(native, &how, host, p.results, &by_groups, NULL));
    OK(tsr_optim_to_fqn(native, by_groups, host, p.results, &named, NULL));
    OK(tsr_optim_flatten(named, host, p.results, &flat, NULL));
    const tsr_rekeying to_names = {.names = &by_groups, .to_names = true};
    OK(tsr_optim_rekey(native, &to_names, host, p.results, &rekeyed, NULL));
    OK(tsr_state_keys(named, host, p.results, &keys, &key_count, NULL));
    tsr_module_state part = {tsr_modules_find_module(p.modules, "fc"),
                             tsr_value_dict(memory, 1, "weight", tsr_value_float(memory, 1, NULL))};
    OK(tsr_model_state_join(p.modules, (tsr_module_states){&part, 1}, host, p.results, &joined, NULL));
    forget(&p);

    assert_int_equal(name.fqn_count, 1);
    assert_true(tsr_str_equal(name.fqns[0], TSR_STR("fc.weight")) && name.removed_count == 1);
    assert_true(read_text(name.removed[0].component) != 0);
    assert_int_equal(count, 2);
    assert_true(tsr_str_equal(items[0].raw, TSR_STR("_orig_mod.fc.weight")) &&
                tsr_str_equal(items[1].raw, TSR_STR("_orig_mod.fc.bias")));
    assert_true(by_input.count == 1 && holds(by_input.groups[0].names, by_input.groups[0].count, "_orig_mod.fc.bias"));
    assert_true(by_groups.count == 1 && holds(by_groups.groups[0].names, by_groups.groups[0].count, "fc.bias"));
    assert_true(read_value(named) && read_value(flat) && read_value(rekeyed) && read_value(tsr_state_dict_root(own)));
    assert_true(tsr_value_get(flat, TSR_STR("param_groups.fc.bias.lr")) != NULL &&
                tsr_value_get(joined, TSR_STR("fc.weight")) != NULL);
    for (size_t i = 0; i < key_count; i++) {
        read_text(keys[i].name);
        for (uint32_t k = 0; k < keys[i].path_length; k++) read_text(keys[i].path[k].key);
    }
    tsr_state_dict_free(own);
    end(&p);
}

/* ---- models and optimizers ---- */

static void test_statedict_lifetimes__states_outlive_the_modules(void **state)
{
    const tsr_host *host = *state;
    for (int flat = 0; flat < 2; flat++) {
        program p;
        tsr_state_dict *model, *optimizer;
        tsr_state_options options = tsr_state_options_default();
        options.flatten_optimizer_state_dict = flat;
        options.full_state_dict = options.cpu_offload = flat;
        OK(begin_compiled(&p, host, NULL));
        OK(tsr_state_dict_new(host, &model, NULL));
        OK(tsr_state_dict_new(host, &optimizer, NULL));
        const tsr_state_call call = {.options = &options};
        OK(tsr_get_state_dict(&p.model, (tsr_optimizers){p.optimizers, 1}, &call, model, optimizer, NULL));
        forget(&p);
        read_value(tsr_state_dict_root(model));
        read_value(tsr_state_dict_root(optimizer));
        assert_non_null(tsr_state_dict_get(model, TSR_STR("fc.bias")));
        assert_non_null(tsr_state_dict_get(optimizer, flat ? TSR_STR("state.fc.bias.exp_avg") : TSR_STR("param_groups")));
        tsr_state_dict_free(model);
        tsr_state_dict_free(optimizer);
        end(&p);
    }
}

static void keep_last(void *ctx, const char *message)
{
    snprintf(ctx, 400, "%s", message); /* a message is the callee's until warn returns */
}

static void test_statedict_lifetimes__unmatched_keys_outlive_model_and_state(void **state)
{
    const tsr_host *host = *state;
    char message[400] = "";
    program p;
    tsr_state_dict *given;
    tsr_unmatched_keys unmatched;
    tsr_state_options options = tsr_state_options_default();
    options.strict = false;
    OK(begin_compiled(&p, host, NULL));
    OK(tsr_state_dict_new(host, &given, NULL));
    tsr_arena *arena = tsr_state_dict_arena(given);
    char *extra = copy_of("fc.extra");
    const tsr_value *value;
    OK(tsr_state_dict_tensor(given, &p.tensors[0], &value, NULL));
    OK(tsr_state_dict_put(given, tsr_str_from("fc.weight"), value, NULL));
    OK(tsr_state_dict_put(given, tsr_str_from(extra), tsr_value_float(arena, 1, NULL), NULL));
    free(extra);
    p.model.warn = keep_last;
    p.model.ctx = message;
    const tsr_state_call call = {.options = &options, .host = host, .arena = p.results, .unmatched = &unmatched};
    OK(tsr_set_model_state_dict(&p.model, tsr_state_dict_root(given), &call, NULL));
    forget(&p);
    tsr_state_dict_free(given);
    assert_true(unmatched.missing_count == 1 && holds(unmatched.missing, 1, "fc.bias"));
    assert_true(unmatched.unexpected_count == 1 && holds(unmatched.unexpected, 1, "fc.extra"));
    end(&p);
}

/* ---- FSDP1 ---- */

static tsr_status save_fsdp(const tsr_host *host, tsr_comm *comm, tsr_fsdp_type type, tsr_error *err)
{
    program p;
    tsr_fsdp_model *fsdp;
    tsr_state_dict *saved, *given;
    tsr_fsdp_keys keys = {0};
    const tsr_fsdp_settings settings = {.type = type};
    TRY(begin_sharded(&p, host, comm, err));
    TRY(tsr_fsdp_model_new(&p.units, host, &fsdp, err));
    TRY(tsr_fsdp_set_type(fsdp, 0, &settings, NULL, err));
    TRY(tsr_state_dict_new(host, &saved, err));
    TRY(tsr_state_dict_new(host, &given, err));
    TRY(tsr_fsdp_model_save(fsdp, saved, err));
    const tsr_value *kept =
        tsr_state_dict_get(saved, type == TSR_FSDP_LOCAL ? TSR_STR("_flat_param") : TSR_STR("fc.weight"));
    TRY(tsr_state_dict_put(given, TSR_STR("other"), kept, err));
    if (type != TSR_FSDP_LOCAL) TRY(tsr_fsdp_model_load(fsdp, tsr_state_dict_root(given), false, p.results, &keys, err));
    tsr_state_dict_free(given);
    tsr_fsdp_model_free(fsdp);
    forget(&p);
    read_value(tsr_state_dict_root(saved));
    for (size_t i = 0; i < keys.missing_count; i++) read_text(keys.missing[i]);
    for (size_t i = 0; i < keys.unexpected_count; i++) read_text(keys.unexpected[i]);
    const bool found = kept && (type == TSR_FSDP_LOCAL || (holds(keys.missing, keys.missing_count, "fc.bias") &&
                                                           holds(keys.unexpected, keys.unexpected_count, "other")));
    tsr_state_dict_free(saved);
    end(&p);
    return found ? TSR_OK : tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "type %d: the keys are not there", (int)type);
}

static tsr_status get_fsdp(const tsr_host *host, tsr_comm *comm, bool full, tsr_error *err)
{
    program p;
    tsr_state_dict *dicts[5];
    tsr_state_options options = tsr_state_options_default();
    options.full_state_dict = full;
    options.flatten_optimizer_state_dict = full;
    TRY(begin_sharded(&p, host, comm, err));
    for (size_t i = 0; i < 5; i++) TRY(tsr_state_dict_new(host, &dicts[i], err));
    const tsr_state_call call = {.comm = comm, .options = &options};
    TRY(tsr_get_state_dict(&p.model, (tsr_optimizers){p.optimizers, 1}, &call, dicts[0], dicts[1], err));
    const tsr_raw_optimizer raw = {.model = &p.model, .optimizer = &p.optimizer, .comm = comm};
    const tsr_fsdp_settings settings = {.type = full ? TSR_FSDP_FULL : TSR_FSDP_SHARDED};
    TRY(tsr_optimizer_state_dict(&raw, dicts[2], err));
    TRY(tsr_fsdp_optim_state_dict(&raw, tsr_state_dict_root(dicts[2]), &settings, dicts[3], err));
    TRY(tsr_fsdp_optim_state_dict_to_load(&raw, tsr_state_dict_root(dicts[3]), &settings, dicts[4], err));
    forget(&p);
    for (size_t i = 0; i < 5; i++) read_value(tsr_state_dict_root(dicts[i]));
    for (size_t i = 5; i-- > 0;) tsr_state_dict_free(dicts[i]);
    end(&p);
    return TSR_OK;
}

static tsr_status on_ranks(void *arg, tsr_comm *comm, tsr_error *err)
{
    const tsr_host *host = arg;
    for (int type = TSR_FSDP_FULL; type <= TSR_FSDP_SHARDED; type++) TRY(save_fsdp(host, comm, (tsr_fsdp_type)type, err));
    TRY(get_fsdp(host, comm, false, err));
    return get_fsdp(host, comm, true, err);
}

static void test_statedict_lifetimes__states_of_units_outlive_them(void **state)
{
    tsr_error err = {0};
    const tsr_status status = tsr_comm_threads_run(&tsr_allocator_libc, RANKS, on_ranks, *state, &err);
    if (status != TSR_OK) fail_msg("%s", err.message);
}

/* ---- from a checkpoint ---- */

static char directory[] = "/tmp/tessera_lifetimes_XXXXXX";

static void test_statedict_lifetimes__loaded_optimizers_outlive_model_and_checkpoint(void **state)
{
    const tsr_host *host = *state;
    char path[sizeof directory + 8];
    program p;
    tsr_state_dict *saved, *model, *loaded;
    tsr_layout_2d layout;
    tsr_error err = {0};
    tsr_comm *comm;
    assert_non_null(mkdtemp(directory));
    OK(tsr_comm_self(host->allocator, &comm, NULL));
    snprintf(path, sizeof path, "%s/saved", directory);
    OK(begin_compiled(&p, host, NULL));
    OK(tsr_state_dict_new(host, &saved, NULL));
    OK(tsr_state_dict_new(host, &model, NULL));
    OK(tsr_state_dict_new(host, &loaded, NULL));
    const tsr_state_options options = tsr_state_options_default();
    const tsr_state_call call = {.options = &options};
    OK(tsr_get_state_dict(&p.model, (tsr_optimizers){p.optimizers, 1}, &call, model, saved, NULL));
    const tsr_value *root = tsr_value_dict(p.results, 1, "optim", tsr_state_dict_root(saved));
    if (tsr_state_dict_save(root, comm, path, NULL, host, &err) != TSR_OK) fail_msg("%s", err.message);
    char *key = copy_of("optim");
    const tsr_optimizer_target target = {.out = loaded};
    if (tsr_optimizer_state_load(path, tsr_str_from(key), tsr_state_dict_root(model), comm, &target, &err) != TSR_OK)
        fail_msg("%s", err.message);
    OK(tsr_state_dict_layout_2d(tsr_state_dict_root(model), p.results, &layout, NULL)); /* which borrows the model's state */
    for (size_t i = 0; i < layout.count; i++) read_text(layout.slices[i].fqn);
    free(key);
    comm->close(comm);
    forget(&p);
    tsr_state_dict_free(model);
    tsr_state_dict_free(saved);
    end(&p);
    const tsr_value *optim = tsr_state_dict_get(loaded, TSR_STR("optim"));
    assert_true(optim && read_value(optim));
    assert_non_null(tsr_value_get(tsr_value_get(optim, TSR_STR("state")), TSR_STR("fc.weight")));
    tsr_state_dict_free(loaded);
}

static int open_host(void **state)
{
    static tsr_native_host native;
    tsr_native_host_open(&native, 1);
    *state = &native.host;
    return 0;
}

static int close_host(void **state)
{
    char command[sizeof directory + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    (void)state;
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_lifetimes__names_outlive_the_modules),
        cmocka_unit_test(test_statedict_lifetimes__states_outlive_the_modules),
        cmocka_unit_test(test_statedict_lifetimes__unmatched_keys_outlive_model_and_state),
        cmocka_unit_test(test_statedict_lifetimes__states_of_units_outlive_them),
        cmocka_unit_test(test_statedict_lifetimes__loaded_optimizers_outlive_model_and_checkpoint),
    };
    return cmocka_run_group_tests(tests, open_host, close_host);
}
