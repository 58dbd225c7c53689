/* An output to an object store: opens, publishes and removes its files. See tessera/sys/object_store.h. */
#include <time.h>

#include "object_output/object_output.h"

#include "io/sys.h"
#include "object_store/exchange.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* ---- publishing ---- */

/* Publishing:
 *
 *   send all parts ─▶ check that nobody has written to the destination ─▶ (remove old markers) ─▶ make data objects
 *   ─▶ read them back ─▶ make the marker ─▶ remove old objects
 *
 * After an interruption, the old checkpoint is intact if the new one has other names. Otherwise there is no marker. */

enum { LONGEST_WAIT_SECONDS = 20 };

/* Runs one function for many items, on the host's threads. Only the first failure is kept. */
typedef struct many {
    object_output *output;
    void (*one)(struct many *many, size_t index);
    const queued_part *parts;
    pthread_mutex_t lock;
    tsr_status status;
    tsr_error why;
} many;

static void do_one(void *ctx, size_t index)
{
    many *m = ctx;
    pthread_mutex_lock(&m->lock);
    const bool failed = m->status != TSR_OK;
    pthread_mutex_unlock(&m->lock);
    if (!failed) m->one(m, index);
}

static void note(many *m, tsr_status status, const tsr_error *why)
{
    if (status == TSR_OK) return;
    pthread_mutex_lock(&m->lock);
    if (m->status == TSR_OK) {
        m->status = status;
        m->why = *why;
    }
    pthread_mutex_unlock(&m->lock);
}

static tsr_status do_all(many *m, size_t count, tsr_error *err)
{
    const tsr_host *host = m->output->host;
    pthread_mutex_init(&m->lock, NULL);
    if (host->parallel_for) host->parallel_for(host->parallel_ctx, count, do_one, m);
    else
        for (size_t i = 0; i < count; i++) do_one(m, i);
    pthread_mutex_destroy(&m->lock);
    return m->status == TSR_OK ? TSR_OK : tsr_raise_again(err, m->status, &m->why);
}

/* ---- the destination ---- */

/* Whether an object has been written since the output was opened. False for an object that no longer exists. */
static bool was_written(const object_output *output, tsr_str key, const tsr_map *at, const tsr_object *found)
{
    const uint32_t now_at = tsr_map_get(at, key, UINT32_MAX), then_at = tsr_map_get(output->before_at, key, UINT32_MAX);
    if (now_at == UINT32_MAX) return false;
    if (then_at == UINT32_MAX) return true;
    const tsr_object *now = &found[now_at], *then = &((const tsr_object *)output->before.items.items)[then_at];
    return now->size != then->size || !tsr_str_equal(now->version, then->version);
}

static tsr_status refuse_written(const object_output *output, tsr_str key, tsr_error *err)
{
    return tsr_fail(tsr_naming(err), TSR_E_CHANGED,
                    "another program has written '%s' during this run, so nothing was published; run it again, or write to "
                    "another URL",
                    tsr_shown_key_of(output->service, key).text);
}

/* Objects that would be removed or replaced must be those that were there when it was decided: a training job may have saved
 * its next checkpoint in the meantime. */
static tsr_status compare_with_before(const object_output *output, const tsr_object_list *found, tsr_map *at, tsr_error *err)
{
    const tsr_object *objects = found->items.items;
    for (size_t i = 0; i < found->items.count; i++) TSR_TRY(tsr_map_put(at, objects[i].key, (uint32_t)i, NULL, NULL, err));
    for (size_t i = 0; i < output->options.obsolete_count; i++) {
        const tsr_str key = tsr_object_key(output, output->options.obsolete[i], found->arena, err);
        if (!key.data) return TSR_E_NOMEM;
        if (was_written(output, key, at, objects)) return refuse_written(output, key, err);
    }
    for (uint32_t f = 0; f < output->objects.count; f++) {
        const tsr_str key = written_object_at(output, f)->upload.key;
        if (was_written(output, key, at, objects)) return refuse_written(output, key, err);
    }
    return TSR_OK;
}

static tsr_status refuse_changed(const object_output *output, const tsr_object_list *found, tsr_error *err)
{
    tsr_map *at = tsr_map_new(output->allocator, found->items.count, err);
    const tsr_status status = at ? compare_with_before(output, found, at, err) : TSR_E_NOMEM;
    tsr_map_free(at);
    return status;
}

/* A store may not support preconditions. Objects that have appeared since the output was opened must not be replaced, and
 * with `overwrite` those that have changed since. */
static tsr_status look_again(object_output *output, tsr_error *err)
{
    tsr_object_list found = {0};
    TSR_TRY(tsr_object_list_open(output->allocator, &found, err));
    tsr_status status = tsr_destination_list(output, &found, err);
    if (status == TSR_OK && output->options.overwrite) status = refuse_changed(output, &found, err);
    tsr_object_list_close(&found);
    return status;
}

/* The same for the markers alone, because completing and reading back the data may have taken long. Lists them, so that
 * their versions have the same form as before. */
static tsr_status look_at_markers(const object_output *output, uint32_t marker, tsr_error *err)
{
    tsr_service *service = output->service;
    tsr_object_list found = {0};
    if (!output->options.overwrite || !marker) return TSR_OK;
    tsr_status status = tsr_object_list_open(output->allocator, &found, err);
    for (uint32_t f = marker; f < output->objects.count && status == TSR_OK; f++)
        if (!written_object_at(output, f)->is_left) /* otherwise another process of this job makes it */
            status = tsr_service_list(service, written_object_at(output, f)->upload.key, true, &found, err);
    if (status == TSR_OK) status = refuse_changed(output, &found, err);
    tsr_object_list_close(&found);
    return status;
}

/* ---- removing ---- */

tsr_status tsr_object_output_remove(tsr_output *base, tsr_str name, tsr_error *err)
{
    object_output *output = (object_output *)base;
    tsr_arena *arena = tsr_arena_new(output->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const tsr_str key = tsr_object_key(output, name, arena, err);
    const tsr_status status = key.data ? output->service->uploading->remove(output->service, key, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

static tsr_status remove_obsolete(object_output *output, tsr_str name, tsr_error *err)
{
    const uint32_t file = tsr_map_get(output->file_of, name, UINT32_MAX);
    const written_object *object = file != UINT32_MAX ? written_object_at(output, file) : NULL;
    if (object && (object->is_made || (object->is_left && output->has_all_data))) return TSR_OK;
    return tsr_object_output_remove(&output->base, name, err);
}

/* Whether the new checkpoint uses a name of the old one that is not one of its markers. */
static bool shares_names(const object_output *output)
{
    for (size_t i = output->options.marker_count; i < output->options.obsolete_count; i++)
        if (tsr_map_get(output->file_of, output->options.obsolete[i], UINT32_MAX) != UINT32_MAX) return true;
    return false;
}

static tsr_status remove_old_markers(object_output *output, tsr_error *err)
{
    if (!output->options.is_unlike && !shares_names(output)) return TSR_OK;
    for (size_t i = 0; i < output->options.marker_count; i++)
        TSR_TRY(remove_obsolete(output, output->options.obsolete[i], err));
    return TSR_OK;
}

/* Whether another process has uploaded the object, so that others can still publish it if this process fails. */
static bool is_anothers(const object_output *output, const written_object *object)
{
    return object->is_taken && !output->options.owns_taken;
}

/* Whether a file stays after a failure: correct data with --resume, and always what another process has uploaded. */
static bool is_kept(const object_output *output, uint32_t file)
{
    const written_object *object = written_object_at(output, file);
    return (output->options.resume || is_anothers(output, object)) && file < output->first_marker && !object->is_damaged;
}

/* Finds out which markers exist. If the reply to a request was lost, that is unknown, so the server is asked once more.
 * False if it does not answer. */
static bool know_markers(object_output *output)
{
    for (uint32_t f = output->first_marker; f < output->objects.count; f++) {
        written_object *object = written_object_at(output, f);
        tsr_error unused = {0};
        if (object->is_unsure && tsr_upload_is_there(output->service, &object->upload, object->small ? object->sums : NULL,
                                                     &object->is_made, &unused) != TSR_OK)
            return false;
        object->is_unsure = false;
        if (object->is_made && !object->upload.if_absent) output->has_replaced_marker = true;
    }
    return true;
}

/* Removes the marker, which was made last, first. If it has replaced an old one, or may exist, the new data must stay: a
 * marker without its data would be a checkpoint that cannot be loaded. With --resume, uploads stay, too. Returns whether nothing
 * else is left. */
static bool discard_all(object_output *output)
{
    tsr_service *service = output->service;
    const bool keeps_data = !know_markers(output) || output->has_replaced_marker;
    bool is_gone = !keeps_data;
    for (uint32_t f = (uint32_t)output->objects.count; f-- > 0;) {
        written_object *object = written_object_at(output, f);
        tsr_error unused = {0};
        if (object->is_made && object->upload.if_absent && !keeps_data && !is_kept(output, f))
            is_gone &= service->uploading->remove(service, object->upload.key, &unused) == TSR_OK;
        if (!object->is_made && object->begun == UPLOAD_BEGUN && !output->options.resume && !is_anothers(output, object))
            is_gone &= service->uploading->abort(service, &object->upload, &unused) == TSR_OK;
    }
    return is_gone;
}

/* Waits for the end of a step of the publication, because it is known only then what its requests have made. */
bool tsr_object_output_abandon(tsr_output *base)
{
    object_output *output = (object_output *)base;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LONGEST_WAIT_SECONDS;
    tsr_parts_stop(output);
    if (pthread_rwlock_timedwrlock(&output->steps, &until) != 0) return false;
    if (output->is_published) return true;
    pthread_mutex_lock(&output->lock);
    for (uint32_t f = 0; f < output->objects.count; f++)
        while (written_object_at(output, f)->begun == UPLOAD_BEGINNING &&
               pthread_cond_timedwait(&output->changed, &output->lock, &until) == 0) {
        }
    pthread_mutex_unlock(&output->lock);
    return discard_all(output); /* `steps` stays locked, so nothing can be made from now on */
}

/* ---- reading back ---- */

/* A process that was killed while it published may have completed the upload. The object then has the bytes that were
 * uploaded. */
static tsr_status accept_made(object_output *output, written_object *object, tsr_status status, tsr_error *err)
{
    tsr_error why = {0};
    tsr_status same = TSR_OK;
    for (unsigned i = 0; i < object->part_count && same == TSR_OK; i++)
        same = tsr_parts_compare(output, (queued_part){object, i}, &why);
    object->is_damaged = false;
    if (same == TSR_OK) return TSR_OK;
    tsr_error_context(err, "the upload of '%.*s' cannot be completed; run its part again", TSR_STR_ARG(object->name));
    return status;
}

/* ---- making ---- */

static tsr_status make(object_output *output, uint32_t file, tsr_error *err)
{
    tsr_service *service = output->service;
    written_object *object = written_object_at(output, file);
    tsr_upload_bytes bytes = {.data = object->small, .size = (size_t)object->upload.size};
    if (object->is_left) return TSR_OK;
    if (object->is_there) return object->small ? tsr_resume_compare(output, (queued_part){object, 0}, &bytes, err) : TSR_OK;
    pthread_rwlock_rdlock(&output->steps);
    tsr_status status = TSR_OK;
    if (object->small) {
        tsr_upload_sum(bytes.data, bytes.size, bytes.sum);
        object->sums[0] = bytes;
        status = service->uploading->put(service, &object->upload, &bytes, err);
    } else {
        if (object->begun == UPLOAD_BEGUN)
            status = service->uploading->complete(service, &object->upload, object->tags, object->part_count, err);
        else status = tsr_fail(err, TSR_E_NOT_FOUND, "there is no upload"); /* the object may be complete already */
        if (status != TSR_OK && object->is_taken) status = accept_made(output, object, status, err);
    }
    object->is_made = status == TSR_OK;
    object->is_unsure = status != TSR_OK && status != TSR_E_EXISTS && file >= output->first_marker;
    if (object->is_made && file >= output->first_marker && !object->upload.if_absent) output->has_replaced_marker = true;
    pthread_rwlock_unlock(&output->steps);
    return status;
}

static void make_one(many *m, size_t index)
{
    tsr_error why = {0};
    note(m, make(m->output, (uint32_t)index, &why), &why);
}

/* ---- reading everything back ---- */

static void verify_one(many *m, size_t index)
{
    tsr_error why = {0};
    const queued_part of = m->parts[index];
    if (of.object->sums[of.number].size) note(m, tsr_parts_compare(m->output, of, &why), &why);
}

/* Verifies the objects [first, end). */
static tsr_status verify(object_output *output, uint32_t first, uint32_t end, tsr_error *err)
{
    tsr_vec parts = tsr_vec_of(output->allocator, sizeof(queued_part));
    tsr_status status = TSR_OK;
    if (!output->options.verify) return TSR_OK;
    for (uint32_t f = first; f < end && status == TSR_OK; f++) {
        written_object *object = written_object_at(output, f);
        for (unsigned i = 0; i < object->part_count && status == TSR_OK && !object->is_there && !object->is_left; i++) {
            queued_part *added = tsr_vec_push(&parts, err);
            if (added) *added = (queued_part){object, i};
            else status = TSR_E_NOMEM;
        }
    }
    many all = {.output = output, .one = verify_one, .parts = parts.items};
    if (status == TSR_OK) status = do_all(&all, parts.count, err);
    tsr_vec_free(&parts);
    return status;
}

/* ---- uploads of earlier runs ---- */

/* Whether this run writes the key. Uploads of other objects next to it are not ours to discard. */
static bool writes_key(const object_output *output, tsr_str key)
{
    const size_t head = output->root.size + (output->root.size && output->options.is_directory);
    if (!output->options.is_directory) return tsr_str_equal(key, output->root);
    return tsr_map_get(output->file_of, tsr_str_after(key, head), UINT32_MAX) != UINT32_MAX;
}

/* Whether the key was left to another process of this run. */
static bool is_left(const object_output *output, tsr_str key)
{
    for (uint32_t f = 0; f < output->objects.count; f++) {
        const written_object *object = written_object_at(output, f);
        if (object->is_left && tsr_str_equal(object->upload.key, key)) return true;
    }
    return false;
}

static bool is_used(const object_output *output, const tsr_object *unfinished)
{
    for (uint32_t f = 0; f < output->objects.count; f++) {
        const tsr_upload *upload = &written_object_at(output, f)->upload;
        if (upload->id && tsr_str_equal(upload->key, unfinished->key) &&
            tsr_str_equal(tsr_str_from(upload->id), unfinished->version))
            return true;
    }
    return false;
}

/* Discards uploads that were not continued, once everything is published. */
static tsr_status discard_unfinished(object_output *output, tsr_error *err)
{
    const tsr_object *unfinished = output->unfinished.items.items;
    for (size_t i = 0; i < output->unfinished.items.count; i++) {
        const tsr_upload upload = {.key = unfinished[i].key, .id = unfinished[i].version.data};
        if (is_used(output, &unfinished[i]) || (!output->options.is_directory && !tsr_str_equal(upload.key, output->root)))
            continue;
        if (is_left(output, upload.key)) continue;
        if (!writes_key(output, upload.key)) {
            output->resumed.uploads_left += !output->follows;
            continue;
        }
        if (output->service->uploading->abort(output->service, &upload, err) != TSR_OK) {
            tsr_error_context(
                err, "the new checkpoint is complete, but an unfinished upload of an earlier run could not be given up");
            return TSR_E_IO;
        }
        output->resumed.uploads_given_up++;
    }
    return TSR_OK;
}

tsr_object_resumed tsr_object_output_resumed(const tsr_output *base)
{
    return ((const object_output *)base)->resumed;
}

/* ---- publication ---- */

/* Makes the markers. When the last one exists and is verified, nothing is removed any more. */
static tsr_status make_markers(object_output *output, uint32_t marker, tsr_error *err)
{
    const uint32_t count = (uint32_t)output->objects.count;
    TSR_TRY(look_at_markers(output, marker, err));
    for (uint32_t f = marker; f < count; f++) TSR_TRY(make(output, f, err));
    TSR_TRY(verify(output, marker, count, err));
    if (!output->follows) tsr_object_output_keep_uploads(&output->base);
    return TSR_OK;
}

static tsr_status make_data(object_output *output, uint32_t count, tsr_error *err)
{
    many data = {.output = output, .one = make_one};
    output->first_marker = count;
    TSR_TRY(do_all(&data, count, err));
    return verify(output, 0, count, err);
}

static tsr_status end(object_output *output, tsr_error *err)
{
    output->has_all_data = true;
    if (output->follows) tsr_object_output_keep_uploads(&output->base);
    for (size_t i = 0; i < output->options.obsolete_count; i++)
        if (remove_obsolete(output, output->options.obsolete[i], err) != TSR_OK) {
            tsr_error_context(err, "the new checkpoint is complete, but '%.*s' of the old one could not be removed",
                              TSR_STR_ARG(output->options.obsolete[i]));
            return TSR_E_IO;
        }
    TSR_TRY(discard_unfinished(output, err));
    return tsr_object_output_remove_notes(&output->base, err);
}

tsr_status tsr_object_output_step(tsr_output *base, tsr_object_step step, uint32_t marker, tsr_error *err)
{
    object_output *output = (object_output *)base;
    const uint32_t count = (uint32_t)output->objects.count, data_count = marker < count ? marker : count;
    switch (step) {
    case TSR_OBJECT_SEND: return tsr_parts_finish(output, err);
    case TSR_OBJECT_CLEAR:
        TSR_TRY(look_again(output, err));
        TSR_TRY(tsr_replacing_begin(output, err));
        return remove_old_markers(output, err);
    case TSR_OBJECT_DATA: return make_data(output, data_count, err);
    case TSR_OBJECT_MARKER: return make_markers(output, data_count, err);
    default: return end(output, err);
    }
}

static tsr_status publish_all(tsr_output *base, uint32_t marker, tsr_error *err)
{
    for (unsigned s = TSR_OBJECT_SEND; s <= TSR_OBJECT_END; s++)
        TSR_TRY(tsr_object_output_step(base, (tsr_object_step)s, marker, err));
    return TSR_OK;
}

/* Does nothing, because nothing has to be durable before it is published. */
static tsr_status output_sync(tsr_output *base, tsr_error *err)
{
    (void)base, (void)err;
    return TSR_OK;
}

/* ---- opening ---- */

static void output_close(tsr_output *base)
{
    object_output *output = (object_output *)base;
    tsr_parts_close(output);
    if (!output->is_published) discard_all(output);
    pthread_rwlock_destroy(&output->steps);
    pthread_mutex_destroy(&output->lock);
    pthread_cond_destroy(&output->changed);
    for (uint32_t f = 0; f < output->objects.count; f++) {
        tsr_map_free(written_object_at(output, f)->found_at);
        tsr_object_list_close(&written_object_at(output, f)->found);
    }
    tsr_map_free(output->resumable);
    tsr_object_list_close(&output->unfinished);
    tsr_map_free(output->before_at);
    tsr_map_free(output->file_of);
    tsr_object_list_close(&output->before);
    tsr_vec_free(&output->objects);
    tsr_vec_free(&output->held);
    tsr_vec_free(&output->queue);
    tsr_arena_free(output->arena);
    tsr_arena_free(output->ids);
    tsr_service_close(output->service);
    tsr_free(output->allocator, output, 1, sizeof *output);
}

static tsr_status open_service(object_output *output, const tsr_location *location, tsr_error *err)
{
    const tsr_host *host = output->host;
    TSR_TRY(tsr_service_open(output->allocator, location, tsr_io_depth(host), &output->service, err));
    return output->service->choose_uploading ? output->service->choose_uploading(output->service, err) : TSR_OK;
}

/* Refuses to write a directory where an object exists, and an object where a directory exists. */
static tsr_status check_kind(const object_output *output, tsr_error *err)
{
    const tsr_object *objects = output->before.items.items;
    for (size_t i = 0; i < output->before.items.count; i++) {
        const bool is_below = objects[i].key.size > output->root.size && objects[i].size;
        const bool is_itself = tsr_str_equal(objects[i].key, output->root);
        const tsr_shown_key shown = tsr_shown_key_of(output->service, output->root);
        TSR_FAIL_IF(output->options.is_directory && is_itself, tsr_naming(err), TSR_E_USAGE,
                    "the destination '%s' exists and is a file; a directory would be written", shown.text);
        TSR_FAIL_IF(!output->options.is_directory && is_below, tsr_naming(err), TSR_E_USAGE,
                    "the destination '%s' exists and is a directory; a file would be written", shown.text);
    }
    TSR_FAIL_IF(!output->options.is_directory && !output->root.size, tsr_naming(err), TSR_E_USAGE,
                "'%s' is a bucket; name the object to write", output->service->shown);
    return TSR_OK;
}

/* Indexes the existing objects and the new files by name, because there may be a million of each. */
static tsr_status note_before(object_output *output, tsr_error *err)
{
    const tsr_object *objects = output->before.items.items;
    const size_t count = output->before.items.count;
    output->before_at = tsr_map_new(output->allocator, count, err);
    output->file_of = tsr_map_new(output->allocator, 0, err);
    if (!output->before_at || !output->file_of) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) TSR_TRY(tsr_map_put(output->before_at, objects[i].key, (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

/* Lists the incomplete uploads of earlier runs, if one is to be continued. */
static tsr_status list_unfinished(object_output *output, tsr_error *err)
{
    const tsr_resuming *kind = output->service->uploading->resuming;
    tsr_error why = {0};
    if (!output->options.resume) return TSR_OK;
    const tsr_str prefix = tsr_arena_format(output->arena, err, "%.*s%s", TSR_STR_ARG(output->root),
                                            output->root.size && output->options.is_directory ? "/" : "");
    if (!prefix.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_object_list_open(output->allocator, &output->unfinished, err));
    if (!kind->list_unfinished) return TSR_OK;
    if (kind->list_unfinished(output->service, prefix, &output->unfinished, &why) == TSR_OK) return TSR_OK;
    return tsr_fail(
        tsr_naming(err), TSR_E_UNSUPPORTED,
        "--resume needs the list of unfinished uploads, which the server does not give (%s); run without --resume",
        why.message);
}

static tsr_status open_output(object_output *output, const char *url, tsr_error *err)
{
    tsr_location location;
    TSR_TRY(tsr_location_parse(url, &location, err));
    TSR_FAIL_IF(location.kind == TSR_AT_HF, tsr_naming(err), TSR_E_UNSUPPORTED,
                "cannot write to '%s': hf:// is read only; use `hf upload` of huggingface_hub", url);
    output->arena = tsr_arena_new(output->allocator, 0, err);
    output->ids = tsr_arena_new(output->allocator, 0, err);
    if (!output->arena || !output->ids) return TSR_E_NOMEM;
    output->root = tsr_arena_str(output->arena, location.key, err);
    if (!output->root.data) return TSR_E_NOMEM;
    TSR_TRY(open_service(output, &location, err));
    TSR_TRY(tsr_object_list_open(output->allocator, &output->before, err));
    TSR_TRY(tsr_objects_open(output, err));
    if (!output->options.only_sends) TSR_TRY(tsr_destination_list(output, &output->before, err));
    TSR_TRY(note_before(output, err));
    TSR_TRY(check_kind(output, err));
    TSR_TRY(tsr_handover_discard(output, err));
    return list_unfinished(output, err);
}

tsr_status tsr_object_output_open(const tsr_host *host, const char *url, const tsr_object_output_options *options,
                                  tsr_output **out, tsr_error *err)
{
    object_output *output = tsr_alloc(host->allocator, 1, sizeof *output, err);
    if (!output) return TSR_E_NOMEM;
    *output = (object_output){
        .base = {.publish = publish_all, .close = output_close, .sync = output_sync, .generation = options->generation},
        .host = host,
        .allocator = host->allocator,
        .options = *options,
        .saved = -1,
        .objects = tsr_vec_of(host->allocator, sizeof(written_object *)),
        .held = tsr_vec_of(host->allocator, sizeof(queued_part)),
        .queue = tsr_vec_of(host->allocator, sizeof(queued_part)),
    };
    pthread_rwlock_init(&output->steps, NULL);
    pthread_mutex_init(&output->lock, NULL);
    pthread_cond_init(&output->changed, NULL);
    const tsr_status status = open_output(output, url, err);
    if (status == TSR_OK) *out = &output->base;
    else output_close(&output->base);
    return status;
}

/* ---- other objects next to them ---- */

tsr_status tsr_object_output_before(const tsr_output *base, tsr_object_name_fn *each, void *ctx, tsr_error *err)
{
    const object_output *output = (const object_output *)base;
    const tsr_object *objects = output->before.items.items;
    const size_t head = output->root.size + (output->root.size != 0);
    for (size_t i = 0; i < output->before.items.count; i++)
        if (objects[i].key.size > head)
            TSR_TRY(each(ctx, (tsr_str){objects[i].key.data + head, objects[i].key.size - head}, err));
    return TSR_OK;
}

static tsr_status give_up_all(object_output *output, const tsr_object_list *found, tsr_object_is_ours_fn *is_ours,
                              tsr_error *err)
{
    const tsr_object *unfinished = found->items.items;
    const size_t head = output->root.size + (output->root.size != 0);
    for (size_t i = 0; i < found->items.count; i++) {
        const tsr_upload upload = {.key = unfinished[i].key, .id = unfinished[i].version.data};
        if (is_ours(tsr_str_after(upload.key, head)))
            TSR_TRY(output->service->uploading->abort(output->service, &upload, err));
    }
    return TSR_OK;
}

tsr_status tsr_object_output_give_up(tsr_output *base, tsr_object_is_ours_fn *is_ours, tsr_error *err)
{
    object_output *output = (object_output *)base;
    const tsr_resuming *kind = output->service->uploading->resuming;
    const tsr_str prefix =
        tsr_arena_format(output->arena, err, "%.*s%s", TSR_STR_ARG(output->root), output->root.size ? "/" : "");
    tsr_object_list found = {0};
    tsr_error why = {0};
    if (!prefix.data) return TSR_E_NOMEM;
    if (!kind->list_unfinished) return TSR_OK;
    TSR_TRY(tsr_object_list_open(output->allocator, &found, err));
    tsr_status status = kind->list_unfinished(output->service, prefix, &found, &why);
    if (status == TSR_OK) status = give_up_all(output, &found, is_ours, err);
    else
        status =
            tsr_fail(tsr_naming(err), TSR_E_UNSUPPORTED, "the server does not list unfinished uploads (%s)", why.message);
    tsr_object_list_close(&found);
    return status;
}

tsr_status tsr_object_output_read_note(tsr_output *base, tsr_str name, tsr_arena *arena, tsr_str *text, tsr_error *err)
{
    object_output *output = (object_output *)base;
    tsr_object_list found = {0};
    const tsr_str key = tsr_object_key(output, name, arena, err);
    if (!key.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_object_list_open(output->allocator, &found, err));
    tsr_status status = output->service->stat(output->service, key, &found, err);
    if (status == TSR_OK) status = tsr_note_read(output->service, found.items.items, arena, text, err);
    tsr_object_list_close(&found);
    return status;
}
