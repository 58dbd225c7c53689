/* See credentials.h. */
#include "object_store/credentials.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "io/transport.h"
#include "object_store/service.h"
#include "tessera/sys/try.h"

/* ---- aws profile ---- */

/* See credentials.h. Source: AWS's documentation of the configuration and credential files. */

enum { MOST_BYTES = 1 << 20 };

static tsr_str trim(tsr_str text)
{
    while (text.size && strchr(" \t\r", text.data[0])) text = (tsr_str){text.data + 1, text.size - 1};
    while (text.size && strchr(" \t\r", text.data[text.size - 1])) text.size--;
    return text;
}

static tsr_str take_line(tsr_str *text)
{
    const char *end = memchr(text->data, '\n', text->size);
    const tsr_str line = {text->data, end ? (size_t)(end - text->data) : text->size};
    const size_t used = line.size + (end != NULL);
    *text = (tsr_str){text->data + used, text->size - used};
    return line;
}

/* The lines after "[name]" and before the next section. */
static tsr_str section(tsr_str text, const char *name)
{
    tsr_str found = {NULL, 0};
    while (text.size) {
        const char *at = text.data;
        const tsr_str line = trim(take_line(&text));
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
        const tsr_str line = take_line(&text);
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

tsr_status tsr_aws_profile_read(tsr_arena *arena, tsr_aws_profile *out, tsr_error *err)
{
    const char *given = getenv("AWS_PROFILE");
    tsr_str credentials, config;
    *out = (tsr_aws_profile){.name = given && *given ? given : "default"};
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

tsr_str tsr_aws_profile_get(const tsr_aws_profile *profile, const char *setting)
{
    const tsr_str value = get(profile->credentials, setting);
    return value.data ? value : get(profile->config, setting);
}

/* ---- metadata service ---- */

/* See credentials.h. Sources: AWS's documentation of container credentials and of IMDSv2, Google's of its metadata server. */

enum { SERVICE_MOST_BYTES = 64 << 10 };

tsr_status tsr_metadata_ask(tsr_transport *transport, const tsr_metadata_request *request, tsr_arena *arena, tsr_str *text,
                            long *status, tsr_error *err)
{
    char *buffer = tsr_arena_array(arena, SERVICE_MOST_BYTES, 1, err);
    double seconds;
    if (!buffer) return TSR_E_NOMEM;
    tsr_http_transfer t = {.method = request->method,
                           .url = request->url,
                           .headers = request->headers,
                           .connect_seconds = request->connect_seconds,
                           .buffer = buffer,
                           .capacity = SERVICE_MOST_BYTES};
    tsr_http_transfer *const all[] = {&t};
    tsr_transport_perform(transport, all, 1);
    for (unsigned attempt = 1; !request->connect_seconds && tsr_retry_worthwhile(&t, attempt, &seconds); attempt++) {
        tsr_retry_wait(seconds);
        tsr_transport_perform(transport, all, 1);
    }
    *status = t.result == TSR_TRANSFER_ANSWERED ? t.answer.status : 0;
    *text = (tsr_str){buffer, t.answer.size};
    tsr_http_transfer_clear(&t);
    return TSR_OK;
}

const char *tsr_metadata_member(tsr_str json, const char *name, tsr_arena *arena, double *number)
{
    cJSON *root = cJSON_ParseWithLength(json.data, json.size);
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(root, name);
    const char *text = cJSON_IsString(member) ? tsr_arena_str(arena, tsr_str_from(member->valuestring), NULL).data : NULL;
    if (number && cJSON_IsNumber(member)) *number = member->valuedouble;
    cJSON_Delete(root);
    return text;
}

/* ---- credentials ---- */

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

static bool from_profile(const tsr_aws_profile *profile, tsr_arena *arena, tsr_credentials *out)
{
    *out = (tsr_credentials){text_of(tsr_aws_profile_get(profile, "aws_access_key_id"), arena),
                             text_of(tsr_aws_profile_get(profile, "aws_secret_access_key"), arena),
                             text_of(tsr_aws_profile_get(profile, "aws_session_token"), arena), 0};
    if (out->id && out->secret) return true;
    *out = (tsr_credentials){0};
    return false;
}

static tsr_status refuse_unsupported(const tsr_aws_profile *profile, tsr_error *err)
{
    static const char *const settings[] = {"sso_session", "sso_start_url", "role_arn", "credential_process",
                                           "web_identity_token_file"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        TSR_FAIL_IF(tsr_aws_profile_get(profile, settings[i]).data, err, TSR_E_UNSUPPORTED,
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
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s gave no credentials", source);
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

tsr_status tsr_credentials_find(tsr_transport *transport, const tsr_aws_profile *profile, tsr_arena *arena,
                                tsr_credentials *out, tsr_error *err)
{
    *out = (tsr_credentials){0};
    if (from_environment(out) || from_profile(profile, arena, out)) return TSR_OK;
    TSR_TRY(refuse_unsupported(profile, err));
    if (tsr_setting("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") || tsr_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        return from_container(transport, arena, out, err);
    return from_instance(transport, arena, out, err);
}
