/* What an MPI launcher tells its processes through the environment, without asking MPI. */
#ifndef TSR_CLI_LAUNCH_H
#define TSR_CLI_LAUNCH_H

#include "cli/cli.h"

typedef struct cli_launch {
    const char *sign;   /* the variable that told, or NULL: no launcher */
    uint64_t processes; /* 1 without one */
    bool first;         /* this one may speak for all */
    bool is_srun;
    bool has_pmi; /* the launcher serves PMI or PMIx, without which processes cannot find each other */
} cli_launch;

cli_launch cli_launch_seen(void);

/* Processes that were started together but know nothing of each other must not all write: refuses, with advice. */
int cli_refuse_strangers(const cli *program, const cli_launch *launch);

/* `tessera` and `tessera-mpi` behind their beginnings. `ranks` NULL: one process. Returns the exit status. */
int cli_main(int argc, char **argv, tsr_comm *ranks);

#endif
