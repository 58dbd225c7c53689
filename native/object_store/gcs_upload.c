/* Uploads with Google's JSON API, for emulators that do not have the XML API. Source: the reference of Cloud Storage's JSON API
 * (Objects: insert, Objects: delete, resumable uploads). A resumable upload accepts bytes only in their order, while parts come
 * in any order, so parts wait in a temporary file until the object is complete. An interrupted run leaves nothing on the server
 * that could be continued. */
#include "object_store/upload.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "io/retry.h"
#include "io/sys.h"
#include "object_store/exchange.h"
#include "object_store/setting.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/try.h"

enum { LARGEST_PART = 32 << 20, MOST_IN_VAIN = 6, MOST_ANSWER = 64 << 10, RESUME_INCOMPLETE = 308 };
static const char waiting_parts[] = "a temporary file for parts of uploads (TMPDIR)";

/* ---- parts ---- */

/* The temporary file has no name. The id of the upload is its descriptor in this process. */
static tsr_status begin(tsr_service *service, tsr_str key, tsr_arena *arena, const char **id, tsr_error *err)
{
    const char *folder = tsr_setting("TMPDIR");
    char path[4096];
    (void)service, (void)key;
    TSR_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/tessera-XXXXXX", folder ? folder : "/tmp") >= sizeof path, err,
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
        status = tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION, "'%s' exists; --overwrite replaces it",
                           tsr_shown_key_of(s->service, s->upload->key).text);
    const char *to = x.transfer.location;
    if (status == TSR_OK && (!to || (strncmp(to, "http://", 7) != 0 && strncmp(to, "https://", 8) != 0)))
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: the server does not state the upload that it began",
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
            status = tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION, "'%s' exists; --overwrite replaces it",
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
    return status == TSR_OK ? TSR_OK : tsr_raise(err, status, TSR_NO_POSITION, "%s", why.message);
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
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: the server did not confirm that the object was written",
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
    const tsr_request request = {.method = "POST",
                                 .key = upload->key,
                                 .parameters = parameters,
                                 .parameter_count = insertion(upload, "media", parameters),
                                 .body = bytes->data,
                                 .body_size = bytes->size,
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
