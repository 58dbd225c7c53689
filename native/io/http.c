/* See transport.h. Source: RFC 9110 (ranges, redirects). */
#include "io/transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/text.h"

/* ---- http origin ---- */

/* See transport.h. Source: RFC 3986, 3.2. */

typedef struct place {
    size_t scheme;    /* number of its characters; 0: neither http nor https */
    const char *user; /* the text after "//" */
    size_t user_size; /* including the '@' */
    const char *host;
    size_t host_size;
    unsigned long port;
} place;

static place place_of(const char *url)
{
    place p = {0};
    const bool secure = strncasecmp(url, "https://", 8) == 0;
    if (!secure && strncasecmp(url, "http://", 7) != 0) return p;
    p.scheme = secure ? 5 : 4;
    p.user = p.host = url + p.scheme + 3;
    const char *end = p.host + strcspn(p.host, "/?#");
    for (const char *at = p.host; at < end; at++)
        if (*at == '@') p.host = at + 1;
    p.user_size = (size_t)(p.host - p.user);
    const char *close = *p.host == '[' ? memchr(p.host, ']', (size_t)(end - p.host)) : NULL;
    const char *colon = memchr(close ? close : p.host, ':', (size_t)(end - (close ? close : p.host)));
    p.host_size = (size_t)((colon ? colon : end) - p.host);
    p.port = colon && colon + 1 < end ? strtoul(colon + 1, NULL, 10) : secure ? 443 : 80;
    return p;
}

bool tsr_http_same_origin(const char *a, const char *b)
{
    const place x = place_of(a), y = place_of(b);
    return x.scheme && x.scheme == y.scheme && x.port == y.port && x.host_size == y.host_size &&
           strncasecmp(x.host, y.host, x.host_size) == 0;
}

/* A copy of `url` (malloc) with the "user:password@" of `from`, unless it has its own; NULL if memory ran out. */
static char *http_with_user(const char *url, const char *from)
{
    const place to = place_of(url), had = place_of(from);
    if (!to.scheme || to.user_size || !had.user_size) return strdup(url);
    const size_t head = (size_t)(to.user - url), size = strlen(url);
    char *text = malloc(size + had.user_size + 1);
    if (!text) return NULL;
    memcpy(text, url, head);
    memcpy(text + head, had.user, had.user_size);
    memcpy(text + head + had.user_size, url + head, size - head + 1);
    return text;
}

/* ---- http ---- */

enum { MOST_REDIRECTS = 10, MOST_HEADERS = 64 };

struct tsr_http {
    const tsr_allocator *allocator;
    tsr_transport *transport;
    char *lines;                           /* copy of TESSERA_HTTP_HEADERS, with a NUL at the end of each line */
    const char *headers[MOST_HEADERS + 1]; /* pointers into `lines` */
};

/* Splits TESSERA_HTTP_HEADERS into lines ("Authorization: Bearer …"). These headers are sent with every request to the
 * origin of the given URL, but not to other origins that it redirects to. */
static tsr_status take_headers(tsr_http *http, tsr_error *err)
{
    const char *given = getenv("TESSERA_HTTP_HEADERS");
    size_t count = 0;
    if (!given) return TSR_OK;
    http->lines = strdup(given);
    if (!http->lines) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for HTTP headers");
    for (char *rest = http->lines, *line; (line = strtok_r(rest, "\n", &rest));) {
        if (count == MOST_HEADERS)
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "TESSERA_HTTP_HEADERS has more than %d lines", MOST_HEADERS);
        http->headers[count++] = line;
    }
    return TSR_OK;
}

tsr_status tsr_http_open(const tsr_allocator *allocator, unsigned depth, tsr_http **out, tsr_error *err)
{
    tsr_http *http = tsr_alloc(allocator, 1, sizeof *http, err);
    if (!http) return TSR_E_NOMEM;
    *http = (tsr_http){.allocator = allocator};
    tsr_status status = tsr_transport_open(allocator, depth, &http->transport, err);
    if (status == TSR_OK) status = take_headers(http, err);
    if (status == TSR_OK) *out = http;
    else tsr_http_close(http);
    return status;
}

void tsr_http_close(tsr_http *http)
{
    if (!http) return;
    tsr_transport_close(http->transport);
    free(http->lines);
    tsr_free(http->allocator, http, 1, sizeof *http);
}

/* ---- one request ---- */

/* `trusted`: includes the secrets that are intended for the origin of the given URL. */
static void perform(const tsr_http *http, const char *url, bool trusted, tsr_http_transfer *t)
{
    tsr_http_transfer *const all[] = {t};
    t->url = url;
    t->headers = trusted ? http->headers : NULL;
    t->use_netrc = trusted;
    tsr_transport_perform(http->transport, all, 1);
}

/* Whether `moved` is `url` with a slash: how servers answer to the address of a directory whose slash was left out. */
static bool is_slashed(const char *url, const char *moved)
{
    size_t end = strcspn(url, "?#"), slashed = strcspn(moved, "?#");
    if (!end || !slashed || url[end - 1] == '/' || moved[--slashed] != '/') return false;
    while (end && slashed && url[end - 1] == moved[slashed - 1] && url[end - 1] != '/') end--, slashed--;
    return end && slashed && url[end - 1] == '/' && moved[slashed - 1] == '/';
}

/* Performs a request and follows its redirects. libcurl's own redirects would send all headers except Authorization and
 * Cookie to other hosts, and the .netrc entry of a host to all its ports. Once another origin was involved, a redirect back
 * is not trusted either, because that origin chose the address. */
static void perform_following(const tsr_http *http, const char *url, tsr_http_transfer *t)
{
    char *moved = NULL;
    bool trusted = true;
    perform(http, url, true, t);
    for (unsigned count = 0; t->result == TSR_TRANSFER_ANSWERED && t->redirect; count++) {
        trusted = trusted && tsr_http_same_origin(url, t->redirect);
        char *next = trusted ? http_with_user(t->redirect, url) : strdup(t->redirect);
        free(moved);
        moved = next;
        if (!next || count == MOST_REDIRECTS) {
            t->result = TSR_TRANSFER_FAILED;
            snprintf(t->reason, sizeof t->reason, "%s", next ? "Number of redirects hit maximum amount" : "out of memory");
            break;
        }
        perform(http, next, trusted, t);
    }
    t->answer.is_directory = moved && is_slashed(url, moved);
    free(moved);
}

/* Checks that a partial answer contains the range that was requested. */
static tsr_status check_part(const char *shown, const tsr_http_transfer *t, uint64_t byte_offset, size_t size,
                             tsr_error *err)
{
    const tsr_http_answer *answer = &t->answer;
    if (answer->status != 206) return TSR_OK;
    if (!answer->is_range)
        return tsr_raise(err, TSR_E_IO, byte_offset,
                         "%s: the server answered 206 without saying which part of the file it gave", shown);
    const uint64_t last = answer->total && answer->total - 1 - byte_offset < size - 1 && answer->total > byte_offset
                              ? answer->total - 1
                              : byte_offset + size - 1;
    if (answer->first != byte_offset || answer->last != last)
        return tsr_raise(err, TSR_E_IO, byte_offset,
                         "%s: the server gave bytes %" PRIu64 "-%" PRIu64 " where %" PRIu64 "-%" PRIu64 " were asked for",
                         shown, answer->first, answer->last, byte_offset, last);
    const uint64_t wanted = last - byte_offset + 1;
    if (answer->size == wanted && !t->overflowed) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, byte_offset, "%s: the server gave %s%zu bytes of %" PRIu64, shown,
                     t->overflowed ? "more than " : "", answer->size, wanted);
}

tsr_status tsr_http_get(tsr_http *http, const char *url, tsr_http_range range, tsr_http_answer *answer, tsr_error *err)
{
    char header[64], shown[2048];
    double seconds;
    tsr_http_transfer t = {.range = header, .buffer = range.buffer, .capacity = range.size};
    snprintf(header, sizeof header, "%" PRIu64 "-%" PRIu64, range.byte_offset, range.byte_offset + range.size - 1);
    perform_following(http, url, &t);
    for (unsigned attempt = 1; tsr_retry_worthwhile(&t, attempt, &seconds); attempt++) {
        tsr_retry_wait(seconds);
        perform_following(http, url, &t);
    }
    *answer = t.answer;
    shown[tsr_uri_redact(tsr_str_from(url), shown, sizeof shown - 1)] = '\0';
    const tsr_status status = t.result == TSR_TRANSFER_ANSWERED
                                  ? check_part(shown, &t, range.byte_offset, range.size, err)
                                  : tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: %s", shown, t.reason);
    tsr_http_transfer_clear(&t);
    return status;
}
