/* Limits the time that ranks may take to find each other.
 *
 * Once a communicator is open, its watchdog notices dead ranks (tessera/comm_mpi.h). But if a rank dies earlier, inside
 * MPI_Init, the others would wait for it there or in the first collective, until the job's time limit. */
#ifndef TSR_CLI_PROGRAM_STARTUP_H
#define TSR_CLI_PROGRAM_STARTUP_H

#include <stdbool.h>

/* To be called before MPI_Init. Ends the process with status 2 if cli_startup_connected does not follow within three times
 * `limit` seconds: MPI_Init waits for the slowest rank, which may still be loading the program. `speaks`: whether this
 * process prints the reason. */
void cli_startup_begin(double limit, bool speaks);
/* To be called after MPI_Init. Ends the job with status 2 if cli_startup_end does not follow within `limit` seconds. */
void cli_startup_connected(void);
/* To be called when every rank has been heard from. */
void cli_startup_end(void);

#endif
