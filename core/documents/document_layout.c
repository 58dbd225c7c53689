/* tessera.layout/1: a contract file to commit to a repository. It is sorted, so that two containers with the same layout
 * give the same bytes. */
#include <stdlib.h>

#include "documents/document_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/options.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

typedef struct chunk_order {
    const tsr_chunk *chunk;
    uint32_t ndim;
} chunk_order;

static int by_fqn(const void *a, const void *b)
{
    return tsr_str_compare((*(const tsr_entry *const *)a)->fqn, (*(const tsr_entry *const *)b)->fqn);
}

static int by_offsets(const void *a, const void *b)
{
    const chunk_order *x = a, *y = b;
    for (uint32_t d = 0; d < x->ndim; d++) {
        if (x->chunk->offsets[d] != y->chunk->offsets[d]) return x->chunk->offsets[d] < y->chunk->offsets[d] ? -1 : 1;
    }
    return 0;
}

static tsr_status put_chunks(tsr_json *json, const tsr_entry *entry, const tsr_allocator *allocator, tsr_error *err)
{
    chunk_order *order = tsr_alloc(allocator, (size_t)entry->chunk_count, sizeof *order, err);
    if (!order) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->chunk_count; i++) order[i] = (chunk_order){&entry->chunks[i], entry->ndim};
    qsort(order, (size_t)entry->chunk_count, sizeof *order, by_offsets);
    tsr_json_put_array(json, "chunks");
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        tsr_json_object(json);
        tsr_json_put_u64s(json, "offsets", order[i].chunk->offsets, entry->ndim);
        tsr_json_put_u64s(json, "sizes", order[i].chunk->sizes, entry->ndim);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_free(allocator, order, (size_t)entry->chunk_count, sizeof *order);
    return TSR_OK;
}

typedef struct layout_writer {
    const tsr_layout_options *options;
    const tsr_host *host;
    tsr_json *json;
    tsr_error *err;
    tsr_digests *digests; /* of all entries; NULL without hashes */
    uint64_t byte_done, byte_total;
} layout_writer;

/* `number` is the entry's index among those that are written. */
static tsr_status put_hash(layout_writer *w, const tsr_entry *entry, size_t number)
{
    const tsr_layout_options *o = w->options;
    tsr_digest digest;
    uint64_t bytes;
    bool there = true;
    if (!o->hash) return TSR_OK;
    if (entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(tsr_digests_get(w->digests, number, &digest, w->err));
    else TSR_TRY(tsr_object_digest(o->checkpoint, entry, o->hash, o->ring, &there, &digest, w->err));
    if (!there) return TSR_OK;
    tsr_json_key(w->json, "hash");
    tsr_document_put_digest(w->json, o->hash, &digest);
    if (entry->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(entry, &bytes)) w->byte_done += bytes;
    TSR_FAIL_IF(o->progress && !o->progress->step(o->progress->ctx, w->byte_done, w->byte_total), w->err, TSR_E_CANCELLED,
                "interrupted");
    return TSR_OK;
}

static tsr_status put_entry(layout_writer *w, const tsr_entry *entry, size_t number)
{
    tsr_json *json = w->json;
    tsr_json_object(json);
    tsr_json_put_str(json, "fqn", entry->fqn);
    tsr_document_put_type(json, entry);
    if (entry->kind == TSR_ENTRY_TENSOR && !w->options->no_chunks && entry->chunk_count)
        TSR_TRY(put_chunks(json, entry, w->host->allocator, w->err));
    TSR_TRY(put_hash(w, entry, number));
    tsr_json_object_end(json);
    return json->status;
}

static tsr_status put_entries(layout_writer *w, const tsr_entry **entries, size_t count)
{
    uint64_t bytes;
    for (size_t i = 0; i < count; i++) {
        if (entries[i]->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(entries[i], &bytes)) w->byte_total += bytes;
    }
    tsr_json_object(w->json);
    tsr_json_put_text(w->json, "schema", w->options->is_manifest ? "tessera.manifest/1" : "tessera.layout/1");
    tsr_json_put_array(w->json, "entries");
    for (size_t i = 0; i < count; i++) TSR_TRY(put_entry(w, entries[i], i));
    tsr_json_array_end(w->json);
    tsr_json_object_end(w->json);
    return w->json->status;
}

tsr_status tsr_document_layout(const tsr_catalog *catalog, const tsr_layout_options *options, const tsr_host *host,
                               tsr_json *json, tsr_error *err)
{
    tsr_layout_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_layout_options, err));
    layout_writer w = {.options = &own, .host = host, .json = json, .err = err};
    size_t count = 0, room = (size_t)catalog->entry_count;
    if (own.hash) TSR_TRY(tsr_repeats_check_catalog(own.checkpoint, &own.selection, err));
    const tsr_entry **entries = tsr_alloc(host->allocator, room + 1, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (tsr_selection_keeps(&own.selection, catalog->entries[i].fqn)) entries[count++] = &catalog->entries[i];
    }
    qsort(entries, count, sizeof *entries, by_fqn);
    const tsr_digest_list list = {entries, count, own.hash};
    tsr_status status = own.hash ? tsr_digests_open(own.checkpoint, &list, own.ring, &w.digests, err) : TSR_OK;
    if (status == TSR_OK) status = put_entries(&w, entries, count);
    tsr_digests_close(w.digests);
    tsr_free(host->allocator, entries, room + 1, sizeof *entries);
    return status;
}
