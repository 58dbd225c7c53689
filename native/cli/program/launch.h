/* What an MPI launcher left in the environment of its processes, read without calling MPI. */
#ifndef TSR_CLI_PROGRAM_LAUNCH_H
#define TSR_CLI_PROGRAM_LAUNCH_H

#include "cli/program/cli.h"

typedef struct cli_launch {
    const char *sign;   /* the variable it was recognized by; NULL: no launcher */
    uint64_t processes; /* 1 without one */
    bool first;         /* the process that prints for all */
    bool is_srun;
    bool has_pmi;  /* the launcher serves PMI or PMIx, without which processes cannot find each other */
    bool has_pmix; /* the launcher serves PMIx, or is Open MPI's own; older PMI alone is not enough for Open MPI */
} cli_launch;

cli_launch cli_launch_seen(void);

/* tessera-mpi as installed: beside this program or in libexec. false: not there. */
bool cli_find_mpi(char *path, size_t capacity);

/* Whether several processes may share the work of a command line. */
bool cli_is_shared(int argc, char **argv);
/* Whether `word` is one of the arguments after the command. */
bool cli_has_word(int argc, char **argv, const char *word);

/* How processes that a launcher started together refuse to run: the first one prints the sentence, and all of them wait a
 * moment, so that a launcher that ends the job at the first failure reports this status. Returns the exit status. */
int cli_refuse(const cli_launch *launch, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* The refusal of processes that cannot find each other and must not all write; it names the launcher that works. */
int cli_refuse_unconnected(const cli_launch *launch);

/* Runs the command line, for `tessera` and `tessera-mpi`. `ranks` NULL: one process. `threads` 0: as many as allowed, unless
 * --threads says otherwise. Returns the exit status. */
int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads);

#endif
