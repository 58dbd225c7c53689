/* See tessera/sys/path.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "io/block_cache.h"
#include "io/locked.h"
#include "io/sys.h"
#include "io/transport.h"
#include "tessera/memory.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- the origin of a URL (RFC 3986, 3.2): its scheme, host and port, which together decide who may receive a secret ---- */

typedef struct place {
    size_t scheme;    /* number of its characters; 0: neither http nor https */
    const char *user; /* the text after "//" */
    size_t user_size; /* including the '@' */
    const char *host;
    size_t host_size;
    unsigned long port;
} place;

static place place_of(const char *url)
{
    place p = {0};
    const bool secure = strncasecmp(url, "https://", 8) == 0;
    if (!secure && strncasecmp(url, "http://", 7) != 0) return p;
    p.scheme = secure ? 5 : 4;
    p.user = p.host = url + p.scheme + 3;
    const char *end = p.host + strcspn(p.host, "/?#");
    for (const char *at = p.host; at < end; at++)
        if (*at == '@') p.host = at + 1;
    p.user_size = (size_t)(p.host - p.user);
    const char *close = *p.host == '[' ? memchr(p.host, ']', (size_t)(end - p.host)) : NULL;
    const char *colon = memchr(close ? close : p.host, ':', (size_t)(end - (close ? close : p.host)));
    p.host_size = (size_t)((colon ? colon : end) - p.host);
    p.port = colon && colon + 1 < end ? strtoul(colon + 1, NULL, 10) : secure ? 443 : 80;
    return p;
}

bool tsr_http_same_origin(const char *a, const char *b)
{
    const place x = place_of(a), y = place_of(b);
    return x.scheme && x.scheme == y.scheme && x.port == y.port && x.host_size == y.host_size &&
           strncasecmp(x.host, y.host, x.host_size) == 0;
}

/* A copy of `url` (malloc) with the "user:password@" of `from`, unless it has its own; NULL if memory ran out. */
static char *http_with_user(const char *url, const char *from)
{
    const place to = place_of(url), had = place_of(from);
    if (!to.scheme || to.user_size || !had.user_size) return strdup(url);
    const size_t head = (size_t)(to.user - url), size = strlen(url);
    char *text = malloc(size + had.user_size + 1);
    if (!text) return NULL;
    memcpy(text, url, head);
    memcpy(text + head, had.user, had.user_size);
    memcpy(text + head + had.user_size, url + head, size - head + 1);
    return text;
}

/* ---- reading ranges (RFC 9110) ---- */

enum { MOST_REDIRECTS = 10, MOST_HEADERS = 64 };

/* Reads ranges of files at http(s) URLs. */
typedef struct http_reader {
    const tsr_allocator *allocator;
    tsr_transport *transport;
    char *lines;                           /* copy of TESSERA_HTTP_HEADERS, with a NUL at the end of each line */
    const char *headers[MOST_HEADERS + 1]; /* pointers into `lines` */
} http_reader;

/* Which bytes to read, and where to store them. */
typedef struct http_range {
    uint64_t byte_offset;
    size_t size;
    void *buffer;
} http_range;

/* Splits TESSERA_HTTP_HEADERS into lines ("Authorization: Bearer …"). These headers are sent with every request to the
 * origin of the given URL, but not to other origins that it redirects to. */
static tsr_status take_headers(http_reader *http, tsr_error *err)
{
    const char *given = getenv("TESSERA_HTTP_HEADERS");
    size_t count = 0;
    if (!given) return TSR_OK;
    http->lines = strdup(given);
    if (!http->lines) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for HTTP headers");
    for (char *rest = http->lines, *line; (line = strtok_r(rest, "\n", &rest));) {
        if (count == MOST_HEADERS)
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "TESSERA_HTTP_HEADERS has more than %d lines", MOST_HEADERS);
        http->headers[count++] = line;
    }
    return TSR_OK;
}

/* TSR_E_UNSUPPORTED without libcurl. Uses at most `depth` connections. Thread-safe, except for close. */
static void http_close(http_reader *http)
{
    if (!http) return;
    tsr_transport_close(http->transport);
    free(http->lines);
    tsr_free(http->allocator, http, 1, sizeof *http);
}

/* TSR_E_UNSUPPORTED without libcurl. Uses at most `depth` connections. Thread-safe, except for close. */
static tsr_status http_open(const tsr_allocator *allocator, unsigned depth, http_reader **out, tsr_error *err)
{
    http_reader *http = tsr_alloc(allocator, 1, sizeof *http, err);
    if (!http) return TSR_E_NOMEM;
    *http = (http_reader){.allocator = allocator};
    tsr_status status = tsr_transport_open(allocator, depth, &http->transport, err);
    if (status == TSR_OK) status = take_headers(http, err);
    if (status == TSR_OK) *out = http;
    else http_close(http);
    return status;
}

/* ---- one request ---- */

/* `trusted`: includes the secrets that are intended for the origin of the given URL. */
static void perform(const http_reader *http, const char *url, bool trusted, tsr_http_transfer *t)
{
    tsr_http_transfer *const all[] = {t};
    t->url = url;
    t->headers = trusted ? http->headers : NULL;
    t->use_netrc = trusted;
    tsr_transport_perform(http->transport, all, 1);
}

/* Whether `moved` is `url` with a slash: how servers answer to the address of a directory whose slash was left out. */
static bool is_slashed(const char *url, const char *moved)
{
    size_t end = strcspn(url, "?#"), slashed = strcspn(moved, "?#");
    if (!end || !slashed || url[end - 1] == '/' || moved[--slashed] != '/') return false;
    while (end && slashed && url[end - 1] == moved[slashed - 1] && url[end - 1] != '/') end--, slashed--;
    return end && slashed && url[end - 1] == '/' && moved[slashed - 1] == '/';
}

/* Performs a request and follows its redirects. libcurl's own redirects would send all headers except Authorization and
 * Cookie to other hosts, and the .netrc entry of a host to all its ports. Once another origin was involved, a redirect back
 * is not trusted either, because that origin chose the address. */
static void perform_following(const http_reader *http, const char *url, tsr_http_transfer *t)
{
    char *moved = NULL;
    bool trusted = true;
    perform(http, url, true, t);
    for (unsigned count = 0; t->result == TSR_TRANSFER_ANSWERED && t->redirect; count++) {
        trusted = trusted && tsr_http_same_origin(url, t->redirect);
        char *next = trusted ? http_with_user(t->redirect, url) : strdup(t->redirect);
        free(moved);
        moved = next;
        if (!next || count == MOST_REDIRECTS) {
            t->result = TSR_TRANSFER_FAILED;
            snprintf(t->reason, sizeof t->reason, "%s", next ? "Number of redirects hit maximum amount" : "out of memory");
            break;
        }
        perform(http, next, trusted, t);
    }
    t->answer.is_directory = moved && is_slashed(url, moved);
    free(moved);
}

/* Checks that a partial answer contains the range that was requested. */
static tsr_status check_part(const char *shown, const tsr_http_transfer *t, uint64_t byte_offset, size_t size,
                             tsr_error *err)
{
    const tsr_http_answer *answer = &t->answer;
    if (answer->status != 206) return TSR_OK;
    if (!answer->is_range)
        return tsr_raise(err, TSR_E_IO, byte_offset,
                         "%s: the server answered 206 without saying which part of the file it gave", shown);
    const uint64_t asked = byte_offset + size - 1;
    const bool ends_before = answer->total && answer->total - 1 - byte_offset < size - 1 && answer->total > byte_offset;
    const bool may_end_before = answer->total == UINT64_MAX && answer->last < asked; /* where, only the server knows */
    const uint64_t last = ends_before ? answer->total - 1 : may_end_before ? answer->last : asked;
    if (answer->first != byte_offset || answer->last != last)
        return tsr_raise(err, TSR_E_IO, byte_offset,
                         "%s: the server gave bytes %" PRIu64 "-%" PRIu64 " where %" PRIu64 "-%" PRIu64 " were asked for",
                         shown, answer->first, answer->last, byte_offset, last);
    const uint64_t wanted = last - byte_offset + 1;
    if (answer->size == wanted && !t->overflowed) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, byte_offset, "%s: the server gave %s%zu bytes of %" PRIu64, shown,
                     t->overflowed ? "more than " : "", answer->size, wanted);
}

/* Reads the bytes of `range`, or fewer if the file ends before, and follows redirects. If the server sends the whole file,
 * does not wait for what follows the range. The headers in TESSERA_HTTP_HEADERS, the user and password in the URL and those
 * in ~/.netrc are sent only to the URL's own scheme, host and port. Temporary failures are retried (io/transport.h). Any status
 * of the server counts as an answer; TSR_E_IO if there is no answer after all retries, or if a 206 does not contain the
 * requested range. Messages contain the URL without its secrets. */
static tsr_status http_get(http_reader *http, const char *url, http_range range, tsr_http_answer *answer, tsr_error *err)
{
    char header[64], shown[2048];
    double seconds;
    tsr_http_transfer t = {.range = header, .buffer = range.buffer, .capacity = range.size};
    snprintf(header, sizeof header, "%" PRIu64 "-%" PRIu64, range.byte_offset, range.byte_offset + range.size - 1);
    perform_following(http, url, &t);
    for (unsigned attempt = 1; tsr_retry_worthwhile(&t, attempt, &seconds); attempt++) {
        tsr_retry_wait(seconds);
        perform_following(http, url, &t);
    }
    *answer = t.answer;
    shown[tsr_uri_redact(tsr_str_from(url), shown, sizeof shown - 1)] = '\0';
    const tsr_status status = t.result == TSR_TRANSFER_ANSWERED
                                  ? check_part(shown, &t, range.byte_offset, range.size, err)
                                  : tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s: %s", shown, t.reason);
    tsr_http_transfer_clear(&t);
    return status;
}

enum { TSR_REMOTE_MARKED = 8, TSR_REMOTE_MARKER_SIZE = 255 };

/* ---- remote names ---- */

/* Names of files with which a checkpoint is found in a directory of a server that cannot list it. Each framework writes some
 * files under fixed names; the others follow from the contents of these. */

/* Files that most checkpoints have, to be requested one after the other. Ends with NULL. */
static const char *const remote_first[] = {
    ".metadata", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    NULL};
/* Files that the Trainer and accelerate write next to a model. Ends with NULL. */
static const char *const remote_of_trainer[] = {"trainer_state.json", "training_args.bin", "random_states_0.pkl", NULL};
/* The same next to an adapter, without what remote_other has. */
static const char *const remote_of_adapter[] = {"trainer_state.json", "training_args.bin", NULL};
/* An adapter of PEFT, which the Trainer saves in the model's place. Asked for last. */
static const char *const remote_adapters[] = {"adapter_model.safetensors", "adapter_model.bin", NULL};
/* Those files of remote_other that name the directory of the newest checkpoint, in order of precedence. Ends with
 * NULL. */
static const char *const remote_markers[] = {"latest", "latest_universal", "latest_checkpointed_iteration.txt", NULL};

#define OF_ZERO "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero/optimizer_state.pt"
/* Files to request, all together, if there are none of remote_first. Ends with NULL. */
static const char *const remote_other[] = {"latest",
                                           "latest_universal",
                                           "latest_checkpointed_iteration.txt",
                                           OF_ZERO,
                                           "pytorch_model_fsdp_0/.metadata",
                                           "fsdp_config.json",
                                           "pytorch_model_fsdp.bin",
                                           "random_states_0.pkl",
                                           NULL};
static const char *const of_tag[] = {OF_ZERO, NULL};
static const char *const of_iteration[] = {".metadata", "metadata.json", NULL};
static const char *const of_verl[] = {"fsdp_config.json", NULL};

/* Whether a file of remote_first may belong to a checkpoint of the Trainer. */
static bool remote_is_model(const char *name)
{
    return strcmp(name, ".metadata") != 0;
}

typedef struct naming {
    tsr_arena *arena;
    tsr_str *out;
    size_t *count;
    tsr_error *err;
} naming;

static tsr_status add(const naming *n, tsr_str directory, const char *const *names)
{
    for (; *names; names++) {
        const tsr_str name = tsr_arena_format(n->arena, n->err, "%.*s/%s", TSR_STR_ARG(directory), *names);
        if (!name.data) return TSR_E_NOMEM;
        n->out[(*n->count)++] = name;
    }
    return TSR_OK;
}

/* Megatron and verl write a number, from which each forms the name of a directory; DeepSpeed writes the name itself. */
static tsr_status add_numbered(const naming *n, unsigned long long number)
{
    const tsr_str megatron = tsr_arena_format(n->arena, n->err, "iter_%07llu", number);
    const tsr_str verl = tsr_arena_format(n->arena, n->err, "global_step_%llu/actor", number);
    if (!megatron.data || !verl.data) return TSR_E_NOMEM;
    TSR_TRY(add(n, megatron, of_iteration));
    return add(n, verl, of_verl);
}

/* Lists the files to request for the checkpoint that a marker with these bytes names. *count is 0 if the bytes name no
 * directory. Errors: TSR_E_NOMEM. */
static tsr_status remote_marked(tsr_str bytes, tsr_arena *arena, tsr_str out[TSR_REMOTE_MARKED], size_t *count,
                                tsr_error *err)
{
    const naming n = {arena, out, count, err};
    bool is_number = true;
    char digits[19] = "";
    *count = 0;
    while (bytes.size && strchr("\n\r ", bytes.data[bytes.size - 1])) bytes.size--;
    for (size_t i = 0; i < bytes.size; i++) {
        const char c = bytes.data[i];
        if ((unsigned char)c < ' ' || c == '/') return TSR_OK;
        is_number = is_number && tsr_is_digit(c);
    }
    if (bytes.size == 0 || tsr_str_equal(bytes, TSR_STR(".")) || tsr_str_equal(bytes, TSR_STR(".."))) return TSR_OK;
    if (tsr_str_equal(bytes, TSR_STR("release"))) return add(&n, bytes, of_iteration);
    if (!is_number || bytes.size >= sizeof digits) return add(&n, bytes, of_tag);
    memcpy(digits, bytes.data, bytes.size);
    TSR_TRY(add_numbered(&n, strtoull(digits, NULL, 10)));
    return add(&n, bytes, of_tag);
}

/* ---- remote store ---- */

/* Without ranges: the largest file that is read. FIRST: what the request for a file's size asks for if its first bytes will be read; MOST_FIRST: of
 * all files that are asked for together. */
enum { WHOLE = 64 << 20, FIRST = 64 << 10, MOST_FIRST = 16 << 20 };

typedef struct remote_file {
    tsr_str name, url;
    tsr_str shown; /* the URL without its secrets, for messages */
    uint64_t size;
    char version[160];
    char *first; /* its first bytes, which came with its size; all of them, if the server does not support ranges */
    size_t first_size, first_room;
} remote_file;

typedef struct remote_store {
    tsr_store base; /* must be first */
    const tsr_allocator *allocator;
    tsr_arena *arena;
    http_reader *http;
    tsr_str root;     /* the part of URLs that precedes names, with '/' at its end */
    tsr_str query;    /* "?token=…" of the given URL, used for all files */
    bool is_neighbor; /* of a file of this server, so an answer that refuses it may mean that it is missing, as in S3 */
    tsr_vec files;    /* of remote_file, sorted by name */
    tsr_vec listing;  /* of tsr_store_file */
    tsr_block_cache *cache;
    tsr_scheduled_reads *scheduled;
    tsr_guards *guards;
    tsr_pool *readers; /* threads that wait for answers */
} remote_store;

bool tsr_is_address(const char *path)
{
    return strncasecmp(path, "http://", 7) == 0 || strncasecmp(path, "https://", 8) == 0;
}

static remote_file *file_at(remote_store *store, uint32_t file)
{
    return &((remote_file *)store->files.items)[file];
}

/* ---- reading files ---- */

static tsr_status fetch(void *ctx, uint32_t number, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    remote_store *store = ctx;
    const remote_file *file = file_at(store, number);
    tsr_http_answer answer;
    const tsr_status status = http_get(store->http, file->url.data, (http_range){offset, size, buffer}, &answer, err);
    if (status != TSR_OK) return status;
    if (answer.status != 206)
        return tsr_raise(err, TSR_E_IO, offset, "%s answered %ld to a request for a byte range (expected 206)",
                         file->shown.data, answer.status);
    if (strcmp(answer.version, file->version) != 0 || answer.total != file->size)
        return tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION, "%s changed while it was being read", file->shown.data);
    if (answer.size != size)
        return tsr_raise(err, TSR_E_IO, offset, "%s sent %zu bytes of %zu", file->shown.data, answer.size, size);
    return TSR_OK;
}

static bool is_here(const remote_file *file, uint64_t offset, uint64_t size)
{
    return offset <= file->first_size && size <= file->first_size - offset;
}

static tsr_status read_unguarded(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    remote_store *store = ctx;
    const remote_file *f = file_at(store, file);
    if (is_here(f, offset, size)) {
        memcpy(buffer, f->first + offset, size);
        return TSR_OK;
    }
    const size_t taken = tsr_scheduled_reads_take(store->scheduled, file, offset, buffer, size);
    if (taken == size) return TSR_OK;
    offset += taken;
    size -= taken;
    buffer = (char *)buffer + taken;
    if (size > TSR_CACHE_LARGEST_READ) return fetch(store, file, offset, buffer, size, err);
    return tsr_block_cache_read(store->cache, (tsr_block_range){file, f->size, offset}, buffer, size, err);
}

static tsr_status remote_read_at(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    remote_store *store = (remote_store *)base;
    const remote_file *f = file_at(store, file);
    if (size == 0) return TSR_OK;
    if (offset > f->size || size > f->size - offset)
        return tsr_raise(err, TSR_E_IO, offset, "'%s' ends at byte %" PRIu64, f->name.data, f->size);
    return tsr_guards_read(store->guards, file, offset, buffer, size, err);
}

typedef struct fetching {
    remote_store *store;
    tsr_block_run *runs;
} fetching;

static void fetch_run(void *arg, size_t index)
{
    const fetching *f = arg;
    tsr_block_run *run = &f->runs[index];
    tsr_error unused = {0};
    run->is_fetched = fetch(f->store, run->file, run->offset, run->bytes, run->size, &unused) == TSR_OK;
}

static void fetch_runs(void *ctx, tsr_block_run *runs, size_t count)
{
    fetching f = {ctx, runs};
    tsr_pool_run(f.store->readers, count, fetch_run, &f);
}

static bool is_place_here(remote_store *store, const tsr_store_place *p)
{
    return is_here(file_at(store, p->file), p->offset, p->size);
}

/* What came with the sizes of files is in memory already. */
static void remote_prefetch(tsr_store *base, const tsr_store_place *places, size_t count)
{
    remote_store *store = (remote_store *)base;
    for (size_t i = 0, end; i < count; i = end + 1) {
        for (end = i; end < count && !is_place_here(store, &places[end]); end++) continue;
        if (end > i) tsr_block_cache_prefetch(store->cache, base->files, &places[i], end - i, fetch_runs);
    }
}

static tsr_status remote_guard(tsr_store *base, const tsr_store_guard *guard, tsr_error *err)
{
    return tsr_guards_add(((remote_store *)base)->guards, guard, err);
}

/* What came with the sizes of files need not be fetched. */
static tsr_status remote_schedule(tsr_store *base, const tsr_store_place *places, size_t count, tsr_error *err)
{
    remote_store *store = (remote_store *)base;
    tsr_store_place *fetched = count ? tsr_alloc(store->allocator, count, sizeof *fetched, err) : NULL;
    size_t kept = 0;
    if (count && !fetched) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        if (!is_place_here(store, &places[i])) fetched[kept++] = places[i];
    const tsr_status status = tsr_scheduled_reads_begin(store->scheduled, fetched, kept, err);
    tsr_free(store->allocator, fetched, count, sizeof *fetched);
    return status;
}

static void remote_expect(tsr_store *base, uint32_t file, uint64_t offset, uint64_t size)
{
    (void)size;
    (void)tsr_scheduled_reads_reach(((remote_store *)base)->scheduled, file, offset);
}

static void forget_first(const remote_store *store, remote_file *file)
{
    tsr_free(store->allocator, file->first, file->first_room, 1);
    file->first = NULL;
    file->first_size = file->first_room = 0;
}

static void remote_close(tsr_store *base)
{
    remote_store *store = (remote_store *)base;
    tsr_scheduled_reads_free(store->scheduled);
    tsr_pool_free(store->readers);
    tsr_guards_free(store->guards);
    tsr_block_cache_free(store->cache);
    for (uint32_t i = 0; i < store->files.count; i++) forget_first(store, file_at(store, i));
    tsr_vec_free(&store->files);
    tsr_vec_free(&store->listing);
    http_close(store->http);
    tsr_arena_free(store->arena);
    tsr_free(store->allocator, store, 1, sizeof *store);
}

/* ---- requesting files ---- */

/* Asks for the first `size` bytes of a file, and keeps those that it has. */
static tsr_status read_first(const remote_store *store, remote_file *file, size_t size, tsr_http_answer *answer,
                             tsr_error *err)
{
    file->first = tsr_alloc(store->allocator, size, 1, err);
    if (!file->first) return TSR_E_NOMEM;
    file->first_room = size;
    const tsr_status status = http_get(store->http, file->url.data, (http_range){0, size, file->first}, answer, err);
    if (status == TSR_OK && answer->status == 206) file->first_size = answer->size;
    return status;
}

/* Reads a file from a server that does not support ranges. */
static tsr_status read_whole(remote_store *store, remote_file *file, const tsr_http_answer *first, tsr_error *err)
{
    tsr_http_answer answer;
    if (first->total > WHOLE) {
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "%s: the server does not support byte ranges (it answered %ld instead of 206); download it and "
                         "open the local file",
                         file->shown.data, first->status);
    }
    forget_first(store, file);
    TSR_TRY(read_first(store, file, (size_t)file->size + 1, &answer, err)); /* one more, to notice that there are more */
    if (answer.size != file->size)
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%s gave %zu bytes of %" PRIu64, file->shown.data, answer.size,
                         file->size);
    file->first_size = answer.size;
    return TSR_OK;
}

/* Asks the server for the size and version of a file, together with its first bytes. TSR_E_NOT_FOUND if it does not have the file. */
static tsr_status ask(remote_store *store, remote_file *file, size_t first, tsr_error *err)
{
    tsr_http_answer answer;
    TSR_TRY(read_first(store, file, first, &answer, err));
    memcpy(file->version, answer.version, sizeof file->version);
    file->size = answer.total;
    if (answer.status == 416 && answer.total == 0) return TSR_OK; /* an empty file has no first byte */
    if (answer.status == 206 && answer.total != UINT64_MAX) return TSR_OK;
    if (answer.status == 206)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "%s: the server does not report the size of the file; download it and open the local file",
                         file->shown.data);
    if (answer.status == 200 && answer.size == answer.total) {
        file->first_size = answer.size;
        return TSR_OK;
    }
    if (answer.status == 200) return read_whole(store, file, &answer, err);
    const bool is_refused = answer.status == 401 || answer.status == 403;
    const bool is_missing =
        answer.status == 404 || answer.status == 410 || (is_refused && (answer.is_directory || store->is_neighbor));
    return tsr_raise(err, is_missing ? TSR_E_NOT_FOUND : TSR_E_IO, TSR_NO_POSITION, "%s: the server answered %ld%s",
                     file->shown.data, answer.status,
                     is_refused ? "; check the URL's signature, TESSERA_HTTP_HEADERS or ~/.netrc" : "");
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const remote_file *)a)->name, ((const remote_file *)b)->name);
}

/* Fills the store's listing after files were added. */
static tsr_status list_files(remote_store *store, tsr_error *err)
{
    store->listing.count = 0;
    if (store->files.count) qsort(store->files.items, store->files.count, sizeof(remote_file), by_name);
    for (uint32_t i = 0; i < store->files.count; i++) {
        tsr_store_file *listed = tsr_vec_push(&store->listing, err);
        if (!listed) return TSR_E_NOMEM;
        *listed = (tsr_store_file){file_at(store, i)->name, file_at(store, i)->size};
    }
    store->base.files = store->listing.items;
    store->base.file_count = (uint32_t)store->listing.count;
    tsr_block_cache_forget(store->cache, store->files.count); /* the numbers of files have changed */
    tsr_guards_forget(store->guards);
    return tsr_scheduled_reads_begin(store->scheduled, NULL, 0, err);
}

/* Makes the URL of a name below the root. Characters with a special meaning in URLs are escaped. */
static tsr_str address_of(const remote_store *store, tsr_str name, tsr_error *err)
{
    const size_t root = store->root.size, room = 3 * name.size;
    char *text = tsr_arena_array(store->arena, root + room + store->query.size + 1, 1, err);
    if (!text) return (tsr_str){NULL, 0};
    memcpy(text, store->root.data, root);
    const size_t n = root + tsr_uri_path(name, text + root, room);
    memcpy(text + n, store->query.data, store->query.size);
    return (tsr_str){text, n + store->query.size};
}

static tsr_str shown_as(const remote_store *store, tsr_str url, tsr_error *err)
{
    char *text = url.data ? tsr_arena_array(store->arena, 3 * url.size + 1, 1, err) : NULL;
    if (!text) return (tsr_str){NULL, 0};
    const size_t size = tsr_uri_redact(url, text, 3 * url.size);
    text[size] = '\0';
    return (tsr_str){text, size};
}

typedef struct asking {
    remote_store *store;
    size_t first; /* bytes of each file to ask for */
    remote_file *files;
    tsr_status *statuses;
    tsr_error *errors;
} asking;

static void ask_one(void *arg, size_t index)
{
    const asking *a = arg;
    a->statuses[index] = ask(a->store, &a->files[index], a->first, &a->errors[index]);
}

static tsr_status take_answers(const asking *a, size_t count, size_t *added, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count; i++) {
        remote_file *file = a->statuses[i] == TSR_OK ? tsr_vec_push(&a->store->files, err) : NULL;
        if (file) {
            *file = a->files[i];
            ++*added;
        } else {
            forget_first(a->store, &a->files[i]);
            if (status != TSR_OK || a->statuses[i] == TSR_E_NOT_FOUND) continue;
            status = a->statuses[i] == TSR_OK ? TSR_E_NOMEM : a->statuses[i];
            if (a->statuses[i] != TSR_OK && err) *err = a->errors[i];
        }
    }
    return status;
}

/* Of a few files 64 KiB each, of many less. */
static size_t first_of(size_t count)
{
    const size_t each = count ? MOST_FIRST / count : 0;
    return each > FIRST ? FIRST : each ? each : 1;
}

tsr_status tsr_remote_store_add(tsr_store *base, const tsr_str *names, size_t count, bool with_first, size_t *added,
                                tsr_error *err)
{
    remote_store *store = (remote_store *)base;
    asking a = {.store = store,
                .first = with_first ? first_of(count) : 1,
                .files = tsr_arena_array(store->arena, count, sizeof *a.files, err),
                .statuses = tsr_arena_array(store->arena, count, sizeof *a.statuses, err),
                .errors = tsr_alloc(store->allocator, count + 1, sizeof *a.errors, err)};
    *added = 0;
    tsr_status status = a.files && a.statuses && a.errors ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        a.errors[i] = (tsr_error){0};
        a.files[i].name = tsr_arena_str(store->arena, names[i], err);
        a.files[i].url = address_of(store, names[i], err);
        a.files[i].shown = shown_as(store, a.files[i].url, err);
        if (!a.files[i].name.data || !a.files[i].shown.data) status = TSR_E_NOMEM;
    }
    if (status == TSR_OK) tsr_pool_run(store->readers, count, ask_one, &a);
    if (status == TSR_OK) status = take_answers(&a, count, added, err);
    if (a.errors) tsr_free(store->allocator, a.errors, count + 1, sizeof *a.errors);
    return status == TSR_OK && *added ? list_files(store, err) : status;
}

/* ---- opening ---- */

/* Splits "https://host/directory/name?query" into root, name and query. A fragment is ignored. */
static tsr_status split(remote_store *store, const char *address, tsr_str *name, tsr_error *err)
{
    const size_t end = strcspn(address, "?#");
    const size_t query = address[end] == '?' ? strcspn(address + end, "#") : 0;
    size_t slash = end;
    while (slash && address[slash - 1] != '/') slash--;
    const size_t host = (size_t)(strstr(address, "//") - address) + 2;
    const bool bare = slash <= host; /* there is no path */
    store->root = bare ? tsr_arena_format(store->arena, err, "%.*s/", (int)end, address)
                       : tsr_arena_str(store->arena, (tsr_str){address, slash}, err);
    store->query = tsr_arena_str(store->arena, (tsr_str){address + end, query}, err);
    *name = bare ? TSR_STR("") : (tsr_str){address + slash, end - slash};
    return store->root.data && store->query.data ? TSR_OK : TSR_E_NOMEM;
}

/* Decodes "model%20one.pt" to "model one.pt". */
static tsr_str unescape(tsr_arena *arena, tsr_str text, tsr_error *err)
{
    char *out = tsr_arena_array(arena, text.size + 1, 1, err);
    return (tsr_str){out, out ? tsr_uri_decode(text, false, out) : 0};
}

/* Requests the names of a list that ends with NULL, all at the same time. */
static tsr_status ask_for(remote_store *store, const char *const *list, tsr_error *err)
{
    tsr_str names[16];
    size_t count = 0, added;
    while (list[count] && count < sizeof names / sizeof *names) {
        names[count] = tsr_str_from(list[count]);
        count++;
    }
    return tsr_remote_store_add(&store->base, names, count, true, &added, err);
}

/* Requests the files that the first existing marker leads to. */
static tsr_status follow_marker(remote_store *store, tsr_error *err)
{
    char bytes[TSR_REMOTE_MARKER_SIZE];
    tsr_str names[TSR_REMOTE_MARKED];
    size_t count, added;
    uint32_t file = TSR_NO_FILE;
    for (size_t i = 0; remote_markers[i] && file == TSR_NO_FILE; i++)
        file = tsr_store_find(&store->base, tsr_str_from(remote_markers[i]));
    const uint64_t size = file == TSR_NO_FILE ? 0 : store->base.files[file].size;
    if (size == 0 || size > sizeof bytes) return TSR_OK;
    tsr_status status = remote_read_at(&store->base, file, 0, bytes, (size_t)size, err);
    if (status == TSR_OK) status = remote_marked((tsr_str){bytes, (size_t)size}, store->arena, names, &count, err);
    return status == TSR_OK && count ? tsr_remote_store_add(&store->base, names, count, true, &added, err) : status;
}

static tsr_status find_first(remote_store *store, tsr_error *err)
{
    for (size_t i = 0; remote_first[i]; i++) {
        const tsr_str name = tsr_str_from(remote_first[i]);
        size_t added;
        TSR_TRY(tsr_remote_store_add(&store->base, &name, 1, true, &added, err));
        if (added) return remote_is_model(remote_first[i]) ? ask_for(store, remote_of_trainer, err) : TSR_OK;
    }
    return TSR_OK;
}

static tsr_status open_directory(remote_store *store, const char *address, tsr_error *err)
{
    tsr_status status = find_first(store, err);
    if (status != TSR_OK || store->base.file_count) return status;
    status = ask_for(store, remote_other, err);
    if (status == TSR_OK) status = follow_marker(store, err);
    if (status != TSR_OK || store->base.file_count) return status;
    status = ask_for(store, remote_adapters, err);
    if (status == TSR_OK && store->base.file_count) return ask_for(store, remote_of_adapter, err);
    if (status != TSR_OK) return status;
    const tsr_str shown = shown_as(store, tsr_str_from(address), err);
    if (!shown.data) return TSR_E_NOMEM;
    return tsr_raise(
        err, TSR_E_NOT_FOUND, TSR_NO_POSITION,
        "%s: the server has none of the files by which a checkpoint is found (.metadata, an index, "
        "model.safetensors, pytorch_model.bin, or those of DeepSpeed, Megatron, accelerate, verl and PEFT); pass the "
        "URL of a file",
        shown.data);
}

static tsr_status open_file(remote_store *store, const char *address, tsr_str name, tsr_error *err)
{
    remote_file file = {.name = unescape(store->arena, name, err),
                        .url = tsr_arena_str(store->arena, tsr_str_from(address), err)};
    file.shown = shown_as(store, file.url, err);
    if (!file.name.data || !file.shown.data) return TSR_E_NOMEM;
    tsr_status status = ask(store, &file, FIRST, err);
    remote_file *kept = status == TSR_OK ? tsr_vec_push(&store->files, err) : NULL;
    if (kept) *kept = file;
    else forget_first(store, &file);
    if (status == TSR_OK) status = kept ? list_files(store, err) : TSR_E_NOMEM;
    if (status == TSR_OK) store->base.primary = 0;
    return status;
}

const char *tsr_remote_store_version(const tsr_store *store, uint32_t file)
{
    const remote_store *remote = (const remote_store *)store;
    return store->close == remote_close ? ((const remote_file *)remote->files.items)[file].version : "";
}

static tsr_status open_as_given(const tsr_host *host, const char *address, bool is_neighbor, tsr_store **out,
                                tsr_error *err);

/* A query is taken for a signature, which is only valid for the file that was given. */
static tsr_status remote_neighbor(tsr_store *base, const tsr_host *host, tsr_str name, tsr_store **out, tsr_error *err)
{
    remote_store *store = (remote_store *)base;
    TSR_FAIL_IF(store->query.size, err, TSR_E_NOT_FOUND, "the signature of the URL is for one file only");
    const tsr_str address = address_of(store, name, err);
    return address.data ? open_as_given(host, address.data, true, out, err) : TSR_E_NOMEM;
}

static tsr_status open_as_given(const tsr_host *host, const char *address, bool is_neighbor, tsr_store **out, tsr_error *err)
{
    const tsr_allocator *allocator = host->allocator;
    remote_store *store = tsr_alloc(allocator, 1, sizeof *store, err);
    tsr_str name;
    if (!store) return TSR_E_NOMEM;
    *store = (remote_store){.base = {.primary = TSR_NO_FILE,
                                     .read_at = remote_read_at,
                                     .close = remote_close,
                                     .guard = remote_guard,
                                     .expect = remote_expect,
                                     .prefetch = remote_prefetch,
                                     .schedule = remote_schedule,
                                     .neighbor = remote_neighbor,
                                     .parallel_for = tsr_pool_run},
                            .allocator = allocator,
                            .is_neighbor = is_neighbor,
                            .files = tsr_vec_of(allocator, sizeof(remote_file)),
                            .listing = tsr_vec_of(allocator, sizeof(tsr_store_file))};
    store->arena = tsr_arena_new(allocator, 0, err);
    const uint32_t depth = tsr_io_depth(host);
    store->base.parallel_ctx = store->readers = tsr_pool_new(depth);
    store->base.threads = depth;
    tsr_status status = store->arena && store->readers ? http_open(allocator, depth, &store->http, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_block_cache_new(allocator, fetch, store, &store->cache, err);
    if (status == TSR_OK) status = tsr_scheduled_reads_new(host, fetch, store, &store->scheduled, err);
    if (status == TSR_OK) status = tsr_thread_guards_new(allocator, read_unguarded, store, &store->guards, err);
    if (status == TSR_OK) status = split(store, address, &name, err);
    if (status == TSR_OK) status = name.size ? open_file(store, address, name, err) : open_directory(store, address, err);
    if (status != TSR_OK) {
        remote_close(&store->base);
        return status;
    }
    *out = &store->base;
    return TSR_OK;
}

/* Whether the only file of a store is a web page, which no checkpoint begins like. */
static bool is_page(tsr_store *store)
{
    static const char *const pages[] = {"<!doctype html", "<html"};
    char begin[16] = {0};
    tsr_error ignored = {0};
    const uint64_t size = store->primary == TSR_NO_FILE ? 0 : store->files[store->primary].size;
    if (tsr_store_read(store, store->primary, 0, begin, size < 15 ? (size_t)size : 15, &ignored) != TSR_OK) return false;
    return strncasecmp(begin, pages[0], strlen(pages[0])) == 0 || strncasecmp(begin, pages[1], strlen(pages[1])) == 0;
}

/* The address of a directory whose slash was left out: servers answer with a redirect to their page for it, or to nothing that may be
 * read, or with 404. */
static tsr_status open_with_slash(const tsr_host *host, const char *address, tsr_store **out, tsr_error *err)
{
    const size_t end = strcspn(address, "?#");
    tsr_arena *arena = end && address[end - 1] != '/' ? tsr_arena_new(host->allocator, 0, err) : NULL;
    if (!arena) return TSR_E_NOT_FOUND;
    const tsr_str slashed = tsr_arena_format(arena, err, "%.*s/%s", (int)end, address, address + end);
    const tsr_status status = slashed.data ? open_as_given(host, slashed.data, false, out, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_remote_store_open(const tsr_host *host, const char *address, tsr_store **out, tsr_error *err)
{
    tsr_store *directory = NULL;
    tsr_error ignored = {0}, failure = {0};
    const tsr_status status = open_as_given(host, address, false, out, &failure);
    const bool may_be_directory = status == TSR_OK ? is_page(*out) : status == TSR_E_NOT_FOUND;
    if (may_be_directory && open_with_slash(host, address, &directory, &ignored) == TSR_OK) {
        if (status == TSR_OK) (*out)->close(*out);
        *out = directory;
        return TSR_OK;
    }
    if (status != TSR_OK && err) *err = failure;
    return status;
}
