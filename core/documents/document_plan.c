/* tessera.plan/1: the job, totals, loads per rank and per file, and optionally every read item. */
#include "documents/document_parts.h"
#include "tessera/sys/try.h"

#include "tessera/sys/plan_items.h"
#include "tessera/sys/plan_job.h"

/* ---- target ---- */

static void put_pair(tsr_json *json, const char *key, tsr_str text)
{
    tsr_json_key(json, key);
    tsr_json_str(json, text);
}

/* Splits a text into placements at the commas outside of parentheses. */
static void put_placements(tsr_json *json, tsr_str text)
{
    tsr_json_array(json);
    unsigned depth = 0;
    for (size_t from = 0, at = 0; text.size && at <= text.size; at++) {
        char c = at < text.size ? text.data[at] : ',';
        depth += c == '(';
        depth -= c == ')' && depth;
        if (c != ',' || depth) continue;
        tsr_json_str(json, (tsr_str){text.data + from, at - from});
        from = at + 1;
    }
    tsr_json_array_end(json);
}

static void put_strategy(tsr_json *json, const tsr_target_texts *texts)
{
    tsr_json_key(json, "strategy");
    tsr_json_object(json);
    tsr_json_key(json, "name");
    tsr_json_text(json, "fsdp1");
    tsr_json_strs(json, "units", texts->units, texts->unit_count);
    if (texts->ignored_count) tsr_json_strs(json, "ignored", texts->ignored, texts->ignored_count);
    tsr_json_key(json, "use_orig_params");
    tsr_json_bool(json, texts->use_orig_params);
    tsr_json_object_end(json);
}

static void put_holders(tsr_json *json, const tsr_target_rule_text *rule)
{
    if (rule->ranks) tsr_json_key(json, "ranks");
    if (rule->ranks) tsr_json_u64s(json, rule->ranks, (uint32_t)rule->rank_count);
    if (!rule->stage_capture.size) return;
    tsr_json_key(json, "stage");
    tsr_json_object(json);
    put_pair(json, "dim", rule->stage_dim);
    tsr_json_key(json, "layers");
    tsr_json_object(json);
    put_pair(json, "capture", rule->stage_capture);
    tsr_json_key(json, "ranges");
    tsr_json_array(json);
    for (uint32_t i = 0; i < rule->stage_range_count; i++) {
        const uint64_t range[] = {rule->stage_ranges[i].offset, rule->stage_ranges[i].offset + rule->stage_ranges[i].size};
        tsr_json_u64s(json, range, 2);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
}

static void put_target(tsr_json *json, const tsr_mesh *mesh, const tsr_target_texts *texts)
{
    bool named = mesh->dim_count && mesh->names[0].size;
    tsr_json_key(json, "target");
    tsr_json_object(json);
    tsr_json_key(json, "schema");
    tsr_json_text(json, "tessera.target/1");
    tsr_json_key(json, "mesh");
    tsr_json_object(json);
    tsr_json_key(json, "shape");
    tsr_json_u64s(json, mesh->shape, mesh->dim_count);
    if (named) tsr_json_key(json, "dim_names");
    if (named) tsr_json_array(json);
    for (uint32_t i = 0; named && i < mesh->dim_count; i++) tsr_json_str(json, mesh->names[i]);
    if (named) tsr_json_array_end(json);
    tsr_json_object_end(json);
    if (texts->fsdp1) {
        put_strategy(json, texts);
        tsr_json_object_end(json);
        return;
    }
    tsr_json_key(json, "rules");
    tsr_json_array(json);
    for (uint32_t i = 0; i < texts->rule_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "match");
        tsr_json_str(json, texts->rules[i].match);
        tsr_json_key(json, "placements");
        put_placements(json, texts->rules[i].placements);
        put_holders(json, &texts->rules[i]);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_key(json, "default");
    put_placements(json, texts->default_placements);
    tsr_json_object_end(json);
}

/* ---- document ---- */

static void put_count(tsr_json *json, const char *key, uint64_t count)
{
    tsr_json_key(json, key);
    tsr_json_uint(json, count);
}

static void put_source(tsr_json *json, const tsr_plan_job *job)
{
    tsr_json_key(json, "source");
    tsr_json_object(json);
    put_pair(json, "path", job->source_path);
    if (job->source_part.size) put_pair(json, "part", job->source_part);
    if (job->source_step.size) put_pair(json, "step", job->source_step);
    if (job->source_map.size) put_pair(json, "map", job->source_map);
    if (job->source_inverse) {
        tsr_json_key(json, "inverse");
        tsr_json_bool(json, true);
    }
    put_pair(json, "format", job->source_format);
    tsr_json_key(json, "digest");
    tsr_json_object(json);
    put_pair(json, "algorithm", job->digest_algorithm);
    put_pair(json, "digest", job->digest);
    tsr_json_object_end(json);
    tsr_json_key(json, "files");
    tsr_json_array(json);
    for (uint64_t i = 0; i < job->file_count; i++) {
        tsr_json_object(json);
        put_pair(json, "file", job->files[i].name);
        put_count(json, "bytes", job->files[i].bytes);
        if (job->files[i].modified.size) put_pair(json, "modified", job->files[i].modified);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

static void put_destination(tsr_json *json, const tsr_plan_job *job)
{
    tsr_json_key(json, "destination");
    tsr_json_object(json);
    put_pair(json, "to", job->to);
    if (job->objects.size) put_pair(json, "objects", job->objects);
    if (job->dtype.size) put_pair(json, "dtype", job->dtype);
    if (job->raw_cast) {
        tsr_json_key(json, "raw_cast");
        tsr_json_bool(json, true);
    }
    tsr_json_strs(json, "include", job->include, job->include_count);
    tsr_json_strs(json, "exclude", job->exclude, job->exclude_count);
    tsr_json_object_end(json);
}

/* The busiest server is a lower bound for any order of reads. */
static void put_storage_totals(tsr_json *json, const tsr_plan_document *document)
{
    double seconds = 0;
    for (uint32_t s = 0; s < document->storage->server_count; s++)
        seconds = document->servers[s].seconds > seconds ? document->servers[s].seconds : seconds;
    tsr_json_key(json, "server_seconds");
    tsr_json_double(json, seconds);
    put_count(json, "assumed_files", tsr_storage_assumed(document->storage, document->totals));
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
    const uint64_t replicated = replicated_of(plan);
    const tsr_plan_totals *totals = document->totals;
    tsr_json_key(json, "totals");
    tsr_json_object(json);
    put_count(json, "tensors", tsr_plan_count(plan));
    if (replicated) put_count(json, "replicated", replicated);
    put_count(json, "classes", totals->classes);
    put_count(json, "ranks", totals->ranks);
    put_count(json, "reads", totals->reads);
    put_count(json, "bytes", totals->bytes);
    put_count(json, "span_bytes", totals->span_bytes);
    put_count(json, "largest_read", totals->largest_read);
    put_count(json, "held_max", totals->held_max);
    put_count(json, "peak_memory", totals->held_max + totals->largest_read); /* of a rank that reads its shards one by one */
    tsr_json_key(json, "imbalance");
    tsr_json_double(json, totals->imbalance);
    tsr_json_key(json, "read_amplification");
    tsr_json_double(json, totals->amplification);
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
    tsr_json_key(json, "files");
    tsr_json_array(json);
    for (uint32_t f = 0; f < totals->file_count && f < document->catalog->store->file_count; f++) {
        if (totals->per_file[f].reads == 0) continue;
        tsr_json_object(json);
        put_file(json, document->catalog, f);
        put_count(json, "reads", totals->per_file[f].reads);
        put_count(json, "bytes", totals->per_file[f].bytes);
        if (storage) put_pair(json, "first_server", storage->servers[tsr_storage_server_at(storage, f, 0)].name);
        if (storage) put_count(json, "stripe_count", storage->files[f].stripe_count);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_servers(tsr_json *json, const tsr_plan_document *document)
{
    tsr_json_key(json, "storage");
    tsr_storage_write(json, &document->job->storage);
    tsr_json_key(json, "servers");
    tsr_json_array(json);
    for (uint32_t s = 0; s < document->storage->server_count; s++) {
        tsr_json_object(json);
        put_pair(json, "server", document->storage->servers[s].name);
        put_count(json, "bytes", document->servers[s].bytes);
        tsr_json_key(json, "seconds");
        tsr_json_double(json, document->servers[s].seconds);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_loads(tsr_json *json, const tsr_plan_document *document)
{
    const tsr_plan_totals *totals = document->totals;
    tsr_json_key(json, "ranks");
    tsr_json_array(json);
    for (uint64_t r = 0; r < totals->ranks; r++) {
        tsr_json_object(json);
        put_count(json, "held", totals->per_rank[r].held);
        put_count(json, "read", totals->per_rank[r].read);
        put_count(json, "received", totals->per_rank[r].received);
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
    tsr_json_key(json, "fqn");
    tsr_json_str(json, item->entry->fqn);
    put_count(json, "dest_rank", item->dest_rank);
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
    tsr_json_key(json, "items");
    tsr_json_array(json);
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
    tsr_json_key(json, "schema");
    tsr_json_text(json, "tessera.plan/1");
    put_source(json, document->job);
    put_target(json, document->mesh, &document->job->target);
    put_destination(json, document->job);
    put_totals(json, document);
    put_loads(json, document);
    if (document->items) TSR_TRY(put_items(json, document, err));
    tsr_json_object_end(json);
    return json->status;
}
