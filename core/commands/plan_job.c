/* The job in a plan document: reads it, describes its source, and notices that a source has changed. */
#include "base/line.h"
#include "commands/command_request_read.h"
#include "documents/document_parts.h"
#include "tessera/glob.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"

/* ---- sources ---- */

tsr_status tsr_plan_check_present(const tsr_checkpoint *source, const tsr_checkpoint *planned,
                                  const tsr_command_options *options, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(source);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (source == planned && !tsr_globs_select(&options->selection, entry->fqn)) continue;
        TSR_TRY(tsr_checkpoint_check_present(source, entry, err));
    }
    return TSR_OK;
}

/* ---- document ---- */

/* tessera.plan/1: the job, totals, loads per rank and per file, and optionally every read item. */

static void put_source(tsr_json *json, const char *key, const tsr_plan_source *source)
{
    tsr_json_put_object(json, key);
    tsr_json_put_str(json, "path", source->path);
    tsr_json_put_str(json, "format", source->format);
    tsr_json_put_object(json, "digest");
    tsr_json_put_str(json, "algorithm", source->digest_algorithm);
    tsr_json_put_str(json, "digest", source->digest);
    tsr_json_object_end(json);
    tsr_json_put_array(json, "files");
    for (uint64_t i = 0; i < source->file_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "file", source->files[i].name);
        tsr_json_put_uint(json, "bytes", source->files[i].bytes);
        if (source->files[i].modified.size) tsr_json_put_str(json, "modified", source->files[i].modified);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

/* The busiest server is a lower bound for any order of reads. */
static void put_storage_totals(tsr_json *json, const tsr_plan_document *document)
{
    double seconds = 0;
    for (uint32_t s = 0; s < document->storage->server_count; s++)
        seconds = document->servers[s].seconds > seconds ? document->servers[s].seconds : seconds;
    tsr_json_put_double(json, "server_seconds", seconds);
    tsr_json_put_uint(json, "assumed_files", tsr_storage_assumed(document->storage, document->totals));
}

static uint64_t replicated_of(const tsr_plan *plan)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < tsr_plan_count(plan); i++) count += tsr_plan_tensor_at(plan, i).replicated;
    return count;
}

static void put_totals(tsr_json *json, const tsr_plan_document *document)
{
    const tsr_plan *plan = document->plan;
    const bool reshards = document->job->target.mesh.size != 0;
    const uint64_t replicated = reshards ? replicated_of(plan) : 0;
    const tsr_plan_totals *totals = document->totals;
    tsr_json_put_object(json, "totals");
    tsr_json_put_uint(json, "tensors", tsr_plan_count(plan));
    if (replicated) tsr_json_put_uint(json, "replicated", replicated);
    tsr_json_put_uint(json, "classes", totals->classes);
    if (reshards) tsr_json_put_uint(json, "ranks", totals->ranks);
    tsr_json_put_uint(json, "reads", totals->reads);
    tsr_json_put_uint(json, "bytes", totals->bytes);
    tsr_json_put_uint(json, "span_bytes", totals->span_bytes);
    tsr_json_put_uint(json, "largest_read", totals->largest_read);
    if (reshards) {
        tsr_json_put_uint(json, "held_max", totals->held_max);
        tsr_json_put_uint(json, "peak_memory",
                          totals->held_max + totals->largest_read); /* of a rank that reads its shards one by one */
        tsr_json_put_double(json, "imbalance", totals->imbalance);
    }
    tsr_json_put_double(json, "read_amplification", totals->amplification);
    if (document->storage) put_storage_totals(json, document);
    tsr_json_object_end(json);
}

/* Writes null for data that a map computes while reading: its file has a name that is not valid UTF-8. */
static void put_file(tsr_json *json, const tsr_catalog *catalog, uint32_t file)
{
    const bool named = file < catalog->store->file_count;
    const tsr_str name = named ? catalog->store->files[file].name : TSR_STR("");
    tsr_json_key(json, "file");
    if (!named || (name.size && (unsigned char)name.data[0] == 0xf8)) tsr_json_null(json);
    else tsr_json_str(json, name);
}

static void put_file_loads(tsr_json *json, const tsr_plan_document *document)
{
    const tsr_plan_totals *totals = document->totals;
    const tsr_storage *storage = document->storage;
    tsr_json_put_array(json, "files");
    for (uint32_t f = 0; f < totals->file_count && f < document->catalog->store->file_count; f++) {
        if (totals->per_file[f].reads == 0) continue;
        tsr_json_object(json);
        put_file(json, document->catalog, f);
        tsr_json_put_uint(json, "reads", totals->per_file[f].reads);
        tsr_json_put_uint(json, "bytes", totals->per_file[f].bytes);
        if (storage) tsr_json_put_str(json, "first_server", storage->servers[tsr_storage_server_at(storage, f, 0)].name);
        if (storage) tsr_json_put_uint(json, "stripe_count", storage->files[f].stripe_count);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_servers(tsr_json *json, const tsr_plan_document *document)
{
    tsr_json_key(json, "storage");
    tsr_storage_write(json, &document->job->storage);
    tsr_json_put_array(json, "servers");
    for (uint32_t s = 0; s < document->storage->server_count; s++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "server", document->storage->servers[s].name);
        tsr_json_put_uint(json, "bytes", document->servers[s].bytes);
        tsr_json_put_double(json, "seconds", document->servers[s].seconds);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_loads(tsr_json *json, const tsr_plan_document *document)
{
    const tsr_plan_totals *totals = document->totals;
    tsr_json_put_array(json, "ranks");
    for (uint64_t r = 0; document->job->target.mesh.size && r < totals->ranks; r++) {
        tsr_json_object(json);
        tsr_json_put_uint(json, "held", totals->per_rank[r].held);
        tsr_json_put_uint(json, "read", totals->per_rank[r].read);
        tsr_json_put_uint(json, "received", totals->per_rank[r].received);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    put_file_loads(json, document);
    if (document->storage) put_servers(json, document);
}

static void put_item(tsr_json *json, const tsr_plan *plan, const tsr_read_item *item, const tsr_catalog *catalog)
{
    const struct {
        const char *key;
        const uint64_t *numbers;
    } lists[] = {
        {"dest_offsets", item->dest_offsets}, {"storage_offsets", item->storage_offsets}, {"lengths", item->lengths}};
    tsr_json_object(json);
    tsr_json_put_str(json, "fqn", item->entry->fqn);
    tsr_json_put_uint(json, "dest_rank", item->dest_rank);
    for (size_t i = 0; i < 3; i++) {
        tsr_json_key(json, lists[i].key);
        const bool flat = i == 0 && tsr_plan_tensor_at(plan, item->tensor).layout->flat; /* its local tensor is 1-d */
        tsr_json_u64s(json, lists[i].numbers, flat && item->entry->ndim ? 1 : item->entry->ndim);
    }
    put_file(json, catalog, item->chunk->file);
    tsr_json_object_end(json);
}

static tsr_status put_items(tsr_json *json, const tsr_plan_document *document, tsr_error *err)
{
    tsr_plan_cursor *cursor;
    const tsr_read_item *item = NULL;
    TSR_TRY(tsr_plan_cursor_new(document->plan, 0, tsr_plan_ranks(document->plan), &cursor, err));
    tsr_json_put_array(json, "items");
    tsr_status status;
    while ((status = tsr_plan_cursor_next(cursor, &item, err)) == TSR_OK && item && json->status == TSR_OK) {
        put_item(json, document->plan, item, document->catalog);
    }
    tsr_json_array_end(json);
    tsr_plan_cursor_free(cursor);
    return status;
}

tsr_status tsr_document_plan(const tsr_plan_document *document, tsr_json *json, tsr_error *err)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.plan/1");
    put_source(json, "source", &document->job->source);
    if (document->job->adapter.path.size) put_source(json, "adapter", &document->job->adapter);
    tsr_json_key(json, "request");
    tsr_request_write(json, &document->job->request);
    tsr_json_key(json, "target");
    if (document->job->target.mesh.size) tsr_target_texts_write(json, &document->job->target, document->mesh);
    else tsr_json_null(json);
    put_totals(json, document);
    put_loads(json, document);
    if (document->items) TSR_TRY(put_items(json, document, err));
    tsr_json_object_end(json);
    return json->status;
}

/* ---- flat ---- */

/* Plans for FSDP1: every tensor's flat ranges become its own layout. */

typedef struct flat_layouts {
    const tsr_catalog *catalog;
    tsr_layout *layouts; /* one per entry; without ranks if it is not a parameter */
} flat_layouts;

static const tsr_layout *layout_of(void *ctx, const tsr_entry *entry)
{
    const flat_layouts *flat = ctx;
    const tsr_layout *layout = &flat->layouts[entry - flat->catalog->entries];
    return layout->ranks ? layout : NULL;
}

/* Decides which tensors are flattened. */
typedef struct flattened {
    const tsr_target_texts *texts;
    const tsr_target *target;
    const tsr_plan_options *options;
} flattened;

static bool is_flattened(void *ctx, tsr_str fqn)
{
    const flattened *f = ctx;
    if (f->options && f->options->want && !f->options->want(f->options->want_ctx, fqn)) return false;
    for (uint32_t i = 0; i < f->texts->ignored_count; i++) {
        if (f->target->match(f->texts->ignored[i], fqn)) return false;
    }
    return true;
}

static tsr_status lay_out_unit(const flat_layouts *flat, const tsr_fsdp1_unit *unit, tsr_arena *arena, tsr_error *err)
{
    for (uint64_t i = 0; i < unit->count; i++) {
        const tsr_entry *entry = unit->entries[i];
        tsr_layout *layout = &flat->layouts[entry - flat->catalog->entries];
        TSR_TRY(tsr_layout_flat(&unit->flat, i, (tsr_shape){entry->ndim, entry->shape}, arena, layout, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_for_texts(const tsr_catalog *catalog, const tsr_planning *what, const tsr_host *host, tsr_arena *arena,
                              tsr_plan **out, tsr_error *err)
{
    const tsr_target_texts *texts = what->texts;
    const tsr_target *target = what->target;
    tsr_plan_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, what->options, tsr_plan_options, err));
    if (!texts->fsdp1) return tsr_plan_new(catalog, target, &own, host, out, err);
    flattened choice = {texts, target, &own};
    const tsr_fsdp1 fsdp1 = {.units = texts->units,
                             .unit_count = texts->unit_count,
                             .match = target->match,
                             .want = is_flattened,
                             .want_ctx = &choice,
                             .use_orig_params = texts->use_orig_params,
                             .ranks = tsr_mesh_ranks(&target->mesh)};
    const tsr_fsdp1_unit *units;
    flat_layouts flat = {catalog, tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *flat.layouts, err)};
    if (!flat.layouts) return TSR_E_NOMEM;
    TSR_TRY(tsr_target_fsdp1(catalog, &fsdp1, arena, &units, err));
    for (uint32_t u = 0; u <= texts->unit_count; u++) TSR_TRY(lay_out_unit(&flat, &units[u], arena, err));
    tsr_plan_options with_layouts = own;
    with_layouts.layout = layout_of;
    with_layouts.layout_ctx = &flat;
    with_layouts.flat_units = units;
    with_layouts.flat_unit_count = (uint64_t)texts->unit_count + 1;
    return tsr_plan_new(catalog, target, &with_layouts, host, out, err);
}

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

/* Digest of a catalog, by `*algorithm` (0: SHA-256, or XXH3 if the host has no SHA-256; then set to the one used): names,
 * kinds, dtypes, shapes, boxes, and the locations of their bytes. Equal for two openings of an unchanged checkpoint. */
static tsr_status catalog_digest(const tsr_catalog *catalog, const tsr_host *host, tsr_digest_algorithm *algorithm,
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
    TSR_TRY(catalog_digest(catalog, host, &algorithm, &digest, err));
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

static tsr_status get_text(const job_reader *r, const cJSON *object, const char *key, const char *where, tsr_str *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_get(object, key, TSR_JSON_STRING, where, &item, r->err));
    return tsr_json_copy_text(item, r->arena, out, r->err);
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
        if (modified) TSR_TRY(tsr_json_copy_text(modified, r->arena, &file->modified, r->err));
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
