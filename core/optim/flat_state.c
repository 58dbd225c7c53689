/* Nests flat optimizer state without param_groups, as safetensors files store it, using the names in the description of the
 * flat parameters.
 *
 *     state . c.weight . exp_avg        the longest known FQN is used
 *             └─ FQN ─┘  └ the state's name */
#include "optim/flat_unit.h"
#include "optim/tree.h"
#include "tessera/sys/try.h"

#include "tessera/sys/fsdp_optim.h"

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
    return tsr_tree_put((tsr_tree *)n->params.items + index, (tsr_str){rest.data + at, rest.size - at}, value, err);
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
