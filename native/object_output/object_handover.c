/* One checkpoint by several processes that share nothing but the bucket. Each sends its files in parts and leaves the uploads open; a note
 * of it, an object of its own, has all that the last process needs to complete them. Until then nothing of the files is visible.
 *
 *   handed over  u32 files, then of each: name, id of the upload, u8 is whole, u64 size, u32 size of a part, u32 parts, then of each: its
 *                tag, its SHA-256
 *
 * Texts have their size before them (u32), numbers are little-endian (note_text.h). */
#include "object_output/note_text.h"
#include "object_output/object_output.h"
#include "tessera/sys/try.h"

/* ---- handing over ---- */

static bool is_given(const object_output *output, const bool *kept, uint32_t file)
{
    return kept[file] && written_object_at(output, file)->upload.size;
}

/* What is small is an upload of one part here. */
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

tsr_status tsr_object_output_hand_over(tsr_output *base, const bool *kept, uint32_t count, tsr_vec *note, tsr_error *err)
{
    object_output *output = (object_output *)base;
    uint32_t given = 0;
    TSR_TRY(tsr_object_output_share(base, kept, count, false, err));
    TSR_TRY(tsr_parts_finish(output, err));
    for (uint32_t f = 0; f < count; f++) given += is_given(output, kept, f);
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
    tsr_object_set_published((object_output *)base);
}

/* ---- taking over ---- */

static tsr_status refuse_note(tsr_error *err)
{
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
                     "the note of a part is damaged, or of other files; run the part again");
}

/* The tag is empty where there is a whole object instead of an upload. */
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

static tsr_status take_object(object_output *output, tsr_str *note, tsr_error *err)
{
    tsr_str name, id;
    uint64_t is_whole, size, part_size, part_count;
    if (!tsr_note_take_text(note, &name) || !tsr_note_take_text(note, &id) || !tsr_note_take_number(note, 1, &is_whole) ||
        !tsr_note_take_number(note, 8, &size) || !tsr_note_take_number(note, 4, &part_size) || !tsr_note_take_number(note, 4, &part_count))
        return refuse_note(err);
    const uint32_t file = tsr_map_get(output->file_of, name, UINT32_MAX);
    written_object *object = file == UINT32_MAX ? NULL : written_object_at(output, file);
    if (!object || object->upload.size != size || object->part_size != part_size || object->part_count != part_count)
        return refuse_note(err);
    object->upload.id = tsr_arena_str(output->ids, id, err).data;
    if (!object->upload.id) return TSR_E_NOMEM;
    for (unsigned i = 0; i < object->part_count; i++) {
        const uint64_t left = size - (uint64_t)i * part_size;
        if (!take_tag(note, &object->tags[i], object->sums[i].sum)) return refuse_note(err);
        object->sums[i].size = left < part_size ? (size_t)left : (size_t)part_size;
    }
    object->begun = is_whole ? UPLOAD_NONE : UPLOAD_BEGUN;
    object->is_taken = true;
    object->is_there = false;
    object->small = NULL;
    return TSR_OK;
}

tsr_status tsr_object_output_take_over(tsr_output *base, tsr_str note, tsr_error *err)
{
    uint64_t count;
    if (!tsr_note_take_number(&note, 4, &count)) return refuse_note(err);
    for (uint64_t i = 0; i < count; i++) TSR_TRY(take_object((object_output *)base, &note, err));
    return note.size ? refuse_note(err) : TSR_OK;
}

bool tsr_object_output_is_taken(const tsr_output *base, uint32_t file)
{
    const object_output *output = (const object_output *)base;
    return file < output->objects.count && written_object_at(output, file)->is_taken;
}
