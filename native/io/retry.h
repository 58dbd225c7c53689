/* Decides when to repeat a request: after statuses 429 and 5xx other than 501, after a connection was cut, and if none was
 * made; never after any other answer. Waiting times grow, and are at least what the server requests in Retry-After.
 *
 * All requests of a command together may lose TESSERA_RETRY_SECONDS (default: 40) through failures. Then nothing is repeated any
 * more, and a little later nothing is sent any more, so that a command whose server stays broken ends within a minute whatever
 * it does about the error. Bytes that arrive slowly are not lost time. */
#ifndef TSR_IO_RETRY_H
#define TSR_IO_RETRY_H

#include "io/transport.h"

/* Whether to repeat the transfer after its `attempt`th try (counted from 1), and how many seconds to wait before. Must be called
 * once after each try, because it counts the time that was lost. */
bool tsr_retry_worthwhile(const tsr_http_transfer *transfer, unsigned attempt, double *seconds);
void tsr_retry_wait(double seconds);

/* Forgets what was lost: a command begins, or a request has succeeded that failed before. */
void tsr_retry_forget(void);
bool tsr_retry_is_spent(void);
/* How many seconds a request may wait for the next byte; 0: it must not be sent. */
double tsr_retry_patience(void);
/* TSR_E_USAGE if TESSERA_RETRY_SECONDS is not a number that is allowed. */
tsr_status tsr_retry_check_setting(tsr_error *err);

#endif
