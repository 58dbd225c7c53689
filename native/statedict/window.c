/* A rank's segment:
 *
 *   | for rank 0: filled, emptied | for rank 1: … |     how many slots the owner has filled, how many the reader has emptied
 *   | for rank 0: slot, slot, … | for rank 1: slot, slot, … | …
 *
 * The owner fills the slots for a reader in turn while one is free: where there are more processes than cores, whoever runs
 * gets far before it must wait. */
#include "statedict/window.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "statedict/share.h"
#include "statedict/try.h"
#include "tessera/map.h"

enum { LINE = 64, SPINS = 500, YIELDS = 4000, NAP_NS = 50000, MOST_SECONDS = 60 };

/* Each count on a cache line of its own. */
typedef struct channel {
    _Atomic uint64_t filled;
    char behind_filled[LINE - sizeof(uint64_t)];
    _Atomic uint64_t emptied;
    char behind_emptied[LINE - sizeof(uint64_t)];
} channel;

struct tsr_window {
    tsr_comm *comm;
    tsr_shared *shared;
    const tsr_allocator *allocator;
    uint64_t slot_bytes;
    uint64_t slots; /* for each reader */
};

/* The channel from `owner` to `reader`, and one of its slots. */
static channel *channel_of(const tsr_window *w, uint32_t owner, uint32_t reader)
{
    uint64_t bytes;
    return (channel *)tsr_shared_buffer(w->shared, owner, 0, &bytes) + reader;
}

static uint8_t *slot_of(const tsr_window *w, uint32_t owner, uint32_t reader, uint64_t number)
{
    uint64_t bytes;
    uint8_t *slots = tsr_shared_buffer(w->shared, owner, 1, &bytes);
    const uint64_t place = reader < owner ? reader : reader - 1; /* nobody sends to itself */
    return slots + (place * w->slots + number % w->slots) * w->slot_bytes;
}

/* ---- opening ---- */

/* The machine that this process runs on, as far as can be told. */
static uint64_t machine(void)
{
    char text[512] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t size = f ? fread(text, 1, 64, f) : 0;
    if (f) fclose(f);
    gethostname(text + size, sizeof text - size - 1);
    return tsr_hash_bytes(text, sizeof text, 1);
}

static tsr_status on_one_machine(tsr_comm *comm, bool *one, tsr_error *err)
{
    uint64_t most = machine(), least = ~most;
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
    const uint64_t sizes[] = {comm->size * sizeof(channel), slots * (comm->size - 1) * slot_bytes};
    *out = NULL;
    TSR_TRY(on_one_machine(comm, &one, err));
    if (!one || comm->size == 1) return TSR_OK;
    tsr_window *w = tsr_alloc(allocator, 1, sizeof *w, err);
    TSR_TRY(tsr_comm_agree(comm, w ? TSR_OK : TSR_E_NOMEM, err));
    *w = (tsr_window){.comm = comm, .allocator = allocator, .slot_bytes = slot_bytes, .slots = slots};
    if (tsr_shared_new(comm, sizes, 2, allocator, &w->shared, &unable) == TSR_OK) *out = w; /* fresh pages are zeros */
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

/* Spins for a moment, then leaves the core to those who are waited for. */
static tsr_status wait_a_little(uint32_t turn, const struct timespec *since, tsr_error *err)
{
    const struct timespec nap = {0, NAP_NS};
    struct timespec now;
    if (turn < SPINS) return TSR_OK;
    if (turn < YIELDS) {
        sched_yield();
        return TSR_OK;
    }
    nanosleep(&nap, NULL);
    clock_gettime(CLOCK_MONOTONIC, &now);
    TSR_FAIL_IF(now.tv_sec - since->tv_sec > MOST_SECONDS, err, TSR_E_IO, "shared memory: nothing has moved for %d seconds",
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

tsr_status tsr_window_run(tsr_window *w, tsr_stream *out, tsr_stream *in, tsr_error *err)
{
    struct timespec since;
    bool moved, done;
    clock_gettime(CLOCK_MONOTONIC, &since);
    for (uint32_t turn = 0;;) {
        TSR_TRY(move_some(w, out, in, &moved, &done, err));
        if (done) return TSR_OK;
        if (!moved) {
            TSR_TRY(wait_a_little(turn++, &since, err));
            continue;
        }
        if (turn >= YIELDS) clock_gettime(CLOCK_MONOTONIC, &since);
        turn = 0;
    }
}
