/* Uploads with the protocol of S3. Source: the S3 API reference (CreateMultipartUpload, UploadPart, CompleteMultipartUpload,
 * AbortMultipartUpload, ListMultipartUploads, ListParts, PutObject, DeleteObject). */
#include "object_store/upload.h"

#include <stdio.h>

#include "io/retry.h"
#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "tessera/sys/try.h"

enum { MOST_BEGINS = 6, MOST_PAGE = 8 << 20 };

/* ---- finding unfinished uploads ---- */

static tsr_status read_page(tsr_service *service, const tsr_request *request, const tsr_listing_form *form,
                            tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    tsr_exchange x;
    tsr_str page;
    const tsr_str asked = *next;
    tsr_status status = tsr_exchange_text(service, *request, MOST_PAGE, &x, &page, err);
    if (status == TSR_OK) status = tsr_listing_read(form, page, out, next, err);
    if (status == TSR_OK && next->size && tsr_str_equal(asked, *next))
        status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%s: the server's listing does not advance", service->shown);
    tsr_exchange_end(&x);
    return status;
}

static tsr_status list_unfinished(tsr_service *service, tsr_str prefix, tsr_object_list *out, tsr_error *err)
{
    tsr_str next = {NULL, 0};
    do {
        tsr_parameter parameters[5] = {{"encoding-type", TSR_STR("url")}};
        const tsr_object *found = out->items.items;
        size_t count = 1;
        if (next.size) parameters[count++] = (tsr_parameter){"key-marker", found[out->items.count - 1].key};
        parameters[count++] = (tsr_parameter){"prefix", prefix};
        if (next.size) parameters[count++] = (tsr_parameter){"upload-id-marker", next};
        parameters[count++] = (tsr_parameter){"uploads", TSR_STR("")};
        const tsr_request request = {
            .parameters = parameters, .parameter_count = count, .on_bucket = true, .is_upload = true};
        const size_t had = out->items.count;
        TSR_TRY(read_page(service, &request, &tsr_listing_of_uploads, out, &next, err));
        TSR_FAIL_IF(next.size && out->items.count == had, err, TSR_E_FORMAT, "%s: the server's listing does not advance",
                    service->shown);
    } while (next.size);
    return TSR_OK;
}

static tsr_status list_parts(tsr_service *service, const tsr_upload *upload, tsr_object_list *out, tsr_error *err)
{
    tsr_str next = {NULL, 0};
    do {
        tsr_parameter parameters[2];
        size_t count = 0;
        if (next.size) parameters[count++] = (tsr_parameter){"part-number-marker", next};
        parameters[count++] = (tsr_parameter){"uploadId", tsr_str_from(upload->id)};
        const tsr_request request = {
            .key = upload->key, .parameters = parameters, .parameter_count = count, .is_upload = true};
        TSR_TRY(read_page(service, &request, &tsr_listing_of_parts, out, &next, err));
    } while (next.size);
    return TSR_OK;
}

static void name_part(unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *name)
{
    (void)bytes;
    snprintf(name->text, sizeof name->text, "%u", number);
}

/* The ETag of a part is its MD5, unless the bucket is encrypted with its own keys; then no part matches. */
static bool is_same_part(const tsr_object *part, const tsr_upload_bytes *bytes, tsr_part_tag *tag)
{
    char sum[TSR_MD5_DIGITS + 1];
    if (!tsr_upload_md5(bytes->data, bytes->size, sum) || !tsr_str_equal(part->version, tsr_str_from(sum))) return false;
    snprintf(tag->text, sizeof tag->text, "\"%s\"", sum);
    return true;
}

static const tsr_resuming resuming = {list_unfinished, list_parts, name_part, is_same_part};

/* ---- beginning ---- */

/* The id in <UploadId>…</UploadId>; NULL data if there is none. */
static tsr_str upload_id(tsr_str reply)
{
    static const char open[] = "<UploadId>";
    const char *at = reply.size ? memmem(reply.data, reply.size, open, sizeof open - 1) : NULL;
    const char *end = at ? memchr(at + 1, '<', reply.size - (size_t)(at + 1 - reply.data)) : NULL;
    if (!end) return (tsr_str){NULL, 0};
    at += sizeof open - 1;
    return (tsr_str){at, (size_t)(end - at)};
}

static bool has_parts(tsr_service *service, tsr_str key, tsr_str id)
{
    tsr_object_list parts = {0};
    tsr_error unused = {0};
    if (tsr_object_list_open(service->allocator, &parts, &unused) != TSR_OK) return true;
    const tsr_status status = list_parts(service, &(tsr_upload){.key = key, .id = id.data}, &parts, &unused);
    const bool has = status != TSR_OK || parts.items.count;
    tsr_object_list_close(&parts);
    return has;
}

/* After a lost reply: finds the upload that was begun, if the server lists one of this key without parts. It belongs to this
 * process, because nobody else writes to a free destination. */
static tsr_status find_begun(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    tsr_object_list found = {0};
    tsr_error unused = {0};
    TSR_TRY(tsr_object_list_open(service->allocator, &found, err));
    tsr_status status = TSR_OK;
    /* Not all servers can list uploads. */
    if (list_unfinished(service, key, &found, &unused) != TSR_OK) found.items.count = 0;
    for (size_t i = 0; i < found.items.count && status == TSR_OK && !*id; i++) {
        const tsr_object *upload = &((tsr_object *)found.items.items)[i];
        const tsr_str own = upload->version;
        if (!tsr_str_equal(upload->key, key) || has_parts(service, key, own)) continue;
        *id = tsr_arena_str(arena, own, err).data;
        if (!*id) status = TSR_E_NOMEM;
    }
    tsr_object_list_close(&found);
    return status;
}

static tsr_status begin(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    const tsr_parameter uploads = {"uploads", TSR_STR("")};
    const tsr_request request = {.method = "POST",
                                 .key = key,
                                 .parameters = &uploads,
                                 .parameter_count = 1,
                                 .content_type = TSR_OBJECT_TYPE,
                                 .is_upload = true,
                                 .once = true};
    *id = NULL;
    for (unsigned tries = 0; tries < MOST_BEGINS && !*id && !(tries && tsr_retry_is_spent()); tries++) {
        tsr_upload_reply reply;
        TSR_TRY(tsr_upload_ask(service, &request, arena, &reply, err));
        if (reply.is_lost) {
            TSR_TRY(find_begun(service, key, arena, id, err));
            continue;
        }
        const tsr_str own = upload_id(reply.text);
        TSR_FAIL_IF(!own.size || memchr(own.data, '&', own.size), err, TSR_E_IO,
                    "%s: the server does not state the upload that it began", tsr_shown_key_of(service, key).text);
        *id = tsr_arena_str(arena, own, err).data;
        if (!*id) return TSR_E_NOMEM;
    }
    TSR_FAIL_IF(!*id, err, TSR_E_IO, "%s: the server did not confirm that an upload began",
                tsr_shown_key_of(service, key).text);
    return TSR_OK;
}

/* ---- parts ---- */

static tsr_status send(tsr_service *service, const tsr_upload *upload, unsigned number, const tsr_upload_bytes *bytes,
                       tsr_part_tag *tag, tsr_error *err)
{
    char digits[12];
    snprintf(digits, sizeof digits, "%u", number);
    const tsr_parameter parameters[] = {{"partNumber", tsr_str_from(digits)}, {"uploadId", tsr_str_from(upload->id)}};
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .parameters = parameters,
                                 .parameter_count = 2,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .body_sum = bytes->sum,
                                 .is_upload = true};
    tsr_upload_reply reply;
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_upload_ask(service, &request, arena, &reply, err);
    tsr_arena_free(arena);
    *tag = reply.tag;
    if (status == TSR_OK && (!tag->text[0] || strpbrk(tag->text, "<>&")))
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: the server does not state the ETag of a part",
                           tsr_shown_key_of(service, upload->key).text);
    return status;
}

static tsr_status put_parts(tsr_arena *arena, const tsr_part_tag *tags, unsigned count, tsr_str *out, tsr_error *err)
{
    static const char head[] = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
                      tail[] = "</CompleteMultipartUpload>";
    const size_t room = sizeof head + sizeof tail + count * (sizeof(tsr_part_tag) + 80);
    char *text = tsr_arena_array(arena, room, 1, err);
    if (!text) return TSR_E_NOMEM;
    size_t n = (size_t)snprintf(text, room, "%s", head);
    for (unsigned i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, room - n, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1,
                              tags[i].text);
    n += (size_t)snprintf(text + n, room - n, "%s", tail);
    *out = (tsr_str){text, n};
    return TSR_OK;
}

/* Google's XML API has no preconditions for completing an upload, so all that can be done is to check before. */
static tsr_status look_first(tsr_service *service, const tsr_upload *upload, tsr_error *err)
{
    bool there;
    if (!upload->if_absent || !service->completes_unconditionally) return TSR_OK;
    TSR_TRY(tsr_upload_exists(service, upload->key, &there, err));
    TSR_FAIL_IF(there, err, TSR_E_EXISTS, "'%s' exists; --overwrite replaces it",
                tsr_shown_key_of(service, upload->key).text);
    return TSR_OK;
}

static tsr_status complete(tsr_service *service, const tsr_upload *upload, const tsr_part_tag *tags, unsigned count,
                           tsr_error *err)
{
    const tsr_parameter id = {"uploadId", tsr_str_from(upload->id)};
    char sum[TSR_SUM_DIGITS + 1];
    tsr_str body;
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = look_first(service, upload, err);
    if (status == TSR_OK) status = put_parts(arena, tags, count, &body, err);
    if (status == TSR_OK) {
        tsr_upload_sum(body.data, body.size, sum);
        const tsr_request request = {.method = "POST",
                                     .key = upload->key,
                                     .parameters = &id,
                                     .parameter_count = 1,
                                     .body = body.data,
                                     .body_size = body.size,
                                     .body_sum = sum,
                                     .content_type = "application/xml",
                                     .if_absent = upload->if_absent && !service->completes_unconditionally,
                                     .is_upload = true,
                                     .once = true};
        status = tsr_upload_make(service, upload, &request, NULL, err);
    }
    tsr_arena_free(arena);
    return status;
}

/* ---- other requests ---- */

static tsr_status abort_upload(tsr_service *service, const tsr_upload *upload, tsr_error *err)
{
    const tsr_parameter id = {"uploadId", tsr_str_from(upload->id)};
    const tsr_request request = {
        .method = "DELETE", .key = upload->key, .parameters = &id, .parameter_count = 1, .is_upload = true};
    return tsr_upload_give_up(service, &request, (const long[]){404, 405}, err);
}

static tsr_status put(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, tsr_error *err)
{
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .body_sum = bytes->sum,
                                 .content_type = TSR_OBJECT_TYPE,
                                 .if_absent = upload->if_absent,
                                 .is_upload = true,
                                 .once = upload->if_absent};
    return tsr_upload_make(service, upload, &request, bytes, err);
}

const tsr_uploading tsr_uploading_by_s3 = {begin, send, complete, abort_upload, put, tsr_upload_remove, &resuming, false};
