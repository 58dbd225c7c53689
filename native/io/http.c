/* See http.h. Sources: RFC 9110 (ranges, Content-Range, ETag), libcurl's documentation of its easy interface. */
#include "io/http.h"

#include "io/http_origin.h"

#if defined(TSR_HAVE_CURL)
#define CURL_DISABLE_DEPRECATION 1 /* older releases know no other names */
#include <curl/curl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "io/optional_library.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/uri.h"

enum { HANDLES = 32, TRIES = 4, MOST_REDIRECTS = 10, CONNECT_SECONDS = 20, STALL_SECONDS = 60, MOST_IGNORED = 64 << 10 };

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

/* Lines of TESSERA_HTTP_HEADERS ("Authorization: Bearer …") go with every request to the origin that was named, and to no
 * other that it redirects to. */
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
    size_t ignored; /* bytes of a redirect's text */
    bool full;      /* the transfer was ended here: the buffer has what was asked for */
} request;

static bool is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static size_t take_body(char *data, size_t one, size_t size, void *ctx)
{
    request *r = ctx;
    (void)one;
    if (is_redirect(r->answer->status)) {
        r->ignored += size;
        r->full = r->ignored > MOST_IGNORED;
        return r->full ? 0 : size;
    }
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

/* "bytes 0-9/100"; either side of the slash may be a star. */
static void take_range(const char *value, size_t size, tsr_http_answer *answer)
{
    static const char unit[] = "bytes ";
    const size_t n = sizeof unit - 1;
    const char *slash = memchr(value, '/', size), *dash = slash ? memchr(value, '-', (size_t)(slash - value)) : NULL;
    answer->is_range = false;
    if (!slash || size < n || strncasecmp(value, unit, n) != 0) return;
    answer->total = number_of(slash + 1, size - (size_t)(slash + 1 - value));
    if (!dash || (answer->total == UINT64_MAX && strncmp(slash, "/*", 2) != 0)) return;
    answer->first = number_of(value + n, (size_t)(dash - value) - n);
    answer->last = number_of(dash + 1, (size_t)(slash - dash) - 1);
    answer->is_range = answer->first != UINT64_MAX && answer->last != UINT64_MAX && answer->first <= answer->last;
}

static size_t take_header(char *line, size_t one, size_t size, void *ctx)
{
    request *r = ctx;
    tsr_http_answer *answer = r->answer;
    size_t n;
    const char *value;
    (void)one;
    if (size > 5 && memcmp(line, "HTTP/", 5) == 0) { /* another answer: the one before was a redirect */
        const char *space = memchr(line, ' ', size);
        *answer = (tsr_http_answer){.total = UINT64_MAX, .status = space ? strtol(space + 1, NULL, 10) : 0};
    } else if ((value = header_value(line, size, "Content-Range", &n))) {
        take_range(value, n, answer);
    } else if ((value = header_value(line, size, "Content-Length", &n))) {
        if (answer->total == UINT64_MAX && answer->status != 206) answer->total = number_of(value, n);
    } else if ((value = header_value(line, size, "ETag", &n)) || (!answer->version[0] && (value = header_value(line, size, "Last-Modified", &n)))) {
        const size_t kept = n < sizeof answer->version ? n : sizeof answer->version - 1;
        memcpy(answer->version, value, kept);
        answer->version[kept] = 0;
    }
    return size;
}

/* A connection that ends while it is written to must not end the program: some TLS libraries write without MSG_NOSIGNAL. */
static CURLcode perform_quietly(const curl_calls *curl, CURL *handle)
{
    sigset_t pipe, before;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    const CURLcode code = curl->easy_perform(handle);
#if defined(__linux__)
    const struct timespec now = {0, 0};
    if (!sigismember(&before, SIGPIPE)) sigtimedwait(&pipe, NULL, &now);
#endif
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

/* One request, which follows nothing. `trusted`: with the secrets that are meant for the named origin. */
static CURLcode perform(const tsr_http *http, CURL *handle, const char *url, bool trusted, const char *range, request *r)
{
    const curl_calls *curl = &http->curl;
    char reason[CURL_ERROR_SIZE];
    curl->easy_setopt(handle, CURLOPT_URL, url);
    curl->easy_setopt(handle, CURLOPT_RANGE, range);
    curl->easy_setopt(handle, CURLOPT_HTTPHEADER, trusted ? http->headers : NULL);
    curl->easy_setopt(handle, CURLOPT_NETRC, trusted ? (long)CURL_NETRC_OPTIONAL : (long)CURL_NETRC_IGNORED);
    curl->easy_setopt(handle, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl->easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
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
    const CURLcode code = perform_quietly(curl, handle);
    curl->easy_setopt(handle, CURLOPT_ERRORBUFFER, NULL);
    curl->easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &r->answer->status);
    return code == CURLE_WRITE_ERROR && r->full ? CURLE_OK : code;
}

/* A request and what it redirects to. libcurl would carry all headers but Authorization and Cookie to other hosts, and what
 * .netrc says of a host to all its ports. Once left, the named origin is not trusted again: another one chose the address. */
static CURLcode perform_following(const tsr_http *http, CURL *handle, const char *url, const char *range, request *r)
{
    char *moved = NULL;
    bool trusted = true;
    CURLcode code = perform(http, handle, url, true, range, r);
    for (unsigned count = 0; code == CURLE_OK && is_redirect(r->answer->status); count++) {
        char *to = NULL;
        if (http->curl.easy_getinfo(handle, CURLINFO_REDIRECT_URL, &to) != CURLE_OK || !to) break;
        if (count == MOST_REDIRECTS) {
            code = CURLE_TOO_MANY_REDIRECTS;
            break;
        }
        trusted = trusted && tsr_http_same_origin(url, to);
        char *next = trusted ? tsr_http_with_user(to, url) : strdup(to);
        free(moved);
        moved = next;
        if (!next) return CURLE_OUT_OF_MEMORY;
        r->full = false;
        r->ignored = 0;
        code = perform(http, handle, next, trusted, range, r);
    }
    free(moved);
    return code;
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

/* What came as a part must be the part that was asked for. */
static tsr_status check_part(const char *shown, const request *r, uint64_t byte_offset, size_t size, tsr_error *err)
{
    const tsr_http_answer *answer = r->answer;
    if (answer->status != 206) return TSR_OK;
    if (!answer->is_range)
        return tsr_raise(err, TSR_E_IO, byte_offset, "%s: the server answered 206 without saying which part of the file it gave",
                         shown);
    const uint64_t last = answer->total && answer->total - 1 - byte_offset < size - 1 && answer->total > byte_offset
                              ? answer->total - 1
                              : byte_offset + size - 1;
    if (answer->first != byte_offset || answer->last != last)
        return tsr_raise(err, TSR_E_IO, byte_offset,
                         "%s: the server gave bytes %" PRIu64 "-%" PRIu64 " where %" PRIu64 "-%" PRIu64 " were asked for", shown,
                         answer->first, answer->last, byte_offset, last);
    const uint64_t wanted = last - byte_offset + 1;
    if (answer->size == wanted && !r->full) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, byte_offset, "%s: the server gave %s%zu bytes of %" PRIu64, shown, r->full ? "more than " : "",
                     answer->size, wanted);
}

tsr_status tsr_http_get(tsr_http *http, const char *url, uint64_t byte_offset, size_t size, void *buffer,
                        tsr_http_answer *answer, tsr_error *err)
{
    char range[64], shown[2048];
    request r = {0};
    CURL *handle = take_handle(http);
    if (!handle) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for a request");
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, byte_offset, byte_offset + size - 1);
    CURLcode code = CURLE_OK;
    for (unsigned attempt = 0; attempt < TRIES; attempt++) {
        if (attempt) wait_before(attempt);
        *answer = (tsr_http_answer){.total = UINT64_MAX};
        r = (request){.answer = answer, .buffer = buffer, .capacity = size};
        code = perform_following(http, handle, url, range, &r);
        if (!may_pass(code, answer->status)) break;
    }
    give_handle(http, handle);
    shown[tsr_uri_redact(tsr_str_from(url), shown, sizeof shown - 1)] = '\0';
    if (code == CURLE_OK) return check_part(shown, &r, byte_offset, size, err);
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: %s", shown, http->curl.easy_strerror(code));
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
