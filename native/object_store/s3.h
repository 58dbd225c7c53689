/* S3 and services with the same protocol, such as MinIO or Google's XML API. */
#ifndef TSR_OBJECT_STORE_S3_H
#define TSR_OBJECT_STORE_S3_H

#include "object_store/credentials.h"
#include "object_store/service.h"

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

#endif
