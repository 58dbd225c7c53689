/* main() of `tessera-mpi`: runs commands of `tessera` on all ranks of MPI_COMM_WORLD. `tessera` starts it when needed. */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli/program/cli.h"
#include "cli/program/session.h"
#include "tessera/comm_mpi.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/text.h"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

enum { LONGEST_FINALIZE_SECONDS = 10 };

/* ---- the start ---- */

/* Limits the time that ranks may take to find each other.
 *
 * Once a communicator is open, its watchdog notices dead ranks (tessera/comm_mpi.h). But if a rank dies earlier, inside
 * MPI_Init, the others would wait for it there or in the first collective, until the job's time limit.
 * The limit is watched by a thread, because the main thread is inside MPI. */

enum { LIMITS_FOR_INIT = 3, ABORT_SECONDS = 5, MILLISECONDS_TO_READ = 500, MILLISECONDS_TO_SPEAK = 1500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct timespec until; /* protected by the lock */
static bool has_started, has_ended;
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
    const bool gives_up = !has_ended, aborts = has_started;
    pthread_mutex_unlock(&lock);
    if (gives_up) give_up(aborts, aborts ? limit : limit * LIMITS_FOR_INIT);
    return NULL;
}

/* To be called before MPI_Init. Ends the process with status 2 if startup_connected does not follow within three times
 * `limit` seconds: MPI_Init waits for the slowest rank, which may still be loading the program. `speaks`: whether this
 * process prints the reason. */
static void startup_begin(double seconds, bool may_speak)
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

/* To be called after MPI_Init. Ends the job with status 2 if startup_end does not follow within `limit` seconds. */
static void startup_connected(void)
{
    if (!has_thread) return;
    pthread_mutex_lock(&lock);
    has_started = true;
    until = in_seconds(limit);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* To be called when every rank has been heard from. */
static void startup_end(void)
{
    if (!has_thread) return;
    pthread_mutex_lock(&lock);
    has_ended = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    has_thread = false;
}

/* ---- the command ---- */

/* Prints what `tessera doctor` reports about MPI, without MPI_Init. */
static int print_mpi_properties(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int size = 0, version = 0, minor = 0;
    MPI_Get_library_version(text, &size);
    MPI_Get_version(&version, &minor);
    printf("library %.*s\n", (int)strcspn(text, "\n"), text);
    printf("standard %d.%d\n", version, minor);
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    printf("cuda_aware %s\n", MPIX_Query_cuda_support() ? "yes" : "no");
#endif
    return CLI_DONE;
}

/* The command line as one text. */
static char *join(int argc, char **argv)
{
    size_t size = 1, at = 0;
    for (int i = 1; i < argc; i++) size += strlen(argv[i]) + 1;
    char *text = calloc(size, 1);
    for (int i = 1; text && i < argc; i++) at += strlen(strcpy(text + at, argv[i])) + 1;
    return text;
}

static tsr_status compare_lines(tsr_comm *ranks, int argc, char **argv, tsr_error *err)
{
    size_t size = 0;
    for (int i = 1; i < argc; i++) size += strlen(argv[i]) + 1;
    char *text = join(argc, argv);
    if (!text) return ranks->poison(ranks, TSR_E_NOMEM, err);
    tsr_status status = tsr_comm_same(ranks, (tsr_str){text, size}, "the command lines are not the same", err);
    free(text);
    return status;
}

/* This process's share of the cores that it may use, among the processes of the node with the same affinity. 0: not
 * known. */
static uint32_t own_threads(void)
{
    MPI_Comm node;
    cpu_set_t mine;
    int size = 0, equal = 0;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS) return 0;
    MPI_Comm_size(node, &size);
    cpu_set_t *all = calloc((size_t)size, sizeof *all);
    int failed = !all;
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, node);
    if (!failed) MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node);
    for (int r = 0; !failed && r < size; r++) equal += CPU_EQUAL(&mine, &all[r]) != 0;
    free(all);
    MPI_Comm_free(&node);
    const int cores = CPU_COUNT(&mine);
    return equal == 0 || cores == 0 ? 0 : cores > equal ? (uint32_t)(cores / equal) : 1;
}

/* Runs the command. All ranks return the worst exit status of any rank. */
static int run(tsr_comm *ranks, int argc, char **argv)
{
    const cli program = {.ranks = ranks};
    tsr_error err = {0};
    uint64_t worst = CLI_TROUBLE;
    if (ranks->rank != 0 && !freopen("/dev/null", "w", stdout)) return CLI_TROUBLE;
    if (compare_lines(ranks, argc, argv, &err) != TSR_OK) return cli_fail_error(&program, NULL, &err);
    worst = (uint64_t)cli_main(argc, argv, ranks, own_threads());
    if (ranks->largest(ranks, &worst, &err) != TSR_OK) worst = CLI_TROUBLE;
    return (int)worst;
}

/* Whether MPI_Init would find the other processes. Open MPI needs PMIx, or its own mpirun, or a component that the user or a
 * launcher such as Flux chose by name; without one it prints pages and ends the job with status 1. */
static bool is_connected(const cli_launch *launch)
{
#if defined(OPEN_MPI)
    return launch->has_pmix || getenv("OMPI_MCA_pmix");
#else
    return launch->has_pmi;
#endif
}

static double peer_limit(void)
{
    const char *text = getenv("TESSERA_PEER_LIMIT");
    const double seconds = text ? tsr_real_read(text, NULL) : 0;
    return seconds != 0 ? seconds : TSR_MPI_PEER_LIMIT;
}

/* Called when all ranks are done and end with the same status. srun --kill-on-bad-exit terminates the other processes as
 * soon as one has ended with a nonzero status, and would report that signal instead of the status. */
static void keep_status(int status)
{
    if (status == CLI_DONE) return;
    signal(SIGTERM, SIG_IGN);
    alarm(LONGEST_FINALIZE_SECONDS);
}

int main(int argc, char **argv)
{
    const cli_launch launch = cli_launch_seen();
    const cli program = {0};
    tsr_error err = {0};
    tsr_comm *ranks;
    int size = 1;
    if (argc == 2 && strcmp(argv[1], "--mpi-facts") == 0) return print_mpi_properties();
    if (!cli_is_shared(argc, argv))
        return cli_fail(&program,
                        "tessera-mpi runs convert, reshard, merge and validate --deep; tessera does everything else");
    if (launch.processes > 1 && !is_connected(&launch)) return cli_refuse_unconnected(&launch);
    startup_begin(peer_limit(), launch.first);
    if (tsr_mpi_start(&argc, &argv, &err) != TSR_OK) return cli_fail_error(&program, NULL, &err);
    startup_connected();
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1 && launch.processes > 1) {
        startup_end();
        tsr_mpi_end();
        return cli_refuse_unconnected(&launch);
    }
    cli_signals_heed_launcher();
    const tsr_comm_mpi_options options = {.peer_limit = peer_limit()};
    int status = CLI_TROUBLE;
    if (tsr_comm_mpi_open(MPI_COMM_WORLD, &options, &tsr_allocator_libc, &ranks, &err) == TSR_OK) {
        startup_end();
        status = run(ranks, argc, argv);
        fflush(NULL);
        ranks->close(ranks);
        keep_status(status);
    } else {
        cli_fail_error(&program, NULL, &err);
    }
    tsr_mpi_end();
    return status;
}
