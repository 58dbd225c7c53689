/* A network of two layers, trained under MPI with AdamW in C, whose checkpoints PyTorch reads and writes too.
 *
 *   mpirun -n 4 train --steps 20 --save-every 5 --checkpoints /tmp/run [--die-at STEP]
 *
 * Every rank holds rows of each parameter and of its optimizer state. A step gathers the parameters, computes the gradients
 * of this rank's samples, adds up those of all ranks in the order of the samples, and updates this rank's rows. The losses
 * are therefore the same to the last bit on any number of ranks. See README.md. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tessera/comm_mpi.h"
#include "tessera/native_host.h"
#include "tessera/save_load.h"

#define TRY(call) \
    do { \
        tsr_status try_status_ = (call); \
        if (try_status_ != TSR_OK) return try_status_; \
    } while (0)

enum { INPUTS = 8, HIDDEN = 16, OUTPUTS = 4, BATCH = 12, PARAMS = 4 };

typedef struct param {
    const char *name;
    uint32_t rank;
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

static const double lr = 0.01, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;

/* The rows of one parameter that this rank holds, and their optimizer state. */
typedef struct shard {
    const tsr_tensor *value, *exp_avg, *exp_avg_sq, *step;
    size_t first, numel; /* of the rows, among the parameter's elements */
} shard;

typedef struct trainer {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_mesh mesh;
    uint64_t mesh_shape[1];
    tsr_state_dict *state; /* {"model": …, "optim": …, "trained_steps": …} */
    tsr_value *trained;
    shard shards[PARAMS];
    tsr_state_dict *full, *gathered; /* whole parameters: memory that every step gathers into */
    double weights[NUMEL];
} trainer;

/* ---- the state dict ---- */

static const tsr_str dp = {"dp", 2};
static const tsr_placement by_rows = {TSR_SHARD, 0, 0};

/* A dict or list of values; keys and values of a dict alternate. */
static const tsr_value *container(trainer *t, tsr_value_kind kind, const tsr_value *const *items, size_t count,
                                  tsr_error *err)
{
    const tsr_value **own = tsr_arena_array(tsr_state_dict_arena(t->state), count, sizeof *own, err);
    if (!own) return NULL;
    memcpy(own, items, count * sizeof *own);
    return tsr_value_items(tsr_state_dict_arena(t->state), kind, own, count, err);
}

static const tsr_value *text(trainer *t, const char *s, tsr_error *err)
{
    return tsr_value_str(tsr_state_dict_arena(t->state), tsr_str_from(s), err);
}

static const tsr_value *scalar(trainer *t, tsr_value_kind kind, double number, tsr_error *err)
{
    tsr_value *value = tsr_value_new(tsr_state_dict_arena(t->state), kind, err);
    if (value && kind == TSR_VALUE_FLOAT) value->as.real = number;
    if (value && kind == TSR_VALUE_BOOL) value->as.boolean = number != 0;
    return value;
}

/* Rows of a tensor of a parameter's shape, zeroed. */
static tsr_status make_rows(trainer *t, const param *p, const tsr_value **out, tsr_error *err)
{
    uint64_t bytes;
    const tsr_tensor rows = tsr_tensor_over_mesh(TSR_FLOAT64, p->rank, p->shape, &t->mesh, &by_rows, t->comm->rank, NULL);
    TRY(tsr_state_dict_allocate(t->state, &rows, out, err));
    TRY(tsr_tensor_held(&rows, tsr_state_dict_arena(t->state), &bytes, err));
    if (bytes) memset(tsr_tensor_of(*out)->data, 0, (size_t)bytes);
    return TSR_OK;
}

static tsr_status make_shard(trainer *t, const param *p, shard *s, const tsr_value **value, const tsr_value **state,
                             tsr_error *err)
{
    const tsr_tensor counter = tsr_tensor_whole(TSR_FLOAT32, 0, NULL, NULL);
    const tsr_value *step, *exp_avg, *exp_avg_sq;
    const tsr_piece *pieces;
    uint64_t count, row = p->rank == 2 ? p->shape[1] : 1;
    TRY(make_rows(t, p, value, err));
    TRY(make_rows(t, p, &exp_avg, err));
    TRY(make_rows(t, p, &exp_avg_sq, err));
    TRY(tsr_state_dict_allocate(t->state, &counter, &step, err));
    *(float *)tsr_tensor_of(step)->data = 0;
    *s = (shard){tsr_tensor_of(*value), tsr_tensor_of(exp_avg), tsr_tensor_of(exp_avg_sq), tsr_tensor_of(step), 0, 0};
    TRY(tsr_tensor_pieces(s->value, tsr_state_dict_arena(t->state), &pieces, &count, err));
    if (count) {
        s->first = (size_t)(pieces[0].offsets[0] * row);
        s->numel = (size_t)(pieces[0].sizes[0] * row);
    }
    const tsr_value *const items[] = {text(t, "step", err),       step,      text(t, "exp_avg", err), exp_avg,
                                      text(t, "exp_avg_sq", err), exp_avg_sq};
    *state = container(t, TSR_VALUE_DICT, items, 6, err);
    return *state ? TSR_OK : TSR_E_NOMEM;
}

/* What torch.optim.AdamW lists in its param group. */
static const tsr_value *make_group(trainer *t, const tsr_value *const *names, tsr_error *err)
{
    const tsr_value *const betas[] = {scalar(t, TSR_VALUE_FLOAT, beta1, err), scalar(t, TSR_VALUE_FLOAT, beta2, err)};
    const tsr_value *no = scalar(t, TSR_VALUE_BOOL, 0, err), *none = scalar(t, TSR_VALUE_NONE, 0, err);
    const tsr_value *const items[] = {text(t, "lr", err),
                                      scalar(t, TSR_VALUE_FLOAT, lr, err),
                                      text(t, "betas", err),
                                      container(t, TSR_VALUE_TUPLE, betas, 2, err),
                                      text(t, "eps", err),
                                      scalar(t, TSR_VALUE_FLOAT, eps, err),
                                      text(t, "weight_decay", err),
                                      scalar(t, TSR_VALUE_FLOAT, weight_decay, err),
                                      text(t, "amsgrad", err),
                                      no,
                                      text(t, "maximize", err),
                                      no,
                                      text(t, "foreach", err),
                                      none,
                                      text(t, "capturable", err),
                                      no,
                                      text(t, "differentiable", err),
                                      no,
                                      text(t, "fused", err),
                                      none,
                                      text(t, "decoupled_weight_decay", err),
                                      scalar(t, TSR_VALUE_BOOL, 1, err),
                                      text(t, "params", err),
                                      container(t, TSR_VALUE_LIST, names, PARAMS, err)};
    const tsr_value *group = container(t, TSR_VALUE_DICT, items, sizeof items / sizeof *items, err);
    return group ? container(t, TSR_VALUE_LIST, &group, 1, err) : NULL;
}

static tsr_status make_state(trainer *t, tsr_error *err)
{
    const tsr_value *model[2 * PARAMS], *states[2 * PARAMS], *names[PARAMS];
    t->mesh_shape[0] = t->comm->size;
    t->mesh = (tsr_mesh){1, t->mesh_shape, &dp};
    TRY(tsr_state_dict_new(t->host, &t->state, err));
    for (size_t i = 0; i < PARAMS; i++) {
        names[i] = model[2 * i] = states[2 * i] = text(t, params[i].name, err);
        TRY(make_shard(t, &params[i], &t->shards[i], &model[2 * i + 1], &states[2 * i + 1], err));
    }
    const tsr_value *const optim[] = {text(t, "state", err), container(t, TSR_VALUE_DICT, states, 2 * PARAMS, err),
                                      text(t, "param_groups", err), make_group(t, names, err)};
    t->trained = tsr_value_int(tsr_state_dict_arena(t->state), 0, err);
    if (!t->trained || !optim[1] || !optim[3]) return TSR_E_NOMEM;
    TRY(tsr_state_dict_put(t->state, TSR_STR("model"), container(t, TSR_VALUE_DICT, model, 2 * PARAMS, err), err));
    TRY(tsr_state_dict_put(t->state, TSR_STR("optim"), container(t, TSR_VALUE_DICT, optim, 4, err), err));
    return tsr_state_dict_put(t->state, TSR_STR("trained_steps"), t->trained, err);
}

static void start_weights(trainer *t)
{
    for (size_t i = 0; i < PARAMS; i++) {
        double *values = t->shards[i].value->data;
        for (size_t k = 0; k < t->shards[i].numel; k++)
            values[k] = 0.3 * sin((double)(params[i].first + t->shards[i].first + k) * 12.9898);
    }
}

/* ---- a step ---- */

/* The whole parameters from all ranks' rows: into memory of their own the first time, into the same from then on. */
static tsr_status gather_weights(trainer *t, tsr_error *err)
{
    const tsr_value *model = tsr_state_dict_get(t->state, TSR_STR("model"));
    tsr_gather_options options = {0};
    tsr_state_dict *next;
    TRY(tsr_state_dict_new(t->host, &next, err));
    if (t->full) options.companion = tsr_state_dict_root(t->full);
    TRY(tsr_state_dict_gather(model, t->comm, &options, next, err));
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

/* As torch.optim.AdamW does it. */
static void update(const param *p, const shard *s, const double *gradient)
{
    double *value = s->value->data, *m = s->exp_avg->data, *v = s->exp_avg_sq->data;
    const double step = *(float *)s->step->data += 1;
    const double size = lr / (1 - pow(beta1, step)), root = sqrt(1 - pow(beta2, step));
    for (size_t i = 0; i < s->numel; i++) {
        const double g = gradient[p->first + s->first + i];
        value[i] *= 1 - lr * weight_decay;
        m[i] += (g - m[i]) * (1 - beta1);
        v[i] = v[i] * beta2 + (1 - beta2) * g * g;
        value[i] -= size * (m[i] / (sqrt(v[i]) / root + eps));
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
    for (size_t i = 0; i < PARAMS; i++) update(&params[i], &t->shards[i], gradient);
    t->trained->as.integer = step + 1;
    if (t->comm->rank == 0) printf("step %" PRId64 " loss %.17g\n", step, gradient[NUMEL]);
    fflush(stdout);
    return TSR_OK;
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
    tsr_state_dict *loaded;
    TRY(tsr_state_dict_new(t->host, &loaded, err));
    TRY(tsr_state_dict_load(path, tsr_state_dict_root(t->state), t->comm, NULL, loaded, err)); /* fills our rows */
    t->trained->as.integer = tsr_state_dict_get(loaded, TSR_STR("trained_steps"))->as.integer;
    tsr_state_dict_free(loaded);
    if (t->comm->rank == 0) fprintf(stderr, "resumed from %s on %" PRIu32 " ranks\n", path, t->comm->size);
    return TSR_OK;
}

static tsr_status train(trainer *t, const job *j, tsr_error *err)
{
    char path[1024];
    TRY(make_state(t, err));
    TRY(resume(t, j, err));
    for (int64_t step = t->trained->as.integer; step < j->steps; step++) {
        if (step == j->die_at && t->comm->rank == t->comm->size - 1) raise(SIGKILL);
        TRY(train_step(t, step, err));
        if ((step + 1) % j->save_every != 0) continue;
        name_checkpoint(j, step + 1, path, sizeof path);
        TRY(tsr_state_dict_save(tsr_state_dict_root(t->state), t->comm, path, NULL, t->host, err));
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
        tsr_state_dict_free(t.state);
        tsr_native_host_close(&native);
        t.comm->close(t.comm);
    }
    tsr_mpi_end();
    return status != TSR_OK;
}
