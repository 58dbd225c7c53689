/* See service.h. */
#include "object_store/service.h"

#include <cjson/cJSON.h>

#include "object_store/exchange.h"
#include "object_store/object_listing.h"
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

tsr_status tsr_service_list_page(tsr_service *service, const tsr_parameter *parameters, size_t count,
                                 const tsr_listing_form *form, tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    enum { MOST_PAGE = 16 << 20 };
    const tsr_request request = {.parameters = parameters, .parameter_count = count, .on_bucket = true};
    tsr_exchange x;
    tsr_str page;
    tsr_status status = tsr_exchange_text(service, request, MOST_PAGE, &x, &page, err);
    if (status == TSR_OK) {
        out->now = x.transfer.answer.date;
        status = form ? tsr_listing_read(form, page, out, next, err) : tsr_listing_read_google(page, out, next, err);
        if (status != TSR_OK) tsr_error_context(err, "%s", service->shown);
    }
    tsr_exchange_end(&x);
    return status;
}

tsr_status tsr_service_stat_by_range(tsr_service *base, tsr_str key, tsr_object_list *out, tsr_error *err)
{
    char byte;
    const tsr_request request = {.key = key, .is_ranged = true, .buffer = &byte, .capacity = 1};
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(base, &request, &x, 1, err);
    const bool is_empty = x.transfer.answer.status == 416 && x.transfer.answer.total == 0;
    if (status == TSR_OK && x.transfer.answer.status >= 300 && !is_empty) status = tsr_exchange_error(base, &x, err);
    if (status == TSR_OK && x.transfer.answer.total == UINT64_MAX)
        status =
            tsr_fail(err, TSR_E_IO, "%s/%.*s: the server does not state the object's size", base->shown, TSR_STR_ARG(key));
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

/* Source: AWS's documentation of Signature Version 4 ("UriEncode"). */

static bool is_plain(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || tsr_is_digit(c) || (c && strchr("-._~", c));
}

static size_t encode(tsr_str text, bool keeps_slashes, char *out)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (is_plain((char)c) || (keeps_slashes && c == '/')) {
            out[n++] = (char)c;
        } else {
            out[n++] = '%';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        }
    }
    return n;
}

tsr_str tsr_url_encode(tsr_arena *arena, tsr_str text, bool keeps_slashes, tsr_error *err)
{
    char *out = tsr_arena_array(arena, 3 * text.size + 1, 1, err);
    return out ? (tsr_str){out, encode(text, keeps_slashes, out)} : (tsr_str){NULL, 0};
}

tsr_str tsr_url_query(tsr_arena *arena, const tsr_parameter *parameters, size_t count, tsr_error *err)
{
    size_t room = 1, n = 0;
    for (size_t i = 0; i < count; i++) room += 3 * (strlen(parameters[i].name) + parameters[i].value.size) + 2;
    char *out = tsr_arena_array(arena, room, 1, err);
    if (!out) return (tsr_str){NULL, 0};
    for (size_t i = 0; i < count; i++) {
        out[n++] = i ? '&' : '?';
        n += encode(tsr_str_from(parameters[i].name), false, out + n);
        out[n++] = '=';
        n += encode(parameters[i].value, false, out + n);
    }
    return (tsr_str){out, n};
}

/* ---- metadata services, as AWS's documentation of container credentials and of IMDSv2 describes them, and Google's of its own ---- */

enum { SERVICE_MOST_BYTES = 64 << 10 };

tsr_status tsr_metadata_ask(tsr_transport *transport, const tsr_metadata_request *request, tsr_arena *arena, tsr_str *text,
                            long *status, tsr_error *err)
{
    char *buffer = tsr_arena_array(arena, SERVICE_MOST_BYTES, 1, err);
    double seconds;
    if (!buffer) return TSR_E_NOMEM;
    tsr_http_transfer t = {.method = request->method,
                           .url = request->url,
                           .headers = request->headers,
                           .connect_seconds = request->connect_seconds,
                           .buffer = buffer,
                           .capacity = SERVICE_MOST_BYTES};
    tsr_http_transfer *const all[] = {&t};
    tsr_transport_perform(transport, all, 1);
    for (unsigned attempt = 1; !request->connect_seconds && tsr_retry_worthwhile(&t, attempt, &seconds); attempt++) {
        tsr_retry_wait(seconds);
        tsr_transport_perform(transport, all, 1);
    }
    *status = t.result == TSR_TRANSFER_ANSWERED ? t.answer.status : 0;
    *text = (tsr_str){buffer, t.answer.size};
    tsr_http_transfer_clear(&t);
    return TSR_OK;
}

const char *tsr_metadata_member(tsr_str json, const char *name, tsr_arena *arena, double *number)
{
    cJSON *root = cJSON_ParseWithLength(json.data, json.size);
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(root, name);
    const char *text = cJSON_IsString(member) ? tsr_arena_str(arena, tsr_str_from(member->valuestring), NULL).data : NULL;
    if (number && cJSON_IsNumber(member)) *number = member->valuedouble;
    cJSON_Delete(root);
    return text;
}
