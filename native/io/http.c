/* See http.h. Sources: RFC 9110 (ranges, Content-Range, ETag), libcurl's documentation of its easy interface. */
#include "io/http.h"

#if defined(TSR_HAVE_CURL)
#define CURL_DISABLE_DEPRECATION 1 /* older releases know no other names */
#include <curl/curl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "io/optional_library.h"

enum { HANDLES = 32, TRIES = 4, MOST_REDIRECTS = 10, CONNECT_SECONDS = 20, STALL_SECONDS = 60 };

/* The functions of libcurl that are called, by the name that the library exports. */
typedef struct curl_calls {
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
    CURLcode (*easy_perform)(CURL *handle);
    CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
    void (*easy_cleanup)(CURL *handle);
    const char *(*easy_strerror)(CURLcode code);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
} curl_calls;

struct tsr_http {
    const tsr_allocator *allocator;
    void *library;
    curl_calls curl;
    struct curl_slist *headers; /* of TESSERA_HTTP_HEADERS */
    pthread_mutex_t lock;
    CURL *idle[HANDLES]; /* connections that are kept */
    size_t idle_count;
};

static tsr_status open_library(tsr_http *http)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    const tsr_library_call calls[] = {
        {"curl_global_init", &http->curl.global_init},     {"curl_easy_init", &http->curl.easy_init},
        {"curl_easy_setopt", &http->curl.easy_setopt},     {"curl_easy_perform", &http->curl.easy_perform},
        {"curl_easy_getinfo", &http->curl.easy_getinfo},   {"curl_easy_cleanup", &http->curl.easy_cleanup},
        {"curl_easy_strerror", &http->curl.easy_strerror}, {"curl_slist_append", &http->curl.slist_append},
        {"curl_slist_free_all", &http->curl.slist_free_all}};
    return tsr_library_open(names, calls, sizeof calls / sizeof *calls, &http->library, NULL);
}

/* Lines of TESSERA_HTTP_HEADERS ("Authorization: Bearer …") go with every request to the host that was named. */
static tsr_status take_headers(tsr_http *http, tsr_error *err)
{
    const char *at = getenv("TESSERA_HTTP_HEADERS");
    char line[4096];
    while (at && *at) {
        const size_t size = strcspn(at, "\n");
        if (size >= sizeof line)
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "a line of TESSERA_HTTP_HEADERS is longer than %zu bytes", sizeof line - 1);
        memcpy(line, at, size);
        line[size] = 0;
        struct curl_slist *longer = size ? http->curl.slist_append(http->headers, line) : http->headers;
        if (size && !longer) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for HTTP headers");
        http->headers = longer;
        at += size + (at[size] == '\n');
    }
    return TSR_OK;
}

tsr_status tsr_http_open(const tsr_allocator *allocator, tsr_http **out, tsr_error *err)
{
    tsr_http *http = tsr_alloc(allocator, 1, sizeof *http, err);
    if (!http) return TSR_E_NOMEM;
    *http = (tsr_http){.allocator = allocator};
    pthread_mutex_init(&http->lock, NULL);
    tsr_status status = TSR_OK;
    if (open_library(http) != TSR_OK || http->curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        status = tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "addresses are read with libcurl (libcurl.so.4), which is not installed");
    if (status == TSR_OK) status = take_headers(http, err);
    if (status == TSR_OK) *out = http;
    else tsr_http_close(http);
    return status;
}

void tsr_http_close(tsr_http *http)
{
    if (!http) return;
    for (size_t i = 0; i < http->idle_count; i++) http->curl.easy_cleanup(http->idle[i]);
    if (http->headers) http->curl.slist_free_all(http->headers);
    if (http->library) dlclose(http->library);
    pthread_mutex_destroy(&http->lock);
    tsr_free(http->allocator, http, 1, sizeof *http);
}

/* ---- handles ---- */

static CURL *take_handle(tsr_http *http)
{
    pthread_mutex_lock(&http->lock);
    CURL *handle = http->idle_count ? http->idle[--http->idle_count] : NULL;
    pthread_mutex_unlock(&http->lock);
    return handle ? handle : http->curl.easy_init();
}

static void give_handle(tsr_http *http, CURL *handle)
{
    pthread_mutex_lock(&http->lock);
    const bool kept = http->idle_count < HANDLES;
    if (kept) http->idle[http->idle_count++] = handle;
    pthread_mutex_unlock(&http->lock);
    if (!kept) http->curl.easy_cleanup(handle);
}

/* ---- one request ---- */

typedef struct request {
    tsr_http_answer *answer;
    char *buffer;
    size_t capacity;
    bool full; /* the transfer was ended here: the buffer has what was asked for */
} request;

static size_t take_body(char *data, size_t one, size_t size, void *ctx)
{
    request *r = ctx;
    (void)one;
    const size_t room = r->capacity - r->answer->size, taken = size < room ? size : room;
    memcpy(r->buffer + r->answer->size, data, taken);
    r->answer->size += taken;
    r->full = taken < size;
    return taken; /* less than came ends the transfer */
}

/* The value of "Name: value\r\n"; NULL for other headers. */
static const char *header_value(const char *line, size_t size, const char *name, size_t *value_size)
{
    const size_t n = strlen(name);
    if (size <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return NULL;
    const char *at = line + n + 1, *end = line + size;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) end--;
    *value_size = (size_t)(end - at);
    return at;
}

static uint64_t number_of(const char *text, size_t size)
{
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9' || number > (UINT64_MAX - 9) / 10) return UINT64_MAX;
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    return size ? number : UINT64_MAX;
}

static size_t take_header(char *line, size_t one, size_t size, void *ctx)
{
    request *r = ctx;
    tsr_http_answer *answer = r->answer;
    size_t n;
    const char *value;
    (void)one;
    if (size > 5 && memcmp(line, "HTTP/", 5) == 0) { /* another answer: the one before was a redirect */
        *answer = (tsr_http_answer){.total = UINT64_MAX};
    } else if ((value = header_value(line, size, "Content-Range", &n))) {
        const char *slash = memchr(value, '/', n);
        if (slash) answer->total = number_of(slash + 1, n - (size_t)(slash + 1 - value));
    } else if ((value = header_value(line, size, "Content-Length", &n))) {
        if (answer->total == UINT64_MAX) answer->total = number_of(value, n);
    } else if ((value = header_value(line, size, "ETag", &n)) || (!answer->version[0] && (value = header_value(line, size, "Last-Modified", &n)))) {
        const size_t kept = n < sizeof answer->version ? n : sizeof answer->version - 1;
        memcpy(answer->version, value, kept);
        answer->version[kept] = 0;
    }
    return size;
}

static CURLcode perform(const tsr_http *http, CURL *handle, const char *url, const char *range, request *r)
{
    const curl_calls *curl = &http->curl;
    char reason[CURL_ERROR_SIZE];
    curl->easy_setopt(handle, CURLOPT_URL, url);
    curl->easy_setopt(handle, CURLOPT_RANGE, range);
    curl->easy_setopt(handle, CURLOPT_HTTPHEADER, http->headers);
    curl->easy_setopt(handle, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl->easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl->easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
    curl->easy_setopt(handle, CURLOPT_MAXREDIRS, (long)MOST_REDIRECTS);
    curl->easy_setopt(handle, CURLOPT_NETRC, (long)CURL_NETRC_OPTIONAL);
    curl->easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl->easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl->easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl->easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl->easy_setopt(handle, CURLOPT_USERAGENT, "tessera");
    curl->easy_setopt(handle, CURLOPT_ERRORBUFFER, reason);
    curl->easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
    curl->easy_setopt(handle, CURLOPT_WRITEDATA, r);
    curl->easy_setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
    curl->easy_setopt(handle, CURLOPT_HEADERDATA, r);
    const CURLcode code = curl->easy_perform(handle);
    curl->easy_setopt(handle, CURLOPT_ERRORBUFFER, NULL);
    curl->easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &r->answer->status);
    return code == CURLE_WRITE_ERROR && r->full ? CURLE_OK : code;
}

static bool may_pass(CURLcode code, long status)
{
    switch (code) {
    case CURLE_OK: return status == 429 || status >= 500;
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: return true;
    default: return false;
    }
}

static void wait_before(unsigned attempt)
{
    const struct timespec pause = {0, 100000000L << attempt};
    nanosleep(&pause, NULL);
}

tsr_status tsr_http_get(tsr_http *http, const char *url, uint64_t byte_offset, size_t size, void *buffer,
                        tsr_http_answer *answer, tsr_error *err)
{
    char range[64];
    CURL *handle = take_handle(http);
    if (!handle) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for a request");
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, byte_offset, byte_offset + size - 1);
    CURLcode code = CURLE_OK;
    for (unsigned attempt = 0; attempt < TRIES; attempt++) {
        if (attempt) wait_before(attempt);
        *answer = (tsr_http_answer){.total = UINT64_MAX};
        request r = {answer, buffer, size, false};
        code = perform(http, handle, url, range, &r);
        if (!may_pass(code, answer->status)) break;
    }
    give_handle(http, handle);
    if (code == CURLE_OK) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: %s", url, http->curl.easy_strerror(code));
}
#else
tsr_status tsr_http_open(const tsr_allocator *allocator, tsr_http **out, tsr_error *err)
{
    (void)allocator, (void)out;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "this build reads no addresses: it was made without libcurl");
}

void tsr_http_close(tsr_http *http)
{
    (void)http;
}

tsr_status tsr_http_get(tsr_http *http, const char *url, uint64_t byte_offset, size_t size, void *buffer,
                        tsr_http_answer *answer, tsr_error *err)
{
    (void)http, (void)url, (void)byte_offset, (void)size, (void)buffer, (void)answer;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "this build reads no addresses");
}
#endif
