/* What every communicator must do, tested over one rank, threads and MPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm_call.h"
#include "support/failing_allocator.h"
#include "support/ranks.h"

#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

enum { MOST = 64 };

static const tsr_allocator *const libc = &tsr_allocator_libc;

static uint64_t hash(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9) + c * UINT64_C(0x94d049bb133111eb);
    x = (x ^ x >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 29;
}

/* ---- data arrives ---- */

/* Each rank r contributes bytes of value r; rank 1 contributes none, and in the last round no rank does. */
static tsr_status gather_uneven(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    static const size_t scales[] = {1, 7, 999, 1000, 1001, 40000, 0};
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        size_t sizes[MOST], total = 0, at = 0;
        for (uint32_t r = 0; r < comm->size; r++) total += sizes[r] = r == 1 ? 0 : scales[s] * ((r + s) % 3 + 1);
        char *mine = malloc(sizes[comm->rank] + 1), *all = malloc(total + 1);
        memset(mine, (int)comm->rank, sizes[comm->rank]);
        tsr_status status = comm->all_gather(comm, mine, sizes, all, err);
        bool right = true;
        for (uint32_t r = 0; r < comm->size && status == TSR_OK; r++) {
            for (size_t i = 0; i < sizes[r]; i++) right = all[at++] == (char)r && right;
        }
        free(mine);
        free(all);
        TSR_TRY(status);
        RANKS_NEED(right);
    }
    return TSR_OK;
}

static void test_native_comm__all_gather(void **state)
{
    (void)state;
    ranks_run(gather_uneven, NULL);
}

static tsr_status broadcast_from_each(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    static const size_t sizes[] = {0, 1, 8, 1000, 1001, 123457};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (uint32_t root = 0; root < comm->size; root++) {
            uint8_t *data = malloc(sizes[s] + 1);
            for (size_t i = 0; i < sizes[s]; i++) data[i] = comm->rank == root ? (uint8_t)hash(root, s, i) : 0;
            tsr_status status = comm->broadcast(comm, data, sizes[s], root, err);
            bool right = true;
            for (size_t i = 0; i < sizes[s]; i++) right = data[i] == (uint8_t)hash(root, s, i) && right;
            free(data);
            TSR_TRY(status);
            RANKS_NEED(right);
        }
    }
    return TSR_OK;
}

static void test_native_comm__broadcast(void **state)
{
    (void)state;
    ranks_run(broadcast_from_each, NULL);
}

static tsr_status largest_value(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    for (uint32_t top = 0; top < comm->size; top++) {
        uint64_t value = comm->rank == top ? UINT64_MAX - top : comm->rank;
        TSR_TRY(comm->largest(comm, &value, err));
        RANKS_NEED(value == UINT64_MAX - top);
    }
    return tsr_comm_barrier(comm, err);
}

static void test_native_comm__largest(void **state)
{
    (void)state;
    ranks_run(largest_value, NULL);
}

/* Both ranks can compute how many messages rank `a` sends to rank `b` in a round, and how large they are. */
static size_t message_count(uint32_t round, uint32_t a, uint32_t b)
{
    return (size_t)(hash(round, a, b) % (round == 2 ? 90 : 4));
}

static size_t message_size(uint32_t round, uint32_t a, uint32_t b, size_t i)
{
    uint64_t h = hash(hash(round, a, b), i, 1);
    return h % 5 == 0 ? 0 : (size_t)(h >> 8) % (round == 1 ? 200000 : 1500);
}

typedef struct mail {
    tsr_message *messages;
    size_t count;
} mail;

/* Writes the messages with the peers in an order of this rank's own. */
static mail write_mail(const tsr_comm *comm, uint32_t round, bool sends)
{
    mail m = {calloc(MOST * 90, sizeof *m.messages), 0};
    for (uint32_t k = 0; k < comm->size; k++) {
        uint32_t peer = (k * (comm->rank % 2 ? comm->size - 1 : 1) + (sends ? 3 : 1)) % comm->size;
        uint32_t a = sends ? comm->rank : peer, b = sends ? peer : comm->rank;
        for (size_t i = 0; i < message_count(round, a, b); i++) {
            size_t size = message_size(round, a, b, i);
            uint8_t *data = malloc(size + 1);
            for (size_t n = 0; n < size; n++) data[n] = sends ? (uint8_t)hash(hash(round, a, b), i, n) : 0;
            m.messages[m.count++] = (tsr_message){peer, data, size};
        }
    }
    return m;
}

static bool read_mail(const tsr_comm *comm, uint32_t round, mail *m)
{
    bool right = true;
    size_t seen[MOST] = {0};
    for (size_t k = 0; k < m->count; k++) {
        const tsr_message *got = &m->messages[k];
        size_t i = seen[got->peer]++;
        for (size_t n = 0; n < got->size; n++) {
            right = ((uint8_t *)got->data)[n] == (uint8_t)hash(hash(round, got->peer, comm->rank), i, n) && right;
        }
    }
    return right;
}

static void burn_mail(mail *m)
{
    for (size_t k = 0; k < m->count; k++) free(m->messages[k].data);
    free(m->messages);
}

static tsr_status random_mail(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    for (uint32_t round = 0; round < 6; round++) {
        mail out = write_mail(comm, round, true), in = write_mail(comm, round, false);
        tsr_status status = comm->exchange(comm, out.messages, out.count, in.messages, in.count, err);
        bool right = status != TSR_OK || read_mail(comm, round, &in);
        burn_mail(&out);
        burn_mail(&in);
        TSR_TRY(status);
        RANKS_NEED(right);
    }
    return comm->exchange(comm, NULL, 0, NULL, 0, err);
}

static void test_native_comm__exchange(void **state)
{
    (void)state;
    ranks_run(random_mail, NULL);
}

static tsr_status gather_to_each(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    for (uint32_t root = 0; root < comm->size; root++) {
        uint32_t mine[MOST], all[MOST * MOST];
        size_t sizes[MOST], at = 0;
        for (uint32_t r = 0; r < comm->size; r++) {
            mine[r] = comm->rank * 1000 + r;
            sizes[r] = r % 3 * sizeof *mine;
        }
        TSR_TRY(tsr_comm_gather((tsr_ranks){comm, libc}, mine, sizes, root, comm->rank == root ? all : NULL, err));
        for (uint32_t r = 0; r < comm->size && comm->rank == root; r++) {
            for (uint32_t i = 0; i < r % 3; i++) RANKS_NEED(all[at++] == r * 1000 + i);
        }
    }
    return TSR_OK;
}

static tsr_status all_to_all(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    uint16_t mine[MOST * MOST], all[MOST * MOST];
    size_t send_sizes[MOST], receive_sizes[MOST], count = 0, at = 0;
    for (uint32_t r = 0; r < comm->size; r++) {
        send_sizes[r] = (comm->rank + 2 * r) % 5 * sizeof *mine;
        receive_sizes[r] = (r + 2 * comm->rank) % 5 * sizeof *mine;
        for (size_t i = 0; i < send_sizes[r] / sizeof *mine; i++) mine[count++] = (uint16_t)hash(comm->rank, r, i);
    }
    TSR_TRY(tsr_comm_all_to_all((tsr_ranks){comm, libc}, mine, send_sizes, all, receive_sizes, err));
    for (uint32_t r = 0; r < comm->size; r++) {
        for (size_t i = 0; i < receive_sizes[r] / sizeof *all; i++)
            RANKS_NEED(all[at++] == (uint16_t)hash(r, comm->rank, i));
    }
    return TSR_OK;
}

static void test_native_comm__gather_and_all_to_all(void **state)
{
    (void)state;
    ranks_run(gather_to_each, NULL);
    ranks_run(all_to_all, NULL);
}

static tsr_status blobs(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    tsr_comm_blobs all;
    TSR_TRY(tsr_comm_gather_blobs((tsr_ranks){comm, libc}, (tsr_str){alphabet, 3 * comm->rank}, &all, err));
    bool right = true;
    for (uint32_t r = 0; r < comm->size; r++)
        right = right && tsr_str_equal(all.blobs[r], (tsr_str){alphabet, 3 * (size_t)r});
    tsr_comm_blobs_free(&all);
    RANKS_NEED(right);
    for (uint32_t root = 0; root < comm->size; root++) {
        void *copy;
        size_t size;
        const tsr_str mine = comm->rank == root ? (tsr_str){alphabet, root % 5} : (tsr_str){NULL, 0};
        TSR_TRY(tsr_comm_broadcast_blob((tsr_ranks){comm, libc}, mine, root, &copy, &size, err));
        right = size == root % 5 && (size == 0 || memcmp(copy, alphabet, size) == 0);
        tsr_free(libc, copy, size, 1);
        RANKS_NEED(right);
    }
    return TSR_OK;
}

static void test_native_comm__blobs(void **state)
{
    (void)state;
    ranks_run(blobs, NULL);
}

/* ---- groups ---- */

static tsr_status even_and_odd(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    tsr_comm *half, *pair, *none;
    TSR_TRY(comm->split(comm, comm->rank % 2, comm->size - comm->rank, &half, err)); /* in reverse order */
    uint64_t top = comm->rank;
    const uint32_t most = (comm->size - 1 - comm->rank % 2) / 2 * 2 + comm->rank % 2;
    bool right = half->size == (comm->size + 1 - comm->rank % 2) / 2 && half->rank == (most - comm->rank) / 2;
    tsr_status status = half->largest(half, &top, err);
    right = right && top == most;
    if (status == TSR_OK) status = half->split(half, half->rank / 2, 0, &pair, err);
    if (status == TSR_OK) {
        uint64_t lowest = comm->size - comm->rank;
        right = right && pair->size == (half->rank / 2 * 2 + 1 < half->size ? 2 : 1) && pair->rank == half->rank % 2;
        status = random_mail(NULL, pair, err);
        if (status == TSR_OK) status = pair->largest(pair, &lowest, err);
        right = right && lowest == comm->size - (comm->rank - (pair->rank + 1 < pair->size ? 2 : 0));
        pair->close(pair);
    }
    half->close(half);
    TSR_TRY(status);
    RANKS_NEED(right);
    TSR_TRY(comm->split(comm, comm->rank ? TSR_COMM_NO_GROUP : 5, 0, &none, err));
    RANKS_NEED((none == NULL) == (comm->rank != 0));
    if (none) {
        right = none->size == 1;
        none->close(none);
        RANKS_NEED(right);
    }
    return tsr_comm_barrier(comm, err);
}

static void test_native_comm__split(void **state)
{
    (void)state;
    ranks_run(even_and_odd, NULL);
}

/* A failure inside a group stays in that group. */
static tsr_status poison_a_group(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    tsr_comm *half;
    tsr_error told = {0};
    TSR_TRY(comm->split(comm, comm->rank % 2, 0, &half, err));
    tsr_status status;
    if (comm->rank == 1) {
        status = tsr_raise(&told, TSR_E_LIMIT, 9, "too odd");
        status = half->poison(half, status, &told);
    } else {
        status = tsr_comm_barrier(half, &told);
    }
    half->close(half);
    RANKS_NEED(status == (comm->rank % 2 ? TSR_E_LIMIT : TSR_OK));
    RANKS_NEED(status == TSR_OK || (strcmp(told.message, "rank 0: too odd") == 0 && told.byte_position == 9));
    return tsr_comm_barrier(comm, err);
}

static void test_native_comm__groups_fail_alone(void **state)
{
    (void)state;
    ranks_run(poison_a_group, NULL);
}

/* ---- agreement ---- */

static tsr_status agree_on_failure(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    for (uint32_t first = 0; first <= comm->size; first++) {
        tsr_error told = {0};
        char want[64];
        snprintf(want, sizeof want, "rank %u: too much of everything", (unsigned)first);
        tsr_status mine = TSR_OK;
        if (comm->rank >= first) mine = tsr_raise(&told, TSR_E_LIMIT, first, "too much of everything");
        tsr_status agreed = tsr_comm_agree(comm, mine, &told);
        if (first == comm->size) RANKS_NEED(agreed == TSR_OK);
        else RANKS_NEED(agreed == TSR_E_LIMIT && told.byte_position == first && strcmp(told.message, want) == 0);
    }
    return tsr_comm_agree(comm, TSR_OK, err);
}

static tsr_status the_same(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    char value[5000];
    for (uint32_t odd = 0; odd < 2 * comm->size; odd++) {
        tsr_error told = {0};
        char want[64];
        size_t size = odd % 3 ? sizeof value : 3;
        memset(value, 7, sizeof value);
        if (odd == comm->rank) value[size - 1] = 8;
        if (odd == comm->size) size = 0;
        if (odd == comm->size + 1 && comm->rank + 1 == comm->size) size--;
        tsr_status status = tsr_comm_same(comm, (tsr_str){value, size}, "options", &told);
        uint32_t differs = odd == 0 ? 1 : odd == comm->size + 1 ? comm->size - 1 : odd;
        snprintf(want, sizeof want, "options: rank %u differs from rank 0", (unsigned)differs);
        bool equal = comm->size == 1 || odd == comm->size || odd > comm->size + 1;
        RANKS_NEED(status == (equal ? TSR_OK : TSR_E_USAGE));
        RANKS_NEED(equal || strcmp(told.message, want) == 0);
    }
    return tsr_comm_barrier(comm, err);
}

static void test_native_comm__agreement(void **state)
{
    (void)state;
    ranks_run(agree_on_failure, NULL);
    ranks_run(the_same, NULL);
}

/* ---- failures ---- */

enum { CALLS = 7 };

/* Makes one call of each kind, chosen by `number`. All of them are valid on any number of ranks. */
static tsr_status make_call(tsr_comm *comm, unsigned number, tsr_error *err)
{
    char data[MOST] = {0}, all[MOST];
    size_t sizes[MOST];
    uint64_t value = comm->rank;
    tsr_comm *group;
    for (uint32_t r = 0; r < comm->size; r++) sizes[r] = 1;
    const uint32_t next = (comm->rank + 1) % comm->size, last = (comm->rank + comm->size - 1) % comm->size;
    switch (number) {
    case 0: return comm->all_gather(comm, data, sizes, all, err);
    case 1: return comm->broadcast(comm, data, 3, comm->size - 1, err);
    case 2: return comm->exchange(comm, &(tsr_message){next, data, 2}, 1, &(tsr_message){last, all, 2}, 1, err);
    case 3: return comm->largest(comm, &value, err);
    case 4: {
        tsr_status status = comm->split(comm, 0, 0, &group, err);
        if (status == TSR_OK) group->close(group);
        return status;
    }
    case 5: return tsr_comm_gather((tsr_ranks){comm, libc}, data, sizes, 0, all, err);
    default: return tsr_comm_all_to_all((tsr_ranks){comm, libc}, data, sizes, all, sizes, err);
    }
}

/* In the `*arg`-th call one rank poisons the communicator; then every call must end with the same error. */
static tsr_status poison_one(void *arg, tsr_comm *comm, tsr_error *err)
{
    const unsigned number = *(const unsigned *)arg;
    const uint32_t bad = comm->size / 2;
    char want[64];
    snprintf(want, sizeof want, "rank %u: disk full", (unsigned)bad);
    TSR_TRY(tsr_comm_barrier(comm, err));
    for (unsigned further = 0; further <= CALLS; further++) {
        tsr_error told = {0};
        tsr_status status;
        if (further == 0 && (comm->rank == bad || comm->rank + 1 == comm->size)) { /* the error of the lower rank counts */
            status = tsr_raise(&told, TSR_E_NOT_FOUND, 11, "%s", comm->rank == bad ? "disk full" : "disk gone");
            status = comm->poison(comm, status, &told);
        } else {
            status = make_call(comm, (number + further) % CALLS, &told);
        }
        RANKS_NEED(status == TSR_E_NOT_FOUND && told.status == status);
        RANKS_NEED(strcmp(told.message, want) == 0 && told.byte_position == 11);
    }
    tsr_error told = {0};
    tsr_status status = tsr_raise(&told, TSR_E_LIMIT, 0, "late");
    RANKS_NEED(comm->poison(comm, status, &told) == TSR_E_NOT_FOUND && strcmp(told.message, want) == 0);
    RANKS_NEED(tsr_comm_agree(comm, TSR_OK, &told) == TSR_E_NOT_FOUND);
    return TSR_OK;
}

static void test_native_comm__poison_meets_every_call(void **state)
{
    (void)state;
    for (unsigned number = 0; number < CALLS; number++) ranks_run(poison_one, &number);
}

/* Pairs of calls that do not match: the odd rank makes the second one. */
typedef struct contradiction {
    const char *message;
    tsr_status (*call)(tsr_comm *comm, bool odd, tsr_error *err);
} contradiction;

static tsr_status other_kind(tsr_comm *comm, bool odd, tsr_error *err)
{
    return make_call(comm, odd ? 3 : 1, err);
}

static tsr_status other_root(tsr_comm *comm, bool odd, tsr_error *err)
{
    char byte = 0;
    return comm->broadcast(comm, &byte, 1, odd, err);
}

static tsr_status other_size(tsr_comm *comm, bool odd, tsr_error *err)
{
    char data[2] = {0};
    return comm->broadcast(comm, data, odd ? 2 : 1, 0, err);
}

static tsr_status other_order(tsr_comm *comm, bool odd, tsr_error *err)
{
    char data[2] = {0}, all[MOST];
    size_t sizes[MOST] = {0};
    sizes[odd] = 2;
    return comm->all_gather(comm, data, sizes, all, err);
}

static tsr_status not_sent(tsr_comm *comm, bool odd, tsr_error *err)
{
    char byte;
    return comm->exchange(comm, NULL, 0, &(tsr_message){0, &byte, 1}, odd, err);
}

static tsr_status not_received(tsr_comm *comm, bool odd, tsr_error *err)
{
    char byte = 0;
    return comm->exchange(comm, &(tsr_message){0, &byte, 1}, odd, NULL, 0, err);
}

/* The numbers of messages and bytes match, but the messages do not. */
static tsr_status swapped(tsr_comm *comm, bool odd, tsr_error *err)
{
    char out[4] = {0}, in[4];
    const tsr_message sends[] = {{0, out, 1}, {0, out + 1, 2}}, receives[] = {{1, in, 2}, {1, in + 2, 1}};
    return comm->exchange(comm, sends, odd ? 2 : 0, receives, comm->rank == 0 ? 2 : 0, err);
}

static tsr_status no_such_peer(tsr_comm *comm, bool odd, tsr_error *err)
{
    char byte = 0;
    return comm->exchange(comm, &(tsr_message){comm->size, &byte, 1}, odd, NULL, 0, err);
}

static tsr_status no_such_root(tsr_comm *comm, bool odd, tsr_error *err)
{
    (void)odd;
    char byte = 0;
    return comm->broadcast(comm, &byte, 1, comm->size, err);
}

static const contradiction contradictions[] = {
    {"rank 1 asks for the largest value", other_kind},
    {"rank 1 broadcasts 1 bytes from rank 1", other_root},
    {"rank 1 broadcasts 2 bytes from rank 0", other_size},
    {"rank 1 gathers 2 bytes on all ranks with different sizes", other_order},
    {"rank 0 sends 0 messages of 0 bytes to rank 1, which expects 1 of 1 bytes", not_sent},
    {"rank 1 sends 1 messages of 1 bytes to rank 0, which expects 0 of 0 bytes", not_received},
    {"which expects 2 of 3 bytes with different sizes", swapped},
    {"rank 1: comm: message 0 is for rank", no_such_peer},
    {"cannot broadcast: there are only ranks 0 to", no_such_root},
};

/* Every rank must get the same error, and no later call may wait. */
static tsr_status contradict(void *arg, tsr_comm *comm, tsr_error *err)
{
    const contradiction *c = arg;
    tsr_error told = {0};
    if (comm->size == 1) return TSR_OK;
    tsr_status status = c->call(comm, comm->rank == 1, &told);
    if (status != TSR_E_USAGE || !strstr(told.message, c->message))
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u was told: %s", (unsigned)comm->rank, told.message);
    RANKS_NEED(make_call(comm, comm->rank % CALLS, NULL) == TSR_E_USAGE);
    return TSR_OK;
}

static void test_native_comm__contradictions_are_told_to_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        ranks_run(contradict, (void *)(uintptr_t)&contradictions[i]);
    }
}

static tsr_status short_of_memory(void *arg, tsr_comm *comm, tsr_error *err)
{
    failing_allocator mine;
    tsr_comm_blobs all;
    const uint32_t poor = comm->size - 1;
    failing_start(&mine, comm->rank == poor ? *(const size_t *)arg : SIZE_MAX);
    tsr_error told = {0};
    (void)err;
    tsr_status status = tsr_comm_gather_blobs((tsr_ranks){comm, &mine.allocator}, TSR_STR("blob"), &all, &told);
    RANKS_NEED(status == TSR_E_NOMEM && strstr(told.message, "out of memory"));
    RANKS_NEED(mine.live == 0);
    return TSR_OK;
}

static void test_native_comm__one_rank_without_memory_is_told_to_all(void **state)
{
    (void)state;
    for (size_t fail_at = 0; fail_at < 4; fail_at++) ranks_run(short_of_memory, &fail_at);
}

/* ---- ranks that are late, fail or leave ---- */

static tsr_status all_calls(tsr_comm *comm, tsr_error *err)
{
    for (unsigned number = 0; number < CALLS; number++) TSR_TRY(make_call(comm, number, err));
    return TSR_OK;
}

static tsr_status spoiled(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_faults faults = *(const tsr_faults *)arg;
    tsr_comm *bad;
    TSR_TRY(tsr_comm_faulty(comm, &faults, libc, &bad, err));
    tsr_status status = all_calls(bad, err);
    if (status == TSR_OK && faults.delay_seed) status = random_mail(NULL, bad, err);
    tsr_free(libc, bad, 0, 0); /* The communicator is not closed: the one that it wraps belongs to the caller. */
    return status;
}

static void test_native_comm__a_failure_at_every_call_is_told_to_all(void **state)
{
    (void)state;
    const uint32_t ranks = ranks_count(5);
    for (uint64_t call = 0; call < CALLS; call++) {
        for (uint32_t rank = 0; rank < ranks; rank += rank + 1) {
            const tsr_fault fault = {TSR_FAULT_FAIL, rank, call, call % 2};
            tsr_faults faults = {.list = &fault, .count = 1};
            tsr_error err = {0};
            char want[96];
            snprintf(want, sizeof want, "rank %u: injected at call %u of rank %u", (unsigned)rank, (unsigned)call,
                     (unsigned)rank);
            tsr_status status = ranks_try(ranks, spoiled, &faults, &err);
            if (call == CALLS - 1 && fault.afterwards) continue;
            if (status != TSR_E_IO || !strstr(err.message, want)) fail_msg("call %u: %s", (unsigned)call, err.message);
        }
    }
}

static tsr_status told_of_leaving(void *arg, tsr_comm *comm, tsr_error *err)
{
    const tsr_faults *faults = arg;
    tsr_status status = spoiled(arg, comm, err);
    if (status == TSR_OK)
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u missed nobody", (unsigned)comm->rank);
    if (comm->rank == faults->list->rank) return status;
    char want[32];
    snprintf(want, sizeof want, "rank %u has left", (unsigned)faults->list->rank);
    RANKS_NEED(status == TSR_E_IO && strstr(err->message, want));
    return status;
}

static void test_native_comm__a_rank_that_leaves_at_any_call_is_missed(void **state)
{
    (void)state;
    const uint32_t ranks = ranks_count(5);
    for (uint64_t call = 0; call < CALLS; call++) {
        for (uint32_t rank = 0; rank < ranks; rank += rank + 1) {
            const tsr_fault fault = {TSR_FAULT_LEAVE, rank, call, false};
            tsr_faults faults = {.list = &fault, .count = 1};
            tsr_error err = {0};
            tsr_status status = ranks_try(ranks, told_of_leaving, &faults, &err);
            if (status != TSR_E_IO || !strstr(err.message, "injected")) fail_msg("call %u: %s", (unsigned)call, err.message);
        }
    }
}

static void test_native_comm__late_ranks_change_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        tsr_faults faults = {.delay_seed = seed, .delay_microseconds = 3000};
        ranks_run(spoiled, &faults);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_comm__all_gather),
        cmocka_unit_test(test_native_comm__broadcast),
        cmocka_unit_test(test_native_comm__largest),
        cmocka_unit_test(test_native_comm__exchange),
        cmocka_unit_test(test_native_comm__gather_and_all_to_all),
        cmocka_unit_test(test_native_comm__blobs),
        cmocka_unit_test(test_native_comm__split),
        cmocka_unit_test(test_native_comm__groups_fail_alone),
        cmocka_unit_test(test_native_comm__agreement),
        cmocka_unit_test(test_native_comm__poison_meets_every_call),
        cmocka_unit_test(test_native_comm__contradictions_are_told_to_all),
        cmocka_unit_test(test_native_comm__one_rank_without_memory_is_told_to_all),
        cmocka_unit_test(test_native_comm__a_failure_at_every_call_is_told_to_all),
        cmocka_unit_test(test_native_comm__a_rank_that_leaves_at_any_call_is_missed),
        cmocka_unit_test(test_native_comm__late_ranks_change_nothing),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
