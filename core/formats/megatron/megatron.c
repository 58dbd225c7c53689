/* Recognizes and opens the format, and locates bytes: in items of the DCP, in parts of items, and in common.pt. */
#include "formats/megatron/megatron.h"

#include "codec/json.h"
#include "formats/megatron/megatron_state.h"
#include "tessera/sys/box.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* ---- opening ---- */

/* What metadata.json states. Other programs write files of this name, too, so it is not an error if a document states
 * nothing. */
typedef struct stated {
    bool torch_dist;     /* sharded_backend */
    bool common_backend; /* there is one: what is not sharded is in common.pt. Megatron-Core 0.19 and newer states none */
} stated;

static tsr_status read_stated(tsr_checkpoint *checkpoint, uint32_t file, stated *out, tsr_error *err)
{
    const tsr_store_file *f = &checkpoint->store->files[file];
    enum { LARGEST = 1 << 16 };
    tsr_bytes text;
    cJSON *root;
    tsr_error ignored = {0};
    *out = (stated){0};
    if (f->size == 0 || f->size > LARGEST) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    const tsr_status status = tsr_json_parse(text.data, checkpoint->host, &root, &ignored);
    tsr_bytes_free(&text);
    if (status == TSR_E_NOMEM) return tsr_fail(err, status, "%s", ignored.message);
    if (status != TSR_OK) return TSR_OK;
    const cJSON *backend = cJSON_GetObjectItemCaseSensitive(root, "sharded_backend");
    out->torch_dist = cJSON_IsString(backend) && tsr_str_equal(tsr_json_text_of(backend), TSR_STR("torch_dist"));
    out->common_backend = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(root, "common_backend"));
    cJSON_Delete(root);
    return TSR_OK;
}

static tsr_status recognizes(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const uint32_t metadata = tsr_store_find(store, TSR_STR(".metadata")),
                   json = tsr_store_find(store, TSR_STR("metadata.json"));
    stated says;
    *is = false;
    if (store->files[metadata].size == 0) return TSR_OK;
    TSR_TRY(read_stated(checkpoint, json, &says, err));
    *is = says.torch_dist;
    if (!*is) return TSR_OK;
    uint32_t *files = tsr_arena_array(checkpoint->arena, 3, sizeof *files, err);
    if (!files) return TSR_E_NOMEM;
    files[0] = metadata;
    files[1] = json;
    files[2] = tsr_store_find(store, TSR_STR("common.pt"));
    checkpoint->files = files;
    checkpoint->file_count = 1;
    checkpoint->listed = files + 1;
    checkpoint->listed_count = files[2] == TSR_NO_FILE ? 1 : 2;
    return TSR_OK;
}

static tsr_status require_marker(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    const uint32_t json = tsr_store_find(checkpoint->store, TSR_STR("metadata.json"));
    stated says = {.common_backend = true};
    if (json != TSR_NO_FILE) TSR_TRY(read_stated(checkpoint, json, &says, err));
    state->needs_common_file = says.common_backend;
    if (json != TSR_NO_FILE) return TSR_OK;
    return tsr_checkpoint_is_incomplete(
        checkpoint, TSR_STR("metadata.json"),
        TSR_STR(
            "'metadata.json', which Megatron writes last, is missing: the save was interrupted, or the file was not copied"),
        err);
}

tsr_status tsr_megatron_refine(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_megatron_state *state = TSR_ARENA_NEW(checkpoint->arena, tsr_megatron_state, err);
    if (!state) return TSR_E_NOMEM;
    tsr_dcp_state_of(checkpoint)->form = state;
    state->raw = checkpoint->catalog.entries;
    state->raw_count = checkpoint->catalog.entry_count;
    TSR_TRY(require_marker(checkpoint, state, err));
    TSR_TRY(tsr_megatron_join_objects(checkpoint, state, err));
    TSR_TRY(tsr_megatron_undo_fragments(checkpoint, state, err));
    tsr_megatron_take_common_state(checkpoint, state);
    TSR_TRY(tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(state->entries, state->count), &state->index,
                               NULL, err));
    return tsr_megatron_add_common(checkpoint, state, err);
}

/* Metadata written by Megatron-Core is recognized by its additional attributes, even if the other files are missing. */
static tsr_status refines(tsr_checkpoint *checkpoint, tsr_error *err)
{
    if (checkpoint->reader != &tsr_reader_dcp || !tsr_dcp_state_of(checkpoint)->is_megatron) return TSR_OK;
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    checkpoint->reader = &tsr_reader_megatron;
    checkpoint->catalog.format = tsr_reader_megatron.format;
    return tsr_megatron_refine(checkpoint, err);
}

static void close_megatron(tsr_checkpoint *checkpoint)
{
    const tsr_megatron_state *state = tsr_megatron_state_of(checkpoint);
    if (state) tsr_name_index_free(state->index);
    tsr_reader_dcp.close(checkpoint);
}

static tsr_status open_megatron(tsr_checkpoint *checkpoint, tsr_error *err)
{
    TSR_TRY(tsr_reader_dcp.open(checkpoint, err));
    const tsr_status status = tsr_megatron_refine(checkpoint, err);
    if (status != TSR_OK) close_megatron(checkpoint);
    return status;
}

/* ---- where bytes are ---- */

/* The item that a chunk of the catalog is read from: its own, or that of its piece. */
static tsr_dcp_item item_of(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk)
{
    const tsr_megatron_piece *piece = tsr_megatron_piece_of(tsr_megatron_state_of(checkpoint), chunk);
    return piece ? (tsr_dcp_item){checkpoint, piece->entry, piece->chunk} : (tsr_dcp_item){checkpoint, entry, chunk};
}

/* Whether the chunk belongs to the part "common", so that it is not what an item holds: it is in common.pt, or it is a tensor
 * inside the object common_state. */
static bool is_common(const tsr_checkpoint *checkpoint, const tsr_chunk *chunk)
{
    const tsr_megatron_state *state = tsr_megatron_state_of(checkpoint);
    bool is = chunk->file == state->common_file;
    for (uint64_t i = 0; i < state->common_tensor_count && !is; i++) is = state->common_tensors[i] == chunk;
    return is;
}

static tsr_status locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                         tsr_view *out, tsr_error *err)
{
    const tsr_dcp_item item = item_of(checkpoint, entry, chunk);
    *out = (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    if (is_common(checkpoint, chunk)) return TSR_OK;
    TSR_TRY(tsr_dcp_locate(checkpoint, item.entry, item.chunk, scratch, out, err));
    return item.chunk == chunk ? TSR_OK : tsr_megatron_piece_view(checkpoint, entry, chunk, scratch, out, err);
}

/* Whether the chunk is all that its item holds. */
static bool is_whole(const tsr_dcp_item *item, const tsr_entry *entry, const tsr_chunk *chunk)
{
    uint64_t elements, stored;
    return item->chunk == chunk ||
           (tsr_box_volume((tsr_box){entry->ndim, NULL, chunk->sizes}, &elements) &&
            tsr_box_volume((tsr_box){item->entry->ndim, NULL, item->chunk->sizes}, &stored) && elements == stored);
}

static tsr_status crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                      tsr_stated_crc *out, tsr_error *err)
{
    const tsr_dcp_item item = item_of(checkpoint, entry, chunk);
    if (is_common(checkpoint, chunk) || !is_whole(&item, entry, chunk)) return TSR_OK;
    return tsr_dcp_crc(checkpoint, item.entry, item.chunk, scratch, out, err);
}

static tsr_status find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_found *out, tsr_error *err)
{
    const tsr_dcp_item item = item_of(checkpoint, entry, chunk);
    *out = (tsr_found){.view = {.file = chunk->file, .byte_offset = chunk->byte_offset}};
    if (is_common(checkpoint, chunk)) return TSR_OK;
    TSR_TRY(tsr_dcp_find(checkpoint, item.entry, item.chunk, scratch, out, err));
    if (!is_whole(&item, entry, chunk)) out->crc = (tsr_stated_crc){0};
    return item.chunk == chunk ? TSR_OK : tsr_megatron_piece_view(checkpoint, entry, chunk, scratch, &out->view, err);
}

const tsr_megatron_stored *tsr_megatron_stored_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    if (checkpoint->reader != &tsr_reader_megatron) return NULL;
    const tsr_megatron_state *state = tsr_megatron_state_of(checkpoint);
    const uint64_t at = tsr_name_index_find(state->index, entry->fqn);
    return at != TSR_NO_NAME && state->entries[at].chunks == entry->chunks ? &state->stored[at] : NULL;
}

/* ---- every byte ---- */

typedef struct walk {
    tsr_checkpoint *checkpoint;
    tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err);
    void *ctx;
} walk;

/* Passes on an item's extent as an extent of the catalog's entry. An item of fragments stores flat elements, so its extent
 * gets one dimension: callers that read every byte only need the number of elements. */
static tsr_status give(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    static const uint64_t zeros[TSR_MAX_NDIM];
    const walk *w = ctx;
    const tsr_megatron_state *state = tsr_megatron_state_of(w->checkpoint);
    tsr_extent own = *extent;
    if (!extent->entry) return w->each(w->ctx, extent, err);
    const uint64_t at = state->entry_of[extent->entry - state->raw];
    const tsr_entry *entry = at == TSR_MEGATRON_COMMON ? NULL : &state->entries[at];
    own.entry = entry ? tsr_checkpoint_entry(w->checkpoint, entry->fqn) : NULL;
    if (own.entry && own.entry->chunks != entry->chunks) own.entry = NULL; /* it belongs to a part that is not open */
    if (!own.entry || !state->stored[at].fragments) {
        if (!own.entry) own.chunk = NULL;
        return w->each(w->ctx, &own, err);
    }
    uint64_t sizes[TSR_MAX_NDIM];
    const tsr_entry *raw = extent->entry;
    const bool replica =
        raw->replica_count && extent->chunk >= raw->replicas && extent->chunk < raw->replicas + raw->replica_count;
    for (uint32_t d = 0; d < entry->ndim; d++) sizes[d] = 1;
    for (uint32_t d = 0; d < raw->ndim && entry->ndim; d++) sizes[entry->ndim - 1] *= extent->chunk->sizes[d];
    const tsr_chunk flat = {.offsets = zeros, .sizes = sizes, .file = extent->file};
    own.chunk = replica ? NULL : &flat;
    if (own.view.strides) own.view.strides += raw->ndim - entry->ndim;
    return w->each(w->ctx, &own, err);
}

static tsr_status extents(tsr_checkpoint *checkpoint,
                          tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx, tsr_error *err)
{
    const tsr_megatron_state *state = tsr_megatron_state_of(checkpoint);
    walk w = {checkpoint, each, ctx};
    TSR_TRY(tsr_dcp_extents_of(checkpoint, state->raw, state->raw_count, give, &w, err));
    for (size_t i = 0; i < state->run_count; i++) {
        const tsr_torch_run *run = &state->runs[i];
        const tsr_extent extent = {.file = run->file,
                                   .byte_offset = run->byte_offset,
                                   .byte_length = run->byte_length,
                                   .has_crc = run->has_crc,
                                   .crc32 = run->crc32,
                                   .member = run->member};
        TSR_TRY(each(ctx, &extent, err));
    }
    return TSR_OK;
}

const tsr_reader tsr_reader_megatron = {.format = TSR_FORMAT_MEGATRON_DIST,
                                        .is_rare = true,
                                        .open = open_megatron,
                                        .locate = locate,
                                        .extents = extents,
                                        .close = close_megatron,
                                        .crc = crc,
                                        .find = find};
static const char *const required[] = {".metadata", NULL, "metadata.json", NULL, NULL};
const tsr_directory tsr_directory_megatron = {
    .reader = &tsr_reader_megatron, .requires = required, .recognizes = recognizes, .refines = refines};
