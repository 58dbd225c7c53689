/* See view_server.h. Each thread of the server waits for the events of its own connections and of the listening socket, which
 * all share. */
#include "view/view_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/sys.h"
#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct view_request {
    const char *method;
    char *path;        /* percent-decoded, without the query; the handler may change it */
    const char *host;  /* NULL if the request has none, or several */
    const char *range; /* the value of Range; may be NULL */
} view_request;

/* What an answer sends: `text`, or else the bytes from `byte_offset` on, of a file of a store or of the file `fd`. */
typedef struct view_body {
    const char *text; /* borrowed until the server stops */
    tsr_store *store; /* borrowed; NULL: the bytes are in `fd` */
    uint32_t file;
    int fd; /* the server closes it; -1: none */
    uint64_t byte_offset, size;
} view_body;

typedef struct view_answer {
    const char *status; /* "200 OK" */
    const char *type;   /* of the content */
    char range[96];     /* the value of Content-Range; "": none */
    view_body body;
} view_answer;

/* Answers a request. Several threads call it at the same time. `out` is zeroed, and its `fd` is -1. */
typedef void view_handler(void *ctx, const view_request *request, view_answer *out);

typedef struct view_site {
    const char *headers; /* sent with every answer: lines that end with CRLF */
    view_handler *handler;
    void *ctx;
} view_site;

typedef struct view_http view_http;

/* ---- http ---- */

/* A small HTTP/1.1 server on the loopback address, for GET and HEAD. Some threads share the connections and wait for none of
 * them: a client that is slow, idle, or stops in the middle of a request keeps nobody out. Each thread waits for the events of its own connections and of the listening socket, which all share. */

enum {
    THREADS = 4,
    MOST_CLIENTS = 128, /* of each thread */
    MANY_IDLE = MOST_CLIENTS / 4,
    HEAD_SIZE = 8192,
    ANSWER_SIZE = 1024,
    BLOCK_SIZE = 256 << 10
};

#define IDLE_SECONDS  8.0  /* for a whole request */
#define STALL_SECONDS 10.0 /* without a byte that the client takes */

typedef enum client_state { CLIENT_UNUSED, CLIENT_READING, CLIENT_ANSWERING, CLIENT_ENDING } client_state;

typedef struct client {
    client_state
        state; /* ENDING: the answer is sent, and what still arrives is dropped, so that it is not lost on the way */
    int fd;
    double since;             /* READING: the end of the last answer; ANSWERING: the last progress */
    char head[HEAD_SIZE + 1]; /* the request, and what has arrived after it */
    size_t head_size, next;   /* the next request begins at `next` */
    char answer[ANSWER_SIZE];
    size_t answer_size, answer_sent;
    view_body body;
    char *block; /* BLOCK_SIZE bytes of the body, if it is not a text */
    size_t block_size, block_sent;
    bool is_kept;
} client;

typedef struct loop {
    view_http *http;
    pthread_t thread;
    client clients[MOST_CLIENTS];
} loop;

struct view_http {
    const tsr_allocator *allocator;
    view_site site;
    int listener;
    int stop[2]; /* a pipe: its end for reading reports when the server stops */
    size_t thread_count;
    loop *loops;
};

/* ---- connections ---- */

static void end_body(client *c)
{
    if (c->body.fd >= 0) close(c->body.fd);
    free(c->block);
    c->block = NULL;
    c->body = (view_body){.fd = -1};
    c->block_size = c->block_sent = 0;
}

static void end_client(client *c)
{
    end_body(c);
    close(c->fd);
    c->state = CLIENT_UNUSED;
}

/* A place for a new connection; NULL if all are in use. Ends the connection that has been idle longest if many are. */
static client *find_place(loop *l)
{
    client *oldest = NULL, *unused = NULL;
    size_t idle = 0;
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        client *c = &l->clients[i];
        if (c->state == CLIENT_UNUSED) unused = c;
        if (c->state != CLIENT_READING) continue;
        idle++;
        if (!oldest || c->since < oldest->since) oldest = c;
    }
    if (idle < MANY_IDLE) return unused;
    end_client(oldest);
    return oldest;
}

static void accept_client(loop *l)
{
    const int fd = accept4(l->http->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return; /* another thread was faster, or the client has gone */
    client *c = find_place(l);
    if (!c) {
        close(fd);
        return;
    }
    c->state = CLIENT_READING;
    c->fd = fd;
    c->since = tsr_seconds();
    c->head_size = c->next = 0;
    c->block = NULL;
    c->body = (view_body){.fd = -1};
}

/* ---- requests ---- */

/* Percent-decodes a name, except for an encoded NUL or slash, which would end or split the name. */
static void unescape(char *text)
{
    char *out = text;
    for (const char *at = text; *at;) {
        const int high = *at == '%' ? tsr_hex_digit(at[1]) : -1;
        const int low = high >= 0 ? tsr_hex_digit(at[2]) : -1;
        const char c = (char)(low >= 0 ? high * 16 + low : *at);
        if (low < 0 || c == 0 || c == '/') {
            *out++ = *at++;
        } else {
            *out++ = c;
            at += 3;
        }
    }
    *out = 0;
}

/* Takes the next line off `*at`, without its CRLF; NULL at the empty line that ends the head. */
static char *next_line(char **at)
{
    char *line = *at, *end = strstr(line, "\r\n");
    if (!end || end == line) return NULL;
    *end = 0;
    *at = end + 2;
    return line;
}

/* Whether the line is the header `name`; `*value` is then its value. */
static bool is_header(char *line, const char *name, char **value)
{
    const size_t size = strlen(name);
    if (strncasecmp(line, name, size) != 0 || line[size] != ':') return false;
    char *from = line + size + 1, *end = from + strlen(from);
    while (*from == ' ' || *from == '\t') from++;
    while (end > from && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    *value = from;
    return true;
}

/* Parses a head, which ends with an empty line and contains no NUL. `*is_kept`: whether another request may follow. */
static bool parse(char *head, view_request *out, bool *is_kept)
{
    char *value, *line = next_line(&head), *target = line ? strchr(line, ' ') : NULL;
    char *version = target ? strchr(target + 1, ' ') : NULL;
    size_t hosts = 0;
    if (!version || target == line || target[1] != '/' || strncmp(version + 1, "HTTP/1.", 7) != 0) return false;
    *target++ = 0;
    *version++ = 0;
    *out = (view_request){.method = line, .path = target};
    *is_kept = strcmp(version, "HTTP/1.0") != 0;
    while ((line = next_line(&head)) != NULL) {
        if (*line == ' ' || *line == '\t' || !strchr(line, ':')) return false;
        if (is_header(line, "Host", &value)) out->host = hosts++ ? NULL : value;
        else if (is_header(line, "Range", &value)) out->range = value;
        else if (is_header(line, "Connection", &value) && strcasecmp(value, "close") == 0) *is_kept = false;
        /* A body is not read, so what follows it cannot be found. */
        else if (is_header(line, "Transfer-Encoding", &value)) *is_kept = false;
        else if (is_header(line, "Content-Length", &value) && strcmp(value, "0") != 0) *is_kept = false;
    }
    target[strcspn(target, "?#")] = 0;
    unescape(target);
    return true;
}

static void begin_answer(const view_http *http, client *c, const view_answer *answer, bool has_body)
{
    const int size = snprintf(
        c->answer, sizeof c->answer, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %" PRIu64 "\r\n%s%s%s%s%s\r\n",
        answer->status, answer->type, answer->body.size, *answer->range ? "Content-Range: " : "", answer->range,
        *answer->range ? "\r\n" : "", http->site.headers, c->is_kept ? "" : "Connection: close\r\n");
    c->state = CLIENT_ANSWERING;
    c->since = tsr_seconds();
    c->body = answer->body;
    c->answer_size = (size_t)size;
    c->answer_sent = 0;
    if (size < 0 || (size_t)size >= sizeof c->answer) end_client(c); /* no header of ours is that long */
    else if (!has_body) c->body.size = 0;
}

static void refuse(const view_http *http, client *c, const char *status)
{
    c->is_kept = false;
    begin_answer(http, c, &(view_answer){.status = status, .type = "text/plain", .body = {.text = "", .fd = -1}}, false);
}

/* Answers the next request if all of its head has arrived. */
static void take_request(const view_http *http, client *c)
{
    view_request request;
    view_answer answer = {.body.fd = -1};
    while (c->head_size - c->next >= 2 && memcmp(c->head + c->next, "\r\n", 2) == 0) c->next += 2;
    char *head = c->head + c->next;
    const size_t size = c->head_size - c->next;
    head[size] = 0;
    char *end = strstr(head, "\r\n\r\n");
    if (!end && memchr(head, 0, size)) {
        refuse(http, c, "400 Bad Request");
    } else if (!end) {
        if (size == HEAD_SIZE) refuse(http, c, "431 Request Header Fields Too Large");
        else if (c->next) {
            memmove(c->head, head, size);
            c->head_size = size;
            c->next = 0;
        }
    } else {
        c->next = (size_t)(end + 4 - c->head);
        const char after = end[4];
        end[4] = 0;
        if (!parse(head, &request, &c->is_kept)) {
            refuse(http, c, "400 Bad Request");
        } else {
            const bool is_head = strcmp(request.method, "HEAD") == 0;
            http->site.handler(http->site.ctx, &request, &answer);
            begin_answer(http, c, &answer, !is_head);
        }
        end[4] = after;
    }
}

static void read_client(const view_http *http, client *c)
{
    char dropped[4096];
    const bool is_ending = c->state == CLIENT_ENDING;
    const ssize_t got = is_ending ? recv(c->fd, dropped, sizeof dropped, 0)
                                  : recv(c->fd, c->head + c->head_size, HEAD_SIZE - c->head_size, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        end_client(c);
    } else if (!is_ending) {
        c->head_size += (size_t)got;
        take_request(http, c);
    }
}

/* ---- answers ---- */

/* Reads the next bytes of the body into the block. */
static bool fill_block(client *c)
{
    view_body *b = &c->body;
    const size_t size = b->size < BLOCK_SIZE ? (size_t)b->size : BLOCK_SIZE;
    if (!c->block && !(c->block = malloc(BLOCK_SIZE))) return false;
    c->block_size = c->block_sent = 0;
    if (b->store) {
        if (tsr_store_read(b->store, b->file, b->byte_offset, c->block, size, NULL) != TSR_OK) return false;
        c->block_size = size;
    } else {
        const ssize_t got = pread(b->fd, c->block, size, (off_t)b->byte_offset);
        if (got <= 0) return false;
        c->block_size = (size_t)got;
    }
    b->byte_offset += c->block_size;
    b->size -= c->block_size;
    return true;
}

/* Sends what the client takes now. False if the connection is lost. */
static bool send_some(client *c, const char *data, size_t size, size_t *sent, bool has_more)
{
    const ssize_t done = send(c->fd, data, size, MSG_NOSIGNAL | (has_more ? MSG_MORE : 0));
    if (done < 0) return errno == EAGAIN || errno == EINTR;
    *sent += (size_t)done;
    c->since = tsr_seconds();
    return true;
}

/* One step of an answer. A body that cannot be read ends the connection: the client misses bytes, and knows it. */
static void write_client(const view_http *http, client *c)
{
    view_body *b = &c->body;
    bool is_sent = true;
    size_t done = 0;
    if (c->answer_sent < c->answer_size) {
        is_sent = send_some(c, c->answer + c->answer_sent, c->answer_size - c->answer_sent, &c->answer_sent, b->size > 0);
    } else if (b->text && b->size) {
        is_sent = send_some(c, b->text, (size_t)b->size, &done, false);
        b->text += done;
        b->size -= done;
    } else {
        if (c->block_sent == c->block_size && b->size) is_sent = fill_block(c);
        if (is_sent && c->block_sent < c->block_size)
            is_sent = send_some(c, c->block + c->block_sent, c->block_size - c->block_sent, &c->block_sent, b->size > 0);
    }
    if (!is_sent) {
        end_client(c);
    } else if (c->answer_sent == c->answer_size && !b->size && c->block_sent == c->block_size) {
        end_body(c);
        c->state = c->is_kept ? CLIENT_READING : CLIENT_ENDING;
        if (c->is_kept) take_request(http, c); /* which may have arrived with the last one */
        else shutdown(c->fd, SHUT_WR);
    }
}

/* ---- threads ---- */

static void serve_client(const view_http *http, client *c, short events, double now)
{
    if (now - c->since > (c->state == CLIENT_ANSWERING ? STALL_SECONDS : IDLE_SECONDS)) end_client(c);
    else if (!events) return;
    else if (c->state == CLIENT_ANSWERING) write_client(http, c);
    else read_client(http, c);
}

static void *run_loop(void *ctx)
{
    loop *l = ctx;
    const view_http *http = l->http;
    struct pollfd waits[MOST_CLIENTS + 2] = {{.fd = http->stop[0]}, {.fd = http->listener, .events = POLLIN}};
    for (;;) {
        client *waiting[MOST_CLIENTS];
        nfds_t count = 0;
        for (size_t i = 0; i < MOST_CLIENTS; i++) {
            client *c = &l->clients[i];
            if (c->state == CLIENT_UNUSED) continue;
            waits[2 + count] = (struct pollfd){.fd = c->fd, .events = c->state == CLIENT_ANSWERING ? POLLOUT : POLLIN};
            waiting[count++] = c;
        }
        if (poll(waits, count + 2, 1000) < 0 && errno != EINTR) break;
        if (waits[0].revents) break;
        const double now = tsr_seconds();
        for (nfds_t i = 0; i < count; i++) serve_client(http, waiting[i], waits[2 + i].revents, now);
        if (waits[1].revents) accept_client(l);
    }
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (l->clients[i].state != CLIENT_UNUSED) end_client(&l->clients[i]);
    }
    return NULL;
}

static tsr_status listen_on(view_http *http, uint16_t port, tsr_error *err)
{
    const struct sockaddr_in place = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int one = 1; /* a port that the last server used is not in use */
    http->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (http->listener < 0 || setsockopt(http->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(http->listener, (const struct sockaddr *)&place, sizeof place) != 0 || listen(http->listener, SOMAXCONN) != 0)
        return tsr_fail(err, TSR_E_IO, "cannot listen on 127.0.0.1:%u: %s", port, strerror(errno));
    return TSR_OK;
}

static tsr_status start_threads(view_http *http, tsr_error *err)
{
    if (pipe2(http->stop, O_CLOEXEC) != 0) return tsr_fail(err, TSR_E_IO, "cannot make a pipe: %s", strerror(errno));
    for (; http->thread_count < THREADS; http->thread_count++) {
        loop *l = &http->loops[http->thread_count];
        l->http = http;
        for (size_t i = 0; i < MOST_CLIENTS; i++) l->clients[i].state = CLIENT_UNUSED;
        const int error = pthread_create(&l->thread, NULL, run_loop, l);
        if (error) return tsr_fail(err, TSR_E_IO, "cannot start a thread: %s", strerror(error));
    }
    return TSR_OK;
}

static void view_http_stop(view_http *http);

/* Listens on 127.0.0.1:`port`, or on a free port for 0. What `site` points to is borrowed until stop. The caller ends the
 * server with view_http_stop. Errors: TSR_E_IO if the port is in use or the system refuses threads, TSR_E_NOMEM. */
static tsr_status view_http_start(uint16_t port, const view_site *site, const tsr_allocator *allocator, view_http **out,
                                  tsr_error *err)
{
    view_http *http = tsr_alloc(allocator, 1, sizeof *http, err);
    if (!http) return TSR_E_NOMEM;
    *http = (view_http){.allocator = allocator, .site = *site, .listener = -1, .stop = {-1, -1}};
    http->loops = tsr_alloc(allocator, THREADS, sizeof *http->loops, err);
    tsr_status status = http->loops ? listen_on(http, port, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = start_threads(http, err);
    if (status == TSR_OK) *out = http;
    else view_http_stop(http);
    return status;
}

/* Listens on 127.0.0.1:`port`, or on a free port for 0. What `site` points to is borrowed until stop. The caller ends the
 * server with view_http_stop. Errors: TSR_E_IO if the port is in use or the system refuses threads, TSR_E_NOMEM. */
static uint16_t view_http_port(const view_http *http)
{
    struct sockaddr_in place = {.sin_port = 0};
    socklen_t size = sizeof place;
    getsockname(http->listener, (struct sockaddr *)&place, &size);
    return ntohs(place.sin_port);
}

/* Ends every connection and returns when no handler runs any more. Accepts NULL. */
static void view_http_stop(view_http *http)
{
    if (!http) return;
    if (http->stop[1] >= 0) close(http->stop[1]);
    for (size_t i = 0; i < http->thread_count; i++) pthread_join(http->loops[i].thread, NULL);
    if (http->stop[0] >= 0) close(http->stop[0]);
    if (http->listener >= 0) close(http->listener);
    tsr_free(http->allocator, http->loops, THREADS, sizeof *http->loops);
    tsr_free(http->allocator, http, 1, sizeof *http);
}

/* ---- server ---- */

enum { TOKEN_SIZE = 32 };

/* The policy is the same as in web/serve: scripts, styles and connections only from this origin. */
static const char headers[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-store\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Accept-Ranges: bytes\r\n";

struct view_server {
    view_settings view;
    const tsr_host *host;
    view_http *http;
    tsr_vec listing; /* the text of checkpoint.json */
    char token[TOKEN_SIZE + 1];
    char address[96];
};

/* ---- answers of the viewer ---- */

static void answer_text(view_answer *out, const char *status, const char *text)
{
    *out = (view_answer){
        .status = status, .type = "text/plain; charset=utf-8", .body = {.text = text, .fd = -1, .size = strlen(text)}};
}

static void answer_nothing(view_answer *out)
{
    answer_text(out, "404 Not Found", "not found\n");
}

/* Parses "bytes=FROM-TO" or "bytes=FROM-" within `size`; false if no such range was requested. */
static bool range_of(const char *text, uint64_t size, uint64_t *from, uint64_t *to)
{
    char *end;
    if (!text || strncmp(text, "bytes=", 6) != 0 || !tsr_is_digit(text[6])) return false;
    *from = strtoull(text + 6, &end, 10);
    if (*end++ != '-') return false;
    *to = *end >= '0' && *end <= '9' ? strtoull(end, &end, 10) : UINT64_MAX;
    if (*end || *from >= size || *to < *from) return false;
    if (*to >= size) *to = size - 1;
    return true;
}

/* Answers with a file, or with the range of it that was requested. */
static void answer_body(view_answer *out, const view_request *request, view_body body, const char *type)
{
    uint64_t from, to;
    *out = (view_answer){.status = "200 OK", .type = type, .body = body};
    if (!range_of(request->range, body.size, &from, &to)) return;
    out->status = "206 Partial Content";
    snprintf(out->range, sizeof out->range, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, from, to, body.size);
    out->body.byte_offset = from;
    out->body.size = to - from + 1;
}

/* ---- files of the viewer ---- */

static const char *type_of(const char *name)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".js", "text/javascript"},
                                           {".css", "text/css"},
                                           {".wasm", "application/wasm"},
                                           {".json", "application/json"}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++) {
        if (strcmp(dot, types[i][0]) == 0) return types[i][1];
    }
    return "application/octet-stream";
}

/* Accepts names like "assets/a.js": no component may be empty or hidden. The only hidden name that a viewer may contain is
 * `.metadata` of a sample. */
static bool is_page_name(const char *name)
{
    for (const char *at = name;;) {
        const size_t size = strcspn(at, "/");
        const bool is_metadata = size == 9 && memcmp(at, ".metadata", 9) == 0;
        if (size == 0 || (*at == '.' && !is_metadata)) return false;
        if (!at[size]) return true;
        at += size + 1;
    }
}

static void answer_page(const view_server *s, const view_request *request, const char *name, view_answer *out)
{
    char path[4096];
    struct stat info;
    if (!*name) name = "index.html";
    answer_nothing(out);
    if (!is_page_name(name) || snprintf(path, sizeof path, "%s/%s", s->view.pages, name) >= (int)sizeof path) return;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) close(fd);
    else answer_body(out, request, (view_body){.fd = fd, .size = (uint64_t)info.st_size}, type_of(name));
}

/* ---- requests for files of the viewer ---- */

/* Whether the request's Host is the loopback address. The port may differ, because a tunnel may use another one. */
static bool is_here(const char *host)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    for (size_t i = 0; host && i < sizeof names / sizeof *names; i++) {
        const size_t size = strlen(names[i]);
        if (strncmp(host, names[i], size) != 0) continue;
        const char *port = host + size;
        return !*port || (*port == ':' && port[1] && strspn(port + 1, "0123456789") == strlen(port + 1));
    }
    return false;
}

/* The text after "/TOKEN/"; NULL if the token is wrong. The time of the comparison does not reveal how much of the token is
 * right. */
static const char *behind_token(const view_server *s, const char *url)
{
    unsigned char differs = 0;
    if (strlen(url) < TOKEN_SIZE + 2) return NULL;
    for (size_t i = 0; i < TOKEN_SIZE; i++) differs |= (unsigned char)(url[1 + i] ^ s->token[i]);
    return differs == 0 && url[0] == '/' && url[1 + TOKEN_SIZE] == '/' ? url + TOKEN_SIZE + 2 : NULL;
}

static void answer_file(const view_server *s, const view_request *request, size_t side, const char *name, view_answer *out)
{
    const view_side *viewed = &s->view.sides[side];
    const uint32_t file = side < s->view.side_count ? tsr_store_find(viewed->store, tsr_str_from(name)) : TSR_NO_FILE;
    if (file == TSR_NO_FILE || !viewed->served[file]) answer_nothing(out);
    else
        answer_body(out, request,
                    (view_body){.store = viewed->store, .file = file, .fd = -1, .size = viewed->store->files[file].size},
                    "application/octet-stream");
}

static void answer_request(void *ctx, const view_request *request, view_answer *out)
{
    static const char *const prefixes[] = {"checkpoint/", "other/"};
    const view_server *s = ctx;
    const char *name = behind_token(s, request->path);
    if (!is_here(request->host)) {
        answer_text(out, "403 Forbidden", "forbidden\n");
        return;
    }
    if (!name) {
        answer_nothing(out);
        return;
    }
    if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0) {
        answer_text(out, "405 Method Not Allowed", "GET only\n");
        return;
    }
    if (strcmp(name, "checkpoint.json") == 0) {
        *out = (view_answer){.status = "200 OK",
                             .type = "application/json",
                             .body = {.text = s->listing.items, .fd = -1, .size = s->listing.count}};
        return;
    }
    for (size_t side = 0; side < 2; side++) {
        const size_t size = strlen(prefixes[side]);
        if (strncmp(name, prefixes[side], size) != 0) continue;
        answer_file(s, request, side, name + size, out);
        return;
    }
    answer_page(s, request, name, out);
}

/* ---- start and stop ---- */

static void list_side(tsr_json *json, const view_settings *view, size_t side)
{
    const tsr_store *store = view->sides[side].store;
    tsr_json_object(json);
    tsr_json_put_text(json, "title", view->sides[side].title);
    if (store->primary != TSR_NO_FILE) tsr_json_put_str(json, "primary", store->files[store->primary].name);
    if (view->sides[side].part) tsr_json_put_text(json, "part", view->sides[side].part);
    if (view->sides[side].shards.data) tsr_json_put_str(json, "shards", view->sides[side].shards);
    if (view->sides[side].salvage) tsr_json_put_bool(json, "salvage", true);
    tsr_json_put_array(json, "files");
    for (uint32_t i = 0; i < store->file_count; i++) {
        if (!view->sides[side].served[i]) continue;
        tsr_json_object(json);
        tsr_json_put_str(json, "name", store->files[i].name);
        tsr_json_put_uint(json, "size", store->files[i].size);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    if (side + 1 < view->side_count) {
        tsr_json_key(json, "other");
        list_side(json, view, side + 1);
    }
    tsr_json_object_end(json);
}

static tsr_status list_files(view_server *s, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, &s->listing, 0, err);
    list_side(&json, &s->view, 0);
    return tsr_json_finish(&json);
}

static tsr_status make_token(view_server *s, tsr_error *err)
{
    unsigned char bytes[TOKEN_SIZE / 2];
    if (getentropy(bytes, sizeof bytes) != 0)
        return tsr_fail(err, TSR_E_IO, "cannot get random bytes from the system: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(s->token + 2 * i, 3, "%02x", bytes[i]);
    return TSR_OK;
}

tsr_status view_start(const view_settings *view, const tsr_host *host, view_server **out, tsr_error *err)
{
    view_server *s = tsr_alloc(host->allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (view_server){.view = *view, .host = host, .listing = tsr_vec_of(host->allocator, 1)};
    tsr_status status = make_token(s, err);
    if (status == TSR_OK) status = list_files(s, err);
    if (status == TSR_OK)
        status = view_http_start(view->port, &(view_site){headers, answer_request, s}, host->allocator, &s->http, err);
    if (status == TSR_OK) {
        snprintf(s->address, sizeof s->address, "http://127.0.0.1:%u/%s/", view_http_port(s->http), s->token);
        *out = s;
    } else {
        view_stop(s);
    }
    return status;
}

const char *view_address(const view_server *server)
{
    return server->address;
}

void view_stop(view_server *server)
{
    if (!server) return;
    view_http_stop(server->http);
    tsr_vec_free(&server->listing);
    tsr_free(server->host->allocator, server, 1, sizeof *server);
}
