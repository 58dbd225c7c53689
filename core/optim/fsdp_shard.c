/* Turns the full optimizer state, keyed by FQN, into one rank's raw state (`_flatten_optim_state_dict`,
 * `_shard_orig_param_state` and `_rekey_sharded_optim_state_dict` of PyTorch 2.13).
 *
 *   full   emb.weight [11, 3]   c.weight [3, 2]   c.bias: none       flat mode, rank 1 of 3: elements [14, 28)
 *   flat   |─── 33 ───────────────|─── 6 ───|─ 3 zeros ─|            → 14 of emb.weight */
#include "optim/pieces.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/try.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct sharding {
    const tsr_flat_params *flat;
    const tsr_fsdp_context *context;
    const tsr_host *host;
    tsr_arena *arena;
    uint32_t world, rank;
    tsr_flat_keys keys;
    tsr_optim_parts full;
    tsr_map *state_of; /* FQN → index of its value in full.state */
    tsr_tree state;    /* the resulting state */
} sharding;

static const tsr_value *full_state(const sharding *s, tsr_str fqn)
{
    uint32_t at = tsr_map_get(s->state_of, fqn, UINT32_MAX);
    return at == UINT32_MAX ? NULL : s->full.state->items[at];
}

static tsr_status index_state(sharding *s, tsr_error *err)
{
    for (size_t i = 0; i < s->full.state->count; i += 2) {
        tsr_str name;
        TSR_TRY(tsr_key_text(s->full.state->items[i], s->arena, &name, err));
        if (tsr_map_get(s->keys.by_fqn, name, UINT32_MAX) == UINT32_MAX) continue; /* user-defined */
        TSR_TRY(tsr_check_state(s->full.state->items[i], s->full.state->items[i + 1], err));
        TSR_TRY(tsr_map_put(s->state_of, name, (uint32_t)i + 1, NULL, NULL, err));
    }
    return TSR_OK;
}

/* ---- flat mode ---- */

/* One state of a unit's originals: `values[p]` is the value for original p, or NULL if it is absent or None. */
typedef struct column {
    tsr_str name;
    const tsr_flat_unit *unit;
    const tsr_value *const *values;
    uint32_t first; /* the first original that has this state */
} column;

static tsr_status check_column(const sharding *s, const column *c, tsr_error *err)
{
    const tsr_value *model = c->values[c->first];
    tsr_state_form form = tsr_form_of(model);
    tsr_str known = c->unit->params[c->first].fqn;
    for (uint32_t p = 0; p < c->unit->param_count; p++) {
        const tsr_flat_param *param = &c->unit->params[p];
        const tsr_value *value = c->values[p];
        TSR_FAIL_IF(!value && (form != TSR_FORM_TENSOR || param->ndim == 0), err, TSR_E_FORMAT,
                    "optim: '%.*s' has a scalar '%.*s', but '%.*s' of the same flat parameter has none", TSR_STR_ARG(known),
                    TSR_STR_ARG(c->name), TSR_STR_ARG(param->fqn));
        if (!value) continue;
        bool equal = tsr_form_of(value) == form && value->kind == model->kind;
        if (equal && form == TSR_FORM_TENSOR) {
            const tsr_entry *e = value->as.tensor;
            TSR_FAIL_IF(!tsr_shape_equal(e->ndim, e->shape, param->ndim, param->shape), err, TSR_E_FORMAT,
                        "optim: '%.*s' of '%.*s' does not have the shape of its parameter: %.*s and %.*s",
                        TSR_STR_ARG(c->name), TSR_STR_ARG(param->fqn),
                        TSR_STR_ARG(tsr_shape_brief(e->ndim, e->shape, s->arena)),
                        TSR_STR_ARG(tsr_shape_brief(param->ndim, param->shape, s->arena)));
            equal = e->dtype == model->as.tensor->dtype;
        } else if (equal) {
            equal = tsr_value_match(model, value, 64, 4096) == TSR_SAME;
            if (equal && form == TSR_FORM_SCALAR_TENSOR && s->context->same && value != model)
                TSR_TRY(s->context->same(s->context->ctx, model->as.tensor, value->as.tensor, &equal, err));
        }
        TSR_FAIL_IF(!equal, err, TSR_E_FORMAT,
                    "optim: '%.*s' of '%.*s' and of '%.*s' differ in type, dtype or value (%.*s, %.*s), but are in the same "
                    "flat parameter",
                    TSR_STR_ARG(c->name), TSR_STR_ARG(known), TSR_STR_ARG(param->fqn),
                    TSR_STR_ARG(tsr_value_brief(model, s->arena)), TSR_STR_ARG(tsr_value_brief(value, s->arena)));
    }
    return TSR_OK;
}

/* Makes the rank's slice from parts of originals, and from zeros for padding, for missing state, and beyond the end. */
static tsr_status fill_slice(const sharding *s, const column *c, uint64_t begin, uint64_t end, tsr_pieces *pieces,
                             tsr_error *err)
{
    uint32_t zeros = s->context->zeros_file;
    uint64_t at = begin;
    for (uint32_t p = 0; p < c->unit->param_count && at < end; p++) {
        const tsr_flat_param *param = &c->unit->params[p];
        uint64_t low = at > param->flat_begin ? at : param->flat_begin, high = end < param->flat_end ? end : param->flat_end;
        if (low >= high) continue;
        TSR_TRY(tsr_pieces_add_zeros(pieces, zeros, low - at, err));
        if (!c->values[p]) TSR_TRY(tsr_pieces_add_zeros(pieces, zeros, high - low, err));
        else
            TSR_TRY(tsr_pieces_add(pieces, c->values[p]->as.tensor, low - param->flat_begin, high - param->flat_begin, err));
        at = high;
    }
    return tsr_pieces_add_zeros(pieces, zeros, pieces->elements - (at - begin), err);
}

static tsr_status put_slice(sharding *s, const column *c, const tsr_value *key, tsr_tree *dict, tsr_error *err)
{
    uint64_t begin, end, *shape = TSR_ARENA_NEW(s->arena, uint64_t, err);
    tsr_flat_place place;
    tsr_str fqn = tsr_arena_format(s->arena, err, "%.*s.%.*s", TSR_STR_ARG(c->unit->raw_name), TSR_STR_ARG(c->name));
    if (!shape || !fqn.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_flat_place_of(s->flat, c->unit, s->world, s->rank, &place, err));
    *shape = tsr_flat_shard_numel(c->unit, place.slices);
    tsr_flat_shard_range(c->unit, place.slices, place.slice, &begin, &end);
    tsr_pieces pieces;
    const tsr_value *value = NULL;
    const tsr_entry of = {.fqn = fqn, .dtype = c->values[c->first]->as.tensor->dtype, .ndim = 1, .shape = shape};
    TSR_TRY(tsr_pieces_start(&pieces, s->host, s->arena, &of, err));
    tsr_status status = fill_slice(s, c, begin, end, &pieces, err);
    if (status == TSR_OK) status = tsr_pieces_finish(&pieces, &value, err);
    tsr_pieces_drop(&pieces);
    return status == TSR_OK ? tsr_tree_put_key(dict, key, value, err) : status;
}

/* Adds one state, with the values of all originals. `states[p]` is the state of an original, or NULL. */
static tsr_status put_column(sharding *s, const tsr_flat_unit *unit, const tsr_value *const *states, const tsr_value *key,
                             tsr_tree *dict, tsr_error *err)
{
    column c = {.unit = unit, .first = UINT32_MAX};
    const tsr_value **values = tsr_arena_array(s->arena, unit->param_count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    TSR_TRY(tsr_key_text(key, s->arena, &c.name, err));
    for (uint32_t p = 0; p < unit->param_count; p++) {
        const tsr_value *value = states[p] ? tsr_value_get(states[p], c.name) : NULL;
        if (!value || value->kind == TSR_VALUE_NONE) continue;
        values[p] = value;
        if (c.first == UINT32_MAX) c.first = p;
    }
    c.values = values;
    if (c.first == UINT32_MAX) return tsr_tree_put_key(dict, key, tsr_value_new(s->arena, TSR_VALUE_NONE, err), err);
    TSR_TRY(check_column(s, &c, err));
    return tsr_form_of(values[c.first]) == TSR_FORM_TENSOR ? put_slice(s, &c, key, dict, err)
                                                           : tsr_tree_put_key(dict, key, values[c.first], err);
}

static tsr_status check_names(const tsr_flat_unit *unit, const tsr_value *const *states, uint32_t first, tsr_error *err)
{
    for (uint32_t p = first + 1; p < unit->param_count; p++) {
        bool same = !states[p] || states[p]->count == states[first]->count;
        for (size_t i = 0; same && states[p] && i < states[p]->count; i += 2)
            same = states[p]->items[i]->kind == TSR_VALUE_STR && tsr_value_get(states[first], states[p]->items[i]->text);
        TSR_FAIL_IF(!same, err, TSR_E_FORMAT,
                    "optim: '%.*s' and '%.*s' are in the same flat parameter, but their states have different names",
                    TSR_STR_ARG(unit->params[first].fqn), TSR_STR_ARG(unit->params[p].fqn));
    }
    return TSR_OK;
}

static tsr_status fill_unit(sharding *s, const tsr_flat_unit *unit, const tsr_value *const *states, uint32_t first,
                            tsr_tree *dict, tsr_error *err)
{
    TSR_FAIL_IF(tsr_value_pairs(states[first]) > TSR_MAX_STATES, err, TSR_E_LIMIT, "optim: '%.*s' has more than %u states",
                TSR_STR_ARG(unit->params[first].fqn), TSR_MAX_STATES);
    TSR_TRY(check_names(unit, states, first, err));
    for (size_t i = 0; i < states[first]->count; i += 2)
        TSR_TRY(put_column(s, unit, states, states[first]->items[i], dict, err));
    return TSR_OK;
}

static tsr_status flatten_unit(sharding *s, uint32_t id, tsr_error *err)
{
    const tsr_flat_unit *unit = s->keys.keys[id].unit;
    const tsr_value **states = tsr_arena_array(s->arena, unit->param_count, sizeof *states, err), *built = NULL;
    if (!states) return TSR_E_NOMEM;
    uint32_t first = UINT32_MAX;
    for (uint32_t p = unit->param_count; p-- > 0;) {
        states[p] = full_state(s, unit->params[p].fqn);
        if (states[p]) first = p;
    }
    if (first == UINT32_MAX) return TSR_OK; /* a unit without any state gets no entry */
    tsr_tree dict = tsr_tree_on(s->host, s->arena);
    tsr_status status = fill_unit(s, unit, states, first, &dict, err);
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, &built, err);
    tsr_tree_drop(&dict);
    return status == TSR_OK ? tsr_tree_put_key(&s->state, tsr_value_int(s->arena, id, err), built, err) : status;
}

/* ---- original parameters ---- */

/* The elements [low, high) of the unit's flat parameter, which all belong to one original. */
typedef struct part {
    const tsr_flat_param *param;
    uint64_t low, high;
} part;

/* Adds the part of a tensor that is in the rank's slice, flattened. */
static tsr_status put_part(sharding *s, const part *p, const tsr_value *key, const tsr_entry *source, tsr_tree *dict,
                           tsr_error *err)
{
    const tsr_flat_param *param = p->param;
    uint64_t elements, *shape = TSR_ARENA_NEW(s->arena, uint64_t, err);
    if (!shape) return TSR_E_NOMEM;
    *shape = p->high - p->low;
    TSR_FAIL_IF(!tsr_entry_elements(source, &elements) || elements != param->flat_end - param->flat_begin, err, TSR_E_FORMAT,
                "optim: the state '%.*s' of '%.*s' does not have as many elements as its parameter: %.*s and %.*s",
                TSR_STR_ARG(key->text), TSR_STR_ARG(param->fqn),
                TSR_STR_ARG(tsr_shape_brief(source->ndim, source->shape, s->arena)),
                TSR_STR_ARG(tsr_shape_brief(param->ndim, param->shape, s->arena)));
    tsr_pieces pieces;
    const tsr_value *value = NULL;
    const tsr_entry of = {.fqn = source->fqn, .dtype = source->dtype, .ndim = 1, .shape = shape};
    TSR_TRY(tsr_pieces_start(&pieces, s->host, s->arena, &of, err));
    tsr_status status = tsr_pieces_add(&pieces, source, p->low - param->flat_begin, p->high - param->flat_begin, err);
    if (status == TSR_OK) status = tsr_pieces_finish(&pieces, &value, err);
    tsr_pieces_drop(&pieces);
    return status == TSR_OK ? tsr_tree_put_key(dict, key, value, err) : status;
}

static tsr_status fill_parts(sharding *s, const part *p, const tsr_value *state, tsr_tree *dict, tsr_error *err)
{
    for (size_t i = 0; i < state->count; i += 2) {
        const tsr_value *key = state->items[i], *value = state->items[i + 1];
        if (tsr_form_of(value) == TSR_FORM_TENSOR) TSR_TRY(put_part(s, p, key, value->as.tensor, dict, err));
        else TSR_TRY(tsr_tree_put_key(dict, key, value, err));
    }
    return TSR_OK;
}

static tsr_status shard_original(sharding *s, uint32_t id, tsr_error *err)
{
    const tsr_flat_key *key = &s->keys.keys[id];
    const tsr_flat_param *param = &key->unit->params[key->param];
    const tsr_value *state = full_state(s, param->fqn), *built = NULL;
    if (!state || state->count == 0) return TSR_OK;
    tsr_flat_place place;
    TSR_TRY(tsr_flat_place_of(s->flat, key->unit, s->world, s->rank, &place, err));
    if (place.slices == 1) return tsr_tree_put_key(&s->state, tsr_value_int(s->arena, id, err), state, err);
    uint64_t begin, end;
    tsr_flat_shard_range(key->unit, place.slices, place.slice, &begin, &end);
    uint64_t low = begin > param->flat_begin ? begin : param->flat_begin,
             high = end < param->flat_end ? end : param->flat_end;
    if (low >= high) return TSR_OK; /* the rank has no element of it, and therefore no state */
    tsr_tree dict = tsr_tree_on(s->host, s->arena);
    tsr_status status = fill_parts(s, &(part){param, low, high}, state, &dict, err);
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, &built, err);
    tsr_tree_drop(&dict);
    return status == TSR_OK ? tsr_tree_put_key(&s->state, tsr_value_int(s->arena, id, err), built, err) : status;
}

/* ---- the whole state ---- */

static tsr_status put_states(sharding *s, tsr_error *err)
{
    for (uint32_t id = 0; id < s->keys.count; id++) {
        const tsr_flat_key *key = &s->keys.keys[id];
        const tsr_value *state = key->unit ? NULL : full_state(s, key->fqn);
        if (state) TSR_TRY(tsr_tree_put_key(&s->state, tsr_value_int(s->arena, id, err), state, err));
        else if (key->unit && key->param == TSR_NO_PARAM) TSR_TRY(flatten_unit(s, id, err));
        else if (key->unit) TSR_TRY(shard_original(s, id, err));
    }
    for (size_t i = 0; i < s->full.state->count; i += 2) { /* user-defined state */
        const tsr_value *key = s->full.state->items[i];
        if (key->kind == TSR_VALUE_STR && tsr_map_get(s->keys.by_fqn, key->text, UINT32_MAX) != UINT32_MAX) continue;
        TSR_TRY(tsr_tree_put_key(&s->state, key, s->full.state->items[i + 1], err));
    }
    return TSR_OK;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Adds the ids for the names in a group, each once, in order. */
static tsr_status put_ids(sharding *s, const tsr_value *params, size_t number, tsr_tree *ids, tsr_error *err)
{
    uint32_t *found = tsr_arena_array(s->arena, params->count, sizeof *found, err);
    if (!found) return TSR_E_NOMEM;
    for (size_t i = 0; i < params->count; i++) {
        const tsr_value *name = params->items[i];
        found[i] = name->kind == TSR_VALUE_STR ? tsr_map_get(s->keys.by_fqn, name->text, UINT32_MAX) : UINT32_MAX;
        TSR_FAIL_IF(found[i] == UINT32_MAX, err, TSR_E_FORMAT,
                    "optim: param_groups[%zu] lists '%.*s', which is not in the param groups of the flat-params document",
                    number, TSR_STR_ARG(name->text));
    }
    if (params->count) qsort(found, params->count, sizeof *found, by_number);
    for (size_t i = 0; i < params->count; i++) {
        if (i == 0 || found[i] != found[i - 1]) TSR_TRY(tsr_tree_add(ids, tsr_value_int(s->arena, found[i], err), err));
    }
    return TSR_OK;
}

static tsr_status rekey_group(sharding *s, size_t number, const tsr_value **out, tsr_error *err)
{
    const tsr_value *group = s->full.groups->items[number], *list = NULL;
    tsr_tree ids = tsr_tree_on(s->host, s->arena);
    tsr_status status = put_ids(s, tsr_group_params(group), number, &ids, err);
    if (status == TSR_OK) status = tsr_tree_finish(&ids, TSR_VALUE_LIST, &list, err);
    tsr_tree_drop(&ids);
    return status == TSR_OK ? tsr_group_with_params(group, list, s->arena, out, err) : status;
}

static tsr_status run(sharding *s, const tsr_value **out, tsr_error *err)
{
    size_t count = s->full.groups ? s->full.groups->count : 0;
    const tsr_value *state, *groups = NULL, **items = tsr_arena_array(s->arena, count, sizeof *items, err);
    if (!items || !s->state_of) return TSR_E_NOMEM;
    TSR_TRY(tsr_flat_keys_open(s->flat, s->host, s->arena, &s->keys, err));
    TSR_TRY(index_state(s, err));
    TSR_TRY(put_states(s, err));
    TSR_TRY(tsr_tree_finish(&s->state, TSR_VALUE_DICT, &state, err));
    for (size_t g = 0; g < count; g++) TSR_TRY(rekey_group(s, g, &items[g], err));
    if (s->full.groups && !(groups = tsr_value_items(s->arena, TSR_VALUE_LIST, items, count, err))) return TSR_E_NOMEM;
    return tsr_tree_optim(state, groups, s->arena, out, err);
}

tsr_status tsr_fsdp_shard(const tsr_flat_params *flat, const tsr_value *full, tsr_fsdp_rank of,
                          const tsr_fsdp_context *context, const tsr_value **out, tsr_error *err)
{
    TSR_FAIL_IF(of.world_size == 0 || of.rank >= of.world_size, err, TSR_E_USAGE,
                "optim: rank %" PRIu32 " is not one of the %" PRIu32 " ranks", of.rank, of.world_size);
    sharding s = {.flat = flat,
                  .context = context,
                  .host = context->host,
                  .arena = context->arena,
                  .world = of.world_size,
                  .rank = of.rank,
                  .state = tsr_tree_on(context->host, context->arena)};
    TSR_TRY(tsr_optim_take_apart(full, false, &s.full, err));
    s.state_of = tsr_map_new(context->host->allocator, tsr_value_pairs(s.full.state), err);
    tsr_status status = run(&s, out, err);
    tsr_tree_drop(&s.state);
    tsr_map_free(s.state_of);
    tsr_flat_keys_close(&s.keys);
    return status;
}

/* Divides the full optimizer state into what one rank holds of it: every tensor is split along dim 0 as by torch.chunk, as
 * ShardedTensors or, if FSDP has a mesh, as DTensors (`_ext_chunk_tensor`, `_ext_chunk_dtensor`, called for `shard_state` in
 * PyTorch 2.13).
 *
 *   emb.weight [11, 3] on 3 ranks     rank 0: rows [0, 4)    rank 1: [4, 8)    rank 2: [8, 11) */

typedef struct cutting {
    const tsr_flat_params *flat;
    const tsr_fsdp_rows *options;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_flat_keys keys;
    const tsr_distribution *distribution; /* that of the DTensors; NULL for ShardedTensors */
    tsr_tree state;                       /* the resulting state */
} cutting;

/* Makes rows [begin, end) of a tensor a shard of it: tsr_pieces makes the chunks of the rows, which are then moved to their
 * offsets. */
static tsr_status take_rows(const cutting *c, const tsr_entry *source, uint64_t begin, uint64_t end, tsr_entry *out,
                            tsr_error *err)
{
    uint64_t elements, *shape = tsr_arena_array(c->arena, source->ndim, sizeof *shape, err);
    tsr_pieces pieces;
    const tsr_value *rows = NULL;
    if (!shape) return TSR_E_NOMEM;
    memcpy(shape, source->shape, source->ndim * sizeof *shape);
    shape[0] = end - begin;
    TSR_FAIL_IF(!tsr_entry_elements(source, &elements), err, TSR_E_FORMAT, "optim: '%.*s' is too large",
                TSR_STR_ARG(source->fqn));
    uint64_t row = source->shape[0] ? elements / source->shape[0] : 0;
    const tsr_entry of = {.fqn = source->fqn, .dtype = source->dtype, .ndim = source->ndim, .shape = shape};
    TSR_TRY(tsr_pieces_start(&pieces, c->host, c->arena, &of, err));
    tsr_status status = tsr_pieces_add(&pieces, source, begin * row, end * row, err);
    if (status == TSR_OK) status = tsr_pieces_finish(&pieces, &rows, err);
    tsr_pieces_drop(&pieces);
    if (status != TSR_OK) return status;
    *out = *rows->as.tensor;
    tsr_chunk *chunks = tsr_arena_array(c->arena, (size_t)out->chunk_count, sizeof *chunks, err);
    uint64_t *offsets = tsr_arena_array(c->arena, (size_t)out->chunk_count * out->ndim, sizeof *offsets, err);
    if (!chunks || !offsets) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < out->chunk_count; i++, offsets += out->ndim) {
        chunks[i] = out->chunks[i];
        memcpy(offsets, chunks[i].offsets, out->ndim * sizeof *offsets);
        offsets[0] += begin;
        chunks[i].offsets = offsets;
    }
    out->chunks = chunks;
    out->shape = source->shape;
    return TSR_OK;
}

static tsr_status cut_tensor(const cutting *c, const tsr_entry *source, tsr_flat_place place, const tsr_value **out,
                             tsr_error *err)
{
    uint64_t begin, end;
    tsr_entry *entry = TSR_ARENA_NEW(c->arena, tsr_entry, err);
    tsr_value *value = entry ? tsr_value_tensor(c->arena, entry, err) : NULL;
    if (!value) return TSR_E_NOMEM;
    tsr_rows_of_rank(source->shape[0], place.slices, place.slice, true, &begin, &end);
    TSR_TRY(take_rows(c, source, begin, end, entry, err));
    entry->distribution = c->distribution;
    *out = value;
    return TSR_OK;
}

static tsr_status cut_state(cutting *c, const tsr_value *key, const tsr_value *state, tsr_flat_place place, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(c->arena, state->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < state->count; i += 2) {
        items[i] = state->items[i];
        items[i + 1] = state->items[i + 1];
        if (tsr_form_of(items[i + 1]) == TSR_FORM_TENSOR)
            TSR_TRY(cut_tensor(c, items[i + 1]->as.tensor, place, &items[i + 1], err));
    }
    return tsr_tree_put_key(&c->state, key, tsr_value_items(c->arena, TSR_VALUE_DICT, items, state->count, err), err);
}

/* The ranks that divide the state of a unit: those that divide its flat parameter, or all ranks with NO_SHARD. */
static tsr_status place_of(const cutting *c, const tsr_flat_key *key, tsr_flat_place *out, tsr_error *err)
{
    const tsr_fsdp_rows *o = c->options;
    TSR_TRY(tsr_flat_place_of(c->flat, key->unit, o->world_size, o->rank, out, err));
    if (!key->unit->is_sharded) *out = (tsr_flat_place){o->world_size, o->rank};
    return TSR_OK;
}

static tsr_status put_state(cutting *c, const tsr_value *key, const tsr_value *state, tsr_error *err)
{
    uint32_t id = key->kind == TSR_VALUE_STR ? tsr_map_get(c->keys.by_fqn, key->text, UINT32_MAX) : UINT32_MAX;
    const tsr_flat_key *known = id == UINT32_MAX ? NULL : &c->keys.keys[id];
    tsr_flat_place place;
    if (!known || !known->unit || state->kind != TSR_VALUE_DICT) return tsr_tree_put_key(&c->state, key, state, err);
    TSR_TRY(place_of(c, known, &place, err));
    bool whole = known->param != TSR_NO_PARAM && (!known->unit->is_sharded || place.slices == 1);
    return whole ? tsr_tree_put_key(&c->state, key, state, err) : cut_state(c, key, state, place, err);
}

/* Sets the texts that describe the DTensors, such as "2,2" and "replicate,shard(0)". */
static tsr_status tell_mesh(cutting *c, tsr_error *err)
{
    static const tsr_placement placements[] = {{.kind = TSR_REPLICATE}, {.kind = TSR_SHARD, .dim = 0}};
    const tsr_mesh *mesh = c->options->mesh;
    if (!mesh) return TSR_OK;
    TSR_FAIL_IF(
        mesh->dim_count == 0 || mesh->dim_count > 2 || tsr_mesh_ranks(mesh) != c->options->world_size, err, TSR_E_USAGE,
        "optim: FSDP needs a mesh with one dim (two for hybrid strategies) and as many ranks as the world (%" PRIu32 ")",
        c->options->world_size);
    tsr_distribution *d = TSR_ARENA_NEW(c->arena, tsr_distribution, err);
    if (!d) return TSR_E_NOMEM;
    d->mesh = tsr_mesh_text(mesh, c->arena, err);
    d->placements = tsr_placements_text(placements + 2 - mesh->dim_count, mesh->dim_count, c->arena, err);
    c->distribution = d;
    return d->mesh.data && d->placements.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status cut(cutting *c, const tsr_optim_parts *full, const tsr_value **out, tsr_error *err)
{
    const tsr_value *state;
    TSR_TRY(tell_mesh(c, err));
    TSR_TRY(tsr_flat_keys_open(c->flat, c->host, c->arena, &c->keys, err));
    for (size_t i = 0; i < full->state->count; i += 2)
        TSR_TRY(put_state(c, full->state->items[i], full->state->items[i + 1], err));
    TSR_TRY(tsr_tree_finish(&c->state, TSR_VALUE_DICT, &state, err));
    return tsr_tree_optim(state, full->groups, c->arena, out, err);
}

tsr_status tsr_fsdp_shard_rows(const tsr_flat_params *flat, const tsr_value *full, const tsr_fsdp_rows *options,
                               const tsr_fsdp_context *context, const tsr_value **out, tsr_error *err)
{
    TSR_FAIL_IF(options->rank >= options->world_size, err, TSR_E_USAGE,
                "optim: rank %" PRIu32 " is not one of the %" PRIu32 " ranks", options->rank, options->world_size);
    cutting c = {.flat = flat,
                 .options = options,
                 .host = context->host,
                 .arena = context->arena,
                 .state = tsr_tree_on(context->host, context->arena)};
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(full, false, &parts, err));
    tsr_status status = cut(&c, &parts, out, err);
    tsr_tree_drop(&c.state);
    tsr_flat_keys_close(&c.keys);
    return status;
}
