/* See s3.h. Source: the S3 API reference; AWS's documentation of Signature Version 4. */
#include "object_store/s3.h"

#include <pthread.h>
#include <time.h>

#include "object_store/encoding.h"
#include "object_store/endpoint.h"
#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "object_store/setting.h"
#include "object_store/upload.h"
#include "tessera/sys/try.h"

enum { MOST_PAGE = 8 << 20, RENEW_SECONDS = 300, RENEW_PAUSE = 30 };
/* SHA-256 of an empty body */
static const char no_content[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

typedef struct s3 {
    tsr_service base; /* must be first */
    tsr_str bucket;
    const char *endpoint;                     /* NULL: AWS's own servers */
    const char *absent_header, *absent_value; /* header that makes a request fail if the object exists */
    tsr_aws_profile profile;
    pthread_mutex_t lock; /* protects the following fields */
    tsr_arena *secrets;
    tsr_credentials credentials;
    int64_t renewed; /* time of the last request for credentials */
    char region[32];
} s3;

/* ---- requests ---- */

/* Renews credentials that expire soon. A metadata service provides new ones some minutes before the old ones expire. */
static tsr_status renew(s3 *service, tsr_error *err)
{
    const int64_t now = (int64_t)time(NULL);
    const tsr_credentials *had = &service->credentials;
    tsr_credentials found;
    if (!had->expires || had->expires - now > RENEW_SECONDS || now - service->renewed < RENEW_PAUSE) return TSR_OK;
    tsr_arena *arena = tsr_arena_new(service->base.allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    service->renewed = now;
    const tsr_status status = tsr_credentials_find(service->base.transport, &service->profile, arena, &found, err);
    if (status != TSR_OK || !found.id) {
        tsr_arena_free(arena);
        return status;
    }
    tsr_arena_free(service->secrets);
    service->secrets = arena;
    service->credentials = found;
    return TSR_OK;
}

static tsr_status sign(s3 *service, tsr_exchange *x, tsr_error *err)
{
    if (x->request->if_absent) TSR_TRY(tsr_exchange_header(x, service->absent_header, service->absent_value, err));
    TSR_TRY(renew(service, err));
    const tsr_credentials *c = &service->credentials;
    if (!c->id) return TSR_OK;
    tsr_http_transfer *t = &x->transfer;
    t->signing = tsr_arena_format(x->arena, err, "aws:amz:%s:s3", service->region).data;
    t->user = tsr_arena_str(x->arena, tsr_str_from(c->id), err).data;
    t->password = tsr_arena_str(x->arena, tsr_str_from(c->secret), err).data;
    if (!t->signing || !t->user || !t->password) return TSR_E_NOMEM;
    TSR_TRY(tsr_exchange_header(x, "x-amz-content-sha256", x->request->body_sum ? x->request->body_sum : no_content, err));
    return c->token ? tsr_exchange_header(x, "x-amz-security-token", c->token, err) : TSR_OK;
}

/* The URL of a bucket. Its name is part of the host name, except at other endpoints, or if it contains dots, which would not
 * match the server's certificate. */
static tsr_str address(const s3 *service, tsr_arena *arena, tsr_error *err)
{
    const char *china = strncmp(service->region, "cn-", 3) == 0 ? ".cn" : "";
    if (service->endpoint) return tsr_arena_format(arena, err, "%s/%.*s", service->endpoint, TSR_STR_ARG(service->bucket));
    if (memchr(service->bucket.data, '.', service->bucket.size))
        return tsr_arena_format(arena, err, "https://s3.%s.amazonaws.com%s/%.*s", service->region, china,
                                TSR_STR_ARG(service->bucket));
    return tsr_arena_format(arena, err, "https://%.*s.s3.%s.amazonaws.com%s", TSR_STR_ARG(service->bucket), service->region,
                            china);
}

static tsr_status prepare(tsr_service *base, tsr_exchange *x, tsr_error *err)
{
    s3 *service = (s3 *)base;
    const tsr_request *r = x->request;
    const tsr_str key = tsr_url_encode(x->arena, r->on_bucket ? TSR_STR("") : r->key, true, err);
    const tsr_str query = tsr_url_query(x->arena, r->parameters, r->parameter_count, err);
    pthread_mutex_lock(&service->lock);
    const tsr_str host = address(service, x->arena, err);
    tsr_status status = key.data && query.data && host.data ? sign(service, x, err) : TSR_E_NOMEM;
    pthread_mutex_unlock(&service->lock);
    if (status != TSR_OK) return status;
    const bool bare = !key.size && service->endpoint;
    const tsr_str url = tsr_arena_format(x->arena, err, "%.*s%s%.*s%.*s", TSR_STR_ARG(host), bare ? "" : "/",
                                         TSR_STR_ARG(key), TSR_STR_ARG(query));
    x->transfer.url = url.data;
    return url.data ? TSR_OK : TSR_E_NOMEM;
}

static bool relocate(tsr_service *base, const char *region)
{
    s3 *service = (s3 *)base;
    pthread_mutex_lock(&service->lock);
    const bool fits = strlen(region) < sizeof service->region;
    if (fits) memcpy(service->region, region, strlen(region) + 1);
    pthread_mutex_unlock(&service->lock);
    return fits; /* also if this is the region already: another request may have set it after this one was signed */
}

/* ---- listing ---- */

static tsr_status list_page(tsr_service *base, tsr_str prefix, bool flat, tsr_object_list *out, tsr_str *next,
                            tsr_error *err)
{
    tsr_parameter parameters[6];
    size_t count = 0;
    tsr_exchange x;
    tsr_str page;
    if (next->size) parameters[count++] = (tsr_parameter){"continuation-token", *next};
    if (!flat) parameters[count++] = (tsr_parameter){"delimiter", TSR_STR("/")};
    parameters[count++] = (tsr_parameter){"encoding-type", TSR_STR("url")};
    parameters[count++] = (tsr_parameter){"list-type", TSR_STR("2")};
    parameters[count++] = (tsr_parameter){"prefix", prefix};
    const tsr_request request = {.parameters = parameters, .parameter_count = count, .on_bucket = true};
    tsr_status status = tsr_exchange_text(base, request, MOST_PAGE, &x, &page, err);
    if (status == TSR_OK) {
        status = tsr_listing_read(&tsr_listing_of_s3, page, out, next, err);
        if (status != TSR_OK) tsr_error_context(err, "%s", base->shown);
    }
    tsr_exchange_end(&x);
    return status;
}

/* ---- opening ---- */

static void release(tsr_service *base)
{
    s3 *service = (s3 *)base;
    pthread_mutex_destroy(&service->lock);
    tsr_arena_free(service->secrets);
}

/* A setting from the environment, otherwise from the profile, in `arena`; NULL: not set. */
static const char *setting(s3 *service, const char *first, const char *second, const char *of_profile)
{
    const char *given = tsr_setting(first) ? tsr_setting(first) : tsr_setting(second);
    const tsr_str profile = given ? tsr_str_from(given) : tsr_aws_profile_get(&service->profile, of_profile);
    return profile.data ? tsr_arena_str(service->base.arena, profile, NULL).data : NULL;
}

static tsr_status configure(s3 *service, tsr_error *err)
{
    TSR_TRY(tsr_aws_profile_read(service->base.arena, &service->profile, err));
    const char *region = setting(service, "AWS_REGION", "AWS_DEFAULT_REGION", "region");
    service->endpoint = setting(service, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "endpoint_url");
    if (service->endpoint)
        TSR_TRY(tsr_endpoint_of(service->base.arena, tsr_str_from(service->endpoint), "the endpoint of S3",
                                &service->endpoint, err));
    if (!region) region = "us-east-1";
    TSR_FAIL_IF(strlen(region) >= sizeof service->region ||
                    strspn(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != strlen(region),
                err, TSR_E_USAGE, "'%s' is not the name of a region", region);
    memcpy(service->region, region, strlen(region) + 1);
    service->base.credentials_hint = "; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
    service->renewed = (int64_t)time(NULL);
    TSR_TRY(tsr_credentials_find(service->base.transport, &service->profile, service->secrets, &service->credentials, err));
    if (!service->credentials.id)
        service->base.credentials_hint =
            "; no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
    return TSR_OK;
}

static tsr_status configure_elsewhere(s3 *service, const tsr_s3_elsewhere *from, tsr_error *err)
{
    service->base.shown = tsr_arena_str(service->base.arena, tsr_str_from(from->shown), err).data;
    service->endpoint = tsr_arena_str(service->base.arena, tsr_str_from(from->endpoint), err).data;
    service->credentials = from->credentials;
    memcpy(service->region, from->region, strlen(from->region) + 1);
    service->base.relocate = NULL;
    service->base.completes_unconditionally = true;
    service->absent_header = from->absent_header;
    service->absent_value = from->absent_value;
    return service->base.shown && service->endpoint ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_s3_open(const tsr_allocator *allocator, const tsr_location *location, const tsr_s3_elsewhere *elsewhere,
                       tsr_transport *transport, tsr_service **out, tsr_error *err)
{
    const tsr_service kind = {.allocator = allocator,
                              .size = sizeof(s3),
                              .states_versions = true,
                              .prepare = prepare,
                              .list_page = list_page,
                              .stat = tsr_service_stat_by_range,
                              .relocate = relocate,
                              .uploading = &tsr_uploading_by_s3,
                              .release = release};
    const tsr_status status = tsr_service_new(transport, &kind, out, err);
    s3 *service = (s3 *)*out;
    if (service) pthread_mutex_init(&service->lock, NULL);
    if (status != TSR_OK) return status;
    service->absent_header = "If-None-Match";
    service->absent_value = "*";
    service->secrets = tsr_arena_new(allocator, 0, err);
    service->bucket = tsr_arena_str(service->base.arena, location->bucket, err);
    service->base.shown = tsr_arena_format(service->base.arena, err, "s3://%.*s", TSR_STR_ARG(location->bucket)).data;
    if (!service->secrets || !service->bucket.data || !service->base.shown) return TSR_E_NOMEM;
    return elsewhere ? configure_elsewhere(service, elsewhere, err) : configure(service, err);
}
