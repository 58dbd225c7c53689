/* main() of `tessera-mpi`: runs commands of `tessera` on all ranks of MPI_COMM_WORLD. `tessera` starts it when needed. */
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/program/session.h"
#include "tessera/comm_mpi.h"
#include "tessera/sys/collectives.h"

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

enum { LONGEST_FINALIZE_SECONDS = 10 };

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
    const double limit = text ? strtod(text, NULL) : 0;
    return limit != 0 ? limit : TSR_MPI_PEER_LIMIT;
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
    cli_startup_begin(peer_limit(), launch.first);
    if (tsr_mpi_start(&argc, &argv, &err) != TSR_OK) return cli_fail_error(&program, NULL, &err);
    cli_startup_connected();
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1 && launch.processes > 1) {
        cli_startup_end();
        tsr_mpi_end();
        return cli_refuse_unconnected(&launch);
    }
    cli_signals_heed_launcher();
    const tsr_comm_mpi_options options = {.peer_limit = peer_limit()};
    int status = CLI_TROUBLE;
    if (tsr_comm_mpi_open(MPI_COMM_WORLD, &options, &tsr_allocator_libc, &ranks, &err) == TSR_OK) {
        cli_startup_end();
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
