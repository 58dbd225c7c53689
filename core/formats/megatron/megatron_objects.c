/* Joins objects that Megatron-Core stores as shards, one per rank, layer or expert: `KEY/shard_I_N` becomes element I of the
 * list KEY. Each item is a list of one value, which is unwrapped here as dist_checkpointing does.
 *
 * Source: ShardedObject in mapping.py of Megatron-Core 0.16, _mcore_to_torch_sharded_object in strategies/torch.py. */
#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/megatron/megatron_state.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

/* Parses numbers separated by dots, up to the end of the text, and returns how many there are. -1 for any other text, or if
 * a number has a leading zero. */
static int numbers_of(tsr_str text, uint64_t out[TSR_MAX_NDIM])
{
    size_t at = 0;
    for (int count = 0; count < (int)TSR_MAX_NDIM; count++) {
        const size_t from = at;
        uint64_t number = 0;
        for (; at < text.size && text.data[at] >= '0' && text.data[at] <= '9' && at - from < 18; at++)
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
    if (at == 0 || !tsr_str_starts((tsr_str){name.data + at - 1, name.size - at + 1}, TSR_STR(before))) return false;
    const tsr_str grid = {name.data + at - 1 + sizeof before - 1, name.size - at + 1 - (sizeof before - 1)};
    for (middle = 0; middle < grid.size && grid.data[middle] != '_';) middle++;
    if (middle == grid.size) return false;
    const int rank = numbers_of((tsr_str){grid.data, middle}, offsets);
    if (rank < 0 || numbers_of((tsr_str){grid.data + middle + 1, grid.size - middle - 1}, shape) != rank) return false;
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
    return (tsr_str){name->suffix.data + at - 1, name->suffix.size - at + 1};
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

tsr_status tsr_megatron_join_objects(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    joining j = {.checkpoint = checkpoint, .state = state, .list = tsr_vec_of(allocator, sizeof(group)), .err = err};
    j.groups = tsr_map_new(allocator, 0, err);
    const tsr_status status = j.groups ? join(&j) : TSR_E_NOMEM;
    tsr_map_free(j.groups);
    tsr_vec_free(&j.list);
    return status;
}
