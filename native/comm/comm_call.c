/* Detects calls of ranks that contradict each other, and makes the errors. */
#include "comm/comm_call.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

/* The order matters: the same sizes in a different order are a different call. */
static uint64_t mix(uint64_t digest, uint64_t value)
{
    digest = (digest ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}

tsr_comm_call tsr_call_all_gather(const size_t *sizes, uint32_t ranks)
{
    tsr_comm_call call = {.kind = TSR_CALL_ALL_GATHER};
    for (uint32_t r = 0; r < ranks; r++) {
        call.bytes += sizes[r];
        call.digest = mix(call.digest, sizes[r]);
    }
    return call;
}

bool tsr_call_equal(const tsr_comm_call *a, const tsr_comm_call *b)
{
    return a->kind == b->kind && a->root == b->root && a->bytes == b->bytes && a->digest == b->digest;
}

typedef struct words {
    char text[96];
} words;

static words describe(const tsr_comm_call *call)
{
    words w = {"in an unknown call"};
    switch ((tsr_call_kind)call->kind) {
    case TSR_CALL_ALL_GATHER: snprintf(w.text, sizeof w.text, "gathers %" PRIu64 " bytes on all ranks", call->bytes); break;
    case TSR_CALL_BROADCAST:
        snprintf(w.text, sizeof w.text, "broadcasts %" PRIu64 " bytes from rank %" PRIu32, call->bytes, call->root);
        break;
    case TSR_CALL_EXCHANGE: snprintf(w.text, sizeof w.text, "exchanges messages"); break;
    case TSR_CALL_LARGEST: snprintf(w.text, sizeof w.text, "asks for the largest value"); break;
    case TSR_CALL_SPLIT: snprintf(w.text, sizeof w.text, "splits into groups"); break;
    case TSR_CALL_POISON: snprintf(w.text, sizeof w.text, "has failed"); break;
    case TSR_CALL_CLOSE: snprintf(w.text, sizeof w.text, "has left"); break;
    }
    return w;
}

tsr_status tsr_call_raise(const tsr_comm_call *zero, uint32_t rank, const tsr_comm_call *other, tsr_error *err)
{
    words first = describe(zero), second = describe(other);
    return tsr_fail(err, TSR_E_USAGE, "comm: rank 0 %s, but rank %" PRIu32 " %s%s", first.text, rank, second.text,
                    strcmp(first.text, second.text) == 0 ? " with different sizes" : "");
}

tsr_status tsr_call_raise_left(uint32_t rank, tsr_error *err)
{
    return tsr_fail(err, TSR_E_IO, "comm: rank %" PRIu32 " has left", rank);
}

tsr_status tsr_call_check_root(uint32_t root, uint32_t ranks, tsr_error *err)
{
    if (root < ranks) return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "comm: rank %" PRIu32 " cannot broadcast: there are only ranks 0 to %" PRIu32, root,
                    ranks - 1);
}

tsr_status tsr_call_check_peers(const tsr_message *messages, size_t count, uint32_t ranks, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (messages[i].peer >= ranks) {
            return tsr_fail(err, TSR_E_USAGE,
                            "comm: message %zu is for rank %" PRIu32 ", but there are only ranks 0 to %" PRIu32, i,
                            messages[i].peer, ranks - 1);
        }
    }
    return TSR_OK;
}

tsr_traffic tsr_traffic_with(const tsr_message *messages, size_t count, uint32_t peer)
{
    tsr_traffic t = {0};
    for (size_t i = 0; i < count; i++) {
        if (messages[i].peer != peer) continue;
        t.count++;
        t.bytes += messages[i].size;
        t.digest = mix(t.digest, messages[i].size);
    }
    return t;
}

tsr_status tsr_traffic_check(uint32_t from, const tsr_traffic *sent, uint32_t rank, const tsr_traffic *expected,
                             tsr_error *err)
{
    if (sent->count == expected->count && sent->bytes == expected->bytes && sent->digest == expected->digest) return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE,
                    "comm: rank %" PRIu32 " sends %" PRIu64 " messages of %" PRIu64 " bytes to rank %" PRIu32
                    ", which expects %" PRIu64 " of %" PRIu64 " bytes%s",
                    from, sent->count, sent->bytes, rank, expected->count, expected->bytes,
                    sent->count == expected->count && sent->bytes == expected->bytes ? " with different sizes" : "");
}

/* Wraps another communicator, and makes its calls late or makes them fail. */

typedef struct faulty {
    tsr_comm base;
    tsr_comm *inner;
    tsr_faults *faults;
    uint32_t rank; /* in the first communicator */
    const tsr_allocator *allocator;
} faulty;

static uint64_t draw(uint64_t seed, uint64_t rank, uint64_t call)
{
    uint64_t x = seed + rank * UINT64_C(0x9e3779b97f4a7c15) + call * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static void be_late(const faulty *f, uint64_t call)
{
    const tsr_faults *faults = f->faults;
    if (!faults->delay_seed || !faults->delay_microseconds) return;
    uint64_t microseconds = draw(faults->delay_seed, f->rank, call) % faults->delay_microseconds;
    struct timespec nap = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000};
    nanosleep(&nap, NULL);
}

static tsr_status strike(faulty *f, const tsr_fault *fault, tsr_error *err)
{
    const uint64_t call = fault->call;
    if (fault->kind == TSR_FAULT_KILL) raise(SIGKILL);
    f->faults->gone = fault->kind != TSR_FAULT_FAIL;
    tsr_status status = tsr_fail(err, TSR_E_IO, "injected at call %" PRIu64 " of rank %" PRIu32, call, f->rank);
    return fault->kind == TSR_FAULT_FAIL ? f->inner->poison(f->inner, status, err) : status;
}

static const tsr_fault *fault_at(const faulty *f, uint64_t call, bool afterwards)
{
    for (size_t i = 0; i < f->faults->count; i++) {
        const tsr_fault *fault = &f->faults->list[i];
        if (fault->rank == f->rank && fault->call == call && fault->afterwards == afterwards) return fault;
    }
    return NULL;
}

static tsr_status before(faulty *f, uint64_t *call, tsr_error *err)
{
    *call = f->faults->calls;
    if (f->faults->gone) return tsr_fail(err, TSR_E_IO, "this rank is gone");
    f->faults->calls++;
    be_late(f, *call);
    const tsr_fault *fault = fault_at(f, *call, false);
    return fault ? strike(f, fault, err) : TSR_OK;
}

static tsr_status after(faulty *f, uint64_t call, tsr_status status, tsr_error *err)
{
    const tsr_fault *fault = status == TSR_OK ? fault_at(f, call, true) : NULL;
    return fault ? strike(f, fault, err) : status;
}

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    faulty *f = (faulty *)comm;
    uint64_t call;
    tsr_status status = before(f, &call, err);
    return status == TSR_OK ? after(f, call, f->inner->all_gather(f->inner, mine, sizes, all, err), err) : status;
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    faulty *f = (faulty *)comm;
    uint64_t call;
    tsr_status status = before(f, &call, err);
    return status == TSR_OK ? after(f, call, f->inner->broadcast(f->inner, data, size, root, err), err) : status;
}

static tsr_status exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err)
{
    faulty *f = (faulty *)comm;
    uint64_t call;
    TSR_TRY(before(f, &call, err));
    return after(f, call, f->inner->exchange(f->inner, sends, send_count, receives, receive_count, err), err);
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    faulty *f = (faulty *)comm;
    uint64_t call;
    tsr_status status = before(f, &call, err);
    return status == TSR_OK ? after(f, call, f->inner->largest(f->inner, value, err), err) : status;
}

static tsr_status poison(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    faulty *f = (faulty *)comm;
    return f->faults->gone ? mine : f->inner->poison(f->inner, mine, err);
}

static tsr_status wrap(const faulty *like, tsr_comm *inner, tsr_comm **out, tsr_error *err);

static tsr_status split(tsr_comm *comm, uint32_t group, uint32_t order, tsr_comm **out, tsr_error *err)
{
    faulty *f = (faulty *)comm;
    uint64_t call;
    tsr_comm *inner = NULL;
    *out = NULL;
    tsr_status status = before(f, &call, err);
    if (status == TSR_OK) status = f->inner->split(f->inner, group, order, &inner, err);
    if (status == TSR_OK && inner) status = wrap(f, inner, out, err);
    status = after(f, call, status, err);
    if (status == TSR_OK) return TSR_OK;
    if (*out) (*out)->close(*out);
    else if (inner) inner->close(inner);
    *out = NULL;
    return status;
}

static void close_faulty(tsr_comm *comm)
{
    faulty *f = (faulty *)comm;
    f->inner->close(f->inner);
    tsr_free(f->allocator, f, 1, sizeof *f);
}

static tsr_status wrap(const faulty *like, tsr_comm *inner, tsr_comm **out, tsr_error *err)
{
    faulty *f = tsr_alloc(like->allocator, 1, sizeof *f, err);
    if (!f) return TSR_E_NOMEM;
    *f = *like;
    f->inner = inner;
    f->base = (tsr_comm){inner->rank, inner->size,  all_gather,           broadcast,  exchange, largest, split,
                         poison,      close_faulty, inner->takes_devices, inner->kept};
    *out = &f->base;
    return TSR_OK;
}

tsr_status tsr_comm_faulty(tsr_comm *inner, tsr_faults *faults, const tsr_allocator *allocator, tsr_comm **out,
                           tsr_error *err)
{
    const faulty like = {.faults = faults, .rank = inner->rank, .allocator = allocator};
    return wrap(&like, inner, out, err);
}
