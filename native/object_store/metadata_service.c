/* See credentials.h. Sources: AWS's documentation of container credentials and of IMDSv2, Google's of its metadata server. */
#include "object_store/credentials.h"

#include <cjson/cJSON.h>

#include "io/retry.h"
#include "tessera/sys/try.h"

enum { MOST_BYTES = 64 << 10 };

tsr_status tsr_metadata_ask(tsr_transport *transport, const tsr_metadata_request *request, tsr_arena *arena, tsr_str *text,
                            long *status, tsr_error *err)
{
    char *buffer = tsr_arena_array(arena, MOST_BYTES, 1, err);
    double seconds;
    if (!buffer) return TSR_E_NOMEM;
    tsr_http_transfer t = {.method = request->method,
                           .url = request->url,
                           .headers = request->headers,
                           .connect_seconds = request->connect_seconds,
                           .buffer = buffer,
                           .capacity = MOST_BYTES};
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
