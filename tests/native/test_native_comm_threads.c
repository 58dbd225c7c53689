/* Collectives over simulated ranks, and over one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants these before it */
#include <cmocka.h>
#include <stdio.h>

#include "tessera/comm_threads.h"

#define NEED(condition) \
    do { \
        if (!(condition)) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u: %s", comm->rank, #condition); \
    } while (0)

static const uint32_t worlds[] = {1, 2, 3, 8};

static void over_all_worlds(tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err))
{
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        tsr_error err = {0};
        if (tsr_comm_threads_run(&tsr_allocator_libc, worlds[i], body, NULL, &err) != TSR_OK)
            fail_msg("%u ranks: %s", worlds[i], err.message);
    }
    tsr_comm *self;
    tsr_error err = {0};
    assert_int_equal(tsr_comm_self(&tsr_allocator_libc, &self, &err), TSR_OK);
    if (body(NULL, self, &err) != TSR_OK) fail_msg("self: %s", err.message);
    self->close(self);
}

/* Rank r gives r + 1 bytes of value r, rank 1 none. */
static tsr_status gather_uneven(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    char mine[8], all[64];
    size_t sizes[8];
    memset(mine, (int)comm->rank, sizeof mine);
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t r = 0; r < comm->size; r++) sizes[r] = r == 1 ? 0 : (r + round) % 8 + 1;
        tsr_status status = comm->all_gather(comm, mine, sizes, all, err);
        if (status != TSR_OK) return status;
        size_t at = 0;
        for (uint32_t r = 0; r < comm->size; r++) {
            for (size_t i = 0; i < sizes[r]; i++) NEED(all[at++] == (char)r);
        }
    }
    return TSR_OK;
}

static void test_native_comm_threads__all_gather(void **state)
{
    (void)state;
    over_all_worlds(gather_uneven);
}

static tsr_status blobs_and_broadcast(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    char text[32];
    tsr_comm_blobs blobs;
    int length = snprintf(text, sizeof text, "%.*s", (int)comm->rank * 3, "abcdefghijklmnopqrstuvwxyz");
    tsr_status status = tsr_comm_gather_blobs(comm, (tsr_str){text, (size_t)length}, &tsr_allocator_libc, &blobs, err);
    if (status != TSR_OK) return status;
    bool right = true;
    for (uint32_t r = 0; r < comm->size; r++)
        right =
            right && blobs.blobs[r].size == 3 * r && tsr_str_starts(TSR_STR("abcdefghijklmnopqrstuvwxyz"), blobs.blobs[r]);
    tsr_comm_blobs_free(&blobs);
    NEED(right);
    for (uint32_t root = 0; root < comm->size; root++) {
        uint64_t value = comm->rank == root ? 77 + root : 0, high = comm->rank * 10;
        status = comm->broadcast(comm, &value, sizeof value, root, err);
        if (status == TSR_OK) status = comm->largest(comm, &high, err);
        if (status != TSR_OK) return status;
        NEED(value == 77 + root);
        NEED(high == (comm->size - 1) * 10);
    }
    return tsr_comm_barrier(comm, err);
}

static void test_native_comm_threads__blobs_broadcast_largest(void **state)
{
    (void)state;
    over_all_worlds(blobs_and_broadcast);
}

/* Everyone sends everyone two messages, of sizes that differ, listed by falling peer. */
static tsr_status all_to_all(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    uint32_t out[16], in[16];
    tsr_message sends[16] = {0}, receives[16] = {0};
    size_t count = 0;
    for (uint32_t p = comm->size; p-- > 0;) {
        for (uint32_t n = 0; n < 2; n++, count++) {
            out[count] = comm->rank * 1000 + p * 10 + n;
            sends[count] = (tsr_message){p, &out[count], n ? 4 : 2};
            receives[count] = (tsr_message){p, &in[count], n ? 4 : 2};
            in[count] = 0;
        }
    }
    tsr_status status = comm->exchange(comm, sends, count, receives, count, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < count; i++) {
        uint32_t want = receives[i].peer * 1000 + comm->rank * 10 + (uint32_t)(i % 2);
        NEED(memcmp(&in[i], &want, receives[i].size) == 0);
    }
    return comm->exchange(comm, NULL, 0, NULL, 0, err);
}

static void test_native_comm_threads__exchange(void **state)
{
    (void)state;
    over_all_worlds(all_to_all);
}

/* ---- failures ---- */

static tsr_status agree_on_failure(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    tsr_status mine = TSR_OK;
    if (comm->rank >= 2) mine = tsr_raise(err, TSR_E_LIMIT, 5, "too much of everything");
    tsr_status agreed = tsr_comm_agree(comm, mine, err);
    bool right =
        agreed == TSR_E_LIMIT && err->byte_position == 5 && strcmp(err->message, "rank 2: too much of everything") == 0;
    *err = (tsr_error){0};
    if (!right) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u was told otherwise", comm->rank);
    return tsr_comm_agree(comm, TSR_OK, err);
}

static void test_native_comm_threads__ranks_agree_on_the_lowest_failure(void **state)
{
    (void)state;
    tsr_error err = {0};
    if (tsr_comm_threads_run(&tsr_allocator_libc, 5, agree_on_failure, NULL, &err) != TSR_OK) fail_msg("%s", err.message);
}

static tsr_status leave_early(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    if (comm->rank == 1) return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "rank 1 gives up");
    return tsr_comm_barrier(comm, err);
}

static tsr_status disagree(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    size_t sizes[] = {comm->rank == 1 ? 2 : 1, 1, 1};
    char data[8];
    return comm->all_gather(comm, "abc", sizes, data, err);
}

static tsr_status other_call(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    uint64_t value = 0;
    return comm->rank == 1 ? comm->largest(comm, &value, err) : comm->broadcast(comm, &value, sizeof value, 0, err);
}

static tsr_status unsent(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    char byte;
    tsr_message want = {0, &byte, 1};
    return comm->exchange(comm, NULL, 0, &want, comm->rank == 2, err);
}

static void test_native_comm_threads__nobody_waits_for_ever(void **state)
{
    (void)state;
    static const struct {
        tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err);
        tsr_status status;
        const char *message;
    } rows[] = {{leave_early, TSR_E_UNSUPPORTED, "rank 1 gives up"},
                {disagree, TSR_E_USAGE, "other sizes"},
                {other_call, TSR_E_USAGE, "another call"},
                {unsent, TSR_E_USAGE, "is not sent"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int round = 0; round < 20; round++) {
            tsr_error err = {0};
            tsr_status status = tsr_comm_threads_run(&tsr_allocator_libc, 3, rows[i].body, NULL, &err);
            if (status != rows[i].status || !strstr(err.message, rows[i].message))
                fail_msg("row %zu: %d, %s", i, status, err.message);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_comm_threads__all_gather),
        cmocka_unit_test(test_native_comm_threads__blobs_broadcast_largest),
        cmocka_unit_test(test_native_comm_threads__exchange),
        cmocka_unit_test(test_native_comm_threads__ranks_agree_on_the_lowest_failure),
        cmocka_unit_test(test_native_comm_threads__nobody_waits_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
