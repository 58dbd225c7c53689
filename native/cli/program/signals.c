/* See session.h. The handler only posts a semaphore, because a handler may do little more than that. */
#include "cli/program/session.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "io/sys.h"

/* The longest time that a signal waits. A publication that hangs (a file system that does not answer) is then abandoned, as
 * with SIGKILL. The whole cleanup, with requests to a server that does not answer, ends before the 30 seconds after which Slurm and
 * Kubernetes send SIGKILL. */
enum { LONGEST_HOLD_SECONDS = 20, LONGEST_CLEANUP_SECONDS = 25 };

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { ENDING = sizeof ending / sizeof *ending };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the list; held while a signal has to wait */
static cli_cleanup *first;
static sem_t arrived;
static atomic_int received; /* the first signal, by which the process will end */
static bool is_ready;       /* handlers and thread are installed */
static bool heeds_launcher;
static bool is_elsewhere;     /* in a process that handles its signals itself */
static atomic_bool announced; /* the launcher has sent SIGCONT */

static void on_signal(int number)
{
    const int saved = errno;
    int none = 0;
    if (atomic_compare_exchange_strong(&received, &none, number)) sem_post(&arrived);
    errno = saved;
}

static void on_continue(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    (void)number, (void)context;
    if (info->si_code == SI_USER && info->si_pid == getppid()) {
        atomic_store(&announced, true);
        sem_post(&arrived);
    }
    errno = saved;
}

static void die(int number)
{
    sigset_t one;
    signal(number, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
    _exit(128 + number); /* not reached */
}

/* Waits for a signal for at most a tenth of a second. */
static void wait_a_turn(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    sem_timedwait(&arrived, &until);
}

/* A process cannot see that it was stopped. But if it was, more time has passed than it waited, and SIGCONT only continues
 * it. */
static void wait_for_launcher_too(void)
{
    while (!atomic_load(&received)) {
        const double before = tsr_seconds();
        int none = 0;
        wait_a_turn();
        if (atomic_exchange(&announced, false) && tsr_seconds() - before < 0.5)
            atomic_compare_exchange_strong(&received, &none, SIGTERM);
    }
}

/* Tells the user what became of the output. A launcher reports the end of its ranks itself, and after SIGPIPE nobody may be
 * listening. */
static void report(int number, const char *output)
{
    char text[192];
    if (number == SIGPIPE || heeds_launcher) return;
    const int size = snprintf(text, sizeof text, "%stessera: ended by %s; %s\n", isatty(STDERR_FILENO) ? "\n" : "",
                              number == SIGINT    ? "SIGINT"
                              : number == SIGTERM ? "SIGTERM"
                                                  : "SIGHUP",
                              output);
    const ssize_t ignored = write(STDERR_FILENO, text, (size_t)size);
    (void)ignored;
}

static void *end_late(void *unused)
{
    (void)unused;
    for (unsigned left = LONGEST_CLEANUP_SECONDS; left;) left = sleep(left);
    report(atomic_load(&received), "removing the unfinished output took too long, and some of it may be left");
    die(atomic_load(&received));
    return NULL;
}

/* The thread inherits a mask by which it receives no signals. */
static void limit_cleanup(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_late, NULL) == 0) pthread_detach(thread);
}

static void *wait_for_signal(void *unused)
{
    struct timespec until;
    (void)unused;
    if (heeds_launcher) wait_for_launcher_too();
    else
        while (sem_wait(&arrived) != 0) {
        }
    limit_cleanup();
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LONGEST_HOLD_SECONDS;
    if (pthread_mutex_timedlock(&lock, &until) == 0 && first) report(atomic_load(&received), cli_cleanup_run(first));
    die(atomic_load(&received));
    return NULL;
}

/* Starts the thread that acts on signals. Must precede the handlers, with which signals would otherwise be ignored. The
 * thread itself receives no signals. */
static bool start_thread(void)
{
    sigset_t all, before;
    pthread_t thread;
    if (sem_init(&arrived, 0, 0) != 0) return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&thread, NULL, wait_for_signal, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) pthread_detach(thread);
    return started;
}

/* Installs the handlers. Signals that are ignored at the start of the program (nohup, background jobs of a shell) stay
 * ignored. */
static void install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    if (is_elsewhere || is_ready || !start_thread()) return;
    is_ready = true;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ENDING; i++) {
        if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL) sigaction(ending[i], &action, NULL);
    }
    if (!heeds_launcher) return;
    action.sa_flags |= SA_SIGINFO;
    action.sa_sigaction = on_continue;
    sigaction(SIGCONT, &action, NULL);
}

void cli_signals_heed_launcher(void)
{
    heeds_launcher = true;
}

void cli_signals_leave(void)
{
    is_elsewhere = true;
}

void cli_cleanup_add(cli_cleanup *cleanup)
{
    pthread_mutex_lock(&lock);
    install();
    cleanup->next = first;
    first = cleanup;
    pthread_mutex_unlock(&lock);
}

void cli_cleanup_drop(cli_cleanup *cleanup)
{
    pthread_mutex_lock(&lock);
    for (cli_cleanup **at = &first; *at; at = &(*at)->next) {
        if (*at != cleanup) continue;
        *at = cleanup->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    /* The thread that acts on a signal may not have got the lock yet, and ends the process. */
    while (atomic_load(&received)) pause();
}

void cli_signals_hold(void)
{
    pthread_mutex_lock(&lock);
}

void cli_signals_release(void)
{
    pthread_mutex_unlock(&lock);
}
