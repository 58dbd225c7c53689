/* See service.h. Source: the reference of Azure's Blob service (List Blobs, Get Blob), and of its connection strings. */
#include "object_store/service.h"

#include <stdio.h>

#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "object_store/upload.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

enum { MOST_SUMMED = 4 << 20 };

typedef struct azure {
    tsr_service base; /* must be first */
    tsr_str container;
    const char *endpoint;  /* "https://account.blob.core.windows.net" */
    const char *signature; /* shared access signature "sv=…&sig=…"; may be empty */
} azure;

static tsr_status prepare(tsr_service *base, tsr_exchange *x, tsr_error *err)
{
    const azure *service = (azure *)base;
    const tsr_request *r = x->request;
    const tsr_str key = tsr_url_encode(x->arena, r->on_bucket ? TSR_STR("") : r->key, true, err);
    const tsr_str query = tsr_url_query(x->arena, r->parameters, r->parameter_count, err);
    if (!key.data || !query.data) return TSR_E_NOMEM;
    x->transfer.url =
        tsr_arena_format(x->arena, err, "%s/%.*s%s%.*s%.*s%s%s", service->endpoint, TSR_STR_ARG(service->container),
                         key.size ? "/" : "", TSR_STR_ARG(key), TSR_STR_ARG(query),
                         *service->signature ? query.size ? "&" : "?" : "", service->signature)
            .data;
    if (!x->transfer.url) return TSR_E_NOMEM;
    if (r->if_absent) TSR_TRY(tsr_exchange_header(x, "If-None-Match", "*", err));
    const bool is_whole = r->method && strcmp(r->method, "PUT") == 0 && !r->parameter_count;
    if (is_whole) TSR_TRY(tsr_exchange_header(x, "x-ms-blob-type", "BlockBlob", err));
    return tsr_exchange_header(x, "x-ms-version", "2021-08-06", err);
}

static tsr_status list_page(tsr_service *base, tsr_str prefix, bool flat, tsr_object_list *out, tsr_str *next,
                            tsr_error *err)
{
    tsr_parameter parameters[6] = {{"comp", TSR_STR("list")}};
    size_t count = 1;
    if (!flat) parameters[count++] = (tsr_parameter){"delimiter", TSR_STR("/")};
    if (next->size) parameters[count++] = (tsr_parameter){"marker", *next};
    parameters[count++] = (tsr_parameter){"prefix", prefix};
    parameters[count++] = (tsr_parameter){"restype", TSR_STR("container")};
    return tsr_service_list_page(base, parameters, count, &tsr_listing_of_azure, out, next, err);
}

/* ---- opening ---- */

/* The value of "Name=value;" in a connection string; NULL data: there is none. */
static tsr_str connection_value(const char *text, const char *name)
{
    const size_t n = strlen(name);
    while (text && *text) {
        const size_t size = strcspn(text, ";");
        if (size > n && strncmp(text, name, n) == 0 && text[n] == '=') return (tsr_str){text + n + 1, size - n - 1};
        text += size + (text[size] == ';');
    }
    return (tsr_str){NULL, 0};
}

static tsr_str either(tsr_str first, const char *second)
{
    return first.data ? first : tsr_str_from(second);
}

static tsr_status find_endpoint(azure *service, const tsr_location *location, tsr_error *err)
{
    const char *text = tsr_setting("AZURE_STORAGE_CONNECTION_STRING");
    const tsr_str account = either(connection_value(text, "AccountName"), tsr_setting("AZURE_STORAGE_ACCOUNT"));
    const tsr_str protocol = either(connection_value(text, "DefaultEndpointsProtocol"), "https");
    const tsr_str suffix = either(connection_value(text, "EndpointSuffix"), "core.windows.net");
    tsr_str endpoint = either(connection_value(text, "BlobEndpoint"), tsr_setting("AZURE_STORAGE_SERVICE_ENDPOINT"));
    TSR_FAIL_IF(account.size && !tsr_str_equal(account, location->account), err, TSR_E_USAGE,
                "the credentials are for the account '%.*s', and the URL names the account '%.*s'", TSR_STR_ARG(account),
                TSR_STR_ARG(location->account));
    if (!endpoint.size)
        endpoint = tsr_arena_format(service->base.arena, err, "%.*s://%.*s.blob.%.*s", TSR_STR_ARG(protocol),
                                    TSR_STR_ARG(location->account), TSR_STR_ARG(suffix));
    return endpoint.data ? tsr_endpoint_of(service->base.arena, endpoint, "the endpoint of Azure", &service->endpoint, err)
                         : TSR_E_NOMEM;
}

static tsr_status find_signature(azure *service, tsr_error *err)
{
    const char *text = tsr_setting("AZURE_STORAGE_CONNECTION_STRING");
    tsr_str signature = either(connection_value(text, "SharedAccessSignature"), tsr_setting("AZURE_STORAGE_SAS_TOKEN"));
    const char *const keys[] = {"AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"};
    const bool has_key = connection_value(text, "AccountKey").data || connection_value(text, "UseDevelopmentStorage").data;
    TSR_FAIL_IF(
        !signature.size && has_key, err, TSR_E_UNSUPPORTED,
        "AZURE_STORAGE_CONNECTION_STRING has an account key (AccountKey), which is not supported; use a shared access signature");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !signature.size; i++)
        TSR_FAIL_IF(
            tsr_setting(keys[i]), err, TSR_E_UNSUPPORTED,
            "%s is set, but account keys are not supported; set AZURE_STORAGE_SAS_TOKEN to a shared access signature",
            keys[i]);
    if (signature.size && signature.data[0] == '?') signature = tsr_str_after(signature, 1);
    service->signature = tsr_arena_str(service->base.arena, signature, err).data;
    service->base.credentials_hint = signature.size ? "; the shared access signature does not allow this, or has expired"
                                                    : "; no credentials were found: set AZURE_STORAGE_SAS_TOKEN";
    return service->signature ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status configure(azure *service, const tsr_location *location, tsr_error *err)
{
    service->container = tsr_arena_str(service->base.arena, location->bucket, err);
    service->base.shown = tsr_arena_format(service->base.arena, err, "az://%.*s/%.*s", TSR_STR_ARG(location->account),
                                           TSR_STR_ARG(location->bucket))
                              .data;
    if (!service->container.data || !service->base.shown) return TSR_E_NOMEM;
    TSR_TRY(find_endpoint(service, location, err));
    return find_signature(service, err);
}

tsr_status tsr_azure_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                          tsr_service **out, tsr_error *err)
{
    const tsr_service kind = {.allocator = allocator,
                              .size = sizeof(azure),
                              .states_versions = true,
                              .prepare = prepare,
                              .list_page = list_page,
                              .stat = tsr_service_stat_by_range,
                              .status_exists = 409, /* BlobAlreadyExists */
                              .uploading = &tsr_uploading_by_azure};
    TSR_TRY(tsr_service_new(transport, &kind, out, err));
    (*out)->checksum_header = "Content-MD5";
    (*out)->checksum_prefix = "";
    (*out)->checksum = TSR_CHECKSUM_MD5;
    (*out)->compares_checksums = true;
    (*out)->checksum_request = (tsr_header){"x-ms-range-get-content-md5", "true"};
    (*out)->most_checked = MOST_SUMMED;
    return configure((azure *)*out, location, err);
}

/* ---- azure upload ---- */

/* Uploads to Azure. Source: the reference of Azure's Blob service (Put Block, Put Block List, Get Block List, Put Blob,
 * Delete Blob). A block is not visible until a block list makes it part of an object. Nobody can remove it before; the
 * service does so after a week, or when the object is made from other blocks. The name of a block contains a checksum of its
 * bytes, so an interrupted run can be continued. */

enum { BLOCK_NAME = 24, BLOCK_ID = 4 * BLOCK_NAME / 3 + 1, NUMBER_BYTES = 4, UPLOAD_MOST_PAGE = 8 << 20 };

static tsr_status begin(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    (void)service, (void)key, (void)arena, (void)err;
    *id = "";
    return TSR_OK;
}

/* The name of a block: Base64 of the part's number and of 160 bits of its SHA-256. All block names of an object must have
 * the same length. Another run that writes the same object uses other names, unless the bytes are the same. */
static void block_id(unsigned number, const tsr_upload_bytes *bytes, tsr_part_tag *out)
{
    unsigned char name[BLOCK_NAME];
    for (size_t i = 0; i < NUMBER_BYTES; i++) name[i] = (unsigned char)(number >> (24 - 8 * i));
    for (size_t i = NUMBER_BYTES; i < BLOCK_NAME; i++) {
        const char *two = bytes->sum + 2 * (i - NUMBER_BYTES);
        name[i] = (unsigned char)(tsr_hex_digit(two[0]) << 4 | tsr_hex_digit(two[1]));
    }
    tsr_base64(name, sizeof name, out->text);
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
    char checksum[TSR_CHECKSUM_VALUE];
    block_id(number, bytes, tag);
    const tsr_parameter parameters[] = {{"blockid", tsr_str_from(tag->text)}, {"comp", TSR_STR("block")}};
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .parameters = parameters,
                                 .parameter_count = 2,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .checksums = {tsr_upload_checksum(service, bytes->data, bytes->size, checksum)}};
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
    char checksum[TSR_CHECKSUM_VALUE];
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .checksums = {tsr_upload_checksum(service, bytes->data, bytes->size, checksum)},
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
    tsr_status status = tsr_exchange_text(service, request, UPLOAD_MOST_PAGE, &x, &page, &why);
    if (status == TSR_OK) status = tsr_listing_read(&tsr_listing_of_blocks, page, out, &next, &why);
    tsr_exchange_end(&x);
    if (status == TSR_OK || status == TSR_E_NOT_FOUND) return TSR_OK;
    return tsr_raise_again(err, status, &why);
}

static bool is_same_part(const tsr_object *part, const tsr_upload_bytes *bytes, tsr_part_tag *tag)
{
    (void)bytes; /* the name contains their checksum */
    snprintf(tag->text, sizeof tag->text, "%.*s", TSR_STR_ARG(part->key));
    return true;
}

static const tsr_resuming resuming = {NULL, list_parts, block_id, is_same_part};
const tsr_uploading tsr_uploading_by_azure = {begin, send, complete, abort_upload, put, tsr_upload_remove, &resuming, false};
