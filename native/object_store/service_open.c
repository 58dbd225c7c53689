/* Chooses the kind of store that serves a URL. */
#include "object_store/service.h"
#include "tessera/sys/try.h"

static tsr_status open_kind(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                            tsr_service **out, tsr_error *err)
{
    switch (location->kind) {
    case TSR_AT_S3: return tsr_s3_open(allocator, location, NULL, transport, out, err);
    case TSR_AT_GCS: return tsr_gcs_open(allocator, location, transport, out, err);
    case TSR_AT_AZURE: return tsr_azure_open(allocator, location, transport, out, err);
    default: return tsr_hf_open(allocator, location, transport, out, err);
    }
}

tsr_status tsr_service_open(const tsr_allocator *allocator, const tsr_location *location, unsigned depth, tsr_service **out,
                            tsr_error *err)
{
    tsr_transport *transport;
    tsr_service *service = NULL;
    TSR_TRY(tsr_transport_open(allocator, depth, &transport, err));
    const tsr_status status = open_kind(allocator, location, transport, &service, err);
    if (status == TSR_OK) *out = service;
    else if (service) tsr_service_close(service);
    else tsr_transport_close(transport);
    return status;
}
