/* See tessera/sys/object_store.h. */
#include "tessera/sys/object_store.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/block_cache.h"
#include "io/locked.h"
#include "io/sys.h"
#include "object_store/exchange.h"
#include "object_store/service.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- checksums ---- */

/* Adds up the checksums of the ranges of objects that arrive, in any order and from any thread, until an object has arrived whole. What a
 * store states of the whole object can then be compared with it, although no request was for the whole object. */

/* Bytes of an object that have arrived. */
typedef struct arrived_bytes {
    const tsr_object *object;
    tsr_checksum_kind kind; /* not MD5, and always the same for an object */
    uint64_t offset;
    const void *data;
    size_t size;
} arrived_bytes;

/* Bytes that have arrived, with their checksum. */
typedef struct piece {
    uint64_t begin, end;
    uint64_t sum;
} piece;

typedef struct object_sum {
    tsr_vec pieces; /* sorted; neighbours are joined */
} object_sum;

typedef struct object_sums {
    const tsr_allocator *allocator;
    pthread_mutex_t lock;
    tsr_vec objects; /* of object_sum, those that have arrived in part */
    tsr_map *places; /* by key, the place in `objects` */
} object_sums;

static tsr_status sums_new(const tsr_allocator *allocator, object_sums **out, tsr_error *err)
{
    object_sums *sums = tsr_alloc(allocator, 1, sizeof *sums, err);
    if (!sums) return TSR_E_NOMEM;
    *sums = (object_sums){.allocator = allocator, .objects = tsr_vec_of(allocator, sizeof(object_sum))};
    pthread_mutex_init(&sums->lock, NULL);
    sums->places = tsr_map_new(allocator, 0, err);
    *out = sums;
    return sums->places ? TSR_OK : TSR_E_NOMEM;
}

/* accepts NULL */
static void sums_free(object_sums *sums)
{
    if (!sums) return;
    object_sum *objects = sums->objects.items;
    for (size_t i = 0; i < sums->objects.count; i++) tsr_vec_free(&objects[i].pieces);
    tsr_vec_free(&sums->objects);
    tsr_map_free(sums->places);
    pthread_mutex_destroy(&sums->lock);
    tsr_free(sums->allocator, sums, 1, sizeof *sums);
}

static object_sum *find(object_sums *sums, const tsr_object *object, tsr_error *err)
{
    uint32_t at = tsr_map_get(sums->places, object->key, UINT32_MAX);
    if (at == UINT32_MAX) {
        at = (uint32_t)sums->objects.count;
        object_sum *added = tsr_vec_push(&sums->objects, err);
        if (!added) return NULL;
        *added = (object_sum){tsr_vec_of(sums->allocator, sizeof(piece))};
        if (tsr_map_put(sums->places, object->key, at, NULL, NULL, err) != TSR_OK) return NULL;
    }
    return (object_sum *)sums->objects.items + at;
}

/* Joins the piece at `i` with the next one if that begins where it ends. */
static void join(tsr_vec *pieces, tsr_checksum_kind kind, size_t i)
{
    piece *p = (piece *)pieces->items + i;
    if (i + 1 >= pieces->count || p[0].end != p[1].begin) return;
    p[0].sum = tsr_checksum_join(kind, p[0].sum, p[1].sum, p[1].end - p[1].begin);
    p[0].end = p[1].end;
    pieces->count--;
    memmove(p + 1, p + 2, (pieces->count - i - 1) * sizeof *p);
}

/* Puts a piece before the one at `i`, and returns the place of what it became. */
static tsr_status insert(tsr_vec *pieces, tsr_checksum_kind kind, size_t *i, piece added, tsr_error *err)
{
    if (!tsr_vec_push(pieces, err)) return TSR_E_NOMEM;
    piece *p = (piece *)pieces->items + *i;
    memmove(p + 1, p, (pieces->count - *i - 1) * sizeof *p);
    *p = added;
    join(pieces, kind, *i);
    if (*i > 0) {
        const size_t count = pieces->count;
        join(pieces, kind, *i - 1);
        *i -= pieces->count < count;
    }
    return TSR_OK;
}

static tsr_status add(object_sum *one, const arrived_bytes *bytes, tsr_error *err)
{
    const uint64_t end = bytes->offset + bytes->size;
    size_t i = 0;
    for (uint64_t at = bytes->offset; at < end;) {
        const piece *p = (const piece *)one->pieces.items + i;
        if (i < one->pieces.count && p->end <= at) {
            i++;
        } else if (i < one->pieces.count && p->begin <= at) {
            at = p->end;
        } else {
            const uint64_t until = i < one->pieces.count && p->begin < end ? p->begin : end;
            const uint8_t *data = (const uint8_t *)bytes->data + (at - bytes->offset);
            const piece added = {at, until, tsr_checksum_of(bytes->kind, data, (size_t)(until - at))};
            TSR_TRY(insert(&one->pieces, bytes->kind, &i, added, err));
        }
    }
    return TSR_OK;
}

/* Adds bytes; those that were added before are passed over. Borrows the object's key. When they are the last that were missing, *whole is true
 * and `sum` is the checksum of the object. Errors: TSR_E_NOMEM. */
static tsr_status sums_add(object_sums *sums, const arrived_bytes *bytes, bool *whole, char sum[TSR_CHECKSUM_TEXT],
                           tsr_error *err)
{
    const uint64_t size = bytes->object->size;
    pthread_mutex_lock(&sums->lock);
    object_sum *one = find(sums, bytes->object, err);
    const piece *first = one ? one->pieces.items : NULL;
    const bool was_whole = one && one->pieces.count && first->begin == 0 && first->end == size;
    const tsr_status status = !one ? TSR_E_NOMEM : was_whole ? TSR_OK : add(one, bytes, err);
    first = one ? one->pieces.items : NULL;
    *whole = status == TSR_OK && !was_whole && one->pieces.count && first->begin == 0 && first->end == size;
    if (*whole) tsr_checksum_spell(bytes->kind, first->sum, sum);
    pthread_mutex_unlock(&sums->lock);
    return status;
}

/* ---- path store ---- */

bool tsr_is_url(const char *path)
{
    return tsr_is_object_url(path) || tsr_is_address(path);
}

tsr_status tsr_path_store_open_by(const tsr_store_opener *opener, const char *path, tsr_store **out, tsr_error *err)
{
    if (tsr_is_object_url(path)) return tsr_object_store_open(opener->host, path, out, err);
    if (tsr_is_address(path)) return tsr_remote_store_open(opener->host, path, out, err);
    return tsr_directory_store_open(opener->sys, opener->host->allocator, path, out, err);
}

tsr_status tsr_path_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err)
{
    return tsr_path_store_open_by(&(tsr_store_opener){.host = host}, path, out, err);
}

tsr_status tsr_run_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err)
{
    if (tsr_is_object_url(path)) return tsr_object_directory_open(host, path, out, err);
    TSR_FAIL_IF(
        tsr_is_address(path), err, TSR_E_USAGE,
        "an HTTP server does not list directories, so its checkpoints are unknown; name a directory, or the URL of an "
        "object store");
    TSR_TRY(tsr_directory_store_open(NULL, host->allocator, path, out, err));
    if ((*out)->primary == TSR_NO_FILE) return TSR_OK;
    (*out)->close(*out);
    *out = NULL;
    return tsr_fail(err, TSR_E_USAGE, "this is a file; name the directory of a run");
}

tsr_status tsr_document_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err)
{
    if (tsr_is_document(path)) {
        const tsr_memory_file document = {TSR_STR("document"), tsr_str_from(path)};
        TSR_TRY(tsr_store_from_memory(host->allocator, &document, 1, out, err));
        (*out)->primary = 0;
        return TSR_OK;
    }
    const bool is_pipe = !tsr_is_url(path) && tsr_is_pipe(path);
    return is_pipe ? tsr_pipe_store_open(host->allocator, path, out, err) : tsr_path_store_open(host, path, out, err);
}

const char *tsr_path_store_version(const tsr_store *store, uint32_t file)
{
    const char *version = tsr_object_store_version(store, file);
    return *version ? version : tsr_remote_store_version(store, file);
}

tsr_hidden_names tsr_path_store_hidden(const tsr_store *store)
{
    const tsr_hidden_names hidden = tsr_object_store_hidden(store);
    return hidden.count ? hidden : tsr_directory_store_hidden(store);
}

static bool is_within(const char *inner, const char *outer)
{
    size_t size = strlen(outer);
    while (size && outer[size - 1] == '/') size--;
    return strncmp(inner, outer, size) == 0 && (inner[size] == '\0' || inner[size] == '/');
}

tsr_status tsr_urls_refuse_overlap(const char *const *sources, size_t count, const char *destination, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!is_within(sources[i], destination) && !is_within(destination, sources[i])) continue;
        return tsr_fail(err, TSR_E_USAGE, "the destination '%s' is, contains or is inside the source '%s'", destination,
                        sources[i]);
    }
    return TSR_OK;
}

tsr_status tsr_path_must_be_local(const char *path, tsr_error *err)
{
    char shown[1024];
    if (!tsr_is_url(path)) return TSR_OK;
    shown[tsr_uri_redact(tsr_str_from(path), shown, sizeof shown - 1)] = '\0';
    return tsr_fail(err, TSR_E_UNSUPPORTED, "cannot write to '%s'; name a path on this machine", shown);
}

/* ---- object store ---- */

enum { PART = 4 << 20, MOST_PARTS = 64, DAMAGE_TEXT = 256 };

typedef struct object_file {
    tsr_str name; /* relative to the root */
    const tsr_object *object;
} object_file;

typedef struct object_store {
    tsr_store base; /* must be first */
    const tsr_allocator *allocator;
    tsr_service *service;
    tsr_str url;             /* that was opened */
    tsr_object_list objects; /* all objects that were listed */
    size_t root;             /* bytes of a key that precede the name */
    object_file *files;      /* the objects that the store shows, sorted by name; has room for all objects */
    tsr_store_file *listing;
    tsr_hidden_names hidden;
    size_t room;
    tsr_block_cache *cache;
    tsr_scheduled_reads *scheduled;
    tsr_guards *guards;
    object_sums *sums;
    tsr_pool *readers;         /* threads that wait for answers */
    pthread_mutex_t lock;      /* for `damaged` */
    const tsr_object *damaged; /* the first that arrived whole with another checksum than the server states; NULL: none */
    char damage[DAMAGE_TEXT];  /* how */
} object_store;

/* ---- reading ---- */

static tsr_status check_answer(const object_store *store, const tsr_object *object, const tsr_exchange *x, tsr_error *err)
{
    const tsr_http_answer *answer = &x->transfer.answer;
    const tsr_request *r = x->request;
    const tsr_str version = store->service->versions_are_generations ? tsr_str_from(answer->generation)
                                                                     : tsr_version_text(tsr_str_from(answer->version));
    const char *shown = store->service->shown;
    const bool is_changed = answer->status == 412 || answer->status == 416 ||
                            (answer->status == 206 && answer->total != UINT64_MAX && answer->total != object->size) ||
                            (answer->status < 300 && object->version.size && version.size &&
                             store->service->states_versions && !tsr_str_equal(version, object->version));
    TSR_FAIL_IF(is_changed, err, TSR_E_CHANGED, "%s/%.*s changed while it was read", shown, TSR_STR_ARG(object->key));
    if (answer->status >= 300) return tsr_exchange_error(store->service, x, err);
    if (answer->status == 200 && r->offset == 0 && r->capacity == object->size && answer->size == r->capacity &&
        !x->transfer.overflowed && answer->version[0])
        return TSR_OK; /* the server sent the whole object, which is what was requested */
    if (answer->status != 206)
        return tsr_raise(err, TSR_E_IO, r->offset,
                         "%s/%.*s: the server answered %ld where a part of the object (206) was asked for", shown,
                         TSR_STR_ARG(object->key), answer->status);
    if (!answer->is_range || answer->first != r->offset || answer->last != r->offset + r->capacity - 1 ||
        answer->size != r->capacity || x->transfer.overflowed)
        return tsr_raise(err, TSR_E_IO, r->offset, "%s/%.*s: the server gave other bytes than those that were asked for",
                         shown, TSR_STR_ARG(object->key));
    return TSR_OK;
}

/* ---- checksums of objects that arrive in ranges ---- */

/* The kind of the checksum that the server can state of a whole object; TSR_CHECKSUM_KINDS: none that ranges can be joined to. Google states it
 * in every answer, S3 only in one that is about the whole object. */
static tsr_checksum_kind sum_kind_of(const tsr_service *service, const tsr_object *object,
                                     const tsr_stated_checksums *stated)
{
    static const struct {
        const char *name;
        tsr_checksum_kind kind;
    } of_s3[] = {{"CRC32", TSR_CHECKSUM_CRC32}, {"CRC32C", TSR_CHECKSUM_CRC32C}, {"CRC64NVME", TSR_CHECKSUM_CRC64}};
    for (tsr_checksum_kind kind = 0; kind < TSR_CHECKSUM_MD5; kind++)
        if (!service->checks_whole_only && stated->of_object[kind][0]) return kind;
    for (size_t i = 0; i < sizeof of_s3 / sizeof *of_s3; i++)
        if (tsr_str_equal(object->checksum, tsr_str_from(of_s3[i].name))) return of_s3[i].kind;
    return TSR_CHECKSUM_KINDS;
}

/* Asks S3 for the checksum of an object; it does not state it with ranges. Empty if there is none, or one composed of those of parts. */
static tsr_status ask_for_sum(object_store *store, const tsr_object *object, tsr_checksum_kind kind, char *out,
                              tsr_error *err)
{
    const tsr_request request = {.method = "HEAD", .key = object->key, .checksums = {store->service->checksum_request}};
    tsr_exchange x = {0};
    const tsr_status status = tsr_exchange_perform(store->service, &request, &x, 1, err);
    const tsr_http_answer *answer = &x.transfer.answer;
    const bool is_same = tsr_str_equal(tsr_version_text(tsr_str_from(answer->version)), object->version);
    out[0] = '\0';
    /* Servers that do not say so may mean a checksum of the checksums of an upload's parts. */
    if (status == TSR_OK && answer->status == 200 && is_same && answer->checksums.says_full)
        memcpy(out, answer->checksums.of_object[kind], TSR_CHECKSUM_TEXT);
    tsr_exchange_end(&x);
    return status;
}

static tsr_status check_damage(object_store *store, const tsr_object *object, tsr_error *err)
{
    pthread_mutex_lock(&store->lock);
    const bool is_damaged = store->damaged == object;
    pthread_mutex_unlock(&store->lock);
    return is_damaged ? tsr_fail(err, TSR_E_IO, "%s: %s", tsr_shown_key_of(store->service, object->key).text, store->damage)
                      : TSR_OK;
}

/* From here on every read of the object fails. */
static tsr_status fail_as_damaged(object_store *store, const tsr_object *object, const char *damage, tsr_error *err)
{
    pthread_mutex_lock(&store->lock);
    if (!store->damaged) snprintf(store->damage, sizeof store->damage, "%s", damage);
    if (!store->damaged) store->damaged = object;
    pthread_mutex_unlock(&store->lock);
    return tsr_fail(err, TSR_E_IO, "%s: %s", tsr_shown_key_of(store->service, object->key).text, damage);
}

/* Compares an object with its checksum when the last of its ranges has arrived. Which of them is damaged is not known then, so that the read
 * fails, and so does every later read of the object. */
static tsr_status sum_up(object_store *store, const tsr_object *object, const tsr_exchange *x, tsr_error *err)
{
    const tsr_http_transfer *t = &x->transfer;
    const tsr_checksum_kind kind = sum_kind_of(store->service, object, &t->answer.checksums);
    char sum[TSR_CHECKSUM_TEXT], stated[TSR_CHECKSUM_TEXT];
    bool whole;
    if (!store->service->compares_checksums || kind == TSR_CHECKSUM_KINDS || t->capacity == object->size) return TSR_OK;
    TSR_TRY(check_damage(store, object, err));
    const arrived_bytes bytes = {object, kind, x->request->offset, t->buffer, t->capacity};
    TSR_TRY(sums_add(store->sums, &bytes, &whole, sum, err));
    if (!whole) return TSR_OK;
    if (store->service->checks_whole_only) TSR_TRY(ask_for_sum(store, object, kind, stated, err));
    else memcpy(stated, t->answer.checksums.of_object[kind], sizeof stated);
    if (!stated[0] || strcmp(sum, stated) == 0) return TSR_OK;
    char damage[DAMAGE_TEXT];
    snprintf(damage, sizeof damage,
             "the bytes that arrived have the %s %s, and the server states %s of the whole object; read it again",
             tsr_checksum_name(kind), sum, stated);
    return fail_as_damaged(store, object, damage, err);
}

typedef struct part_range {
    const tsr_object *object;
    uint64_t offset;
    size_t size;
} part_range;

/* Fetches a range with 1 to MOST_PARTS requests at the same time. */
static tsr_status fetch_parts(object_store *store, part_range range, char *buffer, tsr_error *err)
{
    const tsr_object *object = range.object;
    tsr_request requests[MOST_PARTS];
    tsr_exchange *exchanges = tsr_alloc(store->allocator, MOST_PARTS, sizeof *exchanges, err);
    size_t count = 0;
    if (!exchanges) return TSR_E_NOMEM;
    for (size_t at = 0; at < range.size; at += PART) {
        const size_t size = range.size - at < PART ? range.size - at : PART;
        requests[count++] = (tsr_request){.key = object->key,
                                          .is_ranged = true,
                                          .is_whole = size == object->size,
                                          .offset = range.offset + at,
                                          .buffer = buffer + at,
                                          .capacity = size};
    }
    tsr_status status = tsr_exchange_perform(store->service, requests, exchanges, count, err);
    for (size_t i = 0; i < count; i++) {
        if (status == TSR_OK) status = check_answer(store, object, &exchanges[i], err);
        if (status == TSR_OK) status = sum_up(store, object, &exchanges[i], err);
        tsr_exchange_end(&exchanges[i]);
    }
    tsr_free(store->allocator, exchanges, MOST_PARTS, sizeof *exchanges);
    return status;
}

static tsr_status store_fetch(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    object_store *store = ctx;
    const size_t most = (size_t)MOST_PARTS * PART;
    for (size_t at = 0; at < size; at += most)
        TSR_TRY(fetch_parts(store, (part_range){store->files[file].object, offset + at, size - at < most ? size - at : most},
                            (char *)buffer + at, err));
    return TSR_OK;
}

/* Fetches what the cache does not have. Of bytes that arrive twice, only those that come first are summed up; at the edges, that happens
 * only to those that a small read fetches at the same time. */
static tsr_status fetch_rest(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    object_store *store = ctx;
    const uint64_t file_size = store->base.files[file].size;
    size_t head, tail;
    tsr_block_cache_take(store->cache, (tsr_block_range){file, file_size, offset}, buffer, size, &head, &tail);
    char *rest = (char *)buffer + head;
    size -= head + tail;
    TSR_TRY(store_fetch(store, file, offset + head, rest, size, err));
    if (!tsr_block_cache_differs(store->cache, (tsr_block_range){file, file_size, offset + head}, rest, size)) return TSR_OK;
    return fail_as_damaged(store, store->files[file].object, "bytes that arrived twice differ; read it again", err);
}

static tsr_status read_unguarded(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    object_store *store = ctx;
    const size_t taken = tsr_scheduled_reads_take(store->scheduled, file, offset, buffer, size);
    if (taken == size) return TSR_OK;
    offset += taken;
    size -= taken;
    buffer = (char *)buffer + taken;
    const tsr_block_range range = {file, store->base.files[file].size, offset};
    if (size <= TSR_CACHE_LARGEST_READ) return tsr_block_cache_read(store->cache, range, buffer, size, err);
    return fetch_rest(store, file, offset, buffer, size, err);
}

static tsr_status object_read_at(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const tsr_store_file *f = &base->files[file];
    if (size == 0) return TSR_OK;
    if (offset > f->size || size > f->size - offset)
        return tsr_raise(err, TSR_E_IO, offset, "'%.*s' ends at byte %" PRIu64, TSR_STR_ARG(f->name), f->size);
    return tsr_guards_read(((object_store *)base)->guards, file, offset, buffer, size, err);
}

static tsr_status object_guard(tsr_store *base, const tsr_store_guard *guard, tsr_error *err)
{
    return tsr_guards_add(((object_store *)base)->guards, guard, err);
}

static void fetch_runs(void *ctx, tsr_block_run *runs, size_t count)
{
    object_store *store = ctx;
    tsr_error unused = {0};
    tsr_exchange *exchanges = tsr_alloc(store->allocator, count, sizeof *exchanges, &unused);
    tsr_request *requests = tsr_alloc(store->allocator, count, sizeof *requests, &unused);
    for (size_t i = 0; i < count && exchanges && requests; i++)
        requests[i] = (tsr_request){.key = store->files[runs[i].file].object->key,
                                    .is_ranged = true,
                                    .is_whole = runs[i].size == store->files[runs[i].file].object->size,
                                    .offset = runs[i].offset,
                                    .buffer = runs[i].bytes,
                                    .capacity = runs[i].size};
    if (exchanges && requests) {
        const tsr_status status = tsr_exchange_perform(store->service, requests, exchanges, count, &unused);
        for (size_t i = 0; i < count; i++) {
            tsr_error why = {0};
            const tsr_object *object = store->files[runs[i].file].object;
            runs[i].is_fetched = status == TSR_OK && check_answer(store, object, &exchanges[i], &why) == TSR_OK &&
                                 sum_up(store, object, &exchanges[i], &why) == TSR_OK;
            tsr_exchange_end(&exchanges[i]);
        }
    }
    tsr_free(store->allocator, exchanges, count, sizeof *exchanges);
    tsr_free(store->allocator, requests, count, sizeof *requests);
}

static void object_prefetch(tsr_store *base, const tsr_store_place *places, size_t count)
{
    tsr_block_cache_prefetch(((object_store *)base)->cache, base->files, places, count, fetch_runs);
}

static tsr_status object_schedule(tsr_store *base, const tsr_store_place *places, size_t count, tsr_error *err)
{
    return tsr_scheduled_reads_begin(((object_store *)base)->scheduled, places, count, err);
}

static void object_expect(tsr_store *base, uint32_t file, uint64_t offset, uint64_t size)
{
    (void)size;
    (void)tsr_scheduled_reads_reach(((object_store *)base)->scheduled, file, offset);
}

/* ---- files of the store ---- */

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const object_file *)a)->name, ((const object_file *)b)->name);
}

static unsigned levels_of(tsr_str name)
{
    unsigned levels = 0;
    for (size_t i = 0; i < name.size; i++) levels += name.data[i] == '/';
    return levels;
}

/* Whether a component of the name is like those of outputs that are being written. */
static bool is_own_output(tsr_str name)
{
    static const char mark[] = ".tessera-";
    for (size_t at = 0, end; at < name.size; at = end + 1) {
        for (end = at; end < name.size && name.data[end] != '/'; end++) {
        }
        if (name.data[at] == '.' && memmem(name.data + at, end - at, mark, sizeof mark - 1)) return true;
    }
    return false;
}

/* Shows the objects up to `levels` directories below the root. Empty objects named "directory/", which web consoles create,
 * are not files. */
static tsr_status show(object_store *store, unsigned levels, bool *deeper, tsr_error *err)
{
    const tsr_object *objects = store->objects.items.items;
    const size_t count = store->objects.items.count;
    uint32_t shown = 0;
    *deeper = false;
    store->hidden.count = 0;
    if (!store->files) {
        store->room = count;
        store->files = tsr_alloc(store->allocator, count, sizeof *store->files, err);
        store->listing = tsr_alloc(store->allocator, count, sizeof *store->listing, err);
        if (!store->files || !store->listing) return TSR_E_NOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        const tsr_str name = {objects[i].key.data + store->root, objects[i].key.size - store->root};
        if (!name.size || name.data[name.size - 1] == '/') continue;
        if (is_own_output(name)) {
            if (store->hidden.count++ == 0)
                snprintf(store->hidden.first, sizeof store->hidden.first, "%.*s", TSR_STR_ARG(name));
            continue;
        }
        if (levels_of(name) <= levels) store->files[shown++] = (object_file){name, &objects[i]};
        else *deeper = true;
    }
    if (shown) qsort(store->files, shown, sizeof *store->files, by_name);
    for (uint32_t i = 0; i < shown; i++)
        store->listing[i] = (tsr_store_file){store->files[i].name, store->files[i].object->size};
    store->base.files = store->listing;
    store->base.file_count = shown;
    tsr_guards_forget(store->guards);
    const tsr_status status =
        tsr_scheduled_reads_begin(store->scheduled, NULL, 0, err); /* it may use the cache until here */
    tsr_block_cache_forget(store->cache, shown);                   /* the numbers of the files have changed */
    return status;
}

static tsr_status object_deepen(tsr_store *base, unsigned levels, bool *cut, bool *deeper, tsr_error *err)
{
    *cut = false;
    return show((object_store *)base, levels, deeper, err);
}

/* ---- opening ---- */

static bool has_extension(tsr_str key)
{
    static const char *const ends[] = {".pt",       ".pth",    ".bin", ".ckpt", ".safetensors", ".json",
                                       ".metadata", ".distcp", ".tar", ".npz",  ".pkl"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (tsr_str_ends(key, tsr_str_from(ends[i]))) return true;
    return false;
}

static tsr_str parent_of(tsr_str key)
{
    while (key.size && key.data[key.size - 1] != '/') key.size--;
    return key;
}

/* If other files in the directory may belong to this file, lists them, too. If listing is not allowed, the file is shown
 * alone. */
static tsr_status add_neighbors(object_store *store, tsr_str key, tsr_error *err)
{
    tsr_object_list list = {0};
    tsr_error unused = {0};
    if (!tsr_str_ends(key, TSR_STR(".metadata")) && !tsr_str_ends(key, TSR_STR(".json"))) return TSR_OK;
    TSR_TRY(tsr_object_list_open(store->allocator, &list, err));
    if (tsr_service_list(store->service, parent_of(key), false, &list, &unused) == TSR_OK && list.items.count) {
        tsr_object_list_close(&store->objects);
        store->objects = list;
    } else {
        tsr_object_list_close(&list);
    }
    return TSR_OK;
}

static tsr_status open_object(object_store *store, tsr_str key, tsr_error *err)
{
    bool deeper;
    TSR_TRY(store->service->stat(store->service, key, &store->objects, err));
    TSR_TRY(add_neighbors(store, key, err));
    const tsr_str parent = parent_of(key), name = {key.data + parent.size, key.size - parent.size};
    store->root = parent.size;
    TSR_TRY(show(store, 0, &deeper, err));
    for (uint32_t f = 0; f < store->base.file_count; f++)
        if (tsr_str_equal(store->base.files[f].name, name)) store->base.primary = f;
    return store->base.primary == TSR_NO_FILE
               ? tsr_fail(err, TSR_E_NOT_FOUND, "%s/%.*s is not in the listing of its directory", store->service->shown,
                          TSR_STR_ARG(key))
               : TSR_OK;
}

static tsr_status list_directory(object_store *store, tsr_str key, tsr_error *err)
{
    char *text = tsr_arena_array(store->objects.arena, key.size + 1, 1, err);
    bool deeper;
    if (!text) return TSR_E_NOMEM;
    if (key.size) {
        memcpy(text, key.data, key.size);
        text[key.size] = '/';
    }
    const tsr_str prefix = {text, key.size ? key.size + 1 : 0};
    TSR_TRY(tsr_service_list(store->service, prefix, true, &store->objects, err));
    store->root = prefix.size;
    return show(store, 1, &deeper, err);
}

/* TSR_E_NOT_FOUND if there are no objects below it. */
static tsr_status open_directory(object_store *store, tsr_str key, tsr_error *err)
{
    TSR_TRY(list_directory(store, key, err));
    TSR_FAIL_IF(!store->objects.items.count, err, TSR_E_NOT_FOUND, "%s: there is no such object, and none below it",
                tsr_shown_key_of(store->service, key).text);
    return TSR_OK;
}

/* Opens an object or a directory. The likelier one is tried first, and usually it is the first error that is reported. */
static tsr_status open_either(object_store *store, tsr_str key, tsr_error *err)
{
    tsr_error second = {0};
    const bool object_first = has_extension(key);
    if (!key.size) return open_directory(store, key, err);
    const tsr_status first = object_first ? open_object(store, key, err) : open_directory(store, key, err);
    const bool is_refused = first == TSR_E_IO && !object_first; /* reading may be allowed even if listing is not */
    if (first != TSR_E_NOT_FOUND && !is_refused) return first;
    const tsr_status status = object_first ? open_directory(store, key, &second) : open_object(store, key, &second);
    if (status != TSR_OK && status != TSR_E_NOT_FOUND && !is_refused && err) *err = second;
    if (status == TSR_E_NOT_FOUND && object_first && err) *err = second;
    if (status == TSR_OK && err) *err = (tsr_error){0};
    return status == TSR_OK || !is_refused ? status : first;
}

static void object_close(tsr_store *base)
{
    object_store *store = (object_store *)base;
    tsr_scheduled_reads_free(store->scheduled);
    tsr_guards_free(store->guards);
    sums_free(store->sums);
    pthread_mutex_destroy(&store->lock);
    tsr_block_cache_free(store->cache);
    tsr_free(store->allocator, store->files, store->room, sizeof *store->files);
    tsr_free(store->allocator, store->listing, store->room, sizeof *store->listing);
    tsr_object_list_close(&store->objects);
    tsr_pool_free(store->readers);
    tsr_service_close(store->service);
    tsr_free(store->allocator, store, 1, sizeof *store);
}

const char *tsr_object_store_version(const tsr_store *base, uint32_t file)
{
    const object_store *store = (const object_store *)base;
    if (base->close != object_close || file >= base->file_count) return "";
    const tsr_str version = store->files[file].object->version;
    return version.data ? version.data : "";
}

tsr_hidden_names tsr_object_store_hidden(const tsr_store *base)
{
    return base->close == object_close ? ((const object_store *)base)->hidden : (tsr_hidden_names){.count = 0};
}

/* The URLs of object stores have no query: what follows the last slash is the name. */
static tsr_status object_neighbor(tsr_store *base, const tsr_host *host, tsr_str name, tsr_store **out, tsr_error *err)
{
    const object_store *store = (const object_store *)base;
    size_t directory = store->url.size;
    while (directory && store->url.data[directory - 1] != '/') directory--;
    const tsr_str url =
        tsr_arena_format(store->service->arena, err, "%.*s%.*s", (int)directory, store->url.data, TSR_STR_ARG(name));
    return url.data ? tsr_object_store_open(host, url.data, out, err) : TSR_E_NOMEM;
}

typedef tsr_status opening(object_store *store, tsr_str key, tsr_error *err);

static tsr_status open_url(const tsr_host *host, const char *url, opening *open, tsr_store **out, tsr_error *err)
{
    tsr_location location;
    TSR_TRY(tsr_location_parse(url, &location, err));
    object_store *store = tsr_alloc(host->allocator, 1, sizeof *store, err);
    if (!store) return TSR_E_NOMEM;
    *store = (object_store){.base = {.primary = TSR_NO_FILE,
                                     .read_at = object_read_at,
                                     .close = object_close,
                                     .deepen = object_deepen,
                                     .guard = object_guard,
                                     .expect = object_expect,
                                     .schedule = object_schedule,
                                     .neighbor = object_neighbor,
                                     .prefetch = object_prefetch,
                                     .parallel_for = tsr_pool_run,
                                     .threads = tsr_io_depth(host)},
                            .allocator = host->allocator};
    store->base.parallel_ctx = store->readers = tsr_pool_new(store->base.threads);
    pthread_mutex_init(&store->lock, NULL);
    tsr_status status = store->readers ? tsr_object_list_open(host->allocator, &store->objects, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = sums_new(host->allocator, &store->sums, err);
    if (status == TSR_OK) status = tsr_block_cache_new(host->allocator, store_fetch, store, &store->cache, err);
    if (status == TSR_OK) status = tsr_thread_guards_new(host->allocator, read_unguarded, store, &store->guards, err);
    if (status == TSR_OK) status = tsr_scheduled_reads_new(host, fetch_rest, store, &store->scheduled, err);
    if (status == TSR_OK) status = tsr_service_open(host->allocator, &location, store->base.threads, &store->service, err);
    if (status == TSR_OK) store->url = tsr_arena_str(store->service->arena, tsr_str_from(url), err);
    if (status == TSR_OK && !store->url.data) status = TSR_E_NOMEM;
    if (status == TSR_OK) status = open(store, location.key, err);
    if (status == TSR_OK) *out = &store->base;
    else object_close(&store->base);
    return status;
}

tsr_status tsr_object_store_open(const tsr_host *host, const char *url, tsr_store **out, tsr_error *err)
{
    return open_url(host, url, open_either, out, err);
}

tsr_status tsr_object_directory_open(const tsr_host *host, const char *url, tsr_store **out, tsr_error *err)
{
    return open_url(host, url, list_directory, out, err);
}
