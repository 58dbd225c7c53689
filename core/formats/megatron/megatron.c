/* Recognizes and opens the format, and locates bytes: in items of the DCP, in parts of items, and in common.pt. Objects are read
 * from their own items. */
#include "formats/megatron/megatron.h"

#include "base/cursor.h"
#include "codec/json.h"
#include "formats/common/expansion.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/dcp/dcp_state.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_union.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

/* Where a box of a tensor is inside the item that stores it. */
typedef struct tsr_megatron_piece {
    const tsr_entry *entry; /* the raw entry, as in the metadata: fragments and their flat elements */
    const tsr_chunk *chunk;
    uint64_t first; /* the stored element of `chunk` at which the box begins */
} tsr_megatron_piece;

#define TSR_MEGATRON_COMMON UINT64_MAX /* in entry_of: the raw entry is not an entry, but the content of the part "common" */

typedef struct tsr_megatron_state {
    const tsr_entry *raw; /* the entries as in the metadata */
    uint64_t raw_count;
    uint64_t *entry_of;          /* index of a raw entry → index of its entry */
    tsr_entry *entries;          /* the DCP's entries as the catalog has them */
    tsr_megatron_stored *stored; /* one per entry */
    uint64_t count;
    tsr_name_index *index;            /* of entries */
    const tsr_chunk *chunks;          /* the boxes of all tensors that were stored as fragments, in one array */
    const tsr_megatron_piece *pieces; /* one per chunk in `chunks` */
    uint64_t chunk_count;
    bool needs_common_file;        /* metadata.json says so, or is missing */
    const tsr_value *common_state; /* the object of this name, which newer versions write instead of common.pt; or NULL */
    const tsr_chunk *const *common_tensors; /* of the tensors in common_state */
    uint64_t common_tensor_count;
    uint32_t common_file;      /* TSR_NO_FILE if it does not exist */
    const tsr_torch_run *runs; /* of common.pt */
    size_t run_count;
} tsr_megatron_state;

static inline tsr_megatron_state *tsr_megatron_state_of(const tsr_checkpoint *checkpoint)
{
    return tsr_dcp_state_of(checkpoint)->form;
}

/* ---- objects ---- */

/* Joins objects that Megatron-Core stores as shards, one per rank, layer or expert: `KEY/shard_I_N` becomes element I of the
 * list KEY. Each item is a list of one value, which is unwrapped here as dist_checkpointing does.
 *
 * Source: ShardedObject in mapping.py of Megatron-Core 0.16, _mcore_to_torch_sharded_object in strategies/torch.py. */

/* Parses numbers separated by dots, up to the end of the text, and returns how many there are. -1 for any other text, or if
 * a number has a leading zero. */
static int numbers_of(tsr_str text, uint64_t out[TSR_MAX_NDIM])
{
    size_t at = 0;
    for (int count = 0; count < (int)TSR_MAX_NDIM; count++) {
        const size_t from = at;
        uint64_t number = 0;
        for (; at < text.size && tsr_is_digit(text.data[at]) && at - from < 18; at++)
            number = number * 10 + (uint64_t)(text.data[at] - '0');
        if (at == from || (text.data[from] == '0' && at - from > 1)) return -1;
        out[count] = number;
        if (at == text.size) return count + 1;
        if (text.data[at++] != '.') return -1;
    }
    return -1;
}

bool tsr_shard_name_of(tsr_str name, tsr_shard_name *out)
{
    static const char before[] = "/shard_";
    uint64_t offsets[TSR_MAX_NDIM], shape[TSR_MAX_NDIM];
    size_t at = name.size, middle;
    while (at > 0 && name.data[at - 1] != '/') at--;
    if (at == 0 || !tsr_str_starts(tsr_str_after(name, at - 1), TSR_STR(before))) return false;
    const tsr_str grid = {name.data + at - 1 + sizeof before - 1, name.size - at + 1 - (sizeof before - 1)};
    for (middle = 0; middle < grid.size && grid.data[middle] != '_';) middle++;
    if (middle == grid.size) return false;
    const int rank = numbers_of((tsr_str){grid.data, middle}, offsets);
    if (rank < 0 || numbers_of(tsr_str_after(grid, middle + 1), shape) != rank) return false;
    *out = (tsr_shard_name){.key = {name.data, at - 1}, .suffix = {name.data + at - 1, name.size - at + 1}, .count = 1};
    for (int d = 0; d < rank; d++) {
        if (offsets[d] >= shape[d] || !tsr_mul_u64(out->count, shape[d], &out->count)) return false;
        out->index = out->index * shape[d] + offsets[d]; /* cannot overflow: it is below the count, which fits */
    }
    return true;
}

/* All shards of one key, which must have the same grid. */
typedef struct group {
    tsr_shard_name name; /* of the first shard */
    tsr_str grid;        /* "_N.M" */
    uint64_t found;
    const tsr_entry **shards; /* NULL: the shards are not joined */
    uint64_t entry;
} group;

typedef struct joining {
    tsr_checkpoint *checkpoint;
    tsr_megatron_state *state;
    tsr_map *groups; /* key → group */
    tsr_vec list;    /* of group */
    tsr_error *err;
} joining;

static tsr_str grid_of(const tsr_shard_name *name)
{
    size_t at = name->suffix.size;
    while (name->suffix.data[at - 1] != '_') at--;
    return tsr_str_after(name->suffix, at - 1);
}

static group *group_at(const joining *j, uint32_t number)
{
    return (group *)j->list.items + number;
}

static bool is_shard(const tsr_entry *entry, tsr_shard_name *name)
{
    return entry->kind == TSR_ENTRY_OBJECT && tsr_shard_name_of(entry->fqn, name);
}

static tsr_status count_shards(joining *j)
{
    for (uint64_t i = 0; i < j->state->raw_count; i++) {
        tsr_shard_name name;
        uint32_t *number;
        bool fresh;
        if (!is_shard(&j->state->raw[i], &name)) continue;
        TSR_TRY(tsr_map_put(j->groups, name.key, (uint32_t)j->list.count, &number, &fresh, j->err));
        group *g = fresh ? tsr_vec_push(&j->list, j->err) : group_at(j, *number);
        if (!g) return TSR_E_NOMEM;
        if (fresh) *g = (group){.name = name, .grid = grid_of(&name)};
        /* One of another grid spoils the count. */
        g->found += tsr_str_equal(g->grid, grid_of(&name)) ? 1 : j->state->raw_count;
    }
    return TSR_OK;
}

static tsr_status report_partial(const joining *j, const group *g)
{
    const tsr_place place = {j->checkpoint->store->files[j->checkpoint->files[0]].name, TSR_NO_POSITION, g->name.key};
    const bool one_grid = g->found < j->state->raw_count;
    return tsr_finding_add(j->checkpoint->findings, "megatron/shards", place, j->err,
                           "%s the %llu shards of '%.*s' were found; they are listed one by one",
                           one_grid ? "not all of" : "shards that are not among", (unsigned long long)g->name.count,
                           TSR_STR_ARG(g->name.key));
}

/* Allocates the array of shards for each complete set. If a tensor has the same name as the key, the shards are not
 * joined. */
static tsr_status open_groups(joining *j)
{
    for (uint64_t i = 0; i < j->state->raw_count; i++) {
        const uint32_t number = tsr_map_get(j->groups, j->state->raw[i].fqn, UINT32_MAX);
        if (number != UINT32_MAX) group_at(j, number)->name.count = 0;
    }
    for (uint32_t n = 0; n < j->list.count; n++) {
        group *g = group_at(j, n);
        if (g->name.count == 0) continue;
        if (g->found != g->name.count) {
            TSR_TRY(report_partial(j, g));
            continue;
        }
        g->shards = tsr_arena_array(j->checkpoint->arena, (size_t)g->found, sizeof *g->shards, j->err);
        if (!g->shards) return TSR_E_NOMEM;
        g->entry = UINT64_MAX;
    }
    return TSR_OK;
}

/* Assigns an entry to a raw entry: its own, or the one that it shares with the other shards. */
static void place_entry(joining *j, uint64_t i)
{
    tsr_megatron_state *s = j->state;
    tsr_shard_name name;
    group *g = is_shard(&s->raw[i], &name) ? group_at(j, tsr_map_get(j->groups, name.key, 0)) : NULL;
    if (g && g->shards) {
        g->shards[name.index] = &s->raw[i];
        if (g->entry == UINT64_MAX) g->entry = s->count++;
        s->entry_of[i] = g->entry;
        return;
    }
    s->entry_of[i] = s->count;
    s->stored[s->count].in_mcore_data =
        s->raw[i].kind == TSR_ENTRY_TENSOR && tsr_dcp_state_of(j->checkpoint)->has_mcore_data;
    s->entries[s->count++] = s->raw[i];
}

/* The value in the list of one. Any other value is left as it is. */
static const tsr_value *unwrapped(const tsr_value *value)
{
    return value->kind == TSR_VALUE_LIST && value->count == 1 && value->expanded != TSR_VALUE_ENDLESS ? value->items[0]
                                                                                                      : value;
}

static tsr_status join_values(joining *j, const group *g, const tsr_value **out)
{
    tsr_arena *arena = j->checkpoint->arena;
    const tsr_value **items = tsr_arena_array(arena, (size_t)g->found, sizeof *items, j->err);
    tsr_value *list;
    uint64_t expanded = 0;
    if (!items) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < g->found; i++) {
        const tsr_value *value = g->shards[i]->value;
        if (!value) return TSR_OK; /* the values were not read */
        items[i] = unwrapped(value);
        if (!tsr_add_u64(expanded, value->expanded, &expanded)) expanded = TSR_VALUE_ENDLESS;
    }
    list = tsr_value_items(arena, TSR_VALUE_LIST, items, (size_t)g->found, j->err);
    if (!list) return TSR_E_NOMEM;
    list->expanded = expanded;
    for (uint64_t i = 0; i < g->found; i++) list->foreign |= g->shards[i]->value->foreign;
    *out = list;
    return TSR_OK;
}

static tsr_status join_group(joining *j, const group *g)
{
    tsr_entry *entry = &j->state->entries[g->entry];
    tsr_chunk *chunks = tsr_arena_array(j->checkpoint->arena, (size_t)g->found, sizeof *chunks, j->err);
    if (!chunks) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < g->found; i++) chunks[i] = g->shards[i]->chunks[0];
    *entry = (tsr_entry){
        .fqn = g->name.key, .kind = TSR_ENTRY_OBJECT, .type = TSR_STR("list"), .chunks = chunks, .chunk_count = g->found};
    j->state->stored[g->entry] = (tsr_megatron_stored){.shards = g->shards, .shard_count = g->found};
    return join_values(j, g, &entry->value);
}

static tsr_status join(joining *j)
{
    tsr_megatron_state *s = j->state;
    TSR_TRY(count_shards(j));
    TSR_TRY(open_groups(j));
    s->entry_of = tsr_arena_array(j->checkpoint->arena, (size_t)s->raw_count, sizeof *s->entry_of, j->err);
    s->entries = tsr_arena_array(j->checkpoint->arena, (size_t)s->raw_count, sizeof *s->entries, j->err);
    s->stored = tsr_arena_array(j->checkpoint->arena, (size_t)s->raw_count, sizeof *s->stored, j->err);
    if (!s->entry_of || !s->entries || !s->stored) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < s->raw_count; i++) place_entry(j, i);
    for (uint32_t n = 0; n < j->list.count; n++)
        if (group_at(j, n)->shards) TSR_TRY(join_group(j, group_at(j, n)));
    return TSR_OK;
}

/* Fills entry_of, entries and stored. Tensors are taken as they are, and the shards of an object are joined. An incomplete
 * set of shards is not joined and gets a finding. */
static tsr_status megatron_join_objects(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    joining j = {.checkpoint = checkpoint, .state = state, .list = tsr_vec_of(allocator, sizeof(group)), .err = err};
    j.groups = tsr_map_new(allocator, 0, err);
    const tsr_status status = j.groups ? join(&j) : TSR_E_NOMEM;
    tsr_map_free(j.groups);
    tsr_vec_free(&j.list);
    return status;
}

/* ---- common ---- */

/* The part "common": everything that is not sharded (arguments, schedulers, the iteration). It is in common.pt, or, since
 * Megatron-Core 0.19, in the object common_state of the DCP.
 *
 * Source: save and load_common_state_dict in dist_checkpointing/serialization.py of Megatron-Core 0.19. */

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

/* Sets common_state, and takes its entry out of `entries`. Does nothing if there is a common.pt, which Megatron then reads, or
 * if the value is not known to be a dict. */
static void megatron_take_common_state(tsr_checkpoint *checkpoint, tsr_megatron_state *state)
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
    if (status == TSR_E_NOMEM || status == TSR_E_CANCELLED || status == TSR_E_IO) return tsr_raise_again(err, status, &why);
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

/* Fills the catalog with the DCP's entries, the entries of common.pt or common_state below "common.", and the table of parts. */
static tsr_status megatron_add_common(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
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

/* ---- fragments ---- */

/* Finds the boxes of tensors that Megatron-Core up to 0.14 stored as flat ranges of fragments:
 *
 *   shape [4, 6], fragments [2, 1]: stored as [2, 1, 12]      chunk (1, 0, 4) of length 5:
 *     . . . . . .                                              . . . . . .
 *     . . . . . .   fragment (0, 0)                            . . . . . .
 *     . . . . . .                                              . . . . x x    two boxes
 *     . . . . . .   fragment (1, 0)                            x x x . . .
 *
 * Source: sharded_tensor_to_torch_sharded_tensor of Megatron-Core 0.14, strategies/torch.py and resharding.py. */

enum { MOST_BOXES = 2 * TSR_MAX_NDIM - 1 };

typedef struct undoing {
    tsr_checkpoint *checkpoint;
    const tsr_entry *raw;
    const tsr_dcp_original *original;
    uint64_t fragment[TSR_MAX_NDIM]; /* the shape of a fragment */
    tsr_vec *chunks;                 /* the boxes of all tensors */
    tsr_vec *pieces;
    tsr_error *err;
} undoing;

static tsr_status refuse(const undoing *u, const char *what)
{
    return tsr_fail(u->err, TSR_E_FORMAT, "megatron: mcore_data does not match '%.*s': %s", TSR_STR_ARG(u->raw->fqn), what);
}

static tsr_status measure_fragment(undoing *u)
{
    const tsr_dcp_original *original = u->original;
    uint64_t elements;
    if (u->raw->kind != TSR_ENTRY_TENSOR) return refuse(u, "it is not a tensor");
    if (u->raw->ndim != original->ndim + 1) return refuse(u, "its size does not have one number more than the shape");
    if (tsr_dtype_size(u->raw->dtype) == 0) return refuse(u, "its elements are not byte-aligned");
    for (uint32_t d = 0; d < original->ndim; d++) {
        const uint64_t count = u->raw->shape[d];
        if (count == 0 || original->shape[d] % count)
            return refuse(u, "the shape cannot be divided into that many fragments");
        u->fragment[d] = original->shape[d] / count;
    }
    if (!tsr_box_volume((tsr_box){original->ndim, NULL, u->fragment}, &elements) ||
        elements != u->raw->shape[original->ndim])
        return refuse(u, "a fragment has a different number of elements");
    return TSR_OK;
}

/* Adds one box of the fragment at `at`. */
static tsr_status add_box(undoing *u, const tsr_chunk *from, const uint64_t *at, const uint64_t *offsets,
                          const uint64_t *sizes, uint64_t first)
{
    const uint32_t ndim = u->original->ndim;
    uint64_t *numbers = tsr_arena_array(u->checkpoint->arena, 2 * (size_t)ndim, sizeof *numbers, u->err);
    tsr_chunk *chunk = tsr_vec_push(u->chunks, u->err);
    tsr_megatron_piece *piece = tsr_vec_push(u->pieces, u->err);
    if (!numbers || !chunk || !piece) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < ndim; d++) {
        numbers[d] = at[d] * u->fragment[d] + offsets[d];
        numbers[ndim + d] = sizes[d];
    }
    *chunk = *from;
    chunk->offsets = numbers;
    chunk->sizes = numbers + ndim;
    *piece = (tsr_megatron_piece){u->raw, from, first};
    return TSR_OK;
}

static tsr_status add_range(undoing *u, const tsr_chunk *from, const uint64_t *at, uint64_t first)
{
    uint64_t offsets[MOST_BOXES * TSR_MAX_NDIM], sizes[MOST_BOXES * TSR_MAX_NDIM];
    const uint32_t ndim = u->original->ndim;
    const tsr_span range = {from->offsets[ndim], from->sizes[ndim]};
    const uint32_t count = tsr_range_boxes(ndim, u->fragment, range, offsets, sizes);
    const uint64_t bytes = count * (sizeof(tsr_chunk) + sizeof(tsr_megatron_piece) + 2 * ndim * sizeof *offsets);
    TSR_TRY(tsr_expansion_take(&u->checkpoint->expansion, bytes, u->checkpoint->host, u->err));
    for (uint32_t b = 0; b < count; b++) {
        uint64_t elements = 1;
        TSR_TRY(add_box(u, from, at, offsets + b * ndim, sizes + b * ndim, first));
        tsr_box_volume((tsr_box){ndim, NULL, sizes + b * ndim}, &elements); /* fits: the box is inside the fragment */
        first += elements;
    }
    return TSR_OK;
}

/* Moves to the next fragment that the chunk covers, in row-major order. Returns false after the last one. */
static bool next_fragment(uint32_t ndim, const tsr_chunk *chunk, uint64_t *at)
{
    for (uint32_t d = ndim; d-- > 0; at[d] = chunk->offsets[d])
        if (++at[d] < chunk->offsets[d] + chunk->sizes[d]) return true;
    return false;
}

static tsr_status add_chunk(undoing *u, const tsr_chunk *from)
{
    const uint32_t ndim = u->original->ndim;
    uint64_t at[TSR_MAX_NDIM], first = 0, elements;
    if (!tsr_box_contains((tsr_box){ndim + 1, NULL, u->raw->shape}, (tsr_box){ndim + 1, from->offsets, from->sizes}))
        return refuse(u, "a chunk reaches beyond the tensor");
    if (!tsr_box_volume((tsr_box){ndim + 1, NULL, from->sizes}, &elements)) return refuse(u, "a chunk is too large");
    if (elements == 0) return TSR_OK; /* this rank holds nothing of the tensor */
    if (ndim) memcpy(at, from->offsets, ndim * sizeof *at);
    do {
        TSR_TRY(add_range(u, from, at, first));
        first += from->sizes[ndim];
    } while (next_fragment(ndim, from, at));
    return TSR_OK;
}

static tsr_status undo_one(undoing *u, tsr_entry *entry, tsr_megatron_stored *stored)
{
    TSR_TRY(measure_fragment(u));
    const uint64_t before = u->chunks->count;
    for (uint64_t c = 0; c < u->raw->chunk_count; c++) TSR_TRY(add_chunk(u, &u->raw->chunks[c]));
    entry->chunk_count = u->chunks->count - before;
    for (uint64_t c = 0; c < u->raw->replica_count; c++) TSR_TRY(add_chunk(u, &u->raw->replicas[c]));
    entry->replica_count = u->chunks->count - before - entry->chunk_count;
    entry->shape = u->original->shape;
    entry->ndim = u->original->ndim;
    entry->chunks = NULL; /* set by keep_chunks once the chunks of all tensors are known */
    stored->fragments = u->raw->shape;
    return TSR_OK;
}

/* Puts the chunks of all tensors into one array, so that a chunk's index leads to its piece. */
static tsr_status keep_chunks(tsr_checkpoint *checkpoint, tsr_megatron_state *state, const tsr_vec *chunks,
                              const tsr_vec *pieces, tsr_error *err)
{
    const size_t count = chunks->count;
    tsr_chunk *own = tsr_arena_array(checkpoint->arena, count, sizeof *own, err);
    tsr_megatron_piece *piece = tsr_arena_array(checkpoint->arena, count, sizeof *piece, err);
    if (!own || !piece) return TSR_E_NOMEM;
    if (count) memcpy(own, chunks->items, count * sizeof *own);
    if (count) memcpy(piece, pieces->items, count * sizeof *piece);
    state->chunks = own;
    state->pieces = piece;
    state->chunk_count = count;
    for (uint64_t e = 0; e < state->count; e++) {
        tsr_entry *entry = &state->entries[e];
        if (!state->stored[e].fragments) continue;
        entry->chunks = own;
        entry->replicas = entry->replica_count ? own + entry->chunk_count : NULL;
        own += entry->chunk_count + entry->replica_count;
    }
    return TSR_OK;
}

static tsr_status undo_all(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_vec *chunks, tsr_vec *pieces,
                           tsr_error *err)
{
    const tsr_dcp_state *dcp = tsr_dcp_state_of(checkpoint);
    const tsr_dcp_original **of = tsr_arena_array(checkpoint->arena, (size_t)state->count, sizeof *of, err);
    if (!of) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < dcp->original_count; i++) of[state->entry_of[dcp->originals[i].entry]] = &dcp->originals[i];
    for (uint64_t e = 0; e < state->count; e++) {
        undoing u = {.checkpoint = checkpoint, .original = of[e], .chunks = chunks, .pieces = pieces, .err = err};
        if (!of[e]) continue;
        u.raw = &state->raw[of[e]->entry];
        TSR_TRY(undo_one(&u, &state->entries[e], &state->stored[e]));
    }
    return keep_chunks(checkpoint, state, chunks, pieces, err);
}

/* Restores the original shapes of the tensors in mcore_data, and fills chunks and pieces. */
static tsr_status megatron_undo_fragments(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    tsr_vec chunks = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_chunk));
    tsr_vec pieces = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_megatron_piece));
    const tsr_status status = undo_all(checkpoint, state, &chunks, &pieces, err);
    tsr_vec_free(&chunks);
    tsr_vec_free(&pieces);
    return status;
}

/* The piece for a chunk of the catalog, or NULL if the chunk has none. */
static const tsr_megatron_piece *megatron_piece_of(const tsr_megatron_state *state, const tsr_chunk *chunk)
{
    const uint64_t at = ((uintptr_t)chunk - (uintptr_t)state->chunks) / sizeof *chunk;
    return state->chunk_count && at < state->chunk_count ? &state->pieces[at] : NULL;
}

/* Derives the view of a chunk that has a piece. *view in: the view of the piece's whole chunk. New strides are put in
 * `scratch`. */
static tsr_status megatron_piece_view(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                      tsr_arena *scratch, tsr_view *view, tsr_error *err)
{
    const tsr_megatron_piece *piece = megatron_piece_of(tsr_megatron_state_of(checkpoint), chunk);
    const uint32_t last = piece->entry->ndim - 1;
    const uint64_t step = view->strides ? view->strides[last] : 1;
    for (uint32_t d = 0; d < last && view->strides; d++)
        TSR_FAIL_AT(piece->chunk->sizes[d] > 1, err, TSR_E_UNSUPPORTED, chunk->byte_offset,
                    "megatron: several fragments of '%.*s' are in one item with strides", TSR_STR_ARG(entry->fqn));
    view->byte_offset += piece->first * step * tsr_dtype_size(entry->dtype);
    view->strides = NULL;
    if (step == 1) return TSR_OK;
    uint64_t *strides = tsr_arena_array(scratch, last, sizeof *strides, err), next = step;
    if (!strides) return TSR_E_NOMEM;
    for (uint32_t d = last; d-- > 0; next *= chunk->sizes[d]) strides[d] = next;
    view->strides = strides;
    return TSR_OK;
}

/* ---- opening ---- */

/* What metadata.json states. Other programs write files of this name, too, so it is not an error if a document states
 * nothing. */
typedef struct stated {
    bool torch_dist;     /* sharded_backend */
    bool is_document;    /* it is a JSON document, or too large for one of Megatron's */
    bool common_backend; /* there is one: what is not sharded is in common.pt. Megatron-Core 0.19 and newer states none */
} stated;

static tsr_status read_stated(tsr_checkpoint *checkpoint, uint32_t file, stated *out, tsr_error *err)
{
    const tsr_store_file *f = &checkpoint->store->files[file];
    enum { LARGEST = 1 << 16 };
    tsr_bytes text;
    cJSON *root;
    tsr_error ignored = {0};
    *out = (stated){.is_document = f->size > LARGEST};
    if (f->size == 0 || f->size > LARGEST) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    const tsr_status status = tsr_json_parse(text.data, checkpoint->host, &root, &ignored);
    tsr_bytes_free(&text);
    if (status == TSR_E_NOMEM) return tsr_fail(err, status, "%s", ignored.message);
    if (status != TSR_OK) return TSR_OK;
    out->is_document = true;
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

/* Megatron writes common.pt first. A directory without anything else is what is left if the job dies then. */
static tsr_status open_begun(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_open_without_data(
        checkpoint,
        TSR_STR("'.metadata' and all data files are missing next to 'common.pt', which Megatron writes first: the save was "
                "interrupted, or the files were not copied; if another program wrote 'common.pt', name the file itself"),
        err);
}

static tsr_status require_marker(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    const uint32_t json = tsr_store_find(checkpoint->store, TSR_STR("metadata.json"));
    stated says = {.common_backend = true};
    if (json != TSR_NO_FILE) TSR_TRY(read_stated(checkpoint, json, &says, err));
    state->needs_common_file = says.common_backend;
    if (json != TSR_NO_FILE && says.is_document) return TSR_OK;
    return tsr_checkpoint_is_incomplete(
        checkpoint, TSR_STR("metadata.json"),
        json == TSR_NO_FILE
            ? TSR_STR(
                  "'metadata.json', which Megatron writes last, is missing: the save was interrupted, or the file was not copied")
            : TSR_STR(
                  "'metadata.json', which Megatron writes last and reads first, is not a JSON document: the save was interrupted, or "
                  "the file is damaged"),
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
    TSR_TRY(megatron_join_objects(checkpoint, state, err));
    TSR_TRY(megatron_undo_fragments(checkpoint, state, err));
    megatron_take_common_state(checkpoint, state);
    TSR_TRY(tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(state->entries, state->count), &state->index,
                               NULL, err));
    return megatron_add_common(checkpoint, state, err);
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
    const tsr_megatron_piece *piece = megatron_piece_of(tsr_megatron_state_of(checkpoint), chunk);
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
    return item.chunk == chunk ? TSR_OK : megatron_piece_view(checkpoint, entry, chunk, scratch, out, err);
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
    return item.chunk == chunk ? TSR_OK : megatron_piece_view(checkpoint, entry, chunk, scratch, &out->view, err);
}

const tsr_megatron_stored *tsr_megatron_stored_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    if (checkpoint->reader != &tsr_reader_megatron) return NULL;
    const tsr_megatron_state *state = tsr_megatron_state_of(checkpoint);
    const uint64_t at = tsr_name_index_find(state->index, tsr_checkpoint_stored_entry(checkpoint, entry)->fqn);
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
    return tsr_torch_run_extents(checkpoint, state->runs, state->run_count, each, ctx, err);
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

const tsr_reader tsr_reader_megatron_begun = {
    .format = TSR_FORMAT_MEGATRON_DIST, .is_rare = true, .is_interrupted = true, .open = open_begun};
static const char *const first_written[] = {"common.pt", NULL, NULL};
const tsr_directory tsr_directory_megatron_begun = {
    .reader = &tsr_reader_megatron_begun, .requires = first_written, .recognizes = tsr_has_one_file};
