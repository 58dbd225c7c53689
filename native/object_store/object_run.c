/* A training run in an object store, for native/publish/prune.c. See tessera/sys/prune_run.h. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#include "object_store/exchange.h"
#include "object_store/upload.h"
#include "tessera/native_host.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/path.h"
#include "tessera/sys/prune_run.h"
#include "tessera/sys/try.h"

enum { TOGETHER = 256 };

typedef struct object_run {
    tsr_run_place base; /* must be first */
    const tsr_allocator *allocator;
    tsr_service *service;
    tsr_arena *arena;
    tsr_str head;   /* what the keys of the run begin with: empty, or its path and a slash */
    tsr_str record; /* its key, once it was written */
} object_run;

static tsr_status key_of(const object_run *run, tsr_str name, tsr_str *out, tsr_error *err)
{
    *out = tsr_arena_format(run->arena, err, "%.*s%.*s", TSR_STR_ARG(run->head), TSR_STR_ARG(name));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status list(tsr_run_place *base, tsr_arena *arena, tsr_vec *files, int64_t *now, tsr_error *err)
{
    object_run *run = (object_run *)base;
    tsr_object_list found;
    TSR_TRY(tsr_object_list_open(run->allocator, &found, err));
    tsr_status status = tsr_service_list(run->service, run->head, true, &found, err);
    const tsr_object *objects = found.items.items;
    for (size_t i = 0; status == TSR_OK && i < found.items.count; i++) {
        tsr_str name = {objects[i].key.data + run->head.size, objects[i].key.size - run->head.size};
        /* Some programs make empty objects that stand for directories. */
        const bool is_directory = name.size && name.data[name.size - 1] == '/' && !objects[i].size;
        name.size -= is_directory;
        if (!name.size) continue;
        tsr_run_file *file = tsr_vec_push(files, err);
        if (!file) status = TSR_E_NOMEM;
        if (status != TSR_OK) break;
        *file = (tsr_run_file){.name = tsr_arena_str(arena, name, err),
                               .kind = is_directory ? TSR_RUN_DIRECTORY : TSR_RUN_FILE,
                               .size = objects[i].size,
                               .seconds = objects[i].modified ? objects[i].modified : INT64_MAX, /* it may be new */
                               .version = tsr_arena_str(arena, objects[i].version, err),
                               .target = TSR_STR("")};
        if (!file->name.data || !file->version.data) status = TSR_E_NOMEM;
    }
    *now = found.now ? found.now : (int64_t)time(NULL);
    tsr_object_list_close(&found);
    return status;
}

static tsr_status read_object(tsr_run_place *base, const tsr_run_file *file, size_t most, tsr_arena *arena, tsr_str *text,
                              tsr_error *err)
{
    const object_run *run = (const object_run *)base;
    tsr_exchange x = {0};
    tsr_str key;
    *text = TSR_STR("");
    if (file->kind != TSR_RUN_FILE || !file->size || file->size > most) return TSR_OK;
    TSR_TRY(key_of(run, file->name, &key, err));
    char *buffer = tsr_arena_array(arena, (size_t)file->size, 1, err);
    if (!buffer) return TSR_E_NOMEM;
    const tsr_request request = {.key = key, .is_ranged = true, .buffer = buffer, .capacity = (size_t)file->size};
    tsr_status status = tsr_exchange_perform(run->service, &request, &x, 1, err);
    const bool is_gone = status == TSR_OK && x.transfer.answer.status == 404;
    if (status == TSR_OK && !is_gone && x.transfer.answer.status >= 300) status = tsr_exchange_error(run->service, &x, err);
    if (status == TSR_OK && !is_gone && x.transfer.answer.size == file->size) *text = (tsr_str){buffer, (size_t)file->size};
    tsr_exchange_end(&x);
    return status;
}

static tsr_status write_record(tsr_run_place *base, tsr_str text, tsr_error *err)
{
    object_run *run = (object_run *)base;
    uint64_t random;
    TSR_FAIL_IF(getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random, err, TSR_E_IO,
                "cannot get random numbers for the name of a record");
    const tsr_str name = tsr_arena_format(run->arena, err, TSR_PRUNE_RECORD "%016" PRIx64, random);
    tsr_upload_bytes bytes = {.data = text.data, .size = text.size};
    tsr_upload upload = {.size = text.size, .if_absent = true};
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(key_of(run, name, &upload.key, err));
    tsr_upload_sum(text.data, text.size, bytes.sum);
    TSR_TRY(run->service->uploading->put(run->service, &upload, &bytes, err));
    run->record = upload.key;
    return TSR_OK;
}

static tsr_status drop_record(tsr_run_place *base, tsr_error *err)
{
    const object_run *run = (const object_run *)base;
    return run->record.size ? run->service->uploading->remove(run->service, run->record, err) : TSR_OK;
}

static tsr_status remove_object(tsr_run_place *base, const tsr_run_file *file, tsr_run_removal *out, tsr_error *err)
{
    const object_run *run = (const object_run *)base;
    tsr_str key;
    *out = TSR_RUN_REMOVED;
    TSR_TRY(key_of(run, file->name, &key, err));
    return run->service->uploading->remove(run->service, key, err);
}

static bool is_changed(const tsr_object *object, const tsr_run_file *file)
{
    return object->size != file->size || !tsr_str_equal(object->version, file->version) ||
           (object->modified && object->modified != file->seconds);
}

/* Whether no listed object differs from the file of its name. An object that was not there before is another program's. */
static tsr_status compare(const object_run *run, const tsr_object_list *found, const tsr_run_file *const *files,
                          size_t count, bool *is_same, tsr_error *err)
{
    tsr_map *names = tsr_map_new(run->allocator, count, err);
    tsr_status status = names ? TSR_OK : TSR_E_NOMEM;
    *is_same = true;
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        status = tsr_map_put(names, files[i]->name, (uint32_t)i, NULL, NULL, err);
    for (size_t i = 0; i < found->items.count && status == TSR_OK; i++) {
        const tsr_object *object = (const tsr_object *)found->items.items + i;
        const uint32_t at = tsr_map_get(names, tsr_str_after(object->key, run->head.size), UINT32_MAX);
        *is_same = *is_same && (at == UINT32_MAX || !is_changed(object, files[at]));
    }
    tsr_map_free(names);
    return status;
}

static tsr_status check(tsr_run_place *base, tsr_str path, const tsr_run_file *const *files, size_t count, bool *is_same,
                        tsr_error *err)
{
    const object_run *run = (const object_run *)base;
    const bool is_file = count == 1 && tsr_str_equal(files[0]->name, path);
    const tsr_str prefix =
        tsr_arena_format(run->arena, err, "%.*s%.*s%s", TSR_STR_ARG(run->head), TSR_STR_ARG(path), is_file ? "" : "/");
    tsr_object_list found;
    *is_same = true;
    if (!prefix.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_object_list_open(run->allocator, &found, err));
    tsr_status status = tsr_service_list(run->service, prefix, true, &found, err);
    if (status == TSR_OK) status = compare(run, &found, files, count, is_same, err);
    tsr_object_list_close(&found);
    return status;
}

static tsr_status remove_some(const object_run *run, const tsr_run_file *const *files, size_t count, tsr_error *err)
{
    tsr_request requests[TOGETHER];
    tsr_exchange *exchanges = tsr_alloc(run->allocator, TOGETHER, sizeof *exchanges, err);
    tsr_status status = exchanges ? TSR_OK : TSR_E_NOMEM;
    const bool is_upload = run->service->uploading != &tsr_uploading_by_google; /* which removes by the API that reads */
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        requests[i] = (tsr_request){.method = "DELETE", .is_upload = is_upload};
        status = key_of(run, files[i]->name, &requests[i].key, err);
    }
    if (status == TSR_OK) {
        status = tsr_exchange_perform(run->service, requests, exchanges, count, err);
        for (size_t i = 0; i < count; i++) {
            const long answer = exchanges[i].transfer.answer.status;
            if (status == TSR_OK && answer >= 300 && answer != 404)
                status = tsr_exchange_error(run->service, &exchanges[i], err);
            tsr_exchange_end(&exchanges[i]);
        }
    }
    if (exchanges) tsr_free(run->allocator, exchanges, TOGETHER, sizeof *exchanges);
    return status;
}

static tsr_status remove_all(tsr_run_place *base, const tsr_run_file *const *files, size_t count, tsr_error *err)
{
    const object_run *run = (const object_run *)base;
    for (size_t at = 0; at < count; at += TOGETHER)
        TSR_TRY(remove_some(run, files + at, count - at < TOGETHER ? count - at : TOGETHER, err));
    return TSR_OK;
}

static tsr_status remove_directory(tsr_run_place *base, tsr_str name, tsr_error *err)
{
    const object_run *run = (const object_run *)base;
    tsr_object_list found;
    const tsr_str key = tsr_arena_format(run->arena, err, "%.*s%.*s/", TSR_STR_ARG(run->head), TSR_STR_ARG(name));
    if (!key.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_object_list_open(run->allocator, &found, err));
    tsr_status status = tsr_service_list(run->service, key, true, &found, err);
    const bool is_empty =
        status == TSR_OK && found.items.count == 1 && tsr_str_equal(((const tsr_object *)found.items.items)->key, key);
    tsr_object_list_close(&found);
    return is_empty ? run->service->uploading->remove(run->service, key, err) : status;
}

static tsr_status settle(tsr_run_place *base, tsr_str name, tsr_error *err)
{
    (void)base, (void)name, (void)err;
    return TSR_OK; /* what a store has answered is durable */
}

static void close_run(tsr_run_place *base)
{
    object_run *run = (object_run *)base;
    tsr_service_close(run->service);
    tsr_arena_free(run->arena);
    tsr_free(run->allocator, run, 1, sizeof *run);
}

static tsr_status open_run(object_run *run, const tsr_host *host, const char *url, bool dry_run, tsr_error *err)
{
    tsr_location location;
    TSR_TRY(tsr_location_parse(url, &location, err));
    TSR_FAIL_IF(location.kind == TSR_AT_HF, err, TSR_E_UNSUPPORTED, "nothing can be removed from hf://, which is read only");
    run->arena = tsr_arena_new(host->allocator, 0, err);
    if (!run->arena) return TSR_E_NOMEM;
    run->head = tsr_arena_format(run->arena, err, "%.*s%s", TSR_STR_ARG(location.key), location.key.size ? "/" : "");
    if (!run->head.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_service_open(host->allocator, &location, tsr_io_depth(host), &run->service, err));
    if (!dry_run && run->service->choose_uploading) TSR_TRY(run->service->choose_uploading(run->service, err));
    return TSR_OK;
}

tsr_status tsr_object_run_open(const tsr_host *host, const char *url, bool dry_run, tsr_run_place **out, tsr_error *err)
{
    object_run *run = tsr_alloc(host->allocator, 1, sizeof *run, err);
    if (!run) return TSR_E_NOMEM;
    *run = (object_run){.base = {.list = list,
                                 .read = read_object,
                                 .write_record = write_record,
                                 .drop_record = drop_record,
                                 .check = check,
                                 .remove = remove_object,
                                 .remove_all = remove_all,
                                 .remove_directory = remove_directory,
                                 .settle = settle,
                                 .close = close_run},
                        .allocator = host->allocator};
    const tsr_status status = open_run(run, host, url, dry_run, err);
    if (status == TSR_OK) *out = &run->base;
    else close_run(&run->base);
    return status;
}
