/* Parts of objects on their way from the threads that write them to the server.
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
#include "object_store/setting.h"
#include "tessera/sys/try.h"

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
    if (output->failure == TSR_OK) return tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "writing was stopped");
    return tsr_raise(err, output->failure, TSR_NO_POSITION, "%s", output->why.message);
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
    const char *folder = tsr_setting("TMPDIR");
    char path[4096];
    if (output->saved >= 0) return TSR_OK;
    TSR_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/tessera-XXXXXX", folder ? folder : "/tmp") >= sizeof path, err,
                TSR_E_USAGE, "the path in TMPDIR is too long");
    output->saved = mkostemp(path, O_CLOEXEC);
    if (output->saved < 0) return tsr_sys_raise(err, "create", path);
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
        if (n <= 0) return tsr_sys_raise(err, "read", "a temporary file for parts of uploads (TMPDIR)");
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
    TSR_FAIL_IF(part->state >= PART_QUEUED, err, TSR_E_USAGE, "bytes of '%.*s' were written twice",
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

void tsr_parts_take_room(object_output *output, size_t size)
{
    pthread_mutex_lock(&output->lock);
    while (!has_room(output, size)) pthread_cond_wait(&output->changed, &output->lock);
    output->bytes_held += size;
    pthread_mutex_unlock(&output->lock);
}

void tsr_parts_give_room(object_output *output, size_t size)
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
    tsr_status status = arena ? tsr_resume_find_upload(output, object, err) : TSR_E_NOMEM;
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
    else if (!tsr_resume_has_part(output, of, bytes))
        status = output->service->uploading->send(output->service, &object->upload, of.number + 1, bytes,
                                                  &object->tags[of.number], err);
    bytes->data = NULL;
    return status;
}

static void *upload(void *ctx)
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
    output->thread_count += pthread_create(&output->threads[output->thread_count], NULL, upload, output) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return output->thread_count ? TSR_OK : tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "cannot start a thread for uploads");
}

tsr_status tsr_parts_write(object_output *output, part_bytes where, const void *data, tsr_error *err)
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
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "bytes of '%.*s' were written twice",
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

/* Waits until all other parts have been sent, so that no thread is using their sizes. */
void tsr_parts_resize(object_output *output, written_object *object, uint64_t size)
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
