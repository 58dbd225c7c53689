/* See service.h. */
#include "object_store/service.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "io/transport.h"
#include "object_store/object_listing.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/try.h"

tsr_status tsr_object_list_open(const tsr_allocator *allocator, tsr_object_list *out, tsr_error *err)
{
    *out = (tsr_object_list){.items = tsr_vec_of(allocator, sizeof(tsr_object)), .arena = tsr_arena_new(allocator, 0, err)};
    return out->arena ? TSR_OK : TSR_E_NOMEM;
}

void tsr_object_list_close(tsr_object_list *list)
{
    if (!list->arena) return;
    tsr_vec_free(&list->items);
    tsr_arena_free(list->arena);
    list->arena = NULL;
}

tsr_status tsr_object_list_add(tsr_object_list *list, tsr_object object, tsr_error *err)
{
    list->bytes += sizeof object + object.key.size + object.version.size;
    TSR_FAIL_IF(list->bytes > TSR_MOST_LISTING, err, TSR_E_LIMIT,
                "there are more objects than can be listed; the listing ended at '%.*s'; name a directory further down",
                TSR_STR_ARG(object.key));
    tsr_object *added = tsr_vec_push(&list->items, err);
    if (!added) return TSR_E_NOMEM;
    *added = object;
    return TSR_OK;
}

tsr_status tsr_service_list(tsr_service *service, tsr_str prefix, bool flat, tsr_object_list *out, tsr_error *err)
{
    tsr_str next = {NULL, 0};
    do {
        const tsr_str asked = next;
        TSR_TRY(service->list_page(service, prefix, flat, out, &next, err));
        TSR_FAIL_IF(next.size && tsr_str_equal(asked, next), err, TSR_E_FORMAT, "%s: the server's listing does not advance",
                    service->shown);
    } while (next.size);
    return TSR_OK;
}

int64_t tsr_listed_time(tsr_str text)
{
    char own[32] = "";
    struct tm tm = {0};
    if (text.size >= sizeof own) return 0;
    memcpy(own, text.data, text.size);
    if (sscanf(own, "%d-%d-%dT%d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
        return (int64_t)tsr_http_date(text);
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return (int64_t)timegm(&tm);
}

tsr_str tsr_version_text(tsr_str etag)
{
    if (tsr_str_starts(etag, TSR_STR("W/"))) etag = (tsr_str){etag.data + 2, etag.size - 2};
    if (etag.size >= 2 && etag.data[0] == '"' && etag.data[etag.size - 1] == '"')
        etag = (tsr_str){etag.data + 1, etag.size - 2};
    return etag;
}
