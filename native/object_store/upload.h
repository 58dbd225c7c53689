/* Writing objects: whole, or in parts that are uploaded in any order and become one object at the end. Nothing is visible before
 * tsr_uploading.complete or .put. All functions may be called by several threads, for different parts and objects. */
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
    uint64_t size;  /* of the whole object, bytes */
    bool if_absent; /* TSR_E_EXISTS where there is an object of this key already */
    tsr_str before; /* otherwise: the version of the object that is replaced; empty: none */
} tsr_upload;

/* What the server gave for a part, in the order of the parts. */
typedef struct tsr_part_tag {
    char text[TSR_PART_TAG];
} tsr_part_tag;

/* What of an earlier run can be continued. A part that the server has counts only where its checksum agrees with the bytes. */
typedef struct tsr_resuming {
    /* Appends the unfinished uploads of keys that begin with `prefix`, their ids as versions. NULL: uploads have no ids, and each object
     * has one at most. */
    tsr_status (*list_unfinished)(tsr_service *service, tsr_str prefix, tsr_object_list *out, tsr_error *err);
    /* Appends the parts that the server has of an upload, by names as `name` gives them. */
    tsr_status (*list_parts)(tsr_service *service, const tsr_upload *upload, tsr_object_list *out, tsr_error *err);
    /* Under which name the server lists part `number`, from 1, of these bytes. */
    void (*name)(unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *name);
    /* Whether a part that is listed under that name, and has this size, has these bytes; then sets its tag. */
    bool (*is_same)(const tsr_object *part, const tsr_upload_bytes *bytes, tsr_part_tag *tag);
} tsr_resuming;

typedef struct tsr_uploading {
    /* Begins an upload in parts: sets *id, in `arena`. */
    tsr_status (*begin)(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err);
    /* Part `number`, from 1. Repeated until the server has it. */
    tsr_status (*send)(tsr_service *service, const tsr_upload *upload, unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *tag,
                       tsr_error *err);
    /* Makes the parts an object. Where the reply was lost, asks whether the object is there before repeating it. */
    tsr_status (*complete)(tsr_service *service, const tsr_upload *upload, const tsr_part_tag *tags, unsigned count, tsr_error *err);
    /* Gives the parts up; not an error where there is no such upload, or the server has no such request. */
    tsr_status (*abort)(tsr_service *service, const tsr_upload *upload, tsr_error *err);
    /* Writes a small object with one request, likewise. */
    tsr_status (*put)(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, tsr_error *err);
    /* Removes an object; not an error where there is none. */
    tsr_status (*remove)(tsr_service *service, tsr_str key, tsr_error *err);
    const tsr_resuming *resuming;
} tsr_uploading;

/* By the protocol of S3, which Google's XML API has too; of Azure. */
extern const tsr_uploading tsr_uploading_by_s3, tsr_uploading_by_azure;

/* SHA-256 of some bytes, in hexadecimal digits. Needs tsr_native_sha256. */
void tsr_upload_sum(const void *data, size_t size, char out[TSR_SUM_DIGITS + 1]);
/* MD5 likewise; false where the system forbids it. */
bool tsr_upload_md5(const void *data, size_t size, char out[TSR_MD5_DIGITS + 1]);

/* What the kinds have in common after a lost reply. */

/* Whether there is an object of this key. */
tsr_status tsr_upload_exists(tsr_service *service, tsr_str key, bool *there, tsr_error *err);
/* Whether the object that an upload makes is there now. An object of its size that is not the one from before is; with `bytes`
 * (may be NULL), it must have these. */
tsr_status tsr_upload_is_there(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, bool *there, tsr_error *err);
/* One request of `upload` that is not repeated blindly. *lost: it is unknown whether it was done. */
typedef struct tsr_upload_reply {
    bool is_lost;
    tsr_str text;       /* the body of the reply, in `arena` */
    tsr_part_tag tag;   /* its ETag */
} tsr_upload_reply;
tsr_status tsr_upload_ask(tsr_service *service, const tsr_request *request, tsr_arena *arena, tsr_upload_reply *reply, tsr_error *err);

/* Whether the object's bytes at `offset` are these; TSR_E_IO where they cannot be read. */
tsr_status tsr_upload_compare(tsr_service *service, tsr_str key, uint64_t offset, const tsr_upload_bytes *bytes, bool *equal, tsr_error *err);

/* A request whose answers of `allowed` are not errors either, because what was to go is not there. */
tsr_status tsr_upload_give_up(tsr_service *service, const tsr_request *request, const long *allowed, tsr_error *err);
/* tsr_uploading.remove of all kinds. */
tsr_status tsr_upload_remove(tsr_service *service, tsr_str key, tsr_error *err);

/* Carries out a request that makes the object, once; after a lost reply asks first. `bytes` as for tsr_upload_is_there. */
tsr_status tsr_upload_make(tsr_service *service, const tsr_upload *upload, const tsr_request *request, const tsr_upload_bytes *bytes,
                           tsr_error *err);

#endif
