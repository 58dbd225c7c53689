/* Joins the raw optimizer states of all FSDP1 ranks into the full state keyed by FQN, as one of the ranks gets it
 * (`_optim_state_dict` without shard_state, PyTorch 2.13).
 *
 * In flat mode, an id is a flat parameter, and every rank holds an equal slice of its state. With use_orig_params, an id is
 * an original parameter, and a rank's state is the part that is in the rank's slice, or nothing. State that is not sharded
 * is never exchanged: each rank uses its own, which may differ from that of other ranks. */
#include <inttypes.h>
#include <stdlib.h>

#include "optim/pieces.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

/* ---- unit ---- */

/* Slices of flat parameters, and the ids, raw names and FQNs of an optimizer's parameters. */

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

/* The rank that has slice `slice` of a unit, in the document's world: of the replica that `rank` is in. */
static uint32_t rank_with(const tsr_flat_params *flat, const tsr_flat_unit *unit, uint32_t rank, uint32_t slice)
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

/* The pairs of a parameter's state, sorted by name. Fails with TSR_E_LIMIT beyond TSR_MAX_STATES. */
static tsr_status sorted_state(const tsr_value *state, tsr_arena *arena, tsr_named **out, size_t *count, tsr_error *err)
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
            if (tsr_str_starts(tsr_str_after(raw, at), prefix)) skip = prefix.size;
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

static int by_fqn(const void *a, const void *b);

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

/* ---- unshard ---- */

typedef struct unsharding {
    const tsr_flat_params *flat;
    const tsr_fsdp_context *context;
    const tsr_host *host;
    tsr_arena *arena;
    uint32_t rank; /* the rank that gets the state */
    tsr_flat_keys keys;
    tsr_optim_parts *parts;   /* indexed by rank */
    const tsr_value **states; /* states[rank × ids + id] is the state of a parameter on a rank, or NULL */
    tsr_tree state;           /* the resulting state */
    tsr_tree carried;         /* keys of user-defined state; the values are not used */
    uint32_t *order;          /* ids that have state, in the order of the result */
    uint32_t order_count;
} unsharding;

static const tsr_value *state_on(const unsharding *u, uint32_t rank, uint32_t id)
{
    return u->states[(size_t)rank * u->keys.count + id];
}

/* The number of slices of a unit. */
static uint32_t slices_of(const unsharding *u, const tsr_flat_unit *unit)
{
    return !unit->is_sharded ? 1 : unit->is_hybrid ? u->flat->shard_size : u->flat->world_size;
}

/* The name of an id in messages. */
static tsr_str id_name(const unsharding *u, uint32_t id)
{
    return u->keys.keys[id].raw;
}

/* ---- reading the ranks ---- */

static tsr_status read_rank(unsharding *u, const tsr_value *optim, uint32_t rank, tsr_error *err)
{
    tsr_status status = tsr_optim_take_apart(optim, true, &u->parts[rank], err);
    if (status != TSR_OK) {
        tsr_error_context(err, "rank %" PRIu32, rank);
        return status;
    }
    const tsr_value *state = u->parts[rank].state;
    for (size_t i = 0; i < state->count; i += 2) {
        uint32_t id = tsr_flat_keys_find(&u->keys, state->items[i]);
        if (id != UINT32_MAX) {
            status = tsr_check_state(state->items[i], state->items[i + 1], err);
            if (status != TSR_OK) {
                tsr_error_context(err, "rank %" PRIu32, rank);
                return status;
            }
            u->states[(size_t)rank * u->keys.count + id] = state->items[i + 1];
        } else if (rank == u->rank) {
            TSR_TRY(tsr_tree_put_key(&u->carried, state->items[i], state->items[i + 1], err));
        }
    }
    return TSR_OK;
}

static int by_fqn(const void *a, const void *b)
{
    const tsr_flat_key *const *x = a, *const *y = b;
    return tsr_str_compare((*x)->fqn, (*y)->fqn);
}

/* Orders the ids. In flat mode, takes those of rank 0, which all ranks must have. With original parameters, takes those of
 * any rank, sorted by FQN. */
static tsr_status order_ids(unsharding *u, tsr_error *err)
{
    uint32_t ids = u->keys.count, world = u->flat->world_size;
    const tsr_flat_key **found = tsr_arena_array(u->arena, ids, sizeof *found, err);
    u->order = tsr_arena_array(u->arena, ids, sizeof *u->order, err);
    if (!found || !u->order) return TSR_E_NOMEM;
    for (uint32_t id = 0; id < ids; id++) {
        bool any = state_on(u, 0, id) != NULL;
        const bool merge = u->flat->use_orig_params || (u->context->keep_own && !u->keys.keys[id].unit);
        for (uint32_t rank = 1; rank < world; rank++) {
            bool here = state_on(u, rank, id) != NULL;
            TSR_FAIL_IF(!merge && any && !here, err, TSR_E_FORMAT,
                        "optim: rank %" PRIu32 " has no state for '%.*s', which rank 0 has", rank,
                        TSR_STR_ARG(id_name(u, id)));
            any = any || (here && merge);
        }
        if (any) found[u->order_count++] = &u->keys.keys[id];
    }
    if (u->flat->use_orig_params && u->order_count) qsort(found, u->order_count, sizeof *found, by_fqn);
    for (uint32_t i = 0; i < u->order_count; i++) u->order[i] = (uint32_t)(found[i] - u->keys.keys);
    return TSR_OK;
}

/* ---- tensors ---- */

/* The elements that a rank has of one state of a parameter. */
typedef struct held_state {
    uint32_t rank;
    tsr_str name; /* name of the state, such as exp_avg */
    tsr_dtype dtype;
    uint64_t numel;
} held_state;

/* Finds the non-0-d tensor that a rank has for an id. */
static tsr_status slice_of(const unsharding *u, uint32_t id, const held_state *want, const tsr_entry **out, tsr_error *err)
{
    const uint32_t rank = want->rank;
    const tsr_str name = want->name;
    const tsr_value *state = state_on(u, rank, id), *value = state ? tsr_value_get(state, name) : NULL;
    tsr_str raw = id_name(u, id);
    TSR_FAIL_IF(!value || tsr_form_of(value) != TSR_FORM_TENSOR, err, TSR_E_FORMAT,
                "optim: rank %" PRIu32 " has no tensor '%.*s' for '%.*s', of which it holds %" PRIu64 " elements", rank,
                TSR_STR_ARG(name), TSR_STR_ARG(raw), want->numel);
    const tsr_entry *entry = value->as.tensor;
    uint64_t elements = 0;
    bool fits = tsr_entry_elements(entry, &elements);
    TSR_FAIL_IF(!fits || elements != want->numel, err, TSR_E_FORMAT,
                "optim: '%.*s' of '%.*s' on rank %" PRIu32 " has %" PRIu64 " elements; expected %" PRIu64, TSR_STR_ARG(name),
                TSR_STR_ARG(raw), rank, elements, want->numel);
    TSR_FAIL_IF(entry->dtype != want->dtype, err, TSR_E_FORMAT,
                "optim: '%.*s' of '%.*s' is %s on rank %" PRIu32 ", but %s on the ranks before it", TSR_STR_ARG(name),
                TSR_STR_ARG(raw), tsr_dtype_describe(entry->dtype)->name, rank, tsr_dtype_describe(want->dtype)->name);
    *out = entry;
    return TSR_OK;
}

/* An original parameter whose state is being joined. `whole`: the state of its flat parameter contains the elements of all
 * originals. */
typedef struct original {
    uint32_t id;
    const tsr_flat_param *param;
    bool whole;
} original;

/* Fills an original parameter from the ranks' slices. */
static tsr_status fill_original(const unsharding *u, const original *of, tsr_str name, tsr_pieces *pieces, tsr_error *err)
{
    const tsr_flat_param *param = of->param;
    const bool whole = of->whole;
    const tsr_flat_unit *unit = u->keys.keys[of->id].unit;
    uint32_t slices = slices_of(u, unit);
    uint64_t numel = tsr_flat_shard_numel(unit, slices);
    for (uint32_t i = 0; i < slices; i++) {
        uint64_t begin, end;
        const tsr_entry *source = NULL;
        uint32_t rank = rank_with(u->flat, unit, u->rank, i);
        tsr_flat_shard_range(unit, slices, i, &begin, &end);
        uint64_t low = begin > param->flat_begin ? begin : param->flat_begin,
                 high = end < param->flat_end ? end : param->flat_end;
        if (!whole && low >= high) continue;
        const held_state want = {rank, name, pieces->entry->dtype, whole ? numel : high - low};
        TSR_TRY(slice_of(u, of->id, &want, &source, err));
        if (low < high)
            TSR_TRY(tsr_pieces_add(pieces, source, whole ? low - begin : 0, whole ? high - begin : high - low, err));
    }
    return TSR_OK;
}

static tsr_status put_tensor(unsharding *u, const original *of, const tsr_named *named, tsr_tree *dict, tsr_error *err)
{
    const tsr_flat_param *param = of->param;
    tsr_pieces pieces;
    const tsr_value *value = NULL;
    tsr_str fqn = tsr_arena_format(u->arena, err, "%.*s.%.*s", TSR_STR_ARG(param->fqn), TSR_STR_ARG(named->name));
    if (!fqn.data) return TSR_E_NOMEM;
    const tsr_entry made = {.fqn = fqn, .dtype = named->value->as.tensor->dtype, .ndim = param->ndim, .shape = param->shape};
    TSR_TRY(tsr_pieces_start(&pieces, u->host, u->arena, &made, err));
    tsr_status status = fill_original(u, of, named->name, &pieces, err);
    if (status == TSR_OK) status = tsr_pieces_finish(&pieces, &value, err);
    tsr_pieces_drop(&pieces);
    return status == TSR_OK ? tsr_tree_put_key(dict, named->key, value, err) : status;
}

/* ---- flat mode ---- */

/* Adds tensors, then 0-d tensors, then other values, each sorted by name. Scalars are the rank's own. */
static tsr_status unflatten_original(unsharding *u, uint32_t id, const tsr_flat_param *param, const tsr_named *named,
                                     size_t count, tsr_error *err)
{
    const original of = {id, param, true};
    tsr_tree dict = tsr_tree_on(u->host, u->arena);
    const tsr_value *built = NULL;
    tsr_status status = TSR_OK;
    for (int form = TSR_FORM_TENSOR; form <= TSR_FORM_OTHER; form++) {
        for (size_t i = 0; i < count && status == TSR_OK; i++) {
            if (tsr_form_of(named[i].value) != (tsr_state_form)form) continue;
            status = form == TSR_FORM_TENSOR ? put_tensor(u, &of, &named[i], &dict, err)
                                             : tsr_tree_put_key(&dict, named[i].key, named[i].value, err);
        }
    }
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, &built, err);
    tsr_tree_drop(&dict);
    return status == TSR_OK ? tsr_tree_put(&u->state, param->fqn, built, err) : status;
}

/* Requires that this rank has each tensor that another rank has, whose elements would otherwise be lost. */
static tsr_status check_flat_names(const unsharding *u, uint32_t id, tsr_error *err)
{
    const tsr_flat_unit *unit = u->keys.keys[id].unit;
    const tsr_value *mine = state_on(u, u->rank, id);
    for (uint32_t slice = 0; slice < slices_of(u, unit); slice++) {
        const uint32_t rank = rank_with(u->flat, unit, u->rank, slice);
        const tsr_value *state = state_on(u, rank, id);
        for (size_t i = 0; state && i < state->count; i += 2) {
            if (tsr_form_of(state->items[i + 1]) != TSR_FORM_TENSOR || tsr_value_get(mine, state->items[i]->text)) continue;
            return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION,
                             "optim: rank %" PRIu32 " has no tensor '%.*s' for '%.*s', which rank %" PRIu32 " has", u->rank,
                             TSR_STR_ARG(state->items[i]->text), TSR_STR_ARG(id_name(u, id)), rank);
        }
    }
    return TSR_OK;
}

static tsr_status unflatten_unit(unsharding *u, uint32_t id, tsr_error *err)
{
    const tsr_flat_unit *unit = u->keys.keys[id].unit;
    tsr_named *named;
    size_t count;
    TSR_TRY(sorted_state(state_on(u, u->rank, id), u->arena, &named, &count, err));
    for (uint32_t p = 0; p < unit->param_count; p++) TSR_TRY(unflatten_original(u, id, &unit->params[p], named, count, err));
    return check_flat_names(u, id, err);
}

/* ---- original parameters ---- */

/* Whether the scalars of this slice's rank count for a parameter: the rank must have state and, if there are tensors, some
 * elements. */
static bool rank_counts(const unsharding *u, uint32_t id, uint32_t slice, bool tensors)
{
    const tsr_flat_key *key = &u->keys.keys[id];
    const tsr_flat_param *param = &key->unit->params[key->param];
    uint64_t begin, end;
    tsr_flat_shard_range(key->unit, slices_of(u, key->unit), slice, &begin, &end);
    return state_on(u, rank_with(u->flat, key->unit, u->rank, slice), id) &&
           (!tensors || (begin < param->flat_end && param->flat_begin < end));
}

/* The value of a key among the items from `first` on; NULL if there is none. */
static const tsr_value *find_key(const tsr_tree *dict, size_t first, const tsr_value *key)
{
    const tsr_value *const *items = (const tsr_value *const *)dict->items.items;
    for (size_t i = first; i < dict->items.count; i += 2)
        if (tsr_key_equal(items[i], key)) return items[i + 1];
    return NULL;
}

/* Adds a scalar, or compares it with that of an earlier rank. */
static tsr_status put_scalar(unsharding *u, uint32_t id, uint32_t rank, const tsr_named *named, tsr_tree *dict,
                             tsr_error *err)
{
    const tsr_value *earlier = find_key(dict, 0, named->key);
    if (!earlier) return tsr_tree_put_key(dict, named->key, named->value, err);
    bool equal = tsr_value_match(earlier, named->value, 64, 4096) == TSR_SAME;
    if (equal && earlier->kind == TSR_VALUE_TENSOR && u->context->same)
        TSR_TRY(u->context->same(u->context->ctx, earlier->as.tensor, named->value->as.tensor, &equal, err));
    TSR_FAIL_IF(!equal, err, TSR_E_FORMAT,
                "optim: '%.*s' of '%.*s' has a different value on rank %" PRIu32
                " (%.*s) than on the ranks before it (%.*s)",
                TSR_STR_ARG(named->name), TSR_STR_ARG(id_name(u, id)), rank,
                TSR_STR_ARG(tsr_value_brief(named->value, u->arena)), TSR_STR_ARG(tsr_value_brief(earlier, u->arena)));
    return TSR_OK;
}

static tsr_status put_scalars(unsharding *u, uint32_t id, bool tensors, tsr_tree *dict, tsr_error *err)
{
    const tsr_flat_unit *unit = u->keys.keys[id].unit;
    for (uint32_t slice = 0; slice < slices_of(u, unit); slice++) {
        tsr_named *named;
        size_t count;
        uint32_t rank = rank_with(u->flat, unit, u->rank, slice);
        if (!rank_counts(u, id, slice, tensors)) continue;
        TSR_TRY(sorted_state(state_on(u, rank, id), u->arena, &named, &count, err));
        for (int form = TSR_FORM_OTHER; form >= TSR_FORM_SCALAR_TENSOR; form--) {
            for (size_t i = 0; i < count; i++) {
                if (tsr_form_of(named[i].value) == (tsr_state_form)form)
                    TSR_TRY(put_scalar(u, id, rank, &named[i], dict, err));
            }
        }
    }
    return TSR_OK;
}

static bool has_tensors(const tsr_value *state)
{
    for (size_t i = 0; state && i < state->count; i += 2)
        if (tsr_form_of(state->items[i + 1]) == TSR_FORM_TENSOR) return true;
    return false;
}

/* Whether any rank has a tensor, even one without elements, as state of one of the unit's parameters [from, to). */
static bool unit_has_tensors(const unsharding *u, const tsr_flat_unit *unit, uint32_t from, uint32_t to)
{
    for (uint32_t id = from; id < to; id++) {
        if (u->keys.keys[id].unit != unit) continue;
        for (uint32_t slice = 0; slice < slices_of(u, unit); slice++)
            if (has_tensors(state_on(u, rank_with(u->flat, unit, u->rank, slice), id))) return true;
    }
    return false;
}

/* Requires state on every rank that holds elements of a parameter, of which other ranks have only scalars. A unit without any
 * tensors is left alone: its optimizer keeps nothing per element. */
static tsr_status check_holders(const unsharding *u, uint32_t id, tsr_error *err)
{
    const tsr_flat_key *key = &u->keys.keys[id];
    const uint32_t slices = slices_of(u, key->unit);
    if (!unit_has_tensors(u, key->unit, 0, u->keys.count)) return TSR_OK;
    for (uint32_t slice = 0; slice < slices; slice++) {
        const uint32_t rank = rank_with(u->flat, key->unit, u->rank, slice);
        const tsr_flat_param *param = &key->unit->params[key->param];
        uint64_t begin, end;
        tsr_flat_shard_range(key->unit, slices, slice, &begin, &end);
        TSR_FAIL_IF(!state_on(u, rank, id) && begin < param->flat_end && param->flat_begin < end, err, TSR_E_FORMAT,
                    "optim: rank %" PRIu32 " has no state for '%.*s', which is on other ranks, although this rank holds "
                    "elements of it",
                    rank, TSR_STR_ARG(id_name(u, id)));
    }
    return TSR_OK;
}

/* Adds the scalars, then each tensor that any rank has. All ranks with elements must have it. */
static tsr_status fill_parameter(unsharding *u, uint32_t id, tsr_tree *dict, tsr_error *err)
{
    const tsr_flat_key *key = &u->keys.keys[id];
    const bool tensors = unit_has_tensors(u, key->unit, id, id + 1);
    if (!tensors) TSR_TRY(check_holders(u, id, err));
    TSR_TRY(put_scalars(u, id, tensors, dict, err));
    const size_t scalars = dict->items.count;
    for (uint32_t slice = 0; slice < slices_of(u, key->unit) && tensors; slice++) {
        const tsr_value *state = state_on(u, rank_with(u->flat, key->unit, u->rank, slice), id);
        tsr_named *named;
        size_t count;
        if (!has_tensors(state)) continue;
        TSR_TRY(sorted_state(state, u->arena, &named, &count, err));
        for (size_t i = 0; i < count; i++) {
            if (tsr_form_of(named[i].value) == TSR_FORM_TENSOR && !find_key(dict, scalars, named[i].key))
                TSR_TRY(put_tensor(u, &(original){id, &key->unit->params[key->param], false}, &named[i], dict, err));
        }
    }
    return TSR_OK;
}

static tsr_status gather_parameter(unsharding *u, uint32_t id, tsr_error *err)
{
    const tsr_flat_key *key = &u->keys.keys[id];
    tsr_str fqn = key->unit->params[key->param].fqn;
    if (slices_of(u, key->unit) == 1) { /* Nothing was sharded. If only other ranks have state, it is empty here. */
        const tsr_value *state = state_on(u, u->rank, id);
        if (!state) state = tsr_value_items(u->arena, TSR_VALUE_DICT, NULL, 0, err);
        return state ? tsr_tree_put(&u->state, fqn, state, err) : TSR_E_NOMEM;
    }
    tsr_tree dict = tsr_tree_on(u->host, u->arena);
    const tsr_value *built = NULL;
    tsr_status status = fill_parameter(u, id, &dict, err);
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, &built, err);
    tsr_tree_drop(&dict);
    return status == TSR_OK ? tsr_tree_put(&u->state, fqn, built, err) : status;
}

/* Joins all parameters of a unit of which at least one has state. Then all parameters that need state must have it. */
static tsr_status gather_unit(unsharding *u, const tsr_flat_unit *unit, tsr_error *err)
{
    uint32_t found = 0, needed = 0;
    for (uint32_t i = 0; i < u->order_count; i++) {
        const tsr_flat_key *key = &u->keys.keys[u->order[i]];
        if (key->unit != unit) continue;
        found += unit->params[key->param].needs_state;
        TSR_TRY(gather_parameter(u, u->order[i], err));
    }
    for (uint32_t p = 0; p < unit->param_count; p++) needed += unit->params[p].needs_state;
    TSR_FAIL_IF(found != needed, err, TSR_E_FORMAT,
                "optim: %" PRIu32 " of %" PRIu32 " parameters with gradients of unit '%.*s' have no state on any rank",
                needed - found, needed, TSR_STR_ARG(unit->fsdp_module));
    return TSR_OK;
}

/* ---- the whole state ---- */

/* Adds the rank's own state of a parameter outside of units. It is never exchanged, because such parameters (of experts, for
 * example) may be different ones on each rank. */
static tsr_status put_unmanaged(unsharding *u, uint32_t id, tsr_error *err)
{
    const tsr_value *state = state_on(u, u->rank, id);
    return state ? tsr_tree_put(&u->state, u->keys.keys[id].fqn, state, err) : TSR_OK;
}

static tsr_status put_states(unsharding *u, tsr_error *err)
{
    bool *done = tsr_arena_array(u->arena, u->flat->unit_count, sizeof *done, err);
    if (!done) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < u->order_count; i++) {
        const tsr_flat_unit *unit = u->keys.keys[u->order[i]].unit;
        if (!unit) TSR_TRY(put_unmanaged(u, u->order[i], err));
        else if (!u->flat->use_orig_params) TSR_TRY(unflatten_unit(u, u->order[i], err));
    }
    for (uint32_t i = 0; i < u->order_count && u->flat->use_orig_params; i++) {
        const tsr_flat_unit *unit = u->keys.keys[u->order[i]].unit;
        if (!unit || done[unit - u->flat->units]) continue;
        done[unit - u->flat->units] = true;
        TSR_TRY(gather_unit(u, unit, err));
    }
    const tsr_value *const *user = (const tsr_value *const *)u->carried.items.items;
    for (size_t i = 0; i < u->carried.items.count; i += 2) TSR_TRY(tsr_tree_put_key(&u->state, user[i], user[i + 1], err));
    return TSR_OK;
}

/* Adds the names of all originals of the ids in a group, in order. */
static tsr_status name_params(unsharding *u, const tsr_value *params, tsr_tree *names, tsr_error *err)
{
    for (size_t i = 0; i < params->count; i++) {
        uint32_t id = tsr_flat_keys_find(&u->keys, params->items[i]);
        TSR_FAIL_IF(id == UINT32_MAX, err, TSR_E_FORMAT,
                    "optim: a param group of rank %" PRIu32 " lists a parameter that is not in the flat-params document",
                    u->rank);
        const tsr_flat_key *key = &u->keys.keys[id];
        uint32_t first = key->param == TSR_NO_PARAM ? 0 : key->param,
                 end = key->param == TSR_NO_PARAM ? (key->unit ? key->unit->param_count : 0) : first + 1;
        if (!key->unit) TSR_TRY(tsr_tree_add(names, tsr_value_str(u->arena, key->fqn, err), err));
        for (uint32_t p = first; p < end; p++)
            TSR_TRY(tsr_tree_add(names, tsr_value_str(u->arena, key->unit->params[p].fqn, err), err));
    }
    return TSR_OK;
}

static tsr_status put_group(unsharding *u, const tsr_value *group, tsr_tree *groups, tsr_error *err)
{
    tsr_tree names = tsr_tree_on(u->host, u->arena);
    const tsr_value *list = NULL, *named = NULL;
    tsr_status status = name_params(u, tsr_group_params(group), &names, err);
    if (status == TSR_OK) status = tsr_tree_finish(&names, TSR_VALUE_LIST, &list, err);
    tsr_tree_drop(&names);
    if (status == TSR_OK) status = tsr_group_with_params(group, list, u->arena, &named, err);
    return status == TSR_OK ? tsr_tree_add(groups, named, err) : status;
}

static tsr_status put_groups(unsharding *u, const tsr_value **out, tsr_error *err)
{
    tsr_tree groups = tsr_tree_on(u->host, u->arena);
    const tsr_value *saved = u->parts[u->rank].groups;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < saved->count && status == TSR_OK; i++) status = put_group(u, saved->items[i], &groups, err);
    if (status == TSR_OK) status = tsr_tree_finish(&groups, TSR_VALUE_LIST, out, err);
    tsr_tree_drop(&groups);
    return status;
}

static tsr_status list_carried(unsharding *u, tsr_fsdp_full *out, tsr_error *err)
{
    const tsr_value *const *user = (const tsr_value *const *)u->carried.items.items;
    tsr_str *names = tsr_arena_array(u->arena, u->carried.items.count / 2, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < u->carried.items.count; i += 2)
        TSR_TRY(tsr_key_text(user[i], u->arena, &names[out->carried_count++], err));
    out->carried = names;
    return TSR_OK;
}

static tsr_status run(unsharding *u, const tsr_value *const *ranks, tsr_fsdp_full *out, tsr_error *err)
{
    size_t world = u->flat->world_size;
    const tsr_value *state, *groups;
    TSR_TRY(tsr_flat_keys_open(u->flat, u->host, u->arena, &u->keys, err));
    u->parts = tsr_arena_array(u->arena, world, sizeof *u->parts, err);
    u->states = tsr_arena_array(u->arena, world * u->keys.count, sizeof *u->states, err);
    if (!u->parts || !u->states) return TSR_E_NOMEM;
    for (uint32_t rank = 0; rank < world; rank++) TSR_TRY(read_rank(u, ranks[rank], rank, err));
    TSR_TRY(order_ids(u, err));
    TSR_TRY(put_states(u, err));
    TSR_TRY(list_carried(u, out, err));
    TSR_TRY(tsr_tree_finish(&u->state, TSR_VALUE_DICT, &state, err));
    TSR_TRY(put_groups(u, &groups, err));
    return tsr_tree_optim(state, groups, u->arena, &out->optim, err);
}

tsr_status tsr_fsdp_unshard(const tsr_flat_params *flat, const tsr_value *const *ranks, uint32_t rank,
                            const tsr_fsdp_context *context, tsr_fsdp_full *out, tsr_error *err)
{
    TSR_FAIL_IF(rank >= flat->world_size, err, TSR_E_USAGE, "optim: rank %" PRIu32 " is not one of the %" PRIu32 " ranks",
                rank, flat->world_size);
    unsharding u = {.flat = flat,
                    .context = context,
                    .host = context->host,
                    .arena = context->arena,
                    .rank = rank,
                    .state = tsr_tree_on(context->host, context->arena),
                    .carried = tsr_tree_on(context->host, context->arena)};
    *out = (tsr_fsdp_full){NULL, NULL, 0};
    tsr_status status = run(&u, ranks, out, err);
    tsr_tree_drop(&u.carried);
    tsr_tree_drop(&u.state);
    tsr_flat_keys_close(&u.keys);
    return status;
}
