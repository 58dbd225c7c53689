/* Files whose size is known only after they have been written, and how their writers find and remove other objects next to
 * them. Such a file is created with the largest size that its parts allow, and gets its final size at the end. Full parts
 * are sent to the server in the meantime. */
#include "object_output/object_output.h"
#include "tessera/sys/try.h"

/* Chooses the size of parts so that twice the expected size would fit. */
tsr_status tsr_object_output_create_stream(tsr_output *base, tsr_str name, uint64_t expected, uint32_t *file, tsr_error *err)
{
    size_t part = TSR_PART_BYTES;
    while (part < TSR_LARGEST_PART && expected > (uint64_t)part * TSR_MOST_UPLOAD_PARTS / 2) part *= 2;
    const new_object as = {.name = name, .size = (uint64_t)part * TSR_MOST_UPLOAD_PARTS, .part_size = part};
    return tsr_object_create((object_output *)base, as, file, err);
}

tsr_status tsr_object_output_end_stream(tsr_output *base, uint32_t file, uint64_t size, tsr_error *err)
{
    object_output *output = (object_output *)base;
    TSR_FAIL_IF(file >= output->objects.count, err, TSR_E_USAGE, "there is no output file number %u", file);
    written_object *object = written_object_at(output, file);
    TSR_FAIL_IF(size > object->upload.size, err, TSR_E_USAGE, "'%.*s' cannot end behind its largest size",
                TSR_STR_ARG(object->upload.key));
    tsr_parts_resize(output, object, size);
    return TSR_OK;
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
        if (is_ours((tsr_str){upload.key.data + head, upload.key.size - head}))
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
        status = tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "the server does not list unfinished uploads (%s)",
                           why.message);
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
