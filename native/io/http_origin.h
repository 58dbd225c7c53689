/* The origin of a URL: its scheme, host and port. Together they decide who may receive a secret. */
#ifndef TSR_IO_HTTP_ORIGIN_H
#define TSR_IO_HTTP_ORIGIN_H

#include <stdbool.h>

/* Whether both are http or https URLs with the same scheme, host and port (by default 80 and 443). */
bool tsr_http_same_origin(const char *a, const char *b);

#endif
