/* What an MPI launcher has set in the environment of its processes, read without calling MPI. */
#ifndef TSR_CLI_PROGRAM_LAUNCH_H
#define TSR_CLI_PROGRAM_LAUNCH_H

#include "cli/program/cli.h"

#include <stdbool.h>

typedef struct cli_launch {
    const char *sign;   /* the environment variable by which it was recognized; NULL: no launcher */
    uint64_t processes; /* 1 without a launcher */
    bool first;         /* this is the process that prints messages */
    bool is_srun;
    bool has_pmi;  /* the launcher serves PMI or PMIx, without which processes cannot find each other */
    bool has_pmix; /* the launcher serves PMIx, or is Open MPI's own; Open MPI cannot use older PMI alone */
} cli_launch;

cli_launch cli_launch_seen(void);

/* Finds the installed tessera-mpi, next to this program or in libexec; false if there is none. */
bool cli_find_mpi(char *path, size_t capacity);

/* Whether the command in the command line can be shared by several processes. */
bool cli_is_shared(int argc, char **argv);
/* Whether `word` is one of the arguments after the command. */
bool cli_has_word(int argc, char **argv, const char *word);

/* Prints a message and refuses to run, for processes that a launcher started together. The first one prints it, and all of
 * them wait a moment, so that a launcher that ends the job at the first failure reports this exit status. Returns the exit
 * status. */
int cli_refuse(const cli_launch *launch, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Refuses to run processes that cannot find each other and would all write the same output. The message names the launcher
 * that works. */
int cli_refuse_unconnected(const cli_launch *launch);

/* Runs the command line, for `tessera` and `tessera-mpi`. `ranks` NULL: one process. `threads` 0: as many as allowed;
 * --threads overrides it. Returns the exit status. */
int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads);

/* Limits the time that ranks may take to find each other.
 *
 * Once a communicator is open, its watchdog notices dead ranks (tessera/comm_mpi.h). But if a rank dies earlier, inside
 * MPI_Init, the others would wait for it there or in the first collective, until the job's time limit. */

/* To be called before MPI_Init. Ends the process with status 2 if cli_startup_connected does not follow within three times
 * `limit` seconds: MPI_Init waits for the slowest rank, which may still be loading the program. `speaks`: whether this
 * process prints the reason. */
void cli_startup_begin(double limit, bool speaks);
/* To be called after MPI_Init. Ends the job with status 2 if cli_startup_end does not follow within `limit` seconds. */
void cli_startup_connected(void);
/* To be called when every rank has been heard from. */
void cli_startup_end(void);

#endif
