/* The headers of an HTTP answer, line by line (RFC 9110). */
#ifndef TSR_IO_ANSWER_HEADERS_H
#define TSR_IO_ANSWER_HEADERS_H

#include <time.h>

#include "io/transport.h"

/* Whether `line` ("Name: value\r\n") is that header, ignoring case; *value borrows the line. */
bool tsr_header_is(const char *line, size_t size, const char *name, tsr_str *value);
/* Takes what a line of the head states into `answer`. A status line starts a new answer. */
void tsr_answer_header(tsr_http_answer *answer, const char *line, size_t size);
/* Seconds to wait by a Retry-After of seconds or of a date; 0 where it is neither, or past. `now`: since 1970. */
double tsr_retry_after(tsr_str value, time_t now);

#endif
