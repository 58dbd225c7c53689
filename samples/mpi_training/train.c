/* A network of two layers, trained under MPI with AdamW in C, whose checkpoints PyTorch reads and writes too.
 *
 *   mpirun -n 4 train --steps 20 --save-every 5 --checkpoints /tmp/run [--die-at STEP]
 *
 * Every rank holds rows of each parameter and of its optimizer state. `tsr_model` and `tsr_model_optimizer` describe both to
 * Tessera, which gets their state dicts under PyTorch's names, saves and loads them, and sets them.
 *
 * A step gathers the parameters, computes the gradients of this rank's samples, adds up those of all ranks in the order of
 * the samples, and updates this rank's rows. The losses are therefore the same to the last bit on any number of ranks. See
 * README.md. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tessera/comm_mpi.h"
#include "tessera/native_host.h"
#include "tessera/optimizer_state.h"
#include "tessera/save_load.h"

#define TRY(call) \
    do { \
        tsr_status try_status_ = (call); \
        if (try_status_ != TSR_OK) return try_status_; \
    } while (0)

/* ---- the model ---- */

enum { INPUTS = 8, HIDDEN = 16, OUTPUTS = 4, BATCH = 12, PARAMS = 4 };

typedef struct param {
    const char *name;
    uint32_t ndim;
    uint64_t shape[2];
    size_t first; /* of its elements among all parameters' */
    size_t numel;
} param;

static const param params[PARAMS] = {
    {"0.weight", 2, {HIDDEN, INPUTS}, 0, HIDDEN *INPUTS},
    {"0.bias", 1, {HIDDEN}, HIDDEN *INPUTS, HIDDEN},
    {"2.weight", 2, {OUTPUTS, HIDDEN}, HIDDEN *INPUTS + HIDDEN, OUTPUTS *HIDDEN},
    {"2.bias", 1, {OUTPUTS}, HIDDEN *INPUTS + HIDDEN + OUTPUTS *HIDDEN, OUTPUTS},
};
enum { NUMEL = HIDDEN * INPUTS + HIDDEN + OUTPUTS * HIDDEN + OUTPUTS };

/* The tree of torch.nn.Sequential(Linear(8, 16), Tanh(), Linear(16, 4)), as tessera.modules/1 writes it. */
static const char tree[] =
    "{\"schema\":\"tessera.modules/1\",\"root\":{\"class\":\"Sequential\",\"wrapper\":\"none\",\"children\":{"
    "\"0\":{\"class\":\"Linear\",\"wrapper\":\"none\",\"parameters\":{"
    "\"weight\":{\"shape\":[16,8],\"dtype\":\"float64\",\"requires_grad\":true},"
    "\"bias\":{\"shape\":[16],\"dtype\":\"float64\",\"requires_grad\":true}}},"
    "\"1\":{\"class\":\"Tanh\",\"wrapper\":\"none\"},"
    "\"2\":{\"class\":\"Linear\",\"wrapper\":\"none\",\"parameters\":{"
    "\"weight\":{\"shape\":[4,16],\"dtype\":\"float64\",\"requires_grad\":true},"
    "\"bias\":{\"shape\":[4],\"dtype\":\"float64\",\"requires_grad\":true}}}}}}";

typedef struct trainer {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_state_dict *memory; /* of parameters and optimizer state */
    int64_t trained;        /* steps */
    /* What Tessera is told of the model and its optimizer. */
    tsr_mesh mesh;
    uint64_t mesh_shape[1];
    tsr_modules *modules;
    tsr_model_tensor tensors[PARAMS];
    tsr_model model;
    tsr_model_param optimized[PARAMS];
    tsr_model_group group;
    tsr_model_optimizer optimizer, *optimizers[1];
    /* Which rows of each parameter are here. */
    size_t first[PARAMS], held[PARAMS]; /* elements */
    /* Whole parameters: memory that every step gathers into. */
    tsr_state_dict *rows, *full, *gathered;
    double weights[NUMEL];
} trainer;

static const tsr_str dp = {"dp", 2};
static const tsr_placement by_rows = {TSR_SHARD, 0, 0};

static void warn(void *ctx, const char *message)
{
    const trainer *t = ctx;
    fprintf(stderr, "rank %" PRIu32 ": warning: %s\n", t->comm->rank, message);
}

/* Rows of a tensor of a parameter's shape, zeroed. */
static tsr_status make_rows(trainer *t, const param *p, const tsr_value **out, tsr_error *err)
{
    uint64_t bytes;
    const tsr_tensor rows =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT64, p->ndim, p->shape, NULL), &t->mesh, &by_rows, t->comm->rank);
    TRY(tsr_state_dict_allocate(t->memory, &rows, out, err));
    TRY(tsr_tensor_held(&rows, t->arena, &bytes, err));
    if (bytes) memset(tsr_tensor_of(*out)->data, 0, (size_t)bytes);
    return TSR_OK;
}

/* A parameter's rows and the state that AdamW starts with, both bound to the module tree by name. */
static tsr_status make_param(trainer *t, size_t i, tsr_error *err)
{
    const param *p = &params[i];
    const tsr_tensor counter = tsr_tensor_whole(TSR_FLOAT32, 0, NULL, NULL);
    const tsr_value *value, *step, *exp_avg, *exp_avg_sq;
    const tsr_piece *pieces;
    uint64_t count, row = p->ndim == 2 ? p->shape[1] : 1;
    TRY(make_rows(t, p, &value, err));
    TRY(make_rows(t, p, &exp_avg, err));
    TRY(make_rows(t, p, &exp_avg_sq, err));
    TRY(tsr_state_dict_allocate(t->memory, &counter, &step, err));
    *(float *)tsr_tensor_of(step)->data = 0;
    t->tensors[i] = (tsr_model_tensor){.name = p->name, .tensor = (tsr_tensor *)tsr_tensor_of(value)};
    t->optimized[i] = (tsr_model_param){
        .name = p->name, .state = tsr_value_dict(t->arena, 3, "step", step, "exp_avg", exp_avg, "exp_avg_sq", exp_avg_sq)};
    TRY(tsr_tensor_pieces(tsr_tensor_of(value), t->arena, &pieces, &count, err));
    if (count) {
        t->first[i] = (size_t)(pieces[0].offsets[0] * row);
        t->held[i] = (size_t)(pieces[0].sizes[0] * row);
    }
    return t->optimized[i].state ? TSR_OK : TSR_E_NOMEM;
}

/* What torch.optim.AdamW lists in its param group. */
static const tsr_value *make_options(tsr_arena *a, tsr_error *err)
{
    const tsr_value *no = tsr_value_bool(a, false, err), *none = tsr_value_none(a, err);
    const tsr_value *betas =
        tsr_value_list(a, TSR_VALUE_TUPLE, 2, tsr_value_float(a, 0.9, err), tsr_value_float(a, 0.999, err));
    return tsr_value_dict(a, 11, "lr", tsr_value_float(a, 0.01, err), "betas", betas, "eps", tsr_value_float(a, 1e-8, err),
                          "weight_decay", tsr_value_float(a, 0.01, err), "amsgrad", no, "maximize", no, "foreach", none,
                          "capturable", no, "differentiable", no, "fused", none, "decoupled_weight_decay",
                          tsr_value_bool(a, true, err));
}

static tsr_status make_model(trainer *t, tsr_error *err)
{
    tsr_modules_document document;
    t->mesh_shape[0] = t->comm->size;
    t->mesh = (tsr_mesh){1, t->mesh_shape, &dp};
    TRY(tsr_state_dict_new(t->host, &t->memory, err));
    t->arena = tsr_state_dict_arena(t->memory);
    TRY(tsr_modules_parse(tsr_str_from(tree), t->host, t->arena, &document, err));
    TRY(tsr_modules_new(document.root, t->host, &t->modules, err));
    for (size_t i = 0; i < PARAMS; i++) TRY(make_param(t, i, err));
    t->model = (tsr_model){.modules = t->modules, .tensors = t->tensors, .tensor_count = PARAMS, .warn = warn, .ctx = t};
    t->group = (tsr_model_group){make_options(t->arena, err), t->optimized, PARAMS};
    t->optimizer = (tsr_model_optimizer){.algorithm = TSR_ADAMW, .groups = &t->group, .group_count = 1, .memory = t->memory};
    t->optimizers[0] = &t->optimizer;
    if (!t->group.options) return TSR_E_NOMEM;
    TRY(tsr_state_dict_new(t->host, &t->rows, err));
    return tsr_get_model_state_dict(&t->model, &(tsr_state_call){.comm = t->comm}, t->rows,
                                    err); /* shares the model's memory */
}

static void start_weights(trainer *t)
{
    for (size_t i = 0; i < PARAMS; i++) {
        double *values = t->tensors[i].tensor->data;
        for (size_t k = 0; k < t->held[i]; k++) values[k] = 0.3 * sin((double)(params[i].first + t->first[i] + k) * 12.9898);
    }
}

/* ---- a step ---- */

/* The whole parameters from all ranks' rows: into memory of their own the first time, into the same from then on. */
static tsr_status gather_weights(trainer *t, tsr_error *err)
{
    tsr_gather_options options = {.warnings = {warn, t}};
    tsr_state_dict *next;
    TRY(tsr_state_dict_new(t->host, &next, err));
    if (t->full) options.companion = tsr_state_dict_root(t->full);
    TRY(tsr_state_dict_gather(tsr_state_dict_root(t->rows), t->comm, &options, next, err));
    tsr_state_dict_free(t->gathered);
    if (t->full) t->gathered = next;
    else t->full = next;
    for (size_t i = 0; i < PARAMS; i++)
        memcpy(t->weights + params[i].first,
               tsr_tensor_of(tsr_value_get(tsr_state_dict_root(t->full), tsr_str_from(params[i].name)))->data,
               params[i].numel * sizeof(double));
    return TSR_OK;
}

/* Loss of one sample, mean squared error over the outputs; `gradient` gets that of all parameters. */
static double backward(const double *w, int64_t sample, double *gradient)
{
    const double *w1 = w, *b1 = w + params[1].first, *w2 = w + params[2].first, *b2 = w + params[3].first;
    double x[INPUTS], h[HIDDEN], back[HIDDEN] = {0}, loss = 0;
    for (int j = 0; j < INPUTS; j++) x[j] = sin(0.7 * (double)sample + 1.3 * j);
    for (int i = 0; i < HIDDEN; i++) {
        h[i] = b1[i];
        for (int j = 0; j < INPUTS; j++) h[i] += w1[i * INPUTS + j] * x[j];
        h[i] = tanh(h[i]);
    }
    for (int k = 0; k < OUTPUTS; k++) {
        double y = b2[k];
        for (int i = 0; i < HIDDEN; i++) y += w2[k * HIDDEN + i] * h[i];
        const double difference = y - cos(0.7 * (double)sample + 0.5 * k), slope = 2 * difference / OUTPUTS;
        loss += difference * difference / OUTPUTS;
        for (int i = 0; i < HIDDEN; i++) {
            gradient[params[2].first + (size_t)(k * HIDDEN + i)] = slope * h[i];
            back[i] += slope * w2[k * HIDDEN + i];
        }
        gradient[params[3].first + (size_t)k] = slope;
    }
    for (int i = 0; i < HIDDEN; i++) {
        const double slope = back[i] * (1 - h[i] * h[i]);
        for (int j = 0; j < INPUTS; j++) gradient[i * INPUTS + j] = slope * x[j];
        gradient[params[1].first + (size_t)i] = slope;
    }
    return loss;
}

/* Gradients and losses of all samples of a batch on all ranks, each rank having computed some: rows of NUMEL + 1. */
static tsr_status all_gradients(trainer *t, int64_t step, double (*out)[NUMEL + 1], tsr_error *err)
{
    static double mine[BATCH][NUMEL + 1];
    size_t *sizes = calloc(t->comm->size, sizeof *sizes);
    if (!sizes) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory");
    for (uint64_t r = 0; r < t->comm->size; r++)
        sizes[r] = (size_t)(BATCH * (r + 1) / t->comm->size - BATCH * r / t->comm->size) * sizeof *out;
    const int64_t first = (int64_t)(BATCH * (uint64_t)t->comm->rank / t->comm->size);
    for (int64_t i = 0; i < (int64_t)(sizes[t->comm->rank] / sizeof *out); i++)
        mine[i][NUMEL] = backward(t->weights, step * BATCH + first + i, mine[i]);
    const tsr_status status = t->comm->all_gather(t->comm, mine, sizes, out, err);
    free(sizes);
    return status;
}

static double option(const trainer *t, const char *name)
{
    return tsr_value_get(t->group.options, tsr_str_from(name))->as.real;
}

/* Setting a state dict may put other tensors in a parameter's state: they are looked up each time. */
static void *state_of(const trainer *t, size_t i, const char *name)
{
    return tsr_tensor_of(tsr_value_get(t->optimized[i].state, tsr_str_from(name)))->data;
}

/* As torch.optim.AdamW does it, with the options of the param group. */
static void update(const trainer *t, size_t i, const double *gradient)
{
    const tsr_value *betas = tsr_value_get(t->group.options, TSR_STR("betas"));
    const double beta1 = betas->items[0]->as.real, beta2 = betas->items[1]->as.real;
    const double lr = option(t, "lr"), decay = option(t, "weight_decay"), eps = option(t, "eps");
    const double step = *(float *)state_of(t, i, "step") += 1;
    const double size = lr / (1 - pow(beta1, step)), root = sqrt(1 - pow(beta2, step));
    double *value = t->tensors[i].tensor->data, *m = state_of(t, i, "exp_avg"), *v = state_of(t, i, "exp_avg_sq");
    for (size_t k = 0; k < t->held[i]; k++) {
        const double g = gradient[params[i].first + t->first[i] + k];
        value[k] *= 1 - lr * decay;
        m[k] += (g - m[k]) * (1 - beta1);
        v[k] = v[k] * beta2 + (1 - beta2) * g * g;
        value[k] -= size * (m[k] / (sqrt(v[k]) / root + eps));
    }
}

static tsr_status train_step(trainer *t, int64_t step, tsr_error *err)
{
    static double rows[BATCH][NUMEL + 1];
    double gradient[NUMEL + 1] = {0};
    TRY(gather_weights(t, err));
    TRY(all_gradients(t, step, rows, err));
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k <= NUMEL; k++) gradient[k] += rows[i][k] / BATCH;
    }
    for (size_t i = 0; i < PARAMS; i++) update(t, i, gradient);
    t->trained = step + 1;
    if (t->comm->rank == 0) printf("step %" PRId64 " loss %.17g\n", step, gradient[NUMEL]);
    fflush(stdout);
    return TSR_OK;
}

/* ---- checkpoints ---- */

/* A state dict of the form that PyTorch programs save, and what it lies in. */
typedef struct snapshot {
    tsr_state_dict *model, *optimizer;
    const tsr_value *state; /* {"model": …, "optim": {"state": …, "param_groups": …}, "trained_steps": …} */
} snapshot;

static void drop(snapshot *s)
{
    tsr_state_dict_free(s->optimizer);
    tsr_state_dict_free(s->model);
}

/* Tensors are this rank's rows, in the model's own memory. */
static tsr_status take_snapshot(trainer *t, snapshot *s, tsr_error *err)
{
    TRY(tsr_state_dict_new(t->host, &s->model, err));
    TRY(tsr_state_dict_new(t->host, &s->optimizer, err));
    TRY(tsr_get_state_dict(&t->model, (tsr_optimizers){t->optimizers, 1}, &(tsr_state_call){.comm = t->comm}, s->model,
                           s->optimizer, err));
    tsr_arena *arena = tsr_state_dict_arena(s->model);
    s->state = tsr_value_dict(arena, 3, "model", tsr_state_dict_root(s->model), "optim", tsr_state_dict_root(s->optimizer),
                              "trained_steps", tsr_value_int(arena, t->trained, err));
    return s->state ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status save(trainer *t, const char *path, tsr_error *err)
{
    const tsr_save_options options = {.warnings = {warn, t}};
    snapshot s = {0};
    tsr_status status = take_snapshot(t, &s, err);
    if (status == TSR_OK) status = tsr_state_dict_save(s.state, t->comm, path, &options, t->host, err);
    drop(&s);
    return status;
}

/* Loading fills the tensors of a snapshot, whatever number of ranks wrote the checkpoint, and reads the other values. */
static tsr_status load_into(trainer *t, const char *path, const snapshot *s, tsr_state_dict *loaded, tsr_error *err)
{
    const tsr_load_options options = {.warnings = {warn, t}};
    TRY(tsr_state_dict_load(path, s->state, t->comm, &options, loaded, err));
    t->trained = tsr_state_dict_get(loaded, TSR_STR("trained_steps"))->as.integer;
    return tsr_set_state_dict(&t->model, (tsr_optimizers){t->optimizers, 1}, tsr_state_dict_get(loaded, TSR_STR("model")),
                              tsr_state_dict_get(loaded, TSR_STR("optim")),
                              &(tsr_state_call){.comm = t->comm, .host = t->host, .arena = t->arena}, err);
}

static tsr_status load(trainer *t, const char *path, tsr_error *err)
{
    snapshot s = {0};
    tsr_state_dict *loaded = NULL;
    tsr_status status = take_snapshot(t, &s, err);
    if (status == TSR_OK) status = tsr_state_dict_new(t->host, &loaded, err);
    if (status == TSR_OK) status = load_into(t, path, &s, loaded, err);
    tsr_state_dict_free(loaded);
    drop(&s);
    return status;
}

/* ---- the job ---- */

typedef struct job {
    int64_t steps, save_every, die_at;
    const char *checkpoints;
} job;

static void name_checkpoint(const job *j, int64_t step, char *path, size_t size)
{
    snprintf(path, size, "%s/step-%" PRId64, j->checkpoints, step);
}

/* The newest checkpoint, as rank 0 sees it; none: the first weights. A save that was killed is not there. */
static tsr_status resume(trainer *t, const job *j, tsr_error *err)
{
    char path[1024], marker[1100];
    int64_t step = j->steps;
    for (; t->comm->rank == 0 && step > 0; step--) {
        name_checkpoint(j, step, path, sizeof path);
        snprintf(marker, sizeof marker, "%s/.metadata", path);
        if (access(marker, F_OK) == 0) break;
    }
    TRY(t->comm->broadcast(t->comm, &step, sizeof step, 0, err));
    if (step == 0) {
        start_weights(t);
        return TSR_OK;
    }
    name_checkpoint(j, step, path, sizeof path);
    TRY(load(t, path, err));
    if (t->comm->rank == 0) fprintf(stderr, "resumed from %s on %" PRIu32 " ranks\n", path, t->comm->size);
    return TSR_OK;
}

static tsr_status train(trainer *t, const job *j, tsr_error *err)
{
    char path[1024];
    TRY(make_model(t, err));
    TRY(resume(t, j, err));
    for (int64_t step = t->trained; step < j->steps; step++) {
        if (step == j->die_at && t->comm->rank == t->comm->size - 1) raise(SIGKILL);
        TRY(train_step(t, step, err));
        if ((step + 1) % j->save_every != 0) continue;
        name_checkpoint(j, step + 1, path, sizeof path);
        TRY(save(t, path, err));
    }
    return TSR_OK;
}

static job read_arguments(int argc, char **argv)
{
    job j = {20, 5, -1, "."};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--steps") == 0) j.steps = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--save-every") == 0) j.save_every = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--die-at") == 0) j.die_at = atoll(argv[i + 1]);
        if (strcmp(argv[i], "--checkpoints") == 0) j.checkpoints = argv[i + 1];
    }
    return j;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_native_host native;
    trainer t = {0};
    tsr_status status = tsr_mpi_start(&argc, &argv, &err);
    if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &t.comm, &err);
    if (status == TSR_OK) {
        const job j = read_arguments(argc, argv);
        tsr_native_host_open(&native, 1);
        t.host = &native.host;
        status = train(&t, &j, &err);
        if (status != TSR_OK && t.comm->rank == 0) fprintf(stderr, "train: %s\n", err.message);
        tsr_state_dict_free(t.gathered);
        tsr_state_dict_free(t.full);
        tsr_state_dict_free(t.rows);
        tsr_modules_free(t.modules);
        tsr_state_dict_free(t.memory);
        tsr_native_host_close(&native);
        t.comm->close(t.comm);
    }
    tsr_mpi_end();
    return status != TSR_OK;
}
