/* Finds where the chunks of a DCP checkpoint are stored, by matching the records of storage_data with the chunks of
 * state_dict_metadata.
 *
 * Records are keyed by MetadataIndex, (FQN, offsets). Its `index` is only a hint, which equality ignores. */
#include "base/cursor.h"
#include "formats/common/incomplete.h"
#include "formats/dcp/dcp_state.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

#define NO_RECORD  UINT64_MAX       /* byte_length of a chunk for which no record was found yet */
#define UNRESOLVED (UINT32_MAX - 1) /* a path that was not looked up yet */

typedef struct placer {
    tsr_checkpoint *checkpoint;
    tsr_dcp_metadata_file *source;
    tsr_arena *scratch;
    tsr_map *by_offsets; /* (entry, offsets) → chunk of the source; NULL until a hint is wrong */
    uint32_t *parts_of;  /* number of an FQN → 1 + part of the source, or 0 */
    uint32_t *files_of;  /* number of a path → file of the store, TSR_NO_FILE, or UNRESOLVED */
} placer;

/* One record of storage_data. */
typedef struct record {
    tsr_str fqn;
    const tsr_dcp_part *part; /* NULL if the source has no such entry */
    const uint64_t *offsets;  /* NULL if there are none */
    uint32_t ndim;
    uint32_t hint;
    uint32_t path;
    int64_t byte_offset, byte_length;
    tsr_dcp_transform transform;
} record;

static tsr_place metadata_place(const placer *p, tsr_str fqn)
{
    return (tsr_place){p->checkpoint->store->files[p->source->file].name, TSR_NO_POSITION, fqn};
}

/* " at offsets [3, 0]", in a buffer, with as many of them as fit; empty for an object, which has none. */
static const char *at_offsets(const uint64_t *offsets, uint32_t ndim, char *out, size_t size)
{
    static const char at[] = " at offsets [";
    size_t used = sizeof at - 1;
    if (!offsets) return "";
    memcpy(out, at, used);
    for (uint32_t d = 0; d < ndim && used + 30 < size; d++) {
        char digits[20];
        int count = 0;
        uint64_t value = offsets[d];
        do digits[count++] = (char)('0' + value % 10);
        while (value /= 10);
        if (d) out[used++] = ',', out[used++] = ' ';
        while (count) out[used++] = digits[--count];
    }
    out[used++] = ']';
    out[used] = '\0';
    return out;
}

static bool stays_inside(tsr_str path)
{
    if (path.size == 0 || path.data[0] == '/' || memchr(path.data, '\\', path.size) || memchr(path.data, '\0', path.size))
        return false;
    if (path.size > 1 && path.data[1] == ':') return false;
    for (size_t at = 0; at <= path.size;) {
        const char *slash = at < path.size ? memchr(path.data + at, '/', path.size - at) : NULL;
        size_t end = slash ? (size_t)(slash - path.data) : path.size;
        if (tsr_str_equal((tsr_str){path.data + at, end - at}, TSR_STR(".."))) return false;
        at = end + 1;
    }
    return true;
}

/* Finds the store's file for a path that is seen for the first time, and adds the findings about it, so that each path is
 * reported only once. */
static tsr_status resolve_path(placer *p, const record *r, uint32_t *file, tsr_error *err)
{
    const tsr_str path = tsr_dcp_name_text(&p->source->metadata.paths, r->path);
    tsr_findings *findings = p->checkpoint->findings;
    const tsr_store *store = p->checkpoint->store;
    tsr_str metadata = store->files[p->source->file].name;
    *file = TSR_NO_FILE;
    if (!stays_inside(path)) {
        return tsr_finding_add(findings, "dcp/path-outside", metadata_place(p, r->fqn), err,
                               "storage_data places items in '%.*s', outside the checkpoint's directory; it is not opened",
                               TSR_STR_ARG(path));
    }
    size_t directory = metadata.size;
    while (directory && metadata.data[directory - 1] != '/') directory--;
    tsr_str name = tsr_arena_format(p->scratch, err, "%.*s%.*s", (int)directory, metadata.data, TSR_STR_ARG(path));
    if (!name.data) return TSR_E_NOMEM;
    *file = tsr_store_find(store, name);
    if (*file != TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_checkpoint_lacks(p->checkpoint, name, err));
    return tsr_finding_add(findings, "dcp/missing-file", (tsr_place){name, TSR_NO_POSITION, r->fqn}, err,
                           "the data file '%.*s', which storage_data names, is missing", TSR_STR_ARG(name));
}

static tsr_status file_of(placer *p, const record *r, uint32_t *file, tsr_error *err)
{
    uint32_t *known = &p->files_of[r->path];
    if (*known == UNRESOLVED) TSR_TRY(resolve_path(p, r, known, err));
    *file = *known;
    return TSR_OK;
}

/* ---- from (FQN, offsets) to a chunk ---- */

static tsr_status box_key(tsr_arena *arena, uint32_t entry, const uint64_t *offsets, uint32_t ndim, tsr_str *out,
                          tsr_error *err)
{
    size_t size = sizeof entry + ndim * sizeof *offsets;
    char *key = tsr_arena_array(arena, size, 1, err);
    if (!key) return TSR_E_NOMEM;
    memcpy(key, &entry, sizeof entry);
    if (ndim) memcpy(key + sizeof entry, offsets, ndim * sizeof *offsets);
    *out = (tsr_str){key, size};
    return TSR_OK;
}

static tsr_status index_offsets(placer *p, tsr_error *err)
{
    const tsr_entry *entries = tsr_dcp_state_of(p->checkpoint)->entries.items;
    const tsr_dcp_part *parts = p->source->parts.items;
    TSR_FAIL_IF(p->source->chunk_count >= UINT32_MAX, err, TSR_E_LIMIT, "dcp: there are too many chunks without an index");
    p->by_offsets = tsr_map_new(p->checkpoint->host->allocator, (size_t)p->source->chunk_count, err);
    if (!p->by_offsets) return TSR_E_NOMEM;
    for (size_t i = 0; i < p->source->parts.count; i++) {
        const tsr_entry *entry = &entries[parts[i].entry];
        for (uint64_t c = 0; c < parts[i].count; c++) {
            tsr_str key;
            const tsr_chunk *chunk = &p->source->chunks[parts[i].first + c];
            TSR_TRY(box_key(p->scratch, parts[i].entry, chunk->offsets, entry->ndim, &key, err));
            TSR_TRY(tsr_map_put(p->by_offsets, key, (uint32_t)(parts[i].first + c), NULL, NULL, err));
        }
    }
    return TSR_OK;
}

static bool same_dims(const uint64_t *a, const uint64_t *b, uint32_t ndim)
{
    for (uint32_t d = 0; a != b && d < ndim; d++) {
        if (a[d] != b[d]) return false;
    }
    return true;
}

/* Sets *out to the chunk of a part with these offsets, or to NULL. */
static tsr_status chunk_at(placer *p, const tsr_dcp_part *part, const uint64_t *offsets, uint32_t hint, tsr_chunk **out,
                           tsr_error *err)
{
    const tsr_entry *entries = tsr_dcp_state_of(p->checkpoint)->entries.items;
    const uint32_t ndim = entries[part->entry].ndim;
    tsr_chunk *chunks = p->source->chunks;
    if (hint < part->count && same_dims(chunks[part->first + hint].offsets, offsets, ndim)) {
        *out = &chunks[part->first + hint];
        return TSR_OK;
    }
    tsr_str key;
    if (!p->by_offsets) TSR_TRY(index_offsets(p, err));
    TSR_TRY(box_key(p->scratch, part->entry, offsets, ndim, &key, err));
    uint32_t found = tsr_map_get(p->by_offsets, key, UINT32_MAX);
    *out = found == UINT32_MAX ? NULL : &chunks[found];
    return TSR_OK;
}

/* Sets *out to the chunk that a record describes, or to NULL with a finding that says why there is none. */
static tsr_status match(placer *p, const record *r, const tsr_entry **entry, tsr_chunk **out, tsr_error *err)
{
    char text[256];
    const tsr_dcp_part *part = r->part;
    *out = NULL;
    if (!part) {
        return tsr_finding_add(p->checkpoint->findings, "dcp/record-without-entry", metadata_place(p, r->fqn), err,
                               "storage_data has an item of '%.*s', which state_dict_metadata does not list",
                               TSR_STR_ARG(r->fqn));
    }
    *entry = (const tsr_entry *)tsr_dcp_state_of(p->checkpoint)->entries.items + part->entry;
    bool tensor = (*entry)->kind == TSR_ENTRY_TENSOR;
    if (!tensor && !r->offsets) *out = &p->source->chunks[part->first];
    if (tensor && r->offsets && r->ndim == (*entry)->ndim) TSR_TRY(chunk_at(p, part, r->offsets, r->hint, out, err));
    if (!*out) {
        return tsr_finding_add(p->checkpoint->findings, "dcp/record-without-chunk", metadata_place(p, r->fqn), err,
                               "storage_data has an item of '%.*s'%s, where the metadata lists no chunk",
                               TSR_STR_ARG(r->fqn),
                               r->offsets ? at_offsets(r->offsets, r->ndim, text, sizeof text) : " without offsets");
    }
    if ((*out)->byte_length == NO_RECORD) return TSR_OK;
    *out = NULL;
    return tsr_finding_add(p->checkpoint->findings, "dcp/duplicate-record", metadata_place(p, r->fqn), err,
                           "storage_data has two items of '%.*s'%s", TSR_STR_ARG(r->fqn),
                           at_offsets(r->offsets, r->ndim, text, sizeof text));
}

/* ---- placing ---- */

static tsr_status find_beyond(placer *p, const record *r, uint32_t file, tsr_error *err)
{
    const tsr_store_file *f = &p->checkpoint->store->files[file];
    char text[256];
    return tsr_finding_add(p->checkpoint->findings, "dcp/beyond-end",
                           (tsr_place){f->name, r->byte_offset < 0 ? TSR_NO_POSITION : (uint64_t)r->byte_offset, r->fqn},
                           err, "'%.*s'%s is placed at byte %lld with %lld bytes, but '%.*s' has only %llu",
                           TSR_STR_ARG(r->fqn), at_offsets(r->offsets, r->ndim, text, sizeof text),
                           (long long)r->byte_offset, (long long)r->byte_length, TSR_STR_ARG(f->name),
                           (unsigned long long)f->size);
}

/* A file's use, decided by the first tensor in it. Items in safetensors files have exactly the bytes of their elements; a
 * torch.save archive is always longer. */
static tsr_dcp_use use_of(const tsr_entry *entry, const tsr_chunk *chunk, tsr_dcp_transform transform)
{
    uint64_t elements = 1, bytes;
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_DCP_OBJECTS;
    if (transform != TSR_DCP_PLAIN) return TSR_DCP_TORCH;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        if (!tsr_mul_u64(elements, chunk->sizes[d], &elements)) return TSR_DCP_TORCH;
    }
    return tsr_dtype_bytes(entry->dtype, elements, &bytes) && bytes == chunk->byte_length ? TSR_DCP_SAFETENSORS
                                                                                          : TSR_DCP_TORCH;
}

static void item_key(const tsr_chunk *chunk, char key[12])
{
    memcpy(key, &chunk->file, 4);
    memcpy(key + 4, &chunk->byte_offset, 8);
}

tsr_dcp_transform tsr_dcp_transform_of(const tsr_dcp_state *state, const tsr_chunk *chunk)
{
    char key[12];
    item_key(chunk, key);
    return state->transforms ? tsr_map_get(state->transforms, (tsr_str){key, sizeof key}, TSR_DCP_PLAIN) : TSR_DCP_PLAIN;
}

static tsr_status note_transform(const placer *p, const tsr_chunk *chunk, tsr_dcp_transform transform, tsr_error *err)
{
    tsr_checkpoint *checkpoint = p->checkpoint;
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    if (!state->transforms) state->transforms = tsr_map_new(checkpoint->host->allocator, 0, err);
    char *key = state->transforms ? tsr_arena_array(checkpoint->arena, 12, 1, err) : NULL;
    if (!key) return TSR_E_NOMEM;
    item_key(chunk, key);
    if (transform == TSR_DCP_EXTENDED && !state->extension.size) {
        const tsr_dcp_metadata *metadata = &p->source->metadata;
        state->extension = tsr_arena_str(checkpoint->arena, tsr_pickle_text(metadata->pickle, metadata->extension), err);
        if (!state->extension.data) return TSR_E_NOMEM;
        if (!state->extension.size) state->extension = TSR_STR("(without a name)");
    }
    state->extended_count += transform == TSR_DCP_EXTENDED;
    return tsr_map_put(state->transforms, (tsr_str){key, 12}, transform, NULL, NULL, err);
}

static tsr_status place_one(placer *p, const record *r, tsr_error *err)
{
    const tsr_entry *entry = NULL;
    tsr_chunk *chunk;
    uint32_t file;
    uint64_t end;
    TSR_TRY(file_of(p, r, &file, err));
    if (file != TSR_NO_FILE && tsr_dcp_state_of(p->checkpoint)->file_uses[file] == TSR_DCP_UNUSED)
        /* The metadata names the file, whatever it contains. */
        tsr_dcp_state_of(p->checkpoint)->file_uses[file] = TSR_DCP_OBJECTS;
    TSR_TRY(match(p, r, &entry, &chunk, err));
    if (!chunk) return TSR_OK;
    chunk->byte_offset = (uint64_t)r->byte_offset;
    chunk->byte_length = (uint64_t)r->byte_length;
    if (file == TSR_NO_FILE) return TSR_OK;
    uint8_t *use = &tsr_dcp_state_of(p->checkpoint)->file_uses[file];
    if (*use <= TSR_DCP_OBJECTS) *use = (uint8_t)use_of(entry, chunk, r->transform);
    if (r->byte_offset < 0 || r->byte_length < 0 || !tsr_add_u64(chunk->byte_offset, chunk->byte_length, &end) ||
        end > p->checkpoint->store->files[file].size) {
        bool is_pointer;
        if (r->byte_offset < 0 || r->byte_length < 0) chunk->byte_offset = chunk->byte_length = 0;
        TSR_TRY(tsr_report_lfs_pointer(p->checkpoint, file, r->fqn, &is_pointer, err));
        if (!is_pointer) return find_beyond(p, r, file, err);
        p->files_of[r->path] = TSR_NO_FILE; /* its other items are missing, too, and not reported again */
        return TSR_OK;
    }
    chunk->file = file;
    return r->transform == TSR_DCP_PLAIN ? TSR_OK : note_transform(p, chunk, r->transform, err);
}

static tsr_status place_pair(placer *p, tsr_ref key, tsr_ref value, tsr_error *err)
{
    const tsr_dcp_metadata *metadata = &p->source->metadata;
    const uint64_t *index = tsr_dcp_record(metadata, key, TSR_DCP_INDEX),
                   *storage = tsr_dcp_record(metadata, value, TSR_DCP_STORAGE);
    const tsr_ref class_ = tsr_pickle_class(metadata->pickle, value);
    TSR_FAIL_IF(index && tsr_pickle_kind_of(metadata->pickle, class_) == TSR_PICKLE_GLOBAL, err, TSR_E_UNSUPPORTED,
                "dcp: storage_data contains %.*s.%.*s instead of _StorageInfo: another storage writer than FileSystemWriter "
                "wrote this checkpoint, and only its own reader loads it%s",
                TSR_STR_ARG(tsr_pickle_module(metadata->pickle, class_)),
                TSR_STR_ARG(tsr_pickle_name_of(metadata->pickle, class_)),
                tsr_str_equal(tsr_pickle_name_of(metadata->pickle, class_), TSR_STR("_RdmaObjectInfo"))
                    ? " (PyTorch's S3RdmaStorageReader)"
                    : "");
    TSR_FAIL_IF(!index || !storage, err, TSR_E_FORMAT,
                "dcp: storage_data contains something other than MetadataIndex: _StorageInfo");
    uint32_t fqn = tsr_dcp_high(index[0]), part = p->parts_of[fqn];
    record r = {.fqn = tsr_dcp_name_text(&metadata->fqns, fqn),
                .part = part ? (const tsr_dcp_part *)p->source->parts.items + part - 1 : NULL,
                .hint = tsr_dcp_low(index[1]),
                .path = tsr_dcp_high(storage[0]),
                .byte_offset = (int64_t)storage[1],
                .byte_length = (int64_t)storage[2],
                .transform = (tsr_dcp_transform)(storage[0] >> 8 & 3)};
    if (tsr_dcp_high(index[1]) != TSR_DCP_NO_DIMS) r.offsets = tsr_dcp_dims(metadata, tsr_dcp_high(index[1]), &r.ndim);
    return place_one(p, &r, err);
}

/* If a box occurs several times in the list of chunks, there is one record for all its occurrences. It is copied first to
 * the first occurrence, which is the one that look-ups find, and then to all the others. */
static tsr_status place_twins(placer *p, const tsr_dcp_part *part, const tsr_entry *entry, bool from_first, tsr_error *err)
{
    for (uint64_t c = 0; c < part->count; c++) {
        tsr_chunk *chunk = &p->source->chunks[part->first + c], *first;
        if ((chunk->byte_length == NO_RECORD) != from_first) continue;
        TSR_TRY(chunk_at(p, part, chunk->offsets, UINT32_MAX, &first, err));
        tsr_chunk *to = from_first ? chunk : first, *from = from_first ? first : chunk;
        if (to->byte_length == NO_RECORD && from->byte_length != NO_RECORD && same_dims(to->sizes, from->sizes, entry->ndim))
            *to = *from;
    }
    return TSR_OK;
}

static tsr_status report_unplaced_of(placer *p, const tsr_dcp_part *part, const tsr_entry *entry, tsr_error *err)
{
    for (uint64_t c = 0; c < part->count; c++) {
        char text[256];
        tsr_chunk *chunk = &p->source->chunks[part->first + c];
        if (chunk->byte_length != NO_RECORD) continue;
        chunk->byte_length = 0;
        const char *at = entry->kind == TSR_ENTRY_TENSOR ? at_offsets(chunk->offsets, entry->ndim, text, sizeof text) : "";
        TSR_TRY(tsr_finding_add(p->checkpoint->findings, "dcp/no-record", metadata_place(p, entry->fqn), err,
                                "chunk %llu of '%.*s'%s has no item in storage_data, so its bytes cannot be found",
                                (unsigned long long)c, TSR_STR_ARG(entry->fqn), at));
    }
    return TSR_OK;
}

static tsr_status report_unplaced(placer *p, tsr_error *err)
{
    const tsr_entry *entries = tsr_dcp_state_of(p->checkpoint)->entries.items;
    const tsr_dcp_part *parts = p->source->parts.items;
    for (size_t i = 0; i < p->source->parts.count; i++) {
        const tsr_entry *entry = &entries[parts[i].entry];
        uint64_t c = 0;
        while (c < parts[i].count && p->source->chunks[parts[i].first + c].byte_length != NO_RECORD) c++;
        if (c == parts[i].count) continue;
        if (entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(place_twins(p, &parts[i], entry, false, err));
        if (entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(place_twins(p, &parts[i], entry, true, err));
        TSR_TRY(report_unplaced_of(p, &parts[i], entry, err));
    }
    return TSR_OK;
}

/* Finds the part of the source that each FQN of storage_data belongs to. FQNs that state_dict_metadata does not list have
 * none. */
static tsr_status find_parts(placer *p, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(p->checkpoint);
    const tsr_dcp_names *fqns = &p->source->metadata.fqns;
    const tsr_dcp_part *parts = p->source->parts.items;
    uint32_t *part_of = tsr_arena_array(p->scratch, state->entries.count, sizeof *part_of, err); /* indexed by entry */
    p->parts_of = part_of ? tsr_arena_array(p->scratch, fqns->list.count, sizeof *p->parts_of, err) : NULL;
    if (!p->parts_of) return TSR_E_NOMEM;
    for (size_t i = 0; i < p->source->parts.count; i++) part_of[parts[i].entry] = (uint32_t)i + 1;
    for (uint32_t i = 0; i < fqns->list.count; i++) {
        uint32_t entry = tsr_map_get(state->names, tsr_dcp_name_text(fqns, i), TSR_DCP_NO_ENTRY);
        if (entry != TSR_DCP_NO_ENTRY) p->parts_of[i] = part_of[entry];
    }
    return TSR_OK;
}

static tsr_status place_all(placer *p, tsr_error *err)
{
    size_t count, paths = p->source->metadata.paths.list.count;
    const tsr_ref *pairs = tsr_pickle_items(p->source->metadata.pickle, p->source->metadata.storage_data, &count);
    TSR_TRY(find_parts(p, err));
    p->files_of = tsr_arena_array(p->scratch, paths, sizeof *p->files_of, err);
    if (!p->files_of) return TSR_E_NOMEM;
    for (size_t i = 0; i < paths; i++) p->files_of[i] = UNRESOLVED;
    for (size_t i = 0; i + 1 < count; i += 2) TSR_TRY(place_pair(p, pairs[i], pairs[i + 1], err));
    return report_unplaced(p, err);
}

tsr_status tsr_dcp_place(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    placer p = {.checkpoint = checkpoint, .source = source, .scratch = tsr_arena_new(allocator, 0, err)};
    tsr_status status = p.scratch ? place_all(&p, err) : TSR_E_NOMEM;
    tsr_map_free(p.by_offsets);
    tsr_arena_free(p.scratch);
    return status;
}
