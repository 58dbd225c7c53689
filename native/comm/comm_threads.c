/* Collectives between threads.
 *
 * Each call is: post what I give and want, wait for all, copy out of what the others posted, wait for all. Posts are only
 * read between the two waits, so that the copying itself needs no lock.
 *
 *     rank 0   post ──┐        copy ──┐
 *     rank 1   post ──┼─ all ─ copy ──┼─ all ─ done
 *     rank 2   post ──┘        copy ──┘
 */
#include "tessera/comm_threads.h"

#include <pthread.h>

typedef enum call_kind { ALL_GATHER, BROADCAST, EXCHANGE, LARGEST } call_kind;

/* What a rank gives and wants in one call. */
typedef struct call {
    call_kind kind;
    const void *data;
    const size_t *sizes;
    size_t size;
    uint32_t root;
    uint64_t value;
    const tsr_message *sends;
    size_t send_count;
} call;

typedef struct group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t size;
    uint32_t arrived;
    uint64_t generation;
    bool broken; /* a rank has left */
    uint32_t gone;
    const call **posts; /* by rank */
} group;

typedef struct member {
    tsr_comm base;
    group *group;
    tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err);
    void *arg;
    pthread_t thread;
    bool started;
    tsr_status status;
    tsr_error error;
} member;

static tsr_status gone(const group *g, tsr_error *err)
{
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "comm: rank %u has left", (unsigned)g->gone);
}

/* Waits until every rank is here. One that was let through keeps its success, whatever happens behind it. */
static tsr_status meet(group *g, tsr_error *err)
{
    pthread_mutex_lock(&g->lock);
    uint64_t generation = g->generation;
    if (!g->broken && ++g->arrived == g->size) {
        g->arrived = 0;
        g->generation++;
        pthread_cond_broadcast(&g->changed);
    }
    while (!g->broken && g->generation == generation) pthread_cond_wait(&g->changed, &g->lock);
    tsr_status status = g->generation == generation ? gone(g, err) : TSR_OK;
    pthread_mutex_unlock(&g->lock);
    return status;
}

static void leave(group *g, uint32_t rank)
{
    pthread_mutex_lock(&g->lock);
    if (!g->broken) g->gone = rank;
    g->broken = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* Whether all ranks are in the same call with the same sizes. */
static tsr_status check_posts(const group *g, const call *mine, tsr_error *err)
{
    for (uint32_t r = 0; r < g->size; r++) {
        const call *other = g->posts[r];
        bool same =
            other->kind == mine->kind && other->root == mine->root && (mine->kind != BROADCAST || other->size == mine->size);
        for (uint32_t i = 0; same && mine->kind == ALL_GATHER && i < g->size; i++) same = other->sizes[i] == mine->sizes[i];
        if (!same)
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "comm: rank %u is in another call, or has other sizes",
                             (unsigned)r);
    }
    return mine->kind == BROADCAST && mine->root >= g->size
               ? tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "comm: there is no rank %u", (unsigned)mine->root)
               : TSR_OK;
}

/* Posts, meets, runs `copy`, meets again: a rank whose copy failed still meets the others. */
static tsr_status run_call(tsr_comm *comm, const call *mine, tsr_status (*copy)(tsr_comm *comm, void *out, tsr_error *err),
                           void *out, tsr_error *err)
{
    group *g = ((member *)comm)->group;
    g->posts[comm->rank] = mine;
    tsr_status status = meet(g, err);
    if (status != TSR_OK) return status;
    status = check_posts(g, mine, err);
    if (status == TSR_OK) status = copy(comm, out, err);
    tsr_status met = meet(g, err);
    return status != TSR_OK ? status : met;
}

static tsr_status copy_all(tsr_comm *comm, void *out, tsr_error *err)
{
    (void)err;
    const group *g = ((member *)comm)->group;
    char *at = out;
    for (uint32_t r = 0; r < g->size; r++) {
        size_t size = g->posts[r]->sizes[r];
        if (size) memcpy(at, g->posts[r]->data, size);
        at += size;
    }
    return TSR_OK;
}

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    call c = {.kind = ALL_GATHER, .data = mine, .sizes = sizes};
    return run_call(comm, &c, copy_all, all, err);
}

static tsr_status copy_root(tsr_comm *comm, void *out, tsr_error *err)
{
    (void)err;
    const group *g = ((member *)comm)->group;
    const call *root = g->posts[g->posts[comm->rank]->root];
    if (root->size && root->data != out) memcpy(out, root->data, root->size);
    return TSR_OK;
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    call c = {.kind = BROADCAST, .data = data, .size = size, .root = root};
    return run_call(comm, &c, copy_root, data, err);
}

static tsr_status copy_largest(tsr_comm *comm, void *out, tsr_error *err)
{
    (void)err;
    const group *g = ((member *)comm)->group;
    uint64_t *value = out;
    for (uint32_t r = 0; r < g->size; r++) *value = g->posts[r]->value > *value ? g->posts[r]->value : *value;
    return TSR_OK;
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    call c = {.kind = LARGEST, .value = *value};
    return run_call(comm, &c, copy_largest, value, err);
}

typedef struct receiving {
    const tsr_message *messages;
    size_t count;
} receiving;

/* The `ordinal`-th message that a rank sends to `to`, or NULL. */
static const tsr_message *nth_to(const call *from, uint32_t to, size_t ordinal)
{
    for (size_t i = 0; i < from->send_count; i++) {
        if (from->sends[i].peer == to && ordinal-- == 0) return &from->sends[i];
    }
    return NULL;
}

static size_t count_to(const call *from, uint32_t to)
{
    size_t count = 0;
    for (size_t i = 0; i < from->send_count; i++) count += from->sends[i].peer == to;
    return count;
}

static tsr_status copy_messages(tsr_comm *comm, void *out, tsr_error *err)
{
    const group *g = ((member *)comm)->group;
    const receiving *in = out;
    size_t waiting = 0;
    for (uint32_t r = 0; r < g->size; r++) waiting += count_to(g->posts[r], comm->rank);
    for (size_t i = 0; i < in->count; i++) {
        const tsr_message *want = &in->messages[i];
        size_t ordinal = 0;
        for (size_t k = 0; k < i; k++) ordinal += in->messages[k].peer == want->peer;
        const tsr_message *sent = want->peer < g->size ? nth_to(g->posts[want->peer], comm->rank, ordinal) : NULL;
        if (!sent || sent->size != want->size) {
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                             "comm: message %zu from rank %u is expected with %zu bytes, but %s", ordinal,
                             (unsigned)want->peer, want->size, sent ? "has another size" : "is not sent");
        }
        if (sent->size) memcpy(want->data, sent->data, sent->size);
    }
    if (waiting != in->count)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "comm: %zu messages are sent here, %zu received", waiting,
                         in->count);
    return TSR_OK;
}

static tsr_status exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err)
{
    call c = {.kind = EXCHANGE, .sends = sends, .send_count = send_count};
    receiving in = {receives, receive_count};
    return run_call(comm, &c, copy_messages, &in, err);
}

static void close_nothing(tsr_comm *comm)
{
    (void)comm; /* belongs to tsr_comm_threads_run */
}

/* ---- running ---- */

static void *run_member(void *ctx)
{
    member *m = ctx;
    m->status = m->body(m->arg, &m->base, &m->error);
    leave(m->group, m->base.rank);
    return NULL;
}

static void start_members(group *g, member *members)
{
    for (uint32_t r = 0; r < g->size; r++) {
        members[r].started = pthread_create(&members[r].thread, NULL, run_member, &members[r]) == 0;
        if (!members[r].started) leave(g, r);
    }
    for (uint32_t r = 0; r < g->size; r++) {
        if (members[r].started) pthread_join(members[r].thread, NULL);
    }
}

/* The lowest rank's failure that is no consequence of another's. */
static tsr_status first_failure(const group *g, const member *members, tsr_error *err)
{
    const member *found = NULL;
    for (uint32_t r = g->size; r-- > 0;) {
        const member *m = &members[r];
        if (!m->started)
            return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "comm: cannot start a thread for rank %u", (unsigned)r);
        bool consequence = m->status == TSR_E_IO && strstr(m->error.message, "has left");
        if (m->status != TSR_OK && (!consequence || !found)) found = m;
    }
    if (!found) return TSR_OK;
    if (err && err->status == TSR_OK) *err = found->error;
    return found->status;
}

tsr_status tsr_comm_threads_run(const tsr_allocator *allocator, uint32_t ranks,
                                tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err), void *arg, tsr_error *err)
{
    member *members = tsr_alloc(allocator, ranks, sizeof *members, err);
    group g = {.size = ranks, .posts = members ? tsr_alloc(allocator, ranks, sizeof *g.posts, err) : NULL};
    tsr_status status = TSR_E_NOMEM;
    if (g.posts) {
        pthread_mutex_init(&g.lock, NULL);
        pthread_cond_init(&g.changed, NULL);
        for (uint32_t r = 0; r < ranks; r++) {
            members[r] = (member){.base = {r, ranks, all_gather, broadcast, exchange, largest, close_nothing},
                                  .group = &g,
                                  .body = body,
                                  .arg = arg};
        }
        start_members(&g, members);
        status = first_failure(&g, members, err);
        pthread_cond_destroy(&g.changed);
        pthread_mutex_destroy(&g.lock);
    }
    tsr_free(allocator, g.posts, ranks, sizeof *g.posts);
    tsr_free(allocator, members, ranks, sizeof *members);
    return status;
}
