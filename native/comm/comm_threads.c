/* Collectives between threads.
 *
 * In each call, a rank posts what it gives and wants, waits for all ranks, checks that all are in the same call, copies what
 * the others posted, and waits for all again. Posts are only read between the first and the last wait, so copying needs no
 * lock.
 *
 *     rank 0   post ──┐         copy ──┐
 *     rank 1   post ──┼─ all ── copy ──┼─ all ─ done
 *     rank 2   post ──┘         copy ──┘ */
#include "tessera/comm_threads.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "comm/comm_call.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- threads ---- */

typedef struct group group;

/* The arguments of one rank in one call. */
typedef struct post {
    tsr_comm_call call;
    const void *data;
    const size_t *sizes;
    uint64_t value;
    const tsr_message *sends;
    size_t send_count;
    const tsr_error *failure; /* the error of a poisoned rank */
    const tsr_error *verdict; /* what this rank found in the others' posts; it is set while they are looking, too */
    group *made;              /* set by rank 0 of a new group */
} post;

typedef struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const tsr_allocator *allocator;
    group *groups; /* the open ones that were split off */
} world;

typedef struct member member;

struct group {
    world *world;
    uint32_t size;
    uint32_t arrived;
    uint64_t generation;
    bool broken; /* a rank ended without closing the group */
    uint32_t gone;
    uint32_t open;      /* members that have not closed it */
    const post **posts; /* by rank */
    member **members;   /* by rank */
    group *next;
};

struct member {
    tsr_comm base;
    group *group;
    uint32_t thread; /* its number in the world */
    tsr_comm_kept *kept;
    tsr_error failed;
};

typedef struct simulated {
    member member; /* in the whole world */
    tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err);
    void *arg;
    pthread_t thread;
    bool started;
    tsr_status status;
    tsr_error error;
} simulated;

/* ---- waiting for all ranks ---- */

/* Waits until all ranks have arrived. A rank for which this succeeds is not affected by what happens afterwards. */
static tsr_status meet(group *g, tsr_error *err)
{
    pthread_mutex_lock(&g->world->lock);
    uint64_t generation = g->generation;
    if (!g->broken && ++g->arrived == g->size) {
        g->arrived = 0;
        g->generation++;
        pthread_cond_broadcast(&g->world->changed);
    }
    while (!g->broken && g->generation == generation) pthread_cond_wait(&g->world->changed, &g->world->lock);
    bool met = g->generation != generation;
    uint32_t who = g->gone;
    pthread_mutex_unlock(&g->world->lock);
    return met ? TSR_OK : tsr_call_raise_left(who, err);
}

static void break_group(group *g, uint32_t thread)
{
    for (uint32_t r = 0; r < g->size && !g->broken; r++) {
        if (!g->members[r] || g->members[r]->thread != thread) continue;
        g->broken = true;
        g->gone = r;
    }
}

/* Marks an ended thread as gone in every group that it did not close. */
static void leave(group *everybody, uint32_t thread)
{
    world *w = everybody->world;
    pthread_mutex_lock(&w->lock);
    break_group(everybody, thread);
    for (group *g = w->groups; g; g = g->next) break_group(g, thread);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Returns the first failure, or the first verdict, of all posts. It is the same on every rank. */
static tsr_status first_posted(const group *g, bool verdicts, tsr_error *err)
{
    for (uint32_t r = 0; r < g->size; r++) {
        const tsr_error *f = verdicts ? g->posts[r]->verdict : g->posts[r]->failure;
        if (!f) continue;
        const char *text = *f->message ? f->message : tsr_status_name(f->status);
        return tsr_raise(err, f->status, f->byte_position, "rank %u: %s", (unsigned)r, text);
    }
    return TSR_OK;
}

/* Checks that all ranks are in the same call with the same sizes. */
static tsr_status check_posts(const group *g, tsr_error *err)
{
    const tsr_comm_call *zero = &g->posts[0]->call;
    tsr_status status = first_posted(g, false, err);
    for (uint32_t r = 1; r < g->size && status == TSR_OK; r++) {
        if (!tsr_call_equal(zero, &g->posts[r]->call)) status = tsr_call_raise(zero, r, &g->posts[r]->call, err);
    }
    return status == TSR_OK ? tsr_call_check_root(zero->root, g->size, err) : status;
}

/* ---- one call ---- */

/* What a rank does between the waits. `check`, which may be NULL, examines the others' posts. If it fails on one rank, all
 * ranks return that failure, and none copies. */
typedef struct action {
    tsr_status (*check)(member *m, void *out, tsr_error *err);
    void (*copy)(member *m, void *out);
    void *out;
} action;

static tsr_status check_own(member *m, post *mine, const action *a, tsr_error *err)
{
    tsr_error found = {0};
    if (!a->check) return TSR_OK;
    if (a->check(m, a->out, &found) != TSR_OK) mine->verdict = &found;
    tsr_status status = meet(m->group, err);
    if (status == TSR_OK) status = first_posted(m->group, true, err);
    tsr_error ignored = {0};
    meet(m->group, &ignored); /* other ranks may read `found` until here */
    return status;
}

static tsr_status attempt(member *m, post *mine, const action *a, tsr_error *err)
{
    group *g = m->group;
    g->posts[m->base.rank] = mine;
    tsr_status status = meet(g, err);
    if (status != TSR_OK) return status;
    status = check_posts(g, err);
    if (status == TSR_OK) status = check_own(m, mine, a, err);
    if (status == TSR_OK) a->copy(m, a->out);
    tsr_status met = meet(g, err);
    return status != TSR_OK ? status : met;
}

static tsr_status run_call(tsr_comm *comm, post *mine, const action *a, tsr_error *err)
{
    member *m = (member *)comm;
    if (m->failed.status == TSR_OK) attempt(m, mine, a, &m->failed);
    if (m->failed.status == TSR_OK) return TSR_OK;
    return tsr_raise_again(err, m->failed.status, &m->failed);
}

static void copy_all(member *m, void *out)
{
    const group *g = m->group;
    char *at = out;
    for (uint32_t r = 0; r < g->size; r++) {
        size_t size = g->posts[r]->sizes[r];
        if (size) memcpy(at, g->posts[r]->data, size);
        at += size;
    }
}

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    post p = {.call = tsr_call_all_gather(sizes, comm->size), .data = mine, .sizes = sizes};
    return run_call(comm, &p, &(action){NULL, copy_all, all}, err);
}

static void copy_root(member *m, void *out)
{
    const post *root = m->group->posts[m->group->posts[m->base.rank]->call.root];
    if (root->call.bytes && root->data != out) memcpy(out, root->data, (size_t)root->call.bytes);
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    post p = {.call = {.kind = TSR_CALL_BROADCAST, .root = root, .bytes = size}, .data = data};
    return run_call(comm, &p, &(action){NULL, copy_root, data}, err);
}

static void copy_largest(member *m, void *out)
{
    const group *g = m->group;
    uint64_t *value = out;
    for (uint32_t r = 0; r < g->size; r++) *value = g->posts[r]->value > *value ? g->posts[r]->value : *value;
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    post p = {.call = {.kind = TSR_CALL_LARGEST}, .value = *value};
    return run_call(comm, &p, &(action){NULL, copy_largest, value}, err);
}

static void copy_nothing(member *m, void *out)
{
    (void)m;
    (void)out;
}

static tsr_status poison(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    tsr_error told = {.byte_position = TSR_NO_POSITION};
    if (err) told = *err;
    told.status = mine;
    if (err) *err = (tsr_error){0};
    post p = {.call = {.kind = TSR_CALL_POISON}, .failure = &told};
    return run_call(comm, &p, &(action){NULL, copy_nothing, NULL}, err);
}

/* ---- messages ---- */

typedef struct receiving {
    const tsr_message *messages;
    size_t count;
} receiving;

static tsr_status check_messages(member *m, void *out, tsr_error *err)
{
    const group *g = m->group;
    const receiving *in = out;
    const post *mine = g->posts[m->base.rank];
    tsr_status status = tsr_call_check_peers(mine->sends, mine->send_count, g->size, err);
    if (status == TSR_OK) status = tsr_call_check_peers(in->messages, in->count, g->size, err);
    for (uint32_t r = 0; r < g->size && status == TSR_OK; r++) {
        tsr_traffic sent = tsr_traffic_with(g->posts[r]->sends, g->posts[r]->send_count, m->base.rank);
        tsr_traffic expected = tsr_traffic_with(in->messages, in->count, r);
        status = tsr_traffic_check(r, &sent, m->base.rank, &expected, err);
    }
    return status;
}

static void copy_messages(member *m, void *out)
{
    const receiving *in = out;
    for (uint32_t r = 0; r < m->group->size; r++) {
        const tsr_message *sent = m->group->posts[r]->sends; /* r sends as many as this rank expects, as was checked */
        for (size_t i = 0; i < in->count; i++) {
            const tsr_message *want = &in->messages[i];
            if (want->peer != r) continue;
            while (sent->peer != m->base.rank) sent++;
            if (sent->size) memcpy(want->data, sent->data, sent->size);
            sent++;
        }
    }
}

static tsr_status exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err)
{
    post p = {.call = {.kind = TSR_CALL_EXCHANGE}, .sends = sends, .send_count = send_count};
    receiving in = {receives, receive_count};
    return run_call(comm, &p, &(action){check_messages, copy_messages, &in}, err);
}

/* ---- groups ---- */

typedef struct choice {
    uint32_t group, order;
} choice;

/* The place of this rank in a new group: `rank` of `size`. `first` is the old rank of its rank 0. */
typedef struct place {
    uint32_t rank, size, first;
} place;

static choice choice_of(const group *g, uint32_t rank)
{
    const uint64_t value = g->posts[rank]->value;
    return (choice){(uint32_t)(value >> 32), (uint32_t)value};
}

static bool goes_before(choice a, uint32_t rank_a, choice b, uint32_t rank_b)
{
    return a.order != b.order ? a.order < b.order : rank_a < rank_b;
}

static void find_place(member *m, void *out)
{
    place *p = out;
    const choice mine = choice_of(m->group, m->base.rank);
    *p = (place){0, 0, m->base.rank};
    for (uint32_t r = 0; r < m->group->size; r++) {
        const choice other = choice_of(m->group, r);
        if (other.group != mine.group) continue;
        p->size++;
        p->rank += goes_before(other, r, mine, m->base.rank);
        if (goes_before(other, r, choice_of(m->group, p->first), p->first)) p->first = r;
    }
}

static void free_group(group *g)
{
    const tsr_allocator *allocator = g->world->allocator;
    for (uint32_t r = 0; g->members && r < g->size; r++) {
        if (g->members[r]) tsr_comm_drop_kept(&g->members[r]->base);
        tsr_free(allocator, g->members[r], 1, sizeof(member));
    }
    tsr_free(allocator, g->members, g->size, sizeof *g->members);
    tsr_free(allocator, g->posts, g->size, sizeof *g->posts);
    tsr_free(allocator, g, 1, sizeof *g);
}

static group *new_group(world *w, uint32_t size, tsr_error *err)
{
    group *g = tsr_alloc(w->allocator, 1, sizeof *g, err);
    if (!g) return NULL;
    *g = (group){.world = w, .size = size, .open = size};
    g->members = tsr_alloc(w->allocator, size, sizeof *g->members, err);
    for (uint32_t r = 0; g->members && r < size; r++) g->members[r] = NULL;
    g->posts = g->members ? tsr_alloc(w->allocator, size, sizeof *g->posts, err) : NULL;
    if (g->posts) return g;
    free_group(g);
    return NULL;
}

static void close_group(tsr_comm *comm)
{
    group *g = ((member *)comm)->group;
    world *w = g->world;
    pthread_mutex_lock(&w->lock);
    break_group(g, ((member *)comm)->thread); /* for ranks that still make calls */
    pthread_cond_broadcast(&w->changed);
    bool last = --g->open == 0;
    for (group **at = &w->groups; last && *at; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    pthread_mutex_unlock(&w->lock);
    if (last) free_group(g);
}

typedef struct joining {
    place at;
    member *child;
} joining;

/* Each member adds itself. No rank uses the group before all have done so. */
static void join_group(member *m, void *out)
{
    joining *j = out;
    group *g = m->group->posts[j->at.first]->made;
    if (!g) return;
    *j->child = *m;
    j->child->base.rank = j->at.rank;
    j->child->base.size = j->at.size;
    j->child->base.close = close_group;
    j->child->base.kept = &j->child->kept;
    j->child->kept = NULL;
    j->child->group = g;
    pthread_mutex_lock(&g->world->lock);
    g->members[j->at.rank] = j->child;
    if (j->at.rank == 0) {
        g->next = g->world->groups;
        g->world->groups = g;
    }
    pthread_mutex_unlock(&g->world->lock);
}

static tsr_status split(tsr_comm *comm, uint32_t group_number, uint32_t order, tsr_comm **out, tsr_error *err)
{
    member *m = (member *)comm;
    world *w = m->group->world;
    joining j = {.child = NULL};
    tsr_error failure = {0};
    *out = NULL;
    post ask = {.call = {.kind = TSR_CALL_SPLIT}, .value = (uint64_t)group_number << 32 | order};
    tsr_status status = run_call(comm, &ask, &(action){NULL, find_place, &j.at}, err);
    if (status != TSR_OK) return status;
    const bool wanted = group_number != TSR_COMM_NO_GROUP;
    post tell = {.call = {.kind = TSR_CALL_SPLIT}};
    if (wanted) j.child = tsr_alloc(w->allocator, 1, sizeof *j.child, &failure);
    if (j.child && j.at.rank == 0) tell.made = new_group(w, j.at.size, &failure);
    if (failure.status != TSR_OK) tell.failure = &failure;
    status = run_call(comm, &tell, &(action){NULL, join_group, &j}, err);
    if (status == TSR_OK) {
        *out = wanted ? &j.child->base : NULL;
        return TSR_OK;
    }
    if (tell.made) free_group(tell.made);
    tsr_free(w->allocator, j.child, 1, sizeof *j.child);
    return status;
}

/* ---- running ---- */

static void close_nothing(tsr_comm *comm)
{
    (void)comm; /* it belongs to tsr_comm_threads_run */
}

static void *run_member(void *ctx)
{
    simulated *s = ctx;
    s->status = s->body(s->arg, &s->member.base, &s->error);
    tsr_comm_drop_kept(&s->member.base);
    leave(s->member.group, s->member.thread);
    return NULL;
}

static void start_members(group *g, simulated *ranks)
{
    for (uint32_t r = 0; r < g->size; r++) {
        ranks[r].started = pthread_create(&ranks[r].thread, NULL, run_member, &ranks[r]) == 0;
        if (!ranks[r].started) leave(g, r);
    }
    for (uint32_t r = 0; r < g->size; r++) {
        if (ranks[r].started) pthread_join(ranks[r].thread, NULL);
    }
}

/* Returns the failure of the lowest rank that did not fail because of another rank. */
static tsr_status first_failure(uint32_t count, const simulated *ranks, tsr_error *err)
{
    const simulated *found = NULL;
    for (uint32_t r = count; r-- > 0;) {
        const simulated *s = &ranks[r];
        if (!s->started) return tsr_fail(err, TSR_E_IO, "comm: cannot start a thread for rank %u", (unsigned)r);
        bool consequence = s->status == TSR_E_IO && strstr(s->error.message, "has left");
        if (s->status != TSR_OK && (!consequence || !found)) found = s;
    }
    if (!found) return TSR_OK;
    if (err && err->status == TSR_OK) *err = found->error;
    return found->status;
}

static tsr_status run_world(world *w, group *everybody, simulated *ranks, tsr_error *err)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    start_members(everybody, ranks);
    tsr_status status = first_failure(everybody->size, ranks, err);
    for (group *g = w->groups, *next; g; g = next) { /* groups that are still open because a body failed */
        next = g->next;
        free_group(g);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    return status;
}

tsr_status tsr_comm_threads_run(const tsr_allocator *allocator, uint32_t ranks,
                                tsr_status (*body)(void *arg, tsr_comm *comm, tsr_error *err), void *arg, tsr_error *err)
{
    simulated *all = tsr_alloc(allocator, ranks, sizeof *all, err);
    const post **posts = tsr_alloc(allocator, ranks, sizeof *posts, err);
    member **members = tsr_alloc(allocator, ranks, sizeof *members, err);
    world w = {.allocator = allocator};
    group everybody = {.world = &w, .size = ranks, .posts = posts, .members = members};
    tsr_status status = TSR_E_NOMEM;
    if (all && posts && members) {
        for (uint32_t r = 0; r < ranks; r++) {
            const tsr_comm base = {r,     ranks,  all_gather,    broadcast, exchange,           largest,
                                   split, poison, close_nothing, false,     &all[r].member.kept};
            all[r] = (simulated){.member = {.base = base, .group = &everybody, .thread = r}, .body = body, .arg = arg};
            members[r] = &all[r].member;
        }
        status = run_world(&w, &everybody, all, err);
    }
    tsr_free(allocator, members, ranks, sizeof *members);
    tsr_free(allocator, posts, ranks, sizeof *posts);
    tsr_free(allocator, all, ranks, sizeof *all);
    return status;
}
