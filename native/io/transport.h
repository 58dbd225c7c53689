/* Performs HTTP requests, many at the same time over a few connections. A separate thread drives all transfers with
 * libcurl's multi interface. Any thread may submit transfers and wait for them. A transfer is one request: it is not
 * retried, and redirects are not followed.
 *
 * Example:
 *
 *     tsr_http_transfer one = {.url = "https://example.org/model.pt", .range = "0-99", .buffer = bytes, .capacity = 100};
 *     tsr_http_transfer *const all[] = {&one};
 *     tsr_transport_perform(transport, all, 1);
 *     if (one.result == TSR_TRANSFER_ANSWERED && one.answer.status == 206) … */
#ifndef TSR_IO_TRANSPORT_H
#define TSR_IO_TRANSPORT_H

#include "io/checksums.h"

#include <stdbool.h>
#include <time.h>

typedef struct tsr_transport tsr_transport;

/* The checksums that an answer states, in Base64; empty: not stated. */
typedef struct tsr_stated_checksums {
    char of_object[TSR_CHECKSUM_KINDS][TSR_CHECKSUM_TEXT]; /* of the whole object, even if only a range of it was sent */
    char md5_of_body[TSR_CHECKSUM_TEXT];                   /* Content-MD5 */
    bool says_full;      /* x-amz-checksum-type: those of the object are sums of its bytes */
    bool says_composite; /* they are made from those of its parts, and are no sums of bytes */
} tsr_stated_checksums;

typedef struct tsr_http_answer {
    long status;          /* 200, 206, 404, … */
    uint64_t total;       /* size of the whole file in bytes; UINT64_MAX: the server does not report it */
    uint64_t first, last; /* with is_range: the range that was sent, according to Content-Range */
    bool is_range;
    bool is_directory;   /* it was redirected to the same URL with a slash (transport.h) */
    char version[160];   /* ETag, otherwise Last-Modified, otherwise empty */
    size_t size;         /* number of bytes received */
    char region[32];     /* x-amz-bucket-region; may be empty */
    char generation[32]; /* x-goog-generation; may be empty */
    uint64_t stored;     /* bytes that a resumable upload has, according to Range in the answer */
    int64_t date;        /* seconds since 1970 on the server's clock, according to Date; 0: there was no such header */
    tsr_stated_checksums checksums;
    double retry_after; /* seconds to wait according to Retry-After; 0: there was no such header */
} tsr_http_answer;

typedef enum tsr_http_transfer_result {
    TSR_TRANSFER_ANSWERED,      /* `answer` is complete */
    TSR_TRANSFER_NOT_CONNECTED, /* the server was never reached */
    TSR_TRANSFER_CUT,           /* the connection was closed or stalled before the answer was complete */
    TSR_TRANSFER_FAILED         /* any other failure: a malformed URL, TLS, memory */
} tsr_http_transfer_result;

typedef struct tsr_http_transfer {
    const char *method; /* NULL: GET */
    const char *url;
    const char *const *headers;  /* "Name: value", ends with NULL; NULL: none */
    const char *range;           /* "0-99", or NULL */
    const char *signing;         /* "aws:amz:us-east-1:s3": sign with AWS's Signature Version 4; NULL: do not sign */
    const char *user, *password; /* for `signing` */
    bool use_netrc;
    const char *
        authorities; /* file with the certificates of authorities to trust; NULL: CURL_CA_BUNDLE, SSL_CERT_FILE, the system's */
    unsigned connect_seconds; /* 0: the usual limit */
    /* Use a new connection: libcurl itself repeats a request if an existing connection turns out to be closed. */
    bool is_sent_once;
    const void *body; /* body of a PUT or POST */
    size_t body_size;
    char *buffer; /* receives the body of the answer; more than `capacity` bytes end the transfer */
    size_t capacity;

    tsr_http_transfer_result result;
    tsr_http_answer answer;
    double began, heard, ended; /* on the clock of io/sys.h; `heard`: when bytes were last received or sent */
    char reason[256];           /* libcurl's message if there was no answer */
    bool overflowed;            /* the answer's body is longer than `capacity` */
    char problem[2048];         /* the beginning of the body if the status is 300 or more; `buffer` does not receive it */
    char *redirect;             /* target of a redirect, or NULL; freed by tsr_http_transfer_clear */
    char *link;                 /* value of the Link header, or NULL; freed by tsr_http_transfer_clear */
    char *location;             /* value of the Location header, or NULL; freed by tsr_http_transfer_clear */
} tsr_http_transfer;

/* Frees what an answer left, so that the transfer can be performed again. */
void tsr_http_transfer_clear(tsr_http_transfer *transfer);

/* Performs at most `depth` (1 or more) transfers at the same time, over at most as many connections. TSR_E_UNSUPPORTED
 * without libcurl. The thread is started by the first transfer. */
tsr_status tsr_transport_open(const tsr_allocator *allocator, unsigned depth, tsr_transport **out, tsr_error *err);
void tsr_transport_close(tsr_transport *transport); /* accepts NULL; no thread may be waiting in it */

/* Returns when all transfers have ended. Each has its own result. Thread-safe. */
void tsr_transport_perform(tsr_transport *transport, tsr_http_transfer *const *transfers, size_t count);

/* ---- Parses the headers of an HTTP answer, line by line (RFC 9110). ---- */

/* Whether `line` ("Name: value\r\n") is the header `name`, ignoring case. *value borrows the line. */
bool tsr_header_is(const char *line, size_t size, const char *name, tsr_str *value);
/* Stores what a header line states in `answer`. A status line starts a new answer. */
void tsr_answer_header(tsr_http_answer *answer, const char *line, size_t size);
/* Parses "Wed, 21 Oct 2026 07:28:00 GMT" as seconds since 1970; 0 if it is something else. */
time_t tsr_http_date(tsr_str value);
/* The number of seconds to wait according to a Retry-After header with seconds or a date; 0 if it is neither, or in the
 * past. `now` is in seconds since 1970. */
double tsr_retry_after(tsr_str value, time_t now);

/* ---- The origin of a URL: its scheme, host and port. Together they decide who may receive a secret. ---- */

/* Whether both are http or https URLs with the same scheme, host and port (by default 80 and 443). */
bool tsr_http_same_origin(const char *a, const char *b);

/* ---- Retries (retry.c). ---- */

/* Decides when to repeat a request: after statuses 429 and 5xx other than 501, after a connection was cut, and if none was
 * made; never after any other answer. Waiting times grow, and are at least what the server requests in Retry-After.
 *
 * All requests of a command together may lose TESSERA_RETRY_SECONDS (default: 40) through failures. Then nothing is repeated any
 * more, and a little later nothing is sent any more, so that a command whose server stays broken ends within a minute whatever
 * it does about the error. Bytes that arrive slowly are not lost time. */

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
