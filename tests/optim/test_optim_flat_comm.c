/* Flat parameters on ranks that are threads: slices, the whole, and keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/comm_threads.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/optimizer.h"

#define NEED(condition) \
    do { \
        if (!(condition)) return tsr_raise(err, TSR_E_LIMIT, TSR_NO_POSITION, "rank %u: %s", comm->rank, #condition); \
    } while (0)

/* Gathers slices of 0, 1, 2, … elements in order; then scatters rank 0's whole again, padded with zeros. */
static tsr_status there_and_back(void *arg, tsr_comm *comm, tsr_error *err)
{
    for (uint64_t numel = 0; numel < 40; numel++) {
        const tsr_flat_unit unit = {.numel = numel, .is_sharded = true};
        uint16_t slice[40], again[40], full[40], source[40];
        uint64_t begin, end, length = tsr_flat_shard_numel(&unit, comm->size);
        tsr_flat_shard_range(&unit, comm->size, comm->rank, &begin, &end);
        for (uint64_t i = 0; i < length; i++) slice[i] = begin + i < end ? (uint16_t)(begin + i + 1) : 0;
        for (uint64_t i = 0; i < numel; i++) source[i] = comm->rank ? 9999 : (uint16_t)(i + 1);
        memset(again, 0x55, sizeof again);
        tsr_status status = tsr_flat_gather((tsr_ranks){comm, arg}, &unit, 2, slice, full, err);
        if (status == TSR_OK) status = tsr_flat_scatter((tsr_ranks){comm, arg}, &unit, 2, source, again, err);
        if (status != TSR_OK) return status;
        for (uint64_t i = 0; i < numel; i++) NEED(full[i] == i + 1);
        NEED(memcmp(slice, again, (size_t)length * 2) == 0);
    }
    return TSR_OK;
}

static void test_optim_flat_comm__B2_slices_and_the_whole(void **state)
{
    (void)state;
    for (uint32_t world = 1; world < 8; world++) {
        tsr_error err = {0};
        if (tsr_comm_threads_run(&tsr_allocator_libc, world, there_and_back, (void *)&tsr_allocator_libc, &err) != TSR_OK)
            fail_msg("%s", err.message);
    }
}

/* A unit with three originals. The value of every element is its flat position plus one; that of padding is 9999. */
static const uint64_t shapes[][2] = {{5, 3}, {7, 1}, {2, 4}};
static const tsr_flat_param originals[] = {
    {.fqn = {"a", 1}, .ndim = 2, .shape = shapes[0], .flat_begin = 0, .flat_end = 15},
    {.fqn = {"b", 1}, .ndim = 2, .shape = shapes[1], .flat_begin = 16, .flat_end = 23},
    {.fqn = {"c", 1}, .ndim = 2, .shape = shapes[2], .flat_begin = 23, .flat_end = 31},
};
static const tsr_flat_unit unit = {.params = originals, .param_count = 3, .numel = 31, .is_sharded = true};

static tsr_status rows_of_one(const tsr_flat_param *p, uint32_t index, tsr_comm *comm, const uint16_t *slice,
                              uint16_t *again, const tsr_allocator *allocator, tsr_error *err)
{
    uint16_t rows[31] = {0}, full[31];
    uint64_t begin, end, row = p->shape[1];
    tsr_rows_of_rank(p->shape[0], comm->size, comm->rank, true, &begin, &end);
    tsr_status status =
        tsr_flat_to_rows((tsr_ranks){comm, allocator}, &(tsr_unit_original){&unit, index, 2}, slice, rows, err);
    if (status == TSR_OK)
        status = tsr_rows_to_flat((tsr_ranks){comm, allocator}, &(tsr_unit_original){&unit, index, 2}, rows, again, err);
    if (status == TSR_OK) status = tsr_rows_gather((tsr_ranks){comm, allocator}, p->shape[0], row * 2, rows, full, err);
    if (status != TSR_OK) return status;
    for (uint64_t i = 0; i < (end - begin) * row; i++) NEED(rows[i] == p->flat_begin + begin * row + i + 1);
    for (uint64_t i = 0; i < p->shape[0] * row; i++) NEED(full[i] == p->flat_begin + i + 1);
    return TSR_OK;
}

static tsr_status flat_and_rows(void *arg, tsr_comm *comm, tsr_error *err)
{
    uint16_t slice[31], again[31];
    uint64_t begin, end, length = tsr_flat_shard_numel(&unit, comm->size);
    tsr_flat_shard_range(&unit, comm->size, comm->rank, &begin, &end);
    for (uint64_t i = 0; i < length; i++) {
        bool padding = begin + i >= end || begin + i == 15;
        slice[i] = padding ? 9999 : (uint16_t)(begin + i + 1);
        again[i] = 9999;
    }
    for (uint32_t p = 0; p < 3; p++) {
        tsr_status status = rows_of_one(&originals[p], p, comm, slice, again, arg, err);
        if (status != TSR_OK) return status;
    }
    NEED(memcmp(slice, again, (size_t)length * 2) == 0);
    const tsr_flat_param scalar = {.fqn = {"s", 1}, .flat_end = 1};
    const tsr_flat_unit alone = {.params = &scalar, .param_count = 1, .numel = 1, .is_sharded = true};
    NEED(tsr_flat_to_rows((tsr_ranks){comm, arg}, &(tsr_unit_original){&alone, 0, 2}, slice, again, NULL) ==
         TSR_E_UNSUPPORTED);
    return TSR_OK;
}

static void test_optim_flat_comm__B13_slices_and_rows(void **state)
{
    (void)state;
    for (uint32_t world = 1; world < 9; world++) {
        tsr_error err = {0};
        if (tsr_comm_threads_run(&tsr_allocator_libc, world, flat_and_rows, (void *)&tsr_allocator_libc, &err) != TSR_OK)
            fail_msg("%s", err.message);
    }
}

static const tsr_str all_names[] = {{"b", 1}, {"a\0x", 3}, {"c", 1}, {"", 0}};

/* Rank r has the names up to r + 1; with `merge` false, rank 0 has all of them. */
static tsr_status merged(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_name_list keys = {0};
    tsr_arena *arena = tsr_arena_new(arg, 0, err);
    tsr_status status =
        tsr_flat_agree_on_keys((tsr_ranks){comm, arg}, (tsr_name_list){all_names, comm->rank + 1}, true, arena, &keys, err);
    bool right = status == TSR_OK && keys.count == 4 && tsr_str_equal(keys.names[0], all_names[3]) &&
                 tsr_str_equal(keys.names[1], all_names[1]) && tsr_str_equal(keys.names[2], all_names[0]) &&
                 tsr_str_equal(keys.names[3], all_names[2]);
    if (right)
        status = tsr_flat_agree_on_keys((tsr_ranks){comm, arg}, (tsr_name_list){all_names, 4}, false, arena, &keys, err);
    right = right && status == TSR_OK && keys.count == 4 && tsr_str_equal(keys.names[0], all_names[0]);
    tsr_arena_free(arena);
    if (status != TSR_OK) return status;
    NEED(right);
    return TSR_OK;
}

static tsr_status missing(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_name_list keys = {0};
    tsr_arena *arena = tsr_arena_new(arg, 0, err);
    tsr_status status = tsr_flat_agree_on_keys((tsr_ranks){comm, arg}, (tsr_name_list){all_names, comm->rank == 2 ? 2 : 4},
                                               false, arena, &keys, err);
    tsr_arena_free(arena);
    NEED(status == TSR_E_FORMAT);
    return status;
}

static void test_optim_flat_comm__B8_keys_of_all_ranks(void **state)
{
    (void)state;
    tsr_error err = {0};
    if (tsr_comm_threads_run(&tsr_allocator_libc, 4, merged, (void *)&tsr_allocator_libc, &err) != TSR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(tsr_comm_threads_run(&tsr_allocator_libc, 3, missing, (void *)&tsr_allocator_libc, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "optim: rank 2 has no state for 'c', which rank 0 has");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_flat_comm__B2_slices_and_the_whole),
        cmocka_unit_test(test_optim_flat_comm__B13_slices_and_rows),
        cmocka_unit_test(test_optim_flat_comm__B8_keys_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
