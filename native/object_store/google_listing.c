/* Listings in JSON; see object_listing.h. Source: the reference of Cloud Storage's JSON API (Objects: list, Objects: get). */
#include <cjson/cJSON.h>

#include "object_store/object_listing.h"
#include "tessera/sys/try.h"

enum { MOST_DIGITS = 19 };

static tsr_status add_object(const cJSON *item, tsr_object_list *out, tsr_error *err)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name"),
                *size = cJSON_GetObjectItemCaseSensitive(item, "size"),
                *generation = cJSON_GetObjectItemCaseSensitive(item, "generation");
    const char *digits = cJSON_IsString(size) ? size->valuestring : "";
    uint64_t bytes = 0;
    TSR_FAIL_IF(!cJSON_IsString(name) || !*digits || strlen(digits) > MOST_DIGITS ||
                    strspn(digits, "0123456789") != strlen(digits),
                err, TSR_E_FORMAT, "the server lists an object without a name or a size");
    for (; *digits; digits++) bytes = bytes * 10 + (uint64_t)(*digits - '0');
    const tsr_object object = {
        tsr_arena_str(out->arena, tsr_str_from(name->valuestring), err), bytes,
        tsr_arena_str(out->arena, tsr_str_from(cJSON_IsString(generation) ? generation->valuestring : ""), err)};
    return object.key.data && object.version.data ? tsr_object_list_add(out, object, err) : TSR_E_NOMEM;
}

tsr_status tsr_listing_read_google(tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    cJSON *root = cJSON_ParseWithLength(page.data, page.size);
    const cJSON *item, *token = cJSON_GetObjectItemCaseSensitive(root, "nextPageToken");
    tsr_status status = cJSON_IsObject(root)
                            ? TSR_OK
                            : tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "the server's listing is not a JSON object");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "items"))
    {
        if (status == TSR_OK) status = add_object(item, out, err);
    }
    *next = (tsr_str){NULL, 0};
    if (status == TSR_OK && cJSON_IsString(token)) {
        *next = tsr_arena_str(out->arena, tsr_str_from(token->valuestring), err);
        if (!next->data) status = TSR_E_NOMEM;
    }
    cJSON_Delete(root);
    return status;
}

tsr_status tsr_listing_read_google_object(tsr_str text, tsr_object_list *out, tsr_error *err)
{
    cJSON *root = cJSON_ParseWithLength(text.data, text.size);
    const tsr_status status = add_object(root, out, err);
    cJSON_Delete(root);
    return status;
}
