/* See object_listing.h. Sources: the S3 API reference (ListObjectsV2, ListMultipartUploads, ListParts), Azure's "List Blobs" and "Get Block List". */
#include "object_store/object_listing.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "io/transport.h"
#include "object_store/service.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- lists of objects ---- */

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
    if (tsr_str_starts(etag, TSR_STR("W/"))) etag = tsr_str_after(etag, 2);
    if (etag.size >= 2 && etag.data[0] == '"' && etag.data[etag.size - 1] == '"')
        etag = (tsr_str){etag.data + 1, etag.size - 2};
    return etag;
}

/* ---- pages of XML ---- */

const tsr_listing_form tsr_listing_of_s3 = {
    "ListBucketResult", "Contents",         "Key", "Size", "ETag", "NextContinuationToken", NULL,
    "LastModified",     "ChecksumAlgorithm"};
const tsr_listing_form tsr_listing_of_azure = {
    "EnumerationResults", "Blob", "Name", "Content-Length", "Etag", "NextMarker", NULL, "Last-Modified", NULL};
const tsr_listing_form tsr_listing_of_uploads = {"ListMultipartUploadsResult", "Upload",      "Key", NULL, "UploadId",
                                                 "NextUploadIdMarker",         "IsTruncated", NULL,  NULL};
const tsr_listing_form tsr_listing_of_parts = {"ListParts",   "Part", "PartNumber",   "Size", "ETag", "NextPartNumberMarker",
                                               "IsTruncated", NULL,   "ChecksumCRC32"};
const tsr_listing_form tsr_listing_of_blocks = {"BlockList", "Block", "Name", "Size", "", "", NULL, NULL, NULL};

#if defined(TSR_HAVE_EXPAT)
#include <expat.h>

enum { MOST_TEXT = 8 << 10, MOST_DEPTH = 32 };

typedef struct reading {
    const tsr_listing_form *form;
    XML_Parser parser;
    tsr_object_list *out;
    tsr_str *next;
    tsr_error *err;
    tsr_status status;
    tsr_object object; /* the item that is being read */
    bool in_item, is_encoded, is_error, is_cut, has_key, has_size;
    unsigned depth;
    char text[MOST_TEXT]; /* text of the element that is being read */
    size_t size;
} reading;

static void stop(reading *r, tsr_status status)
{
    if (r->status == TSR_OK) r->status = status;
    XML_StopParser(r->parser, XML_FALSE);
}

static tsr_str keep(reading *r, tsr_str text)
{
    const tsr_str kept = tsr_arena_str(r->out->arena, text, r->err);
    if (!kept.data) stop(r, TSR_E_NOMEM);
    return kept;
}

static void XMLCALL begin_element(void *ctx, const XML_Char *name, const XML_Char **attributes)
{
    reading *r = ctx;
    (void)attributes;
    r->size = 0;
    if (r->depth++ == 0) {
        r->is_error = strcmp(name, "Error") == 0;
        if (!r->is_error && strncmp(name, r->form->root, strlen(r->form->root)) != 0)
            stop(r, tsr_fail(r->err, TSR_E_FORMAT, "the server gave <%s> where a listing (<%s>) was expected", name,
                             r->form->root));
    } else if (r->depth > MOST_DEPTH) {
        stop(r, tsr_fail(r->err, TSR_E_FORMAT, "the server's listing is nested more than %d deep", MOST_DEPTH));
    } else if (strcmp(name, r->form->item) == 0) {
        r->in_item = true;
        r->has_key = r->has_size = false;
        r->object = (tsr_object){0};
    }
}

static void XMLCALL take_text(void *ctx, const XML_Char *text, int size)
{
    reading *r = ctx;
    if ((size_t)size > MOST_TEXT - r->size) {
        stop(r, tsr_fail(r->err, TSR_E_FORMAT, "an element of the server's listing is longer than %d bytes", MOST_TEXT));
        return;
    }
    memcpy(r->text + r->size, text, (size_t)size);
    r->size += (size_t)size;
}

static void take_size(reading *r, tsr_str text)
{
    uint64_t size = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (!tsr_is_digit(text.data[i]) || size > (UINT64_MAX >> 1) / 10) {
            stop(r, tsr_fail(r->err, TSR_E_FORMAT, "the server's listing states '%.*s' as a size", TSR_STR_ARG(text)));
            return;
        }
        size = size * 10 + (uint64_t)(text.data[i] - '0');
    }
    r->object.size = size;
    r->has_size = text.size > 0;
}

/* Decodes what S3 calls encoding-type=url: "%2B" is '+', and '+' is a space. */
static tsr_str decode(tsr_arena *arena, tsr_str text, tsr_error *err)
{
    char *out = tsr_arena_array(arena, text.size + 1, 1, err);
    return (tsr_str){out, out ? tsr_uri_decode(text, true, out) : 0};
}

static void end_item(reading *r)
{
    r->in_item = false;
    if (!r->has_key || (r->form->size && !r->has_size)) {
        stop(r, tsr_fail(r->err, TSR_E_FORMAT, "the server lists an object without a name or a size"));
        return;
    }
    if (r->is_encoded) r->object.key = decode(r->out->arena, r->object.key, r->err);
    const tsr_status status = tsr_object_list_add(r->out, r->object, r->err);
    if (status != TSR_OK) stop(r, status);
}

static void XMLCALL end_element(void *ctx, const XML_Char *name)
{
    reading *r = ctx;
    const tsr_str text = {r->text, r->size};
    r->depth--;
    if (r->is_error && strcmp(name, "Code") == 0) {
        stop(r, tsr_fail(r->err, TSR_E_IO, "the server answered with the error %.*s", TSR_STR_ARG(text)));
    } else if (r->in_item && strcmp(name, r->form->key) == 0) {
        r->object.key = keep(r, text);
        r->has_key = true;
    } else if (r->in_item && r->form->size && strcmp(name, r->form->size) == 0) {
        take_size(r, text);
    } else if (r->in_item && strcmp(name, r->form->version) == 0) {
        r->object.version = keep(r, tsr_version_text(text));
    } else if (r->in_item && r->form->modified && strcmp(name, r->form->modified) == 0) {
        r->object.modified = tsr_listed_time(text);
    } else if (r->in_item && r->form->checksum && strcmp(name, r->form->checksum) == 0) {
        r->object.checksum = keep(r, text);
    } else if (strcmp(name, r->form->item) == 0) {
        end_item(r);
    } else if (!r->in_item && strcmp(name, r->form->next) == 0) {
        *r->next = keep(r, text);
    } else if (!r->in_item && r->form->cut && strcmp(name, r->form->cut) == 0) {
        r->is_cut = tsr_str_equal(text, TSR_STR("true"));
    } else if (!r->in_item && strcmp(name, "EncodingType") == 0) {
        r->is_encoded = tsr_str_equal(text, TSR_STR("url"));
    }
    r->size = 0;
}

/* No genuine listing has a document type declaration. It could declare entities that expand to huge texts. */
static void XMLCALL refuse_doctype(void *ctx, const XML_Char *name, const XML_Char *system_id, const XML_Char *public_id,
                                   int has_subset)
{
    (void)name, (void)system_id, (void)public_id, (void)has_subset;
    stop(ctx, tsr_raise(((reading *)ctx)->err, TSR_E_FORMAT, TSR_NO_POSITION,
                        "the server's listing has a document type declaration"));
}

tsr_status tsr_listing_read(const tsr_listing_form *form, tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    reading r = {.form = form, .out = out, .next = next, .err = err};
    *next = (tsr_str){NULL, 0};
    /* <EncodingType> may follow the objects that it applies to, so it is searched for first. */
    r.is_encoded = page.size && memmem(page.data, page.size, "<EncodingType>url</EncodingType>", 32);
    r.parser = XML_ParserCreate(NULL);
    if (!r.parser) return tsr_fail(err, TSR_E_NOMEM, "no memory for a listing");
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, begin_element, end_element);
    XML_SetCharacterDataHandler(r.parser, take_text);
    XML_SetStartDoctypeDeclHandler(r.parser, refuse_doctype);
    const bool good = page.size <= INT32_MAX && XML_Parse(r.parser, page.data, (int)page.size, XML_TRUE) == XML_STATUS_OK;
    if (!good && r.status == TSR_OK)
        r.status = tsr_raise(err, TSR_E_FORMAT, (uint64_t)XML_GetCurrentByteIndex(r.parser),
                             "the server's listing is not XML: %s", XML_ErrorString(XML_GetErrorCode(r.parser)));
    if (r.status == TSR_OK && r.is_error) r.status = tsr_fail(err, TSR_E_IO, "the server answered with an error");
    if (form->cut && !r.is_cut) *next = (tsr_str){NULL, 0};
    XML_ParserFree(r.parser);
    return r.status;
}
#else
tsr_status tsr_listing_read(const tsr_listing_form *form, tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    (void)form, (void)page, (void)out, (void)next;
    return tsr_fail(err, TSR_E_NOT_BUILT,
                    "this build cannot list object stores: it was built without expat (Debian: libexpat1-dev)");
}
#endif

/* ---- JSON of Google ---- */

/* Source: the reference of Cloud Storage's JSON API (Objects: list, Objects: get). */

enum { MOST_DIGITS = 19 };

static tsr_status add_object(const cJSON *item, tsr_object_list *out, tsr_error *err)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name"),
                *size = cJSON_GetObjectItemCaseSensitive(item, "size"),
                *generation = cJSON_GetObjectItemCaseSensitive(item, "generation"),
                *updated = cJSON_GetObjectItemCaseSensitive(item, "updated");
    const char *digits = cJSON_IsString(size) ? size->valuestring : "";
    uint64_t bytes = 0;
    TSR_FAIL_IF(!cJSON_IsString(name) || !*digits || strlen(digits) > MOST_DIGITS ||
                    strspn(digits, "0123456789") != strlen(digits),
                err, TSR_E_FORMAT, "the server lists an object without a name or a size");
    for (; *digits; digits++) bytes = bytes * 10 + (uint64_t)(*digits - '0');
    const tsr_object object = {
        tsr_arena_str(out->arena, tsr_str_from(name->valuestring), err),
        bytes,
        tsr_arena_str(out->arena, tsr_str_from(cJSON_IsString(generation) ? generation->valuestring : ""), err),
        cJSON_IsString(updated) ? tsr_listed_time(tsr_str_from(updated->valuestring)) : 0,
        {NULL, 0}};
    return object.key.data && object.version.data ? tsr_object_list_add(out, object, err) : TSR_E_NOMEM;
}

tsr_status tsr_listing_read_google(tsr_str page, tsr_object_list *out, tsr_str *next, tsr_error *err)
{
    cJSON *root = cJSON_ParseWithLength(page.data, page.size);
    const cJSON *item, *token = cJSON_GetObjectItemCaseSensitive(root, "nextPageToken");
    tsr_status status =
        cJSON_IsObject(root) ? TSR_OK : tsr_fail(err, TSR_E_FORMAT, "the server's listing is not a JSON object");
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
