/* Continues what an interrupted run left in an object store (--resume). Leftovers are not trusted: this run produces all
 * bytes again, and sends those whose checksum the store does not have.
 *
 *   incomplete uploads ─▶ of each object, the one with most bytes is continued: parts of equal size and checksum are kept
 *   whole objects      ─▶ are read and compared with the bytes that would be written
 *   other uploads      ─▶ of the same objects: discarded once the new checkpoint is complete; others stay and are named */
#include <stdio.h>
#include <stdlib.h>

#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "tessera/sys/try.h"

/* ---- finding leftovers ---- */

static tsr_status list_unfinished(object_output *output, tsr_error *err)
{
    const tsr_resuming *kind = output->service->uploading->resuming;
    tsr_error why = {0};
    const tsr_str prefix = tsr_arena_format(output->arena, err, "%.*s%s", TSR_STR_ARG(output->root),
                                            output->root.size && output->options.is_folder ? "/" : "");
    if (!prefix.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_object_list_open(output->allocator, &output->unfinished, err));
    if (!kind->list_unfinished) return TSR_OK;
    if (kind->list_unfinished(output->service, prefix, &output->unfinished, &why) == TSR_OK) return TSR_OK;
    return tsr_raise(
        err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
        "--resume needs the list of unfinished uploads, which the server does not give (%s); run without --resume",
        why.message);
}

tsr_status tsr_resume_open(object_output *output, tsr_error *err)
{
    const tsr_object_output_options *options = &output->options;
    if (!options->resume && !options->notes.size) return TSR_OK;
    output->resumable = tsr_map_new(output->allocator, options->name_count, err);
    if (!output->resumable) return TSR_E_NOMEM;
    for (size_t i = 0; i < options->name_count; i++)
        TSR_TRY(tsr_map_put(output->resumable, options->names[i], (uint32_t)i, NULL, NULL, err));
    return TSR_OK;
}

tsr_status tsr_resume_look(object_output *output, tsr_error *err)
{
    return output->options.resume ? list_unfinished(output, err) : TSR_OK;
}

bool tsr_resume_knows(const object_output *output, tsr_str key)
{
    const size_t head = output->root.size + (output->root.size && output->options.is_folder);
    const bool may_be_ours = output->options.resume || output->options.takes_over || output->has_notes;
    if (!may_be_ours || !output->resumable || output->options.overwrite || key.size < head) return false;
    return tsr_map_get(output->resumable, (tsr_str){key.data + head, key.size - head}, UINT32_MAX) != UINT32_MAX;
}

static tsr_status refuse_other(const object_output *output, tsr_str key, tsr_error *err)
{
    return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                     "'%s' exists, and is not what this run writes; --overwrite replaces it",
                     tsr_shown_key_of(output->service, key).text);
}

tsr_status tsr_resume_take_object(object_output *output, written_object *object, const tsr_object *before, tsr_error *err)
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

tsr_status tsr_resume_find_upload(object_output *output, written_object *object, tsr_error *err)
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

bool tsr_resume_has_part(object_output *output, queued_part of, const tsr_upload_bytes *bytes)
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

/* ---- the end ---- */

/* Whether this run writes the key. Uploads of other objects next to it are not ours to discard. */
static bool is_ours(const object_output *output, tsr_str key)
{
    const size_t head = output->root.size + (output->root.size && output->options.is_folder);
    if (!output->options.is_folder) return tsr_str_equal(key, output->root);
    return tsr_map_get(output->file_of, (tsr_str){key.data + head, key.size - head}, UINT32_MAX) != UINT32_MAX;
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

tsr_status tsr_resume_finish(object_output *output, tsr_error *err)
{
    const tsr_object *unfinished = output->unfinished.items.items;
    for (size_t i = 0; i < output->unfinished.items.count; i++) {
        const tsr_upload upload = {.key = unfinished[i].key, .id = unfinished[i].version.data};
        if (is_used(output, &unfinished[i]) || (!output->options.is_folder && !tsr_str_equal(upload.key, output->root)))
            continue;
        if (is_left(output, upload.key)) continue;
        if (!is_ours(output, upload.key)) {
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
