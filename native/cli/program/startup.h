/* The time that ranks may take to find each other.
 *
 * Once a communicator is open, its watchdog notices dead ranks (tessera/comm_mpi.h). A rank that dies before, inside MPI_Init,
 * would leave the others waiting for it there, or in the first collective, until the job's time limit. */
#ifndef TSR_CLI_PROGRAM_STARTUP_H
#define TSR_CLI_PROGRAM_STARTUP_H

#include <stdbool.h>

/* To be called before MPI_Init. Ends the process with status 2 if cli_startup_connected does not follow within three times
 * `limit` seconds: MPI_Init waits for the slowest rank, which may still be loading the program. `speaks`: whether this process
 * prints why. */
void cli_startup_begin(double limit, bool speaks);
/* To be called after MPI_Init. Ends the job with status 2 if cli_startup_end does not follow within `limit` seconds. */
void cli_startup_connected(void);
/* All ranks have been heard of. */
void cli_startup_end(void);

#endif
