/* Finds what a single full optimizer state cannot represent: state that FSDP1 does not shard and that differs between ranks.
 * Sharded state is one object that all ranks form together; each rank has its own copy of everything else.
 *
 *   no unit, NO_SHARD           a rank's whole state of the parameter
 *   HYBRID units                a slice, which every replica has
 *   flat parameters             their scalars
 *   of no parameter, options    all of it */
#include <inttypes.h>
#include <string.h>

#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

#include "tessera/sys/catalog.h"

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
            if (tsr_is_params(key) || (side && counterpart)) continue;
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

/* ---- flat state without param groups ---- */

/* Nests flat optimizer state without param_groups, as safetensors files store it, using the names in the description of the
 * flat parameters.
 *
 *     state . c.weight . exp_avg        the longest known FQN is used
 *             └─ FQN ─┘  └ the state's name */
#define STATE TSR_STR("state.")

typedef struct nesting {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_flat_keys keys;
    tsr_map *by_fqn; /* FQN → its tree in `params` */
    tsr_vec names;   /* tsr_str */
    tsr_vec params;  /* tsr_tree */
} nesting;

/* Where the state's name begins, after the longest known FQN; 0 if no known FQN fits. */
static size_t find_name(const nesting *n, tsr_str rest)
{
    for (size_t at = rest.size; at-- > 0;) {
        if (rest.data[at] != '.') continue;
        if (tsr_map_get(n->keys.by_fqn, (tsr_str){rest.data, at}, UINT32_MAX) != UINT32_MAX) return at + 1;
    }
    return 0;
}

static tsr_status add_pair(nesting *n, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(key->kind != TSR_VALUE_STR || !tsr_str_starts(key->text, STATE), err, TSR_E_FORMAT,
                "optim: '%.*s' is not a key of a flat optimizer state", TSR_STR_ARG(key->text));
    tsr_str rest = {key->text.data + STATE.size, key->text.size - STATE.size};
    size_t at = find_name(n, rest);
    TSR_FAIL_IF(at == 0, err, TSR_E_FORMAT,
                "optim: '%.*s' does not name a parameter in the param groups of the flat-params document",
                TSR_STR_ARG(key->text));
    uint32_t *place;
    bool fresh;
    tsr_str fqn = {rest.data, at - 1};
    TSR_TRY(tsr_map_put(n->by_fqn, fqn, (uint32_t)n->params.count, &place, &fresh, err));
    uint32_t index = *place;
    if (fresh) {
        tsr_tree *tree = tsr_vec_push(&n->params, err);
        tsr_str *name = tree ? tsr_vec_push(&n->names, err) : NULL;
        if (tree) *tree = tsr_tree_on(n->host, n->arena);
        if (!name) return TSR_E_NOMEM;
        *name = fqn;
    }
    return tsr_tree_put((tsr_tree *)n->params.items + index, tsr_str_after(rest, at), value, err);
}

static tsr_status build(nesting *n, const tsr_value *flat, const tsr_value **out, tsr_error *err)
{
    for (size_t i = 0; i < flat->count; i += 2) TSR_TRY(add_pair(n, flat->items[i], flat->items[i + 1], err));
    const tsr_value *state, **items = tsr_arena_array(n->arena, 2 * n->params.count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < n->params.count; i++) {
        items[2 * i] = tsr_value_str(n->arena, ((const tsr_str *)n->names.items)[i], err);
        TSR_TRY(tsr_tree_finish((tsr_tree *)n->params.items + i, TSR_VALUE_DICT, &items[2 * i + 1], err));
        if (!items[2 * i]) return TSR_E_NOMEM;
    }
    state = tsr_value_items(n->arena, TSR_VALUE_DICT, items, 2 * n->params.count, err);
    return state ? tsr_tree_optim(state, NULL, n->arena, out, err) : TSR_E_NOMEM;
}

tsr_status tsr_fsdp_nest_state(const tsr_flat_params *params, const tsr_value *flat, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err)
{
    const tsr_allocator *a = host->allocator;
    TSR_FAIL_IF(flat->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: expected a dict, found %s",
                tsr_value_kind_name(flat));
    nesting n = {.host = host,
                 .arena = arena,
                 .by_fqn = tsr_map_new(a, 0, err),
                 .names = tsr_vec_of(a, sizeof(tsr_str)),
                 .params = tsr_vec_of(a, sizeof(tsr_tree))};
    tsr_status status = tsr_flat_keys_open(params, host, arena, &n.keys, err);
    if (status == TSR_OK) status = n.by_fqn ? build(&n, flat, out, err) : TSR_E_NOMEM;
    for (size_t i = 0; i < n.params.count; i++) tsr_tree_drop((tsr_tree *)n.params.items + i);
    tsr_vec_free(&n.params);
    tsr_vec_free(&n.names);
    tsr_map_free(n.by_fqn);
    tsr_flat_keys_close(&n.keys);
    return status;
}
