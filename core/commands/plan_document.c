/* tessera.plan/1: the job, totals, loads per rank and per file, and optionally every read item. */
#include "tessera/sys/layout.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan_items.h"
#include "tessera/sys/plan_job.h"
#include "tessera/sys/target_fsdp1.h"
#include "tessera/sys/try.h"

/* ---- document ---- */

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
