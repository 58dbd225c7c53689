/* See transport.h. Sources: RFC 9110 (ranges, Content-Range, ETag, Retry-After), libcurl's documentation of its multi interface. */
#include "io/transport.h"

#include "io/sys.h"
#include "tessera/sys/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#if defined(TSR_HAVE_CURL)
#include <signal.h>
#include <stdio.h>

#define CURL_DISABLE_DEPRECATION 1 /* older releases have only the deprecated names */
#include <curl/curl.h>

#include "tessera/sys/containers.h"

/* ---- libcurl, which is loaded when the first URL is opened, so that programs that open no URL start without it ---- */

/* The functions of libcurl that are used. Their names lack the prefix "curl_". */
typedef struct curl_calls {
    void *library;
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    void (*easy_reset)(CURL *handle);
    CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
    CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
    void (*easy_cleanup)(CURL *handle);
    const char *(*easy_strerror)(CURLcode code);
    CURLM *(*multi_init)(void);
    CURLMcode (*multi_setopt)(CURLM *multi, CURLMoption option, ...);
    CURLMcode (*multi_add_handle)(CURLM *multi, CURL *handle);
    CURLMcode (*multi_remove_handle)(CURLM *multi, CURL *handle);
    CURLMcode (*multi_perform)(CURLM *multi, int *running);
    CURLMcode (*multi_poll)(CURLM *multi, struct curl_waitfd *fds, unsigned fd_count, int milliseconds, int *ready);
    CURLMcode (*multi_wakeup)(CURLM *multi);
    CURLMsg *(*multi_info_read)(CURLM *multi, int *left);
    CURLMcode (*multi_cleanup)(CURLM *multi);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
} curl_calls;

/* TSR_E_UNSUPPORTED if libcurl is not installed or is older than 7.68. */
static tsr_status curl_open(curl_calls *out, tsr_error *err)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    const tsr_library_call calls[] = {
        {"curl_global_init", &out->global_init},
        {"curl_easy_init", &out->easy_init},
        {"curl_easy_reset", &out->easy_reset},
        {"curl_easy_setopt", &out->easy_setopt},
        {"curl_easy_getinfo", &out->easy_getinfo},
        {"curl_easy_cleanup", &out->easy_cleanup},
        {"curl_easy_strerror", &out->easy_strerror},
        {"curl_multi_init", &out->multi_init},
        {"curl_multi_setopt", &out->multi_setopt},
        {"curl_multi_add_handle", &out->multi_add_handle},
        {"curl_multi_remove_handle", &out->multi_remove_handle},
        {"curl_multi_perform", &out->multi_perform},
        {"curl_multi_poll", &out->multi_poll},
        {"curl_multi_wakeup", &out->multi_wakeup},
        {"curl_multi_info_read", &out->multi_info_read},
        {"curl_multi_cleanup", &out->multi_cleanup},
        {"curl_slist_append", &out->slist_append},
        {"curl_slist_free_all", &out->slist_free_all},
    };
    *out = (curl_calls){0};
    if (tsr_library_open(names, calls, sizeof calls / sizeof *calls, &out->library, NULL) != TSR_OK ||
        out->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return tsr_raise(
            err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
            "URLs are read with libcurl 7.68 or later (libcurl.so.4), which is not installed (Debian: libcurl4)");
    return TSR_OK;
}

/* Accepts a zeroed one. */
static void curl_close(curl_calls *curl)
{
    if (curl->library) dlclose(curl->library);
    *curl = (curl_calls){0};
}

/* ---- transfers ---- */

enum {
    MOST_HANDLES = 64,
    CONNECT_SECONDS = 20,
    RECEIVED_AT_ONCE = 64 << 10, /* libcurl allocates it for each request: larger blocks would be new pages each time */
    MOST_IGNORED = 64 << 10,
    POLL_MILLISECONDS = 500,
    EXPECT_MILLISECONDS = 200
};

/* One transfer in progress. */
typedef struct job {
    tsr_http_transfer *transfer;
    struct batch *batch;
    struct job *following; /* the next in the queue */
    CURL *handle;
    struct curl_slist *headers;
    size_t ignored, sent;
    double patience; /* seconds without traffic after which the transfer is given up */
    bool is_stalled;
    bool ended_here; /* the transfer was ended here because the rest of the answer is not wanted */
    char reason[CURL_ERROR_SIZE];
} job;

/* The transfers that one call of tsr_transport_perform waits for. Each call is woken for its own: one signal for all of them would wake every
 * thread that waits whenever a transfer ends. */
typedef struct batch {
    size_t left;
    pthread_cond_t ended; /* signalled when nothing is left */
} batch;

struct tsr_transport {
    tsr_process process; /* the one that the thread and the connections belong to */
    const tsr_allocator *allocator;
    curl_calls curl;
    unsigned depth;
    CURLM *multi;
    CURL *idle[MOST_HANDLES]; /* used only by the thread */
    size_t idle_count;
    unsigned active; /* transfers in progress; used only by the thread */
    pthread_t thread;
    pthread_mutex_t lock; /* protects the following fields, and all batches */
    job *first, *last;    /* queue of jobs that have not begun */
    bool is_running, stop;
};

void tsr_http_transfer_clear(tsr_http_transfer *transfer)
{
    free(transfer->redirect);
    free(transfer->link);
    free(transfer->location);
    transfer->redirect = transfer->link = transfer->location = NULL;
    transfer->answer = (tsr_http_answer){.total = UINT64_MAX};
    transfer->overflowed = false;
    transfer->reason[0] = transfer->problem[0] = '\0';
}

/* ---- callbacks of libcurl ---- */

static size_t keep_problem(job *j, const char *data, size_t size)
{
    char *problem = j->transfer->problem;
    const size_t used = strlen(problem), room = sizeof j->transfer->problem - 1 - used;
    const size_t kept = size < room ? size : room;
    memcpy(problem + used, data, kept);
    problem[used + kept] = '\0';
    j->ignored += size;
    j->ended_here = j->ignored > MOST_IGNORED;
    return j->ended_here ? 0 : size;
}

static size_t take_body(char *data, size_t one, size_t size, void *ctx)
{
    job *j = ctx;
    tsr_http_transfer *t = j->transfer;
    (void)one;
    t->heard = tsr_seconds();
    if (t->answer.status >= 300) return keep_problem(j, data, size);
    const size_t room = t->capacity - t->answer.size, taken = size < room ? size : room;
    if (taken) memcpy(t->buffer + t->answer.size, data, taken);
    t->answer.size += taken;
    j->ended_here = t->overflowed = taken < size;
    return taken; /* returning less than was received ends the transfer */
}

static size_t take_header(char *line, size_t one, size_t size, void *ctx)
{
    job *j = ctx;
    tsr_http_transfer *t = j->transfer;
    tsr_str value;
    (void)one;
    t->heard = tsr_seconds();
    if (tsr_header_is(line, size, "Link", &value) && !t->link) t->link = strndup(value.data, value.size);
    else if (tsr_header_is(line, size, "Location", &value) && !t->location) t->location = strndup(value.data, value.size);
    else if (tsr_header_is(line, size, "Retry-After", &value)) t->answer.retry_after = tsr_retry_after(value, time(NULL));
    else tsr_answer_header(&t->answer, line, size);
    return size;
}

static size_t give_body(char *data, size_t one, size_t room, void *ctx)
{
    job *j = ctx;
    const size_t left = j->transfer->body_size - j->sent, size = left < one * room ? left : one * room;
    if (size) memcpy(data, (const char *)j->transfer->body + j->sent, size);
    j->sent += size;
    j->transfer->heard = tsr_seconds();
    return size;
}

static int rewind_body(void *ctx, curl_off_t offset, int origin)
{
    job *j = ctx;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > j->transfer->body_size) return CURL_SEEKFUNC_FAIL;
    j->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* libcurl's own limit is on an average speed, which falls to zero only seconds after the last byte. */
static int watch(void *ctx, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
    job *j = ctx;
    (void)down_total, (void)down, (void)up_total, (void)up;
    j->is_stalled = tsr_seconds() - j->transfer->heard > j->patience;
    return j->is_stalled;
}

/* ---- one transfer ---- */

static void set_method(const curl_calls *curl, const job *j)
{
    const tsr_http_transfer *t = j->transfer;
    const char *method = t->method ? t->method : "GET";
    if (strcmp(method, "HEAD") == 0) {
        curl->easy_setopt(j->handle, CURLOPT_NOBODY, 1L);
    } else if (strcmp(method, "PUT") == 0) {
        curl->easy_setopt(j->handle, CURLOPT_UPLOAD, 1L);
        curl->easy_setopt(j->handle, CURLOPT_INFILESIZE_LARGE, (curl_off_t)t->body_size);
        curl->easy_setopt(j->handle, CURLOPT_READFUNCTION, give_body);
        curl->easy_setopt(j->handle, CURLOPT_READDATA, j);
        curl->easy_setopt(j->handle, CURLOPT_SEEKFUNCTION, rewind_body);
        curl->easy_setopt(j->handle, CURLOPT_SEEKDATA, j);
        /* Many servers never send "100 Continue". */
        curl->easy_setopt(j->handle, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_MILLISECONDS);
    } else if (strcmp(method, "POST") == 0) {
        curl->easy_setopt(j->handle, CURLOPT_POSTFIELDS, t->body ? t->body : "");
        curl->easy_setopt(j->handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body_size);
    } else if (t->method) {
        curl->easy_setopt(j->handle, CURLOPT_CUSTOMREQUEST, t->method);
    }
}

static bool set_headers(const curl_calls *curl, job *j)
{
    const char *const *header = j->transfer->headers;
    for (; header && *header; header++) {
        struct curl_slist *longer = curl->slist_append(j->headers, *header);
        if (!longer) return false;
        j->headers = longer;
    }
    curl->easy_setopt(j->handle, CURLOPT_HTTPHEADER, j->headers);
    return true;
}

/* The certificates of the authorities to trust, by default as curl itself finds them; NULL: the system's. */
static const char *authorities(const tsr_http_transfer *t)
{
    const char *given = t->authorities;
    if (!given || !*given) given = getenv("CURL_CA_BUNDLE");
    if (!given || !*given) given = getenv("SSL_CERT_FILE");
    return given && *given ? given : NULL;
}

static bool prepare(const curl_calls *curl, job *j)
{
    const tsr_http_transfer *t = j->transfer;
    const char *trusted = authorities(t);
    CURL *handle = j->handle;
    curl->easy_setopt(handle, CURLOPT_URL, t->url);
    curl->easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
    curl->easy_setopt(handle, CURLOPT_RANGE, t->range);
    curl->easy_setopt(handle, CURLOPT_FRESH_CONNECT, t->is_sent_once ? 1L : 0L);
    curl->easy_setopt(handle, CURLOPT_NETRC, t->use_netrc ? (long)CURL_NETRC_OPTIONAL : (long)CURL_NETRC_IGNORED);
    curl->easy_setopt(handle, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl->easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    const double connecting = t->connect_seconds              ? t->connect_seconds
                              : j->patience < CONNECT_SECONDS ? j->patience
                                                              : CONNECT_SECONDS;
    curl->easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, (long)(connecting * 1000) + 1);
    curl->easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl->easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, (long)j->patience + 1);
    curl->easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl->easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, watch);
    curl->easy_setopt(handle, CURLOPT_XFERINFODATA, j);
    curl->easy_setopt(handle, CURLOPT_USERAGENT, "tessera");
    /* Not HTTP/2, by which curl sends all requests on one connection: there, a lost segment stops all of them, and frames cost processor time. */
    curl->easy_setopt(handle, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl->easy_setopt(handle, CURLOPT_BUFFERSIZE, (long)RECEIVED_AT_ONCE);
    if (trusted) curl->easy_setopt(handle, CURLOPT_CAINFO, trusted);
    curl->easy_setopt(handle, CURLOPT_ERRORBUFFER, j->reason);
    curl->easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
    curl->easy_setopt(handle, CURLOPT_WRITEDATA, j);
    curl->easy_setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
    curl->easy_setopt(handle, CURLOPT_HEADERDATA, j);
    curl->easy_setopt(handle, CURLOPT_PRIVATE, j);
    set_method(curl, j);
    if (!set_headers(curl, j)) return false;
    if (!t->signing) return true;
    curl->easy_setopt(handle, CURLOPT_USERNAME, t->user);
    curl->easy_setopt(handle, CURLOPT_PASSWORD, t->password);
    return curl->easy_setopt(handle, CURLOPT_AWS_SIGV4, t->signing) == CURLE_OK;
}

static tsr_http_transfer_result result_of(const job *j, CURLcode code)
{
    switch (code) {
    case CURLE_OK: return TSR_TRANSFER_ANSWERED;
    case CURLE_WRITE_ERROR: return j->ended_here ? TSR_TRANSFER_ANSWERED : TSR_TRANSFER_FAILED;
    case CURLE_ABORTED_BY_CALLBACK: return j->is_stalled ? TSR_TRANSFER_CUT : TSR_TRANSFER_FAILED;
    case CURLE_COULDNT_CONNECT: return TSR_TRANSFER_NOT_CONNECTED;
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_RECV_ERROR: return TSR_TRANSFER_CUT;
    default: return TSR_TRANSFER_FAILED;
    }
}

static void finish(tsr_transport *transport, job *j, CURLcode code)
{
    const curl_calls *curl = &transport->curl;
    tsr_http_transfer *t = j->transfer;
    char *redirect = NULL;
    t->result = result_of(j, code);
    t->ended = tsr_seconds();
    if (t->result == TSR_TRANSFER_ANSWERED && t->answer.status >= 300 && t->answer.status < 400 &&
        curl->easy_getinfo(j->handle, CURLINFO_REDIRECT_URL, &redirect) == CURLE_OK && redirect)
        t->redirect = strdup(redirect);
    if (t->result != TSR_TRANSFER_ANSWERED) {
        const char *words = j->is_stalled  ? "the server stopped answering"
                            : j->reason[0] ? j->reason
                                           : curl->easy_strerror(code);
        const size_t size = strlen(words) < sizeof t->reason ? strlen(words) : sizeof t->reason - 1;
        memcpy(t->reason, words, size);
        t->reason[size] = '\0';
    }
    if (j->headers) curl->slist_free_all(j->headers);
    transport->active--;
    if (j->handle) {
        curl->easy_reset(j->handle);
        if (transport->idle_count < MOST_HANDLES) transport->idle[transport->idle_count++] = j->handle;
        else curl->easy_cleanup(j->handle);
    }
    pthread_mutex_lock(&transport->lock);
    if (--j->batch->left == 0) pthread_cond_signal(&j->batch->ended);
    pthread_mutex_unlock(&transport->lock);
}

static void begin(tsr_transport *transport, job *j)
{
    const curl_calls *curl = &transport->curl;
    transport->active++;
    j->transfer->began = j->transfer->heard = tsr_seconds();
    j->patience = tsr_retry_patience();
    if (j->patience <= 0) {
        snprintf(j->reason, sizeof j->reason, "not requested, because the server has failed for too long");
        finish(transport, j, CURLE_ABORTED_BY_CALLBACK);
        return;
    }
    j->handle = transport->idle_count ? transport->idle[--transport->idle_count] : curl->easy_init();
    if (!j->handle) finish(transport, j, CURLE_OUT_OF_MEMORY);
    else if (!prepare(curl, j)) finish(transport, j, CURLE_FAILED_INIT);
    else if (curl->multi_add_handle(transport->multi, j->handle) != CURLM_OK) finish(transport, j, CURLE_OUT_OF_MEMORY);
}

/* ---- the thread ---- */

static void end_those_done(tsr_transport *transport)
{
    CURLMsg *message;
    int left;
    while ((message = transport->curl.multi_info_read(transport->multi, &left))) {
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode code = message->data.result;
        CURL *handle = message->easy_handle;
        char *found = NULL;
        transport->curl.easy_getinfo(handle, CURLINFO_PRIVATE, &found);
        transport->curl.multi_remove_handle(transport->multi, handle);
        if (found) finish(transport, (job *)(void *)found, code);
    }
}

/* Takes the next job from the queue; NULL if it is empty, or if the maximum number is in progress. */
static job *next_job(tsr_transport *transport, bool *stop)
{
    pthread_mutex_lock(&transport->lock);
    job *j = transport->active < transport->depth ? transport->first : NULL;
    if (j) transport->first = j->following;
    if (!transport->first) transport->last = NULL;
    *stop = transport->stop;
    pthread_mutex_unlock(&transport->lock);
    return j;
}

static void *drive(void *ctx)
{
    tsr_transport *transport = ctx;
    for (;;) {
        int running;
        bool stop;
        for (job *j; (j = next_job(transport, &stop));) begin(transport, j);
        if (stop) return NULL;
        transport->curl.multi_perform(transport->multi, &running);
        const unsigned before = transport->active;
        end_those_done(transport);
        if (transport->active == before) transport->curl.multi_poll(transport->multi, NULL, 0, POLL_MILLISECONDS, NULL);
    }
}

/* Blocks signals, because other threads are to handle them; and SIGPIPE from a connection that closes while it is written to
 * must not end the program. */
static bool start_thread(tsr_transport *transport)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    transport->is_running = transport->multi && pthread_create(&transport->thread, NULL, drive, transport) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return transport->is_running;
}

static void append(tsr_transport *transport, job *j)
{
    if (transport->last) transport->last->following = j;
    else transport->first = j;
    transport->last = j;
}

static bool open_connections(tsr_transport *transport)
{
    transport->multi = transport->curl.multi_init();
    if (!transport->multi) return false;
    transport->curl.multi_setopt(transport->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)transport->depth);
    transport->curl.multi_setopt(transport->multi, CURLMOPT_MAXCONNECTS, (long)transport->depth);
    return true;
}

/* The connections remain with the parent, which would get the answers to what a child asks for on them. They are not closed here
 * either: that would end them for the parent, too. */
static void begin_in_child(void *ctx)
{
    tsr_transport *transport = ctx;
    pthread_mutex_init(&transport->lock, NULL);
    transport->first = transport->last = NULL;
    transport->active = 0;
    transport->idle_count = 0;
    transport->is_running = false;
    (void)open_connections(transport); /* otherwise no thread is started */
}

void tsr_transport_perform(tsr_transport *transport, tsr_http_transfer *const *transfers, size_t count)
{
    job *jobs = calloc(count ? count : 1, sizeof *jobs);
    batch waiting = {.left = count};
    tsr_process_enter(&transport->process, begin_in_child, transport);
    for (size_t i = 0; i < count; i++) {
        tsr_http_transfer_clear(transfers[i]);
        transfers[i]->result = TSR_TRANSFER_FAILED;
    }
    pthread_cond_init(&waiting.ended, NULL);
    pthread_mutex_lock(&transport->lock);
    if (!jobs || (!transport->is_running && !start_thread(transport))) {
        pthread_mutex_unlock(&transport->lock);
        pthread_cond_destroy(&waiting.ended);
        free(jobs);
        for (size_t i = 0; i < count; i++) memcpy(transfers[i]->reason, "out of memory", sizeof "out of memory");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        jobs[i] = (job){.transfer = transfers[i], .batch = &waiting};
        append(transport, &jobs[i]);
    }
    transport->curl.multi_wakeup(transport->multi);
    while (waiting.left) pthread_cond_wait(&waiting.ended, &transport->lock);
    pthread_mutex_unlock(&transport->lock);
    pthread_cond_destroy(&waiting.ended);
    free(jobs);
}

/* ---- opening ---- */

tsr_status tsr_transport_open(const tsr_allocator *allocator, unsigned depth, tsr_transport **out, tsr_error *err)
{
    tsr_transport *transport = tsr_alloc(allocator, 1, sizeof *transport, err);
    if (!transport) return TSR_E_NOMEM;
    *transport = (tsr_transport){.allocator = allocator, .depth = depth};
    tsr_process_init(&transport->process);
    pthread_mutex_init(&transport->lock, NULL);
    tsr_status status = tsr_retry_check_setting(err);
    if (status == TSR_OK) status = curl_open(&transport->curl, err);
    if (status == TSR_OK && !open_connections(transport))
        status = tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for connections");
    if (status != TSR_OK) {
        tsr_transport_close(transport);
        return status;
    }
    *out = transport;
    return TSR_OK;
}

void tsr_transport_close(tsr_transport *transport)
{
    if (!transport) return;
    tsr_process_enter(&transport->process, begin_in_child, transport);
    if (transport->is_running) {
        pthread_mutex_lock(&transport->lock);
        transport->stop = true;
        pthread_mutex_unlock(&transport->lock);
        transport->curl.multi_wakeup(transport->multi);
        pthread_join(transport->thread, NULL);
    }
    for (size_t i = 0; i < transport->idle_count; i++) transport->curl.easy_cleanup(transport->idle[i]);
    if (transport->multi) transport->curl.multi_cleanup(transport->multi);
    curl_close(&transport->curl);
    pthread_mutex_destroy(&transport->lock);
    tsr_free(transport->allocator, transport, 1, sizeof *transport);
}
#else
void tsr_http_transfer_clear(tsr_http_transfer *transfer)
{
    (void)transfer;
}

/* Why, where no package helps. */
#if !defined(TSR_WITHOUT_CURL)
#define TSR_WITHOUT_CURL "it was built without libcurl (Debian: libcurl4-openssl-dev)"
#endif

tsr_status tsr_transport_open(const tsr_allocator *allocator, unsigned depth, tsr_transport **out, tsr_error *err)
{
    (void)allocator, (void)depth, (void)out;
    return tsr_raise(err, TSR_E_NOT_BUILT, TSR_NO_POSITION, "this build cannot read URLs: " TSR_WITHOUT_CURL);
}

void tsr_transport_close(tsr_transport *transport)
{
    (void)transport;
}

void tsr_transport_perform(tsr_transport *transport, tsr_http_transfer *const *transfers, size_t count)
{
    (void)transport, (void)transfers, (void)count;
}
#endif

bool tsr_header_is(const char *line, size_t size, const char *name, tsr_str *value)
{
    const size_t n = strlen(name);
    if (size <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return false;
    const char *at = line + n + 1, *end = line + size;
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) end--;
    *value = (tsr_str){at, (size_t)(end - at)};
    return true;
}

static uint64_t number_of(const char *text, size_t size)
{
    uint64_t number = 0;
    for (size_t i = 0; i < size; i++) {
        if (!tsr_is_digit(text[i]) || number > (UINT64_MAX - 9) / 10) return UINT64_MAX;
        number = number * 10 + (uint64_t)(text[i] - '0');
    }
    return size ? number : UINT64_MAX;
}

/* Parses "bytes 0-9/100". Either side of the slash may be an asterisk. */
static void take_range(tsr_str value, tsr_http_answer *answer)
{
    static const char unit[] = "bytes ";
    const size_t n = sizeof unit - 1;
    const char *slash = memchr(value.data, '/', value.size);
    const char *dash = slash ? memchr(value.data, '-', (size_t)(slash - value.data)) : NULL;
    answer->is_range = false;
    if (!slash || value.size < n || strncasecmp(value.data, unit, n) != 0) return;
    answer->total = number_of(slash + 1, value.size - (size_t)(slash + 1 - value.data));
    if (!dash || (answer->total == UINT64_MAX && strncmp(slash, "/*", 2) != 0)) return;
    answer->first = number_of(value.data + n, (size_t)(dash - value.data) - n);
    answer->last = number_of(dash + 1, (size_t)(slash - dash) - 1);
    answer->is_range = answer->first != UINT64_MAX && answer->last != UINT64_MAX && answer->first <= answer->last;
}

/* Parses "bytes=0-9", the first bytes of an upload. */
static uint64_t take_stored(tsr_str value)
{
    static const char begin[] = "bytes=0-";
    const size_t n = sizeof begin - 1;
    const bool is_known = value.size > n && strncasecmp(value.data, begin, n) == 0;
    const uint64_t last = is_known ? number_of(value.data + n, value.size - n) : UINT64_MAX;
    return last == UINT64_MAX ? 0 : last + 1;
}

static void keep(char *to, size_t room, tsr_str value)
{
    const size_t size = value.size < room ? value.size : room - 1;
    memcpy(to, value.data, size);
    to[size] = '\0';
}

static int month_of(const char *name)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    for (int i = 0; i < 12; i++)
        if (strncasecmp(name, months + 3 * i, 3) == 0) return i;
    return -1;
}

/* The only form that RFC 9110 allows servers to send. */
time_t tsr_http_date(tsr_str value)
{
    char text[64], month[4] = "";
    struct tm tm = {0};
    if (value.size >= sizeof text) return 0;
    memcpy(text, value.data, value.size);
    text[value.size] = '\0';
    char *at = strchr(text, ',');
    if (!at) return 0;
    tm.tm_mday = (int)strtol(at + 1, &at, 10);
    while (*at == ' ') at++;
    for (size_t i = 0; i < 3 && *at; i++) month[i] = *at++;
    tm.tm_mon = month_of(month);
    tm.tm_year = (int)strtol(at, &at, 10) - 1900;
    tm.tm_hour = (int)strtol(at, &at, 10);
    if (*at == ':') tm.tm_min = (int)strtol(at + 1, &at, 10);
    if (*at == ':') tm.tm_sec = (int)strtol(at + 1, &at, 10);
    return tm.tm_mon < 0 || tm.tm_year < 70 ? 0 : timegm(&tm);
}

/* Keeps a checksum unless its size is another one. That of an object which S3 composed of the checksums of parts ends in "-3". */
static void take_checksum(tsr_http_answer *answer, tsr_checksum_kind kind, tsr_str value)
{
    if (value.size == tsr_checksum_text_size(kind)) keep(answer->checksums.of_object[kind], TSR_CHECKSUM_TEXT, value);
}

/* Parses "crc32c=n03x6A==,md5=Ojk9c3dhfxgoKVVHYwFbHQ==", which may be divided between several headers. */
static void take_google_checksums(tsr_http_answer *answer, tsr_str value)
{
    while (value.size) {
        const char *comma = memchr(value.data, ',', value.size);
        tsr_str one = {value.data, comma ? (size_t)(comma - value.data) : value.size};
        value.size -= one.size + (comma != NULL);
        value.data += one.size + (comma != NULL);
        while (one.size && *one.data == ' ') one = tsr_str_after(one, 1);
        if (tsr_str_starts(one, TSR_STR("crc32c="))) take_checksum(answer, TSR_CHECKSUM_CRC32C, tsr_str_after(one, 7));
        if (tsr_str_starts(one, TSR_STR("md5="))) take_checksum(answer, TSR_CHECKSUM_MD5, tsr_str_after(one, 4));
    }
}

static void take_checksum_header(tsr_http_answer *answer, const char *line, size_t size)
{
    static const struct {
        const char *header;
        tsr_checksum_kind kind;
    } headers[] = {{"x-amz-checksum-crc32", TSR_CHECKSUM_CRC32},
                   {"x-amz-checksum-crc32c", TSR_CHECKSUM_CRC32C},
                   {"x-amz-checksum-crc64nvme", TSR_CHECKSUM_CRC64},
                   {"x-ms-blob-content-md5", TSR_CHECKSUM_MD5}};
    tsr_str value;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        if (!tsr_header_is(line, size, headers[i].header, &value)) continue;
        take_checksum(answer, headers[i].kind, value);
        return;
    }
    if (tsr_header_is(line, size, "x-amz-checksum-type", &value)) {
        answer->checksums.says_full = tsr_str_equal(value, TSR_STR("FULL_OBJECT"));
        answer->checksums.says_composite = tsr_str_equal(value, TSR_STR("COMPOSITE"));
    }
    if (tsr_header_is(line, size, "x-goog-hash", &value)) take_google_checksums(answer, value);
    else if (tsr_header_is(line, size, "Content-MD5", &value)) keep(answer->checksums.md5_of_body, TSR_CHECKSUM_TEXT, value);
}

void tsr_answer_header(tsr_http_answer *answer, const char *line, size_t size)
{
    tsr_str value;
    if (size > 5 && memcmp(line, "HTTP/", 5) == 0) { /* a new answer; the one before was only informational */
        const char *space = memchr(line, ' ', size);
        *answer = (tsr_http_answer){.total = UINT64_MAX, .status = space ? strtol(space + 1, NULL, 10) : 0};
    } else if (tsr_header_is(line, size, "Content-Range", &value)) {
        take_range(value, answer);
    } else if (tsr_header_is(line, size, "Range", &value)) {
        answer->stored = take_stored(value);
    } else if (tsr_header_is(line, size, "Content-Length", &value)) {
        if (answer->total == UINT64_MAX && answer->status != 206) answer->total = number_of(value.data, value.size);
    } else if (tsr_header_is(line, size, "ETag", &value) ||
               (!answer->version[0] && tsr_header_is(line, size, "Last-Modified", &value))) {
        keep(answer->version, sizeof answer->version, value);
    } else if (tsr_header_is(line, size, "x-amz-bucket-region", &value)) {
        keep(answer->region, sizeof answer->region, value);
    } else if (tsr_header_is(line, size, "x-goog-generation", &value)) {
        keep(answer->generation, sizeof answer->generation, value);
    } else if (tsr_header_is(line, size, "Date", &value)) {
        answer->date = (int64_t)tsr_http_date(value);
    } else {
        take_checksum_header(answer, line, size);
    }
}

double tsr_retry_after(tsr_str value, time_t now)
{
    const uint64_t seconds = number_of(value.data, value.size);
    if (seconds != UINT64_MAX) return (double)seconds;
    const time_t date = tsr_http_date(value);
    return date > now ? (double)(date - now) : 0;
}
