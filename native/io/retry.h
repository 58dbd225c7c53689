/* Decides when to repeat a request: after statuses 429 and 5xx other than 501, after a connection was cut, and if none was
 * made; never after any other answer. Waiting times grow, and are at least what the server requests in Retry-After. */
#ifndef TSR_IO_RETRY_H
#define TSR_IO_RETRY_H

#include "io/transport.h"

/* Whether to repeat the transfer after its `attempt`th try (counted from 1), and how many seconds to wait before. */
bool tsr_retry_worthwhile(const tsr_transfer *transfer, unsigned attempt, double *seconds);
void tsr_retry_wait(double seconds);

#endif
