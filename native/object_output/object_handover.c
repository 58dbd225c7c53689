/* Lets several processes that share nothing but the bucket write one checkpoint. Each sends its files in parts and leaves
 * the uploads incomplete. It stores a note, a separate object, with everything that the last process needs to complete them.
 * Until then the files are not visible.
 *
 *   note  u64 size of the records, records (of the caller), u32 number of files, then for each file:
 *         name, id of the upload, u8 is whole, u64 size, u32 size of a part, u32 number of parts, then for each part:
 *         its tag, its SHA-256
 *
 * Texts are preceded by their size (u32), and numbers are little-endian (object_output.h). */
#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "tessera/sys/try.h"

/* ---- sharing ---- */

tsr_status tsr_object_output_share(tsr_output *base, const bool *kept, uint32_t count, bool leads, tsr_error *err)
{
    object_output *output = (object_output *)base;
    output->follows = !leads;
    for (uint32_t f = 0; f < output->objects.count; f++) {
        written_object *object = written_object_at(output, f);
        object->is_left = f < count ? !kept[f] : !leads;
        TSR_FAIL_IF(object->is_left && object->begun != UPLOAD_NONE, tsr_naming(err), TSR_E_USAGE,
                    "'%.*s' is uploaded by several processes", TSR_STR_ARG(object->upload.key));
    }
    return TSR_OK;
}

/* ---- handing over ---- */

static bool is_given(const object_output *output, const bool *kept, uint32_t file)
{
    return kept[file] && written_object_at(output, file)->upload.size;
}

/* Sends a small object, too, as an upload with a single part. */
static tsr_status send_small(object_output *output, written_object *object, tsr_error *err)
{
    if (!object->small) return TSR_OK;
    object->parts[0].data = object->small;
    const tsr_status status = tsr_parts_send(output, (queued_part){object, 0}, err);
    object->parts[0].data = NULL;
    return status;
}

static tsr_status put_object(const written_object *object, tsr_vec *note, tsr_error *err)
{
    TSR_TRY(tsr_note_put_text(note, object->name, err));
    TSR_TRY(tsr_note_put_text(note, tsr_str_from(object->upload.id), err));
    TSR_TRY(tsr_note_put_number(note, object->is_there, 1, err));
    TSR_TRY(tsr_note_put_number(note, object->upload.size, 8, err));
    TSR_TRY(tsr_note_put_number(note, object->part_size, 4, err));
    TSR_TRY(tsr_note_put_number(note, object->part_count, 4, err));
    for (unsigned i = 0; i < object->part_count; i++) {
        TSR_TRY(tsr_note_put_text(note, tsr_str_from(object->tags[i].text), err));
        TSR_TRY(tsr_note_put_text(note, tsr_str_from(object->sums[i].sum), err));
    }
    return TSR_OK;
}

tsr_status tsr_object_output_hand_over(tsr_output *base, const bool *kept, uint32_t count, tsr_str records, tsr_vec *note,
                                       tsr_error *err)
{
    object_output *output = (object_output *)base;
    uint32_t given = 0;
    /* `only_sends`: the process that publishes is running, and may be this one. It finds out itself. */
    TSR_FAIL_IF(output->service->uploading->is_of_process && !output->options.only_sends, tsr_naming(err), TSR_E_UNSUPPORTED,
                "%s: the emulator has only the JSON API, in which a process cannot complete the uploads of another one; "
                "write with a single process",
                output->service->shown);
    TSR_TRY(tsr_object_output_share(base, kept, count, false, err));
    TSR_TRY(tsr_parts_finish(output, err));
    for (uint32_t f = 0; f < count; f++) given += is_given(output, kept, f);
    TSR_TRY(tsr_note_put_number(note, records.size, 8, err));
    TSR_TRY(tsr_vec_append(note, records.data, records.size, err));
    TSR_TRY(tsr_note_put_number(note, given, 4, err));
    for (uint32_t f = 0; f < count; f++) {
        if (!is_given(output, kept, f)) continue;
        TSR_TRY(send_small(output, written_object_at(output, f), err));
        TSR_TRY(put_object(written_object_at(output, f), note, err));
    }
    return TSR_OK;
}

void tsr_object_output_keep_uploads(tsr_output *base)
{
    object_output *output = (object_output *)base;
    pthread_rwlock_rdlock(&output->steps);
    output->is_published = true;
    pthread_rwlock_unlock(&output->steps);
}

/* ---- taking over ---- */

static tsr_status refuse_note(tsr_error *err)
{
    return tsr_fail(err, TSR_E_FORMAT, "the note of a share is damaged, or of other files; run the share again");
}

/* Takes the tag and the checksum of a part. The tag is empty if there is a whole object instead of an upload. */
static bool take_tag(tsr_str *in, tsr_part_tag *tag, char sum[TSR_SUM_DIGITS + 1])
{
    tsr_str text, digits;
    if (!tsr_note_take_text(in, &text) || !tsr_note_take_text(in, &digits)) return false;
    if (text.size >= sizeof tag->text || digits.size != TSR_SUM_DIGITS) return false;
    memcpy(tag->text, text.data, text.size);
    tag->text[text.size] = '\0';
    memcpy(sum, digits.data, digits.size);
    sum[digits.size] = '\0';
    return strlen(tag->text) == text.size && !strpbrk(tag->text, "<>&");
}

/* The description of a file in a note, without its parts. */
typedef struct noted_file {
    tsr_str name, id;
    uint64_t is_whole, size, part_size, part_count;
} noted_file;

static bool take_file(tsr_str *note, noted_file *file)
{
    return tsr_note_take_text(note, &file->name) && tsr_note_take_text(note, &file->id) &&
           tsr_note_take_number(note, 1, &file->is_whole) && tsr_note_take_number(note, 8, &file->size) &&
           tsr_note_take_number(note, 4, &file->part_size) && tsr_note_take_number(note, 4, &file->part_count);
}

static bool take_head(tsr_str *note, tsr_str *records, uint64_t *count)
{
    uint64_t size;
    if (!tsr_note_take_number(note, 8, &size) || size > note->size) return false;
    *records = (tsr_str){note->data, (size_t)size};
    *note = tsr_str_after(*note, (size_t)size);
    return tsr_note_take_number(note, 4, count);
}

/* Whether a file in a note fits the one of this run. If its size was not known when it was created, its parts may be larger
 * than necessary. */
static bool fits(const written_object *object, const noted_file *noted)
{
    if (object->upload.size != noted->size || noted->part_size < object->part_size || noted->part_size > TSR_LARGEST_PART)
        return false;
    return noted->part_count == (noted->size ? (noted->size - 1) / noted->part_size + 1 : 1) &&
           noted->part_count <= object->part_count;
}

static tsr_status take_object(object_output *output, tsr_str *note, tsr_error *err)
{
    noted_file noted;
    if (!take_file(note, &noted)) return refuse_note(err);
    const uint32_t file = tsr_map_get(output->file_of, noted.name, UINT32_MAX);
    written_object *object = file == UINT32_MAX ? NULL : written_object_at(output, file);
    if (!object || !fits(object, &noted)) return refuse_note(err);
    object->part_size = (size_t)noted.part_size;
    object->part_count = (unsigned)noted.part_count;
    object->upload.id = tsr_arena_str(output->ids, noted.id, err).data;
    if (!object->upload.id) return TSR_E_NOMEM;
    for (unsigned i = 0; i < object->part_count; i++) {
        const uint64_t left = noted.size - (uint64_t)i * noted.part_size;
        if (!take_tag(note, &object->tags[i], object->sums[i].sum)) return refuse_note(err);
        object->sums[i].size = left < noted.part_size ? (size_t)left : (size_t)noted.part_size;
    }
    object->begun = noted.is_whole ? UPLOAD_NONE : UPLOAD_BEGUN;
    object->is_taken = true;
    object->is_there = false;
    object->small = NULL;
    return TSR_OK;
}

tsr_status tsr_object_output_take_over(tsr_output *base, tsr_str note, tsr_str *records, tsr_error *err)
{
    uint64_t count;
    if (!take_head(&note, records, &count)) return refuse_note(err);
    for (uint64_t i = 0; i < count; i++) TSR_TRY(take_object((object_output *)base, &note, err));
    return note.size ? refuse_note(err) : TSR_OK;
}

bool tsr_object_output_is_taken(const tsr_output *base, uint32_t file)
{
    const object_output *output = (const object_output *)base;
    return file < output->objects.count && written_object_at(output, file)->is_taken;
}

/* ---- discarding ---- */

static tsr_status abort_file(object_output *output, const noted_file *noted, tsr_error *err)
{
    if (noted->is_whole || !noted->id.size) return TSR_OK;
    const tsr_upload upload = {.key = tsr_arena_format(output->arena, err, "%.*s%s%.*s", TSR_STR_ARG(output->root),
                                                       output->root.size ? "/" : "", TSR_STR_ARG(noted->name)),
                               .id = tsr_arena_str(output->arena, noted->id, err).data,
                               .size = noted->size};
    if (!upload.key.data || !upload.id) return TSR_E_NOMEM;
    return output->service->uploading->abort(output->service, &upload, err);
}

static tsr_status abort_all(object_output *output, tsr_str note, tsr_error *err)
{
    tsr_str records;
    uint64_t count;
    tsr_part_tag tag;
    char sum[TSR_SUM_DIGITS + 1];
    if (!take_head(&note, &records, &count)) return refuse_note(err);
    for (uint64_t i = 0; i < count; i++) {
        noted_file noted;
        if (!take_file(&note, &noted)) return refuse_note(err);
        for (uint64_t p = 0; p < noted.part_count; p++)
            if (!take_tag(&note, &tag, sum)) return refuse_note(err);
        TSR_TRY(abort_file(output, &noted, err));
    }
    return TSR_OK;
}

/* Discards a part's uploads. The note is removed last, so that an interrupted removal can be repeated. Other processes may
 * do the same at the same time. */
static tsr_status discard(object_output *output, const tsr_object *note, bool is_part, tsr_error *err)
{
    tsr_error why = {0};
    tsr_str text;
    tsr_status status = tsr_note_read(output->service, note, output->arena, &text, &why);
    if (status == TSR_E_NOT_FOUND) return TSR_OK;
    if (status == TSR_OK && is_part) status = abort_all(output, text, &why);
    TSR_FAIL_IF(status == TSR_E_FORMAT, tsr_naming(err), status,
                "'%s' is not the note of a part of a plan, or is damaged; remove it yourself",
                tsr_shown_key_of(output->service, note->key).text);
    if (status != TSR_OK) return tsr_raise_again(err, status, &why);
    return output->service->uploading->remove(output->service, note->key, err);
}

tsr_status tsr_handover_discard(object_output *output, tsr_error *err)
{
    const tsr_object *objects = output->before.items.items;
    bool is_part;
    if (!output->options.discard_parts) return TSR_OK;
    for (size_t i = 0; i < output->before.items.count; i++)
        if (tsr_is_foreign_note(output, objects[i].key, &is_part)) TSR_TRY(discard(output, &objects[i], is_part, err));
    return TSR_OK;
}
