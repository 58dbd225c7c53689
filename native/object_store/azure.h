/* Azure Blob Storage. */
#ifndef TSR_OBJECT_STORE_AZURE_H
#define TSR_OBJECT_STORE_AZURE_H

#include "object_store/service.h"

/* Opens a container, with or without a shared access signature. Sets *out as described for tsr_service_new. */
tsr_status tsr_azure_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                          tsr_service **out, tsr_error *err);

#endif
