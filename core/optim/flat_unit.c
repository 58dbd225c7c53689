/* Slices of flat parameters, and the ids, raw names and FQNs of an optimizer's parameters. */
#include "optim/flat_unit.h"

#include <inttypes.h>
#include <stdlib.h>

#include "optim/tree.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/flat_index.h"
#include "tessera/sys/flat_ranks.h"

uint64_t tsr_flat_shard_numel(const tsr_flat_unit *unit, uint32_t world_size)
{
    return unit->numel / world_size + (unit->numel % world_size != 0);
}

void tsr_flat_shard_range(const tsr_flat_unit *unit, uint32_t world_size, uint32_t rank, uint64_t *flat_begin,
                          uint64_t *flat_end)
{
    uint64_t slice = tsr_flat_shard_numel(unit, world_size);
    *flat_begin = rank && slice > unit->numel / rank ? unit->numel : slice * rank;
    *flat_end = unit->numel - *flat_begin < slice ? unit->numel : *flat_begin + slice;
}

tsr_status tsr_flat_place_of(const tsr_flat_params *flat, const tsr_flat_unit *unit, uint32_t world_size, uint32_t rank,
                             tsr_flat_place *out, tsr_error *err)
{
    *out = unit->is_sharded ? (tsr_flat_place){world_size, rank} : (tsr_flat_place){1, 0};
    if (!unit->is_sharded || !unit->is_hybrid) return TSR_OK;
    TSR_FAIL_IF(world_size % flat->shard_size, err, TSR_E_USAGE,
                "flat params: %" PRIu32 " ranks cannot be divided into replicas of %" PRIu32 " ranks", world_size,
                flat->shard_size);
    uint32_t at = rank;
    if (world_size == flat->world_size) {
        for (at = 0; flat->shard_groups[at] != rank;) at++;
    }
    *out = (tsr_flat_place){flat->shard_size, at % flat->shard_size};
    return TSR_OK;
}

uint32_t tsr_flat_rank_with(const tsr_flat_params *flat, const tsr_flat_unit *unit, uint32_t rank, uint32_t slice)
{
    uint32_t at = 0;
    if (!unit->is_sharded) return rank;
    if (!unit->is_hybrid) return slice;
    while (flat->shard_groups[at] != rank) at++; /* every rank is in some group */
    return flat->shard_groups[at - at % flat->shard_size + slice];
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_named *)a)->name, ((const tsr_named *)b)->name);
}

tsr_status tsr_sorted_state(const tsr_value *state, tsr_arena *arena, tsr_named **out, size_t *count, tsr_error *err)
{
    *count = tsr_value_pairs(state);
    TSR_FAIL_IF(*count > TSR_MAX_STATES, err, TSR_E_LIMIT, "optim: a parameter has %zu states; at most %u are allowed",
                *count, TSR_MAX_STATES);
    *out = tsr_arena_array(arena, *count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < *count; i++) {
        (*out)[i] = (tsr_named){.key = state->items[2 * i], .value = state->items[2 * i + 1]};
        TSR_TRY(tsr_key_text((*out)[i].key, arena, &(*out)[i].name, err));
    }
    if (*count) qsort(*out, *count, sizeof **out, by_name);
    return TSR_OK;
}

tsr_state_form tsr_form_of(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_TENSOR) return TSR_FORM_OTHER;
    return value->as.tensor->ndim ? TSR_FORM_TENSOR : TSR_FORM_SCALAR_TENSOR;
}

tsr_status tsr_flat_clean_name(tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    static const char *const gone[] = {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
    char *clean = tsr_arena_array(arena, raw.size + 1, 1, err);
    if (!clean) return TSR_E_NOMEM;
    size_t size = 0;
    for (size_t at = 0; at < raw.size;) {
        size_t skip = 0;
        for (size_t i = 0; i < 2; i++) {
            tsr_str prefix = tsr_str_from(gone[i]);
            if (tsr_str_starts((tsr_str){raw.data + at, raw.size - at}, prefix)) skip = prefix.size;
        }
        if (!skip) clean[size++] = raw.data[at++];
        at += skip;
    }
    *out = (tsr_str){clean, size};
    return TSR_OK;
}

/* Finds flat parameters by raw name, and originals by FQN. */
typedef struct unit_index {
    tsr_map *flat_names; /* raw name of a flat parameter → unit */
    tsr_flat_index *originals;
} unit_index;

static tsr_status index_units(unit_index *x, const tsr_flat_params *flat, const tsr_allocator *allocator, tsr_error *err)
{
    for (uint32_t u = 0; u < flat->unit_count; u++) {
        if (flat->units[u].raw_name.size) TSR_TRY(tsr_map_put(x->flat_names, flat->units[u].raw_name, u, NULL, NULL, err));
    }
    return tsr_flat_index_new(flat, allocator, &x->originals, err);
}

static tsr_status add_fqn(tsr_flat_keys *keys, tsr_str fqn, uint32_t id, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(keys->by_fqn, fqn, id, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "flat params: the param groups list '%.*s' twice", TSR_STR_ARG(fqn));
    return TSR_OK;
}

static tsr_status add_name(tsr_flat_keys *keys, const unit_index *x, const tsr_flat_params *flat, tsr_str raw,
                           tsr_arena *arena, tsr_error *err)
{
    uint32_t id = keys->count++, unit = tsr_map_get(x->flat_names, raw, UINT32_MAX);
    tsr_flat_key *key = &keys->keys[id];
    *key = (tsr_flat_key){raw, {NULL, 0}, NULL, TSR_NO_PARAM};
    TSR_TRY(tsr_map_put(keys->by_raw, raw, id, NULL, NULL, err));
    if (unit != UINT32_MAX) {
        key->unit = &flat->units[unit];
        for (uint32_t p = 0; p < key->unit->param_count; p++) TSR_TRY(add_fqn(keys, key->unit->params[p].fqn, id, err));
        return TSR_OK;
    }
    TSR_TRY(tsr_flat_clean_name(raw, arena, &key->fqn, err));
    tsr_flat_found found = tsr_flat_index_find(x->originals, key->fqn);
    if (found.unit && flat->use_orig_params) {
        key->unit = found.unit;
        key->param = (uint32_t)(found.param - found.unit->params);
    }
    return add_fqn(keys, key->fqn, id, err);
}

static tsr_status fill(tsr_flat_keys *keys, unit_index *x, const tsr_flat_params *flat, tsr_arena *arena, tsr_error *err)
{
    size_t count = 0;
    for (size_t g = 0; g < flat->group_count; g++) count += flat->groups[g].count;
    keys->keys = tsr_arena_array(arena, count, sizeof *keys->keys, err);
    if (!keys->keys || !keys->by_raw || !keys->by_fqn || !x->flat_names) return TSR_E_NOMEM;
    TSR_TRY(index_units(x, flat, tsr_arena_allocator(arena), err));
    for (size_t g = 0; g < flat->group_count; g++) {
        for (size_t i = 0; i < flat->groups[g].count; i++)
            TSR_TRY(add_name(keys, x, flat, flat->groups[g].names[i], arena, err));
    }
    return TSR_OK;
}

tsr_status tsr_flat_keys_open(const tsr_flat_params *flat, const tsr_host *host, tsr_arena *arena, tsr_flat_keys *out,
                              tsr_error *err)
{
    const tsr_allocator *a = host->allocator;
    unit_index x = {tsr_map_new(a, 0, err), NULL};
    *out = (tsr_flat_keys){NULL, 0, tsr_map_new(a, 0, err), tsr_map_new(a, 0, err)};
    tsr_status status = fill(out, &x, flat, arena, err);
    tsr_flat_index_free(x.originals);
    tsr_map_free(x.flat_names);
    return status;
}

void tsr_flat_keys_close(tsr_flat_keys *keys)
{
    tsr_map_free(keys->by_fqn);
    tsr_map_free(keys->by_raw);
}

uint32_t tsr_flat_keys_find(const tsr_flat_keys *keys, const tsr_value *key)
{
    if (key->kind == TSR_VALUE_STR) return tsr_map_get(keys->by_raw, key->text, UINT32_MAX);
    if (key->kind == TSR_VALUE_INT && key->as.integer >= 0 && key->as.integer < (int64_t)keys->count)
        return (uint32_t)key->as.integer;
    return UINT32_MAX;
}
