/* tessera.plan/1: totals, loads by rank and file, and on request every read item; with the target and a digest of the
 * source's catalog, so that the plan can be checked against the checkpoint when it is executed. */
#include "base/try.h"
#include "exec/document_parts.h"

/* ---- targets ---- */

static tsr_status parse_list(const tsr_mesh *mesh, tsr_str text, tsr_str rule, tsr_arena *arena, const tsr_placement **out,
                             tsr_error *err)
{
    tsr_placement *list;
    uint32_t count;
    TSR_TRY(tsr_placements_parse(text, arena, &list, &count, err));
    TSR_FAIL_IF(count != mesh->dim_count, err, TSR_E_USAGE, TSR_NO_POSITION,
                "'%.*s' has %u placements, the mesh has %u dims: one placement a mesh dim is needed, in the rule '%.*s'",
                TSR_STR_ARG(text), count, mesh->dim_count, TSR_STR_ARG(rule));
    *out = list;
    return TSR_OK;
}

/* "replicate" for every mesh dim. */
static tsr_str replicate_everywhere(uint32_t dim_count, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("replicate");
    for (uint32_t i = 1; i < dim_count && text.data; i++)
        text = tsr_arena_format(arena, err, "%.*s,replicate", TSR_STR_ARG(text));
    return text;
}

tsr_status tsr_target_from_texts(tsr_target_texts *texts, bool (*match)(tsr_str glob, tsr_str name), tsr_arena *arena,
                                 tsr_target *out, tsr_error *err)
{
    *out = (tsr_target){.rule_count = texts->rule_count, .match = match};
    TSR_TRY(tsr_mesh_parse(texts->mesh, arena, &out->mesh, err));
    if (texts->default_placements.size == 0)
        texts->default_placements = replicate_everywhere(out->mesh.dim_count, arena, err);
    if (!texts->default_placements.data) return TSR_E_NOMEM;
    TSR_TRY(parse_list(&out->mesh, texts->default_placements, TSR_STR("default"), arena, &out->default_placements, err));
    tsr_target_rule *rules = tsr_arena_array(arena, texts->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < texts->rule_count; i++) {
        rules[i].match = texts->rules[i].match;
        TSR_TRY(parse_list(&out->mesh, texts->rules[i].placements, rules[i].match, arena, &rules[i].placements, err));
    }
    out->rules = rules;
    return tsr_target_check(out, err);
}

/* The texts' parts again: a placement is split off at the commas outside parentheses. */
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
    tsr_json_key(json, "rules");
    tsr_json_array(json);
    for (uint32_t i = 0; i < texts->rule_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "match");
        tsr_json_str(json, texts->rules[i].match);
        tsr_json_key(json, "placements");
        put_placements(json, texts->rules[i].placements);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_key(json, "default");
    put_placements(json, texts->default_placements);
    tsr_json_object_end(json);
}

/* ---- digest of a catalog ---- */

typedef struct digester {
    const tsr_digest_ops *ops;
    void *state;
} digester;

static void feed_u64(const digester *d, uint64_t number)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
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
    for (uint32_t i = 0; i < entry->rank; i++) feed_u64(d, chunk->offsets[i]);
    for (uint32_t i = 0; i < entry->rank; i++) feed_u64(d, chunk->sizes[i]);
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
    feed_u64(d, entry->rank);
    for (uint32_t i = 0; i < entry->rank; i++) feed_u64(d, entry->shape[i]);
    feed_u64(d, entry->chunk_count);
    for (uint64_t i = 0; i < entry->chunk_count; i++) feed_chunk(d, catalog, entry, &entry->chunks[i]);
    feed_u64(d, entry->replica_count);
    for (uint64_t i = 0; i < entry->replica_count; i++) feed_chunk(d, catalog, entry, &entry->replicas[i]);
}

tsr_status tsr_catalog_digest(const tsr_catalog *catalog, const tsr_host *host, tsr_digest_algorithm *algorithm,
                              tsr_digest *out, tsr_error *err)
{
    digester d = {host->sha256 ? host->sha256 : host->xxh3, NULL};
    TSR_FAIL_IF(!d.ops, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "this build has no digest: neither SHA-256 nor XXH3");
    *algorithm = host->sha256 ? TSR_DIGEST_SHA256 : TSR_DIGEST_XXH3;
    d.state = d.ops->start();
    TSR_FAIL_IF(!d.state, err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory for a digest");
    feed_str(&d, tsr_str_from(tsr_format_name(catalog->format)));
    feed_u64(&d, catalog->entry_count);
    for (uint64_t i = 0; i < catalog->entry_count; i++) feed_entry(&d, catalog, &catalog->entries[i]);
    out->size = d.ops->size;
    d.ops->finish(d.state, out->bytes);
    return TSR_OK;
}

/* ---- document ---- */

static void put_count(tsr_json *json, const char *key, uint64_t count)
{
    tsr_json_key(json, key);
    tsr_json_uint(json, count);
}

static tsr_status put_source(tsr_json *json, const tsr_plan_document *document, const tsr_host *host, tsr_error *err)
{
    tsr_digest_algorithm algorithm;
    tsr_digest digest;
    TSR_TRY(tsr_catalog_digest(document->catalog, host, &algorithm, &digest, err));
    tsr_json_key(json, "source");
    tsr_json_object(json);
    tsr_json_key(json, "path");
    tsr_json_str(json, document->source_path);
    tsr_json_key(json, "format");
    tsr_json_text(json, tsr_format_name(document->catalog->format));
    tsr_json_key(json, "digest");
    tsr_document_put_digest(json, algorithm, &digest);
    tsr_json_object_end(json);
    return TSR_OK;
}

static void put_totals(tsr_json *json, const tsr_plan *plan, const tsr_plan_totals *totals)
{
    tsr_json_key(json, "totals");
    tsr_json_object(json);
    put_count(json, "tensors", tsr_plan_count(plan));
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
    tsr_json_object_end(json);
}

static void put_loads(tsr_json *json, const tsr_plan_totals *totals, const tsr_catalog *catalog)
{
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
    tsr_json_key(json, "files");
    tsr_json_array(json);
    for (uint32_t f = 0; f < totals->file_count && f < catalog->store->file_count; f++) {
        if (totals->per_file[f].reads == 0) continue;
        tsr_json_object(json);
        tsr_json_key(json, "file");
        tsr_json_str(json, catalog->store->files[f].name);
        put_count(json, "reads", totals->per_file[f].reads);
        put_count(json, "bytes", totals->per_file[f].bytes);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_item(tsr_json *json, const tsr_read_item *item, const tsr_catalog *catalog)
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
        tsr_json_u64s(json, lists[i].numbers, item->entry->rank);
    }
    tsr_json_key(json, "file");
    if (item->chunk->file < catalog->store->file_count) tsr_json_str(json, catalog->store->files[item->chunk->file].name);
    else tsr_json_null(json);
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
        put_item(json, item, document->catalog);
    }
    tsr_json_array_end(json);
    tsr_plan_cursor_free(cursor);
    return status;
}

tsr_status tsr_document_plan(const tsr_plan_document *document, const tsr_host *host, tsr_json *json, tsr_error *err)
{
    tsr_json_object(json);
    tsr_json_key(json, "schema");
    tsr_json_text(json, "tessera.plan/1");
    TSR_TRY(put_source(json, document, host, err));
    put_target(json, document->mesh, document->texts);
    put_totals(json, document->plan, document->totals);
    put_loads(json, document->totals, document->catalog);
    if (document->items) TSR_TRY(put_items(json, document, err));
    tsr_json_object_end(json);
    return json->status;
}
