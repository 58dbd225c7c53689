/* The watchdog of communicators over MPI, which tells dead ranks from busy ones. */
#ifndef TSR_NATIVE_MPI_PULSE_H
#define TSR_NATIVE_MPI_PULSE_H

#include <mpi.h>

#include "tessera/memory.h"

typedef struct tsr_pulse tsr_pulse;

/* Starts the watchdog. Collective. `limit` is in seconds; a negative one means no watchdog. *out is NULL if there is nothing
 * to watch, or if MPI was initialized without MPI_THREAD_MULTIPLE. Errors: TSR_E_NOMEM on all ranks. Ends the job if a
 * thread cannot be started. */
tsr_status tsr_pulse_start(MPI_Comm ranks, double limit, const tsr_allocator *allocator, tsr_pulse **out, tsr_error *err);
/* Stops the watchdog. Collective. Accepts NULL. */
void tsr_pulse_stop(tsr_pulse *pulse);

/* Ends the job: prints a line to stderr and calls MPI_Abort. This process exits after at most five seconds in any case. */
_Noreturn void tsr_mpi_abort(MPI_Comm ranks, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

#endif
