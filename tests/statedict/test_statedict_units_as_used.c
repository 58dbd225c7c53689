/* FSDP1 units and their optimizers as a program uses them, through installed headers only, on two ranks: FULL, LOCAL and SHARDED
 * saves, the program's own chunk, gather and first_state, copies in pinned and in shared memory, and optimizer state of a
 * checkpoint from another number of ranks. tests/golden/units_as_used has what real PyTorch gives (make_units_as_used.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/comm_threads.h"
#include "tessera/native_host.h"
#include "tessera/optimizer_state.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/sys/collectives.h"

#define TRY(call) \
    do { \
        const tsr_status try_status = (call); \
        if (try_status != TSR_OK) return try_status; \
    } while (0)
#define NEED(condition) \
    do { \
        if (!(condition)) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "line %d: %s", __LINE__, #condition); \
    } while (0)
#define GOLDEN TSR_TEST_DATA "/tests/golden/units_as_used/"

enum { RANKS = 2, NUMEL = 15, SLICE = 8 };

static const char tree[] =
    "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"FullyShardedDataParallel\",\"wrapper\":\"fsdp1\","
    "\"flat_param\":{\"params\":[{\"fqn\":\"fc.weight\",\"shape\":[3,4]},{\"fqn\":\"fc.bias\",\"shape\":[3]}]},"
    "\"children\":{\"_fsdp_wrapped_module\":{\"class\":\"Net\",\"wrapper\":\"none\","
    "\"parameters\":{\"_flat_param\":{\"shape\":[8],\"dtype\":\"float32\",\"requires_grad\":true}},"
    "\"children\":{\"fc\":{\"class\":\"Linear\",\"wrapper\":\"none\"}}}}}}";

typedef struct program {
    const tsr_host *host;
    tsr_comm *comm;
    tsr_modules *modules;
    tsr_state_dict *memory; /* of everything that stays to the end */
    tsr_arena *arena;
    float slice[SLICE];
    tsr_fsdp_unit unit;
    tsr_fsdp_tree units;
    tsr_model model;
    tsr_model_param param;
    tsr_model_group group;
    tsr_model_optimizer optimizer, *optimizers[1];
} program;

/* Flat element i of the model has the value 1 + i / 8; behind the last is padding. */
static void fill(program *p)
{
    for (size_t i = 0; i < SLICE; i++) {
        const size_t at = p->comm->rank * (size_t)SLICE + i;
        p->slice[i] = at < NUMEL ? 1 + (float)at / 8 : 0;
    }
}

static bool is_filled(const program *p)
{
    program expected = {.comm = p->comm};
    fill(&expected);
    return memcmp(p->slice, expected.slice, sizeof p->slice) == 0;
}

static tsr_status begin(program *p, const tsr_host *host, tsr_comm *comm, tsr_error *err)
{
    tsr_modules_document document;
    *p = (program){.host = host, .comm = comm, .optimizers = {&p->optimizer}};
    TRY(tsr_state_dict_new(host, &p->memory, err));
    p->arena = tsr_state_dict_arena(p->memory);
    TRY(tsr_modules_parse(tsr_str_from(tree), host, p->arena, &document, err));
    TRY(tsr_modules_new(document.root, host, &p->modules, err));
    p->unit = (tsr_fsdp_unit){.comm = comm, .dtype = TSR_FLOAT32, .slice = p->slice};
    p->units = (tsr_fsdp_tree){
        .modules = p->modules, .comm = comm, .units = &p->unit, .unit_count = 1, .plain = tsr_value_dict(p->arena, 0)};
    p->model = (tsr_model){.modules = p->modules, .fsdp = &p->units, .memory = p->memory};
    p->param = (tsr_model_param){.name = "_fsdp_wrapped_module._flat_param"};
    p->group = (tsr_model_group){tsr_value_dict(p->arena, 1, "lr", tsr_value_float(p->arena, 0.5, err)), &p->param, 1};
    p->optimizer =
        (tsr_model_optimizer){.algorithm = TSR_RMSPROP, .groups = &p->group, .group_count = 1, .memory = p->memory};
    fill(p);
    return TSR_OK;
}

static void end(program *p)
{
    tsr_modules_free(p->modules);
    tsr_state_dict_free(p->memory);
}

/* ---- what PyTorch gives ---- */

static const float *elements(const tsr_tensor *tensor, uint64_t *count)
{
    const tsr_tensor_part *part = tensor->spread == TSR_IN_BOXES && tensor->part_count ? tensor->parts : NULL;
    const uint64_t *sizes = part ? part->sizes : tensor->entry.shape;
    *count = tensor->spread == TSR_IN_BOXES && !part ? 0 : 1;
    for (uint32_t d = 0; d < tensor->entry.ndim; d++) *count *= sizes[d];
    return part ? part->data : tensor->data;
}

/* Whether this rank's elements are those of PyTorch's tensor `name`. */
static tsr_status compare(program *p, const tsr_tensor *tensor, const char *name, tsr_error *err)
{
    float found[NUMEL];
    uint64_t count;
    tsr_state_dict *wanted, *loaded;
    const tsr_value *leaf;
    NEED(tensor != NULL);
    const float *mine = elements(tensor, &count);
    const uint32_t ndim = tensor->entry.ndim;
    const tsr_tensor whole = tsr_tensor_whole(
        TSR_FLOAT32, ndim, tensor->spread == TSR_IN_BOXES ? tensor->parts->sizes : tensor->entry.shape, found);
    TRY(tsr_state_dict_new(p->host, &wanted, err));
    TRY(tsr_state_dict_new(p->host, &loaded, err));
    TRY(tsr_state_dict_tensor(wanted, &whole, &leaf, err));
    TRY(tsr_state_dict_put(wanted, tsr_str_from(name), leaf, err));
    tsr_comm *self;
    TRY(tsr_comm_self(p->host->allocator, &self, err));
    const tsr_status status = tsr_state_dict_load(GOLDEN "states", tsr_state_dict_root(wanted), self, NULL, loaded, err);
    self->close(self);
    tsr_state_dict_free(loaded);
    tsr_state_dict_free(wanted);
    TRY(status);
    if (memcmp(found, mine, count * sizeof *mine) == 0) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u: '%s' is not what PyTorch gives", (unsigned)p->comm->rank,
                     name);
}

/* Compares a value with PyTorch's: "full.fc.weight", "local.0" or "sharded.0.fc.weight". */
static tsr_status compare_form(program *p, const tsr_value *dict, const char *fqn, tsr_fsdp_type form, tsr_error *err)
{
    const unsigned rank = p->comm->rank;
    char name[40];
    const tsr_value *value = tsr_value_get(dict, tsr_str_from(fqn));
    NEED(value != NULL);
    if (form == TSR_FSDP_FULL) snprintf(name, sizeof name, "full.%s", fqn);
    else if (form == TSR_FSDP_LOCAL) snprintf(name, sizeof name, "local.%u", rank);
    else snprintf(name, sizeof name, "sharded.%u.%s", rank, fqn);
    return compare(p, tsr_tensor_of(value), name, err);
}

/* ---- FULL, LOCAL and SHARDED ---- */

static tsr_status saves(program *p, tsr_error *err)
{
    tsr_fsdp_model *fsdp;
    TRY(tsr_fsdp_model_new(&p->units, p->host, &fsdp, err));
    for (int type = TSR_FSDP_FULL; type <= TSR_FSDP_SHARDED; type++) {
        const tsr_fsdp_settings settings = {.type = (tsr_fsdp_type)type};
        tsr_fsdp_settings before;
        tsr_state_dict *saved;
        TRY(tsr_state_dict_new(p->host, &saved, err));
        TRY(tsr_fsdp_set_type(fsdp, 0, &settings, &before, err));
        TRY(tsr_fsdp_model_save(fsdp, saved, err));
        const tsr_value *root = tsr_state_dict_root(saved);
        if (type == TSR_FSDP_LOCAL) TRY(compare_form(p, root, "_flat_param", settings.type, err));
        else {
            TRY(compare_form(p, root, "fc.weight", settings.type, err));
            TRY(compare_form(p, root, "fc.bias", settings.type, err));
        }
        if (type != TSR_FSDP_LOCAL) memset(p->slice, 0, sizeof p->slice); /* LOCAL saves the slice itself */
        TRY(tsr_fsdp_model_load(fsdp, root, true, p->arena, NULL, err));
        NEED(is_filled(p));
        TRY(tsr_fsdp_set_type(fsdp, 0, &before, NULL, err));
        tsr_state_dict_free(saved);
    }
    tsr_fsdp_model_free(fsdp);
    return TSR_OK;
}

/* ---- chunk and gather ---- */

/* An extension that keeps originals whole on every rank. */
typedef struct whole_originals {
    int chunked, gathered;
} whole_originals;

static tsr_status copy_whole(const tsr_tensor *from, tsr_state_dict *out, const tsr_tensor **result, tsr_error *err)
{
    const tsr_value *leaf;
    uint64_t count;
    TRY(tsr_state_dict_allocate(out, from, &leaf, err));
    *result = tsr_tensor_of(leaf);
    const float *mine = elements(from, &count);
    memcpy((*result)->data, mine, count * sizeof *mine);
    return TSR_OK;
}

static tsr_status chunk(void *ctx, tsr_str fqn, const tsr_tensor *whole, tsr_comm *comm, tsr_state_dict *out,
                        const tsr_tensor **result, tsr_error *err)
{
    (void)fqn;
    (void)comm;
    ((whole_originals *)ctx)->chunked++;
    return copy_whole(whole, out, result, err);
}

static tsr_status gather(void *ctx, tsr_str fqn, const tsr_tensor *sharded, tsr_comm *comm, tsr_state_dict *out,
                         const tsr_tensor **whole, tsr_error *err)
{
    (void)fqn;
    (void)comm;
    ((whole_originals *)ctx)->gathered++;
    return copy_whole(sharded, out, whole, err);
}

static tsr_status extends(program *p, tsr_error *err)
{
    whole_originals calls = {0};
    const tsr_fsdp_extensions extensions = {.chunk = chunk, .gather = gather, .ctx = &calls};
    const tsr_state_call call = {.comm = p->comm, .host = p->host, .arena = p->arena};
    tsr_state_dict *state;
    p->unit.extensions = &extensions;
    TRY(tsr_state_dict_new(p->host, &state, err));
    TRY(tsr_get_model_state_dict(&p->model, &call, state, err));
    TRY(compare_form(p, tsr_state_dict_root(state), "fc.weight", TSR_FSDP_FULL, err));
    memset(p->slice, 0, sizeof p->slice);
    TRY(tsr_set_model_state_dict(&p->model, tsr_state_dict_root(state), &call, err));
    NEED(is_filled(p) && calls.chunked == 2 && calls.gathered == 2);
    tsr_state_dict_free(state);
    p->unit.extensions = NULL;
    return TSR_OK;
}

/* ---- first_state, full and in a checkpoint ---- */

/* RMSprop's state after a step without gradients. */
static tsr_status first_state(void *ctx, tsr_error *err)
{
    program *p = ctx;
    static const uint64_t length[] = {SLICE};
    const tsr_tensor step = tsr_tensor_whole(TSR_FLOAT32, 0, NULL, NULL),
                     average = tsr_tensor_whole(TSR_FLOAT32, 1, length, NULL);
    const tsr_value *steps, *averages;
    TRY(tsr_state_dict_allocate(p->memory, &step, &steps, err));
    TRY(tsr_state_dict_allocate(p->memory, &average, &averages, err));
    *(float *)tsr_tensor_of(steps)->data = 1;
    memset(tsr_tensor_of(averages)->data, 0, SLICE * sizeof(float));
    p->param.state = tsr_value_dict(p->arena, 2, "step", steps, "square_avg", averages);
    return p->param.state ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status makes_first_states(program *p, tsr_error *err)
{
    tsr_state_options options = tsr_state_options_default();
    options.full_state_dict = options.flatten_optimizer_state_dict = true;
    const tsr_state_call call = {.comm = p->comm, .options = &options};
    static const char *const names[] = {"fc.weight.step", "fc.weight.square_avg", "fc.bias.step", "fc.bias.square_avg"};
    tsr_state_dict *state;
    p->optimizer.first_state = first_state;
    p->optimizer.ctx = p;
    TRY(tsr_state_dict_new(p->host, &state, err));
    TRY(tsr_get_optimizer_state_dict(&p->model, (tsr_optimizers){p->optimizers, 1}, &call, state, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char key[40], golden[40];
        snprintf(key, sizeof key, "state.%s", names[i]);
        snprintf(golden, sizeof golden, "first.%s", names[i]);
        const tsr_value *value = tsr_state_dict_get(state, tsr_str_from(key));
        NEED(value != NULL);
        TRY(compare(p, tsr_tensor_of(value), golden, err));
    }
    tsr_state_dict_free(state);
    return TSR_OK;
}

/* Three ranks of PyTorch saved what these two load. */
static tsr_status loads_an_optimizer(program *p, tsr_error *err)
{
    tsr_state_dict *model, *loaded;
    const tsr_state_call call = {.comm = p->comm};
    TRY(tsr_state_dict_new(p->host, &model, err));
    TRY(tsr_state_dict_new(p->host, &loaded, err));
    TRY(tsr_get_model_state_dict(&p->model, &call, model, err));
    const tsr_optimizer_target target = {.out = loaded};
    TRY(tsr_optimizer_state_load(GOLDEN "trained", TSR_STR("optim"), tsr_state_dict_root(model), p->comm, &target, err));
    const tsr_value *states = tsr_value_get(tsr_state_dict_get(loaded, TSR_STR("optim")), TSR_STR("state"));
    static const char *const names[] = {"fc.weight", "fc.bias"};
    for (size_t i = 0; i < 2; i++) {
        char golden[40];
        const tsr_value *state = states ? tsr_value_get(states, tsr_str_from(names[i])) : NULL;
        snprintf(golden, sizeof golden, "moments.%u.%s", (unsigned)p->comm->rank, names[i]);
        NEED(state && tsr_value_get(state, TSR_STR("exp_avg")));
        TRY(compare(p, tsr_tensor_of(tsr_value_get(state, TSR_STR("exp_avg"))), golden, err));
    }
    tsr_state_dict_free(loaded);
    tsr_state_dict_free(model);
    return TSR_OK;
}

/* ---- copies in pinned and in shared memory ---- */

/* A device of which only the page-locking is used. */
typedef struct pinning {
    tsr_device base; /* must be first */
    uint64_t pinned, most;
} pinning;

static tsr_status pin(tsr_device *device, void *data, uint64_t bytes, tsr_error *err)
{
    pinning *d = (pinning *)device;
    (void)data;
    (void)err;
    d->pinned += bytes;
    if (d->pinned > d->most) d->most = d->pinned;
    return TSR_OK;
}

static void unpin(tsr_device *device, void *data, uint64_t bytes)
{
    (void)data;
    ((pinning *)device)->pinned -= bytes;
}

/* Copies this rank's rows into memory that is made once, and gathers them from there when the model has changed. */
static tsr_status copies(program *p, const tsr_create_options *how, tsr_error *err)
{
    tsr_state_dict *live, *made, *copied, *full;
    const tsr_state_call call = {.comm = p->comm};
    TRY(tsr_state_dict_new(p->host, &live, err));
    TRY(tsr_state_dict_new(p->host, &made, err));
    TRY(tsr_state_dict_new(p->host, &copied, err));
    TRY(tsr_state_dict_new(p->host, &full, err));
    TRY(tsr_get_model_state_dict(&p->model, &call, live, err));
    TRY(tsr_state_dict_create(tsr_state_dict_root(live), how, made, err));
    TRY(tsr_state_dict_copy(tsr_state_dict_root(live), tsr_state_dict_root(made), false, copied, err));
    memset(p->slice, 0, sizeof p->slice);
    TRY(compare_form(p, tsr_state_dict_root(copied), "fc.weight", TSR_FSDP_SHARDED, err));
    TRY(tsr_state_dict_gather(tsr_state_dict_root(copied), p->comm, NULL, full, err));
    TRY(compare_form(p, tsr_state_dict_root(full), "fc.bias", TSR_FSDP_FULL, err));
    TRY(tsr_comm_barrier(p->comm, err)); /* nobody reads the shared memory any more */
    tsr_state_dict_free(full);
    tsr_state_dict_free(copied);
    tsr_state_dict_free(made);
    tsr_state_dict_free(live); /* whose keys the others share */
    fill(p);
    return TSR_OK;
}

static tsr_status copies_in_both(program *p, tsr_error *err)
{
    pinning device = {.base = {.kind = TSR_DEVICE_CUDA, .pin = pin, .unpin = unpin}};
    TRY(copies(p, &(tsr_create_options){.pin = &device.base}, err));
    NEED(device.most >= (p->comm->rank == 0 ? 10 : 5) * sizeof(float) && device.pinned == 0);
    return copies(p, &(tsr_create_options){.share = p->comm}, err);
}

/* ---- the tests ---- */

typedef struct job {
    tsr_status (*run)(program *p, tsr_error *err);
    const tsr_host *host;
} job;

static tsr_status on_rank(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    program p;
    TRY(begin(&p, j->host, comm, err));
    const tsr_status status = j->run(&p, err);
    end(&p);
    return status;
}

static void on_ranks(tsr_status (*run)(program *p, tsr_error *err))
{
    tsr_native_host native;
    tsr_error err = {0};
    tsr_native_host_open(&native, 1);
    job j = {run, &native.host};
    const tsr_status status = tsr_comm_threads_run(native.host.allocator, RANKS, on_rank, &j, &err);
    tsr_native_host_close(&native);
    if (status != TSR_OK) fail_msg("%s", err.message);
}

static void test_statedict_units_as_used__C1_C3_C4_full_local_and_sharded_saves(void **state)
{
    (void)state;
    on_ranks(saves);
}

static void test_statedict_units_as_used__C5_chunk_and_gather(void **state)
{
    (void)state;
    on_ranks(extends);
}

static void test_statedict_units_as_used__A8_first_state(void **state)
{
    (void)state;
    on_ranks(makes_first_states);
}

static void test_statedict_units_as_used__E4_optimizer_of_other_ranks(void **state)
{
    (void)state;
    on_ranks(loads_an_optimizer);
}

static void test_statedict_units_as_used__D4_D5_pinned_and_shared_memory(void **state)
{
    (void)state;
    on_ranks(copies_in_both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_units_as_used__C1_C3_C4_full_local_and_sharded_saves),
        cmocka_unit_test(test_statedict_units_as_used__C5_chunk_and_gather),
        cmocka_unit_test(test_statedict_units_as_used__A8_first_state),
        cmocka_unit_test(test_statedict_units_as_used__E4_optimizer_of_other_ranks),
        cmocka_unit_test(test_statedict_units_as_used__D4_D5_pinned_and_shared_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
