/* See view_server.h. HTTP is libmicrohttpd's, which is loaded when it is needed. */
#include "cli/view_server.h"

#include "tessera/json.h"

#if defined(TSR_HAVE_MICROHTTPD)
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/optional_library.h"

enum { BLOCK = 256 << 10 };

/* The policy of web/serve: scripts, styles and connections of this origin alone. */
static const char policy[] = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
                             "connect-src 'self'; worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* The functions of libmicrohttpd that are called, by the name that the library exports. */
typedef struct calls {
    struct MHD_Daemon *(*start_daemon)(unsigned flags, uint16_t port, MHD_AcceptPolicyCallback apc, void *apc_cls,
                                       MHD_AccessHandlerCallback dh, void *dh_cls, ...);
    void (*stop_daemon)(struct MHD_Daemon *daemon);
    const union MHD_DaemonInfo *(*get_daemon_info)(struct MHD_Daemon *daemon, enum MHD_DaemonInfoType type, ...);
    const char *(*lookup_connection_value)(struct MHD_Connection *connection, enum MHD_ValueKind kind, const char *key);
    struct MHD_Response *(*create_response_from_buffer)(size_t size, void *buffer, enum MHD_ResponseMemoryMode mode);
    struct MHD_Response *(*create_response_from_callback)(uint64_t size, size_t block_size, MHD_ContentReaderCallback crc,
                                                          void *crc_cls, MHD_ContentReaderFreeCallback crfc);
    enum MHD_Result (*add_response_header)(struct MHD_Response *response, const char *header, const char *content);
    enum MHD_Result (*queue_response)(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response);
    void (*destroy_response)(struct MHD_Response *response);
} calls;

struct cli_view_server {
    cli_viewing view;
    const tsr_host *host;
    void *library;
    calls mhd;
    struct MHD_Daemon *daemon;
    tsr_vec listing; /* checkpoint.json */
};

static tsr_status open_library(cli_view_server *s)
{
    static const char *const names[] = {"libmicrohttpd.so.12", NULL};
    const tsr_library_call all[] = {{"MHD_start_daemon", &s->mhd.start_daemon},
               {"MHD_stop_daemon", &s->mhd.stop_daemon},
               {"MHD_get_daemon_info", &s->mhd.get_daemon_info},
               {"MHD_lookup_connection_value", &s->mhd.lookup_connection_value},
               {"MHD_create_response_from_buffer", &s->mhd.create_response_from_buffer},
               {"MHD_create_response_from_callback", &s->mhd.create_response_from_callback},
               {"MHD_add_response_header", &s->mhd.add_response_header},
               {"MHD_queue_response", &s->mhd.queue_response},
               {"MHD_destroy_response", &s->mhd.destroy_response}};
    return tsr_library_open(names, all, sizeof all / sizeof *all, &s->library, NULL);
}

/* ---- answers ---- */

static enum MHD_Result answer(const cli_view_server *s, struct MHD_Connection *connection, unsigned status,
                              struct MHD_Response *response, const char *type, const char *range)
{
    if (!response) return MHD_NO;
    s->mhd.add_response_header(response, "Content-Type", type);
    s->mhd.add_response_header(response, "Content-Security-Policy", policy);
    s->mhd.add_response_header(response, "X-Content-Type-Options", "nosniff");
    s->mhd.add_response_header(response, "Referrer-Policy", "no-referrer");
    s->mhd.add_response_header(response, "Cache-Control", "no-cache");
    s->mhd.add_response_header(response, "Accept-Ranges", "bytes");
    if (range) s->mhd.add_response_header(response, "Content-Range", range);
    const enum MHD_Result result = s->mhd.queue_response(connection, status, response);
    s->mhd.destroy_response(response);
    return result;
}

static enum MHD_Result answer_text(const cli_view_server *s, struct MHD_Connection *connection, unsigned status, const char *text)
{
    return answer(s, connection, status,
                  s->mhd.create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY),
                  "text/plain; charset=utf-8", NULL);
}

/* Bytes of a store's file, or of a page's, from `byte_offset` on. */
typedef struct body {
    tsr_store *store; /* NULL: of `fd` */
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

/* "bytes=FROM-TO" or "bytes=FROM-" within `size`; false: no such range was asked for. */
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

/* Takes over `found`. */
static enum MHD_Result answer_body(const cli_view_server *s, struct MHD_Connection *connection, body found, const char *type)
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

/* ---- pages ---- */

static const char *type_of(const char *name)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"}, {".js", "text/javascript"}, {".css", "text/css"},
                                           {".wasm", "application/wasm"},         {".json", "application/json"}};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++) {
        if (strcmp(dot, types[i][0]) == 0) return types[i][1];
    }
    return "application/octet-stream";
}

static enum MHD_Result answer_page(const cli_view_server *s, struct MHD_Connection *connection, const char *url)
{
    char path[4096];
    struct stat info;
    const char *name = strcmp(url, "/") == 0 ? "/index.html" : url;
    if (strstr(name, "..") || snprintf(path, sizeof path, "%s%s", s->view.pages, name) >= (int)sizeof path)
        return answer_text(s, connection, MHD_HTTP_NOT_FOUND, "not here\n");
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        if (fd >= 0) close(fd);
        return answer_text(s, connection, MHD_HTTP_NOT_FOUND, "not here\n");
    }
    return answer_body(s, connection, (body){NULL, 0, fd, 0, (uint64_t)info.st_size}, type_of(name));
}

/* ---- requests ---- */

/* Another site's page may reach the loopback address under a name of its own; it may not read from it. */
static bool is_here(const cli_view_server *s, struct MHD_Connection *connection)
{
    const char *host = s->mhd.lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
    if (!host) return false;
    const size_t size = strcspn(host, ":");
    return (size == 9 && memcmp(host, "127.0.0.1", 9) == 0) || (size == 9 && memcmp(host, "localhost", 9) == 0);
}

static enum MHD_Result answer_request(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                      const char *version, const char *upload, size_t *upload_size, void **state)
{
    static const char prefix[] = "/checkpoint/";
    const cli_view_server *s = ctx;
    (void)version, (void)upload, (void)upload_size, (void)state;
    if (!is_here(s, connection)) return answer_text(s, connection, MHD_HTTP_FORBIDDEN, "only under 127.0.0.1 or localhost\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer_text(s, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
    if (strcmp(url, "/checkpoint.json") == 0)
        return answer(s, connection, MHD_HTTP_OK,
                      s->mhd.create_response_from_buffer(s->listing.count, s->listing.items, MHD_RESPMEM_PERSISTENT),
                      "application/json", NULL);
    if (strncmp(url, prefix, sizeof prefix - 1) != 0) return answer_page(s, connection, url);
    const uint32_t file = tsr_store_find(s->view.store, tsr_str_from(url + sizeof prefix - 1));
    if (file == TSR_NO_FILE) return answer_text(s, connection, MHD_HTTP_NOT_FOUND, "no file of the checkpoint\n");
    return answer_body(s, connection, (body){s->view.store, file, -1, 0, s->view.store->files[file].size}, "application/octet-stream");
}

/* ---- start and stop ---- */

static tsr_status append(void *ctx, const char *data, size_t size, tsr_error *err)
{
    tsr_vec *vec = ctx;
    const tsr_status status = tsr_vec_reserve(vec, size, err);
    if (status != TSR_OK) return status;
    memcpy((char *)vec->items + vec->count, data, size);
    vec->count += size;
    return TSR_OK;
}

static tsr_status list_files(cli_view_server *s, tsr_error *err)
{
    const tsr_store *store = s->view.store;
    tsr_json json;
    tsr_json_start(&json, append, &s->listing, 0, err);
    tsr_json_object(&json);
    tsr_json_key(&json, "title");
    tsr_json_text(&json, s->view.title);
    if (store->primary != TSR_NO_FILE) {
        tsr_json_key(&json, "primary");
        tsr_json_str(&json, store->files[store->primary].name);
    }
    tsr_json_key(&json, "files");
    tsr_json_array(&json);
    for (uint32_t i = 0; i < store->file_count; i++) {
        tsr_json_object(&json);
        tsr_json_key(&json, "name");
        tsr_json_str(&json, store->files[i].name);
        tsr_json_key(&json, "size");
        tsr_json_uint(&json, store->files[i].size);
        tsr_json_object_end(&json);
    }
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static tsr_status start(cli_view_server *s, uint16_t *port, tsr_error *err)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(s->view.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (open_library(s) != TSR_OK)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "pages are served with libmicrohttpd (libmicrohttpd.so.12), which is not installed");
    s->daemon = s->mhd.start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL, s->view.port, NULL,
                                    NULL, answer_request, s, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&place,
                                    MHD_OPTION_CONNECTION_LIMIT, 64u, MHD_OPTION_END);
    if (!s->daemon)
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot listen on 127.0.0.1:%u: %s", s->view.port, strerror(errno));
    const union MHD_DaemonInfo *info = s->mhd.get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *port = info && info->port ? info->port : s->view.port;
    return TSR_OK;
}

tsr_status cli_view_start(const cli_viewing *view, const tsr_host *host, cli_view_server **out, uint16_t *port, tsr_error *err)
{
    cli_view_server *s = tsr_alloc(host->allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (cli_view_server){.view = *view, .host = host, .listing = tsr_vec_of(host->allocator, 1)};
    tsr_status status = list_files(s, err);
    if (status == TSR_OK) status = start(s, port, err);
    if (status == TSR_OK) *out = s;
    else cli_view_stop(s);
    return status;
}

void cli_view_stop(cli_view_server *server)
{
    if (!server) return;
    if (server->daemon) server->mhd.stop_daemon(server->daemon);
    if (server->library) dlclose(server->library);
    tsr_vec_free(&server->listing);
    tsr_free(server->host->allocator, server, 1, sizeof *server);
}
#else
tsr_status cli_view_start(const cli_viewing *view, const tsr_host *host, cli_view_server **out, uint16_t *port, tsr_error *err)
{
    (void)view, (void)host, (void)out, (void)port;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "this build serves no pages: it was made without libmicrohttpd");
}

void cli_view_stop(cli_view_server *server)
{
    (void)server;
}
#endif
