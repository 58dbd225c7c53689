/* The part "common": everything that is not sharded (arguments, schedulers, the iteration). It is in common.pt, or, since
 * Megatron-Core 0.19, in the object common_state of the DCP.
 *
 * Source: save and load_common_state_dict in dist_checkpointing/serialization.py of Megatron-Core 0.19. */
#include "formats/megatron/megatron_state.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/try.h"

#define COMMON "common"

static tsr_status prefixed_name(tsr_arena *arena, tsr_str name, tsr_str *out, tsr_error *err)
{
    *out = tsr_arena_format(arena, err, COMMON "%s%.*s", name.size ? "." : "", TSR_STR_ARG(name));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status prefixed_path(tsr_arena *arena, const tsr_path_item **path, uint32_t *length, tsr_error *err)
{
    tsr_path_item *own = tsr_arena_array(arena, (size_t)*length + 1, sizeof *own, err);
    if (!own) return TSR_E_NOMEM;
    own[0] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = TSR_STR(COMMON)};
    if (*length) memcpy(own + 1, *path, *length * sizeof *own);
    *path = own;
    ++*length;
    return TSR_OK;
}

/* Puts all entries of the file below the part's name. */
static tsr_status mount(tsr_checkpoint *checkpoint, const tsr_torch_flat *flat, uint64_t before, tsr_error *err)
{
    for (uint64_t i = 0; i < flat->entry_count; i++) {
        tsr_entry *entry = &flat->entries[i];
        TSR_TRY(prefixed_name(checkpoint->arena, entry->fqn, &entry->fqn, err));
        TSR_TRY(prefixed_path(checkpoint->arena, &entry->path, &entry->path_length, err));
    }
    for (uint64_t i = 0; i < flat->mapping_count; i++) {
        tsr_mapping *mapping = &flat->mappings[i];
        TSR_TRY(prefixed_name(checkpoint->arena, mapping->fqn, &mapping->fqn, err));
        TSR_TRY(prefixed_path(checkpoint->arena, &mapping->path, &mapping->path_length, err));
        mapping->entries_before += before;
    }
    return TSR_OK;
}

static tsr_status keep_runs(tsr_checkpoint *checkpoint, tsr_megatron_state *state, const tsr_vec *runs, tsr_error *err)
{
    tsr_torch_run *own = tsr_arena_array(checkpoint->arena, runs->count, sizeof *own, err);
    if (!own) return TSR_E_NOMEM;
    if (runs->count) memcpy(own, runs->items, runs->count * sizeof *own);
    state->runs = own;
    state->run_count = runs->count;
    return TSR_OK;
}

static tsr_status read_file(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_torch_flat *flat, tsr_error *err)
{
    tsr_torch_file file;
    tsr_vec runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run));
    tsr_status status = tsr_torch_file_open(checkpoint, state->common_file, (tsr_torch_rank){0}, &file, &runs, err);
    if (status == TSR_OK) status = keep_runs(checkpoint, state, &runs, err);
    tsr_vec_free(&runs);
    TSR_TRY(status);
    TSR_TRY(tsr_torch_flatten(file.root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, flat, err));
    return tsr_torch_keep_shared(checkpoint->host, flat->entries, flat->entry_count, file.storage_count, err);
}

void tsr_megatron_take_common_state(tsr_checkpoint *checkpoint, tsr_megatron_state *state)
{
    uint64_t at = 0;
    if (tsr_store_find(checkpoint->store, TSR_STR("common.pt")) != TSR_NO_FILE || state->needs_common_file) return;
    while (at < state->count && !tsr_str_equal(state->entries[at].fqn, TSR_STR("common_state"))) at++;
    const tsr_value *value = at < state->count ? state->entries[at].value : NULL; /* a list of one, as of every object */
    if (!value || value->kind != TSR_VALUE_LIST || value->count != 1 || value->items[0]->kind != TSR_VALUE_DICT) return;
    state->common_state = value->items[0];
    state->count--;
    const size_t after = (size_t)(state->count - at);
    memmove(&state->entries[at], &state->entries[at + 1], after * sizeof *state->entries);
    memmove(&state->stored[at], &state->stored[at + 1], after * sizeof *state->stored);
    for (uint64_t i = 0; i < state->raw_count; i++) {
        if (state->entry_of[i] == at) state->entry_of[i] = TSR_MEGATRON_COMMON;
        else if (state->entry_of[i] > at) state->entry_of[i]--;
    }
}

static tsr_status read_common_state(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_torch_flat *flat,
                                    tsr_error *err)
{
    TSR_TRY(tsr_torch_flatten(state->common_state, checkpoint->host, &checkpoint->expansion, checkpoint->arena, flat, err));
    const tsr_chunk **tensors = tsr_arena_array(checkpoint->arena, (size_t)flat->entry_count, sizeof *tensors, err);
    if (!tensors) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < flat->entry_count; i++) {
        tsr_entry *entry = &flat->entries[i];
        entry->storage_id = 0; /* it counts the storages of one item */
        if (entry->kind == TSR_ENTRY_TENSOR) tensors[state->common_tensor_count++] = entry->chunks;
    }
    state->common_tensors = tensors;
    return TSR_OK;
}

/* If the file is missing or damaged, the rest of the checkpoint can still be listed. */
static tsr_status read_common(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_torch_flat *flat, tsr_error *err)
{
    tsr_error why = {0};
    tsr_str message =
        TSR_STR("'common.pt' is missing next to '.metadata': the save was interrupted, or the file was not copied");
    *flat = (tsr_torch_flat){0};
    state->common_file = tsr_store_find(checkpoint->store, TSR_STR("common.pt"));
    if (state->common_state) return read_common_state(checkpoint, state, flat, err);
    if (state->common_file == TSR_NO_FILE && !state->needs_common_file) return TSR_OK;
    if (state->common_file == TSR_NO_FILE)
        return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR("common.pt"), message, err);
    tsr_dcp_state_of(checkpoint)->file_uses[state->common_file] = TSR_DCP_OBJECTS;
    const tsr_status status = read_file(checkpoint, state, flat, &why);
    if (status == TSR_OK) return TSR_OK;
    if (status == TSR_E_NOMEM || status == TSR_E_CANCELLED || status == TSR_E_IO)
        return tsr_raise(err, status, why.byte_position, "%s", why.message);
    *flat = (tsr_torch_flat){0};
    message = tsr_arena_format(checkpoint->arena, err, "'common.pt' cannot be read: %s", why.message);
    return message.data ? tsr_checkpoint_is_incomplete(checkpoint, TSR_STR("common.pt"), message, err) : TSR_E_NOMEM;
}

/* The number of metadata files and of the data files that they name. */
static uint64_t count_files(const tsr_checkpoint *checkpoint, const tsr_megatron_state *state)
{
    const tsr_store *store = checkpoint->store;
    uint64_t count = 0;
    for (uint32_t f = 0; f < store->file_count; f++)
        count += f != state->common_file && !tsr_str_equal(store->files[f].name, TSR_STR("metadata.json")) &&
                 tsr_dcp_state_of(checkpoint)->file_uses[f] != TSR_DCP_UNUSED;
    return count;
}

tsr_status tsr_megatron_add_common(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    tsr_torch_flat flat;
    TSR_TRY(read_common(checkpoint, state, &flat, err));
    TSR_TRY(mount(checkpoint, &flat, state->count, err));
    tsr_entry *entries = tsr_arena_array(checkpoint->arena, (size_t)(state->count + flat.entry_count), sizeof *entries, err);
    tsr_part *parts = tsr_arena_array(checkpoint->arena, 2, sizeof *parts, err);
    if (!entries || !parts) return TSR_E_NOMEM;
    if (state->count) memcpy(entries, state->entries, (size_t)state->count * sizeof *entries);
    if (flat.entry_count) memcpy(entries + state->count, flat.entries, (size_t)flat.entry_count * sizeof *entries);
    parts[0] = (tsr_part){.format = TSR_FORMAT_DCP,
                          .files = count_files(checkpoint, state),
                          .entry_count = state->count,
                          .name = TSR_STR(""),
                          .own_names = true};
    parts[1] = (tsr_part){.name = TSR_STR(COMMON),
                          .format = state->common_state ? TSR_FORMAT_DCP : TSR_FORMAT_TORCH_ZIP,
                          .files = 1,
                          .first_entry = state->count,
                          .entry_count = flat.entry_count};
    catalog->entries = entries;
    catalog->entry_count = state->count + flat.entry_count;
    catalog->mappings = flat.mappings;
    catalog->mapping_count = flat.mapping_count;
    catalog->parts = parts;
    catalog->part_count = state->common_file == TSR_NO_FILE && !state->common_state ? 1 : 2;
    return TSR_OK;
}
