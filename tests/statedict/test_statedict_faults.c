/* The operations that all ranks do together, with a rank that fails at any of its calls, is late, or has an allocation that
 * fails: all ranks must return the same status, none may wait forever, and nothing may be left. Also the memory of
 * operations that a rank does alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/comm_call.h"
#include "ramp.h"
#include "support/failing_allocator.h"
#include "support/full_counts.h"
#include "tessera/redistribute.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/statedict.h"

typedef enum operation {
    GATHER,
    BROADCAST,
    SHARE,
    REDISTRIBUTE,
    REDISTRIBUTE_SHARED,
    SAVE,
    LOAD,
    LOAD_OPTIMIZER,
    OPERATIONS
} operation;

/* The input, which is made without faults. */
typedef struct world {
    tsr_host host;
    tsr_comm *comm;
    tsr_state_dict *rows, *columns, *whole, *shared;
    char path[400];
} world;

typedef struct trouble {
    operation what;
    uint32_t rank; /* the rank that fails, counted from the last */
    uint64_t number;
    bool memory; /* true: an allocation fails; false: a call */
    bool reached;
} trouble;

static tsr_status fill_dict(tsr_state_dict *dict, const tsr_comm *comm, int32_t dim, tsr_error *err)
{
    static const char *const names[] = {"a", "b"};
    static const uint64_t shapes[2][2] = {{6, 4}, {33, 70}};
    const uint64_t ranks[] = {comm->size};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement placement = {TSR_SHARD, dim, 0};
    for (int i = 0; i < 2; i++) {
        tsr_tensor tensor =
            tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shapes[i], NULL), &mesh, &placement, comm->rank);
        const tsr_value *value;
        if (dim < 0) tensor.spread = TSR_WHOLE;
        TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
        TSR_TRY(ramp_over(tsr_tensor_of(value), tsr_state_dict_arena(dict), true, NULL, err));
        TSR_TRY(tsr_state_dict_put(dict, tsr_str_from(names[i]), value, err));
    }
    return TSR_OK;
}

static tsr_status open_world(world *w, tsr_comm *comm, tsr_error *err)
{
    tsr_state_dict **dicts[] = {&w->rows, &w->columns, &w->whole, &w->shared};
    const tsr_create_options options = {.share = comm};
    *w = (world){.host = live_host(NULL), .comm = comm};
    for (int i = 0; i < 4; i++) TSR_TRY(tsr_state_dict_new(&w->host, dicts[i], err));
    TSR_TRY(fill_dict(w->rows, comm, 0, err));
    TSR_TRY(fill_dict(w->columns, comm, 1, err));
    TSR_TRY(fill_dict(w->whole, comm, -1, err));
    TSR_TRY(tsr_state_dict_create(tsr_state_dict_root(w->rows), &options, w->shared, err));
    snprintf(w->path, sizeof w->path, "%s/saved", ranks_scratch());
    tsr_state_dict *copied;
    TSR_TRY(tsr_state_dict_new(&w->host, &copied, err));
    TSR_TRY(tsr_state_dict_copy(tsr_state_dict_root(w->rows), tsr_state_dict_root(w->shared), false, copied, err));
    tsr_state_dict_free(copied);
    return TSR_OK;
}

static void close_world(world *w)
{
    tsr_state_dict_free(w->rows);
    tsr_state_dict_free(w->columns);
    tsr_state_dict_free(w->whole);
    tsr_state_dict_free(w->shared);
}

static tsr_status run_operation(const world *w, operation what, tsr_comm *comm, const tsr_host *host, tsr_state_dict *out,
                                tsr_error *err)
{
    const tsr_value *rows = tsr_state_dict_root(w->rows), *columns = tsr_state_dict_root(w->columns);
    const tsr_create_options share = {.share = comm};
    const tsr_save_options replace = {.overwrite = true};
    const tsr_optimizer_target target = {.out = out};
    switch (what) {
    case GATHER: return tsr_state_dict_gather(rows, comm, NULL, out, err);
    case BROADCAST: return tsr_state_dict_broadcast(tsr_state_dict_root(w->whole), columns, comm, NULL, out, err);
    case SHARE: return tsr_state_dict_create(rows, &share, out, err);
    case REDISTRIBUTE: return tsr_state_dict_redistribute(rows, columns, comm, 300, host, err);
    case REDISTRIBUTE_SHARED:
        return tsr_state_dict_redistribute(tsr_state_dict_root(w->shared), columns, comm, 0, host, err);
    case SAVE: return tsr_state_dict_save(rows, comm, w->path, &replace, host, err);
    case LOAD_OPTIMIZER: return tsr_optimizer_state_load(w->path, TSR_STR("b"), rows, comm, &target, err);
    default: return tsr_state_dict_load(w->path, columns, comm, NULL, out, err);
    }
}

/* Whether unpublished outputs or journals are left. */
static bool left_behind(void)
{
    DIR *directory = opendir(ranks_scratch());
    bool found = false;
    for (struct dirent *item; directory && (item = readdir(directory));) found = found || strstr(item->d_name, ".tessera-");
    if (directory) closedir(directory);
    return found;
}

static tsr_status check_result(const world *w, operation what, const tsr_state_dict *out, tsr_comm *comm, tsr_error *err)
{
    const bool into_columns = what == BROADCAST || what == REDISTRIBUTE || what == REDISTRIBUTE_SHARED || what == LOAD;
    const tsr_value *made = into_columns ? tsr_state_dict_root(w->columns) : tsr_state_dict_root(out);
    bool right = true;
    if (what == SHARE || what == SAVE) return TSR_OK;
    for (size_t i = 1; i < made->count; i += 2)
        TSR_TRY(ramp_over(tsr_tensor_of(made->items[i]), tsr_state_dict_arena(w->rows), false, &right, err));
    NEED(right);
    return TSR_OK;
}

static void forget_columns(const world *w)
{
    const tsr_value *root = tsr_state_dict_root(w->columns);
    tsr_error ignored = {0};
    uint64_t bytes;
    for (size_t i = 1; i < root->count; i += 2) {
        const tsr_tensor *tensor = tsr_tensor_of(root->items[i]);
        if (tsr_tensor_held(tensor, tsr_state_dict_arena(w->columns), &bytes, &ignored) == TSR_OK && bytes)
            memset(tensor->data, 0x55, (size_t)bytes);
    }
}

/* Runs the operation over a communicator of its own, which may be unusable afterwards. */
static tsr_status run_spoiled(const world *w, operation what, tsr_faults *faults, failing_allocator *own, size_t successes,
                              tsr_status *told, tsr_error *err)
{
    const tsr_host host = live_host(&own->allocator);
    tsr_comm *inner, *spoiled;
    tsr_state_dict *out;
    tsr_error message = {0};
    TSR_TRY(w->comm->split(w->comm, 0, w->comm->rank, &inner, err));
    TSR_TRY(tsr_comm_faulty(inner, faults, &tsr_allocator_libc, &spoiled, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    forget_columns(w);
    failing_after(own, successes);
    *told = run_operation(w, what, spoiled, &host, out, &message);
    failing_after(own, SIZE_MAX);
    tsr_status status = *told == TSR_OK ? check_result(w, what, out, w->comm, err) : TSR_OK;
    tsr_state_dict_free(out);
    spoiled->close(spoiled);
    if (*told != TSR_OK && !*message.message) status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "no message");
    return status;
}

static tsr_status agree_on(tsr_comm *comm, tsr_status told, tsr_error *err)
{
    uint64_t most = (uint64_t)told, least = ~most;
    TSR_TRY(comm->largest(comm, &most, err));
    TSR_TRY(comm->largest(comm, &least, err));
    NEED(most == ~least);
    return TSR_OK;
}

static tsr_status run_trouble(void *arg, tsr_comm *comm, tsr_error *err)
{
    trouble *t = arg;
    world w;
    tsr_status told;
    const uint32_t odd = (t->rank + comm->size - 1) % comm->size;
    const tsr_fault fault = {TSR_FAULT_FAIL, odd, t->number - 1, false};
    tsr_faults faults = {.list = &fault, .count = !t->memory};
    failing_allocator own;
    failing_start(&own, SIZE_MAX);
    TSR_TRY(open_world(&w, comm, err));
    if (t->what == LOAD || t->what == LOAD_OPTIMIZER) {
        const tsr_save_options replace = {.overwrite = true};
        TSR_TRY(tsr_state_dict_save(tsr_state_dict_root(w.rows), comm, w.path, &replace, &w.host, err));
    }
    const size_t successes = t->memory && comm->rank == odd ? (size_t)t->number - 1 : SIZE_MAX;
    TSR_TRY(run_spoiled(&w, t->what, &faults, &own, successes, &told, err));
    uint64_t reached = t->memory ? own.failed : faults.calls > fault.call;
    if (!t->memory && comm->rank != odd) reached = 0;
    TSR_TRY(comm->largest(comm, &reached, err));
    if (comm->rank == 0 || ranks_count(0)) t->reached = reached;
    TSR_TRY(agree_on(comm, told, err));
    /* Without memory to share, ranks use messages. A failure after a save was published does not undo the save. */
    const bool other_way = t->memory && (t->what == REDISTRIBUTE || t->what == SAVE);
    NEED(told == (!reached ? TSR_OK : t->memory ? TSR_E_NOMEM : TSR_E_IO) || (other_way && told == TSR_OK));
    NEED(own.live == 0);
    NEED(comm->rank != 0 || !left_behind());
    close_world(&w);
    return tsr_comm_barrier(comm, err);
}

/* There are hundreds of allocations. Threads, and two or three processes, test many of them and every call. With more
 * processes, where each point costs far more, the ordinary run tests only a selection. */
static uint64_t step_between_points(bool memory)
{
    const bool many = ranks_count(0) > 3;
    if (full_counts()) return 1;
    return memory ? (many ? 23 : 5) : (many ? 4 : 1);
}

static void run_all(bool memory)
{
    const uint64_t step = step_between_points(memory);
    for (int what = 0; what < OPERATIONS; what++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            trouble t = {.what = (operation)what, .rank = rank, .memory = memory, .reached = true};
            for (t.number = 1; t.reached && t.number < 20000; t.number += step) {
                tsr_error err = {0};
                if (ranks_try(3, run_trouble, &t, &err) != TSR_OK)
                    fail_msg("operation %d, %s %u, rank %u from behind: %s", what, memory ? "allocation" : "call",
                             (unsigned)t.number, (unsigned)rank, err.message);
            }
            assert_true(!t.reached && t.number > 2); /* the last point was not reached, but one before it was */
        }
    }
}

static void test_statedict_faults__a_failure_at_every_call_is_told_to_all(void **state)
{
    (void)state;
    run_all(false);
}

static void test_statedict_faults__no_memory_at_any_allocation_is_told_to_all(void **state)
{
    (void)state;
    run_all(true);
}

static tsr_status run_late(void *arg, tsr_comm *comm, tsr_error *err)
{
    const uint64_t *seed = arg;
    world w;
    tsr_status told;
    failing_allocator own;
    failing_start(&own, SIZE_MAX);
    TSR_TRY(open_world(&w, comm, err));
    for (int what = 0; what < OPERATIONS; what++) {
        tsr_faults faults = {.delay_seed = *seed, .delay_microseconds = 2000};
        TSR_TRY(run_spoiled(&w, (operation)what, &faults, &own, SIZE_MAX, &told, err));
        NEED(told == TSR_OK);
    }
    NEED(own.live == 0);
    close_world(&w);
    return tsr_comm_barrier(comm, err);
}

static void test_statedict_faults__late_ranks_change_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) ranks_run(run_late, &seed);
}

/* ---- what a rank does alone ---- */

enum { MANY = 40, A_TENSOR = 2048 };

static tsr_status keep(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                       const tsr_tensor **result, tsr_error *err)
{
    (void)ctx;
    (void)companion;
    (void)out;
    (void)err;
    *result = tensor;
    return TSR_OK;
}

static tsr_status make_many(tsr_state_dict *dict, const tsr_comm *comm, bool whole, bool meta, tsr_error *err)
{
    const uint64_t shape[] = {512, 64}, ranks[] = {comm->size};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement columns = {TSR_SHARD, 1, 0};
    tsr_tensor tensor = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, &columns, comm->rank);
    if (whole) tensor.spread = TSR_WHOLE;
    tensor.meta = meta;
    char name[16];
    for (int i = 0; i < MANY; i++) {
        const tsr_value *value;
        snprintf(name, sizeof name, "w%d", i);
        if (meta) TSR_TRY(tsr_state_dict_tensor(dict, &tensor, &value, err));
        else TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
        if (!meta) TSR_TRY(ramp_over(tsr_tensor_of(value), tsr_state_dict_arena(dict), true, NULL, err));
        TSR_TRY(tsr_state_dict_put(dict, tsr_str_from(name), value, err));
    }
    return TSR_OK;
}

/* D1, D3, D4, D5, D6 and D8: apart from the result, they use a few hundred bytes per tensor. */
static tsr_status run_alone(void *arg, tsr_comm *comm, tsr_error *err)
{
    const int row = *(const int *)arg;
    live_meter meter;
    live_meter_open(&meter);
    const tsr_host free_host = live_host(NULL), host = live_host(&meter.base);
    tsr_state_dict *state, *other, *out;
    TSR_TRY(tsr_state_dict_new(&free_host, &state, err));
    TSR_TRY(tsr_state_dict_new(&free_host, &other, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(make_many(state, comm, row == 8, false, err));
    TSR_TRY(make_many(other, comm, false, row == 8, err));
    const tsr_value *from = tsr_state_dict_root(state), *to = tsr_state_dict_root(other);
    const tsr_iterate how = {.whole = keep, .over_mesh = keep, .comm = comm};
    bool same = true;
    switch (row) {
    case 1: TSR_TRY(tsr_state_dict_iterate(from, &how, out, err)); break;
    case 3: TSR_TRY(tsr_state_dict_offload(from, comm, NULL, out, err)); break;
    case 4: TSR_TRY(tsr_state_dict_copy(from, to, false, out, err)); break;
    case 5: TSR_TRY(tsr_state_dict_create(from, NULL, out, err)); break;
    case 6: TSR_TRY(tsr_state_dict_similar(from, to, &host, &same, NULL, err)); break;
    default: TSR_TRY(tsr_state_dict_distribute(from, to, out, err)); break;
    }
    const uint64_t part = 512 * 64 * 4 / comm->size;
    NEED(same);
    NEED(meter.most <= tsr_state_dict_owned(out) + MANY * A_TENSOR);
    if (row != 5 && row != 8) NEED(tsr_state_dict_owned(out) == 0);
    else if (64 % comm->size == 0) NEED(tsr_state_dict_owned(out) == MANY * part);
    tsr_state_dict_free(out);
    NEED(meter.now == 0);
    tsr_state_dict_free(other);
    tsr_state_dict_free(state);
    return TSR_OK;
}

static void test_statedict_faults__memory_of_what_a_rank_does_alone_is_bounded(void **state)
{
    (void)state;
    static const int rows[] = {1, 3, 4, 5, 6, 8};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) ranks_run(run_alone, (void *)&rows[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_faults__a_failure_at_every_call_is_told_to_all),
        cmocka_unit_test(test_statedict_faults__no_memory_at_any_allocation_is_told_to_all),
        cmocka_unit_test(test_statedict_faults__late_ranks_change_nothing),
        cmocka_unit_test(test_statedict_faults__memory_of_what_a_rank_does_alone_is_bounded),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
