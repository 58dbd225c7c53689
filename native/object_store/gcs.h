/* Google Cloud Storage. */
#ifndef TSR_OBJECT_STORE_GCS_H
#define TSR_OBJECT_STORE_GCS_H

#include "object_store/service.h"

/* Opens a bucket: by the JSON API with a token, or by the XML API with an HMAC key. *out as tsr_service_new has it. */
tsr_status tsr_gcs_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport, tsr_service **out,
                        tsr_error *err);

#endif
