/* Parses the headers of an HTTP answer, line by line (RFC 9110). */
#ifndef TSR_IO_ANSWER_HEADERS_H
#define TSR_IO_ANSWER_HEADERS_H

#include <time.h>

#include "io/transport.h"

/* Whether `line` ("Name: value\r\n") is the header `name`, ignoring case. *value borrows the line. */
bool tsr_header_is(const char *line, size_t size, const char *name, tsr_str *value);
/* Stores what a header line states in `answer`. A status line starts a new answer. */
void tsr_answer_header(tsr_http_answer *answer, const char *line, size_t size);
/* Parses "Wed, 21 Oct 2026 07:28:00 GMT" as seconds since 1970; 0 if it is something else. */
time_t tsr_http_date(tsr_str value);
/* The number of seconds to wait according to a Retry-After header with seconds or a date; 0 if it is neither, or in the
 * past. `now` is in seconds since 1970. */
double tsr_retry_after(tsr_str value, time_t now);

#endif
