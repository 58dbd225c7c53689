/* Builds the catalog of a DCP checkpoint from `.metadata`, or from the union of the rank-local `__R.metadata` files.
 *
 *   state_dict_metadata   FQN → tensor (dtype, size, chunks) or bytes      entries, in its order
 *   planner_data          FQN → path from the root                          entry.path
 *   storage_data          (FQN, offsets) → file, offset, length             dcp_place.c
 *
 * If a box occurs several times (replicas, one per rank), the first becomes a chunk and the others become `replicas`. */
#include "formats/common/expansion.h"
#include "formats/dcp/dcp_state.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

static tsr_status dcp_extents(tsr_checkpoint *checkpoint,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err)
{
    return tsr_dcp_extents_of(checkpoint, checkpoint->catalog.entries, checkpoint->catalog.entry_count, each, ctx, err);
}

/* Finds the entry `fqn`, or adds it if no earlier source has it. */
static tsr_status entry_for(tsr_checkpoint *checkpoint, tsr_str fqn, uint32_t *index, bool *inserted, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    uint32_t *stored;
    *index = tsr_map_get(state->names, fqn, TSR_DCP_NO_ENTRY);
    *inserted = *index == TSR_DCP_NO_ENTRY;
    if (!*inserted) return TSR_OK;
    TSR_FAIL_IF(state->entries.count >= checkpoint->host->limits.entries || state->entries.count >= UINT32_MAX - 1, err,
                TSR_E_LIMIT, "dcp: more than %llu entries", (unsigned long long)checkpoint->host->limits.entries);
    tsr_str copy = tsr_arena_str(checkpoint->arena, fqn, err);
    if (!copy.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(state->names, copy, (uint32_t)state->entries.count, &stored, NULL, err));
    tsr_entry *entry = tsr_vec_push(&state->entries, err);
    if (!entry) return TSR_E_NOMEM;
    entry->fqn = copy;
    *index = *stored;
    return TSR_OK;
}

/* Sets a tensor's entry from the metadata. If another rank's metadata has the tensor too, it must state the same. */
static tsr_status set_tensor(tsr_entry *entry, const tsr_dcp_metadata_file *source, const uint64_t *record, bool inserted,
                             tsr_error *err)
{
    uint32_t ndim;
    const uint64_t *shape = tsr_dcp_dims(&source->metadata, tsr_dcp_high(record[0]), &ndim);
    tsr_dtype dtype = (tsr_dtype)(record[0] >> 8 & 0xFF);
    bool same =
        entry->kind == TSR_ENTRY_TENSOR && entry->dtype == dtype && tsr_shape_equal(entry->ndim, entry->shape, ndim, shape);
    TSR_FAIL_IF(!inserted && !same, err, TSR_E_FORMAT,
                "dcp: '%.*s' has a different dtype, size or kind in the metadata of another rank", TSR_STR_ARG(entry->fqn));
    entry->kind = TSR_ENTRY_TENSOR;
    entry->dtype = dtype;
    entry->ndim = ndim;
    entry->shape = shape;
    /* PyTorch ignores it when it loads. On other dtypes, it refuses a tensor that has it set. */
    const tsr_dtype_class kind = tsr_dtype_describe(dtype)->kind;
    entry->requires_grad = (kind == TSR_CLASS_FLOAT || kind == TSR_CLASS_COMPLEX) && (record[0] >> 16 & 1);
    return TSR_OK;
}

static tsr_status set_chunks(const tsr_dcp_metadata_file *source, const tsr_entry *entry, const uint64_t *record,
                             tsr_chunk *chunks, tsr_error *err)
{
    const uint64_t *words = tsr_dcp_chunks(&source->metadata, record);
    for (uint64_t i = 0; i < record[1]; i++) {
        uint32_t ndim;
        chunks[i] = (tsr_chunk){.file = TSR_NO_FILE, .byte_length = UINT64_MAX /* not placed yet */};
        chunks[i].offsets = tsr_dcp_dims(&source->metadata, tsr_dcp_chunk_offsets(words[i]), &ndim);
        chunks[i].sizes = tsr_dcp_dims(&source->metadata, tsr_dcp_chunk_sizes(words[i]), &ndim);
        TSR_FAIL_IF(ndim != entry->ndim, err, TSR_E_FORMAT,
                    "dcp: chunk %llu of '%.*s' has %u dimensions, but the tensor has %u", (unsigned long long)i,
                    TSR_STR_ARG(entry->fqn), ndim, entry->ndim);
    }
    return TSR_OK;
}

/* Adds one key and value of state_dict_metadata. */
static tsr_status add_entry(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_ref key, tsr_ref value,
                            tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_dcp_metadata *metadata = &source->metadata;
    const uint64_t *tensor = tsr_dcp_record(metadata, value, TSR_DCP_TENSOR);
    tsr_str fqn = tsr_pickle_text(metadata->pickle, key);
    TSR_FAIL_IF(tsr_pickle_kind_of(metadata->pickle, key) != TSR_PICKLE_STR, err, TSR_E_FORMAT,
                "dcp: a key of state_dict_metadata is not a string");
    TSR_FAIL_IF(!tensor && !tsr_dcp_record(metadata, value, TSR_DCP_BYTES), err, TSR_E_FORMAT,
                "dcp: '%.*s' is neither a TensorStorageMetadata nor a BytesStorageMetadata", TSR_STR_ARG(fqn));
    uint32_t index;
    bool inserted;
    TSR_TRY(entry_for(checkpoint, fqn, &index, &inserted, err));
    tsr_entry *entry = (tsr_entry *)state->entries.items + index;
    tsr_dcp_part *part = tsr_vec_push(&source->parts, err);
    if (!part) return TSR_E_NOMEM;
    *part = (tsr_dcp_part){source->chunk_count, tensor ? tensor[1] : 1, index};
    source->chunk_count += part->count;
    if (tensor) {
        TSR_TRY(set_tensor(entry, source, tensor, inserted, err));
        return set_chunks(source, entry, tensor, source->chunks + part->first, err);
    }
    TSR_FAIL_IF(!inserted && entry->kind != TSR_ENTRY_OBJECT, err, TSR_E_FORMAT,
                "dcp: '%.*s' is a tensor in the metadata of one rank and an object in that of another", TSR_STR_ARG(fqn));
    entry->kind = TSR_ENTRY_OBJECT;
    source->chunks[part->first] = (tsr_chunk){.file = TSR_NO_FILE, .byte_length = UINT64_MAX};
    return TSR_OK;
}

/* The number of chunks: those of all tensors, and one per object. */
static uint64_t count_chunks(const tsr_dcp_metadata_file *source, const tsr_ref *pairs, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 1; i < count; i += 2) {
        const uint64_t *tensor = tsr_dcp_record(&source->metadata, pairs[i], TSR_DCP_TENSOR);
        total += tensor ? tensor[1] : 1;
    }
    return total;
}

static tsr_status add_entries(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    size_t count;
    const tsr_ref *pairs = tsr_pickle_items(source->metadata.pickle, source->metadata.state_dict, &count);
    uint64_t before = tsr_dcp_state_of(checkpoint)->entries.count, total = count_chunks(source, pairs, count);
    TSR_FAIL_IF(total > SIZE_MAX / sizeof(tsr_chunk), err, TSR_E_LIMIT, "dcp: %llu chunks are too many",
                (unsigned long long)total);
    /* Lists may be shared. */
    TSR_TRY(tsr_expansion_take(&checkpoint->expansion, total * sizeof(tsr_chunk), checkpoint->host, err));
    source->chunks = tsr_alloc(checkpoint->host->allocator, (size_t)total, sizeof(tsr_chunk), err);
    if (!source->chunks) return TSR_E_NOMEM;
    source->chunk_room = total;
    for (size_t i = 0; i + 1 < count; i += 2) TSR_TRY(add_entry(checkpoint, source, pairs[i], pairs[i + 1], err));
    uint64_t added = tsr_dcp_state_of(checkpoint)->entries.count - before;
    TSR_FAIL_IF(tsr_dcp_state_of(checkpoint)->source_count == 1 && added < count / 2, err, TSR_E_FORMAT,
                "dcp: state_dict_metadata has the same key twice");
    return TSR_OK;
}

/* Whether the items, joined with dots, are the name, as flatten_state_dict of PyTorch joins them. */
static bool is_path_of(tsr_str name, const tsr_path_item *items, size_t count)
{
    char digits[TSR_PATH_DIGITS];
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const tsr_str text = tsr_path_item_text(&items[i], digits);
        if (items[i].kind == TSR_PATH_INDEX && items[i].integer < 0) return false;
        if (i && (at >= name.size || name.data[at++] != '.')) return false;
        if (!tsr_str_starts(tsr_str_after(name, at), text)) return false;
        at += text.size;
    }
    return at == name.size;
}

/* Copies a path: a tuple of str (dict keys) and int (list positions). *count is 0 if another kind of item is in it. */
static tsr_status copy_path(tsr_checkpoint *checkpoint, const tsr_pickle *pickle, tsr_ref path, const tsr_path_item **out,
                            size_t *count, tsr_error *err)
{
    const tsr_ref *items = tsr_pickle_items(pickle, path, count);
    const size_t wanted = *count;
    uint64_t bytes = (uint64_t)wanted * sizeof(tsr_path_item); /* entries may share paths and keys */
    for (size_t i = 0; i < wanted && bytes <= checkpoint->expansion; i++) bytes += tsr_pickle_text(pickle, items[i]).size;
    TSR_TRY(tsr_expansion_take(&checkpoint->expansion, bytes, checkpoint->host, err));
    tsr_path_item *copy = tsr_arena_array(checkpoint->arena, wanted, sizeof *copy, err);
    if (!copy) return TSR_E_NOMEM;
    *out = copy;
    *count = 0;
    for (size_t i = 0; i < wanted; i++) {
        tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, items[i]);
        if (kind != TSR_PICKLE_STR && kind != TSR_PICKLE_INT) return TSR_OK;
        copy[i].kind = kind == TSR_PICKLE_STR ? TSR_PATH_KEY : TSR_PATH_INDEX;
        copy[i].integer = tsr_pickle_int(pickle, items[i]);
        if (kind == TSR_PICKLE_STR) copy[i].key = tsr_arena_str(checkpoint->arena, tsr_pickle_text(pickle, items[i]), err);
        if (kind == TSR_PICKLE_STR && !copy[i].key.data) return TSR_E_NOMEM;
    }
    *count = wanted;
    return TSR_OK;
}

/* Sets an entry's path from planner_data. An entry keeps its flat key if planner_data has no tuple for it, or one that does
 * not lead to its name. PyTorch does not find such an entry when it rebuilds the nested state dict. */
static tsr_status set_path(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_entry *entry, tsr_ref path,
                           tsr_error *err)
{
    size_t count;
    const tsr_path_item *items;
    const tsr_pickle *pickle = source->metadata.pickle;
    tsr_pickle_items(pickle, path, &count);
    if (tsr_pickle_kind_of(pickle, path) != TSR_PICKLE_TUPLE || count == 0 || count > UINT32_MAX) return TSR_OK;
    TSR_TRY(copy_path(checkpoint, pickle, path, &items, &count, err));
    if (!count || !is_path_of(entry->fqn, items, count)) {
        const tsr_place place = {checkpoint->store->files[source->file].name, TSR_NO_POSITION, entry->fqn};
        return tsr_finding_add(checkpoint->findings, "file/unreadable", place, err,
                               "the path that planner_data gives for '%.*s' does not lead to that name",
                               TSR_STR_ARG(entry->fqn));
    }
    entry->path = items;
    entry->path_length = (uint32_t)count;
    return TSR_OK;
}

static tsr_status add_paths(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_pickle *pickle = source->metadata.pickle;
    size_t count;
    const tsr_ref *pairs = tsr_pickle_items(pickle, source->metadata.planner_data, &count);
    for (size_t i = 0; i + 1 < count; i += 2) {
        uint32_t index = tsr_map_get(state->names, tsr_pickle_text(pickle, pairs[i]), TSR_DCP_NO_ENTRY);
        tsr_entry *entry = index == TSR_DCP_NO_ENTRY ? NULL : (tsr_entry *)state->entries.items + index;
        if (entry && !entry->path) TSR_TRY(set_path(checkpoint, source, entry, pairs[i + 1], err));
    }
    return TSR_OK;
}

static tsr_status read_parsed(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    TSR_TRY(tsr_dcp_judge_pickle(checkpoint, source, err));
    TSR_TRY(add_entries(checkpoint, source, err));
    TSR_TRY(add_paths(checkpoint, source, err));
    TSR_TRY(tsr_dcp_keep_originals(checkpoint, source, err));
    return tsr_dcp_place(checkpoint, source, err);
}

static tsr_status read_source(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err)
{
    tsr_bytes bytes;
    const tsr_store_file *file = &checkpoint->store->files[source->file];
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, source->file), checkpoint->host, &bytes, err));
    tsr_expansion_add(&checkpoint->expansion, file->size);
    tsr_status status = tsr_dcp_metadata_open(bytes.data, checkpoint->host, &source->metadata, err);
    if (status == TSR_OK) status = read_parsed(checkpoint, source, err);
    tsr_dcp_metadata_forget(&source->metadata);
    tsr_bytes_free(&bytes);
    if (status != TSR_OK) tsr_error_context(err, "%.*s", TSR_STR_ARG(file->name));
    return status;
}

/* Collects each entry's chunks from all sources. With a single source, they are already contiguous. */
static tsr_status join_parts(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    for (uint32_t s = 0; s < state->source_count; s++) {
        const tsr_dcp_part *parts = state->sources[s].parts.items;
        for (size_t i = 0; i < state->sources[s].parts.count; i++) {
            tsr_entry *entry = &entries[parts[i].entry];
            if (state->source_count == 1) entry->chunks = state->sources[0].chunks + parts[i].first;
            entry->chunk_count += parts[i].count;
        }
    }
    if (state->source_count == 1) return TSR_OK;
    for (uint64_t i = 0; i < count; i++) {
        entries[i].chunks = tsr_arena_array(checkpoint->arena, (size_t)entries[i].chunk_count, sizeof(tsr_chunk), err);
        if (!entries[i].chunks) return TSR_E_NOMEM;
        entries[i].chunk_count = 0;
    }
    for (uint32_t s = 0; s < state->source_count; s++) {
        const tsr_dcp_part *parts = state->sources[s].parts.items;
        for (size_t i = 0; i < state->sources[s].parts.count; i++) {
            tsr_entry *entry = &entries[parts[i].entry];
            tsr_chunk *to = (tsr_chunk *)entry->chunks + entry->chunk_count;
            if (parts[i].count) memcpy(to, state->sources[s].chunks + parts[i].first, (size_t)parts[i].count * sizeof *to);
            entry->chunk_count += parts[i].count;
        }
    }
    return TSR_OK;
}

static int compare_dims(const uint64_t *a, const uint64_t *b, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++) {
        if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
    }
    return 0;
}

/* Whether the offsets are strictly ascending, so that no box can occur twice. */
static bool offsets_grow(const tsr_entry *entry)
{
    for (uint64_t i = 1; i < entry->chunk_count; i++) {
        if (entry->ndim == 0 || compare_dims(entry->chunks[i - 1].offsets, entry->chunks[i].offsets, entry->ndim) >= 0)
            return false;
    }
    return true;
}

/* Moves repeated boxes after the first occurrences. `keys` has room for one key per chunk. */
static tsr_status split_with(tsr_entry *entry, tsr_map *boxes, char *keys, tsr_arena *scratch, tsr_error *err)
{
    size_t half = entry->ndim * sizeof(uint64_t);
    tsr_chunk *chunks = (tsr_chunk *)entry->chunks;
    tsr_chunk *copies = tsr_arena_array(scratch, (size_t)entry->chunk_count, sizeof *copies, err);
    if (!copies) return TSR_E_NOMEM;
    uint64_t kept = 0, copied = 0;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        char *key = keys + 2 * half * i;
        bool first;
        if (half) memcpy(key, chunks[i].offsets, half);
        if (half) memcpy(key + half, chunks[i].sizes, half);
        TSR_TRY(tsr_map_put(boxes, (tsr_str){key, 2 * half}, 0, NULL, &first, err));
        if (first) chunks[kept++] = chunks[i];
        else copies[copied++] = chunks[i];
    }
    if (copied) memcpy(chunks + kept, copies, (size_t)copied * sizeof *copies);
    entry->chunk_count = kept;
    entry->replica_count = copied;
    entry->replicas = copied ? chunks + kept : NULL;
    return TSR_OK;
}

static tsr_status split_replicas(tsr_checkpoint *checkpoint, tsr_entry *entry, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    if (offsets_grow(entry)) return TSR_OK;
    tsr_arena *scratch = tsr_arena_new(allocator, 0, err);
    char *keys =
        scratch ? tsr_arena_array(scratch, (size_t)entry->chunk_count, 2 * entry->ndim * sizeof(uint64_t), err) : NULL;
    tsr_map *boxes = keys ? tsr_map_new(allocator, (size_t)entry->chunk_count, err) : NULL;
    tsr_status status = boxes ? split_with(entry, boxes, keys, scratch, err) : TSR_E_NOMEM;
    tsr_map_free(boxes);
    tsr_arena_free(scratch);
    return status;
}

/* Files that some formats based on DCP store next to the data files: meta.pt is Lightning's, common.pt Megatron's. */
static bool belongs_to_form(const tsr_dcp_state *state, tsr_str name)
{
    return tsr_str_equal(name, TSR_STR("meta.pt")) || (state->is_megatron && tsr_str_equal(name, TSR_STR("common.pt")));
}

static tsr_status report_unreferenced(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_str first = checkpoint->store->files[checkpoint->files[0]].name;
    if (checkpoint->options.metadata_rank && !tsr_str_equal(first, TSR_STR(".metadata")))
        return TSR_OK; /* the files of the other ranks are there, too */
    for (uint32_t f = 0; f < checkpoint->store->file_count; f++) {
        tsr_str name = checkpoint->store->files[f].name;
        /* A store view hides files by empty names (io/store_view.h). */
        if (!name.size || state->file_uses[f] != TSR_DCP_UNUSED || belongs_to_form(state, name)) continue;
        bool data =
            /* Those below may be other saves. */
            tsr_str_ends(name, TSR_STR(".distcp")) && !memchr(name.data, '/', name.size);
        if (data && checkpoint->store->files[f].size == 0) continue; /* the rank had nothing to write */
        tsr_level level = data ? TSR_WARNING : TSR_NOTE;
        tsr_place place = {name, TSR_NO_POSITION, {NULL, 0}};
        TSR_TRY(tsr_finding_add_at(checkpoint->findings, (tsr_rated_rule){"dcp/unreferenced-file", level}, place, err,
                                   "no item of the metadata is stored in '%.*s'", TSR_STR_ARG(name)));
    }
    return TSR_OK;
}

static tsr_status read_all(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    for (uint32_t i = 0; i < state->source_count; i++) TSR_TRY(read_source(checkpoint, &state->sources[i], err));
    uint64_t count = state->entries.count;
    tsr_entry *entries = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    if (count) memcpy(entries, state->entries.items, (size_t)count * sizeof *entries);
    TSR_TRY(join_parts(checkpoint, entries, count, err));
    for (uint64_t i = 0; i < count; i++) TSR_TRY(split_replicas(checkpoint, &entries[i], err));
    checkpoint->catalog.entries = entries;
    checkpoint->catalog.entry_count = count;
    checkpoint->catalog.compressed = state->transforms != NULL;
    TSR_TRY(tsr_dcp_place_safetensors(checkpoint, err));
    TSR_TRY(report_unreferenced(checkpoint, err));
    if (state->extension.size)
        TSR_TRY(tsr_finding_add(checkpoint->findings, "dcp/extension", TSR_NOWHERE, err,
                                "%llu items are stored through the extension '%.*s', which only the program that has it can "
                                "undo: their values cannot be read or checked here",
                                (unsigned long long)state->extended_count, TSR_STR_ARG(state->extension)));
    TSR_TRY(tsr_dcp_find_subclasses(checkpoint, entries, count, err));
    if (checkpoint->options.purpose == TSR_FOR_FINDINGS) TSR_TRY(tsr_dcp_check_ends(checkpoint, entries, count, err));
    return tsr_dcp_read_objects(checkpoint, entries, count, err);
}

/* Frees what only opening needs. */
static void free_work(tsr_dcp_state *state)
{
    tsr_map_free(state->names);
    state->names = NULL;
    tsr_vec_free(&state->entries);
    for (uint32_t i = 0; i < state->source_count; i++) tsr_vec_free(&state->sources[i].parts);
}

static void close_dcp(tsr_checkpoint *checkpoint)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    for (uint32_t i = 0; i < state->source_count; i++) {
        tsr_dcp_metadata_close(&state->sources[i].metadata);
        tsr_free(checkpoint->host->allocator, state->sources[i].chunks, (size_t)state->sources[i].chunk_room,
                 sizeof(tsr_chunk));
    }
    tsr_map_free(state->transforms);
}

static tsr_status open_dcp(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_dcp_state *state = TSR_ARENA_NEW(checkpoint->arena, tsr_dcp_state, err);
    if (!state) return TSR_E_NOMEM;
    checkpoint->state = state;
    state->entries = tsr_vec_of(allocator, sizeof(tsr_entry));
    state->file_uses = tsr_arena_array(checkpoint->arena, checkpoint->store->file_count, 1, err);
    state->sources = tsr_arena_array(checkpoint->arena, checkpoint->file_count, sizeof *state->sources, err);
    if (!state->file_uses || !state->sources) return TSR_E_NOMEM;
    state->source_count = checkpoint->file_count;
    for (uint32_t i = 0; i < state->source_count; i++) {
        state->sources[i].file = checkpoint->files[i];
        state->file_uses[checkpoint->files[i]] = TSR_DCP_OBJECTS;
        state->sources[i].parts = tsr_vec_of(allocator, sizeof(tsr_dcp_part));
    }
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) state->file_uses[checkpoint->listed[i]] = TSR_DCP_OBJECTS;
    state->names = tsr_map_new(allocator, 0, err);
    tsr_status status = state->names ? read_all(checkpoint, err) : TSR_E_NOMEM;
    free_work(state);
    if (status != TSR_OK) close_dcp(checkpoint);
    return status;
}

const tsr_reader tsr_reader_dcp = {
    .format = TSR_FORMAT_DCP,
    .open = open_dcp,
    .locate = tsr_dcp_locate,
    .extents = dcp_extents,
    .close = close_dcp,
    .crc = tsr_dcp_crc,
    .find = tsr_dcp_find,
};
