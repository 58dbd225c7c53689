/* Converts between nested state dicts and dotted keys, by one of two rules. The older rule (`_flatten_state_dict` of
 * torch/distributed/_state_dict_utils.py) expands mappings, lists and tuples. In DCP's flatten_state_dict, tuples are
 * leaves, and so are lists without tensors and mappings. */
#include "tessera/state_keys.h"

#include <inttypes.h>

#include "tessera/sys/alloc.h"
#include "tessera/sys/map.h"
#include "tessera/sys/nest.h"
#include "tessera/sys/optim_tree.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

typedef struct frame {
    const tsr_value *container;
    size_t next;
    tsr_str prefix; /* "a.b." */
} frame;

typedef struct flattening {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec stack; /* frame */
    tsr_vec path;  /* tsr_path_item, one per frame */
    tsr_vec items; /* tsr_state_key */
    tsr_map *seen;
    uint64_t visited;
    bool dcp; /* which of the rules applies */
} flattening;

/* Whether a list contains no tensor or mapping, including in nested lists down to `depth`. */
static bool is_plain_list(const tsr_value *list, uint32_t depth)
{
    for (size_t i = 0; i < list->count && depth; i++) {
        const tsr_value *item = list->items[i];
        if (item->kind == TSR_VALUE_DICT || item->kind == TSR_VALUE_TENSOR) return false;
        if (item->kind == TSR_VALUE_LIST && !is_plain_list(item, depth - 1)) return false;
    }
    return true;
}

static bool expands(const flattening *f, const tsr_value *value)
{
    if (f->dcp)
        return value->kind == TSR_VALUE_DICT ||
               (value->kind == TSR_VALUE_LIST && !is_plain_list(value, f->host->limits.depth));
    return value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE ||
           value->kind == TSR_VALUE_SIZE;
}

static tsr_status enter(flattening *f, const tsr_value *container, tsr_str prefix, tsr_error *err)
{
    uint32_t depth = f->host->limits.depth;
    TSR_FAIL_IF(f->stack.count >= depth, err, TSR_E_LIMIT, "state dict: nested deeper than %" PRIu32, depth);
    frame *top = tsr_vec_push(&f->stack, err);
    if (!top || !tsr_vec_push(&f->path, err)) return TSR_E_NOMEM;
    *top = (frame){container, 0, prefix};
    return TSR_OK;
}

static tsr_status put_leaf(flattening *f, tsr_str name, const tsr_value *value, tsr_error *err)
{
    bool fresh;
    TSR_TRY(tsr_map_put(f->seen, name, 0, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "state dict: two values have the flat key '%.*s'", TSR_STR_ARG(name));
    tsr_path_item *path = tsr_arena_array(f->arena, f->path.count, sizeof *path, err);
    tsr_state_key *key = path ? tsr_vec_push(&f->items, err) : NULL;
    if (!key) return TSR_E_NOMEM;
    memcpy(path, f->path.items, f->path.count * sizeof *path);
    *key = (tsr_state_key){name, path, (uint32_t)f->path.count, value};
    return TSR_OK;
}

/* Moves to the next member of the innermost container, and returns its path item, name and value. */
static tsr_status next_member(flattening *f, frame *top, tsr_str *name, const tsr_value **value, tsr_error *err)
{
    tsr_path_item *item = (tsr_path_item *)f->path.items + f->path.count - 1;
    bool dict = top->container->kind == TSR_VALUE_DICT;
    tsr_str text;
    if (dict) {
        TSR_TRY(tsr_key_text(top->container->items[top->next++], f->arena, &text, err));
        *item = (tsr_path_item){.kind = TSR_PATH_KEY, .key = text};
    } else {
        *item = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = (int64_t)top->next};
        text = tsr_arena_format(f->arena, err, "%zu", top->next);
    }
    *value = top->container->items[top->next++];
    *name = tsr_arena_format(f->arena, err, "%.*s%.*s", TSR_STR_ARG(top->prefix), TSR_STR_ARG(text));
    return text.data && name->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status walk(flattening *f, const tsr_value *root, tsr_error *err)
{
    TSR_TRY(enter(f, root, TSR_STR(""), err));
    while (f->stack.count) {
        frame *top = (frame *)f->stack.items + f->stack.count - 1;
        if (top->next >= top->container->count) {
            f->stack.count--;
            f->path.count--;
            continue;
        }
        tsr_str name;
        const tsr_value *value;
        TSR_FAIL_IF(++f->visited > f->host->limits.expansion, err, TSR_E_LIMIT, "state dict: more than %" PRIu64 " values",
                    f->host->limits.expansion);
        TSR_TRY(next_member(f, top, &name, &value, err));
        if (!expands(f, value)) {
            TSR_TRY(put_leaf(f, name, value, err));
            continue;
        }
        tsr_str prefix = tsr_arena_format(f->arena, err, "%.*s.", TSR_STR_ARG(name));
        if (!prefix.data) return TSR_E_NOMEM;
        TSR_TRY(enter(f, value, prefix, err));
    }
    return TSR_OK;
}

static tsr_status flatten(const tsr_value *state_dict, bool dcp, const tsr_host *host, tsr_arena *arena, tsr_vec *keys,
                          tsr_error *err)
{
    TSR_FAIL_IF(state_dict->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "state dict: expected a dict, found %s",
                tsr_value_kind_name(state_dict));
    const tsr_allocator *a = host->allocator;
    flattening f = {host,
                    arena,
                    tsr_vec_of(a, sizeof(frame)),
                    tsr_vec_of(a, sizeof(tsr_path_item)),
                    tsr_vec_of(a, sizeof(tsr_state_key)),
                    tsr_map_new(a, 0, err),
                    0,
                    dcp};
    const tsr_status status = f.seen ? walk(&f, state_dict, err) : TSR_E_NOMEM;
    *keys = f.items;
    tsr_map_free(f.seen);
    tsr_vec_free(&f.path);
    tsr_vec_free(&f.stack);
    return status;
}

static tsr_status hand_out(tsr_status status, tsr_vec *keys, tsr_arena *arena, tsr_state_key **out, size_t *count,
                           tsr_error *err)
{
    *count = status == TSR_OK ? keys->count : 0;
    *out = status == TSR_OK ? tsr_arena_array(arena, *count, sizeof **out, err) : NULL;
    if (*out && *count) memcpy(*out, keys->items, *count * sizeof **out);
    tsr_vec_free(keys);
    return status == TSR_OK && !*out ? TSR_E_NOMEM : status;
}

tsr_status tsr_state_keys(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                          size_t *count, tsr_error *err)
{
    tsr_vec keys = tsr_vec_of(host->allocator, sizeof(tsr_state_key));
    const tsr_status status = flatten(state_dict, false, host, arena, &keys, err);
    return hand_out(status, &keys, arena, out, count, err);
}

tsr_status tsr_state_keys_dcp(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                              size_t *count, tsr_error *err)
{
    tsr_vec keys = tsr_vec_of(host->allocator, sizeof(tsr_state_key));
    const tsr_status status = flatten(state_dict, true, host, arena, &keys, err);
    return hand_out(status, &keys, arena, out, count, err);
}

tsr_status tsr_state_unflatten(const tsr_state_key *keys, size_t count, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err)
{
    tsr_leaf *leaves = tsr_alloc(host->allocator, count, sizeof *leaves, err);
    if (!leaves && count) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        leaves[i] = (tsr_leaf){keys[i].path, keys[i].path_length, keys[i].value, keys[i].name, false};
        if (keys[i].path_length == 0 || keys[i].path[0].kind == TSR_PATH_INDEX)
            status = tsr_fail(err, TSR_E_USAGE, "state dict: the path of '%.*s' does not begin with a key",
                              TSR_STR_ARG(keys[i].name));
    }
    if (status == TSR_OK) status = tsr_nest(leaves, count, host, arena, out, err);
    tsr_free(host->allocator, leaves, count, sizeof *leaves);
    return status;
}
