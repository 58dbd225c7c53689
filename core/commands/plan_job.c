/* The job in a plan document: reads it, describes its source, and notices that a source has changed. */
#include "tessera/sys/plan_job.h"
#include "base/line.h"
#include "commands/command_request_read.h"
#include "documents/storage_read.h"
#include "documents/target_read.h"
#include "tessera/glob.h"
#include "tessera/sys/check_shared.h"
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
static bool is_read(const tsr_store *store, uint32_t file, bool settings)
{
    const tsr_str name = store->files[file].name;
    if (store->file_count == 1) return true;
    return settings && (tsr_str_equal(name, TSR_STR("config.json")) || tsr_str_equal(name, TSR_STR("params.json")));
}

static tsr_status list_files(const tsr_catalog *catalog, bool settings, tsr_arena *arena, tsr_plan_source *out,
                             tsr_error *err)
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
        if (used[f] || is_read(store, f, settings))
            out->files[out->file_count++] = (tsr_plan_file){store->files[f].name, store->files[f].size, TSR_STR("")};
    }
    return TSR_OK;
}

tsr_status tsr_plan_source_describe(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_host *host,
                                    tsr_arena *arena, tsr_plan_source *out, tsr_error *err)
{
    tsr_digest_algorithm algorithm = (tsr_digest_algorithm)0;
    tsr_digest digest;
    if (tsr_str_equal(out->digest_algorithm, TSR_STR("sha256"))) algorithm = TSR_DIGEST_SHA256;
    if (tsr_str_equal(out->digest_algorithm, TSR_STR("xxh3"))) algorithm = TSR_DIGEST_XXH3;
    TSR_TRY(tsr_catalog_digest(catalog, host, &algorithm, &digest, err));
    char *hex = tsr_arena_array(arena, 2 * digest.size + 1, 1, err);
    if (!hex) return TSR_E_NOMEM;
    tsr_digest_text(&digest, hex);
    out->format = tsr_str_from(tsr_format_name(catalog->format));
    out->digest_algorithm = algorithm == TSR_DIGEST_SHA256 ? TSR_STR("sha256") : TSR_STR("xxh3");
    out->digest = (tsr_str){hex, 2 * digest.size};
    const bool settings = options->map || options->dequantize || options->source.shards;
    return list_files(catalog, settings, arena, out, err);
}

tsr_status tsr_target_of_conversion(tsr_arena *arena, tsr_target_texts *texts, tsr_target *out, tsr_error *err)
{
    *texts = (tsr_target_texts){.mesh = TSR_STR("1"), .default_placements = TSR_STR("replicate")};
    return tsr_target_from_texts(texts, tsr_glob_match, arena, out, err);
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

tsr_status tsr_plan_source_check(const tsr_plan_source *planned, const tsr_plan_source *found, tsr_error *err)
{
    TSR_TRY(check_text("format", planned->format, found->format, err));
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

static tsr_status get_text(const job_reader *r, const cJSON *object, const char *key, const char *where, tsr_str *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_get(object, key, TSR_JSON_STRING, where, &item, r->err));
    return copy_text(r, item, out);
}

static tsr_status read_files(const job_reader *r, const cJSON *list, const char *whose, tsr_plan_source *out)
{
    tsr_plan_file *files = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *files, r->err);
    const cJSON *item, *bytes, *modified;
    if (!files) return TSR_E_NOMEM;
    out->files = files;
    cJSON_ArrayForEach(item, list)
    {
        char where[48];
        tsr_line place = tsr_line_on(where, sizeof where);
        tsr_line_format(&place, "%s.files[%llu]", whose, (unsigned long long)out->file_count);
        tsr_plan_file *file = &files[out->file_count++];
        TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
        TSR_TRY(get_text(r, item, "file", where, &file->name));
        TSR_TRY(tsr_json_get(item, "bytes", TSR_JSON_NUMBER, where, &bytes, r->err));
        TSR_TRY(tsr_json_to_u64(bytes, where, &file->bytes, r->err));
        TSR_TRY(tsr_json_find(item, "modified", TSR_JSON_STRING, where, &modified, r->err));
        file->modified = TSR_STR("");
        if (modified) TSR_TRY(copy_text(r, modified, &file->modified));
    }
    return TSR_OK;
}

static tsr_status read_source(const job_reader *r, const cJSON *source, const char *whose, tsr_plan_source *out)
{
    const cJSON *digest, *files;
    TSR_TRY(get_text(r, source, "path", whose, &out->path));
    TSR_TRY(get_text(r, source, "format", whose, &out->format));
    TSR_TRY(tsr_json_get(source, "digest", TSR_JSON_OBJECT, whose, &digest, r->err));
    TSR_TRY(get_text(r, digest, "algorithm", "digest", &out->digest_algorithm));
    TSR_TRY(get_text(r, digest, "digest", "digest", &out->digest));
    TSR_TRY(tsr_json_get(source, "files", TSR_JSON_ARRAY, whose, &files, r->err));
    return read_files(r, files, whose, out);
}

static tsr_status read_job(const job_reader *r, const cJSON *root, tsr_plan_job *out)
{
    const cJSON *schema, *source, *adapter, *request, *target, *storage;
    *out = (tsr_plan_job){.target = {.rule_count = 0}};
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, r->err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.plan/1") != 0, r->err, TSR_E_FORMAT,
                "plan: unexpected schema '%s'; expected tessera.plan/1", schema->valuestring);
    TSR_TRY(tsr_json_get(root, "source", TSR_JSON_OBJECT, "", &source, r->err));
    TSR_TRY(tsr_json_find(root, "request", TSR_JSON_OBJECT, "", &request, r->err));
    TSR_FAIL_IF(!request, r->err, TSR_E_UNSUPPORTED,
                "the plan has no request, so Tessera 0.2 or older made it; make it again with tessera plan");
    TSR_TRY(read_source(r, source, "source", &out->source));
    TSR_TRY(tsr_request_of(request, r->arena, &out->request, r->err));
    TSR_TRY(tsr_json_find(root, "adapter", TSR_JSON_OBJECT, "", &adapter, r->err));
    if (adapter) TSR_TRY(read_source(r, adapter, "adapter", &out->adapter));
    const bool reshards = strcmp(out->request.command->name, "reshard") == 0;
    TSR_FAIL_IF(!reshards && strcmp(out->request.command->name, "convert") != 0, r->err, TSR_E_FORMAT,
                "plan: request.command is '%s'; a plan carries out convert or reshard", out->request.command->name);
    TSR_TRY((reshards ? tsr_json_get : tsr_json_find)(root, "target", TSR_JSON_OBJECT, "", &target, r->err));
    if (reshards) TSR_TRY(tsr_target_texts_of(target, r->arena, &out->target, r->err));
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
