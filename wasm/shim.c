/* The C side of the WebAssembly module; see shim.h. */
#include "shim.h"

#include <stdlib.h>

#include "tessera/checkpoint.h"
#include "tessera/document.h"
#include "tessera/validate.h"

/* ---- memory and errors ---- */

TSR_EXPORT(tessera_alloc) void *tessera_alloc(uint32_t size) { return calloc(1, size ? size : 1); }
TSR_EXPORT(tessera_release) void tessera_release(void *pointer) { free(pointer); }
TSR_EXPORT(tessera_error_size) uint32_t tessera_error_size(void) { return sizeof(tsr_error); }
TSR_EXPORT(tessera_error_message) const char *tessera_error_message(const tsr_error *err) { return err->message; }
TSR_EXPORT(tessera_error_status) const char *tessera_error_status(const tsr_error *err) { return tsr_status_name(err->status); }
TSR_EXPORT(tessera_error_position) uint64_t tessera_error_position(const tsr_error *err) { return err->byte_position; }

static tsr_host host_of_module(void)
{
    return (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
}

/* ---- handles ----
 * A handle is a slot number + 1; slots are reused. They exist so that a stale or foreign number is refused instead of
 * followed as a pointer. */

typedef struct opened {
    tsr_store store; /* first: the store's functions cast back */
    uint32_t store_number;
    tsr_host host;
    tsr_arena *names;
    tsr_checkpoint *checkpoint;
    bool validated;
} opened;

static opened **slots;
static uint32_t slot_count;

static uint32_t add_handle(opened *item, tsr_error *err)
{
    for (uint32_t i = 0; i < slot_count; i++) {
        if (!slots[i]) {
            slots[i] = item;
            return i + 1;
        }
    }
    opened **grown = realloc(slots, (slot_count + 1) * sizeof *slots);
    if (!grown) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for a handle");
        return 0;
    }
    slots = grown;
    slots[slot_count++] = item;
    return slot_count;
}

static opened *item_of(uint32_t handle, tsr_error *err)
{
    if (handle > 0 && handle <= slot_count && slots[handle - 1]) return slots[handle - 1];
    tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "no checkpoint is open under handle %u", (unsigned)handle);
    return NULL;
}

TSR_EXPORT(tessera_open_count) uint32_t tessera_open_count(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < slot_count; i++) count += slots[i] != NULL;
    return count;
}

/* ---- stores ---- */

static tsr_status host_read_at(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    if (tsr_read(((opened *)store)->store_number, file, offset, buffer, (uint32_t)size) == 0) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, offset, "%u bytes of %.*s cannot be read", (unsigned)size,
                     TSR_STR_ARG(store->files[file].name));
}

static tsr_status take_files(opened *item, const tessera_file *files, uint32_t count, uint32_t primary, tsr_error *err)
{
    tsr_store_file *listing = tsr_arena_array(item->names, count, sizeof *listing, err);
    if (!listing) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        tsr_str name = {(const char *)(uintptr_t)files[i].name, files[i].name_size};
        listing[i] = (tsr_store_file){tsr_arena_str(item->names, name, err), files[i].size};
        if (!listing[i].name.data) return TSR_E_NOMEM;
        if (i && tsr_str_compare(listing[i - 1].name, listing[i].name) >= 0) {
            return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the files of a store must be sorted by name, without twins");
        }
    }
    item->store.files = listing;
    item->store.file_count = count;
    item->store.primary = primary < count ? primary : TSR_NO_FILE;
    item->store.read_at = host_read_at;
    return TSR_OK;
}

static void free_item(opened *item)
{
    if (!item) return;
    tsr_checkpoint_close(item->checkpoint);
    tsr_arena_free(item->names);
    free(item);
}

/* Opens the checkpoint that `files` (sorted by name, byte-wise) make; `primary` is the one the user named, or ≥ count.
 * `store` is the number that tsr_read is given back. Returns a handle. */
TSR_EXPORT(tessera_open) uint32_t tessera_open(uint32_t store, const tessera_file *files, uint32_t count, uint32_t primary, tsr_error *err)
{
    opened *item = calloc(1, sizeof *item);
    if (!item) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return 0;
    }
    uint32_t handle = 0;
    item->store_number = store;
    item->host = host_of_module();
    item->names = tsr_arena_new(item->host.allocator, 0, err);
    if (item->names && take_files(item, files, count, primary, err) == TSR_OK &&
        tsr_checkpoint_open(&item->store, &item->host, NULL, &item->checkpoint, err) == TSR_OK) {
        handle = add_handle(item, err);
    }
    if (!handle) free_item(item);
    return handle;
}

TSR_EXPORT(tessera_close) void tessera_close(uint32_t handle)
{
    opened *item = item_of(handle, NULL);
    if (!item) return;
    free_item(item);
    slots[handle - 1] = NULL;
}

/* ---- documents ---- */

typedef struct document {
    char *data;
    size_t size;
    size_t capacity;
} document;

static tsr_status append(void *ctx, const char *data, size_t size, tsr_error *err)
{
    document *doc = ctx;
    if (size > doc->capacity - doc->size) {
        size_t capacity = doc->capacity * 2 > doc->size + size ? doc->capacity * 2 : doc->size + size + 4096;
        char *grown = realloc(doc->data, capacity);
        if (!grown) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for a document of %zu bytes", capacity);
        doc->data = grown;
        doc->capacity = capacity;
    }
    memcpy(doc->data + doc->size, data, size);
    doc->size += size;
    return TSR_OK;
}

static tsr_status write_findings(opened *item, tsr_str path, bool deep, tsr_json *json, tsr_error *err)
{
    tsr_findings *findings = tsr_checkpoint_findings(item->checkpoint);
    tsr_ring *ring = NULL;
    tsr_status status = TSR_OK;
    if (!item->validated) status = tsr_validate_catalog(tsr_checkpoint_catalog(item->checkpoint), &item->host, findings, err);
    item->validated = true;
    if (deep && status == TSR_OK) status = tsr_ring_new(&item->host, 0, &ring, err);
    if (deep && status == TSR_OK) status = tsr_check_deep(item->checkpoint, ring, NULL, err);
    tsr_ring_free(ring);
    tsr_path_findings one = {path, findings};
    return status == TSR_OK ? tsr_document_findings(&one, 1, json) : status;
}

static tsr_status write_document(opened *item, uint32_t kind, tsr_str path, tsr_json *json, tsr_error *err)
{
    tsr_inspect_options options = {.path = path};
    tsr_selection all = {0};
    switch (kind) {
    case TESSERA_INSPECT: return tsr_document_inspect(item->checkpoint, &options, json, err);
    case TESSERA_FINDINGS:
    case TESSERA_FINDINGS_DEEP: return write_findings(item, path, kind == TESSERA_FINDINGS_DEEP, json, err);
    case TESSERA_LAYOUT:
        return tsr_document_layout(tsr_checkpoint_catalog(item->checkpoint), &all, true, &item->host, json, err);
    default: return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "no document has the kind %u", (unsigned)kind);
    }
}

/* A JSON document (tessera_document_kind) about a checkpoint; `path` is what it says under "path". The result is freed
 * with tessera_document_free; data and size are borrowed from it. */
TSR_EXPORT(tessera_document)
document *tessera_document(uint32_t handle, uint32_t kind, const char *path, uint32_t path_size, tsr_error *err)
{
    opened *item = item_of(handle, err);
    document *doc = item ? calloc(1, sizeof *doc) : NULL;
    tsr_json *json = doc ? calloc(1, sizeof *json) : NULL;
    tsr_status status = json ? TSR_OK : TSR_E_NOMEM;
    if (json) {
        tsr_json_start(json, append, doc, 1, err);
        status = write_document(item, kind, (tsr_str){path, path_size}, json, err);
        if (status == TSR_OK) status = tsr_json_finish(json);
    } else {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
    }
    free(json);
    if (status == TSR_OK) return doc;
    if (doc) free(doc->data);
    free(doc);
    return NULL;
}

TSR_EXPORT(tessera_document_data) const char *tessera_document_data(const document *doc) { return doc->data; }
TSR_EXPORT(tessera_document_size) uint32_t tessera_document_size(const document *doc) { return (uint32_t)doc->size; }

TSR_EXPORT(tessera_document_free) void tessera_document_free(document *doc)
{
    if (!doc) return;
    free(doc->data);
    free(doc);
}
