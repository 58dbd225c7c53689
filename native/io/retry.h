/* When a request is repeated: after 429 and 5xx, after a connection that was cut, and where none was made; never after any other
 * answer. Waits grow, and are at least what the server asks for by Retry-After. */
#ifndef TSR_IO_RETRY_H
#define TSR_IO_RETRY_H

#include "io/transport.h"

/* Whether the transfer may be repeated after its `attempt`th try (from 1), and how many seconds to wait first. */
bool tsr_retry_worthwhile(const tsr_transfer *transfer, unsigned attempt, double *seconds);
void tsr_retry_wait(double seconds);

#endif
