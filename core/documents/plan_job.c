/* The job in a plan document: reads it, makes it from a catalog, and compares two of them. */
#include "base/line.h"
#include "codec/json.h"
#include "documents/document_parts.h"
#include "documents/storage_read.h"
#include "documents/target_read.h"
#include "tessera/convert.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

/* ---- digest of a catalog ---- */

typedef struct digester {
    const tsr_digest_ops *ops;
    void *state;
} digester;

static void feed_u64(const digester *d, uint64_t number)
{
    uint8_t bytes[8];
    tsr_store_le(bytes, number, sizeof bytes);
    d->ops->update(d->state, bytes, sizeof bytes);
}

static void feed_str(const digester *d, tsr_str text)
{
    feed_u64(d, text.size);
    if (text.size) d->ops->update(d->state, text.data, text.size);
}

static void feed_chunk(const digester *d, const tsr_catalog *catalog, const tsr_entry *entry, const tsr_chunk *chunk)
{
    bool known = chunk->file < catalog->store->file_count;
    for (uint32_t i = 0; i < entry->ndim; i++) feed_u64(d, chunk->offsets[i]);
    for (uint32_t i = 0; i < entry->ndim; i++) feed_u64(d, chunk->sizes[i]);
    feed_str(d, known ? catalog->store->files[chunk->file].name : TSR_STR(""));
    feed_u64(d, known ? catalog->store->files[chunk->file].size : 0);
    feed_u64(d, chunk->byte_offset);
    feed_u64(d, chunk->byte_length);
}

static void feed_entry(const digester *d, const tsr_catalog *catalog, const tsr_entry *entry)
{
    feed_str(d, entry->fqn);
    feed_u64(d, (uint64_t)entry->kind);
    feed_str(d, tsr_str_from(tsr_dtype_describe(entry->dtype)->name));
    feed_u64(d, entry->ndim);
    for (uint32_t i = 0; i < entry->ndim; i++) feed_u64(d, entry->shape[i]);
    feed_u64(d, entry->chunk_count);
    for (uint64_t i = 0; i < entry->chunk_count; i++) feed_chunk(d, catalog, entry, &entry->chunks[i]);
    feed_u64(d, entry->replica_count);
    for (uint64_t i = 0; i < entry->replica_count; i++) feed_chunk(d, catalog, entry, &entry->replicas[i]);
}

tsr_status tsr_catalog_digest(const tsr_catalog *catalog, const tsr_host *host, tsr_digest_algorithm *algorithm,
                              tsr_digest *out, tsr_error *err)
{
    if (!*algorithm) *algorithm = host->sha256 ? TSR_DIGEST_SHA256 : TSR_DIGEST_XXH3;
    digester d = {*algorithm == TSR_DIGEST_SHA256 ? host->sha256 : host->xxh3, NULL};
    TSR_FAIL_IF(!d.ops, err, TSR_E_UNSUPPORTED, "this build has no %s digest",
                *algorithm == TSR_DIGEST_SHA256 ? "SHA-256" : "XXH3");
    d.state = d.ops->start();
    TSR_FAIL_IF(!d.state, err, TSR_E_NOMEM, "out of memory for a digest");
    feed_str(&d, tsr_str_from(tsr_format_name(catalog->format)));
    feed_u64(&d, catalog->entry_count);
    for (uint64_t i = 0; i < catalog->entry_count; i++) feed_entry(&d, catalog, &catalog->entries[i]);
    out->size = d.ops->size;
    d.ops->finish(d.state, out->bytes);
    return TSR_OK;
}

static void mark_chunks(const tsr_chunk *chunks, uint64_t count, bool *used, uint32_t file_count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i].file < file_count) used[chunks[i].file] = true;
    }
}

/* Whether a file determines the values read, in addition to the tensors. */
static bool is_read(const tsr_store *store, uint32_t file, const tsr_plan_job *job)
{
    const tsr_str name = store->files[file].name;
    if (store->file_count == 1) return true;
    return job->source_map.size &&
           (tsr_str_equal(name, TSR_STR("config.json")) || tsr_str_equal(name, TSR_STR("params.json")));
}

static tsr_status list_files(const tsr_catalog *catalog, tsr_arena *arena, tsr_plan_job *out, tsr_error *err)
{
    const tsr_store *store = catalog->store;
    bool *used = tsr_arena_array(arena, store->file_count, sizeof *used, err);
    out->files = tsr_arena_array(arena, store->file_count, sizeof *out->files, err);
    out->file_count = 0;
    if (!used || !out->files) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        mark_chunks(catalog->entries[i].chunks, catalog->entries[i].chunk_count, used, store->file_count);
        mark_chunks(catalog->entries[i].replicas, catalog->entries[i].replica_count, used, store->file_count);
    }
    for (uint32_t f = 0; f < store->file_count; f++) {
        if (used[f] || is_read(store, f, out))
            out->files[out->file_count++] = (tsr_plan_file){store->files[f].name, store->files[f].size, TSR_STR("")};
    }
    return TSR_OK;
}

tsr_status tsr_plan_job_source(const tsr_catalog *catalog, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out,
                               tsr_error *err)
{
    static const char *const forms[] = {"safetensors", "torch", "dcp", "megatron-dist"};
    tsr_digest_algorithm algorithm = (tsr_digest_algorithm)0;
    tsr_digest digest;
    if (tsr_str_equal(out->digest_algorithm, TSR_STR("sha256"))) algorithm = TSR_DIGEST_SHA256;
    if (tsr_str_equal(out->digest_algorithm, TSR_STR("xxh3"))) algorithm = TSR_DIGEST_XXH3;
    TSR_TRY(tsr_catalog_digest(catalog, host, &algorithm, &digest, err));
    char *hex = tsr_arena_array(arena, 2 * digest.size + 1, 1, err);
    if (!hex) return TSR_E_NOMEM;
    tsr_digest_text(&digest, hex);
    out->source_format = tsr_str_from(tsr_format_name(catalog->format));
    out->digest_algorithm = algorithm == TSR_DIGEST_SHA256 ? TSR_STR("sha256") : TSR_STR("xxh3");
    out->digest = (tsr_str){hex, 2 * digest.size};
    if (!out->to.size) out->to = tsr_str_from(forms[tsr_container_for(catalog->format)]);
    return list_files(catalog, arena, out, err);
}

/* ---- comparing ---- */

static tsr_status check_text(const char *what, tsr_str planned, tsr_str found, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_str_equal(planned, found), err, TSR_E_CHANGED,
                "the source changed since the plan was made: its %s is %.*s, but the plan was made for %.*s", what,
                TSR_STR_ARG(found), TSR_STR_ARG(planned));
    return TSR_OK;
}

static tsr_status check_file(const tsr_plan_file *planned, const tsr_plan_file *found, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_str_equal(planned->name, found->name), err, TSR_E_CHANGED,
                "the source changed since the plan was made: it has the file '%.*s' where the plan has '%.*s'",
                TSR_STR_ARG(found->name), TSR_STR_ARG(planned->name));
    TSR_FAIL_IF(planned->bytes != found->bytes, err, TSR_E_CHANGED,
                "the source changed since the plan was made: '%.*s' has %llu bytes, but the plan was made for %llu",
                TSR_STR_ARG(found->name), (unsigned long long)found->bytes, (unsigned long long)planned->bytes);
    const bool known = planned->modified.size && found->modified.size;
    TSR_FAIL_IF(
        known && !tsr_str_equal(planned->modified, found->modified), err, TSR_E_CHANGED,
        "the source changed since the plan was made: '%.*s' has the time or version %.*s, but the plan was made for %.*s",
        TSR_STR_ARG(found->name), TSR_STR_ARG(found->modified), TSR_STR_ARG(planned->modified));
    return TSR_OK;
}

tsr_status tsr_plan_job_check(const tsr_plan_job *planned, const tsr_plan_job *found, tsr_error *err)
{
    TSR_TRY(check_text("format", planned->source_format, found->source_format, err));
    for (uint64_t i = 0; i < planned->file_count && i < found->file_count; i++)
        TSR_TRY(check_file(&planned->files[i], &found->files[i], err));
    TSR_FAIL_IF(planned->file_count != found->file_count, err, TSR_E_CHANGED,
                "the source changed since the plan was made: it has %llu files with tensors, but the plan was made for %llu",
                (unsigned long long)found->file_count, (unsigned long long)planned->file_count);
    TSR_FAIL_IF(!tsr_str_equal(planned->digest_algorithm, found->digest_algorithm), err, TSR_E_UNSUPPORTED,
                "the plan has a %.*s digest, but this build computes %.*s", TSR_STR_ARG(planned->digest_algorithm),
                TSR_STR_ARG(found->digest_algorithm));
    return check_text("metadata's digest", planned->digest, found->digest, err);
}

/* ---- reading ---- */

typedef struct job_reader {
    tsr_arena *arena;
    tsr_error *err;
} job_reader;

static tsr_status copy_text(const job_reader *r, const cJSON *item, tsr_str *out)
{
    *out = tsr_arena_str(r->arena, tsr_json_text_of(item), r->err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status get_text(const job_reader *r, const cJSON *object, const char *key, const char *where, bool needed,
                           tsr_str *out)
{
    const cJSON *item;
    *out = TSR_STR("");
    TSR_TRY((needed ? tsr_json_get : tsr_json_find)(object, key, TSR_JSON_STRING, where, &item, r->err));
    return item ? copy_text(r, item, out) : TSR_OK;
}

static tsr_status read_files(const job_reader *r, const cJSON *list, tsr_plan_job *out)
{
    tsr_plan_file *files = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *files, r->err);
    const cJSON *item, *bytes;
    if (!files) return TSR_E_NOMEM;
    out->files = files;
    cJSON_ArrayForEach(item, list)
    {
        char where[48];
        tsr_line place = tsr_line_on(where, sizeof where);
        tsr_line_format(&place, "source.files[%llu]", (unsigned long long)out->file_count);
        tsr_plan_file *file = &files[out->file_count++];
        TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
        TSR_TRY(get_text(r, item, "file", where, true, &file->name));
        TSR_TRY(tsr_json_get(item, "bytes", TSR_JSON_NUMBER, where, &bytes, r->err));
        TSR_TRY(tsr_json_to_u64(bytes, where, &file->bytes, r->err));
        TSR_TRY(get_text(r, item, "modified", where, false, &file->modified));
    }
    return TSR_OK;
}

static tsr_status read_source(const job_reader *r, const cJSON *source, tsr_plan_job *out)
{
    const cJSON *digest, *files, *inverse;
    TSR_TRY(get_text(r, source, "path", "source", true, &out->source_path));
    TSR_TRY(get_text(r, source, "part", "source", false, &out->source_part));
    TSR_TRY(get_text(r, source, "step", "source", false, &out->source_step));
    TSR_TRY(get_text(r, source, "map", "source", false, &out->source_map));
    TSR_TRY(tsr_json_find(source, "inverse", TSR_JSON_BOOL, "source", &inverse, r->err));
    out->source_inverse = cJSON_IsTrue(inverse);
    TSR_TRY(get_text(r, source, "format", "source", true, &out->source_format));
    TSR_TRY(tsr_json_get(source, "digest", TSR_JSON_OBJECT, "source", &digest, r->err));
    TSR_TRY(get_text(r, digest, "algorithm", "source.digest", true, &out->digest_algorithm));
    TSR_TRY(get_text(r, digest, "digest", "source.digest", true, &out->digest));
    TSR_TRY(tsr_json_get(source, "files", TSR_JSON_ARRAY, "source", &files, r->err));
    return read_files(r, files, out);
}

static tsr_status read_list(const job_reader *r, const cJSON *object, const char *key, const tsr_str **out, size_t *count)
{
    const cJSON *list, *item;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_ARRAY, "destination", &list, r->err));
    tsr_str *texts = tsr_arena_array(r->arena, list ? (size_t)cJSON_GetArraySize(list) : 0, sizeof *texts, r->err);
    if (!texts) return TSR_E_NOMEM;
    *out = texts;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, key, r->err));
        TSR_TRY(copy_text(r, item, &texts[(*count)++]));
    }
    return TSR_OK;
}

static tsr_status read_job(const job_reader *r, const cJSON *root, tsr_plan_job *out)
{
    const cJSON *source, *target, *destination, *raw_cast, *storage;
    tsr_str schema;
    *out = (tsr_plan_job){.file_count = 0};
    TSR_TRY(get_text(r, root, "schema", "", true, &schema));
    TSR_FAIL_IF(!tsr_str_equal(schema, TSR_STR("tessera.plan/1")), r->err, TSR_E_FORMAT,
                "plan: unexpected schema '%.*s'; expected tessera.plan/1", TSR_STR_ARG(schema));
    TSR_TRY(tsr_json_get(root, "source", TSR_JSON_OBJECT, "", &source, r->err));
    TSR_TRY(tsr_json_get(root, "target", TSR_JSON_OBJECT, "", &target, r->err));
    TSR_TRY(tsr_json_get(root, "destination", TSR_JSON_OBJECT, "", &destination, r->err));
    TSR_TRY(read_source(r, source, out));
    TSR_TRY(tsr_target_texts_of(target, r->arena, &out->target, r->err));
    TSR_TRY(get_text(r, destination, "to", "destination", true, &out->to));
    TSR_TRY(get_text(r, destination, "objects", "destination", false, &out->objects));
    TSR_TRY(get_text(r, destination, "dtype", "destination", false, &out->dtype));
    TSR_TRY(tsr_json_find(destination, "raw_cast", TSR_JSON_BOOL, "destination", &raw_cast, r->err));
    out->raw_cast = cJSON_IsTrue(raw_cast);
    TSR_TRY(read_list(r, destination, "include", &out->include, &out->include_count));
    TSR_TRY(read_list(r, destination, "exclude", &out->exclude, &out->exclude_count));
    TSR_TRY(tsr_json_find(root, "storage", TSR_JSON_OBJECT, "", &storage, r->err));
    return storage ? tsr_storage_text_of(storage, r->arena, &out->storage, r->err) : TSR_OK;
}

tsr_status tsr_plan_job_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_plan_job *out, tsr_error *err)
{
    const job_reader r = {arena, err};
    cJSON *root;
    TSR_TRY(tsr_json_parse(json_text, host, &root, err));
    const tsr_status status = read_job(&r, root, out);
    cJSON_Delete(root);
    return status;
}
