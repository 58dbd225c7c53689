/* See azure.h. Source: the reference of Azure's Blob service (List Blobs, Get Blob), and of its connection strings. */
#include "object_store/azure.h"

#include "object_store/encoding.h"
#include "object_store/endpoint.h"
#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "object_store/setting.h"
#include "object_store/upload.h"
#include "tessera/sys/try.h"

enum { MOST_PAGE = 16 << 20 };

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
    tsr_exchange x;
    tsr_str page;
    if (!flat) parameters[count++] = (tsr_parameter){"delimiter", TSR_STR("/")};
    if (next->size) parameters[count++] = (tsr_parameter){"marker", *next};
    parameters[count++] = (tsr_parameter){"prefix", prefix};
    parameters[count++] = (tsr_parameter){"restype", TSR_STR("container")};
    const tsr_request request = {.parameters = parameters, .parameter_count = count, .on_bucket = true};
    tsr_status status = tsr_exchange_text(base, request, MOST_PAGE, &x, &page, err);
    if (status == TSR_OK) status = tsr_listing_read(&tsr_listing_of_azure, page, out, next, err);
    tsr_exchange_end(&x);
    return status;
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
    if (signature.size && signature.data[0] == '?') signature = (tsr_str){signature.data + 1, signature.size - 1};
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
    return configure((azure *)*out, location, err);
}
