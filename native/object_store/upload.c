/* See upload.h. */
#include "object_store/upload.h"

#include <stdio.h>

#include "io/checksums.h"
#include "io/transport.h"
#include "object_store/exchange.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

enum { MOST_REPLY = 64 << 10, MOST_TRIES = 6, COMPARED = 4 << 20 };

static bool digest(const tsr_digest_ops *kind, const void *data, size_t size, char *out)
{
    static const char hex[] = "0123456789abcdef";
    uint8_t bytes[TSR_SUM_DIGITS / 2];
    void *state = kind->start();
    if (!state) return false;
    if (size) kind->update(state, data, size);
    kind->finish(state, bytes);
    for (size_t i = 0; i < kind->size; i++) {
        out[2 * i] = hex[bytes[i] >> 4];
        out[2 * i + 1] = hex[bytes[i] & 15];
    }
    out[2 * kind->size] = '\0';
    return true;
}

void tsr_upload_sum(const void *data, size_t size, char out[TSR_SUM_DIGITS + 1])
{
    out[0] = '\0';
    digest(tsr_native_sha256, data, size, out);
}

bool tsr_upload_md5(const void *data, size_t size, char out[TSR_MD5_DIGITS + 1])
{
    out[0] = '\0';
    return tsr_native_md5 && digest(tsr_native_md5, data, size, out);
}

tsr_header tsr_upload_checksum(const tsr_service *service, const void *data, size_t size, char value[TSR_CHECKSUM_VALUE])
{
    char text[TSR_CHECKSUM_TEXT];
    if (!service->checksum_header || !size || service->checksum_use[TSR_CHECKSUM_BODIES] == TSR_CHECKSUMS_REFUSED ||
        !tsr_checksum_text(service->checksum, data, size, text))
        return (tsr_header){NULL, NULL};
    snprintf(value, TSR_CHECKSUM_VALUE, "%s%s", service->checksum_prefix, text);
    return (tsr_header){service->checksum_header, value};
}

tsr_status tsr_upload_ask(tsr_service *service, const tsr_request *given, tsr_arena *arena, tsr_upload_reply *reply,
                          tsr_error *err)
{
    tsr_request request = *given;
    tsr_exchange x = {0};
    *reply = (tsr_upload_reply){0};
    request.capacity = MOST_REPLY;
    request.buffer = tsr_alloc(service->allocator, MOST_REPLY, 1, err);
    if (!request.buffer) return TSR_E_NOMEM;
    tsr_status status = tsr_exchange_perform(service, &request, &x, 1, err);
    reply->is_lost = x.is_lost;
    if (status == TSR_OK && !x.is_lost) {
        const tsr_http_answer *answer = &x.transfer.answer;
        if (answer->status == 412 || (request.if_absent && answer->status == service->status_exists))
            status = tsr_fail(tsr_naming(err), TSR_E_EXISTS, "'%s' exists; --overwrite replaces it",
                              tsr_shown_key_of(service, request.key).text);
        else if (answer->status >= 300) status = tsr_exchange_error(service, &x, err);
        else reply->text = tsr_arena_str(arena, (tsr_str){request.buffer, answer->size}, err);
        if (status == TSR_OK && !reply->text.data) status = TSR_E_NOMEM;
        memcpy(reply->tag.text, answer->version, sizeof reply->tag.text);
    }
    tsr_exchange_end(&x);
    tsr_free(service->allocator, request.buffer, MOST_REPLY, 1);
    return status;
}

/* ---- after a lost reply ---- */

tsr_status tsr_upload_exists(tsr_service *service, tsr_str key, bool *there, tsr_error *err)
{
    tsr_object_list found = {0};
    tsr_error why = {0};
    TSR_TRY(tsr_object_list_open(service->allocator, &found, err));
    const tsr_status status = service->stat(service, key, &found, &why);
    tsr_object_list_close(&found);
    *there = status == TSR_OK;
    return status == TSR_OK || status == TSR_E_NOT_FOUND ? TSR_OK : tsr_raise_again(err, status, &why);
}

static tsr_status compare_range(tsr_service *service, const tsr_request *request, const void *with, bool *equal,
                                tsr_error *err)
{
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(service, request, &x, 1, err);
    if (status == TSR_OK && x.transfer.answer.status >= 300) status = tsr_exchange_error(service, &x, err);
    *equal = status == TSR_OK && x.transfer.answer.size == request->capacity &&
             memcmp(request->buffer, with, request->capacity) == 0;
    tsr_exchange_end(&x);
    return status;
}

tsr_status tsr_upload_compare(tsr_service *service, tsr_str key, uint64_t offset, const tsr_upload_bytes *bytes, bool *equal,
                              tsr_error *err)
{
    const size_t room = bytes->size < COMPARED ? bytes->size : COMPARED;
    char *buffer = room ? tsr_alloc(service->allocator, room, 1, err) : NULL;
    tsr_status status = buffer || !room ? TSR_OK : TSR_E_NOMEM;
    *equal = true;
    for (size_t at = 0; at < bytes->size && *equal && status == TSR_OK; at += room) {
        const size_t size = bytes->size - at < room ? bytes->size - at : room;
        const tsr_request request = {
            .key = key, .is_ranged = true, .offset = offset + at, .buffer = buffer, .capacity = size};
        status = compare_range(service, &request, (const char *)bytes->data + at, equal, err);
    }
    tsr_free(service->allocator, buffer, room, 1);
    return status;
}

tsr_status tsr_upload_is_there(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, bool *there,
                               tsr_error *err)
{
    tsr_object_list found = {0};
    tsr_error unused = {0};
    *there = false;
    TSR_TRY(tsr_object_list_open(service->allocator, &found, err));
    tsr_status status = service->stat(service, upload->key, &found, &unused);
    if (status == TSR_OK) {
        const tsr_object *object = found.items.items;
        *there = object->size == upload->size && !(upload->before.size && tsr_str_equal(object->version, upload->before));
        if (*there && bytes && bytes->size) status = tsr_upload_compare(service, upload->key, 0, bytes, there, &unused);
    }
    tsr_object_list_close(&found);
    if (status == TSR_OK || status == TSR_E_NOT_FOUND) return TSR_OK;
    return tsr_raise_again(err, status, &unused);
}

tsr_status tsr_upload_make(tsr_service *service, const tsr_upload *upload, const tsr_request *request,
                           const tsr_upload_bytes *bytes, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    tsr_status status = arena ? TSR_OK : TSR_E_NOMEM;
    bool is_done = false;
    double seconds = 0.1;
    for (unsigned tries = 0; status == TSR_OK && !is_done; tries++) {
        tsr_upload_reply reply;
        status = tsr_upload_ask(service, request, arena, &reply, err);
        is_done = !reply.is_lost && !(reply.text.size && memmem(reply.text.data, reply.text.size, "<Error>", 7));
        if (is_done && (status == TSR_OK || tries == 0)) break;
        /* The result is unknown, or a repetition was refused, perhaps because the first attempt was carried out. */
        tsr_error why = {0};
        const tsr_status asked = tsr_upload_is_there(service, upload, bytes, &is_done, &why);
        if (is_done) status = TSR_OK;
        else if (status == TSR_OK && asked != TSR_OK) status = tsr_raise_again(err, asked, &why);
        if (status != TSR_OK || is_done) break;
        if (tries + 1 == MOST_TRIES || tsr_retry_is_spent())
            status = tsr_fail(tsr_naming(err), TSR_E_IO, "%s: the server did not confirm that the object was written",
                              tsr_shown_key_of(service, upload->key).text);
        else tsr_retry_wait(seconds);
        seconds *= 2;
    }
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_upload_give_up(tsr_service *service, const tsr_request *request, const long *allowed, tsr_error *err)
{
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(service, request, &x, 1, err);
    const long answer = x.transfer.answer.status;
    if (status == TSR_OK && answer >= 300 && answer != allowed[0] && answer != allowed[1])
        status = tsr_exchange_error(service, &x, err);
    tsr_exchange_end(&x);
    return status;
}

tsr_status tsr_upload_remove(tsr_service *service, tsr_str key, tsr_error *err)
{
    return tsr_upload_give_up(service, &(tsr_request){.method = "DELETE", .key = key, .is_upload = true},
                              (const long[]){404, 404}, err);
}
