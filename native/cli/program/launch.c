/* Recognizes launchers of parallel programs by the environment variables that they set. */
#include "cli/program/session.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { REFUSAL_SECONDS = 2 };

/* variables with the number of processes and the rank */
static const struct {
    const char *size, *rank;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, /* Open MPI's mpirun, prterun */
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},   /* MVAPICH */
    {"PMI_SIZE", "PMI_RANK"},                         /* MPICH's hydra, srun --mpi=pmi2 */
    {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"},     /* jsrun */
    {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}, /* srun; a batch script has no step and is one process */
};

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

cli_launch cli_launch_seen(void)
{
    static const char *const pmi[] = {"PMI_FD", "PMI_PORT", "PMI_RANK"};
    cli_launch launch = {.processes = 1, .first = true};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (!getenv(launchers[i].size)) continue;
        launch.sign = launchers[i].size;
        launch.processes = number_of(launchers[i].size);
        launch.first = number_of(launchers[i].rank) == 0;
        break;
    }
    if (!launch.sign && getenv("SLURM_NTASKS") && (getenv("SLURM_STEP_ID") || number_of("SLURM_PROCID"))) {
        launch.sign = "SLURM_NTASKS";
        launch.processes = number_of(launch.sign);
        launch.first = number_of("SLURM_PROCID") == 0;
    }
    launch.is_srun = launch.sign && (strncmp(launch.sign, "SLURM", 5) == 0 || getenv("SLURM_STEP_ID"));
    launch.has_pmix = getenv("PMIX_RANK") || getenv("OMPI_COMM_WORLD_SIZE");
    launch.has_pmi = launch.has_pmix;
    for (size_t i = 0; i < sizeof pmi / sizeof *pmi; i++) launch.has_pmi = launch.has_pmi || getenv(pmi[i]);
    return launch;
}

bool cli_find_mpi(char *path, size_t capacity)
{
    static const char *const places[] = {"tessera-mpi", "../libexec/tessera/tessera-mpi", "../libexec/tessera-mpi"};
    char self[4096];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    while (size > 0 && self[size - 1] != '/') size--;
    self[size > 0 ? size : 0] = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int needed = snprintf(path, capacity, "%s%s", self, places[i]);
        if (needed > 0 && (size_t)needed < capacity && access(path, X_OK) == 0) return true;
    }
    return false;
}

bool cli_has_word(int argc, char **argv, const char *word)
{
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], word) == 0) return true;
    }
    return false;
}

bool cli_is_shared(int argc, char **argv)
{
    if (argc < 2) return false;
    if (strcmp(argv[1], "validate") == 0) return cli_has_word(argc, argv, "--deep");
    return strcmp(argv[1], "convert") == 0 || strcmp(argv[1], "reshard") == 0 || strcmp(argv[1], "merge") == 0;
}

/* A launcher that ends the job at the first failure sends SIGTERM to slower processes and would report that signal as the
 * result. Every process therefore waits for the others, and ignores SIGTERM in the meantime. */
static int wait_and_fail(void)
{
    signal(SIGTERM, SIG_IGN);
    sleep(REFUSAL_SECONDS);
    return CLI_TROUBLE;
}

int cli_refuse(const cli_launch *launch, const char *format, ...)
{
    const cli program = {0};
    if (launch->first) {
        char text[1024];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        cli_fail(&program, "%s", text);
    }
    return wait_and_fail();
}

int cli_refuse_unconnected(const cli_launch *launch)
{
    return cli_refuse(
        launch, "%" PRIu64 " processes were started (%s), but they are not connected, so each would do all of the work: %s",
        launch->processes, launch->sign,
        launch->is_srun ? "use srun --mpi=pmix, or mpirun, or one process"
                        : "use the mpirun of the Open MPI that tessera-mpi was built with");
}
