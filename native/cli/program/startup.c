/* See session.h. The limit is watched by a thread, because the main thread is inside MPI. Only tessera-mpi contains this
 * file. */
#include "cli/program/session.h"

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cli/program/cli.h"

enum { LIMITS_FOR_INIT = 3, ABORT_SECONDS = 5, MILLISECONDS_TO_READ = 500, MILLISECONDS_TO_SPEAK = 1500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct timespec until; /* protected by the lock */
static bool is_connected, has_ended;
static double limit;
static bool speaks;
static pthread_t thread;
static bool has_thread;

static struct timespec in_seconds(double seconds)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    const long long nanoseconds = at.tv_nsec + (long long)(seconds * 1e9);
    at.tv_sec += (time_t)(nanoseconds / 1000000000);
    at.tv_nsec = (long)(nanoseconds % 1000000000);
    return at;
}

static bool is_over(void)
{
    const struct timespec now = in_seconds(0);
    return now.tv_sec > until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec >= until.tv_nsec);
}

/* When a job is killed, launchers lose what a rank has just printed. The rank that prints therefore waits until it was read
 * before it aborts, and the others give that rank time to print. */
static void wait_for_sentence(void)
{
    const long milliseconds = speaks ? MILLISECONDS_TO_READ : MILLISECONDS_TO_SPEAK;
    const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* Ends this process or the whole job. MPI_Abort also ends ranks on other nodes, but can be called only after MPI_Init. It
 * may hang if MPI is broken, hence the alarm. */
static void give_up(bool aborts, double seconds)
{
    if (speaks) {
        fprintf(stderr,
                "tessera: the ranks did not find each other within %.0f s: one of them died or could not start; run the "
                "command again (TESSERA_PEER_LIMIT sets the limit)\n",
                seconds);
        fflush(stderr);
    }
    alarm(ABORT_SECONDS);
    wait_for_sentence();
    if (aborts) {
        if (!freopen("/dev/null", "w", stderr)) _exit(CLI_TROUBLE);
        MPI_Abort(MPI_COMM_WORLD, CLI_TROUBLE);
    }
    _exit(CLI_TROUBLE);
}

static void *wait_for_ranks(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!has_ended && !is_over()) pthread_cond_timedwait(&changed, &lock, &until);
    const bool gives_up = !has_ended, aborts = is_connected;
    pthread_mutex_unlock(&lock);
    if (gives_up) give_up(aborts, aborts ? limit : limit * LIMITS_FOR_INIT);
    return NULL;
}

void cli_startup_begin(double seconds, bool may_speak)
{
    pthread_condattr_t attributes;
    if (seconds < 0) return; /* no watchdog */
    limit = seconds;
    speaks = may_speak;
    until = in_seconds(seconds * LIMITS_FOR_INIT);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    has_thread = pthread_create(&thread, NULL, wait_for_ranks, NULL) == 0;
}

void cli_startup_connected(void)
{
    if (!has_thread) return;
    pthread_mutex_lock(&lock);
    is_connected = true;
    until = in_seconds(limit);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

void cli_startup_end(void)
{
    if (!has_thread) return;
    pthread_mutex_lock(&lock);
    has_ended = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    has_thread = false;
}
