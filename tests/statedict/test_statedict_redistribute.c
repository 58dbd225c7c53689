/* Compares redistribution with the expected value of every element; ranks that disagree or run out of memory; limits of
 * memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "ramp.h"
#include "support/failing_allocator.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/statedict.h"

typedef struct property {
    uint64_t first_seed;
    bool on_device;
    unsigned shared; /* 1: the source is in memory that the ranks share; 2: the target is; 3: both are */
} property;

enum { CASES = 60, TENSORS = 3 };

/* Shared memory has one box per rank. */
static tsr_tensor in_one_box(const tsr_tensor *like, tsr_arena *arena, const tsr_comm *comm)
{
    const uint32_t ndim = like->entry.ndim;
    const uint64_t *shape = like->entry.shape, rows = (shape[0] + comm->size - 1) / comm->size;
    uint64_t *numbers = tsr_arena_array(arena, 2 * ndim, sizeof *numbers, NULL);
    tsr_tensor_part *part = TSR_ARENA_NEW(arena, tsr_tensor_part, NULL);
    memcpy(numbers + ndim, shape, ndim * sizeof *shape);
    numbers[0] = rows * comm->rank < shape[0] ? rows * comm->rank : shape[0];
    numbers[ndim] = shape[0] - numbers[0] < rows ? shape[0] - numbers[0] : rows;
    *part = (tsr_tensor_part){numbers, numbers + ndim, NULL};
    return tsr_tensor_in_boxes(like->entry.dtype, ndim, shape, part, 1);
}

/* Moves the tensors of `from` to memory that the ranks share. */
static tsr_status share_side(const tsr_tensor **side, tsr_comm *comm, tsr_state_dict *dict, tsr_state_dict *out,
                             tsr_error *err)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    const tsr_create_options options = {.share = comm};
    tsr_state_dict *tree;
    TSR_TRY(tsr_state_dict_new(tsr_state_dict_host(dict), &tree, err));
    for (size_t i = 0; i < TENSORS; i++) {
        const tsr_value *value;
        TSR_TRY(tsr_state_dict_tensor(dict, side[i], &value, err));
        TSR_TRY(tsr_state_dict_put(tree, tsr_str_from(names[i]), value, err));
    }
    TSR_TRY(tsr_state_dict_create(tsr_state_dict_root(tree), &options, out, err));
    for (size_t i = 0; i < TENSORS; i++)
        side[i] = tsr_tensor_of(tsr_value_get(tsr_state_dict_root(out), tsr_str_from(names[i])));
    tsr_state_dict_free(tree);
    return TSR_OK;
}

static tsr_status check_case(uint64_t seed, const property *p, tsr_comm *comm, tsr_error *err)
{
    static const tsr_dtype dtypes[] = {TSR_BOOL, TSR_BFLOAT16, TSR_FLOAT32, TSR_INT64, TSR_COMPLEX128};
    static const size_t rounds[] = {0, 1, 200, 5000};
    const tsr_host host = live_host(NULL);
    tsr_state_dict *dict, *shared[2];
    const tsr_tensor *sides[2][TENSORS];
    tsr_move moves[TENSORS];
    live_device device;
    live_device_open(&device);
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    TSR_TRY(tsr_state_dict_new(&host, &shared[0], err));
    TSR_TRY(tsr_state_dict_new(&host, &shared[1], err));
    tsr_arena *arena = tsr_state_dict_arena(dict);
    for (size_t i = 0; i < TENSORS; i++) {
        uint64_t *shape = tsr_arena_array(arena, 4, sizeof *shape, NULL);
        const uint32_t ndim = (uint32_t)(ramp_random(&seed) % 4);
        const tsr_dtype dtype = dtypes[ramp_random(&seed) % 5];
        for (uint32_t d = 0; d < ndim; d++) shape[d] = ramp_random(&seed) % 9;
        const tsr_value *value;
        for (int side = 0; side < 2; side++) {
            tsr_tensor tensor = ramp_tensor(&seed, arena, comm, dtype, ndim, shape);
            if (p->shared & 1u << side && tensor.spread == TSR_IN_BOXES) tensor = in_one_box(&tensor, arena, comm);
            tensor.device = p->on_device ? &device.base : NULL;
            TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
            sides[side][i] = tsr_tensor_of(value);
        }
    }
    for (int side = 0; side < 2; side++)
        if (p->shared & 1u << side) TSR_TRY(share_side(sides[side], comm, dict, shared[side], err));
    for (size_t i = 0; i < TENSORS; i++) {
        moves[i] = (tsr_move){sides[0][i], sides[1][i]};
        TSR_TRY(ramp_over(moves[i].from, arena, true, NULL, err));
    }
    TSR_TRY(tsr_redistribute(comm, moves, TENSORS, rounds[ramp_random(&seed) % 4], &host, err));
    bool right = true;
    for (size_t i = 0; i < TENSORS; i++) TSR_TRY(ramp_over(moves[i].to, arena, false, &right, err));
    tsr_state_dict_free(shared[0]);
    tsr_state_dict_free(shared[1]);
    tsr_state_dict_free(dict);
    NEED(right);
    return TSR_OK;
}

static tsr_status check_cases(void *arg, tsr_comm *comm, tsr_error *err)
{
    const property *p = arg;
    for (uint64_t i = 0; i < CASES; i++) {
        const tsr_status status = check_case(p->first_seed + i * 7919, p, comm, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "case %u", (unsigned)i);
            return status;
        }
    }
    return TSR_OK;
}

static void test_statedict_redistribute__every_element_arrives(void **state)
{
    (void)state;
    ranks_run(check_cases, &(property){.first_seed = 1});
    ranks_run(check_cases, &(property){.first_seed = 2, .on_device = true});
    for (unsigned shared = 1; shared < 4; shared++)
        ranks_run(check_cases, &(property){.first_seed = 2 + shared, .shared = shared});
}

/* ---- ranks that disagree ---- */

typedef struct quarrel {
    const char *what;
    const char *message; /* part of the message on every rank */
} quarrel;

/* Rank 1's state dict differs from that of the others. */
static tsr_status make_state(const char *what, const tsr_comm *comm, tsr_state_dict *dict, tsr_error *err)
{
    const bool odd = comm->rank == 1;
    const uint64_t mesh_shape[] = {comm->size}, shape[] = {6, 4}, other[] = {odd && strcmp(what, "shape") == 0 ? 5 : 6, 4};
    const tsr_mesh mesh = {1, mesh_shape, NULL};
    const tsr_placement rows = {TSR_SHARD, 0, 0}, columns = {TSR_SHARD, 1, 0};
    const tsr_value *value;
    tsr_tensor a = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, &rows, comm->rank);
    tsr_tensor b =
        tsr_tensor_over_mesh(tsr_tensor_whole(odd && strcmp(what, "dtype") == 0 ? TSR_INT32 : TSR_FLOAT32, 2, other, NULL),
                             &mesh, odd && strcmp(what, "placements") == 0 ? &columns : &rows, comm->rank);
    if (odd && strcmp(what, "whole") == 0) b = tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL);
    TSR_TRY(tsr_state_dict_allocate(dict, &a, &value, err));
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("a"), value, err));
    if (odd && strcmp(what, "missing") == 0) return TSR_OK;
    TSR_TRY(tsr_state_dict_allocate(dict, &b, &value, err));
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("b"), value, err));
    if (odd && strcmp(what, "key") == 0) TSR_TRY(tsr_state_dict_put(dict, TSR_STR("c"), value, err));
    return TSR_OK;
}

static tsr_status expect_told(tsr_status status, const tsr_error *told, const char *message, tsr_comm *comm, tsr_error *err)
{
    if (status == TSR_E_USAGE && strstr(told->message, message)) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u: expected '%s', status %d: %s", (unsigned)comm->rank,
                     message, status, told->message);
}

static tsr_status quarrel_over_gather(void *arg, tsr_comm *comm, tsr_error *err)
{
    const quarrel *q = arg;
    const tsr_host host = live_host(NULL);
    const uint32_t ranks[] = {0, 1};
    const bool odd = comm->rank == 1;
    const tsr_gather_options options = {.ranks_only = ranks,
                                        .ranks_only_count = odd && strcmp(q->what, "ranks_only") == 0 ? 1 : 2,
                                        .round_bytes = odd && strcmp(q->what, "round_bytes") == 0 ? 64 : 0};
    tsr_state_dict *in, *out;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_new(&host, &in, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(make_state(q->what, comm, in, err));
    tsr_status status = tsr_state_dict_gather(tsr_state_dict_root(in), comm, &options, out, &told);
    status = expect_told(status, &told, q->message, comm, err);
    tsr_state_dict_free(in);
    tsr_state_dict_free(out);
    TSR_TRY(status);
    return tsr_comm_barrier(comm, err); /* the communicator still works */
}

static void test_statedict_redistribute__disagreement_is_named_everywhere(void **state)
{
    (void)state;
    static const quarrel quarrels[] = {
        {"shape", "ranks 0 and 1 differ: 'b' is float32 [6, 4] over 3: shard(0) on rank 0, but float32 [5, 4]"},
        {"dtype", "'b' is float32 [6, 4] over 3: shard(0) on rank 0, but int32 [6, 4] over 3: shard(0) on rank 1"},
        {"placements", "over 3: shard(0) on rank 0, but float32 [6, 4] over 3: shard(1) on rank 1"},
        {"whole", "over 3: shard(0) on rank 0, but missing on rank 1"},
        {"missing", "ranks 0 and 1 differ: 'b' is float32 [6, 4] over 3: shard(0) on rank 0, but missing on rank 1"},
        {"key", "ranks 0 and 1 differ: 'c' is missing on rank 0, but float32"},
        {"ranks_only", "the call gather is"},
        {"round_bytes", "the call gather is"},
    };
    if (ranks_count(3) < 3) return; /* mpirun -n 2 has no third rank: the messages in the table are for three */
    for (size_t i = 0; i < sizeof quarrels / sizeof quarrels[0]; i++) live_run(3, quarrel_over_gather, (void *)&quarrels[i]);
}

typedef struct bad_boxes {
    uint64_t first[2], rows[2]; /* the values of ranks 0 and 1 */
    const char *message;
} bad_boxes;

static tsr_status gather_boxes(void *arg, tsr_comm *comm, tsr_error *err)
{
    const bad_boxes *bad = arg;
    const tsr_host host = live_host(NULL);
    const uint64_t shape[] = {6, 2}, offsets[] = {bad->first[comm->rank], 0}, sizes[] = {bad->rows[comm->rank], 2};
    const tsr_tensor_part part = {offsets, sizes, NULL};
    const tsr_tensor boxes = tsr_tensor_in_boxes(TSR_FLOAT32, 2, shape, &part, 1);
    tsr_state_dict *in, *out;
    const tsr_value *value;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_new(&host, &in, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(tsr_state_dict_allocate(in, &boxes, &value, err));
    TSR_TRY(tsr_state_dict_put(in, TSR_STR("s"), value, err));
    tsr_status status = tsr_state_dict_gather(tsr_state_dict_root(in), comm, NULL, out, &told);
    status = expect_told(status, &told, bad->message, comm, err);
    tsr_state_dict_free(in);
    tsr_state_dict_free(out);
    return status;
}

static void test_statedict_redistribute__boxes_must_tile(void **state)
{
    (void)state;
    static const bad_boxes table[] = {{{0, 2}, {3, 4}, "boxes of ranks 0 and 1 overlap"},
                                      {{0, 4}, {3, 2}, "2 elements are not in any rank's box"},
                                      {{0, 0}, {6, 6}, "boxes of ranks 0 and 1 overlap"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) live_run(2, gather_boxes, (void *)&table[i]);
}

/* A mesh whose size differs from the communicator's, a partial tensor, and a tensor without memory. */
static tsr_status gather_misfit(void *arg, tsr_comm *comm, tsr_error *err)
{
    const char *what = arg;
    const tsr_host host = live_host(NULL);
    const uint64_t shape[] = {4}, ranks[] = {strcmp(what, "mesh") == 0 ? 5 : comm->size};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement placement = {strcmp(what, "partial") == 0 ? TSR_PARTIAL : TSR_SHARD, 0, 0};
    tsr_tensor tensor = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 1, shape, NULL), &mesh, &placement, comm->rank);
    tsr_state_dict *in, *out;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_new(&host, &in, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    const tsr_value leaf = {.kind = TSR_VALUE_TENSOR, .as.tensor = &tensor.entry};
    TSR_TRY(tsr_state_dict_put(in, TSR_STR("t"), &leaf, err));
    const tsr_status status = tsr_state_dict_gather(tsr_state_dict_root(in), comm, NULL, out, &told);
    tsr_state_dict_free(in);
    tsr_state_dict_free(out);
    NEED(status == (strcmp(what, "partial") == 0 ? TSR_E_UNSUPPORTED : TSR_E_USAGE));
    NEED(strstr(told.message, strcmp(what, "mesh") == 0      ? "of a mesh of 5"
                              : strcmp(what, "partial") == 0 ? "is partial"
                                                             : "has no memory"));
    return TSR_OK;
}

static void test_statedict_redistribute__misfits_are_refused(void **state)
{
    (void)state;
    live_run(2, gather_misfit, (void *)"mesh");
    live_run(2, gather_misfit, (void *)"partial");
    live_run(2, gather_misfit, (void *)"memory");
}

/* ---- memory ---- */

enum { WIDE = 48, ROWS = 4096, COLUMNS = 16, ROUND = 100000 };

static tsr_status make_wide(tsr_comm *comm, tsr_state_dict *dict, bool full, tsr_error *err)
{
    const uint64_t shape[] = {ROWS, COLUMNS}, ranks[] = {comm->size};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement columns = {TSR_SHARD, 1, 0};
    tsr_tensor tensor = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, &columns, comm->rank);
    if (full) tensor.spread = TSR_WHOLE;
    char name[16];
    for (int i = 0; i < WIDE; i++) {
        const tsr_value *value;
        snprintf(name, sizeof name, "w%d", i);
        TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
        TSR_TRY(tsr_state_dict_put(dict, tsr_str_from(name), value, err));
    }
    return TSR_OK;
}

/* Apart from the result: round_bytes in each direction, and 2 KiB per tensor and rank. */
static tsr_status bounded(const live_meter *meter, const tsr_state_dict *out, tsr_comm *comm, tsr_error *err)
{
    NEED(meter->most <= tsr_state_dict_owned(out) + 2 * ROUND + 2048 * WIDE * (comm->size + 1));
    return TSR_OK;
}

static tsr_status gather_bounded(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    live_meter meter;
    live_meter_open(&meter);
    const tsr_host free_host = live_host(NULL), host = live_host(&meter.base);
    const uint32_t root[] = {0};
    const tsr_gather_options all = {.round_bytes = ROUND};
    const tsr_gather_options to_root = {.ranks_only = root, .ranks_only_count = 1, .round_bytes = ROUND};
    tsr_state_dict *in;
    TSR_TRY(tsr_state_dict_new(&free_host, &in, err));
    TSR_TRY(make_wide(comm, in, false, err));
    for (int i = 0; i < 2; i++) {
        tsr_state_dict *out;
        TSR_TRY(tsr_state_dict_new(&host, &out, err));
        TSR_TRY(tsr_state_dict_gather(tsr_state_dict_root(in), comm, i ? &to_root : &all, out, err));
        NEED(tsr_state_dict_owned(out) == (i == 0 || comm->rank == 0 ? (uint64_t)WIDE * ROWS * COLUMNS * 4 : 0));
        TSR_TRY(bounded(&meter, out, comm, err));
        tsr_state_dict_free(out);
        NEED(meter.now == 0);
        meter.most = 0;
    }
    tsr_state_dict_free(in);
    return TSR_OK;
}

static tsr_status broadcast_bounded(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    live_meter meter;
    live_meter_open(&meter);
    const tsr_host free_host = live_host(NULL), host = live_host(&meter.base);
    const tsr_broadcast_options options = {.round_bytes = ROUND};
    tsr_state_dict *full, *local, *out;
    TSR_TRY(tsr_state_dict_new(&free_host, &full, err));
    TSR_TRY(tsr_state_dict_new(&free_host, &local, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(make_wide(comm, local, false, err));
    if (comm->rank == 0) TSR_TRY(make_wide(comm, full, true, err));
    TSR_TRY(tsr_state_dict_broadcast(tsr_state_dict_root(full), tsr_state_dict_root(local), comm, &options, out, err));
    NEED(tsr_state_dict_owned(out) == 0);
    TSR_TRY(bounded(&meter, out, comm, err));
    tsr_state_dict_free(out);
    tsr_state_dict_free(full);
    tsr_state_dict_free(local);
    return TSR_OK;
}

static void test_statedict_redistribute__memory_is_bounded(void **state)
{
    (void)state;
    ranks_run(gather_bounded, NULL);
    ranks_run(broadcast_bounded, NULL);
}

/* ---- a rank without memory ---- */

typedef struct starving {
    uint32_t nth; /* number of the allocation that fails */
    bool ended;   /* whether no allocation was left to fail */
    int op;
} starving;

static tsr_status starve(void *arg, tsr_comm *comm, tsr_error *err)
{
    starving *s = arg;
    failing_allocator own;
    failing_start(&own, SIZE_MAX);
    const tsr_host free_host = live_host(NULL), host = live_host(&own.allocator);
    tsr_state_dict *in, *out = NULL, *full;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_new(&free_host, &in, err));
    TSR_TRY(tsr_state_dict_new(&free_host, &full, err));
    TSR_TRY(make_state("", comm, in, err));
    if (comm->rank == 0) { /* whole tensors with the same names */
        const uint64_t shape[] = {6, 4};
        const tsr_tensor tensor = tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL);
        const tsr_value *value;
        TSR_TRY(tsr_state_dict_allocate(full, &tensor, &value, err));
        memset(tsr_tensor_of(value)->data, 7, 96);
        TSR_TRY(tsr_state_dict_put(full, TSR_STR("a"), value, err));
    }
    tsr_status status = TSR_E_NOMEM;
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    if (comm->rank == 1) failing_after(&own, s->nth);
    if (s->op == 0) status = tsr_state_dict_gather(tsr_state_dict_root(in), comm, NULL, out, &told);
    else if (s->op == 1)
        status = tsr_state_dict_broadcast(tsr_state_dict_root(full), tsr_state_dict_root(in), comm, NULL, out, &told);
    else status = tsr_state_dict_create(tsr_state_dict_root(in), &(tsr_create_options){.share = comm}, out, &told);
    failing_after(&own, SIZE_MAX);
    uint64_t failed = own.failed;
    tsr_state_dict_free(out);
    tsr_state_dict_free(full);
    tsr_state_dict_free(in);
    TSR_TRY(comm->largest(comm, &failed, err));
    if (comm->rank == 0) s->ended = !failed;
    NEED(failed ? status == TSR_E_NOMEM : status == TSR_OK);
    return tsr_comm_barrier(comm, err);
}

static void test_statedict_redistribute__no_memory_on_one_rank(void **state)
{
    (void)state;
    for (int op = 0; op < 3; op++) {
        starving s = {.op = op};
        for (s.nth = 0; !s.ended && s.nth < 1000; s.nth++) {
            tsr_error err = {0};
            if (live_try(2, starve, &s, &err) != TSR_OK) fail_msg("operation %d, allocation %u: %s", op, s.nth, err.message);
            if (ranks_count(0)) break; /* processes do not see rank 0's flag, so they test one point */
        }
        assert_true(s.nth > 3 || ranks_count(0));
    }
}

/* ---- replicas that differ ---- */

/* As with PyTorch's collectives, which run along the dims that cut, each rank gets the replica at its own place. */
static tsr_status own_replica(void *arg, tsr_comm *comm, tsr_error *err)
{
    static const uint64_t mesh_shape[2] = {2, 2}, shape[1] = {4};
    static const tsr_str names[2] = {{"a", 1}, {"b", 1}};
    static const tsr_mesh mesh = {2, mesh_shape, names};
    static const tsr_placement rows[2] = {{.kind = TSR_REPLICATE}, {.kind = TSR_SHARD}};
    static const tsr_placement whole[2] = {{.kind = TSR_REPLICATE}, {.kind = TSR_REPLICATE}};
    const tsr_host host = live_host(NULL);
    const float rank = (float)comm->rank, low = (float)(comm->rank & ~1u), high = (float)(comm->rank | 1u);
    float mine[2] = {10 * rank, 10 * rank + 1}, all[4] = {0};
    const tsr_tensor from = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 1, shape, mine), &mesh, rows, comm->rank);
    const tsr_tensor to = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 1, shape, all), &mesh, whole, comm->rank);
    const tsr_move move = {&from, &to};
    (void)arg;
    TSR_TRY(tsr_redistribute(comm, &move, 1, 0, &host, err));
    NEED(all[0] == 10 * low && all[1] == 10 * low + 1 && all[2] == 10 * high && all[3] == 10 * high + 1);
    return TSR_OK;
}

static void test_statedict_redistribute__replicas_that_differ_stay_apart(void **state)
{
    (void)state;
    assert_true(live_run(4, own_replica, NULL) || ranks_count(4) < 4);
}

/* Rows to columns of a matrix that is large enough for memory that the ranks share; element (r, c) is r << 16 | c. */
typedef struct matrix_move {
    uint64_t side; /* a multiple of the ranks */
    size_t round_bytes;
} matrix_move;

static tsr_status move_matrix(const matrix_move *m, tsr_comm *comm, tsr_error *err)
{
    const uint64_t ranks = comm->size, shape[2] = {m->side, m->side}, own = m->side / ranks;
    const tsr_str name = {NULL, 0};
    const tsr_mesh mesh = {1, &ranks, &name};
    const tsr_placement rows = {.kind = TSR_SHARD}, columns = {.kind = TSR_SHARD, .dim = 1};
    const tsr_host host = live_host(NULL);
    uint32_t *from = malloc(own * m->side * 4 + 4), *to = malloc(own * m->side * 4 + 4);
    NEED(from && to);
    for (uint64_t i = 0; i < own * m->side; i++) from[i] = (uint32_t)((comm->rank * own + i / m->side) << 16 | i % m->side);
    memset(to, 0xff, own * m->side * 4);
    const tsr_tensor source = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_INT32, 2, shape, from), &mesh, &rows, comm->rank);
    const tsr_tensor target = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_INT32, 2, shape, to), &mesh, &columns, comm->rank);
    const tsr_move move = {&source, &target};
    tsr_status status = tsr_redistribute(comm, &move, 1, m->round_bytes, &host, err);
    bool right = true;
    for (uint64_t i = 0; i < own * m->side && status == TSR_OK; i++)
        right = right && to[i] == (uint32_t)(i / own << 16 | (comm->rank * own + i % own));
    free(from);
    free(to);
    TSR_TRY(status);
    NEED(right);
    return TSR_OK;
}

/* The memory that ranks exchange data through is made once, and again only for another size; groups have their own. */
static tsr_status keep_memory(void *arg, tsr_comm *comm, tsr_error *err)
{
    const matrix_move large = {512 * comm->size, 0}, little = {16 * comm->size, 0}, narrow = {64 * comm->size, 4096};
    const matrix_move *turns[] = {&large, &large, &little, &narrow, &narrow, &large};
    const tsr_comm_kept *last = NULL;
    tsr_comm *group;
    (void)arg;
    NEED(comm->kept && !*comm->kept);
    for (int i = 0; i < 6; i++) {
        TSR_TRY(move_matrix(turns[i], comm, err));
        const tsr_comm_kept *now = *comm->kept;
        uint64_t here = now != NULL;
        TSR_TRY(comm->largest(comm, &here, err));
        if (here) NEED(now); /* on all ranks or, where they do not share memory, on none */
        if (i == 1 || i == 2 || i == 4) NEED(now == last);
        last = now;
    }
    TSR_TRY(comm->split(comm, comm->rank / 2, comm->rank, &group, err));
    const tsr_status status = move_matrix(&(matrix_move){1024, 0}, group, err);
    const bool own_memory = !*group->kept || *group->kept != *comm->kept;
    group->close(group);
    TSR_TRY(status);
    NEED(own_memory && *comm->kept == last);
    return move_matrix(&large, comm, err);
}

static void test_statedict_redistribute__shared_memory_is_kept(void **state)
{
    static const uint32_t counts[] = {2, 3, 4};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        assert_true(live_run(counts[i], keep_memory, NULL) || ranks_count(counts[i]) < counts[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_redistribute__every_element_arrives),
        cmocka_unit_test(test_statedict_redistribute__disagreement_is_named_everywhere),
        cmocka_unit_test(test_statedict_redistribute__boxes_must_tile),
        cmocka_unit_test(test_statedict_redistribute__misfits_are_refused),
        cmocka_unit_test(test_statedict_redistribute__memory_is_bounded),
        cmocka_unit_test(test_statedict_redistribute__no_memory_on_one_rank),
        cmocka_unit_test(test_statedict_redistribute__replicas_that_differ_stay_apart),
        cmocka_unit_test(test_statedict_redistribute__shared_memory_is_kept),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
