/* See service.h. Sources: the references of Cloud Storage's JSON API and, for uploads, of its XML API; Google's documentation of
 * the metadata server. */
#include "object_store/service.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "io/locked.h"
#include "io/sys.h"
#include "io/transport.h"
#include "object_store/exchange.h"
#include "object_store/object_listing.h"
#include "object_store/upload.h"
#include "tessera/sys/containers.h"
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
    if (!flat) parameters[count++] = (tsr_parameter){"delimiter", TSR_STR("/")};
    parameters[count++] = (tsr_parameter){"fields", TSR_STR("items(name,size,generation,updated),nextPageToken")};
    parameters[count++] = (tsr_parameter){"maxResults", TSR_STR("1000")};
    if (next->size) parameters[count++] = (tsr_parameter){"pageToken", *next};
    parameters[count++] = (tsr_parameter){"prefix", prefix};
    return tsr_service_list_page(base, parameters, count, NULL, out, next, err);
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
    tsr_service_use_google_checksums(&service->base);
    service->secrets = tsr_arena_new(allocator, 0, err);
    return service->secrets ? configure(service, location, err) : TSR_E_NOMEM;
}

/* ---- gcs upload ---- */

/* Uploads with Google's JSON API, for emulators that do not have the XML API. Source: the reference of Cloud Storage's JSON API
 * (Objects: insert, Objects: delete, resumable uploads). A resumable upload accepts bytes only in their order, while parts come
 * in any order, so parts wait in a temporary file until the object is complete. An interrupted run leaves nothing on the server
 * that could be continued. */

enum { LARGEST_PART = 32 << 20, MOST_IN_VAIN = 6, MOST_ANSWER = 64 << 10, RESUME_INCOMPLETE = 308 };
static const char waiting_parts[] = "a temporary file for parts of uploads (TMPDIR)";

/* ---- parts ---- */

/* The temporary file has no name. The id of the upload is its descriptor in this process. */
static tsr_status begin(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    const char *directory = tsr_setting("TMPDIR");
    char path[4096];
    (void)service, (void)key;
    TSR_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/tessera-XXXXXX", directory ? directory : "/tmp") >= sizeof path, err,
                TSR_E_USAGE, "the path in TMPDIR is too long");
    const int file = mkostemp(path, O_CLOEXEC);
    if (file < 0) return tsr_sys_raise(err, "create", path);
    unlink(path);
    *id = tsr_arena_format(arena, err, "%ld.%d", (long)getpid(), file).data;
    if (*id) return TSR_OK;
    close(file);
    return TSR_E_NOMEM;
}

/* -1: the upload was begun by another process. */
static int file_of(const tsr_upload *upload)
{
    long process;
    int file;
    return sscanf(upload->id, "%ld.%d", &process, &file) == 2 && process == (long)getpid() ? file : -1;
}

static tsr_sys_file opened(const tsr_upload *upload)
{
    return (tsr_sys_file){&tsr_sys_posix, file_of(upload), waiting_parts};
}

/* Parts have their places in the file whatever their sizes are. Places that are not filled take no room on the disk. */
static uint64_t place_of(unsigned number)
{
    return (uint64_t)(number - 1) * LARGEST_PART;
}

static tsr_status send(tsr_service *service, const tsr_upload *upload, unsigned number, const tsr_upload_bytes *bytes,
                       tsr_part_tag *tag, tsr_error *err)
{
    (void)service;
    TSR_FAIL_IF(bytes->size > LARGEST_PART, err, TSR_E_LIMIT, "a part of an upload has %zu bytes; at most %d are allowed",
                bytes->size, LARGEST_PART);
    snprintf(tag->text, sizeof tag->text, "%zu", bytes->size);
    return tsr_sys_write(opened(upload), place_of(number), bytes->data, bytes->size, err);
}

static tsr_status abort_upload(tsr_service *service, const tsr_upload *upload, tsr_error *err)
{
    (void)service, (void)err;
    if (file_of(upload) >= 0) close(file_of(upload));
    return TSR_OK;
}

/* ---- resumable uploads ---- */

/* Emulators may ignore preconditions, so existence is checked immediately before, too. */
static tsr_status look_first(tsr_service *service, const tsr_upload *upload, tsr_error *err)
{
    bool there;
    if (!upload->if_absent) return TSR_OK;
    TSR_TRY(tsr_upload_exists(service, upload->key, &there, err));
    TSR_FAIL_IF(there, err, TSR_E_EXISTS, "'%s' exists; --overwrite replaces it",
                tsr_shown_key_of(service, upload->key).text);
    return TSR_OK;
}

enum { MOST_PARAMETERS = 3 };

/* Fills the parameters of a request that inserts the object, and returns their number. */
static size_t insertion(const tsr_upload *upload, const char *type, tsr_parameter out[MOST_PARAMETERS])
{
    size_t count = 0;
    if (upload->if_absent) out[count++] = (tsr_parameter){"ifGenerationMatch", TSR_STR("0")};
    out[count++] = (tsr_parameter){"name", upload->key};
    out[count++] = (tsr_parameter){"uploadType", tsr_str_from(type)};
    return count;
}

/* A resumable upload in progress. */
typedef struct session {
    tsr_service *service;
    const tsr_upload *upload;
    tsr_arena *arena;
    const char *url;
    uint64_t stored; /* number of bytes that the server has */
    bool is_done;    /* the object exists */
} session;

static tsr_status open_session(session *s, tsr_error *err)
{
    tsr_parameter parameters[MOST_PARAMETERS];
    const tsr_request request = {.method = "POST",
                                 .key = s->upload->key,
                                 .parameters = parameters,
                                 .parameter_count = insertion(s->upload, "resumable", parameters),
                                 .content_type = "application/json",
                                 .is_insertion = true};
    tsr_exchange x = {0};
    tsr_str text;
    tsr_status status = tsr_exchange_text(s->service, request, MOST_ANSWER, &x, &text, err);
    if (status != TSR_OK && x.transfer.answer.status == 412)
        status = tsr_fail(err, TSR_E_EXISTS, "'%s' exists; --overwrite replaces it",
                          tsr_shown_key_of(s->service, s->upload->key).text);
    const char *to = x.transfer.location;
    if (status == TSR_OK && (!to || (strncmp(to, "http://", 7) != 0 && strncmp(to, "https://", 8) != 0)))
        status = tsr_fail(err, TSR_E_IO, "%s: the server does not state the upload that it began",
                          tsr_shown_key_of(s->service, s->upload->key).text);
    if (status == TSR_OK) s->url = tsr_arena_str(s->arena, tsr_str_from(to), err).data;
    if (status == TSR_OK && !s->url) status = TSR_E_NOMEM;
    tsr_exchange_end(&x);
    return status;
}

/* Sends bytes that begin where the server's end; without bytes, asks what the server has. *is_lost: it is unknown whether it
 * has the bytes. */
static tsr_status put_chunk(session *s, const void *data, size_t size, bool *is_lost, tsr_error *err)
{
    char range[80], buffer[1024];
    const uint64_t total = s->upload->size;
    if (size)
        snprintf(range, sizeof range, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, s->stored, s->stored + size - 1, total);
    else snprintf(range, sizeof range, "bytes */%" PRIu64, total);
    const tsr_request request = {.method = "PUT",
                                 .key = s->upload->key,
                                 .url = s->url,
                                 .content_range = range,
                                 .body = data,
                                 .body_size = size,
                                 .buffer = buffer,
                                 .capacity = sizeof buffer,
                                 .once = size > 0};
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(s->service, &request, &x, 1, err);
    const tsr_http_answer *answer = &x.transfer.answer;
    *is_lost = x.is_lost;
    if (status == TSR_OK && !x.is_lost) {
        if (answer->status == RESUME_INCOMPLETE) s->stored = answer->stored;
        else if (answer->status < 300) s->is_done = true;
        else if (answer->status == 412)
            status = tsr_fail(err, TSR_E_EXISTS, "'%s' exists; --overwrite replaces it",
                              tsr_shown_key_of(s->service, s->upload->key).text);
        else status = tsr_exchange_error(s->service, &x, err);
    }
    tsr_exchange_end(&x);
    return status;
}

/* After a lost reply. A session that has ended may be unknown to the server, and the object be there. */
static tsr_status ask_what_is_stored(session *s, tsr_error *err)
{
    bool is_lost;
    tsr_error why = {0};
    const tsr_status status = put_chunk(s, NULL, 0, &is_lost, &why);
    if (status == TSR_E_NOT_FOUND) {
        TSR_TRY(tsr_upload_is_there(s->service, s->upload, NULL, &s->is_done, err));
        if (s->is_done) return TSR_OK;
    }
    return status == TSR_OK ? TSR_OK : tsr_raise_again(err, status, &why);
}

/* Sends a part that is in memory, as often as the server needs to have all of it. */
static tsr_status send_part(session *s, const char *data, size_t size, tsr_error *err)
{
    const uint64_t begin = s->stored;
    bool is_asked = false; /* an empty object is made by a request without bytes */
    for (unsigned in_vain = 0; !s->is_done && (s->stored < begin + size || !is_asked);) {
        const uint64_t before = s->stored;
        bool is_lost;
        if (is_asked && in_vain) tsr_retry_wait(0.1 * (1 << in_vain));
        TSR_TRY(put_chunk(s, data + (before - begin), (size_t)(begin + size - before), &is_lost, err));
        if (is_lost) TSR_TRY(ask_what_is_stored(s, err));
        is_asked = true;
        if (s->is_done) break;
        in_vain = s->stored > before ? 0 : in_vain + 1;
        TSR_FAIL_IF(s->stored < begin || s->stored > begin + size || in_vain == MOST_IN_VAIN ||
                        (in_vain && tsr_retry_is_spent()),
                    err, TSR_E_IO, "%s: the server has %" PRIu64 " bytes of the upload where %" PRIu64 " were sent",
                    tsr_shown_key_of(s->service, s->upload->key).text, s->stored, begin + size);
    }
    return TSR_OK;
}

static tsr_status send_all(session *s, const tsr_part_tag *tags, unsigned count, tsr_error *err)
{
    char *buffer = tsr_alloc(s->service->allocator, LARGEST_PART, 1, err);
    tsr_status status = buffer ? TSR_OK : TSR_E_NOMEM;
    for (unsigned i = 0; i < count && status == TSR_OK; i++) {
        const size_t size = (size_t)strtoul(tags[i].text, NULL, 10);
        status = tsr_sys_read(opened(s->upload), place_of(i + 1), buffer, size, err);
        if (status == TSR_OK) status = send_part(s, buffer, size, err);
    }
    tsr_free(s->service->allocator, buffer, LARGEST_PART, 1);
    if (status == TSR_OK && !s->is_done)
        status = tsr_fail(err, TSR_E_IO, "%s: the server did not confirm that the object was written",
                          tsr_shown_key_of(s->service, s->upload->key).text);
    return status;
}

static tsr_status complete(tsr_service *service, const tsr_upload *upload, const tsr_part_tag *tags, unsigned count,
                           tsr_error *err)
{
    session s = {.service = service, .upload = upload};
    TSR_FAIL_IF(
        file_of(upload) < 0, err, TSR_E_UNSUPPORTED,
        "%s: the emulator has only the JSON API, in which a process cannot complete the uploads of another one; write "
        "with a single process",
        tsr_shown_key_of(service, upload->key).text);
    s.arena = tsr_arena_new(service->allocator, 0, err);
    tsr_status status = s.arena ? look_first(service, upload, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_session(&s, err);
    if (status == TSR_OK) status = send_all(&s, tags, count, err);
    if (status == TSR_OK) close(file_of(upload));
    tsr_arena_free(s.arena);
    return status;
}

/* ---- other requests ---- */

static tsr_status put(tsr_service *service, const tsr_upload *upload, const tsr_upload_bytes *bytes, tsr_error *err)
{
    tsr_parameter parameters[MOST_PARAMETERS];
    char checksum[TSR_CHECKSUM_VALUE];
    const tsr_request request = {.method = "POST",
                                 .key = upload->key,
                                 .parameters = parameters,
                                 .parameter_count = insertion(upload, "media", parameters),
                                 .body = bytes->data,
                                 .body_size = bytes->size,
                                 .checksums = {tsr_upload_checksum(service, bytes->data, bytes->size, checksum)},
                                 .content_type = TSR_OBJECT_TYPE,
                                 .is_insertion = true,
                                 .once = upload->if_absent};
    TSR_TRY(look_first(service, upload, err));
    return tsr_upload_make(service, upload, &request, bytes, err);
}

static tsr_status remove_object(tsr_service *service, tsr_str key, tsr_error *err)
{
    return tsr_upload_give_up(service, &(tsr_request){.method = "DELETE", .key = key}, (const long[]){404, 404}, err);
}

static tsr_status list_nothing(tsr_service *service, tsr_str prefix, tsr_object_list *out, tsr_error *err)
{
    (void)service, (void)prefix, (void)out, (void)err;
    return TSR_OK;
}

static const tsr_resuming resuming = {list_nothing, NULL, NULL, NULL};
const tsr_uploading tsr_uploading_by_google = {.begin = begin,
                                               .send = send,
                                               .complete = complete,
                                               .abort = abort_upload,
                                               .put = put,
                                               .remove = remove_object,
                                               .resuming = &resuming,
                                               .is_of_process = true};
