/* See service.h. Source: the S3 API reference; AWS's documentation of Signature Version 4. */
#include "object_store/service.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "io/transport.h"
#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "object_store/upload.h"
#include "tessera/sys/try.h"

/* ---- the profile of AWS's tools ---- */

/* Its lines are in ~/.aws/credentials and ~/.aws/config, or in the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name
 * (source: AWS's documentation of the configuration and credential files). */

typedef struct aws_profile {
    const char *name; /* AWS_PROFILE, otherwise "default" */
    /* The lines of the profile's sections in the credentials file and in the configuration; empty: no such section. */
    tsr_str credentials;
    tsr_str config;
} aws_profile;

enum { MOST_BYTES = 1 << 20 };

static tsr_str trim(tsr_str text)
{
    while (text.size && strchr(" \t\r", text.data[0])) text = tsr_str_after(text, 1);
    while (text.size && strchr(" \t\r", text.data[text.size - 1])) text.size--;
    return text;
}

/* The lines after "[name]" and before the next section. */
static tsr_str section(tsr_str text, const char *name)
{
    tsr_str found = {NULL, 0};
    while (text.size) {
        const char *at = text.data;
        const tsr_str line = trim(tsr_str_take(&text, '\n'));
        if (!line.size || line.data[0] != '[') continue;
        if (found.data) return (tsr_str){found.data, (size_t)(at - found.data)};
        if (line.data[line.size - 1] == ']' &&
            tsr_str_equal(trim((tsr_str){line.data + 1, line.size - 2}), tsr_str_from(name)))
            found = text;
    }
    return found;
}

/* The value of a setting. Lines that begin with a space are continuations of the previous setting. */
static tsr_str get(tsr_str text, const char *setting)
{
    while (text.size) {
        const tsr_str line = tsr_str_take(&text, '\n');
        const char *equals = line.size ? memchr(line.data, '=', line.size) : NULL;
        if (!equals || strchr(" \t#;", line.data[0])) continue;
        const tsr_str name = trim((tsr_str){line.data, (size_t)(equals - line.data)});
        const tsr_str value = trim((tsr_str){equals + 1, (size_t)(line.data + line.size - equals - 1)});
        if (tsr_str_equal(name, tsr_str_from(setting)) && value.size) return value;
    }
    return (tsr_str){NULL, 0};
}

static tsr_status read_file(const char *path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    *out = TSR_STR("");
    FILE *file = fopen(path, "rbe");
    if (!file && (errno == ENOENT || errno == ENOTDIR)) return TSR_OK;
    TSR_FAIL_IF(!file, err, TSR_E_IO, "'%s' cannot be read: %s", path, strerror(errno));
    char *bytes = tsr_arena_array(arena, MOST_BYTES, 1, err);
    if (bytes) *out = (tsr_str){bytes, fread(bytes, 1, MOST_BYTES, file)};
    const bool bad = ferror(file);
    fclose(file);
    TSR_FAIL_IF(bad, err, TSR_E_IO, "'%s' cannot be read", path);
    return bytes ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status read_named(const char *variable, const char *usual, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    if (given && *given) return read_file(given, arena, out, err);
    *out = TSR_STR("");
    if (!home || !*home) return TSR_OK;
    const tsr_str path = tsr_arena_format(arena, err, "%s/.aws/%s", home, usual);
    return path.data ? read_file(path.data, arena, out, err) : TSR_E_NOMEM;
}

/* Reads both files if they exist. TSR_E_NOT_FOUND if neither has the profile that AWS_PROFILE names. */
static tsr_status aws_profile_read(tsr_arena *arena, aws_profile *out, tsr_error *err)
{
    const char *given = getenv("AWS_PROFILE");
    tsr_str credentials, config;
    *out = (aws_profile){.name = given && *given ? given : "default"};
    TSR_TRY(read_named("AWS_SHARED_CREDENTIALS_FILE", "credentials", arena, &credentials, err));
    TSR_TRY(read_named("AWS_CONFIG_FILE", "config", arena, &config, err));
    const tsr_str title = tsr_arena_format(arena, err, "profile %s", out->name);
    if (!title.data) return TSR_E_NOMEM;
    out->credentials = section(credentials, out->name);
    out->config = section(config, title.data);
    if (!out->config.data && strcmp(out->name, "default") == 0) out->config = section(config, "default");
    TSR_FAIL_IF(given && *given && !out->credentials.data && !out->config.data, err, TSR_E_NOT_FOUND,
                "the profile '%s' of AWS_PROFILE is neither in AWS's credentials file nor in its configuration file", given);
    return TSR_OK;
}

/* The value of a setting. The credentials file takes precedence over the configuration. NULL data: not set. */
static tsr_str aws_profile_get(const aws_profile *profile, const char *setting)
{
    const tsr_str value = get(profile->credentials, setting);
    return value.data ? value : get(profile->config, setting);
}

/* ---- credentials ---- */

/* They are where AWS's own tools look for them: in the environment, then in the profile, then at the metadata service of the container or
 * instance. Those of a metadata service are renewed before they expire. */

static bool from_environment(tsr_credentials *out)
{
    const char *id = tsr_setting("AWS_ACCESS_KEY_ID"), *secret = tsr_setting("AWS_SECRET_ACCESS_KEY");
    if (!id || !secret) return false;
    *out = (tsr_credentials){id, secret, tsr_setting("AWS_SESSION_TOKEN"), 0};
    return true;
}

static const char *text_of(tsr_str value, tsr_arena *arena)
{
    return value.data ? tsr_arena_str(arena, value, NULL).data : NULL;
}

static bool from_profile(const aws_profile *profile, tsr_arena *arena, tsr_credentials *out)
{
    *out = (tsr_credentials){text_of(aws_profile_get(profile, "aws_access_key_id"), arena),
                             text_of(aws_profile_get(profile, "aws_secret_access_key"), arena),
                             text_of(aws_profile_get(profile, "aws_session_token"), arena), 0};
    if (out->id && out->secret) return true;
    *out = (tsr_credentials){0};
    return false;
}

static tsr_status refuse_unsupported(const aws_profile *profile, tsr_error *err)
{
    static const char *const settings[] = {"sso_session", "sso_start_url", "role_arn", "credential_process",
                                           "web_identity_token_file"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        TSR_FAIL_IF(aws_profile_get(profile, settings[i]).data, err, TSR_E_UNSUPPORTED,
                    "the profile '%s' uses %s, which is not supported; export temporary credentials to AWS_ACCESS_KEY_ID, "
                    "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
                    profile->name, settings[i]);
    TSR_FAIL_IF(
        tsr_setting("AWS_WEB_IDENTITY_TOKEN_FILE"), err, TSR_E_UNSUPPORTED,
        "AWS_WEB_IDENTITY_TOKEN_FILE is set, which is not supported; export temporary credentials to AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN");
    return TSR_OK;
}

/* Parses "2026-11-23T02:00:00Z" into seconds since 1970; 0 if the text has another form. */
static int64_t time_of(const char *text)
{
    struct tm tm = {0};
    if (!text ||
        sscanf(text, "%d-%d-%dT%d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    return (int64_t)timegm(&tm);
}

static tsr_status from_json(tsr_str json, const char *source, tsr_arena *arena, tsr_credentials *out, tsr_error *err)
{
    *out = (tsr_credentials){
        tsr_metadata_member(json, "AccessKeyId", arena, NULL), tsr_metadata_member(json, "SecretAccessKey", arena, NULL),
        tsr_metadata_member(json, "Token", arena, NULL), time_of(tsr_metadata_member(json, "Expiration", arena, NULL))};
    if (out->id && out->secret) return TSR_OK;
    *out = (tsr_credentials){0};
    return tsr_fail(err, TSR_E_IO, "%s gave no credentials", source);
}

/* Credentials may be sent in plain text over HTTP only by this machine itself, or by the addresses that serve them to
 * containers. */
static bool may_be_plain(const char *url)
{
    static const char *const hosts[] = {"localhost", "127.", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
    if (strncasecmp(url, "https://", 8) == 0) return true;
    if (strncasecmp(url, "http://", 7) != 0) return false;
    const char *host = url + 7;
    const size_t size = strcspn(host, "/?#");
    if (memchr(host, '@', size)) return false;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t n = strlen(hosts[i]);
        const char *after = host + n;
        if (strncasecmp(host, hosts[i], n) != 0) continue;
        if (hosts[i][n - 1] == '.') after += strspn(after, "0123456789.");
        if (after <= host + size && (after == host + size || *after == ':')) return true;
    }
    return false;
}

static tsr_status read_token(tsr_arena *arena, const char **out, tsr_error *err)
{
    const char *path = tsr_setting("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    char line[4096];
    *out = tsr_setting("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    if (!path) return TSR_OK;
    FILE *file = fopen(path, "re");
    const bool good = file && fgets(line, sizeof line, file);
    if (file) fclose(file);
    TSR_FAIL_IF(!good, err, TSR_E_IO, "'%s' of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE cannot be read", path);
    *out = tsr_arena_str(arena, (tsr_str){line, strcspn(line, "\r\n")}, err).data;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status from_container(tsr_transport *transport, tsr_arena *arena, tsr_credentials *out, tsr_error *err)
{
    const char *relative = tsr_setting("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
               *full = tsr_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI"), *token;
    const char *headers[2] = {NULL, NULL};
    tsr_str text;
    long status;
    const char *url = relative ? tsr_arena_format(arena, err, "http://169.254.170.2%s", relative).data : full;
    if (!url) return TSR_E_NOMEM;
    TSR_FAIL_IF(!relative && !may_be_plain(full), err, TSR_E_USAGE,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI must be an https URL, or one of this machine");
    TSR_TRY(read_token(arena, &token, err));
    if (token && !(headers[0] = tsr_arena_format(arena, err, "Authorization: %s", token).data)) return TSR_E_NOMEM;
    TSR_TRY(
        tsr_metadata_ask(transport, &(tsr_metadata_request){.url = url, .headers = headers}, arena, &text, &status, err));
    TSR_FAIL_IF(status != 200, err, TSR_E_IO, "the container's credential service %s%ld",
                status ? "answered " : "does not answer: ", status);
    return from_json(text, "the container's credential service", arena, out, err);
}

/* IMDSv2: requests a token for the session, then the name of the role, then its credentials. On machines without this
 * service, nobody answers. */
static tsr_status from_instance(tsr_transport *transport, tsr_arena *arena, tsr_credentials *out, tsr_error *err)
{
    static const char *const ttl[] = {"X-aws-ec2-metadata-token-ttl-seconds: 21600", NULL};
    const char *disabled = tsr_setting("AWS_EC2_METADATA_DISABLED"),
               *endpoint = tsr_setting("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    tsr_str base = tsr_str_from(endpoint ? endpoint : "http://169.254.169.254"), text;
    long status;
    if (disabled && strcasecmp(disabled, "true") == 0) return TSR_OK;
    while (base.size && base.data[base.size - 1] == '/') base.size--;
    const char *url = tsr_arena_format(arena, err, "%.*s/latest/api/token", TSR_STR_ARG(base)).data;
    if (!url) return TSR_E_NOMEM;
    const unsigned patience = endpoint ? 5 : 1;
    TSR_TRY(tsr_metadata_ask(transport, &(tsr_metadata_request){"PUT", url, ttl, patience}, arena, &text, &status, err));
    if (status != 200) return TSR_OK;
    const char *headers[2] = {tsr_arena_format(arena, err, "X-aws-ec2-metadata-token: %.*s", TSR_STR_ARG(text)).data, NULL};
    const char *roles =
        tsr_arena_format(arena, err, "%.*s/latest/meta-data/iam/security-credentials/", TSR_STR_ARG(base)).data;
    if (!headers[0] || !roles) return TSR_E_NOMEM;
    TSR_TRY(tsr_metadata_ask(transport, &(tsr_metadata_request){NULL, roles, headers, 0}, arena, &text, &status, err));
    size_t name = 0; /* the first line */
    while (name < text.size && text.data[name] != '\r' && text.data[name] != '\n') name++;
    if (status != 200 || !name) return TSR_OK; /* the instance has no role */
    url = tsr_arena_format(arena, err, "%s%.*s", roles, (int)name, text.data).data;
    if (!url) return TSR_E_NOMEM;
    TSR_TRY(tsr_metadata_ask(transport, &(tsr_metadata_request){NULL, url, headers, 0}, arena, &text, &status, err));
    TSR_FAIL_IF(status != 200, err, TSR_E_IO,
                "the instance's metadata service answered %ld when it was asked for credentials", status);
    return from_json(text, "the instance's metadata service", arena, out, err);
}

/* Searches all places. The texts live in `arena`. Errors: TSR_E_UNSUPPORTED, which names the kind, for credentials that are
 * configured but not supported; TSR_E_IO if a configured metadata service does not answer; TSR_E_NOMEM. */
static tsr_status find_credentials(tsr_transport *transport, const aws_profile *profile, tsr_arena *arena,
                                   tsr_credentials *out, tsr_error *err)
{
    *out = (tsr_credentials){0};
    if (from_environment(out) || from_profile(profile, arena, out)) return TSR_OK;
    TSR_TRY(refuse_unsupported(profile, err));
    if (tsr_setting("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") || tsr_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        return from_container(transport, arena, out, err);
    return from_instance(transport, arena, out, err);
}

enum { MOST_PAGE = 8 << 20, RENEW_SECONDS = 300, RENEW_PAUSE = 30 };
/* SHA-256 of an empty body */
static const char no_content[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

typedef struct s3 {
    tsr_service base; /* must be first */
    tsr_str bucket;
    const char *endpoint;                     /* NULL: AWS's own servers */
    const char *absent_header, *absent_value; /* header that makes a request fail if the object exists */
    const char *authorities;                  /* AWS_CA_BUNDLE or ca_bundle; NULL: as for other servers */
    aws_profile profile;
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
    const tsr_status status = find_credentials(service->base.transport, &service->profile, arena, &found, err);
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
    x->transfer.authorities = service->authorities;
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

/* Unlike a listing, the answer does not say which checksum the object has. It is taken for CRC-32, that of most SDKs and of Tessera. */
static tsr_status stat_object(tsr_service *base, tsr_str key, tsr_object_list *out, tsr_error *err)
{
    TSR_TRY(tsr_service_stat_by_range(base, key, out, err));
    tsr_object *object = (tsr_object *)out->items.items + out->items.count - 1;
    if (base->checksum == TSR_CHECKSUM_CRC32) object->checksum = TSR_STR("CRC32");
    return TSR_OK;
}

static tsr_status list_page(tsr_service *base, tsr_str prefix, bool flat, tsr_object_list *out, tsr_str *next,
                            tsr_error *err)
{
    tsr_parameter parameters[6];
    size_t count = 0;
    if (next->size) parameters[count++] = (tsr_parameter){"continuation-token", *next};
    if (!flat) parameters[count++] = (tsr_parameter){"delimiter", TSR_STR("/")};
    parameters[count++] = (tsr_parameter){"encoding-type", TSR_STR("url")};
    parameters[count++] = (tsr_parameter){"list-type", TSR_STR("2")};
    parameters[count++] = (tsr_parameter){"prefix", prefix};
    return tsr_service_list_page(base, parameters, count, &tsr_listing_of_s3, out, next, err);
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
    const tsr_str profile = given ? tsr_str_from(given) : aws_profile_get(&service->profile, of_profile);
    return profile.data ? tsr_arena_str(service->base.arena, profile, NULL).data : NULL;
}

/* Reads a setting of when to use checksums. */
static tsr_status uses_checksums(s3 *service, const char *variable, const char *of_profile, bool *out, tsr_error *err)
{
    const char *value = setting(service, variable, variable, of_profile);
    *out = !value || strcasecmp(value, "when_supported") == 0;
    TSR_FAIL_IF(!*out && strcasecmp(value, "when_required") != 0, err, TSR_E_USAGE,
                "%s (%s in AWS's configuration file) is '%s'; it must be when_supported or when_required", variable,
                of_profile, value);
    return TSR_OK;
}

static tsr_status configure_checksums(s3 *service, tsr_error *err)
{
    bool sends, compares;
    TSR_TRY(uses_checksums(service, "AWS_REQUEST_CHECKSUM_CALCULATION", "request_checksum_calculation", &sends, err));
    TSR_TRY(uses_checksums(service, "AWS_RESPONSE_CHECKSUM_VALIDATION", "response_checksum_validation", &compares, err));
    service->base.checksum_header = sends ? "x-amz-checksum-crc32" : NULL;
    service->base.checksum_prefix = "";
    service->base.checksum = TSR_CHECKSUM_CRC32;
    service->base.declares_checksums = sends;
    service->base.compares_checksums = compares;
    service->base.checks_whole_only = compares;
    if (compares) service->base.checksum_request = (tsr_header){"x-amz-checksum-mode", "ENABLED"};
    return TSR_OK;
}

static tsr_status configure(s3 *service, tsr_error *err)
{
    TSR_TRY(aws_profile_read(service->base.arena, &service->profile, err));
    TSR_TRY(configure_checksums(service, err));
    const char *region = setting(service, "AWS_REGION", "AWS_DEFAULT_REGION", "region");
    service->endpoint = setting(service, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "endpoint_url");
    if (service->endpoint)
        TSR_TRY(tsr_endpoint_of(service->base.arena, tsr_str_from(service->endpoint), "the endpoint of S3",
                                &service->endpoint, err));
    service->authorities = setting(service, "AWS_CA_BUNDLE", "AWS_CA_BUNDLE", "ca_bundle");
    if (!region) region = "us-east-1";
    TSR_FAIL_IF(strlen(region) >= sizeof service->region ||
                    strspn(region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != strlen(region),
                err, TSR_E_USAGE, "'%s' is not the name of a region", region);
    memcpy(service->region, region, strlen(region) + 1);
    service->base.credentials_hint = "; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
    service->renewed = (int64_t)time(NULL);
    TSR_TRY(find_credentials(service->base.transport, &service->profile, service->secrets, &service->credentials, err));
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
    tsr_service_use_google_checksums(&service->base);
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
                              .stat = stat_object,
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

/* ---- s3 upload ---- */

/* Uploads with the protocol of S3. Source: the S3 API reference (CreateMultipartUpload, UploadPart, CompleteMultipartUpload,
 * AbortMultipartUpload, ListMultipartUploads, ListParts, PutObject, DeleteObject). */

enum { MOST_BEGINS = 6 };

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
        status = tsr_fail(err, TSR_E_FORMAT, "%s: the server's listing does not advance", service->shown);
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

/* A tag is the ETag of a part. The part's checksum follows after a space if the server has it. */
static void add_checksum(tsr_part_tag *tag, const char *checksum)
{
    const size_t size = strlen(tag->text);
    if (*checksum && size + 1 + strlen(checksum) < sizeof tag->text)
        snprintf(tag->text + size, sizeof tag->text - size, " %s", checksum);
}

/* The ETag of a part is its MD5, unless the bucket is encrypted with its own keys; then no part matches. */
static bool is_same_part(const tsr_object *part, const tsr_upload_bytes *bytes, tsr_part_tag *tag)
{
    char sum[TSR_MD5_DIGITS + 1], checksum[TSR_CHECKSUM_TEXT] = "";
    if (!tsr_upload_md5(bytes->data, bytes->size, sum) || !tsr_str_equal(part->version, tsr_str_from(sum))) return false;
    if (part->checksum.size && (!tsr_checksum_text(TSR_CHECKSUM_CRC32, bytes->data, bytes->size, checksum) ||
                                !tsr_str_equal(part->checksum, tsr_str_from(checksum))))
        return false;
    snprintf(tag->text, sizeof tag->text, "\"%s\"", sum);
    add_checksum(tag, checksum);
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
    tsr_request request = {.method = "POST",
                           .key = key,
                           .parameters = &uploads,
                           .parameter_count = 1,
                           .content_type = TSR_OBJECT_TYPE,
                           .is_upload = true,
                           .once = true};
    if (service->declares_checksums && service->checksum_use[TSR_CHECKSUM_BODIES] != TSR_CHECKSUMS_REFUSED) {
        request.checksums[0] = (tsr_header){"x-amz-checksum-algorithm", "CRC32"};
        request.checksums[1] = (tsr_header){"x-amz-checksum-type", "FULL_OBJECT"};
    }
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
    char digits[12], checksum[TSR_CHECKSUM_VALUE] = "";
    snprintf(digits, sizeof digits, "%u", number);
    const tsr_parameter parameters[] = {{"partNumber", tsr_str_from(digits)}, {"uploadId", tsr_str_from(upload->id)}};
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .parameters = parameters,
                                 .parameter_count = 2,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .body_sum = bytes->sum,
                                 .checksums = {tsr_upload_checksum(service, bytes->data, bytes->size, checksum)},
                                 .is_upload = true};
    tsr_upload_reply reply;
    tsr_arena *arena = tsr_arena_new(service->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_upload_ask(service, &request, arena, &reply, err);
    tsr_arena_free(arena);
    *tag = reply.tag;
    if (service->declares_checksums && service->checksum_use[TSR_CHECKSUM_BODIES] == TSR_CHECKSUMS_TAKEN)
        add_checksum(tag, checksum);
    if (status == TSR_OK && (!tag->text[0] || strpbrk(tag->text, "<>&")))
        status = tsr_fail(err, TSR_E_IO, "%s: the server does not state the ETag of a part",
                          tsr_shown_key_of(service, upload->key).text);
    return status;
}

static tsr_status put_parts(tsr_arena *arena, const tsr_part_tag *tags, unsigned count, tsr_str *out, tsr_error *err)
{
    static const char head[] = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
                      tail[] = "</CompleteMultipartUpload>";
    bool has_checksums = true; /* of all parts, or the server would not take any */
    for (unsigned i = 0; i < count; i++) has_checksums = has_checksums && strchr(tags[i].text, ' ');
    const size_t room = sizeof head + sizeof tail + count * (sizeof(tsr_part_tag) + 120);
    char *text = tsr_arena_array(arena, room, 1, err);
    if (!text) return TSR_E_NOMEM;
    size_t n = (size_t)snprintf(text, room, "%s", head);
    for (unsigned i = 0; i < count; i++) {
        const size_t size = strcspn(tags[i].text, " ");
        n += (size_t)snprintf(text + n, room - n, "<Part><PartNumber>%u</PartNumber><ETag>%.*s</ETag>", i + 1, (int)size,
                              tags[i].text);
        if (has_checksums)
            n += (size_t)snprintf(text + n, room - n, "<ChecksumCRC32>%s</ChecksumCRC32>", tags[i].text + size + 1);
        n += (size_t)snprintf(text + n, room - n, "</Part>");
    }
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
    char checksum[TSR_CHECKSUM_VALUE];
    const tsr_request request = {.method = "PUT",
                                 .key = upload->key,
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .body_sum = bytes->sum,
                                 .checksums = {tsr_upload_checksum(service, bytes->data, bytes->size, checksum)},
                                 .content_type = TSR_OBJECT_TYPE,
                                 .if_absent = upload->if_absent,
                                 .is_upload = true,
                                 .once = upload->if_absent};
    return tsr_upload_make(service, upload, &request, bytes, err);
}

const tsr_uploading tsr_uploading_by_s3 = {begin, send, complete, abort_upload, put, tsr_upload_remove, &resuming, false};
