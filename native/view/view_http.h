/* A small HTTP/1.1 server on the loopback address, for GET and HEAD. Some threads share the connections and wait for none of
 * them: a client that is slow, idle, or stops in the middle of a request keeps nobody out. */
#ifndef TSR_VIEW_VIEW_HTTP_H
#define TSR_VIEW_VIEW_HTTP_H

#include "tessera/store.h"

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

/* Listens on 127.0.0.1:`port`, or on a free port for 0. What `site` points to is borrowed until stop. The caller ends the
 * server with view_http_stop. Errors: TSR_E_IO if the port is in use or the system refuses threads, TSR_E_NOMEM. */
tsr_status view_http_start(uint16_t port, const view_site *site, const tsr_allocator *allocator, view_http **out,
                           tsr_error *err);
uint16_t view_http_port(const view_http *http);
/* Ends every connection and returns when no handler runs any more. Accepts NULL. */
void view_http_stop(view_http *http);

#endif
