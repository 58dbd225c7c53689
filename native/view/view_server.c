/* See view_server.h. HTTP is implemented by libmicrohttpd, which is loaded when it is needed. */
#include "view/view_server.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/json.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/vec.h"

#if defined(TSR_HAVE_MICROHTTPD)
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/optional_library.h"
#include "view/view_clients.h"

enum { BLOCK = 256 << 10, THREADS = 4, STALL_SECONDS = 10, TOKEN_SIZE = 32 };

#define IDLE_SECONDS 8.0

/* The same policy as in web/serve: scripts, styles and connections only from this origin. */
static const char policy[] =
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* The functions of libmicrohttpd that are used. */
typedef struct calls {
    struct MHD_Daemon *(*start_daemon)(unsigned flags, uint16_t port, MHD_AcceptPolicyCallback apc, void *apc_cls,
                                       MHD_AccessHandlerCallback dh, void *dh_cls, ...);
    void (*stop_daemon)(struct MHD_Daemon *daemon);
    const union MHD_DaemonInfo *(*get_daemon_info)(struct MHD_Daemon *daemon, enum MHD_DaemonInfoType type, ...);
    const union MHD_ConnectionInfo *(*get_connection_info)(struct MHD_Connection *connection,
                                                           enum MHD_ConnectionInfoType type, ...);
    const char *(*lookup_connection_value)(struct MHD_Connection *connection, enum MHD_ValueKind kind, const char *key);
    struct MHD_Response *(*create_response_from_buffer)(size_t size, void *buffer, enum MHD_ResponseMemoryMode mode);
    struct MHD_Response *(*create_response_from_callback)(uint64_t size, size_t block_size, MHD_ContentReaderCallback crc,
                                                          void *crc_cls, MHD_ContentReaderFreeCallback crfc);
    enum MHD_Result (*add_response_header)(struct MHD_Response *response, const char *header, const char *content);
    enum MHD_Result (*queue_response)(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response);
    void (*destroy_response)(struct MHD_Response *response);
} calls;

struct view_server {
    view_settings view;
    const tsr_host *host;
    void *library;
    calls mhd;
    struct MHD_Daemon *daemon;
    tsr_vec listing; /* the text of checkpoint.json */
    view_clients clients;
    char token[TOKEN_SIZE + 1];
    char address[96];
};

static tsr_status open_library(view_server *s)
{
    static const char *const names[] = {"libmicrohttpd.so.12", NULL};
    const tsr_library_call all[] = {{"MHD_start_daemon", &s->mhd.start_daemon},
                                    {"MHD_stop_daemon", &s->mhd.stop_daemon},
                                    {"MHD_get_daemon_info", &s->mhd.get_daemon_info},
                                    {"MHD_get_connection_info", &s->mhd.get_connection_info},
                                    {"MHD_lookup_connection_value", &s->mhd.lookup_connection_value},
                                    {"MHD_create_response_from_buffer", &s->mhd.create_response_from_buffer},
                                    {"MHD_create_response_from_callback", &s->mhd.create_response_from_callback},
                                    {"MHD_add_response_header", &s->mhd.add_response_header},
                                    {"MHD_queue_response", &s->mhd.queue_response},
                                    {"MHD_destroy_response", &s->mhd.destroy_response}};
    return tsr_library_open(names, all, sizeof all / sizeof *all, &s->library, NULL);
}

/* ---- answers ---- */

static enum MHD_Result answer(const view_server *s, struct MHD_Connection *connection, unsigned status,
                              struct MHD_Response *response, const char *type, const char *range)
{
    if (!response) return MHD_NO;
    s->mhd.add_response_header(response, "Content-Type", type);
    s->mhd.add_response_header(response, "Content-Security-Policy", policy);
    s->mhd.add_response_header(response, "X-Content-Type-Options", "nosniff");
    s->mhd.add_response_header(response, "Referrer-Policy", "no-referrer");
    s->mhd.add_response_header(response, "Cache-Control", "no-store");
    s->mhd.add_response_header(response, "Cross-Origin-Resource-Policy", "same-origin");
    s->mhd.add_response_header(response, "Accept-Ranges", "bytes");
    if (range) s->mhd.add_response_header(response, "Content-Range", range);
    const enum MHD_Result result = s->mhd.queue_response(connection, status, response);
    s->mhd.destroy_response(response);
    return result;
}

static enum MHD_Result answer_text(const view_server *s, struct MHD_Connection *connection, unsigned status,
                                   const char *text)
{
    return answer(s, connection, status,
                  s->mhd.create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY),
                  "text/plain; charset=utf-8", NULL);
}

/* The bytes from `byte_offset` on, of a file of a store or of the viewer. */
typedef struct body {
    tsr_store *store; /* NULL: the bytes are in the file `fd` */
    uint32_t file;
    int fd;
    uint64_t byte_offset, size;
} body;

static ssize_t read_body(void *ctx, uint64_t at, char *buffer, size_t room)
{
    const body *b = ctx;
    const uint64_t left = b->size - at;
    const size_t size = left < room ? (size_t)left : room;
    if (!b->store) {
        const ssize_t got = pread(b->fd, buffer, size, (off_t)(b->byte_offset + at));
        return got > 0 ? got : MHD_CONTENT_READER_END_WITH_ERROR;
    }
    const tsr_status status = tsr_store_read(b->store, b->file, b->byte_offset + at, buffer, size, NULL);
    return status == TSR_OK ? (ssize_t)size : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void free_body(void *ctx)
{
    body *b = ctx;
    if (b->fd >= 0) close(b->fd);
    free(b);
}

/* Parses "bytes=FROM-TO" or "bytes=FROM-" within `size`; false if no such range was requested. */
static bool range_of(const char *text, uint64_t size, uint64_t *from, uint64_t *to)
{
    char *end;
    if (!text || strncmp(text, "bytes=", 6) != 0 || text[6] < '0' || text[6] > '9') return false;
    *from = strtoull(text + 6, &end, 10);
    if (*end++ != '-') return false;
    *to = *end >= '0' && *end <= '9' ? strtoull(end, &end, 10) : UINT64_MAX;
    if (*end || *from >= size || *to < *from) return false;
    if (*to >= size) *to = size - 1;
    return true;
}

/* Takes ownership of `found`. */
static enum MHD_Result answer_body(const view_server *s, struct MHD_Connection *connection, body found, const char *type)
{
    char range[96];
    uint64_t from = 0, to = 0, whole = found.size;
    body *b = malloc(sizeof *b);
    const bool part = range_of(s->mhd.lookup_connection_value(connection, MHD_HEADER_KIND, "Range"), whole, &from, &to);
    if (!b) {
        if (found.fd >= 0) close(found.fd);
        return MHD_NO;
    }
    *b = found;
    if (part) {
        snprintf(range, sizeof range, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, from, to, whole);
        b->byte_offset = from;
        b->size = to - from + 1;
    }
    struct MHD_Response *response = s->mhd.create_response_from_callback(b->size, BLOCK, read_body, b, free_body);
    if (!response) free_body(b);
    return answer(s, connection, part ? MHD_HTTP_PARTIAL_CONTENT : MHD_HTTP_OK, response, type, part ? range : NULL);
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

static enum MHD_Result answer_nothing(const view_server *s, struct MHD_Connection *connection)
{
    return answer_text(s, connection, MHD_HTTP_NOT_FOUND, "not found\n");
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

static enum MHD_Result answer_page(const view_server *s, struct MHD_Connection *connection, const char *url)
{
    char path[4096];
    struct stat info;
    const char *name = *url ? url : "index.html";
    if (!is_page_name(name) || snprintf(path, sizeof path, "%s/%s", s->view.pages, name) >= (int)sizeof path)
        return answer_nothing(s, connection);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        if (fd >= 0) close(fd);
        return answer_nothing(s, connection);
    }
    return answer_body(s, connection, (body){NULL, 0, fd, 0, (uint64_t)info.st_size}, type_of(name));
}

/* ---- requests ---- */

/* Whether the request's Host is the loopback address. The port may differ, because a tunnel may use another one. */
static bool is_here(const view_server *s, struct MHD_Connection *connection)
{
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    const char *host = s->mhd.lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
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

static enum MHD_Result answer_file(const view_server *s, struct MHD_Connection *connection, size_t side, const char *name)
{
    const view_side *viewed = &s->view.sides[side];
    const uint32_t file = side < s->view.side_count ? tsr_store_find(viewed->store, tsr_str_from(name)) : TSR_NO_FILE;
    if (file == TSR_NO_FILE || !viewed->served[file]) return answer_nothing(s, connection);
    return answer_body(s, connection, (body){viewed->store, file, -1, 0, viewed->store->files[file].size},
                       "application/octet-stream");
}

static view_client *client_of(const view_server *s, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = s->mhd.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static enum MHD_Result answer_request(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                      const char *version, const char *upload, size_t *upload_size, void **state)
{
    static const char *const prefixes[] = {"checkpoint/", "other/"};
    view_server *s = ctx;
    (void)version, (void)upload, (void)upload_size, (void)state;
    view_clients_set_busy(&s->clients, client_of(s, connection), true);
    if (!is_here(s, connection)) return answer_text(s, connection, MHD_HTTP_FORBIDDEN, "forbidden\n");
    const char *name = behind_token(s, url);
    if (!name) return answer_nothing(s, connection);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer_text(s, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
    if (strcmp(name, "checkpoint.json") == 0)
        return answer(s, connection, MHD_HTTP_OK,
                      s->mhd.create_response_from_buffer(s->listing.count, s->listing.items, MHD_RESPMEM_PERSISTENT),
                      "application/json", NULL);
    for (size_t side = 0; side < 2; side++) {
        const size_t size = strlen(prefixes[side]);
        if (strncmp(name, prefixes[side], size) == 0) return answer_file(s, connection, side, name + size);
    }
    return answer_page(s, connection, name);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Percent-decodes a name, except for an encoded NUL or slash, which would end or split the name. */
static size_t unescape(void *ctx, struct MHD_Connection *connection, char *text)
{
    char *out = text;
    (void)ctx, (void)connection;
    for (const char *at = text; *at;) {
        const int high = *at == '%' ? hex_digit(at[1]) : -1;
        const int low = high >= 0 ? hex_digit(at[2]) : -1;
        const char c = (char)(low >= 0 ? high * 16 + low : *at);
        if (low < 0 || c == 0 || c == '/') {
            *out++ = *at++;
        } else {
            *out++ = c;
            at += 3;
        }
    }
    *out = 0;
    return (size_t)(out - text);
}

static void note_connection(void *ctx, struct MHD_Connection *connection, void **place,
                            enum MHD_ConnectionNotificationCode what)
{
    view_server *s = ctx;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = s->mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *place = info ? view_clients_add(&s->clients, info->connect_fd) : NULL;
    } else {
        view_clients_remove(&s->clients, *place);
        *place = NULL;
    }
}

static void note_answered(void *ctx, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode how)
{
    view_server *s = ctx;
    (void)state, (void)how;
    view_clients_set_busy(&s->clients, client_of(s, connection), false);
}

/* ---- start and stop ---- */

static void list_side(tsr_json *json, const view_settings *view, size_t side)
{
    const tsr_store *store = view->sides[side].store;
    tsr_json_object(json);
    tsr_json_key(json, "title");
    tsr_json_text(json, view->sides[side].title);
    if (store->primary != TSR_NO_FILE) {
        tsr_json_key(json, "primary");
        tsr_json_str(json, store->files[store->primary].name);
    }
    if (view->sides[side].part) {
        tsr_json_key(json, "part");
        tsr_json_text(json, view->sides[side].part);
    }
    if (view->sides[side].shards.data) {
        tsr_json_key(json, "shards");
        tsr_json_str(json, view->sides[side].shards);
    }
    tsr_json_key(json, "files");
    tsr_json_array(json);
    for (uint32_t i = 0; i < store->file_count; i++) {
        if (!view->sides[side].served[i]) continue;
        tsr_json_object(json);
        tsr_json_key(json, "name");
        tsr_json_str(json, store->files[i].name);
        tsr_json_key(json, "size");
        tsr_json_uint(json, store->files[i].size);
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
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot get random bytes from the system: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(s->token + 2 * i, 3, "%02x", bytes[i]);
    return TSR_OK;
}

static tsr_status start(view_server *s, tsr_error *err)
{
    struct sockaddr_in place = {
        .sin_family = AF_INET, .sin_port = htons(s->view.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (open_library(s) != TSR_OK)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "cannot serve pages: libmicrohttpd (libmicrohttpd.so.12) is not installed");
    /* Uses a few threads for all connections. With one thread per connection, clients could exhaust the threads. */
    s->daemon = s->mhd.start_daemon(MHD_USE_AUTO_INTERNAL_THREAD, s->view.port, NULL, NULL, answer_request, s,
                                    MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&place, MHD_OPTION_THREAD_POOL_SIZE,
                                    (unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT, (unsigned)VIEW_MOST_CLIENTS,
                                    MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)STALL_SECONDS, MHD_OPTION_UNESCAPE_CALLBACK,
                                    unescape, NULL, MHD_OPTION_NOTIFY_CONNECTION, note_connection, s,
                                    MHD_OPTION_NOTIFY_COMPLETED, note_answered, s, MHD_OPTION_END);
    if (!s->daemon)
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot listen on 127.0.0.1:%u: %s", s->view.port, strerror(errno));
    const union MHD_DaemonInfo *info = s->mhd.get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    snprintf(s->address, sizeof s->address, "http://127.0.0.1:%u/%s/", info && info->port ? info->port : s->view.port,
             s->token);
    return TSR_OK;
}

tsr_status view_start(const view_settings *view, const tsr_host *host, view_server **out, tsr_error *err)
{
    view_server *s = tsr_alloc(host->allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (view_server){.view = *view, .host = host, .listing = tsr_vec_of(host->allocator, 1)};
    view_clients_open(&s->clients);
    tsr_status status = make_token(s, err);
    if (status == TSR_OK) status = list_files(s, err);
    if (status == TSR_OK) status = start(s, err);
    if (status == TSR_OK) *out = s;
    else view_stop(s);
    return status;
}

const char *view_address(const view_server *server)
{
    return server->address;
}

void view_tend(view_server *server)
{
    view_clients_end_idle(&server->clients, IDLE_SECONDS);
}

void view_stop(view_server *server)
{
    if (!server) return;
    if (server->daemon) server->mhd.stop_daemon(server->daemon);
    if (server->library) dlclose(server->library);
    pthread_mutex_destroy(&server->clients.lock);
    tsr_vec_free(&server->listing);
    tsr_free(server->host->allocator, server, 1, sizeof *server);
}
#else
tsr_status view_start(const view_settings *view, const tsr_host *host, view_server **out, tsr_error *err)
{
    (void)view, (void)host, (void)out;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "cannot serve pages: this build has no libmicrohttpd");
}

const char *view_address(const view_server *server)
{
    (void)server;
    return "";
}

void view_tend(view_server *server)
{
    (void)server;
}

void view_stop(view_server *server)
{
    (void)server;
}
#endif
