/* Uploads to Azure. Source: the reference of Azure's Blob service (Put Block, Put Block List, Get Block List, Put Blob,
 * Delete Blob). A block is not visible until a block list makes it part of an object. Nobody can remove it before; the
 * service does so after a week, or when the object is made from other blocks. The name of a block contains a checksum of its
 * bytes, so an interrupted run can be continued. */
#include "object_store/upload.h"

#include <stdio.h>

#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "tessera/sys/try.h"

enum { BLOCK_NAME = 24, BLOCK_ID = 4 * BLOCK_NAME / 3 + 1, NUMBER_BYTES = 4, MOST_PAGE = 8 << 20 };

static tsr_status begin(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    (void)service, (void)key, (void)arena, (void)err;
    *id = "";
    return TSR_OK;
}

static unsigned hex_digit(char digit)
{
    return (unsigned)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/* The name of a block: Base64 of the part's number and of 160 bits of its SHA-256. All block names of an object must have
 * the same length. Another run that writes the same object uses other names, unless the bytes are the same. */
static void block_id(unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char name[BLOCK_NAME];
    for (size_t i = 0; i < NUMBER_BYTES; i++) name[i] = (unsigned char)(number >> (24 - 8 * i));
    for (size_t i = NUMBER_BYTES; i < BLOCK_NAME; i++) {
        const char *two = bytes->sum + 2 * (i - NUMBER_BYTES);
        name[i] = (unsigned char)(hex_digit(two[0]) << 4 | hex_digit(two[1]));
    }
    for (size_t i = 0, o = 0; i < BLOCK_NAME; i += 3) {
        const unsigned three = (unsigned)name[i] << 16 | (unsigned)name[i + 1] << 8 | (unsigned)name[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6) out->text[o++] = digits[three >> shift & 63];
    }
    out->text[BLOCK_ID - 1] = '\0';
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

static tsr_status send(tsr_service *service, const tsr_upload *upload, unsigned number, const tsr_upload_bytes *bytes,
                       tsr_part_tag *tag, tsr_error *err)
{
    block_id(number, bytes, tag);
    const tsr_parameter parameters[] = {{"blockid", tsr_str_from(tag->text)}, {"comp", TSR_STR("block")}};
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .parameters = parameters,
                                 .parameter_count = 2,
                                 .body = bytes->data,
                                 .body_size = bytes->size};
    return ask(service, &request, err);
}

static tsr_status put_blocks(tsr_arena *arena, const tsr_part_tag *tags, unsigned count, tsr_str *out, tsr_error *err)
{
    static const char head[] = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>", tail[] = "</BlockList>";
    const size_t room = sizeof head + sizeof tail + count * (sizeof "<Latest></Latest>" + BLOCK_ID);
    char *text = tsr_arena_array(arena, room, 1, err);
    if (!text) return TSR_E_NOMEM;
    size_t n = (size_t)snprintf(text, room, "%s", head);
    for (unsigned i = 0; i < count; i++) n += (size_t)snprintf(text + n, room - n, "<Latest>%s</Latest>", tags[i].text);
    n += (size_t)snprintf(text + n, room - n, "%s", tail);
    *out = (tsr_str){text, n};
    return TSR_OK;
}

static tsr_status complete(tsr_service *service, const tsr_upload *upload, const tsr_part_tag *tags, unsigned count,
                           tsr_error *err)
{
    static const tsr_parameter list = {"comp", {"blocklist", 9}};
    tsr_str body = {NULL, 0};
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = put_blocks(arena, tags, count, &body, err);
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

/* ---- resuming ---- */

/* Lists the blocks that were sent; none if there is neither an object nor a block. */
static tsr_status list_parts(tsr_service *service, const tsr_upload *upload, tsr_object_list *out, tsr_error *err)
{
    static const tsr_parameter parameters[] = {{"blocklisttype", {"uncommitted", 11}}, {"comp", {"blocklist", 9}}};
    const tsr_request request = {.key = upload->key, .parameters = parameters, .parameter_count = 2};
    tsr_exchange x;
    tsr_str page, next;
    tsr_error why = {0};
    tsr_status status = tsr_exchange_text(service, request, MOST_PAGE, &x, &page, &why);
    if (status == TSR_OK) status = tsr_listing_read(&tsr_listing_of_blocks, page, out, &next, &why);
    tsr_exchange_end(&x);
    if (status == TSR_OK || status == TSR_E_NOT_FOUND) return TSR_OK;
    return tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
}

static bool is_same_part(const tsr_object *part, const tsr_upload_bytes *bytes, tsr_part_tag *tag)
{
    (void)bytes; /* the name contains their checksum */
    snprintf(tag->text, sizeof tag->text, "%.*s", TSR_STR_ARG(part->key));
    return true;
}

static const tsr_resuming resuming = {NULL, list_parts, block_id, is_same_part};
const tsr_uploading tsr_uploading_by_azure = {begin, send, complete, abort_upload, put, tsr_upload_remove, &resuming, false};
