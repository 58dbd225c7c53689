/* See credentials.h. */
#include "object_store/credentials.h"

#include <stdio.h>
#include <strings.h>
#include <time.h>

#include "object_store/setting.h"
#include "tessera/sys/try.h"

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
