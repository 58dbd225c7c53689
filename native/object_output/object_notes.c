/* Notes: objects next to the files of a checkpoint. With them, processes that share nothing but the bucket find what the
 * others have uploaded. A note consists of the SHA-256 of its text, in hexadecimal digits, and the text. */
#include "object_output/object_output.h"
#include "object_store/exchange.h"
#include "tessera/sys/try.h"

#define MOST_NOTE ((uint64_t)64 << 20)

static tsr_str key_of_note(const object_output *output, tsr_str name, tsr_arena *arena, tsr_error *err)
{
    return tsr_arena_format(arena, err, "%.*s%s%.*s%.*s", TSR_STR_ARG(output->root), output->root.size ? "/" : "",
                            TSR_STR_ARG(output->options.notes), TSR_STR_ARG(name));
}

bool tsr_object_is_note(const object_output *output, tsr_str key, tsr_str *name)
{
    const size_t head = output->root.size + (output->root.size != 0);
    const tsr_str notes = output->options.notes;
    if (!notes.size || key.size <= head + notes.size || memcmp(key.data + head, notes.data, notes.size) != 0) return false;
    *name = (tsr_str){key.data + head + notes.size, key.size - head - notes.size};
    return true;
}

tsr_status tsr_object_output_put_note(tsr_output *base, tsr_str name, tsr_str text, tsr_error *err)
{
    object_output *output = (object_output *)base;
    char *note = tsr_arena_array(output->arena, TSR_SUM_DIGITS + text.size, 1, err);
    tsr_upload_bytes bytes = {.data = note, .size = TSR_SUM_DIGITS + text.size};
    const tsr_upload upload = {.key = key_of_note(output, name, output->arena, err), .size = bytes.size};
    if (!note || !upload.key.data) return TSR_E_NOMEM;
    tsr_upload_sum(text.data, text.size, bytes.sum);
    memcpy(note, bytes.sum, TSR_SUM_DIGITS);
    memcpy(note + TSR_SUM_DIGITS, text.data, text.size);
    tsr_upload_sum(note, bytes.size, bytes.sum);
    return output->service->uploading->put(output->service, &upload, &bytes, err);
}

static tsr_status check_sum(tsr_service *service, const tsr_object *object, tsr_str note, tsr_str *text, tsr_error *err)
{
    char sum[TSR_SUM_DIGITS + 1];
    *text = note.size > TSR_SUM_DIGITS ? (tsr_str){note.data + TSR_SUM_DIGITS, note.size - TSR_SUM_DIGITS} : TSR_STR("");
    tsr_upload_sum(text->data, text->size, sum);
    TSR_FAIL_IF(!text->size || memcmp(sum, note.data, TSR_SUM_DIGITS) != 0, err, TSR_E_FORMAT,
                "%s: the note of a part is damaged; run the part again", tsr_shown_key_of(service, object->key).text);
    return TSR_OK;
}

tsr_status tsr_note_read(tsr_service *service, const tsr_object *object, tsr_arena *arena, tsr_str *text, tsr_error *err)
{
    TSR_FAIL_IF(!object->size || object->size > MOST_NOTE, err, TSR_E_FORMAT, "%s: the note of a part has %llu bytes",
                tsr_shown_key_of(service, object->key).text, (unsigned long long)object->size);
    char *buffer = tsr_arena_array(arena, (size_t)object->size, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    const tsr_request request = {.key = object->key, .is_ranged = true, .buffer = buffer, .capacity = (size_t)object->size};
    tsr_exchange x = {0};
    tsr_status status = tsr_exchange_perform(service, &request, &x, 1, err);
    if (status == TSR_OK && x.transfer.answer.status >= 300) status = tsr_exchange_error(service, &x, err);
    if (status == TSR_OK && x.transfer.answer.size != object->size)
        status = tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION, "%s changed while it was read",
                           tsr_shown_key_of(service, object->key).text);
    tsr_exchange_end(&x);
    return status == TSR_OK ? check_sum(service, object, (tsr_str){buffer, (size_t)object->size}, text, err) : status;
}

tsr_status tsr_object_output_notes(tsr_output *base, tsr_object_note_fn *each, void *ctx, tsr_error *err)
{
    object_output *output = (object_output *)base;
    const tsr_object *objects = output->before.items.items;
    for (size_t i = 0; i < output->before.items.count; i++) {
        tsr_str name, text;
        if (!tsr_object_is_note(output, objects[i].key, &name) || tsr_str_equal(name, TSR_STR(TSR_NOTE_REPLACING))) continue;
        TSR_TRY(tsr_note_read(output->service, &objects[i], output->arena, &text, err));
        TSR_TRY(each(ctx, name, text, err));
    }
    return TSR_OK;
}

static tsr_status remove_note(object_output *output, tsr_str name, tsr_error *err)
{
    const tsr_str key = key_of_note(output, name, output->arena, err);
    const tsr_status status = key.data ? output->service->uploading->remove(output->service, key, err) : TSR_E_NOMEM;
    if (status == TSR_OK) return TSR_OK;
    tsr_error_context(err, "the new checkpoint is complete, but the note of a part could not be removed");
    return TSR_E_IO;
}

bool tsr_note_is_of_job(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR(TSR_NOTE_PUBLISHED)) || tsr_str_equal(name, TSR_STR(TSR_NOTE_REPLACING));
}

static tsr_status remove_parts(object_output *output, tsr_error *err)
{
    const tsr_object *objects = output->before.items.items;
    for (size_t i = 0; i < output->before.items.count; i++) {
        tsr_str name;
        if (tsr_object_is_note(output, objects[i].key, &name) && !tsr_note_is_of_job(name))
            TSR_TRY(remove_note(output, name, err));
    }
    return TSR_OK;
}

bool tsr_object_has_notes(const object_output *output, const tsr_object_list *found)
{
    const tsr_object *objects = found->items.items;
    tsr_str name;
    for (size_t i = 0; i < found->items.count; i++)
        if (tsr_object_is_note(output, objects[i].key, &name)) return true;
    return false;
}

const tsr_object *tsr_object_find_note(const object_output *output, tsr_str name)
{
    const tsr_object *objects = output->before.items.items;
    tsr_str own;
    for (size_t i = 0; i < output->before.items.count; i++)
        if (tsr_object_is_note(output, objects[i].key, &own) && tsr_str_equal(own, name)) return &objects[i];
    return NULL;
}

/* The note that says that the checkpoint is published is removed last, so that it is still there if the process is killed in
 * between. */
tsr_status tsr_object_output_remove_notes(tsr_output *base, tsr_error *err)
{
    object_output *output = (object_output *)base;
    const bool has_notes = tsr_object_has_notes(output, &output->before);
    if (!has_notes && !output->has_record) return TSR_OK;
    if (has_notes) TSR_TRY(tsr_object_output_put_note(base, TSR_STR(TSR_NOTE_PUBLISHED), TSR_STR("published\n"), err));
    TSR_TRY(remove_parts(output, err));
    if (output->has_record || tsr_object_find_note(output, TSR_STR(TSR_NOTE_REPLACING)))
        TSR_TRY(remove_note(output, TSR_STR(TSR_NOTE_REPLACING), err));
    return has_notes ? remove_note(output, TSR_STR(TSR_NOTE_PUBLISHED), err) : TSR_OK;
}
