/* What an MPI launcher tells its processes through the environment, without asking MPI. */
#ifndef TSR_CLI_PROGRAM_LAUNCH_H
#define TSR_CLI_PROGRAM_LAUNCH_H

#include "cli/program/cli.h"

typedef struct cli_launch {
    const char *sign;   /* the variable that told, or NULL: no launcher */
    uint64_t processes; /* 1 without one */
    bool first;         /* this one may speak for all */
    bool is_srun;
    bool has_pmi; /* the launcher serves PMI or PMIx, without which processes cannot find each other */
} cli_launch;

cli_launch cli_launch_seen(void);

/* tessera-mpi as installed: beside this program or in libexec. false: not there. */
bool cli_find_mpi(char *path, size_t capacity);

/* Whether several processes may share the work of a command line. */
bool cli_is_shared(int argc, char **argv);
/* Whether `word` stands among what follows the command. */
bool cli_has_word(int argc, char **argv, const char *word);

/* Processes that were started together but know nothing of each other must not all write: refuses, with advice. */
int cli_refuse_strangers(const cli_launch *launch);
/* The end of a process that leaves the refusal to the first one. */
int cli_refuse_quietly(void);

/* `tessera` and `tessera-mpi` behind their beginnings. `ranks` NULL: one process. `threads` 0: as many as allowed, unless
 * --threads says otherwise. Returns the exit status. */
int cli_main(int argc, char **argv, tsr_comm *ranks, uint32_t threads);

#endif
