/* Finds what a single full optimizer state cannot represent: state that FSDP1 does not shard and that differs between ranks.
 * Sharded state is one object that all ranks form together; each rank has its own copy of everything else.
 *
 *   no unit, NO_SHARD           a rank's whole state of the parameter
 *   HYBRID units                a slice, which every replica has
 *   flat parameters             their scalars
 *   of no parameter, options    all of it */
#include <inttypes.h>
#include <string.h>

#include "optim/flat_unit.h"
#include "optim/tree.h"
#include "tessera/sys/try.h"

#include "tessera/sys/flat_index.h"
#include "tessera/sys/fsdp_optim.h"
#include "tessera/sys/value_walk.h"

typedef struct differing {
    const tsr_flat_params *flat;
    const tsr_fsdp_context *context;
    tsr_flat_keys keys;
    uint32_t rank, other; /* the rank whose state is used, and the one that it is compared with */
    tsr_optim_parts mine, its;
    const tsr_value **mine_by_id, **its_by_id;
    tsr_map *listed;
    tsr_tree names; /* STRs: the names that were found */
    tsr_error *err;
    tsr_status failed; /* status of comparing two tensors */
} differing;

static tsr_status add_name(differing *d, tsr_str name, tsr_error *err)
{
    bool fresh;
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(d->listed, name, 1, NULL, &fresh, err));
    return fresh ? tsr_tree_add(&d->names, tsr_value_str(d->context->arena, name, err), err) : TSR_OK;
}

static bool same_tensors(void *ctx, const tsr_entry *a, const tsr_entry *b)
{
    differing *d = ctx;
    bool equal = true;
    if (d->context->same) d->failed = d->context->same(d->context->ctx, a, b, &equal, d->err);
    return d->failed == TSR_OK && equal;
}

/* Compares two values. NULL differs from any value. */
static tsr_status compare(differing *d, const tsr_value *a, const tsr_value *b, bool *same, tsr_error *err)
{
    const tsr_limits *limits = &d->context->host->limits;
    d->err = err;
    d->failed = TSR_OK;
    *same =
        a == b || (a && b && tsr_value_match_tensors(a, b, limits->depth, limits->expansion, same_tensors, d) == TSR_SAME);
    return d->failed;
}

static const tsr_value *find(const tsr_value *dict, const tsr_value *key)
{
    for (size_t i = 0; dict && i < dict->count; i += 2)
        if (tsr_key_equal(dict->items[i], key)) return dict->items[i + 1];
    return NULL;
}

/* Compares the values of two dicts (NULL is empty) by key, and adds those that differ as "NAME.KEY". `scalars`: ignores
 * tensors that are not 0-d. */
static tsr_status compare_dicts(differing *d, tsr_str name, const tsr_value *a, const tsr_value *b, bool scalars,
                                tsr_error *err)
{
    const tsr_value *dicts[2] = {a, b};
    for (unsigned side = 0; side < 2; side++) {
        for (size_t i = 0; dicts[side] && i < dicts[side]->count; i += 2) {
            const tsr_value *key = dicts[side]->items[i], *value = dicts[side]->items[i + 1];
            const tsr_value *counterpart = find(dicts[!side], key);
            bool same;
            tsr_str text;
            if (tsr_is_key(key, "params") || (side && counterpart)) continue;
            if (scalars && tsr_form_of(value) == TSR_FORM_TENSOR) continue;
            TSR_TRY(compare(d, value, counterpart, &same, err));
            if (same) continue;
            TSR_TRY(tsr_key_text(key, d->context->arena, &text, err));
            TSR_TRY(add_name(d, tsr_arena_format(d->context->arena, err, "%.*s.%.*s", TSR_STR_ARG(name), TSR_STR_ARG(text)),
                             err));
        }
    }
    return TSR_OK;
}

/* Indexes a rank's states by id. Their keys are numbers or, if the optimizer saves names, names. */
static tsr_status index_states(const differing *d, const tsr_value *state, const tsr_value **out, tsr_error *err)
{
    if (d->keys.count) memset(out, 0, d->keys.count * sizeof *out);
    for (size_t i = 0; i < state->count; i += 2) {
        const uint32_t id = tsr_flat_keys_find(&d->keys, state->items[i]);
        if (id == UINT32_MAX) continue;
        TSR_TRY(tsr_check_state(state->items[i], state->items[i + 1], err));
        out[id] = state->items[i + 1];
    }
    return TSR_OK;
}

static tsr_status compare_state(differing *d, uint32_t id, tsr_error *err)
{
    const tsr_flat_key *key = &d->keys.keys[id];
    const tsr_value *a = d->mine_by_id[id], *b = d->its_by_id[id];
    const bool kept = key->unit && key->param != TSR_NO_PARAM;
    const tsr_str name = !key->unit ? key->fqn : kept ? key->unit->params[key->param].fqn : key->raw;
    bool scalars = key->unit && key->unit->is_sharded;
    if (scalars && key->unit->is_hybrid) { /* compare tensors only between ranks of two replicas that have the same slice */
        tsr_flat_place mine, its;
        TSR_TRY(tsr_flat_place_of(d->flat, key->unit, d->flat->world_size, d->rank, &mine, err));
        TSR_TRY(tsr_flat_place_of(d->flat, key->unit, d->flat->world_size, d->other, &its, err));
        scalars = mine.slice != its.slice;
    }
    /* A rank without elements of an original has no state of it; tsr_fsdp_unshard compares the scalars of the other
     * ranks. */
    if (scalars && (kept || !a || !b)) return TSR_OK;
    return compare_dicts(d, name, a, b, scalars, err);
}

static tsr_status compare_user_state(differing *d, tsr_error *err)
{
    const tsr_value *states[2] = {d->mine.state, d->its.state};
    for (unsigned side = 0; side < 2; side++) {
        for (size_t i = 0; i < states[side]->count; i += 2) {
            const tsr_value *key = states[side]->items[i];
            bool same;
            tsr_str name;
            if (tsr_flat_keys_find(&d->keys, key) != UINT32_MAX) continue;
            TSR_TRY(compare(d, states[side]->items[i + 1], find(states[!side], key), &same, err));
            if (same) continue;
            TSR_TRY(tsr_key_text(key, d->context->arena, &name, err));
            TSR_TRY(add_name(d, name, err));
        }
    }
    return TSR_OK;
}

static tsr_status compare_groups(differing *d, tsr_error *err)
{
    const size_t mine = d->mine.groups->count, its = d->its.groups->count;
    for (size_t g = 0; g < mine || g < its; g++) {
        const tsr_str name = tsr_arena_format(d->context->arena, err, "param_groups[%zu]", g);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(compare_dicts(d, name, g < mine ? d->mine.groups->items[g] : NULL, g < its ? d->its.groups->items[g] : NULL,
                              false, err));
    }
    return TSR_OK;
}

static tsr_status run(differing *d, const tsr_value *const *ranks, tsr_name_list *out, tsr_error *err)
{
    const tsr_value *list;
    TSR_TRY(tsr_flat_keys_open(d->flat, d->context->host, d->context->arena, &d->keys, err));
    TSR_TRY(tsr_optim_take_apart(ranks[d->rank], true, &d->mine, err));
    d->mine_by_id = tsr_arena_array(d->context->arena, d->keys.count, sizeof *d->mine_by_id, err);
    d->its_by_id = tsr_arena_array(d->context->arena, d->keys.count, sizeof *d->its_by_id, err);
    if (!d->mine_by_id || !d->its_by_id) return TSR_E_NOMEM;
    TSR_TRY(index_states(d, d->mine.state, d->mine_by_id, err));
    for (d->other = 0; d->other < d->flat->world_size; d->other++) {
        if (d->other == d->rank) continue;
        TSR_TRY(tsr_optim_take_apart(ranks[d->other], true, &d->its, err));
        TSR_TRY(index_states(d, d->its.state, d->its_by_id, err));
        for (uint32_t id = 0; id < d->keys.count; id++) TSR_TRY(compare_state(d, id, err));
        TSR_TRY(compare_user_state(d, err));
        TSR_TRY(compare_groups(d, err));
    }
    TSR_TRY(tsr_tree_finish(&d->names, TSR_VALUE_LIST, &list, err));
    tsr_str *names = tsr_arena_array(d->context->arena, list->count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (size_t i = 0; i < list->count; i++) names[i] = list->items[i]->text;
    *out = (tsr_name_list){names, list->count};
    return TSR_OK;
}

tsr_status tsr_fsdp_differences(const tsr_flat_params *flat, const tsr_value *const *ranks, uint32_t rank,
                                const tsr_fsdp_context *context, tsr_name_list *out, tsr_error *err)
{
    TSR_FAIL_IF(rank >= flat->world_size, err, TSR_E_USAGE, "optim: rank %" PRIu32 " is not one of the %" PRIu32 " ranks",
                rank, flat->world_size);
    differing d = {.flat = flat,
                   .context = context,
                   .rank = rank,
                   .listed = tsr_map_new(context->host->allocator, 0, err),
                   .names = tsr_tree_on(context->host, context->arena)};
    *out = (tsr_name_list){NULL, 0};
    const tsr_status status = d.listed ? run(&d, ranks, out, err) : TSR_E_NOMEM;
    tsr_tree_drop(&d.names);
    tsr_map_free(d.listed);
    tsr_flat_keys_close(&d.keys);
    return status;
}
