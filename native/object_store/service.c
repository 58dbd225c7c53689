/* See service.h. */
#include "object_store/service.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/try.h"

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

void tsr_service_close(tsr_service *service)
{
    if (!service) return;
    tsr_transport *transport = service->transport;
    if (service->release) service->release(service);
    tsr_arena_free(service->arena);
    tsr_free(service->allocator, service, service->size, 1);
    tsr_transport_close(transport);
}
