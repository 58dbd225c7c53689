/* Reads ranges of files at http(s) URLs. */
#ifndef TSR_IO_HTTP_H
#define TSR_IO_HTTP_H

#include "io/transport.h"

#include <stdbool.h>

typedef struct tsr_http tsr_http;

/* TSR_E_UNSUPPORTED without libcurl. Uses at most `depth` connections. Thread-safe, except for close. */
tsr_status tsr_http_open(const tsr_allocator *allocator, unsigned depth, tsr_http **out, tsr_error *err);
void tsr_http_close(tsr_http *http); /* accepts NULL */

/* Which bytes to read, and where to store them. */
typedef struct tsr_http_range {
    uint64_t byte_offset;
    size_t size;
    void *buffer;
} tsr_http_range;

/* Reads the bytes of `range`, or fewer if the file ends before, and follows redirects. If the server sends the whole file,
 * does not wait for what follows the range. The headers in TESSERA_HTTP_HEADERS, the user and password in the URL and those
 * in ~/.netrc are sent only to the URL's own scheme, host and port. Temporary failures are retried (io/retry.h). Any status
 * of the server counts as an answer; TSR_E_IO if there is no answer after all retries, or if a 206 does not contain the
 * requested range. Messages contain the URL without its secrets. */
tsr_status tsr_http_get(tsr_http *http, const char *url, tsr_http_range range, tsr_http_answer *answer, tsr_error *err);

/* ---- The origin of a URL: its scheme, host and port. Together they decide who may receive a secret. ---- */

/* Whether both are http or https URLs with the same scheme, host and port (by default 80 and 443). */
bool tsr_http_same_origin(const char *a, const char *b);

#endif
