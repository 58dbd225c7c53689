/* See gcs.h. Sources: the references of Cloud Storage's JSON API and, for uploads, of its XML API; Google's documentation of
 * the metadata server. */
#include "object_store/gcs.h"
#include "io/locked.h"

#include <assert.h>
#include <pthread.h>
#include <time.h>

#include "io/http_origin.h"
#include "object_store/encoding.h"
#include "object_store/endpoint.h"
#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "object_store/s3.h"
#include "object_store/setting.h"
#include "object_store/upload.h"
#include "tessera/sys/try.h"

enum { MOST_PAGE = 8 << 20, RENEW_SECONDS = 300, RENEW_PAUSE = 30 };

typedef struct gcs {
    tsr_service base; /* must be first */
    const char *endpoint;
    tsr_str bucket;       /* percent-encoded */
    pthread_mutex_t lock; /* protects the following fields */
    tsr_arena *secrets;
    const char *token;        /* NULL: there is none, so requests are anonymous */
    int64_t expires, renewed; /* seconds since 1970; `expires` 0: never */
} gcs;

/* ---- the token ---- */

/* Requests a token of the machine's service account. Outside of Google's cloud, nobody answers. */
static tsr_status ask_metadata(gcs *service, tsr_arena *arena, const char **token, int64_t *expires, tsr_error *err)
{
    static const char *const headers[] = {"Metadata-Flavor: Google", NULL};
    const char *given = tsr_setting("GCE_METADATA_HOST");
    const tsr_str url = tsr_arena_format(arena, err, "http://%s/computeMetadata/v1/instance/service-accounts/default/token",
                                         given ? given : "metadata.google.internal");
    double seconds = 0;
    tsr_str text;
    long status;
    *token = NULL;
    if (!url.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_metadata_ask(service->base.transport, &(tsr_metadata_request){NULL, url.data, headers, given ? 5 : 1}, arena,
                             &text, &status, err));
    if (status != 200) return TSR_OK;
    *token = tsr_metadata_member(text, "access_token", arena, NULL);
    tsr_metadata_member(text, "expires_in", arena, &seconds);
    *expires = (int64_t)time(NULL) + (int64_t)seconds;
    return TSR_OK;
}

/* Must be called with the lock held. */
static tsr_status renew(gcs *service, tsr_error *err)
{
    const int64_t now = (int64_t)time(NULL);
    const char *token;
    int64_t expires;
    assert(tsr_is_locked(&service->lock));
    if (!service->expires || service->expires - now > RENEW_SECONDS || now - service->renewed < RENEW_PAUSE) return TSR_OK;
    tsr_arena *arena = tsr_arena_new(service->base.allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    service->renewed = now;
    const tsr_status status = ask_metadata(service, arena, &token, &expires, err);
    if (status != TSR_OK || !token) {
        tsr_arena_free(arena);
        return status;
    }
    tsr_arena_free(service->secrets);
    service->secrets = arena;
    service->token = token;
    service->expires = expires;
    return TSR_OK;
}

static tsr_status prepare(tsr_service *base, tsr_exchange *x, tsr_error *err)
{
    gcs *service = (gcs *)base;
    const tsr_request *r = x->request;
    const tsr_str key = tsr_url_encode(x->arena, r->on_bucket ? TSR_STR("") : r->key, r->is_upload, err);
    const tsr_str query = tsr_url_query(x->arena, r->parameters, r->parameter_count, err);
    tsr_status status = TSR_OK;
    tsr_str bearer = {NULL, 0};
    if (!key.data || !query.data) return TSR_E_NOMEM;
    /* Inserted objects are named by a parameter. */
    const bool names_key = key.size && !r->is_insertion;
    const char *api = r->is_upload ? "" : r->is_insertion ? "/upload/storage/v1/b" : "/storage/v1/b";
    x->transfer.url = r->url;
    if (!r->url)
        x->transfer.url = tsr_arena_format(x->arena, err, "%s%s/%.*s%s%s%.*s%.*s", service->endpoint, api,
                                           TSR_STR_ARG(service->bucket), r->is_upload ? "" : "/o", names_key ? "/" : "",
                                           names_key ? (int)key.size : 0, key.data, TSR_STR_ARG(query))
                              .data;
    if (!x->transfer.url) return TSR_E_NOMEM;
    /* The server chooses the address of a resumable upload, which may be one that must not get the token. */
    if (r->url && !tsr_http_same_origin(service->endpoint, r->url)) return TSR_OK;
    if (r->if_absent) TSR_TRY(tsr_exchange_header(x, "x-goog-if-generation-match", "0", err));
    pthread_mutex_lock(&service->lock);
    status = renew(service, err);
    if (status == TSR_OK && service->token) bearer = tsr_arena_format(x->arena, err, "Bearer %s", service->token);
    const bool signs = service->token != NULL;
    pthread_mutex_unlock(&service->lock);
    if (status != TSR_OK || !signs) return status;
    return bearer.data ? tsr_exchange_header(x, "Authorization", bearer.data, err) : TSR_E_NOMEM;
}

/* ---- listing ---- */

static tsr_status list_page(tsr_service *base, tsr_str prefix, bool flat, tsr_object_list *out, tsr_str *next,
                            tsr_error *err)
{
    tsr_parameter parameters[5];
    size_t count = 0;
    tsr_exchange x;
    tsr_str page;
    if (!flat) parameters[count++] = (tsr_parameter){"delimiter", TSR_STR("/")};
    parameters[count++] = (tsr_parameter){"fields", TSR_STR("items(name,size,generation),nextPageToken")};
    parameters[count++] = (tsr_parameter){"maxResults", TSR_STR("1000")};
    if (next->size) parameters[count++] = (tsr_parameter){"pageToken", *next};
    parameters[count++] = (tsr_parameter){"prefix", prefix};
    const tsr_request request = {.parameters = parameters, .parameter_count = count, .on_bucket = true};
    tsr_status status = tsr_exchange_text(base, request, MOST_PAGE, &x, &page, err);
    if (status == TSR_OK) status = tsr_listing_read_google(page, out, next, err);
    tsr_exchange_end(&x);
    return status;
}

static tsr_status stat_object(tsr_service *base, tsr_str key, tsr_object_list *out, tsr_error *err)
{
    const tsr_parameter fields = {"fields", TSR_STR("name,size,generation")};
    tsr_exchange x;
    tsr_str text;
    tsr_status status = tsr_exchange_text(base, (tsr_request){.key = key, .parameters = &fields, .parameter_count = 1},
                                          MOST_PAGE, &x, &text, err);
    if (status == TSR_OK) status = tsr_listing_read_google_object(text, out, err);
    tsr_exchange_end(&x);
    return status;
}

/* Reading an object is the same request as asking for its description, with one more parameter. */
static tsr_status prepare_any(tsr_service *base, tsr_exchange *x, tsr_error *err)
{
    static const tsr_parameter media = {"alt", {"media", 5}};
    tsr_request request = *x->request;
    if (!request.is_ranged) return prepare(base, x, err);
    const tsr_request *asked = x->request;
    request.parameters = &media;
    request.parameter_count = 1;
    x->request = &request;
    const tsr_status status = prepare(base, x, err);
    x->request = asked;
    return status;
}

/* ---- writing ---- */

/* Google has both APIs, but some emulators have only the JSON API, which they show by not knowing how to list uploads. */
static tsr_status choose_uploading(tsr_service *base, tsr_error *err)
{
    static const tsr_parameter parameters[] = {
        {"encoding-type", {"url", 3}}, {"max-uploads", {"1", 1}}, {"prefix", {"", 0}}, {"uploads", {"", 0}}};
    static const char listing[] = "<ListMultipartUploadsResult";
    const tsr_request request = {.parameters = parameters, .parameter_count = 4, .on_bucket = true, .is_upload = true};
    tsr_exchange x = {0};
    tsr_str page = {NULL, 0};
    if (!tsr_setting("STORAGE_EMULATOR_HOST")) return TSR_OK;
    const tsr_status status = tsr_exchange_text(base, request, MOST_PAGE, &x, &page, err);
    const long answer = x.transfer.answer.status;
    const bool is_listed = status == TSR_OK && page.size && memmem(page.data, page.size, listing, sizeof listing - 1);
    const bool is_unknown = answer == 400 || answer == 404 || answer == 405 || answer == 501;
    if (status == TSR_OK ? !is_listed : is_unknown) base->uploading = &tsr_uploading_by_google;
    tsr_exchange_end(&x);
    if (status != TSR_OK && !is_unknown) return status;
    if (err) *err = (tsr_error){0};
    return TSR_OK;
}

/* ---- opening ---- */

static void release(tsr_service *base)
{
    gcs *service = (gcs *)base;
    pthread_mutex_destroy(&service->lock);
    tsr_arena_free(service->secrets);
}

/* The address of an emulator such as "localhost:9023", otherwise that of Google's own servers. */
static tsr_status find_endpoint(tsr_arena *arena, const char **out, tsr_error *err)
{
    const char *emulator = tsr_setting("STORAGE_EMULATOR_HOST"),
               *base = emulator ? emulator : "https://storage.googleapis.com";
    const tsr_str given = tsr_arena_format(arena, err, "%s%s", strstr(base, "://") ? "" : "http://", base);
    return given.data ? tsr_endpoint_of(arena, given, "STORAGE_EMULATOR_HOST", out, err) : TSR_E_NOMEM;
}

static const char *given_token(void)
{
    const char *token = tsr_setting("GOOGLE_OAUTH_ACCESS_TOKEN");
    return token ? token : tsr_setting("CLOUDSDK_AUTH_ACCESS_TOKEN");
}

static tsr_status configure(gcs *service, const tsr_location *location, tsr_error *err)
{
    TSR_TRY(find_endpoint(service->base.arena, &service->endpoint, err));
    service->bucket = tsr_url_encode(service->base.arena, location->bucket, false, err);
    service->base.shown = tsr_arena_format(service->base.arena, err, "gs://%.*s", TSR_STR_ARG(location->bucket)).data;
    service->token = given_token();
    if (!service->bucket.data || !service->base.shown) return TSR_E_NOMEM;
    service->base.credentials_hint = "; check the token of GOOGLE_OAUTH_ACCESS_TOKEN";
    if (service->token) return TSR_OK;
    TSR_FAIL_IF(
        tsr_setting("GOOGLE_APPLICATION_CREDENTIALS"), err, TSR_E_UNSUPPORTED,
        "GOOGLE_APPLICATION_CREDENTIALS is set, but service-account files are not supported; set GOOGLE_OAUTH_ACCESS_TOKEN to the output of "
        "`gcloud auth print-access-token`");
    service->base.credentials_hint =
        "; no credentials were found: set GOOGLE_OAUTH_ACCESS_TOKEN, or GOOGLE_HMAC_ACCESS_ID and GOOGLE_HMAC_SECRET";
    /* Emulators require no credentials. */
    if (tsr_setting("STORAGE_EMULATOR_HOST") && !tsr_setting("GCE_METADATA_HOST")) return TSR_OK;
    service->renewed = (int64_t)time(NULL);
    return ask_metadata(service, service->secrets, &service->token, &service->expires, err);
}

static tsr_status open_xml(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                           tsr_service **out, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    const tsr_credentials key = {tsr_setting("GOOGLE_HMAC_ACCESS_ID"), tsr_setting("GOOGLE_HMAC_SECRET"), NULL, 0};
    const char *endpoint = NULL, *shown = NULL;
    tsr_status status = arena ? find_endpoint(arena, &endpoint, err) : TSR_E_NOMEM;
    if (status == TSR_OK) shown = tsr_arena_format(arena, err, "gs://%.*s", TSR_STR_ARG(location->bucket)).data;
    if (status == TSR_OK && !shown) status = TSR_E_NOMEM;
    if (status == TSR_OK)
        status = tsr_s3_open(allocator, location,
                             &(tsr_s3_elsewhere){shown, endpoint, "auto", "x-goog-if-generation-match", "0", key}, transport,
                             out, err);
    tsr_arena_free(arena);
    if (status == TSR_OK && tsr_setting("STORAGE_EMULATOR_HOST"))
        (*out)->protocol_hint = "; the emulator may have only the JSON API, which does not take HMAC keys: unset "
                                "GOOGLE_HMAC_ACCESS_ID and GOOGLE_HMAC_SECRET, or set GOOGLE_OAUTH_ACCESS_TOKEN";
    return status;
}

tsr_status tsr_gcs_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                        tsr_service **out, tsr_error *err)
{
    if (!given_token() && tsr_setting("GOOGLE_HMAC_ACCESS_ID") && tsr_setting("GOOGLE_HMAC_SECRET"))
        return open_xml(allocator, location, transport, out, err);
    const tsr_service kind = {.allocator = allocator,
                              .size = sizeof(gcs),
                              .states_versions = true,
                              .versions_are_generations = true,
                              .prepare = prepare_any,
                              .list_page = list_page,
                              .stat = stat_object,
                              .completes_unconditionally = true,
                              .uploading = &tsr_uploading_by_s3,
                              .choose_uploading = choose_uploading,
                              .release = release};
    const tsr_status status = tsr_service_new(transport, &kind, out, err);
    gcs *service = (gcs *)*out;
    if (service) pthread_mutex_init(&service->lock, NULL);
    if (status != TSR_OK) return status;
    service->secrets = tsr_arena_new(allocator, 0, err);
    return service->secrets ? configure(service, location, err) : TSR_E_NOMEM;
}
