/* A rank's segment:
 *
 *   | bell |                                              where the rank sleeps when it can do nothing
 *   | for rank 0: filled, emptied | for rank 1: … |     how many slots the owner has filled, how many the reader has emptied
 *   | for rank 0: slot, slot, … | for rank 1: slot, slot, … | …
 *
 * The owner fills the slots for a reader in turn while one is free: where there are more processes than cores, whoever runs
 * gets far before it must wait, and wakes others when there is much for them to do, or when it can do no more itself. The
 * counts go on from one run to the next: after each, all slots are empty.
 *
 * Where the cores of both ranks share a cache, or memory is busy, slots are best left in the caches. Otherwise the owner is
 * quicker past them: it would have to take every line away from the reader's core. The first slots of every run are filled in
 * both ways in turns, both ranks measure, and the rest is filled in the way that took less of their time together. */
#include "live/transfer/transfer.h"

#include <inttypes.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "live/tensor/pack.h"
#include "live/tensor/state_dict.h"
#include "tessera/memory.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

enum { LINE = 64, SPINS = 500, NAP_NS = 20000000, MOST_SECONDS = 60 };
enum { SLOTS = 4, TRIALS = 8 + SLOTS, LEAST_SLOT = 32, SHORT_RUN = 1024, STAGE = 4096, LEAST_PART = 32 << 10 };
#define NEVER     (UINT64_MAX / 4)      /* sums of it do not wrap */
#define BEST_SLOT ((uint64_t)256 << 10) /* to look at each other's counts costs as much as to copy a few KiB */

/* What either end writes is on a cache line of its own. */
typedef struct channel {
    _Atomic uint64_t filled;
    uint8_t past_caches[SLOTS]; /* how each slot was filled */
    char behind_filled[LINE - sizeof(uint64_t) - SLOTS];
    _Atomic uint64_t emptied;
    _Atomic uint64_t fastest[2]; /* ns to empty a full slot that was left in the caches, and one that was not */
    char behind_emptied[LINE - 3 * sizeof(uint64_t)];
} channel;

/* What the owner knows of a channel. */
typedef struct pace {
    uint32_t tried;      /* full slots, in this run */
    uint64_t fastest[2]; /* ns to fill one */
    bool past_caches;    /* is better: kept from run to run */
} pace;

typedef struct bell {
    _Atomic uint32_t rings;
    _Atomic uint32_t asleep;
} bell;

typedef struct window {
    tsr_comm_kept kept; /* first */
    uint32_t rank, ranks;
    tsr_shared *shared;
    const tsr_allocator *allocator;
    uint64_t slot_bytes;
    uint64_t slots; /* for each reader */
    pace *paces;    /* by reader */
} window;

static bell *bell_of(const window *w, uint32_t rank)
{
    uint64_t bytes;
    return tsr_shared_buffer(w->shared, rank, 0, &bytes);
}

/* The channel from `owner` to `reader`, and one of its slots. */
static channel *channel_of(const window *w, uint32_t owner, uint32_t reader)
{
    uint64_t bytes;
    return (channel *)tsr_shared_buffer(w->shared, owner, 1, &bytes) + reader;
}

static uint8_t *slot_of(const window *w, uint32_t owner, uint32_t reader, uint64_t number)
{
    uint64_t bytes;
    uint8_t *slots = tsr_shared_buffer(w->shared, owner, 2, &bytes);
    const uint64_t place = reader < owner ? reader : reader - 1; /* nobody sends to itself */
    return slots + (place * w->slots + number % w->slots) * w->slot_bytes;
}

/* ---- opening ---- */

uint64_t tsr_machine(void)
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
    uint64_t most = tsr_machine(), least = ~most;
    TSR_TRY(comm->largest(comm, &most, err));
    TSR_TRY(comm->largest(comm, &least, err));
    *one = most == ~least;
    return TSR_OK;
}

static void free_window(tsr_comm_kept *kept)
{
    window *w = (window *)kept;
    tsr_shared_free(w->shared);
    tsr_free(w->allocator, w->paces, w->ranks, sizeof *w->paces);
    tsr_free(w->allocator, w, 1, sizeof *w);
}

/* After a run that all ranks agree went well, the communicator keeps the window if it can. */
static void close_window(tsr_comm *comm, window *w, bool went_well)
{
    if (went_well && comm->kept) *comm->kept = &w->kept;
    else free_window(&w->kept);
}

static tsr_status make_window(tsr_comm *comm, uint64_t slot_bytes, uint64_t slots, const tsr_allocator *allocator,
                              window **out, tsr_error *err)
{
    tsr_error unable = {0};
    const uint64_t sizes[] = {sizeof(bell), comm->size * sizeof(channel), slots * (comm->size - 1) * slot_bytes};
    window *w = tsr_alloc(allocator, 1, sizeof *w, err);
    if (w)
        *w = (window){.kept = {free_window},
                      .rank = comm->rank,
                      .ranks = comm->size,
                      .allocator = allocator,
                      .slot_bytes = slot_bytes,
                      .slots = slots};
    if (w) w->paces = tsr_alloc(allocator, comm->size, sizeof *w->paces, err);
    if (w && w->paces) memset(w->paces, 0, comm->size * sizeof *w->paces);
    tsr_status status = tsr_comm_agree(comm, w && w->paces ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK && tsr_shared_new(comm, sizes, 3, allocator, &w->shared, &unable) == TSR_OK)
        *out = w; /* fresh pages are zeros */
    else close_window(comm, w, false);
    return status;
}

static void choose_size(uint32_t ranks, uint64_t most_bytes, uint64_t *slot_bytes, uint64_t *slots)
{
    const uint64_t others = ranks > 1 ? ranks - 1 : 1;
    const uint64_t bytes = TSR_WINDOW_BYTES / others < most_bytes ? TSR_WINDOW_BYTES / others : most_bytes;
    *slots = bytes / SLOTS < LEAST_SLOT ? 2 : SLOTS;
    *slot_bytes = bytes / *slots / LEAST_SLOT * LEAST_SLOT;
    if (*slot_bytes > BEST_SLOT) *slot_bytes = BEST_SLOT;
}

uint64_t tsr_window_bytes(uint32_t ranks, uint64_t most_bytes)
{
    uint64_t slot_bytes, slots;
    choose_size(ranks, most_bytes, &slot_bytes, &slots);
    return slot_bytes * slots;
}

/* `*out` is NULL where the ranks can have no window. */
static tsr_status open_window(tsr_comm *comm, uint64_t most_bytes, const tsr_allocator *allocator, window **out,
                              tsr_error *err)
{
    bool one = false;
    uint64_t slot_bytes, slots;
    window *kept = comm->kept ? (window *)*comm->kept : NULL; /* on all ranks or on none */
    choose_size(comm->size, most_bytes, &slot_bytes, &slots);
    *out = NULL;
    if (kept && kept->slot_bytes == slot_bytes && kept->slots == slots) {
        *comm->kept = NULL;
        *out = kept;
        return TSR_OK;
    }
    tsr_comm_drop_kept(comm);
    if (comm->size == 1 || slot_bytes == 0) return TSR_OK;
    TSR_TRY(on_one_machine(comm, &one, err));
    /* What is kept lives longer than the caller's allocator may. */
    return one ? make_window(comm, slot_bytes, slots, comm->kept ? &tsr_allocator_libc : allocator, out, err) : TSR_OK;
}

/* ---- moving ---- */

/* The same at both ends. Slots of a short stream, and of the end of a long one, are not filled: so the other rank begins
 * early, and ends soon after this one. */
static uint64_t next_size(const window *w, const tsr_stream *s)
{
    uint64_t bytes = s->left / w->slots;
    if (bytes < LEAST_PART) bytes = LEAST_PART;
    if (bytes > w->slot_bytes) bytes = w->slot_bytes;
    return s->left < bytes ? s->left : bytes;
}

/* The number of bytes of the run that the stream is in, counted from the start of the run; 0 if the stream has ended. */
static uint64_t stream_run(const tsr_stream *s)
{
    return s->at == s->count ? 0 : s->walk.run * s->links[s->at].itemsize;
}

/* Short runs are collected first: written one by one, they would leave lines half full. */
static tsr_status fill_slot(tsr_stream *s, uint8_t *slot, uint64_t bytes, tsr_error *err)
{
    _Alignas(LINE) uint8_t stage[STAGE];
    if (!s->past_caches || stream_run(s) >= SHORT_RUN) return tsr_stream_pack(s, slot, NULL, bytes, err);
    s->past_caches = false;
    for (uint64_t size; bytes; slot += size, bytes -= size) {
        size = bytes < STAGE ? bytes : STAGE;
        TSR_TRY(tsr_stream_pack(s, stage, NULL, size, err));
        tsr_rows_copy(&(tsr_rows){slot, stage, size, size, size, 1, 1, true});
    }
    return TSR_OK;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* All slots that were tried first have been emptied when this one is filled. */
static bool goes_past_caches(pace *p, const channel *c)
{
    if (p->tried == TRIALS) {
        const uint64_t within = atomic_load_explicit(&c->fastest[0], memory_order_relaxed);
        const uint64_t past = atomic_load_explicit(&c->fastest[1], memory_order_relaxed);
        p->past_caches = p->fastest[1] + past < p->fastest[0] + within;
    }
    return p->tried < TRIALS ? p->tried % 2 : p->past_caches;
}

static void keep_fastest(uint64_t *fastest, uint64_t since)
{
    const uint64_t ns = now_ns() - since;
    if (ns < *fastest) *fastest = ns;
}

/* Fills a slot for `peer` if one is free. */
static tsr_status try_send(window *w, uint32_t peer, tsr_stream *s, bool *moved, tsr_error *err)
{
    channel *c = channel_of(w, w->rank, peer);
    pace *p = &w->paces[peer];
    const uint64_t number = atomic_load_explicit(&c->filled, memory_order_relaxed), bytes = next_size(w, s);
    if (s->left == 0 || number - atomic_load_explicit(&c->emptied, memory_order_acquire) == w->slots) return TSR_OK;
    const bool full = bytes == w->slot_bytes, past = full ? goes_past_caches(p, c) : p->past_caches;
    const uint64_t since = p->tried < TRIALS ? now_ns() : 0;
    s->past_caches = past;
    TSR_TRY(fill_slot(s, slot_of(w, w->rank, peer, number), bytes, err));
    if (full && p->tried < TRIALS) keep_fastest(&p->fastest[past], since);
    if (full && p->tried <= TRIALS) p->tried++;
    c->past_caches[number % w->slots] = past;
    atomic_store_explicit(&c->filled, number + 1, memory_order_release);
    *moved = true;
    return TSR_OK;
}

static tsr_status try_receive(const window *w, uint32_t peer, tsr_stream *s, bool *moved, tsr_error *err)
{
    channel *c = channel_of(w, peer, w->rank);
    const uint64_t number = atomic_load_explicit(&c->emptied, memory_order_relaxed), bytes = next_size(w, s);
    if (s->left == 0 || atomic_load_explicit(&c->filled, memory_order_acquire) == number) return TSR_OK;
    const bool past = c->past_caches[number % w->slots];
    const uint64_t since = now_ns();
    uint64_t fastest = atomic_load_explicit(&c->fastest[past], memory_order_relaxed);
    TSR_TRY(tsr_stream_unpack(s, slot_of(w, peer, w->rank, number), NULL, bytes, err));
    if (bytes == w->slot_bytes) keep_fastest(&fastest, since);
    atomic_store_explicit(&c->fastest[past], fastest, memory_order_relaxed);
    atomic_store_explicit(&c->emptied, number + 1, memory_order_release);
    *moved = true;
    return TSR_OK;
}

/* Only the reader writes its side of a channel, and the owner looks there after the reader has begun to read. */
static void forget_paces(window *w)
{
    for (uint32_t peer = 0; peer < w->ranks; peer++) {
        w->paces[peer].tried = 0;
        for (int past = 0; past < 2; past++) {
            w->paces[peer].fastest[past] = NEVER;
            if (peer != w->rank) atomic_store(&channel_of(w, peer, w->rank)->fastest[past], NEVER);
        }
    }
}

/* ---- waiting ---- */

static void ring(const window *w, uint32_t rank)
{
    bell *b = bell_of(w, rank);
    atomic_thread_fence(memory_order_seq_cst); /* what it is woken for is to be seen before it is seen asleep */
    if (!atomic_load_explicit(&b->asleep, memory_order_relaxed)) return;
    atomic_fetch_add(&b->rings, 1);
    syscall(SYS_futex, &b->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Wakes those that have something to do with this rank, at least `least` slots. */
static void ring_others(const window *w, const tsr_stream *in, uint64_t least)
{
    for (uint32_t peer = 0; peer < w->ranks; peer++) {
        if (peer == w->rank) continue;
        const channel *out = channel_of(w, w->rank, peer), *back = channel_of(w, peer, w->rank);
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
static tsr_status move_some(window *w, tsr_stream *out, tsr_stream *in, bool *moved, bool *done, tsr_error *err)
{
    *moved = false;
    *done = true;
    for (uint32_t i = 1; i < w->ranks; i++) {
        const uint32_t to = (w->rank + i) % w->ranks, from = (w->rank + w->ranks - i) % w->ranks;
        TSR_TRY(try_receive(w, from, &in[from], moved, err));
        TSR_TRY(try_send(w, to, &out[to], moved, err));
        *done = *done && out[to].left == 0 && in[from].left == 0;
    }
    return TSR_OK;
}

/* Sleeps until rung for, unless there is something to do once others can see that this rank sleeps. */
static tsr_status move_or_sleep(window *w, tsr_stream *out, tsr_stream *in, bool *moved, bool *done, tsr_error *err)
{
    const struct timespec nap = {0, NAP_NS};
    bell *own = bell_of(w, w->rank);
    const uint32_t rings = atomic_load(&own->rings);
    ring_others(w, in, 1);
    atomic_store(&own->asleep, 1);
    const tsr_status status = move_some(w, out, in, moved, done, err);
    if (status == TSR_OK && !*moved && !*done) syscall(SYS_futex, &own->rings, FUTEX_WAIT, rings, &nap, NULL, 0);
    atomic_store(&own->asleep, 0);
    return status;
}

/* Returns when this rank is done. */
static tsr_status run_window(window *w, tsr_stream *out, tsr_stream *in, const tsr_idle *idle, tsr_error *err)
{
    struct timespec since;
    bool moved, done, working = true;
    forget_paces(w);
    clock_gettime(CLOCK_MONOTONIC, &since);
    for (uint32_t turn = 0;; turn++) {
        if (turn < SPINS) TSR_TRY(move_some(w, out, in, &moved, &done, err));
        else TSR_TRY(move_or_sleep(w, out, in, &moved, &done, err));
        if (moved) ring_others(w, in, (w->slots + 1) / 2);
        if (done) break;
        if (!moved && working) working = idle->work(idle->ctx), moved = working;
        if (moved && turn >= SPINS) clock_gettime(CLOCK_MONOTONIC, &since);
        if (moved) turn = 0;
        else if (turn >= SPINS) TSR_TRY(check_patience(&since, err));
    }
    ring_others(w, in, 1);
    while (working) working = idle->work(idle->ctx);
    return TSR_OK;
}

tsr_status tsr_window_move(tsr_comm *comm, uint64_t most_bytes, const tsr_allocator *allocator, tsr_stream *out,
                           tsr_stream *in, const tsr_idle *idle, bool *done, tsr_error *err)
{
    window *w;
    TSR_TRY(open_window(comm, most_bytes, allocator, &w, err));
    if (!w) return TSR_OK;
    const tsr_status status = tsr_comm_agree(comm, run_window(w, out, in, idle, err), err);
    close_window(comm, w, status == TSR_OK);
    *done = true;
    return status;
}
