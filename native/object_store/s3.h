/* S3 and what speaks its protocol, such as MinIO or Google's XML API. */
#ifndef TSR_OBJECT_STORE_S3_H
#define TSR_OBJECT_STORE_S3_H

#include "object_store/credentials.h"
#include "object_store/service.h"

/* What a service of that protocol needs that is not S3 itself; all texts are borrowed. */
typedef struct tsr_s3_elsewhere {
    const char *shown;    /* "gs://bucket" */
    const char *endpoint; /* "https://storage.googleapis.com" */
    const char *region;
    const char *absent_header, *absent_value; /* the precondition that there is no such object; literals */
    tsr_credentials credentials;
} tsr_s3_elsewhere;

/* Opens a bucket. `elsewhere` NULL: by AWS's environment and profile. *out as tsr_service_new has it. */
tsr_status tsr_s3_open(const tsr_allocator *allocator, const tsr_location *location, const tsr_s3_elsewhere *elsewhere,
                       tsr_transport *transport, tsr_service **out, tsr_error *err);

#endif
