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
#include "comm/mpi_pulse.h"

#include "tessera/sys/alloc.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

void tsr_mpi_abort(MPI_Comm ranks, const char *format, ...)
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
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "comm: the watchdog cannot reach its neighbor");
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
    if (neighbor == DEAD) tsr_mpi_abort(p->ranks, "rank %d is dead", p->watched);
    if (neighbor == RUNNING || p->silence < p->limit) return;
    tsr_mpi_abort(p->ranks, "rank %d has not been heard of for %.0f s: it is %s", p->watched, p->silence,
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
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "comm: cannot start the watchdog's thread");
}

tsr_status tsr_pulse_start(MPI_Comm ranks, double limit, const tsr_allocator *allocator, tsr_pulse **out, tsr_error *err)
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
        tsr_mpi_abort(ranks, "the watchdog cannot be started"); /* the other ranks are already watching */
    }
    if (own != MPI_COMM_NULL) MPI_Comm_free(&own);
    tsr_free(allocator, p, 1, sizeof *p);
    return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "comm: a rank cannot set up its watchdog");
}

void tsr_pulse_stop(tsr_pulse *p)
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
