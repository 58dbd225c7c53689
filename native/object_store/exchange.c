/* See exchange.h. */
#include "object_store/exchange.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "io/transport.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

enum { MOST_REDIRECTS = 10, MOST_AT_ONCE = 64, CODE_SIZE = 64, MOST_DAMAGED = 3 };

tsr_status tsr_exchange_header(tsr_exchange *x, const char *name, const char *value, tsr_error *err)
{
    const tsr_str line = tsr_arena_format(x->arena, err, "%s: %s", name, value);
    if (!line.data || x->header_count == TSR_MOST_HEADERS) return TSR_E_NOMEM;
    x->headers[x->header_count++] = line.data;
    x->headers[x->header_count] = NULL;
    return TSR_OK;
}

void tsr_exchange_end(tsr_exchange *x)
{
    tsr_http_transfer_clear(&x->transfer);
    tsr_arena_free(x->arena);
    x->arena = NULL;
}

/* ---- the server's answers ---- */

/* The text between `begin` and one of `ends`, if it is a word of letters, digits, '.', '-' and '_'. */
static bool find_word(const char *text, const char *begin, const char *ends, char *out, size_t room)
{
    const char *at = strstr(text, begin);
    if (!at) return false;
    at += strlen(begin);
    while (*at == ' ' || *at == '"') at++;
    const size_t size = strcspn(at, ends);
    if (!size || size >= room) return false;
    for (size_t i = 0; i < size; i++) {
        const char c = at[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || tsr_is_digit(c) || c == '.' || c == '-' || c == '_'))
            return false;
    }
    memcpy(out, at, size);
    out[size] = '\0';
    return true;
}

/* Whether a server that does not have this protocol answers so. An object that is not there is also a 404. */
static bool is_unknown_request(const tsr_request *request, long status)
{
    const bool is_object = !request->on_bucket && !request->is_upload;
    return status == 405 || status == 501 || ((status == 400 || status == 404) && !is_object);
}

/* The server's error code; empty if it states none. */
static void find_code(const tsr_http_transfer *t, char code[CODE_SIZE])
{
    code[0] = '\0';
    if (!find_word(t->problem, "<Code>", "<", code, CODE_SIZE)) find_word(t->problem, "\"reason\":", "\"", code, CODE_SIZE);
}

/* Whether the server says that it received other bytes than those whose checksum it was told. Azurite and Google's JSON API say so
 * only in the text of a general error. */
static bool is_mismatch(const tsr_http_transfer *t)
{
    static const char *const codes[] = {"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
                                        "Md5Mismatch", "Crc64Mismatch"};
    char code[CODE_SIZE];
    if (t->result != TSR_TRANSFER_ANSWERED || t->answer.status != 400) return false;
    find_code(t, code);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(code, codes[i]) == 0) return true;
    return strstr(t->problem, "n't match") || strstr(t->problem, "not match");
}

static const char *advice_for(const char *code, long status, const tsr_service *service, const tsr_request *request)
{
    if (!code[0] && service->protocol_hint && is_unknown_request(request, status)) return service->protocol_hint;
    if (strcmp(code, "RequestTimeTooSkewed") == 0) return "; the clock of this machine and the server's differ too much";
    if (strcmp(code, "ExpiredToken") == 0 || strcmp(code, "TokenRefreshRequired") == 0)
        return "; the credentials have expired";
    if (strcmp(code, "SignatureDoesNotMatch") == 0) return "; check the secret access key";
    if (strcmp(code, "InvalidAccessKeyId") == 0) return "; the server does not know the access key";
    if (strcmp(code, "NoSuchBucket") == 0 || strcmp(code, "ContainerNotFound") == 0) return "; there is no such bucket";
    if ((status == 401 || status == 403) && service->credentials_hint) return service->credentials_hint;
    return "";
}

tsr_shown_key tsr_shown_key_of(const tsr_service *service, tsr_str key)
{
    tsr_shown_key shown;
    char whole[sizeof shown.text];
    const int size = snprintf(whole, sizeof whole, "%s%s%.*s", service->shown, key.size ? "/" : "", TSR_STR_ARG(key));
    const size_t used = size < 0 ? 0 : (size_t)size < sizeof whole ? (size_t)size : sizeof whole - 1;
    shown.text[tsr_uri_redact((tsr_str){whole, used}, shown.text, sizeof shown.text - 1)] = '\0';
    return shown;
}

tsr_status tsr_exchange_error(const tsr_service *service, const tsr_exchange *x, tsr_error *err)
{
    char code[CODE_SIZE];
    const tsr_http_transfer *t = &x->transfer;
    find_code(t, code);
    const long status = t->answer.status;
    const tsr_str key = x->request->on_bucket ? TSR_STR("") : x->request->key;
    const char *advice = is_mismatch(t) ? "; it received other bytes than those that were sent, several times"
                                        : advice_for(code, status, service, x->request);
    return tsr_fail(err, status == 404 || status == 410 ? TSR_E_NOT_FOUND : TSR_E_IO, "%s: the server answered %ld%s%s%s%s",
                    tsr_shown_key_of(service, key).text, status, code[0] ? " (" : "", code, code[0] ? ")" : "", advice);
}

/* ---- attempts ---- */

static tsr_status add_checksum_header(tsr_exchange *x, const tsr_header *header, tsr_error *err)
{
    if (!header->name) return TSR_OK;
    x->has_checksums = true;
    return tsr_exchange_header(x, header->name, header->value, err);
}

static size_t kind_of(const tsr_request *r)
{
    return r->is_ranged || (r->method && strcmp(r->method, "HEAD") == 0) ? TSR_CHECKSUM_READS
           : r->body_size                                                ? TSR_CHECKSUM_BODIES
                                                                         : TSR_CHECKSUM_BEGINNINGS;
}

static tsr_status add_checksums(const tsr_service *service, tsr_exchange *x, tsr_error *err)
{
    const tsr_request *r = x->request;
    x->has_checksums = false;
    if (x->leaves_out_checksums || service->checksum_use[kind_of(r)] == TSR_CHECKSUMS_REFUSED) return TSR_OK;
    for (size_t i = 0; i < TSR_MOST_CHECKSUM_HEADERS; i++) TSR_TRY(add_checksum_header(x, &r->checksums[i], err));
    if (r->is_ranged && (!service->most_checked || r->capacity <= service->most_checked))
        TSR_TRY(add_checksum_header(x, &service->checksum_request, err));
    return TSR_OK;
}

static tsr_status prepare(tsr_service *service, tsr_exchange *x, tsr_error *err)
{
    const tsr_request *r = x->request;
    tsr_http_transfer_clear(&x->transfer);
    tsr_arena_free(x->arena);
    x->header_count = 0;
    x->headers[0] = NULL;
    x->arena = tsr_arena_new(service->allocator, 0, err);
    if (!x->arena) return TSR_E_NOMEM;
    x->transfer = (tsr_http_transfer){.method = r->method,
                                      .headers = x->headers,
                                      .is_sent_once = r->once,
                                      .body = r->body,
                                      .body_size = r->body_size,
                                      .buffer = r->buffer,
                                      .capacity = r->capacity};
    if (r->is_ranged && !(r->is_whole && service->checks_whole_only)) {
        const tsr_str range =
            tsr_arena_format(x->arena, err, "%" PRIu64 "-%" PRIu64, r->offset, r->offset + r->capacity - 1);
        if (!range.data) return TSR_E_NOMEM;
        x->transfer.range = range.data;
    }
    if (r->content_range) TSR_TRY(tsr_exchange_header(x, "Content-Range", r->content_range, err));
    if (r->content_type) TSR_TRY(tsr_exchange_header(x, "Content-Type", r->content_type, err));
    TSR_TRY(add_checksums(service, x, err));
    return service->prepare(service, x, err);
}

/* Follows redirects. The server chooses the new address, so secrets are sent there only if it is the same server. */
static tsr_status follow(tsr_service *service, tsr_exchange *x, tsr_error *err)
{
    tsr_http_transfer *const all[] = {&x->transfer};
    for (unsigned count = 0; x->transfer.result == TSR_TRANSFER_ANSWERED && x->transfer.redirect; count++) {
        tsr_http_transfer *t = &x->transfer;
        const tsr_str to = tsr_arena_str(x->arena, tsr_str_from(t->redirect), err);
        TSR_FAIL_IF(count == MOST_REDIRECTS, err, TSR_E_IO, "%s: the server redirects more than %d times", service->shown,
                    MOST_REDIRECTS);
        if (!to.data) return TSR_E_NOMEM;
        if (!tsr_http_same_origin(t->url, to.data)) {
            t->headers = NULL;
            t->signing = t->user = t->password = NULL;
        }
        t->url = to.data;
        tsr_transport_perform(service->transport, all, 1);
    }
    return TSR_OK;
}

/* Asks again in another region if a header, or the text of the error, says that the request was sent to the wrong one. */
static bool relocate(tsr_service *service, tsr_exchange *x)
{
    const tsr_http_transfer *t = &x->transfer;
    char region[sizeof t->answer.region];
    if (!service->relocate || x->was_relocated || t->result != TSR_TRANSFER_ANSWERED) return false;
    if (t->answer.status != 301 && t->answer.status != 307 && t->answer.status != 400 && t->answer.status != 403)
        return false;
    memcpy(region, t->answer.region, sizeof region);
    if (!region[0] && !find_word(t->problem, "<Region>", "<", region, sizeof region)) return false;
    x->was_relocated = true;
    return service->relocate(service, region);
}

/* Whether the server may have carried out the request although there is no answer that says so. 501 and 503 mean that it has
 * not. */
static bool is_lost(const tsr_http_transfer *t)
{
    if (t->result == TSR_TRANSFER_ANSWERED)
        return t->answer.status >= 500 && t->answer.status != 501 && t->answer.status != 503;
    return t->result == TSR_TRANSFER_CUT;
}

/* ---- checksums ---- */

static pthread_mutex_t refusal_lock = PTHREAD_MUTEX_INITIALIZER;
static char refusal[512]; /* the warning that nobody has taken yet */

static void note_refusal(const char *shown)
{
    pthread_mutex_lock(&refusal_lock);
    snprintf(
        refusal, sizeof refusal,
        "%s: the server refuses checksums in requests, so they were left out; damage on the way to or from it may not be noticed",
        shown);
    pthread_mutex_unlock(&refusal_lock);
}

bool tsr_object_store_take_warning(char *out, size_t size)
{
    pthread_mutex_lock(&refusal_lock);
    const bool has = refusal[0] != '\0';
    if (has) snprintf(out, size, "%s", refusal);
    refusal[0] = '\0';
    pthread_mutex_unlock(&refusal_lock);
    return has;
}

/* Whether to send the request once more without the headers about checksums: the server may not know them. One that has accepted
 * a checksum before knows them, and refuses something else. */
static bool leaves_out_checksums(tsr_service *service, tsr_exchange *x)
{
    const tsr_http_transfer *t = &x->transfer;
    _Atomic int *use = &service->checksum_use[kind_of(x->request)];
    if (t->result != TSR_TRANSFER_ANSWERED) return false;
    if (t->answer.status < 300) {
        if (x->leaves_out_checksums && *use != TSR_CHECKSUMS_REFUSED) {
            *use = TSR_CHECKSUMS_REFUSED;
            note_refusal(service->shown);
        } else if (x->has_checksums) {
            *use = TSR_CHECKSUMS_TAKEN;
        }
        return false;
    }
    if (!x->has_checksums || (t->answer.status != 400 && t->answer.status != 501) || is_mismatch(t) ||
        *use == TSR_CHECKSUMS_TAKEN)
        return false;
    x->leaves_out_checksums = true;
    return true;
}

/* Compares the bytes that arrived with one checksum that the answer states of them. Otherwise, `reason` says what differs. */
static bool is_sum_of(const tsr_http_transfer *t, tsr_checksum_kind kind, const char *stated, char *reason, size_t room)
{
    char computed[TSR_CHECKSUM_TEXT];
    if (!tsr_checksum_text(kind, t->buffer, t->answer.size, computed) || strcmp(computed, stated) == 0) return true;
    snprintf(reason, room, "the bytes that arrived have the %s %s, and the server states %s", tsr_checksum_name(kind),
             computed, stated);
    return false;
}

static bool arrived_damaged(const tsr_service *service, tsr_exchange *x)
{
    tsr_http_transfer *t = &x->transfer;
    const tsr_http_answer *answer = &t->answer;
    const tsr_stated_checksums *stated = &answer->checksums;
    const bool is_whole = answer->status == 200 || (answer->first == 0 && answer->total == answer->size);
    if (!service->compares_checksums || !x->request->is_ranged || t->result != TSR_TRANSFER_ANSWERED) return false;
    if ((answer->status != 200 && answer->status != 206) || t->overflowed || answer->size != t->capacity) return false;
    for (tsr_checksum_kind kind = 0; is_whole && !stated->says_composite && kind < TSR_CHECKSUM_KINDS; kind++)
        if (stated->of_object[kind][0]) return !is_sum_of(t, kind, stated->of_object[kind], t->reason, sizeof t->reason);
    /* Azure states it of the range. What other servers mean by it in an answer with a range is not certain. */
    return stated->md5_of_body[0] && (is_whole || service->most_checked) &&
           !is_sum_of(t, TSR_CHECKSUM_MD5, stated->md5_of_body, t->reason, sizeof t->reason);
}

/* Whether bytes were damaged on their way, in either direction. */
static bool is_damaged(const tsr_service *service, tsr_exchange *x)
{
    if (!arrived_damaged(service, x)) return is_mismatch(&x->transfer);
    x->transfer.result = TSR_TRANSFER_FAILED;
    return true;
}

/* Decides after an attempt whether the request is done. Otherwise *seconds is how long to wait before the next attempt. */
static tsr_status judge(tsr_service *service, tsr_exchange *x, double *seconds, tsr_error *err)
{
    tsr_http_transfer *t = &x->transfer;
    *seconds = 0;
    x->attempts++;
    if (relocate(service, x) || leaves_out_checksums(service, x)) return TSR_OK;
    const bool reads = !x->request->method || strcmp(x->request->method, "HEAD") == 0;
    if (reads && t->redirect) TSR_TRY(follow(service, x, err));
    const bool is_range = t->answer.status == 206 || (t->answer.status == 200 && x->request->is_whole);
    const bool is_short =
        x->request->is_ranged && t->result == TSR_TRANSFER_ANSWERED && is_range && t->answer.size < t->capacity;
    if (is_short) {
        t->result = TSR_TRANSFER_CUT;
        snprintf(t->reason, sizeof t->reason, "the server gave %zu bytes of %zu", t->answer.size, t->capacity);
    }
    if (is_damaged(service, x) && ++x->damaged < MOST_DAMAGED) return TSR_OK;
    x->is_lost = x->request->once && is_lost(t);
    x->is_done = !tsr_retry_worthwhile(t, x->attempts, seconds) || x->is_lost;
    if (x->is_lost) return TSR_OK;
    if (!x->is_done || t->result == TSR_TRANSFER_ANSWERED) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, x->request->is_ranged ? x->request->offset : TSR_NO_POSITION, "%s: %s",
                     tsr_shown_key_of(service, x->request->key).text, t->reason);
}

/* Makes one attempt for each request that is not done. *left is the number of requests to try again, after *seconds. */
static tsr_status attempt(tsr_service *service, tsr_exchange *exchanges, size_t count, size_t *left, double *seconds,
                          tsr_error *err)
{
    tsr_http_transfer *open[MOST_AT_ONCE] = {NULL};
    tsr_exchange *of[MOST_AT_ONCE];
    size_t opened = 0;
    *left = 0;
    *seconds = 0;
    for (size_t i = 0; i < count; i++) {
        if (exchanges[i].is_done) continue;
        TSR_TRY(prepare(service, &exchanges[i], err));
        of[opened] = &exchanges[i];
        open[opened++] = &exchanges[i].transfer;
    }
    tsr_transport_perform(service->transport, open, opened);
    for (size_t i = 0; i < opened; i++) {
        double wait;
        TSR_TRY(judge(service, of[i], &wait, err));
        if (of[i]->is_done) continue;
        ++*left;
        if (wait > *seconds) *seconds = wait;
    }
    return TSR_OK;
}

tsr_status tsr_exchange_perform(tsr_service *service, const tsr_request *requests, tsr_exchange *exchanges, size_t count,
                                tsr_error *err)
{
    for (size_t i = 0; i < count; i++) exchanges[i] = (tsr_exchange){.request = &requests[i]};
    for (size_t from = 0; from < count; from += MOST_AT_ONCE) {
        const size_t size = count - from < MOST_AT_ONCE ? count - from : MOST_AT_ONCE;
        size_t left;
        double seconds;
        TSR_TRY(attempt(service, exchanges + from, size, &left, &seconds, err));
        while (left) {
            if (seconds > 0) tsr_retry_wait(seconds);
            TSR_TRY(attempt(service, exchanges + from, size, &left, &seconds, err));
        }
    }
    return TSR_OK;
}

tsr_status tsr_exchange_text(tsr_service *service, tsr_request request, size_t most, tsr_exchange *x, tsr_str *text,
                             tsr_error *err)
{
    char *buffer = tsr_alloc(service->allocator, most, 1, err);
    *x = (tsr_exchange){0};
    if (!buffer) return TSR_E_NOMEM;
    request.buffer = buffer;
    request.capacity = most;
    tsr_status status = tsr_exchange_perform(service, &request, x, 1, err);
    if (status == TSR_OK && x->transfer.answer.status >= 300) status = tsr_exchange_error(service, x, err);
    if (status == TSR_OK && x->transfer.overflowed)
        status = tsr_fail(err, TSR_E_LIMIT, "%s: an answer is longer than %zu bytes", service->shown, most);
    if (status == TSR_OK) *text = tsr_arena_str(x->arena, (tsr_str){buffer, x->transfer.answer.size}, err);
    if (status == TSR_OK && !text->data) status = TSR_E_NOMEM;
    tsr_free(service->allocator, buffer, most, 1);
    return status;
}
