/* HTTP requests, many at once over a few connections. One thread of its own drives all transfers with libcurl's multi interface;
 * any thread may hand over some and wait for them. A transfer is one request: nothing is repeated and no redirect is
 * followed here.
 *
 * Example:
 *
 *     tsr_transfer one = {.url = "https://example.org/model.pt", .range = "0-99", .buffer = bytes, .capacity = 100};
 *     tsr_transfer *const all[] = {&one};
 *     tsr_transport_perform(transport, all, 1);
 *     if (one.result == TSR_TRANSFER_ANSWERED && one.answer.status == 206) … */
#ifndef TSR_IO_TRANSPORT_H
#define TSR_IO_TRANSPORT_H

#include "tessera/memory.h"

typedef struct tsr_transport tsr_transport;

typedef struct tsr_http_answer {
    long status;          /* 200, 206, 404, … */
    uint64_t total;       /* bytes of the whole file; UINT64_MAX: the server does not say */
    uint64_t first, last; /* with is_range: the bytes of the file that came, as Content-Range states them */
    bool is_range;
    char version[160]; /* ETag, otherwise Last-Modified, otherwise empty */
    size_t size;       /* bytes that came */
    char region[32];   /* x-amz-bucket-region, or empty */
    char generation[32]; /* x-goog-generation, or empty */
    double retry_after; /* seconds that Retry-After asks for; 0: it was not there */
} tsr_http_answer;

typedef enum tsr_transfer_result {
    TSR_TRANSFER_ANSWERED,       /* `answer` is complete */
    TSR_TRANSFER_NOT_CONNECTED,  /* the server was never reached */
    TSR_TRANSFER_CUT,            /* the connection ended before the answer did, or stalled */
    TSR_TRANSFER_FAILED          /* anything else: a URL that is malformed, TLS, memory */
} tsr_transfer_result;

typedef struct tsr_transfer {
    const char *method;         /* NULL: GET */
    const char *url;
    const char *const *headers; /* "Name: value", ends with NULL; NULL: none */
    const char *range;          /* "0-99", or NULL */
    const char *signing;        /* "aws:amz:us-east-1:s3": signed by AWS's Signature Version 4; NULL: not signed */
    const char *user, *password; /* for `signing` */
    bool use_netrc;
    unsigned connect_seconds; /* 0: as long as usual */
    bool is_sent_once; /* by a new connection: libcurl repeats by itself what it sent over one that turns out to have ended */
    const void *body; /* of a PUT or POST */
    size_t body_size;
    char *buffer; /* takes the body of the answer; what is beyond `capacity` ends the transfer */
    size_t capacity;

    tsr_transfer_result result;
    tsr_http_answer answer;
    char reason[256];    /* of a transfer that was not answered, in libcurl's words */
    bool overflowed;     /* the answer's body is longer than `capacity` */
    char problem[2048];  /* how the body of an answer of 300 or more begins; it is not in `buffer` */
    char *redirect;      /* where the answer sends to, or NULL; freed by tsr_transfer_clear */
    char *link;          /* the value of the Link header, or NULL; freed likewise */
} tsr_transfer;

/* Frees what an answer left, so that the transfer may be performed again. */
void tsr_transfer_clear(tsr_transfer *transfer);

/* Never more than `depth` (1 or more) transfers at once, and never more connections. TSR_E_UNSUPPORTED where there is no libcurl. The thread starts with the first transfer. */
tsr_status tsr_transport_open(const tsr_allocator *allocator, unsigned depth, tsr_transport **out, tsr_error *err);
void tsr_transport_close(tsr_transport *transport); /* takes NULL; nobody may wait in it */
unsigned tsr_transport_depth(const tsr_transport *transport);

/* Returns when all of them have ended; each states how. Thread-safe. */
void tsr_transport_perform(tsr_transport *transport, tsr_transfer *const *transfers, size_t count);

#endif
