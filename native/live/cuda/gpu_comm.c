/* Makes a communicator for host memory work with device memory, through pinned memory in two halves. While the ranks move
 * one piece, the next is copied from the device into the other half, and the previous one is copied from there to the
 * device.
 *
 *   half 0   copied from ─ moved ─────── copied to ─ copied from …
 *   half 1               copied from ─── moved ───── copied to … */
#include "tessera/sys/containers.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/try.h"

#include "live/cuda/backend.h"

#define ALIGNMENT ((size_t)64)

typedef struct half {
    uint8_t *memory;
    tsr_gpu_event *filled;  /* recorded when the data to send has been copied from the device */
    tsr_gpu_event *emptied; /* recorded when the received data has been copied to the device */
} half;

typedef struct staged {
    tsr_comm base;
    tsr_comm *below;
    bool owns_below;
    tsr_gpu_comm_options options;
    tsr_gpu *gpu;
    tsr_gpu_stream *from, *to;
    size_t half_bytes;
    half halves[2];
    nccl_ranks *nccl;
} staged;

static bool on_device(const staged *s, const void *data)
{
    return data && tsr_gpu_place_of(s->gpu, data) == TSR_PLACE_DEVICE;
}

/* Ends the call on all ranks because of a failure of this rank's own device. */
static tsr_status poison(const staged *s, tsr_status mine, tsr_error *err)
{
    tsr_error own = {0};
    if (!err) err = &own;
    tsr_fail(err, mine, "%s", tsr_status_name(mine));
    return s->below->poison(s->below, mine, err);
}

/* The result of a call. `by_ranks`: it failed in a call between the ranks, so all ranks already know. */
typedef struct moved {
    tsr_status status;
    bool by_ranks;
} moved;

static tsr_status finish(staged *s, moved result, tsr_error *err)
{
    tsr_error *wait_err = result.status == TSR_OK ? err : NULL;
    tsr_status from = tsr_gpu_stream_wait(s->from, wait_err), to = tsr_gpu_stream_wait(s->to, wait_err);
    if (result.status != TSR_OK) return result.by_ranks ? result.status : poison(s, result.status, err);
    return from != TSR_OK ? from : to;
}

#define DO(call) \
    do { \
        tsr_status done_ = (call); \
        if (done_ != TSR_OK) return (moved){done_, false}; \
    } while (0)
#define DO_RANKS(call) \
    do { \
        tsr_status done_ = (call); \
        if (done_ != TSR_OK) return (moved){done_, true}; \
    } while (0)

/* ---- broadcast ---- */

static tsr_status fetch_piece(staged *s, half *h, const uint8_t *data, size_t size, tsr_error *err)
{
    TSR_TRY(tsr_gpu_copy(s->from, h->memory, data, size, err));
    return tsr_gpu_event_record(h->filled, s->from, err);
}

static moved broadcast_pieces(staged *s, uint8_t *data, size_t size, uint32_t root, tsr_error *err)
{
    const bool staging = on_device(s, data), is_root = s->base.rank == root;
    const size_t piece = s->half_bytes;
    if (staging && is_root && size) DO(fetch_piece(s, &s->halves[0], data, size < piece ? size : piece, err));
    for (size_t at = 0, number = 0; at < size || number == 0; at += piece, number++) {
        half *h = &s->halves[number % 2], *next = &s->halves[1 - number % 2];
        const size_t bytes = size - at < piece ? size - at : piece, after = at + bytes;
        if (staging && is_root) {
            if (after < size) DO(fetch_piece(s, next, data + after, size - after < piece ? size - after : piece, err));
            DO(tsr_gpu_event_wait(h->filled, err));
        } else if (staging) {
            DO(tsr_gpu_event_wait(h->emptied, err));
        }
        DO_RANKS(s->below->broadcast(s->below, staging ? h->memory : data + at, bytes, root, err));
        if (!staging || is_root) continue;
        DO(tsr_gpu_copy(s->to, data + at, h->memory, bytes, err));
        DO(tsr_gpu_event_record(h->emptied, s->to, err));
    }
    return (moved){TSR_OK, false};
}

/* ---- all-gather ---- */

typedef struct gathering {
    const uint8_t *mine;
    const size_t *sizes;
    uint8_t *all;
    bool from_device, to_device;
    size_t piece; /* bytes of each rank in one round */
    size_t rounds;
    size_t *round_sizes;
} gathering;

static size_t piece_of(const gathering *g, uint32_t rank, size_t round)
{
    const size_t at = round * g->piece;
    if (at >= g->sizes[rank]) return 0;
    return g->sizes[rank] - at < g->piece ? g->sizes[rank] - at : g->piece;
}

/* Copies this rank's piece into the half, which is laid out as [ mine | rank 0 | rank 1 | … ]. */
static tsr_status fetch_mine(staged *s, const gathering *g, size_t round, tsr_error *err)
{
    half *h = &s->halves[round % 2];
    const size_t bytes = piece_of(g, s->base.rank, round);
    if (!g->from_device || bytes == 0) return TSR_OK;
    return fetch_piece(s, h, g->mine + round * g->piece, bytes, err);
}

static tsr_status deliver_all(staged *s, const gathering *g, size_t round, tsr_error *err)
{
    half *h = &s->halves[round % 2];
    const uint8_t *from = h->memory + g->piece;
    uint8_t *to = g->all;
    for (uint32_t r = 0; r < s->base.size; to += g->sizes[r], from += g->round_sizes[r], r++) {
        uint8_t *at = to + round * g->piece;
        if (g->to_device) TSR_TRY(tsr_gpu_copy(s->to, at, from, g->round_sizes[r], err));
        else if (g->round_sizes[r]) memcpy(at, from, g->round_sizes[r]);
    }
    return g->to_device ? tsr_gpu_event_record(h->emptied, s->to, err) : TSR_OK;
}

static moved gather_rounds(staged *s, const gathering *g, tsr_error *err)
{
    DO(fetch_mine(s, g, 0, err));
    for (size_t round = 0; round < g->rounds; round++) {
        half *h = &s->halves[round % 2];
        if (round + 1 < g->rounds) DO(fetch_mine(s, g, round + 1, err));
        for (uint32_t r = 0; r < s->base.size; r++) g->round_sizes[r] = piece_of(g, r, round);
        const size_t bytes = g->round_sizes[s->base.rank];
        if (g->from_device && bytes) DO(tsr_gpu_event_wait(h->filled, err));
        if (g->to_device) DO(tsr_gpu_event_wait(h->emptied, err));
        const uint8_t *mine = g->from_device ? h->memory : bytes ? g->mine + round * g->piece : NULL;
        DO_RANKS(s->below->all_gather(s->below, mine, g->round_sizes, h->memory + g->piece, err));
        DO(deliver_all(s, g, round, err));
    }
    return (moved){TSR_OK, false};
}

static tsr_status staged_all_gather(staged *s, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    const tsr_allocator *allocator = s->gpu->host->allocator;
    gathering g = {
        .mine = mine, .sizes = sizes, .all = all, .from_device = on_device(s, mine), .to_device = on_device(s, all)};
    size_t largest = 0;
    for (uint32_t r = 0; r < s->base.size; r++) largest = sizes[r] > largest ? sizes[r] : largest;
    g.piece = s->half_bytes / (s->base.size + 1) / ALIGNMENT * ALIGNMENT;
    if (g.piece == 0) g.piece = s->half_bytes / (s->base.size + 1);
    g.rounds = largest / g.piece + (largest % g.piece != 0);
    if (g.rounds == 0) g.rounds = 1;
    g.round_sizes = tsr_alloc(allocator, s->base.size, sizeof *g.round_sizes, err);
    const moved result = g.round_sizes ? gather_rounds(s, &g, err) : (moved){TSR_E_NOMEM, false};
    tsr_status status = finish(s, result, err);
    tsr_free(allocator, g.round_sizes, s->base.size, sizeof *g.round_sizes);
    return status;
}

/* ---- exchange ---- */

typedef struct exchanging {
    const tsr_message *sends, *receives;
    size_t send_count, receive_count;
    size_t piece; /* bytes of each message in one round; the same on all ranks */
    size_t rounds;
    tsr_message *lists[2]; /* for each half, the lists of its round: sends, then receives */
    bool *on_device;       /* by message (sends, then receives): its memory is device memory */
} exchanging;

static const tsr_message *message(const exchanging *e, size_t i)
{
    return i < e->send_count ? &e->sends[i] : &e->receives[i - e->send_count];
}

/* Empty messages take part in the first round, because they must also be matched. */
static bool takes_part(const exchanging *e, size_t i, size_t round)
{
    return round == 0 || message(e, i)->size > round * e->piece;
}

/* Lists the pieces of a round. Those in host memory are used in place, those in device memory are in the half. */
static void list_round(staged *s, exchanging *e, size_t round, size_t *sends, size_t *receives)
{
    uint8_t *slot = s->halves[round % 2].memory;
    tsr_message *list = e->lists[round % 2];
    size_t count = 0;
    for (size_t i = 0; i < e->send_count + e->receive_count; i++) {
        if (i == e->send_count) *sends = count;
        if (!takes_part(e, i, round)) continue;
        const tsr_message *whole = message(e, i);
        const size_t at = round * e->piece, left = whole->size - at, bytes = left < e->piece ? left : e->piece;
        list[count++] = (tsr_message){whole->peer,
                                      e->on_device[i] ? slot
                                      : whole->size   ? (uint8_t *)whole->data + at
                                                      : NULL,
                                      bytes};
        if (e->on_device[i]) slot += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (e->receive_count == 0) *sends = count;
    *receives = count - *sends;
}

/* Copies device memory to the half before a round, or from it after one. */
static tsr_status copy_round(staged *s, exchanging *e, size_t round, bool sending, tsr_error *err)
{
    half *h = &s->halves[round % 2];
    const tsr_message *piece = e->lists[round % 2];
    for (size_t i = 0; i < e->send_count + e->receive_count; i++) {
        if (!takes_part(e, i, round)) continue;
        if (e->on_device[i] && sending && i < e->send_count)
            TSR_TRY(tsr_gpu_copy(s->from, piece->data, (uint8_t *)message(e, i)->data + round * e->piece, piece->size, err));
        if (e->on_device[i] && !sending && i >= e->send_count)
            TSR_TRY(tsr_gpu_copy(s->to, (uint8_t *)message(e, i)->data + round * e->piece, piece->data, piece->size, err));
        piece++;
    }
    return tsr_gpu_event_record(sending ? h->filled : h->emptied, sending ? s->from : s->to, err);
}

static moved exchange_rounds(staged *s, exchanging *e, tsr_error *err)
{
    size_t sends[2], receives[2];
    list_round(s, e, 0, &sends[0], &receives[0]);
    DO(copy_round(s, e, 0, true, err));
    for (size_t round = 0; round < e->rounds; round++) {
        const unsigned now = round % 2, other = 1 - now;
        half *h = &s->halves[now];
        if (round + 1 < e->rounds) {
            DO(tsr_gpu_event_wait(s->halves[other].emptied, err));
            list_round(s, e, round + 1, &sends[other], &receives[other]);
            DO(copy_round(s, e, round + 1, true, err));
        }
        DO(tsr_gpu_event_wait(h->filled, err));
        const tsr_message *list = e->lists[now];
        DO_RANKS(s->below->exchange(s->below, list, sends[now], list + sends[now], receives[now], err));
        DO(copy_round(s, e, round, false, err));
    }
    return (moved){TSR_OK, false};
}

/* The size of pieces and the number of rounds must be the same on all ranks, which takes two small collectives. */
static moved agree_on_rounds(staged *s, exchanging *e, tsr_error *err)
{
    const size_t count = e->send_count + e->receive_count;
    uint64_t most = count ? count : 1, rounds = 1;
    DO_RANKS(s->below->largest(s->below, &most, err));
    e->piece = s->half_bytes / most / ALIGNMENT * ALIGNMENT;
    if (e->piece == 0)
        DO(tsr_fail(err, TSR_E_LIMIT, "gpu exchange: %llu messages are too many for %zu bytes of pinned memory",
                    (unsigned long long)most, 2 * s->half_bytes));
    for (size_t i = 0; i < count; i++) {
        const size_t own = message(e, i)->size / e->piece + (message(e, i)->size % e->piece != 0);
        if (own > rounds) rounds = own;
    }
    DO_RANKS(s->below->largest(s->below, &rounds, err));
    e->rounds = (size_t)rounds;
    return (moved){TSR_OK, false};
}

static moved staged_exchange(staged *s, exchanging *e, tsr_error *err)
{
    const tsr_allocator *allocator = s->gpu->host->allocator;
    const size_t count = e->send_count + e->receive_count;
    tsr_message *lists = tsr_alloc(allocator, count + 1, 2 * sizeof *lists, err);
    e->on_device = tsr_alloc(allocator, count + 1, sizeof *e->on_device, err);
    moved result = {lists && e->on_device ? TSR_OK : TSR_E_NOMEM, false};
    for (size_t i = 0; i < count && result.status == TSR_OK; i++) e->on_device[i] = on_device(s, message(e, i)->data);
    e->lists[0] = lists;
    e->lists[1] = lists ? lists + count : NULL;
    if (result.status == TSR_OK) result = agree_on_rounds(s, e, err);
    if (result.status == TSR_OK) result = exchange_rounds(s, e, err);
    tsr_free(allocator, e->on_device, count + 1, sizeof *e->on_device);
    tsr_free(allocator, lists, count + 1, 2 * sizeof *lists);
    return result;
}

/* ---- messages to oneself, and libraries that accept device memory ---- */

/* Copies the messages to this rank itself, and removes them from the lists. If they do not match, `e` keeps all messages. */
static tsr_status take_own(staged *s, exchanging *e, tsr_message *rest, tsr_error *err)
{
    size_t sends = 0, receives = 0, next = 0;
    for (size_t i = 0; i < e->send_count; i++) {
        const tsr_message *from = &e->sends[i];
        if (from->peer != s->base.rank) {
            rest[sends++] = *from;
            continue;
        }
        while (next < e->receive_count && e->receives[next].peer != s->base.rank) next++;
        if (next == e->receive_count || e->receives[next].size != from->size) return TSR_OK;
        TSR_TRY(tsr_gpu_copy(s->to, e->receives[next++].data, from->data, from->size, err));
    }
    while (next < e->receive_count && e->receives[next].peer != s->base.rank) next++;
    if (next < e->receive_count) return TSR_OK;
    for (size_t i = 0; i < e->receive_count; i++) {
        if (e->receives[i].peer != s->base.rank) rest[sends + receives++] = e->receives[i];
    }
    e->sends = rest;
    e->receives = rest + sends;
    e->send_count = sends;
    e->receive_count = receives;
    return TSR_OK;
}

/* Gathers in place, with one broadcast per rank, so that the library does not copy this rank's part itself. */
static moved direct_all_gather(staged *s, const void *mine, const size_t *sizes, uint8_t *all, tsr_error *err)
{
    uint8_t *at = all;
    for (uint32_t r = 0; r < s->base.rank; r++) at += sizes[r];
    DO(tsr_gpu_copy(s->to, at, mine, sizes[s->base.rank], err));
    DO(tsr_gpu_stream_wait(s->to, err));
    at = all;
    for (uint32_t r = 0; r < s->base.size; at += sizes[r++]) DO_RANKS(s->below->broadcast(s->below, at, sizes[r], r, err));
    return (moved){TSR_OK, false};
}

/* ---- the communicator ---- */

/* Whether NCCL can be used: all memory must be device memory, on all ranks. */
static tsr_status all_on_device(staged *s, bool mine, bool *everywhere, tsr_error *err)
{
    uint64_t misses = !mine;
    *everywhere = false;
    if (!s->nccl) return TSR_OK;
    TSR_TRY(s->below->largest(s->below, &misses, err));
    *everywhere = misses == 0;
    return TSR_OK;
}

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    staged *s = (staged *)comm;
    bool everywhere;
    if (s->options.way == TSR_GPU_COMM_DIRECT) return finish(s, direct_all_gather(s, mine, sizes, all, err), err);
    TSR_TRY(all_on_device(s, (sizes[comm->rank] == 0 || on_device(s, mine)) && on_device(s, all), &everywhere, err));
    return everywhere ? tsr_nccl_all_gather(s->nccl, mine, sizes, all, err) : staged_all_gather(s, mine, sizes, all, err);
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    staged *s = (staged *)comm;
    bool everywhere;
    if (s->options.way == TSR_GPU_COMM_DIRECT) return s->below->broadcast(s->below, data, size, root, err);
    TSR_TRY(all_on_device(s, size == 0 || on_device(s, data), &everywhere, err));
    if (everywhere) return tsr_nccl_broadcast(s->nccl, data, size, root, err);
    return finish(s, broadcast_pieces(s, data, size, root, err), err);
}

static moved exchange_rest(staged *s, exchanging *e, tsr_message *rest, tsr_error *err)
{
    bool everywhere, mine = true;
    if (!rest) return (moved){TSR_E_NOMEM, false};
    DO(take_own(s, e, rest, err));
    if (s->options.way == TSR_GPU_COMM_DIRECT)
        return (moved){s->below->exchange(s->below, e->sends, e->send_count, e->receives, e->receive_count, err), true};
    for (size_t i = 0; s->nccl && i < e->send_count + e->receive_count; i++)
        mine = mine && (message(e, i)->size == 0 || on_device(s, message(e, i)->data));
    DO_RANKS(all_on_device(s, mine, &everywhere, err));
    if (!everywhere) return staged_exchange(s, e, err);
    return (moved){tsr_nccl_exchange(s->nccl, e->sends, e->send_count, e->receives, e->receive_count, err), true};
}

static tsr_status exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err)
{
    staged *s = (staged *)comm;
    const tsr_allocator *allocator = s->gpu->host->allocator;
    exchanging e = {.sends = sends, .receives = receives, .send_count = send_count, .receive_count = receive_count};
    tsr_message *rest = tsr_alloc(allocator, send_count + receive_count + 1, sizeof *rest, err);
    tsr_status status = finish(s, exchange_rest(s, &e, rest, err), err);
    tsr_free(allocator, rest, send_count + receive_count + 1, sizeof *rest);
    return status;
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    tsr_comm *below = ((staged *)comm)->below;
    return below->largest(below, value, err);
}

static tsr_status poison_call(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    tsr_comm *below = ((staged *)comm)->below;
    return below->poison(below, mine, err);
}

static void close_comm(tsr_comm *comm)
{
    staged *s = (staged *)comm;
    tsr_nccl_close(s->nccl);
    for (unsigned i = 0; i < 2; i++) {
        tsr_gpu_event_free(s->halves[i].filled);
        tsr_gpu_event_free(s->halves[i].emptied);
        tsr_gpu_host_free(s->gpu, s->halves[i].memory);
    }
    tsr_gpu_stream_free(s->from);
    tsr_gpu_stream_free(s->to);
    if (s->owns_below && s->below) s->below->close(s->below);
    tsr_free(s->gpu->host->allocator, s, 1, sizeof *s);
}

static tsr_status split(tsr_comm *comm, uint32_t group, uint32_t order, tsr_comm **out, tsr_error *err)
{
    staged *s = (staged *)comm;
    tsr_comm *below;
    *out = NULL;
    TSR_TRY(s->below->split(s->below, group, order, &below, err));
    if (!below) return TSR_OK;
    tsr_status status = tsr_gpu_comm_new(below, s->gpu, &s->options, out, err);
    if (status == TSR_OK) ((staged *)*out)->owns_below = true;
    else below->close(below);
    return status;
}

static tsr_status prepare(staged *s, tsr_error *err)
{
    TSR_TRY(tsr_gpu_stream_new(s->gpu, &s->from, err));
    TSR_TRY(tsr_gpu_stream_new(s->gpu, &s->to, err));
    if (s->options.way == TSR_GPU_COMM_DIRECT) return TSR_OK;
    for (unsigned i = 0; i < 2; i++) {
        TSR_TRY(tsr_gpu_event_new(s->gpu, &s->halves[i].filled, err));
        TSR_TRY(tsr_gpu_event_new(s->gpu, &s->halves[i].emptied, err));
        TSR_TRY(tsr_gpu_host_alloc(s->gpu, s->half_bytes, (void **)&s->halves[i].memory, err));
    }
    return TSR_OK;
}

tsr_status tsr_gpu_comm_new(tsr_comm *below, tsr_gpu *gpu, const tsr_gpu_comm_options *options, tsr_comm **out,
                            tsr_error *err)
{
    tsr_error own = {0};
    if (!err) err = &own;
    *out = NULL;
    staged *s = tsr_alloc(gpu->host->allocator, 1, sizeof *s, err);
    tsr_status status = s ? TSR_OK : TSR_E_NOMEM;
    if (s) {
        *s = (staged){.base = {below->rank, below->size, all_gather, broadcast, exchange, largest, split, poison_call,
                               close_comm, true, below->kept},
                      .below = below,
                      .gpu = gpu};
        if (options) s->options = *options;
        size_t bytes = s->options.stage_bytes ? s->options.stage_bytes : TSR_GPU_STAGE_DEFAULT_BYTES;
        if (bytes < TSR_GPU_STAGE_LEAST_BYTES) bytes = TSR_GPU_STAGE_LEAST_BYTES;
        s->half_bytes = bytes / 2 / ALIGNMENT * ALIGNMENT;
        status = prepare(s, err);
    }
    status = tsr_comm_agree(below, status, err);
    if (status == TSR_OK && s->options.way == TSR_GPU_COMM_NCCL) status = tsr_nccl_open(below, gpu, &s->nccl, err);
    if (status == TSR_OK) *out = &s->base;
    else if (s) close_comm(&s->base);
    return status;
}
