/* See service.h. */
#include "object_store/service.h"

#include "io/try.h"
#include "object_store/azure.h"
#include "object_store/gcs.h"
#include "object_store/hf.h"
#include "object_store/s3.h"
#include "tessera/sys/alloc.h"

tsr_status tsr_service_new(tsr_transport *transport, const tsr_service *kind, tsr_service **out, tsr_error *err)
{
    char *memory = tsr_alloc(kind->allocator, kind->size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    memset(memory, 0, kind->size);
    tsr_service *service = (tsr_service *)(void *)memory;
    *service = *kind;
    service->transport = transport;
    *out = service;
    service->arena = tsr_arena_new(kind->allocator, 0, err);
    return service->arena ? TSR_OK : TSR_E_NOMEM;
}

/* The service alone. */
static void free_service(tsr_service *service)
{
    if (service->release) service->release(service);
    tsr_arena_free(service->arena);
    tsr_free(service->allocator, service, service->size, 1);
}

void tsr_service_close(tsr_service *service)
{
    if (!service) return;
    tsr_transport *transport = service->transport;
    free_service(service);
    tsr_transport_close(transport);
}

static tsr_status open_kind(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport, tsr_service **out,
                            tsr_error *err)
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
    if (status == TSR_OK) {
        *out = service;
        return TSR_OK;
    }
    if (service) free_service(service);
    tsr_transport_close(transport);
    return status;
}
