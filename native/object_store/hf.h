/* Repositories of the Hugging Face Hub. */
#ifndef TSR_OBJECT_STORE_HF_H
#define TSR_OBJECT_STORE_HF_H

#include "object_store/service.h"

/* Opens a repository at one commit: a branch is resolved once. Sets *out as described for tsr_service_new. */
tsr_status tsr_hf_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                       tsr_service **out, tsr_error *err);

#endif
