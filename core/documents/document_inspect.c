/* tessera.inspect/1: the contents of a checkpoint, with one entry per line. The summary comes first, so that a reader of a
 * long document does not have to wait for it. The findings come last, because computing digests and statistics may add to
 * them. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cursor.h"
#include "base/line.h"
#include "documents/document_parts.h"
#include "stream/numeric.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/options.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"
#include "write/dcp_write.h"

/* ---- element ---- */

/* Formats single elements as text. */

static void put_number(tsr_line *line, tsr_dtype dtype, const uint8_t *element)
{
    double value;
    tsr_decode(dtype, element, 1, &value);
    tsr_line_real(line, value, dtype != TSR_FLOAT64);
}

static void put_complex(tsr_line *line, tsr_dtype dtype, const uint8_t *element)
{
    const tsr_dtype part = tsr_dtype_part(dtype);
    char imaginary[48];
    tsr_line second = tsr_line_on(imaginary, sizeof imaginary);
    put_number(&second, part, element + tsr_dtype_size(part));
    tsr_line_put(line, "(", 1);
    put_number(line, part, element);
    tsr_line_format(line, "%s%sj)", *imaginary == '-' ? "" : "+", imaginary);
}

static int64_t sign_extended(uint64_t raw, uint32_t size)
{
    const uint64_t sign = (uint64_t)1 << (8 * size - 1);
    return (int64_t)((raw ^ sign) - sign);
}

const char *tsr_element_text(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity)
{
    const tsr_dtype_class kind = tsr_dtype_describe(dtype)->kind;
    const uint32_t size = tsr_dtype_size(dtype);
    tsr_line line = tsr_line_on(out, capacity);
    if (kind == TSR_CLASS_INT) tsr_line_format(&line, "%" PRId64, sign_extended(tsr_load_le(element, size), size));
    else if (kind == TSR_CLASS_UINT) tsr_line_format(&line, "%" PRIu64, tsr_load_le(element, size));
    else if (kind == TSR_CLASS_BOOL) tsr_line_format(&line, "%s", *element ? "true" : "false");
    else if (kind == TSR_CLASS_COMPLEX) put_complex(&line, dtype, element);
    else if (kind == TSR_CLASS_FLOAT && tsr_dtype_is_numeric(dtype)) put_number(&line, dtype, element);
    else
        for (uint32_t i = 0; i < size; i++) tsr_line_format(&line, "%02x", element[i]);
    return out;
}

/* ---- inspect ---- */

enum { MAX_SHARED = 16 };

typedef struct sharing { /* tensors that share a storage: their indexes are contiguous, sorted by (storage_id, index) */
    uint32_t storage_id;
    uint64_t index;
} sharing;

typedef struct inspector {
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    const tsr_inspect_options *options;
    tsr_json *json;
    tsr_error *err;
    sharing *shared;
    size_t shared_count;
} inspector;

typedef struct totals {
    uint64_t tensors, objects, opaques, elements, bytes, files;
    struct {
        uint64_t tensors, elements, bytes;
    } of[TSR_DTYPE_COUNT];
} totals;

/* ---- summary ---- */

static void count_files(const inspector *in, const tsr_entry *entry, uint8_t *seen, uint64_t *files)
{
    for (uint64_t c = 0; c < entry->chunk_count + entry->replica_count; c++) {
        const tsr_chunk *chunk = c < entry->chunk_count ? &entry->chunks[c] : &entry->replicas[c - entry->chunk_count];
        if (chunk->file >= in->catalog->store->file_count || seen[chunk->file]) continue;
        seen[chunk->file] = 1;
        ++*files;
    }
}

/* Both ways of counting the elements of float4 have one name. */
static tsr_dtype named_dtype(const tsr_entry *entry)
{
    return entry->dtype == TSR_FLOAT4_E2M1FN ? TSR_FLOAT4_E2M1FN_X2 : entry->dtype;
}

static void count_tensor(totals *sum, const tsr_entry *entry)
{
    uint64_t elements = 0, bytes = 0;
    tsr_entry_elements(entry, &elements);
    tsr_entry_bytes(entry, &bytes);
    sum->tensors++;
    sum->elements += elements;
    sum->bytes += bytes;
    sum->of[named_dtype(entry)].tensors++;
    sum->of[named_dtype(entry)].elements += elements;
    sum->of[named_dtype(entry)].bytes += bytes;
}

/* Counts the entry as one name, but with the elements and bytes of every rank. */
static void count_per_rank(const inspector *in, totals *sum, const tsr_entry *entry, uint8_t *seen)
{
    const uint64_t before = sum->tensors;
    for (uint32_t r = 0; r < entry->per_rank->count; r++) {
        const tsr_entry *held = entry->per_rank->tensors[r];
        if (!held) continue;
        count_files(in, held, seen, &sum->files);
        if (held->kind != TSR_ENTRY_TENSOR) continue;
        count_tensor(sum, held);
        if (sum->tensors > before + 1) sum->tensors--, sum->of[named_dtype(held)].tensors--;
    }
    if (sum->tensors == before) sum->opaques++;
}

static tsr_status add_up(const inspector *in, totals *sum)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(in->checkpoint)->allocator;
    size_t file_count = in->catalog->store->file_count;
    uint8_t *seen = tsr_alloc(allocator, file_count + 1, 1, in->err);
    if (!seen) return TSR_E_NOMEM;
    memset(seen, 0, file_count + 1);
    for (uint64_t i = 0; i < in->catalog->entry_count; i++) {
        const tsr_entry *entry = &in->catalog->entries[i];
        if (!tsr_selection_keeps(&in->options->selection, entry->fqn)) continue;
        if (entry->per_rank) count_per_rank(in, sum, entry, seen);
        else if (entry->kind == TSR_ENTRY_TENSOR) count_tensor(sum, entry);
        else if (entry->kind == TSR_ENTRY_OBJECT) sum->objects++;
        else sum->opaques++;
        count_files(in, entry, seen, &sum->files);
    }
    tsr_free(allocator, seen, file_count + 1, 1);
    return TSR_OK;
}

/* The number of tensors in a part. Entries that differ between ranks are not counted. */
static void put_part(tsr_json *json, const tsr_catalog *catalog, const tsr_part *part)
{
    uint64_t tensors = 0;
    const tsr_entry *entries = catalog->entries + part->first_entry;
    for (uint64_t i = 0; i < part->entry_count; i++) tensors += entries[i].kind == TSR_ENTRY_TENSOR;
    tsr_json_object(json);
    tsr_json_put_str(json, "name", part->name);
    tsr_json_put_text(json, "format", tsr_format_name(part->format));
    tsr_json_put_uint(json, "files", part->files);
    tsr_json_put_uint(json, "tensors", tensors);
    tsr_json_put_uint(json, "objects", part->entry_count - tensors);
    tsr_json_object_end(json);
}

static void put_parts(tsr_json *json, const tsr_catalog *catalog)
{
    if (!catalog->part_count) return;
    tsr_json_put_array(json, "parts");
    for (uint32_t p = 0; p < catalog->part_count; p++) put_part(json, catalog, &catalog->parts[p]);
    tsr_json_array_end(json);
}

static void put_summary(tsr_json *json, const tsr_catalog *catalog, const totals *sum)
{
    tsr_json_put_object(json, "summary");
    tsr_json_put_uint(json, "tensors", sum->tensors);
    tsr_json_put_uint(json, "objects", sum->objects);
    tsr_json_put_uint(json, "opaque", sum->opaques);
    tsr_json_put_uint(json, "elements", sum->elements);
    tsr_json_put_uint(json, "bytes", sum->bytes);
    tsr_json_put_uint(json, "files", sum->files);
    tsr_json_put_object(json, "dtypes");
    for (int d = 0; d < TSR_DTYPE_COUNT; d++) {
        if (sum->of[d].tensors == 0) continue;
        tsr_json_key(json, tsr_dtype_describe((tsr_dtype)d)->name);
        tsr_json_object(json);
        tsr_json_put_uint(json, "tensors", sum->of[d].tensors);
        tsr_json_put_uint(json, "elements", sum->of[d].elements);
        tsr_json_put_uint(json, "bytes", sum->of[d].bytes);
        tsr_json_object_end(json);
    }
    tsr_json_object_end(json);
    put_parts(json, catalog);
    tsr_json_object_end(json);
}

static void put_metadata(tsr_json *json, const tsr_catalog *catalog)
{
    tsr_json_put_object(json, "metadata");
    for (size_t i = 0; i < catalog->metadata_count && json->status == TSR_OK; i++) {
        tsr_json_key_str(json, catalog->metadata[i].key);
        tsr_json_str(json, catalog->metadata[i].value);
    }
    tsr_json_object_end(json);
}

/* ---- entries ---- */

static void put_file(const inspector *in, uint32_t file)
{
    tsr_json_key(in->json, "file");
    if (file < in->catalog->store->file_count) tsr_json_str(in->json, in->catalog->store->files[file].name);
    else tsr_json_null(in->json);
}

static void put_chunk(const inspector *in, const tsr_entry *entry, const tsr_chunk *chunk)
{
    tsr_json_object(in->json);
    tsr_json_put_u64s(in->json, "offsets", chunk->offsets, entry->ndim);
    tsr_json_put_u64s(in->json, "sizes", chunk->sizes, entry->ndim);
    put_file(in, chunk->file);
    tsr_json_put_uint(in->json, "byte_offset", chunk->byte_offset);
    tsr_json_put_uint(in->json, "byte_length", chunk->byte_length);
    tsr_json_object_end(in->json);
}

static void put_chunks(const inspector *in, const char *key, const tsr_entry *entry, const tsr_chunk *chunks, uint64_t count)
{
    tsr_json_put_array(in->json, key);
    for (uint64_t i = 0; i < count; i++) put_chunk(in, entry, &chunks[i]);
    tsr_json_array_end(in->json);
}

static int sharing_order(const void *a, const void *b)
{
    const sharing *x = a, *y = b;
    if (x->storage_id != y->storage_id) return x->storage_id < y->storage_id ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static tsr_status find_sharing(inspector *in)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < in->catalog->entry_count; i++) count += in->catalog->entries[i].storage_id != 0;
    if (count == 0) return TSR_OK;
    in->shared = tsr_alloc(tsr_checkpoint_host(in->checkpoint)->allocator, (size_t)count, sizeof *in->shared, in->err);
    if (!in->shared) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < in->catalog->entry_count; i++) {
        uint32_t id = in->catalog->entries[i].storage_id;
        if (id) in->shared[in->shared_count++] = (sharing){id, i};
    }
    qsort(in->shared, in->shared_count, sizeof *in->shared, sharing_order);
    return TSR_OK;
}

static void put_sharing(const inspector *in, const tsr_entry *entry)
{
    uint64_t own = (uint64_t)(entry - in->catalog->entries);
    size_t low = 0, high = in->shared_count;
    while (low < high) { /* find the first one of the storage */
        size_t middle = low + (high - low) / 2;
        if (in->shared[middle].storage_id < entry->storage_id) low = middle + 1;
        else high = middle;
    }
    size_t end = low;
    while (end < in->shared_count && in->shared[end].storage_id == entry->storage_id && end - low <= MAX_SHARED) end++;
    if (end - low < 2) return;
    tsr_json_put_array(in->json, "shares_storage_with");
    for (size_t i = low; i < end; i++) {
        if (in->shared[i].index != own) tsr_json_str(in->json, in->catalog->entries[in->shared[i].index].fqn);
    }
    tsr_json_array_end(in->json);
}

static void put_distribution(tsr_json *json, const tsr_distribution *distribution)
{
    if (distribution->mesh.size) tsr_json_put_str(json, "mesh", distribution->mesh);
    if (distribution->placements.size) tsr_json_put_str(json, "placements", distribution->placements);
}

static void put_extreme(tsr_json *json, tsr_extremes_kind kind, uint64_t integer, double real)
{
    if (kind == TSR_EXTREMES_SIGNED) tsr_json_int(json, (int64_t)integer);
    else if (kind == TSR_EXTREMES_UNSIGNED) tsr_json_uint(json, integer);
    else tsr_json_double(json, real);
}

static void put_stats(tsr_json *json, const tsr_stats *stats, const tsr_extremes *extremes)
{
    const struct {
        const char *key;
        double value;
        uint64_t integer;
    } reals[] = {{"min", stats->min, extremes->min},
                 {"max", stats->max, extremes->max},
                 {"mean", stats->mean, 0},
                 {"std", stats->std, 0}};
    tsr_json_put_object(json, "stats");
    for (size_t i = 0; i < 4; i++) {
        tsr_json_key(json, reals[i].key);
        put_extreme(json, i < 2 ? extremes->kind : TSR_EXTREMES_REAL, reals[i].integer, reals[i].value);
    }
    tsr_json_put_uint(json, "nan", stats->nan);
    tsr_json_put_uint(json, "inf", stats->inf);
    tsr_json_put_uint(json, "zero", stats->zero);
    tsr_json_object_end(json);
}

/* A tensor that cannot be read is a finding. */
static tsr_status report_unreadable(const inspector *in, const tsr_entry *entry, const tsr_error *why)
{
    if (!tsr_may_be_finding(why->status)) return tsr_raise_again(in->err, why->status, why);
    tsr_place place = {{NULL, 0}, why->byte_position, entry->fqn};
    return tsr_finding_add(tsr_checkpoint_findings(in->checkpoint), "file/unreadable", place, in->err, "%s", why->message);
}

static tsr_status put_values(const inspector *in, const tsr_entry *entry)
{
    const tsr_inspect_options *options = in->options;
    tsr_error why = {0};
    tsr_digest digest;
    tsr_stats stats;
    tsr_extremes extremes;
    if (options->hash) {
        if (tsr_tensor_digest(in->checkpoint, entry, options->hash, options->ring, &digest, &why) != TSR_OK) {
            return report_unreadable(in, entry, &why);
        }
        tsr_json_key(in->json, "hash");
        tsr_document_put_digest(in->json, options->hash, &digest);
    }
    if (options->stats && tsr_dtype_is_numeric(entry->dtype)) {
        if (tsr_tensor_extremes(in->checkpoint, entry, options->ring, &stats, &extremes, &why) != TSR_OK) {
            return report_unreadable(in, entry, &why);
        }
        put_stats(in->json, &stats, &extremes);
    }
    return TSR_OK;
}

/* Writes a flag only if it is set, since most entries do not have it. */
static tsr_status put_tensor(const inspector *in, const tsr_entry *entry)
{
    uint64_t bytes = 0;
    tsr_put_dtype_and_shape(in->json, entry);
    tsr_entry_bytes(entry, &bytes);
    tsr_json_put_uint(in->json, "bytes", bytes);
    if (entry->is_parameter) tsr_json_put_bool(in->json, "parameter", true);
    if (entry->requires_grad) tsr_json_put_bool(in->json, "requires_grad", true);
    if (entry->distribution) put_distribution(in->json, entry->distribution);
    if (entry->storage_id) put_sharing(in, entry);
    put_chunks(in, "chunks", entry, entry->chunks, entry->chunk_count);
    if (entry->replica_count) put_chunks(in, "replicas", entry, entry->replicas, entry->replica_count);
    return put_values(in, entry);
}

/* Writes what each rank holds, in order of ranks; null if a rank has no tensor of this name. */
static void put_ranks(const inspector *in, const char *key, const tsr_per_rank *ranks,
                      void (*put)(const inspector *in, const tsr_entry *held))
{
    tsr_json_put_array(in->json, key);
    for (uint32_t r = 0; r < ranks->count; r++) {
        if (ranks->tensors[r]) put(in, ranks->tensors[r]);
        else tsr_json_null(in->json);
    }
    tsr_json_array_end(in->json);
}

static void put_held_dtype(const inspector *in, const tsr_entry *held)
{
    tsr_json_text(in->json, tsr_dtype_describe(held->dtype)->name);
}

static void put_held_shape(const inspector *in, const tsr_entry *held)
{
    if (held->shape || held->kind == TSR_ENTRY_TENSOR) tsr_json_u64s(in->json, held->shape, held->ndim);
    else tsr_json_null(in->json);
}

/* TSR_DTYPE_NONE if the ranks' tensors have different dtypes. */
static tsr_dtype common_dtype(const tsr_per_rank *ranks)
{
    tsr_dtype dtype = TSR_DTYPE_NONE;
    for (uint32_t r = 0; r < ranks->count; r++) {
        if (!ranks->tensors[r]) continue;
        if (dtype != TSR_DTYPE_NONE && dtype != ranks->tensors[r]->dtype) return TSR_DTYPE_NONE;
        dtype = ranks->tensors[r]->dtype;
    }
    return dtype;
}

/* Writes a name whose tensor differs between ranks. It has no shape, digest or statistics of its own. */
static void put_per_rank(const inspector *in, const tsr_entry *entry, const char *kind)
{
    uint64_t bytes = 0, held_bytes;
    const tsr_per_rank *ranks = entry->per_rank;
    const tsr_dtype dtype = common_dtype(ranks);
    tsr_json_put_bool(in->json, "per_rank", true);
    if (strcmp(kind, "opaque") == 0) tsr_json_put_str(in->json, "type", entry->type);
    if (dtype != TSR_DTYPE_NONE) {
        tsr_json_put_text(in->json, "dtype", tsr_dtype_describe(dtype)->name);
    } else {
        put_ranks(in, "dtypes", ranks, put_held_dtype);
    }
    put_ranks(in, "shapes", ranks, put_held_shape);
    for (uint32_t r = 0; r < ranks->count; r++)
        if (ranks->tensors[r] && ranks->tensors[r]->kind == TSR_ENTRY_TENSOR &&
            tsr_entry_bytes(ranks->tensors[r], &held_bytes))
            bytes += held_bytes;
    tsr_json_put_uint(in->json, "bytes", bytes);
    tsr_json_put_array(in->json, "chunks");
    for (uint32_t r = 0; r < ranks->count; r++)
        for (uint64_t c = 0; ranks->tensors[r] && c < ranks->tensors[r]->chunk_count; c++)
            put_chunk(in, ranks->tensors[r], &ranks->tensors[r]->chunks[c]);
    tsr_json_array_end(in->json);
}

/* "tensor" if at least one rank has a dense tensor. */
static const char *kind_of(const tsr_entry *entry)
{
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++)
        if (entry->per_rank->tensors[r] && entry->per_rank->tensors[r]->kind == TSR_ENTRY_TENSOR) return "tensor";
    return tsr_entry_kind_name(entry->kind);
}

static tsr_status put_entry(const inspector *in, const tsr_entry *entry)
{
    tsr_status status = TSR_OK;
    const char *kind = kind_of(entry);
    tsr_json_object(in->json);
    tsr_json_put_str(in->json, "fqn", entry->fqn);
    tsr_json_put_text(in->json, "kind", kind);
    if (entry->per_rank) put_per_rank(in, entry, kind);
    else if (entry->kind == TSR_ENTRY_TENSOR) status = put_tensor(in, entry);
    else {
        tsr_put_object(in->json, entry, tsr_checkpoint_host(in->checkpoint));
        if (entry->kind == TSR_ENTRY_OPAQUE && entry->is_sharded) {
            if (entry->distribution) put_distribution(in->json, entry->distribution);
            put_chunks(in, "chunks", entry, entry->chunks, entry->chunk_count);
        }
    }
    tsr_json_object_end(in->json);
    return status == TSR_OK ? in->json->status : status;
}

static tsr_status put_entries(const inspector *in, uint64_t bytes_total)
{
    const tsr_progress *progress = in->options->progress;
    uint64_t bytes_done = 0, bytes;
    tsr_json_put_array(in->json, "entries");
    for (uint64_t i = 0; i < in->catalog->entry_count; i++) {
        const tsr_entry *entry = &in->catalog->entries[i];
        if (!tsr_selection_keeps(&in->options->selection, entry->fqn)) continue;
        tsr_status status = put_entry(in, entry);
        if (status != TSR_OK) return status;
        if (entry->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(entry, &bytes)) bytes_done += bytes;
        if (progress && progress->step && !progress->step(progress->ctx, bytes_done, bytes_total)) {
            return tsr_fail(in->err, TSR_E_CANCELLED, "cancelled");
        }
    }
    tsr_json_array_end(in->json);
    return in->json->status;
}

tsr_status tsr_document_inspect(tsr_checkpoint *checkpoint, const tsr_inspect_options *options, tsr_json *json,
                                tsr_error *err)
{
    tsr_inspect_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_inspect_options, err));
    inspector in = {checkpoint, tsr_checkpoint_catalog(checkpoint), &own, json, err, NULL, 0};
    totals sum = {0};
    if (own.hash || own.stats) TSR_TRY(tsr_repeats_check_catalog(checkpoint, &own.selection, err));
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.inspect/1");
    tsr_json_put_str(json, "path", own.path);
    tsr_json_put_text(json, "format", tsr_format_name(in.catalog->format));
    tsr_status status = add_up(&in, &sum);
    if (status == TSR_OK) status = find_sharing(&in);
    if (status == TSR_OK) {
        put_summary(json, in.catalog, &sum);
        put_metadata(json, in.catalog);
        status = put_entries(&in, sum.bytes);
    }
    if (status == TSR_OK) {
        tsr_json_put_array(json, "findings");
        tsr_document_put_findings(json, (tsr_str){NULL, 0}, tsr_checkpoint_findings(checkpoint));
        tsr_json_array_end(json);
        tsr_json_object_end(json);
    }
    tsr_free(tsr_checkpoint_host(checkpoint)->allocator, in.shared, in.shared_count, sizeof *in.shared);
    return status == TSR_OK ? json->status : status;
}
