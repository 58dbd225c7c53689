/* See tessera/sys/object_store.h. */
#include "object_output/object_output.h"

#include "io/sys.h"
#include "object_store/exchange.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- creating ---- */

static tsr_status check_name(const object_output *output, tsr_str name, tsr_error *err)
{
    if (!output->options.is_folder) {
        TSR_FAIL_IF(name.size || output->objects.count, err, TSR_E_USAGE,
                    "the output is a single file, which has no name of its own");
        return TSR_OK;
    }
    TSR_FAIL_IF(!tsr_is_name_below(name, SIZE_MAX), err, TSR_E_USAGE, "'%.*s' is not a valid file name", TSR_STR_ARG(name));
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
    return tsr_resume_take_object(output, object, before, err);
}

static tsr_status cut(object_output *output, written_object *object, tsr_error *err)
{
    const uint64_t size = object->upload.size;
    const bool is_stream = object->part_size != 0;
    size_t part = is_stream ? object->part_size : TSR_PART_BYTES;
    while (part < TSR_LARGEST_PART && size > (uint64_t)part * TSR_MOST_UPLOAD_PARTS) part *= 2;
    TSR_FAIL_IF(size > (uint64_t)part * TSR_MOST_UPLOAD_PARTS, err, TSR_E_LIMIT,
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

/* ---- writing ---- */

static tsr_status output_write_at(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size,
                                  tsr_error *err)
{
    object_output *output = (object_output *)base;
    TSR_FAIL_IF(file >= output->objects.count, err, TSR_E_USAGE, "there is no output file number %u", file);
    written_object *object = written_object_at(output, file);
    TSR_FAIL_IF(offset > object->upload.size || size > object->upload.size - offset, err, TSR_E_USAGE,
                "bytes beyond the end of '%.*s' were to be written", TSR_STR_ARG(object->upload.key));
    if (object->small) {
        memcpy(object->small + offset, data, size);
        return TSR_OK;
    }
    for (size_t done = 0; done < size;) {
        const uint64_t at = offset + done;
        part_bytes where = {object, (unsigned)(at / object->part_size), (size_t)(at % object->part_size), size - done};
        if (where.size > object->part_size - where.at) where.size = object->part_size - where.at;
        TSR_TRY(tsr_parts_write(output, where, (const char *)data + done, err));
        done += where.size;
    }
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
    if (!output->is_published) tsr_object_discard(output);
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
    TSR_TRY(tsr_service_open(output->allocator, location, host->io_depth ? host->io_depth : TSR_IO_DEPTH, &output->service,
                             err));
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
        TSR_FAIL_IF(output->options.is_folder && is_itself, err, TSR_E_USAGE,
                    "the destination '%s' exists and is a file; a directory would be written", shown.text);
        TSR_FAIL_IF(!output->options.is_folder && is_below, err, TSR_E_USAGE,
                    "the destination '%s' exists and is a directory; a file would be written", shown.text);
    }
    TSR_FAIL_IF(!output->options.is_folder && !output->root.size, err, TSR_E_USAGE,
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

static tsr_status open_output(object_output *output, const char *url, tsr_error *err)
{
    tsr_location location;
    TSR_TRY(tsr_location_parse(url, &location, err));
    TSR_FAIL_IF(location.kind == TSR_AT_HF, err, TSR_E_UNSUPPORTED,
                "cannot write to '%s': hf:// is read only; use `hf upload` of huggingface_hub", url);
    output->arena = tsr_arena_new(output->allocator, 0, err);
    output->ids = tsr_arena_new(output->allocator, 0, err);
    if (!output->arena || !output->ids) return TSR_E_NOMEM;
    output->root = tsr_arena_str(output->arena, location.key, err);
    if (!output->root.data) return TSR_E_NOMEM;
    TSR_TRY(open_service(output, &location, err));
    TSR_TRY(tsr_object_list_open(output->allocator, &output->before, err));
    TSR_TRY(tsr_resume_open(output, err));
    if (!output->options.only_sends) TSR_TRY(tsr_object_look(output, &output->before, err));
    TSR_TRY(note_before(output, err));
    TSR_TRY(check_kind(output, err));
    TSR_TRY(tsr_handover_discard(output, err));
    return tsr_resume_look(output, err);
}

tsr_status tsr_object_output_open(const tsr_host *host, const char *url, const tsr_object_output_options *options,
                                  tsr_output **out, tsr_error *err)
{
    object_output *output = tsr_alloc(host->allocator, 1, sizeof *output, err);
    if (!output) return TSR_E_NOMEM;
    *output = (object_output){
        .base = {.create = output_create,
                 .write_at = output_write_at,
                 .publish = tsr_object_publish,
                 .close = output_close,
                 .sync = output_sync,
                 .generation = options->generation},
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

/* ---- object stream ---- */

/* Files whose size is known only after they have been written, and how their writers find and remove other objects next to
 * them. Such a file is created with the largest size that its parts allow, and gets its final size at the end. Full parts
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
