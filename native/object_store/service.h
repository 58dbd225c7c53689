/* What all object stores have in common: each lists keys, reports the size of an object, and turns a request into HTTP. */
#ifndef TSR_OBJECT_STORE_SERVICE_H
#define TSR_OBJECT_STORE_SERVICE_H

#include "io/checksums.h"
#include "io/transport.h"
#include "tessera/memory.h"
#include "tessera/status.h"
#include "tessera/sys/containers.h"

#include <stdlib.h>

/* The location of an object: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY,
 * hf://[datasets/]ORG/REPO[@REV][/PATH]. */

typedef enum tsr_location_kind { TSR_AT_S3, TSR_AT_GCS, TSR_AT_AZURE, TSR_AT_HF } tsr_location_kind;

/* All parts borrow the URL. */
typedef struct tsr_location {
    tsr_location_kind kind;
    tsr_str account;  /* Azure only */
    tsr_str bucket;   /* Azure: the container; Hugging Face: "ORG/REPO" */
    tsr_str revision; /* Hugging Face only; empty: not given */
    bool is_dataset;  /* Hugging Face only */
    tsr_str key;      /* as given, except for one slash at its end; empty: the root */
} tsr_location;

/* Parses a URL. Keys are not decoded: '%', '?' and '#' are ordinary characters. Errors: TSR_E_USAGE that names what is
 * missing or not allowed. */
tsr_status tsr_location_parse(const char *url, tsr_location *out, tsr_error *err);

enum { TSR_MOST_HEADERS = 16, TSR_MOST_CHECKSUM_HEADERS = 2 };

/* One parameter of a query; name and value are not encoded. */
typedef struct tsr_parameter {
    const char *name;
    tsr_str value;
} tsr_parameter;

/* A header of a request. */
typedef struct tsr_header {
    const char *name; /* NULL: none */
    const char *value;
} tsr_header;

/* A request to a service. */
typedef struct tsr_request {
    const char *method;              /* NULL: GET */
    tsr_str key;                     /* empty: the bucket itself */
    const tsr_parameter *parameters; /* sorted by name */
    size_t parameter_count;
    bool is_ranged; /* requests `capacity` bytes from `offset` */
    bool is_whole;  /* with is_ranged: these are all bytes of the object */
    uint64_t offset;
    char *buffer; /* receives the body of the answer */
    size_t capacity;
    const char *url; /* an encoded URL that the service has made; NULL: made from the key and the parameters */
    bool on_bucket;  /* the request is about the bucket: messages name the bucket, not the key */
    const void *body;
    size_t body_size;
    const char *content_type;  /* of the body, or of the object whose upload begins; NULL: none */
    const char *content_range; /* of the body; NULL: none */
    const char *body_sum;      /* SHA-256 of the body, in hexadecimal digits; NULL: no body */
    /* Headers about checksums. A server that refuses them gets the request without them. */
    tsr_header checksums[TSR_MOST_CHECKSUM_HEADERS];
    bool is_upload;    /* a request of upload.h; Google accepts these in its XML API */
    bool is_insertion; /* a request of gcs.c: inserts an object with Google's JSON API */
    bool if_absent;    /* only if there is no object of this key; otherwise the server answers 412 */
    bool once;         /* must not be repeated if the server may have carried it out: then it ends with `is_lost` */
} tsr_request;

/* A request in progress. Everything that is sent is in the exchange's own memory. */
typedef struct tsr_exchange {
    const tsr_request *request;
    tsr_arena *arena;
    tsr_http_transfer transfer;
    const char *headers[TSR_MOST_HEADERS + 1];
    size_t header_count;
    unsigned attempts, damaged; /* `damaged`: attempts in which bytes arrived with another checksum, here or there */
    bool is_done, was_relocated;
    bool has_checksums, leaves_out_checksums; /* headers about checksums were sent; they are not sent any more */
    bool is_lost;                             /* with `once`: it is unknown whether the server has carried it out */
} tsr_exchange;

typedef struct tsr_object {
    tsr_str key;
    uint64_t size;    /* in bytes */
    tsr_str version;  /* ETag or generation, without quotation marks; empty: not known */
    int64_t modified; /* in a listing: seconds since 1970 on the server's clock; 0: not stated */
    /* Of a part of an upload to S3: its CRC-32 in Base64. Of an object in S3: the algorithm of the checksum that the server can state of it
     * ("CRC64NVME"). Empty: not known. */
    tsr_str checksum;
} tsr_object;

/* Objects in the order in which the service lists them. `arena` holds their texts. */
typedef struct tsr_object_list {
    tsr_vec items; /* of tsr_object */
    tsr_arena *arena;
    uint64_t bytes; /* that the objects and their texts take */
    int64_t now;    /* seconds since 1970 on the server's clock when it was listed; 0: not stated */
} tsr_object_list;

/* What a server does with headers about checksums. */
/* Kinds of requests with such headers: a server may know those of one kind, and not those of another. */
enum { TSR_CHECKSUM_READS, TSR_CHECKSUM_BODIES, TSR_CHECKSUM_BEGINNINGS, TSR_CHECKSUM_REQUESTS };
typedef enum tsr_checksum_use { TSR_CHECKSUMS_UNKNOWN, TSR_CHECKSUMS_TAKEN, TSR_CHECKSUMS_REFUSED } tsr_checksum_use;

typedef struct tsr_listing_form tsr_listing_form; /* object_listing.h */
typedef struct tsr_service tsr_service;
struct tsr_service {
    const tsr_allocator *allocator;
    tsr_transport *transport;
    tsr_arena *arena;              /* lives as long as the service */
    size_t size;                   /* size in bytes of the struct of this kind of service, which begins with this one */
    const char *shown;             /* "s3://bucket", for messages */
    bool states_versions;          /* answers contain the same versions as listings: */
    bool versions_are_generations; /* true: Google's x-goog-generation; false: an ETag */
    const char *credentials_hint;  /* added to errors 401 and 403: where credentials were searched for */
    const char *protocol_hint;     /* added to errors without a code that a server gives to what it does not know, or NULL */
    /* Requests with a body state its checksum in this header. `checksum_prefix` precedes it ("crc32c="). NULL: none is sent. */
    const char *checksum_header, *checksum_prefix;
    tsr_checksum_kind checksum;
    bool declares_checksums;     /* uploads in parts state at their beginning and end which checksum their parts have */
    bool compares_checksums;     /* compares the bytes of an object with the checksums that the answer states */
    tsr_header checksum_request; /* sent with requests for bytes of objects */
    /* Not 0: it is sent only with requests for at most so many bytes, and Content-MD5 in the answer is then that of the range. */
    size_t most_checked;
    bool checks_whole_only; /* answers state no checksum of an object if a range of it is requested, even of all bytes */
    _Atomic int checksum_use[TSR_CHECKSUM_REQUESTS]; /* tsr_checksum_use */
    bool completes_unconditionally;                  /* completing an upload supports no preconditions */
    long status_exists;                    /* status that, like 412, means that a precondition does not hold; 0: none */
    const struct tsr_uploading *uploading; /* upload.h; NULL: the service is read-only */
    /* Fills x->transfer: URL, headers, signature. Called before every attempt, so it can renew credentials. Thread-safe. */
    tsr_status (*prepare)(tsr_service *service, tsr_exchange *x, tsr_error *err);
    /* Appends a page of the objects that tsr_service_list lists. `*next` is the token of the page, empty for the first one, and
     * becomes that of the following page, in out->arena; empty: this was the last one. */
    tsr_status (*list_page)(tsr_service *service, tsr_str prefix, bool flat, tsr_object_list *out, tsr_str *next,
                            tsr_error *err);
    /* Appends one object with its size and version. TSR_E_NOT_FOUND if there is none. */
    tsr_status (*stat)(tsr_service *service, tsr_str key, tsr_object_list *out, tsr_error *err);
    /* Called when the server names another region. Returns whether requests will be sent there. NULL: the service has no
     * regions. */
    bool (*relocate)(tsr_service *service, const char *region);
    /* Sets `uploading` to what the server supports, before anything is written. NULL: it is already set. */
    tsr_status (*choose_uploading)(tsr_service *service, tsr_error *err);
    /* Frees the fields of this kind of service: locks, and an arena of secrets. NULL: there is nothing to free. */
    void (*release)(tsr_service *service);
};

/* Appends all objects whose keys begin with `prefix`. If `flat` is false, only those without a '/' after the prefix. */
tsr_status tsr_service_list(tsr_service *service, tsr_str prefix, bool flat, tsr_object_list *out, tsr_error *err);

/* For `list_page`: requests a page of a bucket's listing and reads it (object_listing.h). `form` NULL: Google's JSON. Errors: those of the
 * exchange, and of the page with the bucket's name. */
tsr_status tsr_service_list_page(tsr_service *service, const tsr_parameter *parameters, size_t count,
                                 const tsr_listing_form *form, tsr_object_list *out, tsr_str *next, tsr_error *err);

/* A `stat` for services that report size and ETag of an object with each range of it. Requests its first byte rather than
 * HEAD, because the answer to HEAD contains no reason for a refusal. */
tsr_status tsr_service_stat_by_range(tsr_service *service, tsr_str key, tsr_object_list *out, tsr_error *err);

/* Opens the service of a location, with its own connections. Messages say what is missing. */
tsr_status tsr_service_open(const tsr_allocator *allocator, const tsr_location *location, unsigned depth, tsr_service **out,
                            tsr_error *err);
void tsr_service_close(tsr_service *service); /* accepts NULL */

/* For the implementations: makes a service of `kind->size` bytes that begins with a copy of `kind`, with an arena; the rest
 * is zero. A function that opens a service sets its *out to it before anything can fail, so that tsr_service_open can close
 * it. */
tsr_status tsr_service_new(tsr_transport *transport, const tsr_service *kind, tsr_service **out, tsr_error *err);

/* Sets the checksums that both of Google's APIs have. */
void tsr_service_use_google_checksums(tsr_service *service);

/* Appends an object whose texts live in list->arena. TSR_E_LIMIT where the list would take more memory than a listing may
 * (tessera/sys/directory.h). */
tsr_status tsr_object_list_add(tsr_object_list *list, tsr_object object, tsr_error *err);
tsr_status tsr_object_list_open(const tsr_allocator *allocator, tsr_object_list *out, tsr_error *err);
void tsr_object_list_close(tsr_object_list *list); /* accepts a zeroed one */
/* An ETag without its quotation marks and the prefix of a weak one. */
tsr_str tsr_version_text(tsr_str etag);

/* ---- Azure ---- */

/* Azure Blob Storage. */

/* Opens a container, with or without a shared access signature. Sets *out as described for tsr_service_new. */
tsr_status tsr_azure_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                          tsr_service **out, tsr_error *err);

/* ---- Google ---- */

/* Google Cloud Storage. */

/* Opens a bucket: with the JSON API if there is a token, with the XML API if there is an HMAC key. Sets *out as described
 * for tsr_service_new. */
tsr_status tsr_gcs_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                        tsr_service **out, tsr_error *err);

/* ---- Hugging Face ---- */

/* Repositories of the Hugging Face Hub. */

/* Opens a repository at one commit: a branch is resolved once. Sets *out as described for tsr_service_new. */
tsr_status tsr_hf_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                       tsr_service **out, tsr_error *err);

/* ---- endpoints ---- */

/* The address of a server that a setting gives. */

/* Returns `given` without trailing slashes, in `arena`. `setting` is its name in messages. Errors: TSR_E_USAGE unless it is
 * an http or https URL, TSR_E_NOMEM. */
tsr_status tsr_endpoint_of(tsr_arena *arena, tsr_str given, const char *setting, const char **out, tsr_error *err);

/* ---- settings ---- */

/* Reads environment variables. An empty one counts as not set. */

static inline const char *tsr_setting(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

/* Percent-encoding as signatures require it: of every byte except letters, digits, '-', '.', '_' and '~'. */

/* Encodes `text`. With `keeps_slashes`, '/' is not encoded, as in paths. NULL data: TSR_E_NOMEM is in err. */
tsr_str tsr_url_encode(tsr_arena *arena, tsr_str text, bool keeps_slashes, tsr_error *err);
/* Makes "?a=1&b=2" from the parameters in their order; empty if there are none. */
tsr_str tsr_url_query(tsr_arena *arena, const tsr_parameter *parameters, size_t count, tsr_error *err);

/* ---- S3 and services with the same protocol, such as MinIO or Google's XML API. ---- */

typedef struct tsr_credentials {
    const char *id, *secret, *token; /* id NULL: there are none, so requests are not signed; token may be NULL */
    int64_t expires;                 /* seconds since 1970; 0: never */
} tsr_credentials;

/* The settings of a service that is not S3 itself. All texts are borrowed. */
typedef struct tsr_s3_elsewhere {
    const char *shown;    /* "gs://bucket" */
    const char *endpoint; /* "https://storage.googleapis.com" */
    const char *region;
    const char *absent_header, *absent_value; /* header that makes a request fail if the object exists; literals */
    tsr_credentials credentials;
} tsr_s3_elsewhere;

/* Opens a bucket. `elsewhere` NULL: as AWS's environment variables and profile say. Sets *out as described for
 * tsr_service_new. */
tsr_status tsr_s3_open(const tsr_allocator *allocator, const tsr_location *location, const tsr_s3_elsewhere *elsewhere,
                       tsr_transport *transport, tsr_service **out, tsr_error *err);

/* ---- metadata services of clouds ---- */

/* Sends a request to a metadata service, with the same retries as other requests. `*text` lives in `arena`. `*status` 0:
 * nobody answered. */
typedef struct tsr_metadata_request {
    const char *method, *url;
    const char *const *headers; /* ends with NULL */
    unsigned connect_seconds;   /* limit for connecting, with a single attempt; 0: the usual limit and retries */
} tsr_metadata_request;
tsr_status tsr_metadata_ask(tsr_transport *transport, const tsr_metadata_request *request, tsr_arena *arena, tsr_str *text,
                            long *status, tsr_error *err);
/* The string with this name in a JSON object, in `arena`; NULL if there is none. If `number` is not NULL, it receives the
 * value if that is a number. */
const char *tsr_metadata_member(tsr_str json, const char *name, tsr_arena *arena, double *number);

#endif
