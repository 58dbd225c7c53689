/* Where a URL leads: its scheme, host and port, which together decide whom a secret may be sent to. */
#ifndef TSR_IO_HTTP_ORIGIN_H
#define TSR_IO_HTTP_ORIGIN_H

#include <stdbool.h>

/* Both are http or https URLs with the same scheme, host and port (80 and 443 where none is given). */
bool tsr_http_same_origin(const char *a, const char *b);
/* A copy of `url` (malloc) with the "user:password@" of `from`, unless it has one of its own; NULL: no memory. */
char *tsr_http_with_user(const char *url, const char *from);

#endif
