/* Collectives over MPI.
 *
 * Every call begins with one reduction by which all ranks learn whether they make the same call:
 *
 *     rank 0   enter ─┐             move data
 *     rank 1   enter ─┼─ reduce ──▶ move data      or, on every rank, the same error
 *     rank 2   enter ─┘             move data
 *
 * The reduction is the maximum of values and of their complements. The results are complements of each other only if all
 * ranks had the same value. Ranks wait for late ones in this step, and leave the core to processes that may need it. After
 * it, all ranks are present. */
#include "tessera/comm_mpi.h"

#include <fcntl.h>
#include <inttypes.h>
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tessera/memory.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct tsr_pulse tsr_pulse;

/* ---- mpi pulse ---- */

/* A ring of heartbeats: rank r tells rank r − 1 that it is alive, and listens to rank r + 1. If a rank dies, the neighbor
 * that no longer hears it ends the job for all ranks.
 *
 *     0 ◀── 1 ◀── 2 ◀── 3 ◀── 0
 *
 * If both are processes of the same machine, the neighbor also checks whether the process exists, because a process
 * on an overloaded machine may fall silent without being dead.
 *
 * Time is counted in turns of the thread. A job that was suspended as a whole therefore does not find all ranks dead when it
 * continues. */

enum { ABORT_SECONDS = 5, ABORT_STATUS = 2 };

#define BEAT_SECONDS  1.0
#define TURN_SECONDS  0.25
#define GRACE_SECONDS 3.0

typedef enum beat { ALIVE = 1, GOODBYE = 2 } beat;

/* Identifies a process on a machine. */
typedef struct identity {
    char machine[40]; /* the id of its boot */
    uint64_t pid_namespace;
    uint64_t process, started;
} identity;

struct tsr_pulse {
    MPI_Comm ranks;
    identity neighbor; /* process 0: its process cannot be looked up here */
    int rank, watched, listener;
    double limit;
    const tsr_allocator *allocator;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool stopping; /* protected by `lock` */
    /* only used by the thread */
    double silence, since_beat; /* in seconds */
    bool heard_goodbye, sent_goodbye;
    int outgoing;
    MPI_Request send;
};

/* Hides the nine lines that Open MPI's MPI_Abort prints, which explain less than the line before them. */
static void silence_stderr(void)
{
    const int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
}

/* When a job is killed, launchers lose what a rank has just printed. This gives them time to read it. */
static void wait_for_launcher(void)
{
    const struct timespec pause = {0, 300 * 1000000L};
    nanosleep(&pause, NULL);
}

/* Ends the job: prints a line to stderr and calls MPI_Abort. This process exits after at most five seconds in any case. */
static void mpi_abort(MPI_Comm ranks, const char *format, ...)
{
    va_list arguments;
    char text[512];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "tessera: %s; ending the job\n", text);
    fflush(stderr);
    silence_stderr();
    alarm(ABORT_SECONDS);
    wait_for_launcher();
    MPI_Abort(ranks, ABORT_STATUS);
    _exit(ABORT_STATUS);
}

/* ---- processes of this machine ---- */

/* Returns the state of a process, and when it started, from /proc (proc(5)). Returns '\0' if there is no such process. The
 * name in parentheses may contain anything. */
static char process_state(uint64_t process, uint64_t *started)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", process);
    FILE *file = fopen(path, "r");
    if (!file) return '\0';
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ') return '\0';
    const char state = at[2];
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    *started = at ? strtoull(at, NULL, 10) : 0;
    return state;
}

static identity own_identity(void)
{
    identity own;
    struct stat info;
    memset(&own, 0, sizeof own);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(own.machine, sizeof own.machine, file)) own.machine[0] = '\0';
        fclose(file);
    }
    if (stat("/proc/self/ns/pid", &info) == 0) own.pid_namespace = info.st_ino;
    own.process = (uint64_t)getpid();
    if (!*own.machine || !own.pid_namespace || !process_state(own.process, &own.started)) own.process = 0;
    return own;
}

static tsr_status exchange_identities(tsr_pulse *p, tsr_error *err)
{
    const identity own = own_identity();
    if (MPI_Sendrecv(&own, sizeof own, MPI_BYTE, p->listener, 0, &p->neighbor, sizeof own, MPI_BYTE, p->watched, 0, p->ranks,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return tsr_fail(err, TSR_E_IO, "comm: the watchdog cannot reach its neighbor");
    const identity *other = &p->neighbor;
    if (!own.process || strcmp(own.machine, other->machine) != 0 || own.pid_namespace != other->pid_namespace)
        p->neighbor.process = 0;
    return TSR_OK;
}

typedef enum state { UNKNOWN, RUNNING, STOPPED, DEAD } life;

static life neighbor_state(const tsr_pulse *p)
{
    uint64_t started = 0;
    if (!p->neighbor.process) return UNKNOWN;
    const char state = process_state(p->neighbor.process, &started);
    if (!state || started != p->neighbor.started || state == 'Z' || state == 'X') return DEAD;
    return state == 'T' || state == 't' ? STOPPED : RUNNING;
}

/* ---- the ring ---- */

/* Errors while sending or receiving are ignored: they count as silence. */
static void receive_beats(tsr_pulse *p)
{
    int there = 1, incoming = 0;
    while (MPI_Iprobe(p->watched, 0, p->ranks, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there) {
        if (MPI_Recv(&incoming, 1, MPI_INT, p->watched, 0, p->ranks, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        p->silence = 0;
        if (incoming == GOODBYE) p->heard_goodbye = true;
    }
}

static void send_beat(tsr_pulse *p, beat what)
{
    int done = 1;
    if (p->sent_goodbye) return;
    if (p->send != MPI_REQUEST_NULL && (MPI_Test(&p->send, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)) return;
    p->outgoing = what;
    if (MPI_Isend(&p->outgoing, 1, MPI_INT, p->listener, 0, p->ranks, &p->send) != MPI_SUCCESS) return;
    p->since_beat = 0;
    p->sent_goodbye = what == GOODBYE;
}

/* Returns false once the thread must stop. */
static bool sleep_one_turn(tsr_pulse *p)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(TURN_SECONDS * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping && pthread_cond_timedwait(&p->woken, &p->lock, &until) == 0) {
    }
    bool go_on = !p->stopping;
    pthread_mutex_unlock(&p->lock);
    p->silence += TURN_SECONDS;
    p->since_beat += TURN_SECONDS;
    return go_on;
}

/* A launcher may know more about a dead process, so it has GRACE_SECONDS to act first. */
static void check_silence(const tsr_pulse *p)
{
    if (p->heard_goodbye || p->silence < (p->limit < GRACE_SECONDS ? p->limit : GRACE_SECONDS)) return;
    const life neighbor = neighbor_state(p);
    if (neighbor == DEAD) mpi_abort(p->ranks, "rank %d is dead", p->watched);
    if (neighbor == RUNNING || p->silence < p->limit) return;
    mpi_abort(p->ranks, "rank %d has not been heard of for %.0f s: it is %s", p->watched, p->silence,
              neighbor == STOPPED ? "stopped" : "dead or cut off");
}

/* When the communicator is freed, no message may be in flight, so both neighbors say goodbye. */
static void exchange_goodbyes(tsr_pulse *p)
{
    const struct timespec nap = {0, 1000000};
    int sent = 0;
    while (!p->heard_goodbye || !p->sent_goodbye || !sent) {
        send_beat(p, GOODBYE);
        receive_beats(p);
        if (p->sent_goodbye && !sent) MPI_Test(&p->send, &sent, MPI_STATUS_IGNORE);
        check_silence(p);
        nanosleep(&nap, NULL);
        p->silence += 0.001;
    }
}

static void *run_watchdog(void *ctx)
{
    tsr_pulse *p = ctx;
    do {
        receive_beats(p);
        if (p->since_beat >= BEAT_SECONDS) send_beat(p, ALIVE);
        check_silence(p);
    } while (sleep_one_turn(p));
    exchange_goodbyes(p);
    return NULL;
}

static tsr_status start_thread(tsr_pulse *p, tsr_error *err)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->woken, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&p->thread, NULL, run_watchdog, p) == 0) return TSR_OK;
    return tsr_fail(err, TSR_E_IO, "comm: cannot start the watchdog's thread");
}

/* Starts the watchdog. Collective. `limit` is in seconds; a negative one means no watchdog. *out is NULL if there is nothing
 * to watch, or if MPI was initialized without MPI_THREAD_MULTIPLE. Errors: TSR_E_NOMEM on all ranks. Ends the job if a
 * thread cannot be started. */
static tsr_status pulse_start(MPI_Comm ranks, double limit, const tsr_allocator *allocator, tsr_pulse **out, tsr_error *err)
{
    int level = 0, size = 0, failed = 0;
    *out = NULL;
    MPI_Query_thread(&level);
    MPI_Comm_size(ranks, &size);
    if (size < 2 || level < MPI_THREAD_MULTIPLE || limit < 0) return TSR_OK;
    tsr_pulse *p = tsr_alloc(allocator, 1, sizeof *p, err);
    if (p) *p = (tsr_pulse){.limit = limit, .allocator = allocator, .since_beat = BEAT_SECONDS, .send = MPI_REQUEST_NULL};
    MPI_Comm own = MPI_COMM_NULL;
    if (MPI_Comm_dup(ranks, &own) != MPI_SUCCESS) failed = 1;
    if (!p) failed = 1;
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, ranks);
    if (!failed) {
        p->ranks = own;
        MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
        MPI_Comm_rank(own, &p->rank);
        p->watched = (p->rank + 1) % size;
        p->listener = (p->rank + size - 1) % size;
        if (exchange_identities(p, err) == TSR_OK && start_thread(p, err) == TSR_OK) {
            *out = p;
            return TSR_OK;
        }
        mpi_abort(ranks, "the watchdog cannot be started"); /* the other ranks are already watching */
    }
    if (own != MPI_COMM_NULL) MPI_Comm_free(&own);
    tsr_free(allocator, p, 1, sizeof *p);
    return tsr_fail(err, TSR_E_NOMEM, "comm: a rank cannot set up its watchdog");
}

/* Stops the watchdog. Collective. Accepts NULL. */
static void pulse_stop(tsr_pulse *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->woken);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->woken);
    pthread_mutex_destroy(&p->lock);
    MPI_Comm_free(&p->ranks);
    tsr_free(p->allocator, p, 1, sizeof *p);
}

/* ---- mpi ---- */

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif
#include <sched.h>
#include <time.h>

#include "comm/comm_call.h"
#include "tessera/comm.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/options.h"

/* Only Open MPI has a function for this. */
bool tsr_mpi_takes_device_memory(void)
{
#ifdef MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

/* The messages of one rank in an exchange. */
typedef struct tsr_mpi_exchange {
    const tsr_message *sends, *receives;
    size_t send_count, receive_count;
    /* Set by mpi_exchange_prepare: indices into the lists, ordered by the distance to the peer, ahead of this rank (sends)
     * or behind it (receives). */
    size_t *send_order, *receive_order;
    uint32_t rank, ranks;
} tsr_mpi_exchange;

/* ---- mpi rounds ---- */

/* Moves messages in pieces, in an order that cannot deadlock.
 *
 * In step s, rank r sends to r + s and receives from r − s. Every piece has a position (step, message, piece) in an order
 * that its sender and its receiver agree on. Both keep the first WINDOW unfinished pieces of their lists posted, so the
 * first unfinished piece overall is always posted on both sides. */

enum { WINDOW = 32 };

static int mpi_broadcast(MPI_Comm ranks, void *data, size_t size, uint32_t root, size_t round_bytes)
{
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < size && code == MPI_SUCCESS; at += round_bytes) {
        size_t count = size - at < round_bytes ? size - at : round_bytes;
        code = MPI_Bcast((char *)data + at, (int)count, MPI_BYTE, (int)root, ranks);
    }
    return code;
}

/* Gathers in a single call what fits in one round. If it is more, gathers the part of one rank after the other. `scratch` has two
 * ints per rank. */
static int mpi_all_gather(MPI_Comm ranks, const void *mine, const size_t *sizes, void *all, size_t round_bytes, int *scratch)
{
    int rank, size, code = MPI_SUCCESS, *displacements;
    size_t total = 0;
    char *at = all;
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &size);
    displacements = scratch + size;
    for (int r = 0; r < size && total <= round_bytes; r++) {
        scratch[r] = (int)(sizes[r] < round_bytes ? sizes[r] : round_bytes);
        displacements[r] = (int)total;
        total += sizes[r] <= round_bytes ? sizes[r] : round_bytes + 1;
    }
    if (total <= round_bytes)
        return MPI_Allgatherv(mine, scratch[rank], MPI_BYTE, all, scratch, displacements, MPI_BYTE, ranks);
    for (int r = 0; r < size && code == MPI_SUCCESS; at += sizes[r++]) {
        if (r == rank && sizes[r]) memcpy(at, mine, sizes[r]);
        code = mpi_broadcast(ranks, at, sizes[r], (uint32_t)r, round_bytes);
    }
    return code;
}

/* ---- exchange ---- */

static uint32_t step_of(const tsr_mpi_exchange *x, uint32_t peer, bool sends)
{
    return sends ? (peer + x->ranks - x->rank) % x->ranks : (x->rank + x->ranks - peer) % x->ranks;
}

/* A counting sort, which is stable: messages between two ranks keep the order of their list. `starts` has ranks + 1
 * places. */
static void sort_by_step(const tsr_mpi_exchange *x, bool sends, size_t *starts, size_t *order)
{
    const tsr_message *messages = sends ? x->sends : x->receives;
    const size_t count = sends ? x->send_count : x->receive_count;
    for (uint32_t s = 0; s <= x->ranks; s++) starts[s] = 0;
    for (size_t i = 0; i < count; i++) starts[step_of(x, messages[i].peer, sends) + 1]++;
    for (uint32_t s = 0; s < x->ranks; s++) starts[s + 1] += starts[s];
    for (size_t i = 0; i < count; i++) order[starts[step_of(x, messages[i].peer, sends)]++] = i;
}

/* The peers of all messages must be valid ranks. Errors: TSR_E_NOMEM. */
static tsr_status mpi_exchange_prepare(tsr_mpi_exchange *x, uint32_t rank, uint32_t ranks, const tsr_allocator *allocator,
                                       tsr_error *err)
{
    x->rank = rank;
    x->ranks = ranks;
    size_t *starts = tsr_alloc(allocator, (size_t)ranks + 1, sizeof *starts, err);
    x->send_order = tsr_alloc(allocator, x->send_count, sizeof *x->send_order, err);
    x->receive_order = tsr_alloc(allocator, x->receive_count, sizeof *x->receive_order, err);
    const bool enough = starts && x->send_order && x->receive_order;
    if (enough) {
        sort_by_step(x, true, starts, x->send_order);
        sort_by_step(x, false, starts, x->receive_order);
    }
    tsr_free(allocator, starts, (size_t)ranks + 1, sizeof *starts);
    return enough ? TSR_OK : TSR_E_NOMEM;
}

static void mpi_exchange_free(tsr_mpi_exchange *x, const tsr_allocator *allocator)
{
    tsr_free(allocator, x->send_order, x->send_count, sizeof *x->send_order);
    tsr_free(allocator, x->receive_order, x->receive_count, sizeof *x->receive_order);
}

/* The messages of one direction. Their pieces are posted in order when requests become free. */
typedef struct lane {
    const tsr_message *messages;
    const size_t *order;
    size_t count, next, at; /* the next message, and the byte in it */
    bool sends;
} lane;

typedef struct traffic {
    const tsr_mpi_exchange *exchange;
    MPI_Comm ranks;
    size_t round_bytes;
    lane lanes[2];
    MPI_Request requests[2 * WINDOW]; /* the first half is for sends */
} traffic;

/* Finds the next piece that needs a request. Skips messages that are empty or for this rank itself. */
static bool next_piece(const traffic *t, lane *l, const tsr_message **message, size_t *at, size_t *size)
{
    for (; l->next < l->count; l->next++, l->at = 0) {
        const tsr_message *m = &l->messages[l->order[l->next]];
        if (m->peer == t->exchange->rank || l->at >= m->size) continue;
        *message = m;
        *at = l->at;
        *size = m->size - l->at < t->round_bytes ? m->size - l->at : t->round_bytes;
        l->at += *size;
        return true;
    }
    return false;
}

static int post_pieces(traffic *t, lane *l)
{
    MPI_Request *requests = t->requests + (l->sends ? 0 : WINDOW);
    const tsr_message *m;
    size_t at, size;
    int code = MPI_SUCCESS;
    for (int i = 0; i < WINDOW && code == MPI_SUCCESS; i++) {
        if (requests[i] != MPI_REQUEST_NULL) continue;
        if (!next_piece(t, l, &m, &at, &size)) break;
        char *data = (char *)m->data + at;
        if (l->sends) code = MPI_Isend(data, (int)size, MPI_BYTE, (int)m->peer, 0, t->ranks, &requests[i]);
        else code = MPI_Irecv(data, (int)size, MPI_BYTE, (int)m->peer, 0, t->ranks, &requests[i]);
    }
    return code;
}

static void copy_own(const tsr_mpi_exchange *x)
{
    size_t s = 0;
    for (size_t r = 0; r < x->receive_count; r++) {
        const tsr_message *want = &x->receives[r];
        if (want->peer != x->rank) continue;
        while (x->sends[s].peer != x->rank) s++;
        if (want->size) memcpy(want->data, x->sends[s].data, want->size);
        s++;
    }
}

static int mpi_exchange_run(const tsr_mpi_exchange *x, MPI_Comm ranks, size_t round_bytes)
{
    traffic t = {.exchange = x,
                 .ranks = ranks,
                 .round_bytes = round_bytes,
                 .lanes = {{x->sends, x->send_order, x->send_count, 0, 0, true},
                           {x->receives, x->receive_order, x->receive_count, 0, 0, false}}};
    int code = MPI_SUCCESS, finished[2 * WINDOW], count = 0;
    for (int i = 0; i < 2 * WINDOW; i++) t.requests[i] = MPI_REQUEST_NULL;
    copy_own(x);
    while (code == MPI_SUCCESS && count != MPI_UNDEFINED) { /* undefined: there are no more requests */
        code = post_pieces(&t, &t.lanes[1]);
        if (code == MPI_SUCCESS) code = post_pieces(&t, &t.lanes[0]);
        if (code == MPI_SUCCESS) code = MPI_Waitsome(2 * WINDOW, t.requests, &count, finished, MPI_STATUSES_IGNORE);
    }
    return code;
}

typedef struct member {
    tsr_comm base;
    MPI_Comm ranks;
    tsr_pulse *pulse; /* the watchdog; NULL for a communicator that was split off */
    size_t round_bytes;
    const tsr_allocator *allocator;
    int *counts; /* for counts and displacements: 2 × places */
    uint32_t places;
    tsr_comm_kept *kept;
    tsr_error failed; /* the error that all further calls return */
    bool broken;      /* `failed` is an error that the other ranks may not know of */
} member;

/* ---- errors of MPI ---- */

/* Returns TSR_OK, or TSR_E_IO for a failure of MPI, which the other ranks may not notice. */
static tsr_status check_mpi(member *m, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;
    if (code == MPI_SUCCESS) return TSR_OK;
    MPI_Error_string(code, text, &size);
    m->broken = true;
    return tsr_fail(&m->failed, TSR_E_IO, "comm: %s failed: %s", what, text);
}

static tsr_status raise_again(const member *m, tsr_error *err)
{
    return tsr_raise_again(err, m->failed.status, &m->failed);
}

/* ---- entering a call ---- */

/* Waits by spinning briefly, and then leaves the core to other processes. Signals still end the process as usual. */
static int wait_for_request(MPI_Request *request)
{
    struct timespec nap = {0, 20000};
    int done = 0;
    for (unsigned turn = 0;; turn++) {
        int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done) return code;
        if (turn < 2000) continue;
        if (turn < 4000) {
            sched_yield();
            continue;
        }
        nanosleep(&nap, NULL);
        if (nap.tv_nsec < 1000000) nap.tv_nsec += nap.tv_nsec / 4;
    }
}

enum { POISONED, WHO, NOT_WHO, BYTES, NOT_BYTES, DIGEST, NOT_DIGEST, VALUE, WORDS };

static void fill_summary(const member *m, const tsr_comm_call *call, uint64_t value, uint64_t summary[WORDS])
{
    const uint64_t who = (uint64_t)call->kind << 32 | call->root;
    summary[POISONED] = call->kind == TSR_CALL_POISON ? (uint64_t)m->base.size - m->base.rank : 0;
    summary[WHO] = who;
    summary[NOT_WHO] = ~who;
    summary[BYTES] = call->bytes;
    summary[NOT_BYTES] = ~call->bytes;
    summary[DIGEST] = call->digest;
    summary[NOT_DIGEST] = ~call->digest;
    summary[VALUE] = value;
}

/* The lowest poisoned rank broadcasts its error. All ranks call this. */
static tsr_status receive_failure(member *m, uint32_t root, const tsr_error *mine)
{
    tsr_error told = {0};
    if (root == m->base.rank) told = *mine;
    tsr_status status = check_mpi(m, MPI_Bcast(&told, sizeof told, MPI_BYTE, (int)root, m->ranks), "broadcasting a failure");
    if (status != TSR_OK) return status;
    told.message[sizeof told.message - 1] = 0;
    return tsr_raise(&m->failed, told.status, told.byte_position, "rank %u: %s", (unsigned)root,
                     *told.message ? told.message : tsr_status_name(told.status));
}

/* Finds a rank whose call differs from that of rank 0, without memory for the calls of all ranks. All ranks call this. */
static tsr_status find_mismatch(member *m, const tsr_comm_call *call)
{
    tsr_comm_call zero = *call;
    tsr_status status = check_mpi(m, MPI_Bcast(&zero, sizeof zero, MPI_BYTE, 0, m->ranks), "comparing calls");
    if (status != TSR_OK) return status;
    struct {
        int value, rank;
    } left = {call->kind != TSR_CALL_CLOSE, (int)m->base.rank}, other = {tsr_call_equal(call, &zero), (int)m->base.rank};
    status = check_mpi(m, MPI_Allreduce(MPI_IN_PLACE, &left, 1, MPI_2INT, MPI_MINLOC, m->ranks), "comparing calls");
    if (status != TSR_OK) return status;
    if (left.value == 0) return tsr_call_raise_left((uint32_t)left.rank, &m->failed);
    status = check_mpi(m, MPI_Allreduce(MPI_IN_PLACE, &other, 1, MPI_2INT, MPI_MINLOC, m->ranks), "comparing calls");
    if (status != TSR_OK) return status;
    tsr_comm_call theirs = *call;
    status = check_mpi(m, MPI_Bcast(&theirs, sizeof theirs, MPI_BYTE, other.rank, m->ranks), "comparing calls");
    if (status != TSR_OK) return status;
    return tsr_call_raise(&zero, (uint32_t)other.rank, &theirs, &m->failed);
}

/* Waits until all ranks have entered `call`, and compares their calls. `mine` is used only with TSR_CALL_POISON. *value
 * becomes the largest value of all ranks. */
static tsr_status compare_with_all(member *m, const tsr_comm_call *call, const tsr_error *mine, uint64_t *value)
{
    uint64_t summary[WORDS], merged[WORDS];
    MPI_Request request;
    fill_summary(m, call, value ? *value : 0, summary);
    int code = MPI_Iallreduce(summary, merged, WORDS, MPI_UINT64_T, MPI_MAX, m->ranks, &request);
    tsr_status status = check_mpi(m, code == MPI_SUCCESS ? wait_for_request(&request) : code, "waiting for the other ranks");
    if (status != TSR_OK) return status;
    if (merged[POISONED]) return receive_failure(m, m->base.size - (uint32_t)merged[POISONED], mine);
    if (merged[WHO] != ~merged[NOT_WHO] || merged[BYTES] != ~merged[NOT_BYTES] || merged[DIGEST] != ~merged[NOT_DIGEST])
        return find_mismatch(m, call);
    if (value) *value = merged[VALUE];
    return TSR_OK;
}

/* Like compare_with_all, but poisons the call if this rank has an error of its own. */
static tsr_status enter(member *m, const tsr_comm_call *call, const tsr_error *mine, uint64_t *value)
{
    static const tsr_comm_call poisoned = {.kind = TSR_CALL_POISON};
    if (m->failed.status != TSR_OK) return m->failed.status;
    return compare_with_all(m, mine->status == TSR_OK ? call : &poisoned, mine, value);
}

static tsr_status leave(const member *m, tsr_error *err)
{
    return m->failed.status == TSR_OK ? TSR_OK : raise_again(m, err);
}

/* ---- the calls ---- */

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    member *m = (member *)comm;
    tsr_error none = {0};
    const tsr_comm_call call = tsr_call_all_gather(sizes, comm->size);
    if (enter(m, &call, &none, NULL) == TSR_OK) {
        check_mpi(m, mpi_all_gather(m->ranks, mine, sizes, all, m->round_bytes, m->counts), "gathering to all");
    }
    return leave(m, err);
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    member *m = (member *)comm;
    tsr_error own = {0};
    const tsr_comm_call call = {.kind = TSR_CALL_BROADCAST, .root = root, .bytes = size};
    if (enter(m, &call, &own, NULL) == TSR_OK && tsr_call_check_root(root, comm->size, &m->failed) == TSR_OK) {
        check_mpi(m, mpi_broadcast(m->ranks, data, size, root, m->round_bytes), "broadcasting");
    }
    return leave(m, err);
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    member *m = (member *)comm;
    tsr_error none = {0};
    const tsr_comm_call call = {.kind = TSR_CALL_LARGEST};
    enter(m, &call, &none, value);
    return leave(m, err);
}

static tsr_status poison(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    member *m = (member *)comm;
    tsr_error told = {.byte_position = TSR_NO_POSITION};
    if (err) told = *err;
    told.status = mine;
    if (err) *err = (tsr_error){0};
    const tsr_comm_call call = {.kind = TSR_CALL_POISON};
    enter(m, &call, &told, NULL);
    return leave(m, err);
}

/* Compares what every rank sends to this one with what this rank expects. */
static tsr_status compare_traffic(member *m, const tsr_mpi_exchange *x, tsr_traffic *told, tsr_error *mine)
{
    const uint32_t ranks = m->base.size;
    tsr_traffic *heard = told + ranks;
    for (uint32_t r = 0; r < ranks; r++) told[r] = tsr_traffic_with(x->sends, x->send_count, r);
    const int words = sizeof *told / sizeof(uint64_t);
    tsr_status status =
        check_mpi(m, MPI_Alltoall(told, words, MPI_UINT64_T, heard, words, MPI_UINT64_T, m->ranks), "announcing messages");
    for (uint32_t r = 0; r < ranks && status == TSR_OK; r++) {
        tsr_traffic expected = tsr_traffic_with(x->receives, x->receive_count, r);
        if (tsr_traffic_check(r, &heard[r], m->base.rank, &expected, mine) != TSR_OK) break;
    }
    return status;
}

static tsr_status prepare_exchange(const member *m, tsr_mpi_exchange *x, tsr_traffic **told, tsr_error *mine)
{
    const uint32_t ranks = m->base.size;
    tsr_status status = tsr_call_check_peers(x->sends, x->send_count, ranks, mine);
    if (status == TSR_OK) status = tsr_call_check_peers(x->receives, x->receive_count, ranks, mine);
    if (status != TSR_OK) return status;
    *told = tsr_alloc(m->allocator, ranks, 2 * sizeof **told, mine);
    if (*told) return mpi_exchange_prepare(x, m->base.rank, ranks, m->allocator, mine);
    return TSR_E_NOMEM;
}

static tsr_status mpi_exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                               size_t receive_count, tsr_error *err)
{
    member *m = (member *)comm;
    tsr_error own = {0};
    tsr_traffic *told = NULL;
    tsr_mpi_exchange x = {.sends = sends, .send_count = send_count, .receives = receives, .receive_count = receive_count};
    const tsr_comm_call call = {.kind = TSR_CALL_EXCHANGE};
    prepare_exchange(m, &x, &told, &own);
    if (enter(m, &call, &own, NULL) == TSR_OK && compare_traffic(m, &x, told, &own) == TSR_OK &&
        enter(m, &call, &own, NULL) == TSR_OK)
        check_mpi(m, mpi_exchange_run(&x, m->ranks, m->round_bytes), "exchanging messages");
    mpi_exchange_free(&x, m->allocator);
    tsr_free(m->allocator, told, comm->size, 2 * sizeof *told);
    return leave(m, err);
}

/* ---- split, open and close ---- */

static void free_member(member *m)
{
    if (!m) return;
    tsr_free(m->allocator, m->counts, m->places, 2 * sizeof *m->counts);
    tsr_free(m->allocator, m, 1, sizeof *m);
}

/* Allocates a communicator for up to `ranks` ranks. */
static member *new_member(const tsr_allocator *allocator, size_t round_bytes, uint32_t ranks, tsr_error *err)
{
    member *m = tsr_alloc(allocator, 1, sizeof *m, err);
    if (!m) return NULL;
    *m = (member){.round_bytes = round_bytes, .allocator = allocator, .places = ranks};
    m->counts = tsr_alloc(allocator, ranks, 2 * sizeof *m->counts, err);
    if (m->counts) return m;
    free_member(m);
    return NULL;
}

static void close_member(tsr_comm *comm)
{
    member *m = (member *)comm;
    tsr_error none = {0};
    const tsr_comm_call call = {.kind = TSR_CALL_CLOSE};
    enter(m, &call, &none, NULL);
    if (m->broken) mpi_abort(m->ranks, "rank %u cannot agree with the others: %s", (unsigned)comm->rank, m->failed.message);
    tsr_comm_drop_kept(comm);
    pulse_stop(m->pulse);
    MPI_Comm_free(&m->ranks);
    free_member(m);
}

static void fill_member(member *m, MPI_Comm ranks);

static tsr_status split(tsr_comm *comm, uint32_t group, uint32_t order, tsr_comm **out, tsr_error *err)
{
    member *m = (member *)comm;
    tsr_error own = {0};
    MPI_Comm ranks = MPI_COMM_NULL;
    uint64_t number = group == TSR_COMM_NO_GROUP ? 0 : group, place = order;
    const tsr_comm_call call = {.kind = TSR_CALL_SPLIT};
    const bool wanted = group != TSR_COMM_NO_GROUP;
    *out = NULL;
    member *child = wanted ? new_member(m->allocator, m->round_bytes, comm->size, &own) : NULL;
    if (number > INT32_MAX || place > INT32_MAX)
        tsr_fail(&own, TSR_E_LIMIT, "comm: groups and orders of a split can be at most 2147483647");
    if (enter(m, &call, &own, NULL) == TSR_OK)
        check_mpi(m, MPI_Comm_split(m->ranks, wanted ? (int)number : MPI_UNDEFINED, (int)place, &ranks), "splitting");
    if (m->failed.status != TSR_OK || !wanted) {
        free_member(child);
        return leave(m, err);
    }
    fill_member(child, ranks);
    *out = &child->base;
    return TSR_OK;
}

static void fill_member(member *m, MPI_Comm ranks)
{
    int rank, size;
    MPI_Comm_set_errhandler(ranks, MPI_ERRORS_RETURN);
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &size);
    m->ranks = ranks;
    m->base = (tsr_comm){(uint32_t)rank, (uint32_t)size, all_gather,   broadcast, mpi_exchange, largest,
                         split,          poison,         close_member, false,     &m->kept};
}

tsr_status tsr_comm_mpi_open(MPI_Comm ranks, const tsr_comm_mpi_options *options, const tsr_allocator *allocator,
                             tsr_comm **out, tsr_error *err)
{
    tsr_comm_mpi_options own;
    int begun = 0, ended = 0;
    MPI_Comm copy;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_comm_mpi_options, err));
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (!begun || ended) return tsr_fail(err, TSR_E_USAGE, "comm: MPI is not initialized");
    if (MPI_Comm_dup(ranks, &copy) != MPI_SUCCESS)
        return tsr_fail(err, TSR_E_IO, "comm: the MPI communicator cannot be duplicated");
    int size = 0;
    MPI_Comm_size(copy, &size);
    size_t round_bytes = own.round_bytes ? own.round_bytes : TSR_MPI_ROUND_BYTES;
    if (round_bytes > TSR_MPI_MOST_ROUND_BYTES) round_bytes = TSR_MPI_MOST_ROUND_BYTES;
    member *m = new_member(allocator, round_bytes, (uint32_t)size, err);
    int failed = !m;
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, copy);
    tsr_status status = failed ? tsr_fail(err, TSR_E_NOMEM, "comm: a rank is out of memory") : TSR_OK;
    if (status == TSR_OK) {
        fill_member(m, copy);
        status = pulse_start(copy, own.peer_limit != 0 ? own.peer_limit : TSR_MPI_PEER_LIMIT, allocator, &m->pulse, err);
    }
    if (status == TSR_OK) {
        *out = &m->base;
        return TSR_OK;
    }
    MPI_Comm_free(&copy);
    free_member(m);
    return status;
}

static bool finalizes; /* tsr_mpi_start initialized MPI */

tsr_status tsr_mpi_start(int *argc, char ***argv, tsr_error *err)
{
    int begun = 0, level;
    MPI_Initialized(&begun);
    if (begun) return TSR_OK;
    if (MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return tsr_fail(err, TSR_E_IO, "comm: MPI cannot be initialized");
    finalizes = true;
    return TSR_OK;
}

void tsr_mpi_end(void)
{
    int ended = 0;
    MPI_Finalized(&ended);
    if (finalizes && !ended) MPI_Finalize();
    finalizes = false;
}
