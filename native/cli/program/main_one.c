/* main() of `tessera`. A single process runs here. Several processes that a launcher started become tessera-mpi, so MPI is
 * never initialized for a single process. */
#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "cli/program/session.h"

/* Whether the command is about the program or the machine. One process printing it is enough. */
static bool is_about(int argc, char **argv)
{
    static const char *const words[] = {"help", "--help", "-h", "version", "--version", "doctor", "explain", "completions"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(argv[1], words[i]) == 0) return true;
    }
    return cli_has_word(argc, argv, "--help") || cli_has_word(argc, argv, "-h") || cli_has_word(argc, argv, "--version");
}

/* Returns only if tessera-mpi cannot be started. */
static int hand_over(const cli_launch *launch, char **argv)
{
    char path[4096 + 64];
    if (cli_find_mpi(path, sizeof path)) {
        argv[0] = path;
        execv(path, argv);
        return cli_refuse(launch, "cannot start '%s': %s", path, strerror(errno));
    }
    return cli_refuse(launch,
                      "%" PRIu64
                      " processes were started (%s), but this installation has no tessera-mpi (it is built where MPI "
                      "is found); run a single process, without the launcher",
                      launch->processes, launch->sign);
}

static int run_of_several(const cli_launch *launch, int argc, char **argv)
{
    if (is_about(argc, argv)) return launch->first ? cli_main(argc, argv, NULL, 0) : CLI_DONE;
    if (cli_is_shared(argc, argv)) {
        return launch->has_pmi ? hand_over(launch, argv) : cli_refuse_unconnected(launch);
    }
    return cli_refuse(
        launch,
        "%" PRIu64 " processes were started (%s), but '%s' runs as a single process; remove the launcher, or pass --no-mpi "
        "if only one of them runs this (convert, merge, reshard and validate --deep can share the work)",
        launch->processes, launch->sign, argv[1]);
}

int main(int argc, char **argv)
{
    const cli_launch launch = cli_launch_seen();
    if (launch.processes > 1 && argc > 1 && !cli_has_word(argc, argv, "--no-mpi"))
        return run_of_several(&launch, argc, argv);
    return cli_main(argc, argv, NULL, 0);
}
