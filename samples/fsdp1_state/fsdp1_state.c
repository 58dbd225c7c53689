/* The state of an FSDP1 model and its optimizer, got, saved, loaded and set.
 *
 *   fsdp1_state DIRECTORY
 *
 * Four ranks (threads here; an MPI program passes its own communicator) hold a slice each of one flat parameter, which is
 * fc.weight [3, 4] and fc.bias [3] one after the other. PyTorch reads what is saved, and the other way round. See README.md.
 */
#include <stdio.h>
#include <string.h>

#include "tessera/comm_threads.h"
#include "tessera/native_host.h"
#include "tessera/optimizer_state.h"
#include "tessera/save_load.h"

#define TRY(call) \
    do { \
        tsr_status try_status_ = (call); \
        if (try_status_ != TSR_OK) return try_status_; \
    } while (0)

enum { RANKS = 4, NUMEL = 15, SLICE = (NUMEL + RANKS - 1) / RANKS };

/* As samples/describe_modules.py writes it of a live model; a program may build the structures of tessera/modules.h. */
static const char tree[] =
    "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"FullyShardedDataParallel\",\"wrapper\":\"fsdp1\","
    "\"flat_param\":{\"params\":[{\"fqn\":\"fc.weight\",\"shape\":[3,4]},{\"fqn\":\"fc.bias\",\"shape\":[3]}]},"
    "\"children\":{\"_fsdp_wrapped_module\":{\"class\":\"Net\",\"wrapper\":\"none\","
    "\"parameters\":{\"_flat_param\":{\"shape\":[4],\"dtype\":\"float32\",\"requires_grad\":true}},"
    "\"children\":{\"fc\":{\"class\":\"Linear\",\"wrapper\":\"none\"}}}}}}";

/* What a rank has. */
typedef struct rank {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_modules *modules;
    float slice[SLICE];
    tsr_fsdp_unit unit;
    tsr_fsdp_tree units;
    tsr_model model;
    tsr_model_param param;
    tsr_model_group group;
    tsr_model_optimizer optimizer;
    tsr_state_dict *memory, *got_model, *got_optimizer, *loaded;
} rank;

static void warn(void *ctx, const char *message)
{
    (void)ctx;
    fprintf(stderr, "warning: %s\n", message);
}

static tsr_status describe(rank *r, tsr_comm *comm, tsr_error *err)
{
    tsr_modules_document document;
    TRY(tsr_modules_parse(tsr_str_from(tree), r->host, r->arena, &document, err));
    TRY(tsr_modules_new(document.root, r->host, &r->modules, err));
    TRY(tsr_state_dict_new(r->host, &r->memory, err));
    r->unit = (tsr_fsdp_unit){.module = 0, .comm = comm, .dtype = TSR_FLOAT32, .slice = r->slice};
    r->units = (tsr_fsdp_tree){.units = &r->unit, .unit_count = 1, .warn = warn};
    r->model = (tsr_model){.modules = r->modules, .fsdp = &r->units, .memory = r->memory, .warn = warn};
    tsr_arena *arena = tsr_state_dict_arena(r->memory);
    const tsr_value *betas =
        tsr_value_list(arena, TSR_VALUE_TUPLE, 2, tsr_value_float(arena, 0.9, err), tsr_value_float(arena, 0.999, err));
    r->param = (tsr_model_param){.name = "_fsdp_wrapped_module._flat_param"};
    r->group =
        (tsr_model_group){tsr_value_dict(arena, 4, "lr", tsr_value_float(arena, 0.01, err), "betas", betas, "eps",
                                         tsr_value_float(arena, 1e-8, err), "amsgrad", tsr_value_bool(arena, false, err)),
                          &r->param, 1};
    r->optimizer = (tsr_model_optimizer){.algorithm = TSR_ADAMW, .groups = &r->group, .group_count = 1, .memory = r->memory};
    return r->group.options ? TSR_OK : TSR_E_NOMEM;
}

/* {"model": {"fc.weight": …}, "optim": {"state": …, "param_groups": …}}: each rank's rows, in the form that DCP saves. */
static tsr_status get(rank *r, tsr_comm *comm, const tsr_value **out, tsr_error *err)
{
    tsr_model_optimizer *optimizers[] = {&r->optimizer};
    TRY(tsr_state_dict_new(r->host, &r->got_model, err));
    TRY(tsr_state_dict_new(r->host, &r->got_optimizer, err));
    TRY(tsr_get_state_dict(&r->model, (tsr_optimizers){optimizers, 1}, &(tsr_state_call){.comm = comm}, r->got_model,
                           r->got_optimizer, err));
    *out = tsr_value_dict(r->arena, 2, "model", tsr_state_dict_root(r->got_model), "optim",
                          tsr_state_dict_root(r->got_optimizer));
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status set(rank *r, const tsr_value *state, tsr_comm *comm, tsr_error *err)
{
    tsr_model_optimizer *optimizers[] = {&r->optimizer};
    const tsr_value *model = tsr_value_get(state, TSR_STR("model")), *optim = tsr_value_get(state, TSR_STR("optim"));
    return tsr_set_state_dict(&r->model, (tsr_optimizers){optimizers, 1}, model, optim,
                              &(tsr_state_call){.comm = comm, .host = r->host, .arena = r->arena}, err);
}

static float element(const tsr_comm *comm, size_t i)
{
    const size_t at = comm->rank * (size_t)SLICE + i;
    return at < NUMEL ? 1 + (float)at / 8 : 0; /* behind the last original is padding */
}

static tsr_status save_and_load(rank *r, const char *path, tsr_comm *comm, tsr_error *err)
{
    const tsr_save_options options = {.overwrite = true};
    const tsr_value *state;
    for (size_t i = 0; i < SLICE; i++) r->slice[i] = element(comm, i);
    TRY(get(r, comm, &state, err));
    TRY(tsr_state_dict_save(state, comm, path, &options, r->host, err));
    memset(r->slice, 0, sizeof r->slice);
    TRY(tsr_state_dict_new(r->host, &r->loaded, err));
    TRY(tsr_state_dict_load(path, state, comm, NULL, r->loaded, err));
    TRY(set(r, tsr_state_dict_root(r->loaded), comm, err));
    for (size_t i = 0; i < SLICE; i++)
        if (r->slice[i] != element(comm, i))
            return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "element %zu of the slice was not restored", i);
    return TSR_OK;
}

typedef struct job {
    const tsr_host *host;
    const char *path;
} job;

static tsr_status run(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    rank r = {.host = j->host, .arena = tsr_arena_new(j->host->allocator, 0, err)};
    tsr_status status = r.arena ? describe(&r, comm, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = save_and_load(&r, j->path, comm, err);
    tsr_state_dict_free(r.loaded);
    tsr_state_dict_free(r.got_optimizer);
    tsr_state_dict_free(r.got_model);
    tsr_state_dict_free(r.memory);
    tsr_modules_free(r.modules);
    tsr_arena_free(r.arena);
    return status;
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_error err = {0};
    if (argc != 2) return fprintf(stderr, "usage: fsdp1_state DIRECTORY\n"), 2;
    tsr_native_host_open(&native, 1);
    job j = {&native.host, argv[1]};
    const tsr_status status = tsr_comm_threads_run(native.host.allocator, RANKS, run, &j, &err);
    if (status == TSR_OK) printf("%s: saved by %d ranks, loaded and compared\n", argv[1], RANKS);
    else fprintf(stderr, "fsdp1_state: %s\n", err.message);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 2;
}
