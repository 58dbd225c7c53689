/* See view_server.h. */
#include "view/view_server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/sys/alloc.h"
#include "tessera/sys/json.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/vec.h"
#include "view/view_http.h"

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

/* ---- answers ---- */

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
    if (!text || strncmp(text, "bytes=", 6) != 0 || text[6] < '0' || text[6] > '9') return false;
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

/* ---- requests ---- */

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
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot get random bytes from the system: %s", strerror(errno));
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
