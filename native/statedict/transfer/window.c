/* A rank's segment:
 *
 *   | bell |                                              where the rank sleeps when it can do nothing
 *   | for rank 0: filled, emptied | for rank 1: … |     how many slots the owner has filled, how many the reader has emptied
 *   | for rank 0: slot, slot, … | for rank 1: slot, slot, … | …
 *
 * The owner fills the slots for a reader in turn while one is free: where there are more processes than cores, whoever runs
 * gets far before it must wait, and wakes others when there is much for them to do, or when it can do no more itself. */
#include "statedict/transfer/window.h"

#include <inttypes.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "statedict/tensor/share.h"
#include "statedict/transfer/nodes.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

enum { LINE = 64, SPINS = 500, NAP_NS = 20000000, MOST_SECONDS = 60 };

/* Each count on a cache line of its own. */
typedef struct channel {
    _Atomic uint64_t filled;
    char behind_filled[LINE - sizeof(uint64_t)];
    _Atomic uint64_t emptied;
    char behind_emptied[LINE - sizeof(uint64_t)];
} channel;

typedef struct bell {
    _Atomic uint32_t rings;
    _Atomic uint32_t asleep;
} bell;

struct tsr_window {
    tsr_comm *comm;
    tsr_shared *shared;
    const tsr_allocator *allocator;
    uint64_t slot_bytes;
    uint64_t slots; /* for each reader */
};

static bell *bell_of(const tsr_window *w, uint32_t rank)
{
    uint64_t bytes;
    return tsr_shared_buffer(w->shared, rank, 0, &bytes);
}

/* The channel from `owner` to `reader`, and one of its slots. */
static channel *channel_of(const tsr_window *w, uint32_t owner, uint32_t reader)
{
    uint64_t bytes;
    return (channel *)tsr_shared_buffer(w->shared, owner, 1, &bytes) + reader;
}

static uint8_t *slot_of(const tsr_window *w, uint32_t owner, uint32_t reader, uint64_t number)
{
    uint64_t bytes;
    uint8_t *slots = tsr_shared_buffer(w->shared, owner, 2, &bytes);
    const uint64_t place = reader < owner ? reader : reader - 1; /* nobody sends to itself */
    return slots + (place * w->slots + number % w->slots) * w->slot_bytes;
}

/* ---- opening ---- */

static tsr_status on_one_machine(tsr_comm *comm, bool *one, tsr_error *err)
{
    uint64_t most = tsr_machine(), least = ~most;
    TSR_TRY(comm->largest(comm, &most, err));
    TSR_TRY(comm->largest(comm, &least, err));
    *one = most == ~least;
    return TSR_OK;
}

tsr_status tsr_window_open(tsr_comm *comm, uint64_t slot_bytes, uint64_t slots, const tsr_allocator *allocator,
                           tsr_window **out, tsr_error *err)
{
    bool one = false;
    tsr_error unable = {0};
    const uint64_t sizes[] = {sizeof(bell), comm->size * sizeof(channel), slots * (comm->size - 1) * slot_bytes};
    *out = NULL;
    TSR_TRY(on_one_machine(comm, &one, err));
    if (!one || comm->size == 1) return TSR_OK;
    tsr_window *w = tsr_alloc(allocator, 1, sizeof *w, err);
    const tsr_status status = tsr_comm_agree(comm, w ? TSR_OK : TSR_E_NOMEM, err);
    if (status != TSR_OK) {
        tsr_free(allocator, w, 1, sizeof *w);
        return status;
    }
    *w = (tsr_window){.comm = comm, .allocator = allocator, .slot_bytes = slot_bytes, .slots = slots};
    if (tsr_shared_new(comm, sizes, 3, allocator, &w->shared, &unable) == TSR_OK) *out = w; /* fresh pages are zeros */
    else tsr_window_close(w);
    return TSR_OK;
}

void tsr_window_close(tsr_window *w)
{
    if (!w) return;
    tsr_shared_free(w->shared);
    tsr_free(w->allocator, w, 1, sizeof *w);
}

/* ---- moving ---- */

static uint64_t next_size(const tsr_window *w, const tsr_stream *s)
{
    return s->left < w->slot_bytes ? s->left : w->slot_bytes;
}

/* Fills a slot for `peer` if one is free. */
static tsr_status try_send(const tsr_window *w, uint32_t peer, tsr_stream *s, bool *moved, tsr_error *err)
{
    channel *c = channel_of(w, w->comm->rank, peer);
    const uint64_t number = atomic_load_explicit(&c->filled, memory_order_relaxed);
    if (s->left == 0 || number - atomic_load_explicit(&c->emptied, memory_order_acquire) == w->slots) return TSR_OK;
    TSR_TRY(tsr_stream_pack(s, slot_of(w, w->comm->rank, peer, number), NULL, next_size(w, s), err));
    atomic_store_explicit(&c->filled, number + 1, memory_order_release);
    *moved = true;
    return TSR_OK;
}

static tsr_status try_receive(const tsr_window *w, uint32_t peer, tsr_stream *s, bool *moved, tsr_error *err)
{
    channel *c = channel_of(w, peer, w->comm->rank);
    const uint64_t number = atomic_load_explicit(&c->emptied, memory_order_relaxed);
    if (s->left == 0 || atomic_load_explicit(&c->filled, memory_order_acquire) == number) return TSR_OK;
    TSR_TRY(tsr_stream_unpack(s, slot_of(w, peer, w->comm->rank, number), NULL, next_size(w, s), err));
    atomic_store_explicit(&c->emptied, number + 1, memory_order_release);
    *moved = true;
    return TSR_OK;
}

/* ---- waiting ---- */

static void ring(const tsr_window *w, uint32_t rank)
{
    bell *b = bell_of(w, rank);
    atomic_thread_fence(memory_order_seq_cst); /* what it is woken for is to be seen before it is seen asleep */
    if (!atomic_load_explicit(&b->asleep, memory_order_relaxed)) return;
    atomic_fetch_add(&b->rings, 1);
    syscall(SYS_futex, &b->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Wakes those that have something to do with this rank, at least `least` slots. */
static void ring_others(const tsr_window *w, const tsr_stream *in, uint64_t least)
{
    for (uint32_t peer = 0; peer < w->comm->size; peer++) {
        if (peer == w->comm->rank) continue;
        const channel *out = channel_of(w, w->comm->rank, peer), *back = channel_of(w, peer, w->comm->rank);
        const uint64_t unread = atomic_load(&out->filled) - atomic_load(&out->emptied);
        const uint64_t full = atomic_load(&back->filled) - atomic_load(&back->emptied);
        const uint64_t wanted = (in[peer].left + w->slot_bytes - 1) / w->slot_bytes - full;
        if (unread >= least || (wanted && w->slots - full >= least)) ring(w, peer);
    }
}

static tsr_status check_patience(const struct timespec *since, tsr_error *err)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    TSR_FAIL_IF(now.tv_sec - since->tv_sec > MOST_SECONDS, err, TSR_E_IO, "shared memory: no progress for %d seconds",
                MOST_SECONDS);
    return TSR_OK;
}

/* One slot each way with every peer that is ready. */
static tsr_status move_some(const tsr_window *w, tsr_stream *out, tsr_stream *in, bool *moved, bool *done, tsr_error *err)
{
    *moved = false;
    *done = true;
    for (uint32_t i = 1; i < w->comm->size; i++) {
        const uint32_t to = (w->comm->rank + i) % w->comm->size, from = (w->comm->rank + w->comm->size - i) % w->comm->size;
        TSR_TRY(try_receive(w, from, &in[from], moved, err));
        TSR_TRY(try_send(w, to, &out[to], moved, err));
        *done = *done && out[to].left == 0 && in[from].left == 0;
    }
    return TSR_OK;
}

/* Sleeps until rung for, unless there is something to do once others can see that this rank sleeps. */
static tsr_status move_or_sleep(const tsr_window *w, tsr_stream *out, tsr_stream *in, bool *moved, bool *done, tsr_error *err)
{
    const struct timespec nap = {0, NAP_NS};
    bell *own = bell_of(w, w->comm->rank);
    const uint32_t rings = atomic_load(&own->rings);
    ring_others(w, in, 1);
    atomic_store(&own->asleep, 1);
    const tsr_status status = move_some(w, out, in, moved, done, err);
    if (status == TSR_OK && !*moved && !*done) syscall(SYS_futex, &own->rings, FUTEX_WAIT, rings, &nap, NULL, 0);
    atomic_store(&own->asleep, 0);
    return status;
}

tsr_status tsr_window_run(tsr_window *w, tsr_stream *out, tsr_stream *in, tsr_error *err)
{
    struct timespec since;
    bool moved, done;
    clock_gettime(CLOCK_MONOTONIC, &since);
    for (uint32_t turn = 0;; turn++) {
        if (turn < SPINS) TSR_TRY(move_some(w, out, in, &moved, &done, err));
        else TSR_TRY(move_or_sleep(w, out, in, &moved, &done, err));
        if (moved) {
            ring_others(w, in, (w->slots + 1) / 2);
            if (turn >= SPINS) clock_gettime(CLOCK_MONOTONIC, &since);
            turn = 0;
        }
        if (done) break;
        if (!moved && turn >= SPINS) TSR_TRY(check_patience(&since, err));
    }
    ring_others(w, in, 1);
    return TSR_OK;
}
