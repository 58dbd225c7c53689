/* See service.h. */
#include "object_store/service.h"

#include "object_store/exchange.h"
#include "tessera/sys/containers.h"
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

void tsr_service_use_google_checksums(tsr_service *service)
{
    service->checksum_header = "x-goog-hash";
    service->checksum_prefix = "crc32c=";
    service->checksum = TSR_CHECKSUM_CRC32C;
    service->compares_checksums = true; /* it states them without being asked */
}

/* ---- endpoint ---- */

tsr_status tsr_endpoint_of(tsr_arena *arena, tsr_str given, const char *setting, const char **out, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_str_starts(given, TSR_STR("http://")) && !tsr_str_starts(given, TSR_STR("https://")), err, TSR_E_USAGE,
                "%s must be an http or https URL", setting);
    while (given.data[given.size - 1] == '/') given.size--;
    *out = tsr_arena_str(arena, given, err).data;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- object stat ---- */

tsr_status tsr_service_stat_by_range(tsr_service *base, tsr_str key, tsr_object_list *out, tsr_error *err)
{
    char byte;
    const tsr_request request = {.key = key, .is_ranged = true, .buffer = &byte, .capacity = 1};
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(base, &request, &x, 1, err);
    const bool is_empty = x.transfer.answer.status == 416 && x.transfer.answer.total == 0;
    if (status == TSR_OK && x.transfer.answer.status >= 300 && !is_empty) status = tsr_exchange_error(base, &x, err);
    if (status == TSR_OK && x.transfer.answer.total == UINT64_MAX)
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s/%.*s: the server does not state the object's size",
                           base->shown, TSR_STR_ARG(key));
    if (status == TSR_OK) {
        const tsr_object object = {
            .key = tsr_arena_str(out->arena, key, err),
            .size = x.transfer.answer.total,
            .version = tsr_arena_str(out->arena, tsr_version_text(tsr_str_from(x.transfer.answer.version)), err)};
        status = object.key.data && object.version.data ? tsr_object_list_add(out, object, err) : TSR_E_NOMEM;
    }
    tsr_exchange_end(&x);
    return status;
}
