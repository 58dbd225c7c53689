/* Google Cloud Storage. */
#ifndef TSR_OBJECT_STORE_GCS_H
#define TSR_OBJECT_STORE_GCS_H

#include "object_store/service.h"

/* Opens a bucket: with the JSON API if there is a token, with the XML API if there is an HMAC key. Sets *out as described
 * for tsr_service_new. */
tsr_status tsr_gcs_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                        tsr_service **out, tsr_error *err);

#endif
