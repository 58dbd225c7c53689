/* JSON documents about a checkpoint: those of the command line, and four for the viewer (overview, entry, preview, optimizer). */
#include "request.h"
#include "shim.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

#include <stdlib.h>

/* ---- overview: totals, dtypes, and the parts of each file that belong to entries ---- */

typedef struct run { /* the bytes of a file that a chunk refers to */
    uint32_t file;
    uint64_t byte_offset, byte_end;
} run;

static int run_order(const void *a, const void *b)
{
    const run *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->byte_offset > y->byte_offset) - (x->byte_offset < y->byte_offset);
}

static void add_runs(tsr_vec *runs, const tsr_chunk *chunks, uint64_t count, uint32_t file_count)
{
    run *items = runs->items;
    for (uint64_t i = 0; i < count; i++) {
        if (chunks[i].file >= file_count) continue;
        items[runs->count++] = (run){chunks[i].file, chunks[i].byte_offset, chunks[i].byte_offset + chunks[i].byte_length};
    }
}

/* Calls `visit` for each entry, and for what each rank holds of one that differs between ranks. */
static void each_held(const tsr_catalog *catalog, void (*visit)(void *ctx, const tsr_entry *held), void *ctx)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_per_rank *ranks = catalog->entries[i].per_rank;
        if (!ranks) visit(ctx, &catalog->entries[i]);
        for (uint32_t r = 0; ranks && r < ranks->count; r++)
            if (ranks->tensors[r]) visit(ctx, ranks->tensors[r]);
    }
}

typedef struct collecting {
    tsr_vec *runs;
    uint32_t file_count;
    uint64_t chunks;
} collecting;

static void count_chunks(void *ctx, const tsr_entry *held)
{
    ((collecting *)ctx)->chunks += held->chunk_count + held->replica_count;
}

static void collect_chunks(void *ctx, const tsr_entry *held)
{
    const collecting *c = ctx;
    add_runs(c->runs, held->chunks, held->chunk_count, c->file_count);
    add_runs(c->runs, held->replicas, held->replica_count, c->file_count);
}

static tsr_status collect_runs(const opened *item, tsr_vec *runs, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(item->checkpoint);
    collecting c = {runs, catalog->store->file_count, 0};
    each_held(catalog, count_chunks, &c);
    const tsr_status status = tsr_vec_reserve(runs, (size_t)c.chunks, err);
    if (status == TSR_OK) each_held(catalog, collect_chunks, &c);
    if (runs->count) qsort(runs->items, runs->count, sizeof(run), run_order);
    return status;
}

/* The most ranges listed per file, for a picture of it. put_file writes the number of bytes that belong to chunks, each
 * counted once, and the ranges [offset, length] that they form. Ranges that are close together are merged. */
enum { MOST_STRETCHES = 256 };

static size_t put_file(tsr_json *json, const tsr_store_file *file, const run *runs, size_t left, uint32_t number)
{
    const uint64_t least_gap = file->size / (MOST_STRETCHES * 4);
    uint64_t used = 0, begin = 0, end = 0, told = 0;
    size_t n = 0;
    tsr_json_object(json);
    tsr_json_put_str(json, "name", file->name);
    tsr_json_put_uint(json, "size", file->size);
    tsr_json_put_array(json, "taken");
    for (; n < left && runs[n].file == number; n++) {
        const uint64_t from = runs[n].byte_offset > end ? runs[n].byte_offset : end;
        if (runs[n].byte_end > from) used += runs[n].byte_end - from;
        if (runs[n].byte_offset > end + least_gap && end > begin && told + 1 < MOST_STRETCHES) {
            tsr_json_u64s(json, (const uint64_t[]){begin, end - begin}, 2);
            told++;
            begin = runs[n].byte_offset;
        }
        if (n == 0) begin = runs[n].byte_offset;
        if (runs[n].byte_end > end) end = runs[n].byte_end;
    }
    if (end > begin) tsr_json_u64s(json, (const uint64_t[]){begin, end - begin}, 2);
    tsr_json_array_end(json);
    tsr_json_put_uint(json, "used", used);
    tsr_json_put_uint(json, "chunks", n);
    tsr_json_object_end(json);
    return n;
}

static void put_files(const opened *item, const tsr_vec *runs, tsr_json *json)
{
    const tsr_store *store = tsr_checkpoint_store(item->checkpoint);
    const run *at = runs->items;
    size_t left = runs->count;
    tsr_json_put_array(json, "files");
    for (uint32_t f = 0; f < store->file_count; f++) {
        const size_t n = put_file(json, &store->files[f], at, left, f);
        at = n ? at + n : at;
        left -= n;
    }
    tsr_json_array_end(json);
}

typedef struct totals {
    uint64_t elements, bytes, missing, bytes_of[TSR_DTYPE_COUNT];
    bool has[TSR_DTYPE_COUNT];
} totals;

static void add_held(void *ctx, const tsr_entry *held)
{
    totals *sum = ctx;
    uint64_t n = 0, b = 0;
    for (uint64_t c = 0; c < held->chunk_count; c++) sum->missing += held->chunks[c].file == TSR_NO_FILE;
    if (held->kind != TSR_ENTRY_TENSOR) return;
    tsr_entry_elements(held, &n);
    tsr_entry_bytes(held, &b);
    sum->elements += n;
    sum->bytes += b;
    sum->has[held->dtype] = true;
    sum->bytes_of[held->dtype] += b;
}

static void put_totals(const opened *item, tsr_json *json)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(item->checkpoint);
    uint64_t kinds[3] = {0}, per_rank = 0;
    totals sum = {0};
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        kinds[tessera_is_tensor(entry) ? TSR_ENTRY_TENSOR : entry->kind]++;
        per_rank += entry->per_rank != NULL;
    }
    each_held(catalog, add_held, &sum);
    tsr_json_put_text(json, "format", tsr_format_name(catalog->format));
    tsr_json_put_uint(json, "tensors", kinds[TSR_ENTRY_TENSOR]);
    tsr_json_put_uint(json, "objects", kinds[TSR_ENTRY_OBJECT]);
    tsr_json_put_uint(json, "opaque", kinds[TSR_ENTRY_OPAQUE]);
    tsr_json_put_uint(json, "per_rank", per_rank);
    tsr_json_put_uint(json, "elements", sum.elements);
    tsr_json_put_uint(json, "bytes", sum.bytes);
    tsr_json_put_uint(json, "missing_chunks", sum.missing);
    tsr_json_put_array(json, "dtypes");
    for (uint32_t d = 0; d < TSR_DTYPE_COUNT; d++) {
        if (!sum.has[d]) continue;
        tsr_json_object(json);
        tsr_json_put_text(json, "name", tsr_dtype_describe((tsr_dtype)d)->name);
        tsr_json_put_uint(json, "bytes", sum.bytes_of[d]);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static tsr_status write_overview(const opened *item, tsr_json *json, tsr_error *err)
{
    tsr_vec runs = tsr_vec_of(item->host.allocator, sizeof(run));
    tsr_status status = collect_runs(item, &runs, err);
    if (status == TSR_OK) {
        tsr_json_object(json);
        tsr_json_put_text(json, "schema", "tessera.overview/1");
        put_totals(item, json);
        put_files(item, &runs, json);
        tsr_json_object_end(json);
    }
    tsr_vec_free(&runs);
    return status == TSR_OK ? json->status : status;
}

/* ---- preview: one corner of a tensor as text ---- */

enum { PREVIEW_ROWS = 8, PREVIEW_COLUMNS = 8, PREVIEW_LINE = 64 };

static void put_elements(tsr_json *json, const tsr_entry *entry, const uint8_t *data, size_t bytes)
{
    const uint32_t size = tsr_dtype_size(entry->dtype);
    char text[64];
    tsr_json_put_array(json, "values");
    for (size_t at = 0; at + size <= bytes; at += size)
        tsr_json_text(json, tsr_element_text(entry->dtype, data + at, text, sizeof text));
    tsr_json_array_end(json);
}

static tsr_status write_preview(const opened *item, const tsr_entry *entry, tsr_json *json, tsr_error *err)
{
    static uint64_t offsets[TSR_MAX_NDIM];
    uint64_t sizes[TSR_MAX_NDIM], count = 1;
    uint8_t data[PREVIEW_LINE * 16];
    if (entry->kind != TSR_ENTRY_TENSOR || entry->ndim > TSR_MAX_NDIM || tsr_dtype_size(entry->dtype) == 0) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "'%.*s' has no elements that can be shown one by one",
                        TSR_STR_ARG(entry->fqn));
    }
    for (uint32_t d = 0; d < entry->ndim; d++) {
        const uint64_t most = entry->ndim == 1       ? PREVIEW_LINE
                              : d + 2 == entry->ndim ? PREVIEW_ROWS
                              : d + 1 == entry->ndim ? PREVIEW_COLUMNS
                                                     : 1;
        sizes[d] = entry->shape[d] < most ? entry->shape[d] : most;
        count *= sizes[d];
    }
    const size_t bytes = (size_t)count * tsr_dtype_size(entry->dtype);
    tsr_status status =
        count ? tsr_read_box(item->checkpoint, entry, (tsr_box){entry->ndim, offsets, sizes}, data, bytes, err) : TSR_OK;
    if (status != TSR_OK) return status;
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.preview/1");
    tsr_json_put_u64s(json, "sizes", sizes, entry->ndim);
    put_elements(json, entry, data, bytes);
    tsr_json_object_end(json);
    return json->status;
}

/* ---- optimizer: which state each parameter has in the checkpoint's optimizers (tessera.optimizer/1) ---- */

static void put_tensor(tsr_json *json, const tsr_entry *entry)
{
    if (!entry) {
        tsr_json_null(json);
        return;
    }
    tsr_json_object(json);
    tsr_json_put_str(json, "fqn", entry->fqn);
    if (entry->kind == TSR_ENTRY_TENSOR) {
        tsr_json_put_text(json, "dtype", tsr_dtype_describe(entry->dtype)->name);
        tsr_json_put_u64s(json, "shape", entry->shape, entry->ndim);
    }
    tsr_json_object_end(json);
}

static void put_row(tsr_json *json, const tsr_param_states *row, uint32_t name_count)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "parameter", row->parameter);
    tsr_json_put_bool(json, "in_group", row->in_group);
    tsr_json_key(json, "values");
    put_tensor(json, row->entry);
    tsr_json_put_array(json, "states");
    for (uint32_t i = 0; i < name_count; i++) put_tensor(json, row->states[i]);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

static void put_optimizer(tsr_json *json, const tsr_optim_states *o)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "optimizer", o->optimizer);
    tsr_json_put_strs(json, "names", o->names, o->name_count);
    tsr_json_put_array(json, "parameters");
    for (uint32_t i = 0; i < o->row_count; i++) put_row(json, &o->rows[i], o->name_count);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

static tsr_status write_optimizers(const opened *item, tsr_json *json, tsr_error *err)
{
    tsr_optim_states *list;
    uint32_t count;
    tsr_arena *arena = tsr_arena_new(item->host.allocator, 0, err);
    tsr_status status = arena ? tsr_optim_states_of(tsr_checkpoint_catalog(item->checkpoint), item->host.allocator, arena,
                                                    &list, &count, err)
                              : TSR_E_NOMEM;
    if (status == TSR_OK) {
        tsr_json_object(json);
        tsr_json_put_text(json, "schema", "tessera.optimizer/1");
        tsr_json_put_array(json, "optimizers");
        for (uint32_t i = 0; i < count; i++) put_optimizer(json, &list[i]);
        tsr_json_array_end(json);
        tsr_json_object_end(json);
        status = json->status;
    }
    tsr_arena_free(arena);
    return status;
}

/* ---- by kind ---- */

enum {
    INSPECT = 1,
    FINDINGS = 2,
    FINDINGS_DEEP = 3, /* reads all data */
    LAYOUT = 4,
    OVERVIEW = 5,
    ENTRY = 6, /* tessera.inspect/1 of a single entry */
    PREVIEW = 7,
    OPTIMIZER = 8
};

/* Validates once, because the same findings would otherwise be added again. */
static tsr_status validate_once(opened *item, tsr_error *err)
{
    if (item->validated) return TSR_OK;
    item->validated = true;
    return tsr_validate_catalog(tsr_checkpoint_catalog(item->checkpoint), &item->host,
                                tsr_checkpoint_findings(item->checkpoint), err);
}

static tsr_status write_inspect(opened *item, const tsr_inspect_options *options, tsr_json *json, tsr_error *err)
{
    const tsr_status status = validate_once(item, err);
    return status == TSR_OK ? tsr_document_inspect(item->checkpoint, options, json, err) : status;
}

static tsr_status write_findings(opened *item, tsr_str path, bool deep, tsr_json *json, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(item->checkpoint);
    tsr_ring *ring = NULL;
    tsr_status status = validate_once(item, err);
    if (deep && status == TSR_OK) status = tsr_host_load(&item->host, err);
    if (deep && status == TSR_OK) status = tsr_ring_new(&item->host, 0, &ring, err);
    if (deep && status == TSR_OK) status = tsr_check_deep(item->checkpoint, ring, NULL, err);
    tsr_ring_free(ring);
    if (status != TSR_OK) return status;
    return tsr_report_one(&tsr_report_json, &(tsr_reported){.path = path, .findings = findings}, json, item->host.allocator);
}

static bool is_this(const void *ctx, tsr_str fqn)
{
    return fqn.data == ((const tsr_entry *)ctx)->fqn.data;
}

typedef struct wanted {
    opened *item;
    uint32_t kind;
    const tsr_entry *entry;
    tsr_str path;
} wanted;

static tsr_status write_document(void *ctx, tsr_json *json, tsr_error *err)
{
    const wanted *r = ctx;
    tsr_inspect_options options = {.path = r->path};
    const bool judges = r->kind == FINDINGS || r->kind == FINDINGS_DEEP;
    if (!judges && tsr_checkpoint_require(r->item->checkpoint, TSR_FOR_NAMES, err) != TSR_OK) return err->status;
    switch (r->kind) {
    case ENTRY: options.selection = (tsr_selection){is_this, r->entry}; /* fallthrough */
    case INSPECT: return write_inspect(r->item, &options, json, err);
    case FINDINGS:
    case FINDINGS_DEEP: return write_findings(r->item, r->path, r->kind == FINDINGS_DEEP, json, err);
    case LAYOUT:
        if (tsr_checkpoint_require(r->item->checkpoint, TSR_FOR_VALUES, err) != TSR_OK) return err->status;
        return tsr_document_layout(tsr_checkpoint_catalog(r->item->checkpoint), &(tsr_layout_options){0}, &r->item->host,
                                   json, err);
    case OVERVIEW: return write_overview(r->item, json, err);
    case OPTIMIZER: return write_optimizers(r->item, json, err);
    case PREVIEW: return write_preview(r->item, r->entry, json, err);
    default: return tsr_fail(err, TSR_E_USAGE, "no document has the kind %u", (unsigned)r->kind);
    }
}

/* Returns a document about a checkpoint. `entry` is the number of an entry, for documents about one. `path` is the value of
 * "path". */
TSR_EXPORT(tessera_document)
document *tessera_document(uint32_t handle, uint32_t kind, uint32_t entry, const char *path, uint32_t path_size,
                           tsr_error *err)
{
    wanted r = {tessera_checkpoint_of(handle, err), kind, NULL, {path, path_size}};
    if (!r.item) return NULL;
    if (kind == ENTRY || kind == PREVIEW) {
        r.entry = tessera_entry_of(r.item, entry, err);
        if (!r.entry) return NULL;
    }
    return tessera_make_document(write_document, &r, err);
}

/* ---- a deep check that several modules share, each with the same files: parts are bytes, which JavaScript passes on ---- */

static tsr_status open_ring(opened *item, tsr_ring **out, tsr_error *err)
{
    *out = NULL;
    const tsr_status status = validate_once(item, err);
    return status == TSR_OK ? tsr_ring_new(&item->host, 0, out, err) : status;
}

/* Checks part `number` of `count`. Returns what it found, `*size` bytes, to be freed with tessera_release. */
TSR_EXPORT(tessera_check_part)
void *tessera_check_part(uint32_t handle, uint32_t number, uint32_t count, uint32_t *size, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    tsr_vec found = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_ring *ring;
    if (!item || open_ring(item, &ring, err) != TSR_OK) return NULL;
    const tsr_status status = tsr_check_deep_part(item->checkpoint, (tsr_check_part){number, count}, ring, &found, err);
    tsr_ring_free(ring);
    *size = (uint32_t)found.count;
    if (status == TSR_OK) return found.items;
    tsr_vec_free(&found);
    return NULL;
}

/* Adds to the checkpoint's findings what all parts found, one behind the other, and what is checked when all of them are known. Returns 1. */
TSR_EXPORT(tessera_check_join)
uint32_t tessera_check_join(uint32_t handle, const char *parts, uint32_t size, uint32_t count, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    tsr_ring *ring;
    if (!item || open_ring(item, &ring, err) != TSR_OK) return 0;
    const tsr_status status = tsr_check_deep_join(item->checkpoint, (tsr_str){parts, size}, count, ring, err);
    tsr_ring_free(ring);
    return status == TSR_OK;
}
