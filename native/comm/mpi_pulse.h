/* The watchdog of tessera's communicators over MPI: tells dead ranks from busy ones. */
#ifndef TSR_NATIVE_MPI_PULSE_H
#define TSR_NATIVE_MPI_PULSE_H

#include <mpi.h>

#include "tessera/memory.h"

typedef struct tsr_pulse tsr_pulse;

/* Collective. `limit` in seconds. `*out` is NULL where there is nobody to watch or MPI was initialized without
 * MPI_THREAD_MULTIPLE. */
tsr_status tsr_pulse_start(MPI_Comm ranks, double limit, const tsr_allocator *allocator, tsr_pulse **out, tsr_error *err);
/* Collective. Takes NULL. */
void tsr_pulse_stop(tsr_pulse *pulse);

/* Ends the job: a line on stderr, then MPI_Abort; at the latest five seconds later this process ends by itself. */
_Noreturn void tsr_mpi_abort(MPI_Comm ranks, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

#endif
