/* Ranges of files behind http(s) addresses, through libcurl, which is loaded when the first address is met: a program that
 * reads none starts without it. */
#ifndef TSR_IO_HTTP_H
#define TSR_IO_HTTP_H

#include "tessera/memory.h"

typedef struct tsr_http tsr_http;

typedef struct tsr_http_answer {
    long status;      /* 200, 206, 404, … */
    uint64_t total;   /* bytes of the whole file; UINT64_MAX: the server does not say */
    uint64_t first, last; /* with is_range: the bytes of the file that came, as Content-Range states them */
    bool is_range;
    char version[160]; /* ETag, else Last-Modified, else empty */
    size_t size;      /* bytes that came */
} tsr_http_answer;

/* TSR_E_UNSUPPORTED where there is no libcurl. Thread-safe in all but close. */
tsr_status tsr_http_open(const tsr_allocator *allocator, tsr_http **out, tsr_error *err);
void tsr_http_close(tsr_http *http); /* takes NULL */

/* At most `size` bytes from `byte_offset`, following redirects; further bytes of an answer that is no range are not waited
 * for. Headers of TESSERA_HTTP_HEADERS, user and password of the URL and those of ~/.netrc go to the URL's own scheme, host
 * and port only. Failures that may pass (no connection, 429, 5xx) are tried again three times. Any status of the server is
 * an answer; TSR_E_IO when there is none in the end, or a 206 whose part is not the one that was asked for. Messages name the
 * URL without its secrets. */
tsr_status tsr_http_get(tsr_http *http, const char *url, uint64_t byte_offset, size_t size, void *buffer,
                        tsr_http_answer *answer, tsr_error *err);

#endif
