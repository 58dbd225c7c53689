/* Ranges of files behind http(s) URLs. */
#ifndef TSR_IO_HTTP_H
#define TSR_IO_HTTP_H

#include "io/transport.h"

typedef struct tsr_http tsr_http;

/* TSR_E_UNSUPPORTED where there is no libcurl. At most `depth` connections. Thread-safe in all but close. */
tsr_status tsr_http_open(const tsr_allocator *allocator, unsigned depth, tsr_http **out, tsr_error *err);
void tsr_http_close(tsr_http *http); /* takes NULL */

/* Which bytes, and where they go. */
typedef struct tsr_http_range {
    uint64_t byte_offset;
    size_t size;
    void *buffer;
} tsr_http_range;

/* Reads the bytes of `range`, or fewer where the file ends, and follows redirects. It does not wait for what lies behind them when the
 * server answers with the whole file. Headers of TESSERA_HTTP_HEADERS, user and password of the URL and those of ~/.netrc go to the
 * URL's own scheme, host and port only. Failures that may pass are tried again (io/retry.h). Any status of the server is an answer;
 * TSR_E_IO when there is none in the end, or a 206 whose part is not the one that was asked for. Messages name the URL without its
 * secrets. */
tsr_status tsr_http_get(tsr_http *http, const char *url, tsr_http_range range, tsr_http_answer *answer, tsr_error *err);

#endif
