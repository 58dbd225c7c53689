/* Writes objects: as a whole, or in parts that are uploaded in any order and become one object at the end. Nothing is
 * visible before tsr_uploading.complete or .put. All functions may be called by several threads, for different parts and
 * objects. */
#ifndef TSR_OBJECT_STORE_UPLOAD_H
#define TSR_OBJECT_STORE_UPLOAD_H

#include "object_store/service.h"

enum { TSR_SUM_DIGITS = 64, TSR_MD5_DIGITS = 32, TSR_PART_TAG = 160, TSR_MOST_UPLOAD_PARTS = 10000 };

#define TSR_OBJECT_TYPE "application/octet-stream" /* the Content-Type of objects */

/* A part, or a whole object. */
typedef struct tsr_upload_bytes {
    const void *data;
    size_t size;
    char sum[TSR_SUM_DIGITS + 1]; /* SHA-256 in hexadecimal digits */
} tsr_upload_bytes;

/* An object that is being written. */
typedef struct tsr_upload {
    tsr_str key;
    const char *id; /* of an upload in parts; NULL: not begun */
    uint64_t size;  /* size of the whole object in bytes */
    bool if_absent; /* TSR_E_EXISTS if there is already an object of this key */
    tsr_str before; /* if not `if_absent`: the version of the object that is replaced; empty: none */
} tsr_upload;

/* The tag that the server returned for a part. Arrays of them are in the order of the parts. */
typedef struct tsr_part_tag {
    char text[TSR_PART_TAG];
} tsr_part_tag;

/* Finds what can be continued of an earlier run. A part on the server counts only if its checksum is that of the bytes. */
typedef struct tsr_resuming {
    /* Appends the unfinished uploads of keys that begin with `prefix`, with their ids as versions. NULL: uploads have no
     * ids, and each object has at most one. */
    tsr_status (*list_unfinished)(tsr_service *service, tsr_str prefix, tsr_object_list *out, tsr_error *err);
    /* Appends the parts of an upload that the server has, under the names that `name` gives them. */
    tsr_status (*list_parts)(tsr_service *service, const tsr_upload *upload, tsr_object_list *out, tsr_error *err);
    /* The name under which the server lists part `number`, counted from 1, if it has these bytes. */
    void (*name)(unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *name);
    /* Whether a part that is listed under that name and has this size has these bytes. If so, sets its tag. */
    bool (*is_same)(const tsr_object *part, const tsr_upload_bytes *bytes, tsr_part_tag *tag);
} tsr_resuming;

typedef struct tsr_uploading {
    /* Begins an upload in parts. Sets *id, in `arena`. */
    tsr_status (*begin)(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err);
    /* Sends part `number`, counted from 1. Repeats it until the server has it. */
    tsr_status (*send)(tsr_service *service, const tsr_upload *upload, unsigned number, const tsr_upload_bytes *bytes,
                       tsr_part_tag *tag, tsr_error *err);
    /* Turns the parts into an object. If the reply is lost, checks whether the object exists before repeating the
     * request. */
    tsr_status (*complete)(tsr_service *service, const tsr_upload *upload, const tsr_part_tag *tags, unsigned count,
                           tsr_error *err);
    /* Discards the parts. It is not an error if there is no such upload, or if the server does not support the request. */
    tsr_status (*abort)(tsr_service *service, const tsr_upload *upload, tsr_error *err);
    /* Writes a small object with one request. A lost reply is handled as by `complete`. */
    tsr_status (*put)(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, tsr_error *err);
    /* Removes an object. It is not an error if there is none. */
    tsr_status (*remove)(tsr_service *service, tsr_str key, tsr_error *err);
    const tsr_resuming *resuming;
    bool is_of_process; /* only the process that began an upload can complete it */
} tsr_uploading;

/* With the protocol of S3, which Google's XML API also has, with that of Azure, and with Google's JSON API. */
extern const tsr_uploading tsr_uploading_by_s3, tsr_uploading_by_azure, tsr_uploading_by_google;

/* SHA-256 of some bytes, in hexadecimal digits. Needs tsr_native_sha256. */
void tsr_upload_sum(const void *data, size_t size, char out[TSR_SUM_DIGITS + 1]);
/* The same with MD5; false if the system forbids it. */
bool tsr_upload_md5(const void *data, size_t size, char out[TSR_MD5_DIGITS + 1]);

/* Fills the header in which the service expects the checksum of a body; `value` holds its text. None if the service has no such
 * header, or if the build does not have the checksum. */
enum { TSR_CHECKSUM_VALUE = 40 };
tsr_header tsr_upload_checksum(const tsr_service *service, const void *data, size_t size, char value[TSR_CHECKSUM_VALUE]);

/* Used by all implementations after a lost reply. */

/* Whether there is an object of this key. */
tsr_status tsr_upload_exists(tsr_service *service, tsr_str key, bool *there, tsr_error *err);
/* Whether the object that an upload makes exists now: an object of this size that is not the one from before. With `bytes`
 * (may be NULL), it must also have these bytes. */
tsr_status tsr_upload_is_there(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, bool *there,
                               tsr_error *err);
/* The reply to a request of `upload` that must not simply be repeated. If `is_lost`, it is unknown whether it was carried
 * out. */
typedef struct tsr_upload_reply {
    bool is_lost;
    tsr_str text;     /* the body of the reply, in `arena` */
    tsr_part_tag tag; /* its ETag */
} tsr_upload_reply;
tsr_status tsr_upload_ask(tsr_service *service, const tsr_request *request, tsr_arena *arena, tsr_upload_reply *reply,
                          tsr_error *err);

/* Compares the object's bytes at `offset` with these. TSR_E_IO if they cannot be read. */
tsr_status tsr_upload_compare(tsr_service *service, tsr_str key, uint64_t offset, const tsr_upload_bytes *bytes, bool *equal,
                              tsr_error *err);

/* Sends a request for removing something. The statuses in `allowed` are not errors: they mean that it does not exist. */
tsr_status tsr_upload_give_up(tsr_service *service, const tsr_request *request, const long *allowed, tsr_error *err);
/* tsr_uploading.remove of all services. */
tsr_status tsr_upload_remove(tsr_service *service, tsr_str key, tsr_error *err);

/* Sends a request that makes the object. After a lost reply, checks whether the object exists before repeating it. `bytes`
 * as for tsr_upload_is_there. */
tsr_status tsr_upload_make(tsr_service *service, const tsr_upload *upload, const tsr_request *request,
                           const tsr_upload_bytes *bytes, tsr_error *err);

#endif
