/* The objects of an output, and their parts on the way from the threads that write them to the server.
 *
 *   writers ──▶ [ part ····  ][ part ········ ]  ──▶ queue ──▶ TSR_UPLOADERS threads ──▶ server
 *                    │  TSR_PARTS_IN_MEMORY at most
 *                    ▼
 *               temporary file: parts that have waited longest for missing bytes, such as headers, which are written late */
#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/locked.h"
#include "io/sys.h"
#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "object_store/service.h"
#include "tessera/sys/try.h"

/* ---- object resume ---- */

/* Continues what an interrupted run left in an object store (--resume). Leftovers are not trusted: this run produces all
 * bytes again, and sends those whose checksum the store does not have.
 *
 *   incomplete uploads ─▶ of each object, the one with most bytes is continued: parts of equal size and checksum are kept
 *   whole objects      ─▶ are read and compared with the bytes that would be written
 *   other uploads      ─▶ of the same objects: discarded once the new checkpoint is complete; others stay and are named */

/* ---- finding leftovers ---- */

bool tsr_resume_knows(const object_output *output, tsr_str key)
{
    const size_t head = output->root.size + (output->root.size && output->options.is_directory);
    const bool may_be_ours = output->options.resume || output->options.takes_over || output->has_notes;
    if (!may_be_ours || !output->resumable || output->options.overwrite || key.size < head) return false;
    return tsr_map_get(output->resumable, tsr_str_after(key, head), UINT32_MAX) != UINT32_MAX;
}

static tsr_status refuse_other(const object_output *output, tsr_str key, tsr_error *err)
{
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS, "'%s' exists, and is not what this run writes; --overwrite replaces it",
                    tsr_shown_key_of(output->service, key).text);
}

/* Takes over an existing object if it may belong to this job. TSR_E_EXISTS if it has another size. */
static tsr_status take_object(object_output *output, written_object *object, const tsr_object *before, tsr_error *err)
{
    if (!tsr_resume_knows(output, before->key)) return TSR_OK;
    if (before->size != object->upload.size) return refuse_other(output, before->key, err);
    object->is_there = true;
    return TSR_OK;
}

/* ---- objects ---- */

tsr_status tsr_resume_compare(object_output *output, queued_part of, const tsr_upload_bytes *bytes, tsr_error *err)
{
    const written_object *object = of.object;
    bool equal = false;
    TSR_TRY(tsr_upload_compare(output->service, object->upload.key, (uint64_t)of.number * object->part_size, bytes, &equal,
                               err));
    if (!equal) return refuse_other(output, object->upload.key, err);
    pthread_mutex_lock(&output->lock);
    output->resumed.objects += of.number == 0;
    output->resumed.bytes += bytes->size;
    pthread_mutex_unlock(&output->lock);
    return TSR_OK;
}

/* ---- uploads ---- */

/* Adds up the sizes of the parts in *bytes. False if the object does not have one of these parts. */
static bool fits(const written_object *object, const tsr_object_list *parts, uint64_t *bytes)
{
    const tsr_object *part = parts->items.items;
    *bytes = 0;
    for (size_t i = 0; i < parts->items.count; i++) {
        const unsigned long number = strtoul(part[i].key.data, NULL, 10);
        if (number < 1 || number > object->part_count) return false;
        *bytes += part[i].size;
    }
    return true;
}

/* Chooses the object's incomplete upload that has the most bytes. */
static tsr_status choose(object_output *output, written_object *object, tsr_error *err)
{
    const tsr_object *unfinished = output->unfinished.items.items;
    uint64_t most = 0, bytes;
    for (size_t i = 0; i < output->unfinished.items.count; i++) {
        tsr_upload upload = {.key = object->upload.key, .id = unfinished[i].version.data};
        tsr_object_list parts = {0};
        if (!tsr_str_equal(unfinished[i].key, upload.key)) continue;
        TSR_TRY(tsr_object_list_open(output->allocator, &parts, err));
        const tsr_status status = output->service->uploading->resuming->list_parts(output->service, &upload, &parts, err);
        const bool is_better = status == TSR_OK && fits(object, &parts, &bytes) && bytes > most;
        if (is_better) {
            tsr_object_list_close(&object->found);
            object->found = parts;
            object->upload.id = upload.id;
            most = bytes;
        } else {
            tsr_object_list_close(&parts);
        }
        if (status != TSR_OK && status != TSR_E_NOT_FOUND) return status;
    }
    return TSR_OK;
}

static tsr_status note_parts(object_output *output, written_object *object, tsr_error *err)
{
    const tsr_object *parts = object->found.items.items;
    const size_t count = object->found.items.count;
    object->found_at = tsr_map_new(output->allocator, count, err);
    if (!object->found_at) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) TSR_TRY(tsr_map_put(object->found_at, parts[i].key, (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

/* Finds an upload of an earlier run. Sets its id, if uploads have ids, and the parts that it has. */
static tsr_status resume_find_upload(object_output *output, written_object *object, tsr_error *err)
{
    const tsr_resuming *kind = output->service->uploading->resuming;
    if (!output->options.resume) return TSR_OK;
    if (kind->list_unfinished) {
        TSR_TRY(choose(output, object, err));
        return object->upload.id ? note_parts(output, object, err) : TSR_OK;
    }
    TSR_TRY(tsr_object_list_open(output->allocator, &object->found, err));
    TSR_TRY(kind->list_parts(output->service, &object->upload, &object->found, err));
    return note_parts(output, object, err);
}

/* Whether that upload has these bytes as a part. If so, sets the part's tag. */
static bool resume_has_part(object_output *output, queued_part of, const tsr_upload_bytes *bytes)
{
    written_object *object = of.object;
    const tsr_resuming *kind = output->service->uploading->resuming;
    tsr_part_tag name;
    if (!object->found_at) return false;
    kind->name(of.number + 1, bytes, &name);
    const uint32_t at = tsr_map_get(object->found_at, tsr_str_from(name.text), UINT32_MAX);
    if (at == UINT32_MAX) return false;
    const tsr_object *part = &((const tsr_object *)object->found.items.items)[at];
    const bool is_same = part->size == bytes->size && kind->is_same(part, bytes, &object->tags[of.number]);
    pthread_mutex_lock(&output->lock);
    output->resumed.parts += is_same;
    output->resumed.differing += !is_same;
    if (is_same) output->resumed.bytes += bytes->size;
    pthread_mutex_unlock(&output->lock);
    return is_same;
}

/* ---- object parts ---- */

static size_t size_of(const written_object *object, unsigned number)
{
    const uint64_t left = object->upload.size - (uint64_t)number * object->part_size;
    return left < object->part_size ? (size_t)left : object->part_size;
}

/* Stops the output. Only the first failure is kept. */
static void stop(object_output *output, tsr_status status, const tsr_error *why)
{
    if (!output->is_stopped) {
        output->failure = status;
        if (why) output->why = *why;
    }
    output->is_stopped = true;
    pthread_cond_broadcast(&output->changed);
}

static tsr_status stopped(const object_output *output, tsr_error *err)
{
    if (output->failure == TSR_OK) return tsr_fail(err, TSR_E_CANCELLED, "writing was stopped");
    return tsr_raise_again(err, output->failure, &output->why);
}

/* ---- memory ---- */

static bool has_room(const object_output *output, size_t size)
{
    return output->bytes_held == 0 || output->bytes_held + size <= TSR_PARTS_IN_MEMORY;
}

static void let_go(object_output *output, queued_part of)
{
    object_part *part = &of.object->parts[of.number];
    queued_part *held = output->held.items;
    const size_t size = size_of(of.object, of.number);
    munmap(part->data, size);
    part->data = NULL;
    output->bytes_held -= size;
    for (size_t i = 0; i < output->held.count; i++)
        if (held[i].object == of.object && held[i].number == of.number) {
            held[i] = held[--output->held.count];
            break;
        }
    pthread_cond_broadcast(&output->changed);
}

/* Creates the temporary file, which gets no name, so that nobody else can open it. */
static tsr_status open_saved(object_output *output, tsr_error *err)
{
    const char *directory = tsr_setting("TMPDIR");
    char path[4096];
    if (output->saved >= 0) return TSR_OK;
    TSR_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/tessera-XXXXXX", directory ? directory : "/tmp") >= sizeof path,
                tsr_naming(err), TSR_E_USAGE, "the path in TMPDIR is too long");
    output->saved = mkostemp(path, O_CLOEXEC);
    if (output->saved < 0) return tsr_sys_raise(tsr_naming(err), "create", path);
    unlink(path);
    return TSR_OK;
}

static tsr_status save(object_output *output, queued_part of, tsr_error *err)
{
    object_part *part = &of.object->parts[of.number];
    const size_t size = size_of(of.object, of.number);
    TSR_TRY(open_saved(output, err));
    if (!part->saved_at) {
        part->saved_at = 1 + output->saved_bytes;
        output->saved_bytes += size;
    }
    TSR_TRY(tsr_sys_write((tsr_sys_file){&tsr_sys_posix, output->saved, "a temporary file for parts of uploads (TMPDIR)"},
                          part->saved_at - 1, part->data, size, err));
    let_go(output, of);
    return TSR_OK;
}

static tsr_status load(const object_output *output, const object_part *part, size_t size, tsr_error *err)
{
    for (size_t done = 0; done < size;) {
        const ssize_t n = pread(output->saved, part->data + done, size - done, (off_t)(part->saved_at - 1 + done));
        if (n <= 0) return tsr_sys_raise(tsr_naming(err), "read", "a temporary file for parts of uploads (TMPDIR)");
        done += (size_t)n;
    }
    return TSR_OK;
}

/* Moves the part that was not written to for the longest time into the temporary file. *saved is false if all parts are
 * being written to. */
static tsr_status save_oldest(object_output *output, bool *saved, tsr_error *err)
{
    const queued_part *held = output->held.items, *oldest = NULL;
    for (size_t i = 0; i < output->held.count; i++) {
        const object_part *part = &held[i].object->parts[held[i].number];
        if (part->state != PART_FILLING || part->writers) continue;
        if (!oldest || part->used < oldest->object->parts[oldest->number].used) oldest = &held[i];
    }
    *saved = oldest != NULL;
    return oldest ? save(output, *oldest, err) : TSR_OK;
}

/* Allocates a part filled with zeros. Uses mmap because the allocator keeps freed memory for itself, while parts come and go
 * and their total size is limited. */
static tsr_status allocate(object_output *output, queued_part of, tsr_error *err)
{
    object_part *part = &of.object->parts[of.number];
    const size_t size = size_of(of.object, of.number);
    TSR_TRY(tsr_vec_reserve(&output->held, 1, err));
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TSR_FAIL_IF(memory == MAP_FAILED, err, TSR_E_NOMEM, "no memory for a part of %zu bytes", size);
    part->data = memory;
    *(queued_part *)tsr_vec_push(&output->held, err) = of;
    output->bytes_held += size;
    return part->saved_at ? load(output, part, size, err) : TSR_OK;
}

/* Brings a part into memory for a writer. The caller must hold the lock. */
static tsr_status hold(object_output *output, queued_part of, tsr_error *err)
{
    object_part *part = &of.object->parts[of.number];
    assert(tsr_is_locked(&output->lock));
    TSR_FAIL_IF(part->state >= PART_QUEUED, tsr_naming(err), TSR_E_USAGE, "bytes of '%.*s' were written twice",
                TSR_STR_ARG(of.object->upload.key));
    part->state = PART_FILLING;
    part->used = ++output->clock;
    while (!part->data) {
        bool saved = false;
        if (output->is_stopped) return stopped(output, err);
        if (has_room(output, size_of(of.object, of.number))) TSR_TRY(allocate(output, of, err));
        else if (output->queue_at == output->queue.count && !output->sending) TSR_TRY(save_oldest(output, &saved, err));
        if (!part->data && !saved) pthread_cond_wait(&output->changed, &output->lock);
    }
    return output->is_stopped ? stopped(output, err) : TSR_OK;
}

/* Waits until `size` more bytes may be held in memory. */
static void take_room(object_output *output, size_t size)
{
    pthread_mutex_lock(&output->lock);
    while (!has_room(output, size)) pthread_cond_wait(&output->changed, &output->lock);
    output->bytes_held += size;
    pthread_mutex_unlock(&output->lock);
}

static void give_room(object_output *output, size_t size)
{
    pthread_mutex_lock(&output->lock);
    output->bytes_held -= size;
    pthread_cond_broadcast(&output->changed);
    pthread_mutex_unlock(&output->lock);
}

/* ---- sending ---- */

/* Begins the object's upload if this is the first part to be sent; otherwise waits until it has begun. */
static tsr_status begin(object_output *output, written_object *object, tsr_error *err)
{
    pthread_mutex_lock(&output->lock);
    while (object->begun == UPLOAD_BEGINNING) pthread_cond_wait(&output->changed, &output->lock);
    const bool is_first = object->begun == UPLOAD_NONE && !output->is_stopped;
    if (is_first) object->begun = UPLOAD_BEGINNING;
    const bool is_begun = object->begun == UPLOAD_BEGUN;
    pthread_mutex_unlock(&output->lock);
    if (is_begun) return TSR_OK;
    if (!is_first) return TSR_E_CANCELLED;
    tsr_arena *arena = tsr_arena_new(output->allocator, 0, err);
    const char *id = NULL;
    tsr_status status = arena ? resume_find_upload(output, object, err) : TSR_E_NOMEM;
    id = object->upload.id;
    if (status == TSR_OK && !id)
        status = output->service->uploading->begin(output->service, object->upload.key, arena, &id, err);
    pthread_mutex_lock(&output->lock);
    if (status == TSR_OK) object->upload.id = tsr_arena_str(output->ids, tsr_str_from(id), err).data;
    if (status == TSR_OK && !object->upload.id) status = TSR_E_NOMEM;
    object->begun = status == TSR_OK ? UPLOAD_BEGUN : UPLOAD_NONE;
    pthread_cond_broadcast(&output->changed);
    pthread_mutex_unlock(&output->lock);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_parts_send(object_output *output, queued_part of, tsr_error *err)
{
    written_object *object = of.object;
    tsr_upload_bytes *bytes = &object->sums[of.number];
    if (!object->is_there) TSR_TRY(begin(output, object, err));
    bytes->data = object->parts[of.number].data;
    bytes->size = size_of(object, of.number);
    tsr_upload_sum(bytes->data, bytes->size, bytes->sum);
    tsr_status status = TSR_OK;
    if (object->is_there) status = tsr_resume_compare(output, of, bytes, err);
    else if (!resume_has_part(output, of, bytes))
        status = output->service->uploading->send(output->service, &object->upload, of.number + 1, bytes,
                                                  &object->tags[of.number], err);
    bytes->data = NULL;
    return status;
}

static void *parts_upload(void *ctx)
{
    object_output *output = ctx;
    pthread_mutex_lock(&output->lock);
    for (;;) {
        output->idle++;
        while (output->queue_at == output->queue.count && !output->is_closing)
            pthread_cond_wait(&output->changed, &output->lock);
        output->idle--;
        if (output->queue_at == output->queue.count) break;
        const queued_part of = ((queued_part *)output->queue.items)[output->queue_at++];
        if (output->queue_at == output->queue.count) output->queue_at = output->queue.count = 0;
        tsr_error err = {0};
        tsr_status status = output->is_stopped ? TSR_E_CANCELLED : TSR_OK;
        output->sending++;
        pthread_mutex_unlock(&output->lock);
        if (status == TSR_OK) status = tsr_parts_send(output, of, &err);
        pthread_mutex_lock(&output->lock);
        output->sending--;
        assert(of.object->parts[of.number].state == PART_QUEUED);
        if (status == TSR_OK) of.object->parts[of.number].state = PART_SENT;
        else stop(output, status, &err);
        let_go(output, of);
    }
    pthread_mutex_unlock(&output->lock);
    return NULL;
}

/* The caller must hold the lock. */
static tsr_status add_to_queue(object_output *output, queued_part of, tsr_error *err)
{
    sigset_t all, before;
    assert(tsr_is_locked(&output->lock));
    queued_part *added = tsr_vec_push(&output->queue, err);
    if (!added) return TSR_E_NOMEM;
    assert(of.object->parts[of.number].state < PART_QUEUED);
    *added = of;
    of.object->parts[of.number].state = PART_QUEUED;
    pthread_cond_broadcast(&output->changed);
    /* A thread that was woken counts as idle until it takes its part. */
    if (output->queue.count - output->queue_at <= output->idle || output->thread_count == TSR_UPLOADERS) return TSR_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are to be handled by other threads */
    output->thread_count += pthread_create(&output->threads[output->thread_count], NULL, parts_upload, output) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return output->thread_count ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "cannot start a thread for uploads");
}

/* A range of bytes in one part. */
typedef struct part_bytes {
    written_object *object;
    unsigned number; /* counted from 0 */
    size_t at, size;
} part_bytes;

static tsr_status parts_write(object_output *output, part_bytes where, const void *data, tsr_error *err)
{
    const queued_part of = {where.object, where.number};
    object_part *part = &where.object->parts[where.number];
    pthread_mutex_lock(&output->lock);
    part->writers++;
    tsr_status status = hold(output, of, err);
    pthread_mutex_unlock(&output->lock);
    if (status == TSR_OK) memcpy(part->data + where.at, data, where.size);
    pthread_mutex_lock(&output->lock);
    part->writers--;
    if (status == TSR_OK) part->filled += where.size;
    if (status == TSR_OK && part->filled > size_of(where.object, where.number))
        status = tsr_fail(tsr_naming(err), TSR_E_USAGE, "bytes of '%.*s' were written twice",
                          TSR_STR_ARG(where.object->upload.key));
    if (status == TSR_OK && part->filled == size_of(where.object, where.number) && !part->writers)
        status = add_to_queue(output, of, err);
    pthread_cond_broadcast(&output->changed);
    pthread_mutex_unlock(&output->lock);
    return status;
}

static tsr_status finish_object(object_output *output, written_object *object, tsr_error *err)
{
    for (unsigned i = 0; i < object->part_count && !object->small && !object->is_left && !object->is_taken; i++) {
        if (object->parts[i].state >= PART_QUEUED) continue;
        TSR_TRY(hold(output, (queued_part){object, i}, err));
        TSR_TRY(add_to_queue(output, (queued_part){object, i}, err));
    }
    return TSR_OK;
}

tsr_status tsr_parts_finish(object_output *output, tsr_error *err)
{
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&output->lock);
    for (uint32_t f = 0; f < output->objects.count && status == TSR_OK; f++)
        status = finish_object(output, written_object_at(output, f), err);
    while (status == TSR_OK && !output->is_stopped && (output->queue_at < output->queue.count || output->sending))
        pthread_cond_wait(&output->changed, &output->lock);
    if (status == TSR_OK && output->is_stopped) status = stopped(output, err);
    pthread_mutex_unlock(&output->lock);
    return status;
}

/* Sets the final size of a file that was created with another one. Nothing may be written after that. Waits until all other parts have been sent, so that no thread is using their sizes. */
static void resize(object_output *output, written_object *object, uint64_t size)
{
    pthread_mutex_lock(&output->lock);
    while (!output->is_stopped && (output->queue_at < output->queue.count || output->sending))
        pthread_cond_wait(&output->changed, &output->lock);
    const unsigned last = size ? (unsigned)((size - 1) / object->part_size) : 0;
    const size_t before = size_of(object, last), now = (size_t)(size - (uint64_t)last * object->part_size);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), kept = (now + page - 1) / page * page;
    object_part *part = &object->parts[last];
    if (part->data && !output->is_stopped) {
        if (kept < before) munmap(part->data + kept, before - kept);
        output->bytes_held -= before - now;
    }
    if (!output->is_stopped) {
        object->upload.size = size;
        object->part_count = last + 1;
    }
    pthread_cond_broadcast(&output->changed);
    pthread_mutex_unlock(&output->lock);
}

/* ---- reading back ---- */

static tsr_status compare(object_output *output, queued_part of, char *buffer, tsr_error *err)
{
    const written_object *object = of.object;
    const tsr_upload_bytes *wrote = &object->sums[of.number];
    const tsr_request request = {.key = object->upload.key,
                                 .is_ranged = true,
                                 .offset = (uint64_t)of.number * object->part_size,
                                 .buffer = buffer,
                                 .capacity = wrote->size};
    char sum[TSR_SUM_DIGITS + 1] = "";
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(output->service, &request, &x, 1, err);
    if (status == TSR_OK && x.transfer.answer.status >= 300) status = tsr_exchange_error(output->service, &x, err);
    if (status == TSR_OK && x.transfer.answer.size == wrote->size) tsr_upload_sum(buffer, wrote->size, sum);
    if (status == TSR_OK && strcmp(sum, wrote->sum) != 0) {
        pthread_mutex_lock(&output->lock);
        of.object->is_damaged = true;
        pthread_mutex_unlock(&output->lock);
        status = tsr_raise(tsr_naming(err), TSR_E_CHANGED, request.offset,
                           "%s: the bytes that were read back are not those that were written",
                           tsr_shown_key_of(output->service, object->upload.key).text);
    }
    tsr_exchange_end(&x);
    return status;
}

tsr_status tsr_parts_compare(object_output *output, queued_part of, tsr_error *err)
{
    const size_t size = of.object->sums[of.number].size;
    take_room(output, size);
    char *buffer = tsr_alloc(output->allocator, size, 1, err);
    const tsr_status status = buffer ? compare(output, of, buffer, err) : TSR_E_NOMEM;
    tsr_free(output->allocator, buffer, size, 1);
    give_room(output, size);
    return status;
}

/* ---- creating and writing ---- */

/* A file to be created, which is sent in parts of `part_size` bytes; 0: the size of the parts depends on that of the file. */
typedef struct new_object {
    tsr_str name;
    uint64_t size;
    size_t part_size;
} new_object;

static tsr_status check_name(const object_output *output, tsr_str name, tsr_error *err)
{
    if (!output->options.is_directory) {
        TSR_FAIL_IF(name.size || output->objects.count, err, TSR_E_USAGE,
                    "the output is a single file, which has no name of its own");
        return TSR_OK;
    }
    TSR_FAIL_IF(!tsr_is_name_below(name, SIZE_MAX), tsr_naming(err), TSR_E_USAGE, "'%.*s' is not a valid file name",
                TSR_STR_ARG(name));
    return TSR_OK;
}

/* Sets the condition under which the object may be written: that there is none, or which version it replaces. */
static tsr_status set_condition(object_output *output, written_object *object, tsr_error *err)
{
    const uint32_t at = tsr_map_get(output->before_at, object->upload.key, UINT32_MAX);
    const tsr_object *before = at == UINT32_MAX ? NULL : &((const tsr_object *)output->before.items.items)[at];
    object->upload.if_absent = !before;
    if (!before) return TSR_OK;
    object->upload.before = before->version;
    return take_object(output, object, before, err);
}

static tsr_status cut(object_output *output, written_object *object, tsr_error *err)
{
    const uint64_t size = object->upload.size;
    const bool is_stream = object->part_size != 0;
    size_t part = is_stream ? object->part_size : TSR_PART_BYTES;
    while (part < TSR_LARGEST_PART && size > (uint64_t)part * TSR_MOST_UPLOAD_PARTS) part *= 2;
    TSR_FAIL_IF(size > (uint64_t)part * TSR_MOST_UPLOAD_PARTS, tsr_naming(err), TSR_E_LIMIT,
                "'%.*s' would have more than 312 GiB, the most that is written as one object; use --max-shard-size",
                TSR_STR_ARG(object->upload.key));
    object->part_size = part;
    object->part_count = size ? (unsigned)((size + part - 1) / part) : 1;
    object->parts = tsr_arena_array(output->arena, object->part_count, sizeof *object->parts, err);
    object->tags = tsr_arena_array(output->arena, object->part_count, sizeof *object->tags, err);
    object->sums = tsr_arena_array(output->arena, object->part_count, sizeof *object->sums, err);
    if (!object->parts || !object->tags || !object->sums) return TSR_E_NOMEM;
    if (is_stream || size > TSR_SMALL_OBJECT || output->small_bytes + size > TSR_SMALL_OBJECTS) return TSR_OK;
    object->small = tsr_arena_array(output->arena, size ? (size_t)size : 1, 1, err);
    if (!object->small) return TSR_E_NOMEM;
    output->small_bytes += (size_t)size;
    return TSR_OK;
}

static tsr_status object_create(object_output *output, new_object as, uint32_t *file, tsr_error *err)
{
    TSR_TRY(check_name(output, as.name, err));
    written_object *object = tsr_arena_array(output->arena, 1, sizeof *object, err);
    if (!object) return TSR_E_NOMEM;
    object->name = tsr_arena_str(output->arena, as.name, err);
    object->upload.key = tsr_object_key(output, as.name, output->arena, err);
    object->upload.size = as.size;
    object->part_size = as.part_size;
    if (!object->name.data || !object->upload.key.data) return TSR_E_NOMEM;
    TSR_TRY(set_condition(output, object, err));
    TSR_TRY(cut(output, object, err));
    TSR_TRY(tsr_map_put(output->file_of, object->name, (uint32_t)output->objects.count, NULL, NULL, err));
    pthread_mutex_lock(&output->lock);
    written_object **added = tsr_vec_push(&output->objects, err);
    if (added) *added = object;
    *file = (uint32_t)output->objects.count - 1;
    pthread_mutex_unlock(&output->lock);
    return added ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status output_create(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    return object_create((object_output *)base, (new_object){.name = name, .size = size}, file, err);
}

static tsr_status output_write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size,
                                  tsr_error *err)
{
    object_output *output = (object_output *)base;
    TSR_FAIL_IF(file >= output->objects.count, err, TSR_E_USAGE, "there is no output file number %u", file);
    written_object *object = written_object_at(output, file);
    TSR_FAIL_IF(offset > object->upload.size || size > object->upload.size - offset, tsr_naming(err), TSR_E_USAGE,
                "bytes beyond the end of '%.*s' were to be written", TSR_STR_ARG(object->upload.key));
    if (object->small) {
        memcpy(object->small + offset, data, size);
        return TSR_OK;
    }
    for (size_t done = 0; done < size;) {
        const uint64_t at = offset + done;
        part_bytes where = {object, (unsigned)(at / object->part_size), (size_t)(at % object->part_size), size - done};
        if (where.size > object->part_size - where.at) where.size = object->part_size - where.at;
        TSR_TRY(parts_write(output, where, (const char *)data + done, err));
        done += where.size;
    }
    return TSR_OK;
}

tsr_status tsr_objects_open(object_output *output, tsr_error *err)
{
    const tsr_object_output_options *options = &output->options;
    output->base.create = output_create;
    output->base.write_at = output_write_at;
    if (!options->resume && !options->notes.size) return TSR_OK;
    output->resumable = tsr_map_new(output->allocator, options->name_count, err);
    if (!output->resumable) return TSR_E_NOMEM;
    for (size_t i = 0; i < options->name_count; i++)
        TSR_TRY(tsr_map_put(output->resumable, options->names[i], (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

/* ---- files whose size is known only after they have been written ---- */

/* Such a file is created with the largest size that its parts allow, and gets its final size at the end. Full parts
 * are sent to the server in the meantime. */

/* Chooses the size of parts so that twice the expected size would fit. */
tsr_status tsr_object_output_create_stream(tsr_output *base, tsr_str name, uint64_t expected, uint32_t *file, tsr_error *err)
{
    size_t part = TSR_PART_BYTES;
    while (part < TSR_LARGEST_PART && expected > (uint64_t)part * TSR_MOST_UPLOAD_PARTS / 2) part *= 2;
    const new_object as = {.name = name, .size = (uint64_t)part * TSR_MOST_UPLOAD_PARTS, .part_size = part};
    return object_create((object_output *)base, as, file, err);
}

tsr_status tsr_object_output_end_stream(tsr_output *base, uint32_t file, uint64_t size, tsr_error *err)
{
    object_output *output = (object_output *)base;
    TSR_FAIL_IF(file >= output->objects.count, err, TSR_E_USAGE, "there is no output file number %u", file);
    written_object *object = written_object_at(output, file);
    TSR_FAIL_IF(size > object->upload.size, tsr_naming(err), TSR_E_USAGE, "'%.*s' cannot end behind its largest size",
                TSR_STR_ARG(object->upload.key));
    resize(output, object, size);
    return TSR_OK;
}

/* ---- closing ---- */

void tsr_parts_stop(object_output *output)
{
    pthread_mutex_lock(&output->lock);
    stop(output, TSR_OK, NULL);
    pthread_mutex_unlock(&output->lock);
}

void tsr_parts_close(object_output *output)
{
    pthread_mutex_lock(&output->lock);
    output->is_closing = true;
    if (!output->is_published) stop(output, TSR_OK, NULL);
    pthread_cond_broadcast(&output->changed);
    pthread_mutex_unlock(&output->lock);
    for (unsigned i = 0; i < output->thread_count; i++) pthread_join(output->threads[i], NULL);
    while (output->held.count) let_go(output, ((queued_part *)output->held.items)[0]);
    if (output->saved >= 0) close(output->saved);
}
