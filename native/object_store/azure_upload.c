/* Uploads to Azure. Source: the reference of Azure's Blob service (Put Block, Put Block List, Put Blob, Delete Blob). Blocks that are
 * not in a list yet are not visible; nobody can remove them, and the service does so after a week. */
#include "object_store/upload.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

#include "io/try.h"
#include "object_store/exchange.h"

enum { BLOCK_NAME = 24, BLOCK_ID = 4 * BLOCK_NAME / 3 + 1 };

/* Names of blocks are this run's own: another one may be writing the same object. */
static tsr_status begin(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    uint64_t number;
    (void)service, (void)key;
    TSR_FAIL_IF(getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number, err, TSR_E_IO, "the system gives no random numbers");
    *id = tsr_arena_format(arena, err, "%016" PRIx64, number).data;
    return *id ? TSR_OK : TSR_E_NOMEM;
}

/* Base64 of the upload's number and the part's; both have a fixed length, as all names of an object's blocks must. */
static void block_id(const tsr_upload *upload, unsigned number, char out[BLOCK_ID])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char name[BLOCK_NAME + 1];
    snprintf(name, sizeof name, "%.16s%08u", upload->id, number % 100000000);
    for (size_t i = 0, o = 0; i < BLOCK_NAME; i += 3) {
        const unsigned three = (unsigned)(unsigned char)name[i] << 16 | (unsigned)(unsigned char)name[i + 1] << 8 | (unsigned)(unsigned char)name[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6) out[o++] = digits[three >> shift & 63];
    }
    out[BLOCK_ID - 1] = '\0';
}

static tsr_status ask(tsr_service *service, const tsr_request *request, tsr_error *err)
{
    tsr_upload_reply reply;
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_status status = tsr_upload_ask(service, request, arena, &reply, err);
    tsr_arena_free(arena);
    return status;
}

static tsr_status send(tsr_service *service, const tsr_upload *upload, unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *tag,
                       tsr_error *err)
{
    char id[BLOCK_ID];
    block_id(upload, number, id);
    tag->text[0] = '\0';
    const tsr_parameter parameters[] = {{"blockid", tsr_str_from(id)}, {"comp", TSR_STR("block")}};
    const tsr_request request = {
        .method = "PUT", .key = upload->key, .parameters = parameters, .parameter_count = 2, .body = bytes->data, .body_size = bytes->size};
    return ask(service, &request, err);
}

static tsr_status list_blocks(tsr_arena *arena, const tsr_upload *upload, unsigned count, tsr_str *out, tsr_error *err)
{
    static const char head[] = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>", tail[] = "</BlockList>";
    const size_t room = sizeof head + sizeof tail + count * (sizeof "<Latest></Latest>" + BLOCK_ID);
    char *text = tsr_arena_array(arena, room, 1, err), id[BLOCK_ID];
    if (!text) return TSR_E_NOMEM;
    size_t n = (size_t)snprintf(text, room, "%s", head);
    for (unsigned i = 0; i < count; i++) {
        block_id(upload, i + 1, id);
        n += (size_t)snprintf(text + n, room - n, "<Latest>%s</Latest>", id);
    }
    n += (size_t)snprintf(text + n, room - n, "%s", tail);
    *out = (tsr_str){text, n};
    return TSR_OK;
}

static tsr_status complete(tsr_service *service, const tsr_upload *upload, const tsr_part_tag *tags, unsigned count, tsr_error *err)
{
    static const tsr_parameter list = {"comp", {"blocklist", 9}};
    tsr_str body = {NULL, 0};
    (void)tags;
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = list_blocks(arena, upload, count, &body, err);
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .parameters = &list,
                                 .parameter_count = 1,
                                 .body = body.data,
                                 .body_size = body.size,
                                 .content_type = "application/xml",
                                 .if_absent = upload->if_absent,
                                 .once = true};
    if (status == TSR_OK) status = tsr_upload_make(service, upload, &request, NULL, err);
    tsr_arena_free(arena);
    return status;
}

static tsr_status abort_upload(tsr_service *service, const tsr_upload *upload, tsr_error *err)
{
    (void)service, (void)upload, (void)err;
    return TSR_OK;
}

static tsr_status put(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, tsr_error *err)
{
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .content_type = TSR_OBJECT_TYPE,
                                 .if_absent = upload->if_absent,
                                 .once = upload->if_absent};
    return tsr_upload_make(service, upload, &request, bytes, err);
}

const tsr_uploading tsr_uploading_by_azure = {begin, send, complete, abort_upload, put, tsr_upload_remove};
