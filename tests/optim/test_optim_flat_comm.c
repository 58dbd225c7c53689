/* Flat parameters between ranks that are threads: slices and the whole, keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants these before it */
#include <cmocka.h>

#include "tessera/comm_threads.h"
#include "tessera/flat_params.h"

#define NEED(condition) \
    do { \
        if (!(condition)) return tsr_raise(err, TSR_E_LIMIT, TSR_NO_POSITION, "rank %u: %s", comm->rank, #condition); \
    } while (0)

/* Slices of 0, 1, 2, … come together in order; rank 0's whole goes out again, padded with zeros. */
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
        tsr_status status = tsr_flat_gather(comm, &unit, 2, slice, full, arg, err);
        if (status == TSR_OK) status = tsr_flat_scatter(comm, &unit, 2, source, again, arg, err);
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

static const tsr_str all_names[] = {{"b", 1}, {"a\0x", 3}, {"c", 1}, {"", 0}};

/* Rank r has the names up to r + 1, rank 0 all with `merge` false. */
static tsr_status merged(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_str *keys;
    size_t count;
    tsr_arena *arena = tsr_arena_new(arg, 0, err);
    tsr_status status = tsr_flat_agree_on_keys(comm, all_names, comm->rank + 1, true, arg, arena, &keys, &count, err);
    bool right = status == TSR_OK && count == 4 && tsr_str_equal(keys[0], all_names[3]) &&
                 tsr_str_equal(keys[1], all_names[1]) && tsr_str_equal(keys[2], all_names[0]) &&
                 tsr_str_equal(keys[3], all_names[2]);
    if (right) status = tsr_flat_agree_on_keys(comm, all_names, 4, false, arg, arena, &keys, &count, err);
    right = right && status == TSR_OK && count == 4 && tsr_str_equal(keys[0], all_names[0]);
    tsr_arena_free(arena);
    if (status != TSR_OK) return status;
    NEED(right);
    return TSR_OK;
}

static tsr_status missing(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_str *keys;
    size_t count;
    tsr_arena *arena = tsr_arena_new(arg, 0, err);
    tsr_status status =
        tsr_flat_agree_on_keys(comm, all_names, comm->rank == 2 ? 2 : 4, false, arg, arena, &keys, &count, err);
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
        cmocka_unit_test(test_optim_flat_comm__B8_keys_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
