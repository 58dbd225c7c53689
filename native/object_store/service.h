/* What the object stores have in common: each lists keys, states the size of an object, and turns a request into HTTP. */
#ifndef TSR_OBJECT_STORE_SERVICE_H
#define TSR_OBJECT_STORE_SERVICE_H

#include "object_store/location.h"
#include "io/transport.h"
#include "tessera/sys/vec.h"

enum { TSR_MOST_HEADERS = 16 };

/* One parameter of a query, neither part encoded. */
typedef struct tsr_parameter {
    const char *name;
    tsr_str value;
} tsr_parameter;

/* A request to a service. */
typedef struct tsr_request {
    const char *method; /* NULL: GET */
    tsr_str key;        /* empty: the bucket itself */
    const tsr_parameter *parameters; /* sorted by name */
    size_t parameter_count;
    bool is_ranged; /* `capacity` bytes from `offset` */
    uint64_t offset;
    char *buffer; /* takes the body of the answer */
    size_t capacity;
    const char *url; /* of the service's own making, encoded; NULL: by the key and the parameters */
    bool on_bucket; /* about the bucket: the message names it, not the key */
    const void *body;
    size_t body_size;
    const char *content_type; /* of the body, or of the object that is begun; NULL: none */
    const char *body_sum; /* SHA-256 of the body, in hexadecimal digits; NULL: there is no body */
    bool is_upload; /* of upload.h; Google takes these by its XML API */
    bool if_absent; /* only where there is no object of this key: otherwise the server answers 412 */
    bool once;      /* repeating it may do harm: where it is unknown whether the server has done it, it ends with `is_lost` */
} tsr_request;

/* A request on its way: what is sent, in the exchange's own memory. */
typedef struct tsr_exchange {
    const tsr_request *request;
    tsr_arena *arena;
    tsr_transfer transfer;
    const char *headers[TSR_MOST_HEADERS + 1];
    size_t header_count;
    unsigned attempts;
    bool is_done, was_relocated;
    bool is_lost; /* a request that may be done once: the server may have done it or not */
} tsr_exchange;

typedef struct tsr_object {
    tsr_str key;
    uint64_t size;   /* bytes */
    tsr_str version; /* ETag or generation, without quotation marks; empty: unknown */
} tsr_object;

/* Objects in the order in which the service lists them, with their texts. */
typedef struct tsr_object_list {
    tsr_vec items; /* of tsr_object */
    tsr_arena *arena;
} tsr_object_list;

typedef struct tsr_service tsr_service;
struct tsr_service {
    const tsr_allocator *allocator;
    tsr_transport *transport;
    tsr_arena *arena;  /* lives as long as the service */
    size_t size;       /* bytes of the kind's own struct, which begins with this one */
    const char *shown; /* "s3://bucket", for messages */
    bool states_versions;       /* answers carry what listings state as a version: */
    bool versions_are_generations; /* Google's x-goog-generation, otherwise an ETag */
    const char *credentials_hint; /* for 401 and 403: where credentials were looked for */
    bool completes_unconditionally; /* there are no preconditions where parts become an object */
    long status_exists; /* what is answered besides 412 where a precondition does not hold; 0: nothing */
    const struct tsr_uploading *uploading; /* upload.h; NULL: the service is read only */
    /* Fills x->transfer: URL, headers, signature. Called before every attempt, so that credentials may be renewed. Thread-safe. */
    tsr_status (*prepare)(tsr_service *service, tsr_exchange *x, tsr_error *err);
    /* Appends all objects whose keys begin with `prefix`; `flat` false: only those without a '/' behind it. */
    tsr_status (*list)(tsr_service *service, tsr_str prefix, bool flat, tsr_object_list *out, tsr_error *err);
    /* Size and version of one object. TSR_E_NOT_FOUND. */
    tsr_status (*stat)(tsr_service *service, tsr_str key, tsr_object_list *out, tsr_error *err);
    /* Another region was stated: true when requests go there from now on. NULL: the service has no regions. */
    bool (*relocate)(tsr_service *service, const char *region);
    /* Frees what the kind has besides: locks, and an arena of secrets. NULL: nothing. */
    void (*release)(tsr_service *service);
};

/* A `stat` for services that state size and ETag of an object with each part of it: by its first byte rather than by HEAD, whose
 * answers state no reason when they refuse. */
tsr_status tsr_service_stat_by_range(tsr_service *service, tsr_str key, tsr_object_list *out, tsr_error *err);

/* Opens the service of a location, with connections of its own. Messages say what is missing. */
tsr_status tsr_service_open(const tsr_allocator *allocator, const tsr_location *location, unsigned depth, tsr_service **out,
                            tsr_error *err);
void tsr_service_close(tsr_service *service); /* takes NULL */

/* For the kinds: a service of `kind->size` bytes that begins with a copy of `kind`, with an arena; the rest is zero. An opener sets its
 * *out to it before anything can fail: tsr_service_open then closes it. */
tsr_status tsr_service_new(tsr_transport *transport, const tsr_service *kind, tsr_service **out, tsr_error *err);

enum { TSR_MOST_OBJECTS = 1 << 20 };
/* Appends an object whose texts live in list->arena. TSR_E_LIMIT beyond TSR_MOST_OBJECTS. */
tsr_status tsr_object_list_add(tsr_object_list *list, tsr_object object, tsr_error *err);
tsr_status tsr_object_list_open(const tsr_allocator *allocator, tsr_object_list *out, tsr_error *err);
void tsr_object_list_close(tsr_object_list *list); /* takes a zeroed one */
/* An ETag without its quotation marks and the mark of a weak one. */
tsr_str tsr_version_text(tsr_str etag);

#endif
