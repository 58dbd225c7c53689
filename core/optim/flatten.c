/* Flattens nested optimizer state (`_flatten_optim_state_dict` of PyTorch 2.13).
 *
 *     {"state": {"w": {"step": 1, "inner": {0: t}}},            state.w.step             1
 *      "param_groups": [{"params": ["w", "b"], "lr": 0.1}]}  →  state.w.inner.0          t
 *                                                               param_groups.w.lr        0.1
 *                                                               param_groups.b.lr        0.1
 *
 * In PyTorch, a later value overwrites an earlier one of the same name; here they are rejected if they differ. */
#include <inttypes.h>

#include "optim/tree.h"
#include "tessera/optim.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

typedef struct frame {
    const tsr_value *dict;
    size_t next;
    tsr_str prefix;
} frame;

typedef struct flattening {
    tsr_tree out;
    tsr_vec stack;   /* frame */
    tsr_map *places; /* flat key → index of its pair */
    uint64_t nodes;  /* visited so far */
} flattening;

/* Counts a node, which may be a shared dict that is visited several times. */
static tsr_status count_node(flattening *f, tsr_error *err)
{
    uint64_t most = f->out.host->limits.expansion;
    TSR_FAIL_IF(++f->nodes > most, err, TSR_E_LIMIT, "optim: more than %" PRIu64 " values when flattened", most);
    return TSR_OK;
}

static tsr_status put(flattening *f, tsr_str key, const tsr_value *value, tsr_error *err)
{
    uint32_t *place;
    bool fresh;
    TSR_TRY(count_node(f, err));
    TSR_TRY(tsr_map_put(f->places, key, (uint32_t)(f->out.items.count / 2), &place, &fresh, err));
    if (fresh) return tsr_tree_put(&f->out, key, value, err);
    const tsr_value *earlier = ((const tsr_value **)f->out.items.items)[2 * (size_t)*place + 1];
    bool same = tsr_same_value(earlier, value);
    TSR_FAIL_IF(!same, err, TSR_E_FORMAT, "optim: two different values have the flat name '%.*s': %.*s and %.*s",
                TSR_STR_ARG(key), TSR_STR_ARG(tsr_value_brief(earlier, f->out.arena)),
                TSR_STR_ARG(tsr_value_brief(value, f->out.arena)));
    return TSR_OK;
}

static tsr_status join(flattening *f, tsr_str prefix, const tsr_value *key, tsr_str *out, tsr_error *err)
{
    tsr_str text;
    TSR_TRY(tsr_key_text(key, f->out.arena, &text, err));
    *out = tsr_arena_format(f->out.arena, err, "%.*s.%.*s", TSR_STR_ARG(prefix), TSR_STR_ARG(text));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status push_dict(flattening *f, const tsr_value *dict, tsr_str prefix, tsr_error *err)
{
    uint32_t depth = f->out.host->limits.depth;
    TSR_FAIL_IF(f->stack.count >= depth, err, TSR_E_LIMIT, "optim: state is nested deeper than %" PRIu32 " dicts, at '%.*s'",
                depth, TSR_STR_ARG(prefix));
    TSR_TRY(count_node(f, err));
    frame *top = tsr_vec_push(&f->stack, err);
    if (!top) return TSR_E_NOMEM;
    *top = (frame){dict, 0, prefix};
    return TSR_OK;
}

static bool is_supported(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_TENSOR:
    case TSR_VALUE_INT:
    case TSR_VALUE_BIGINT:
    case TSR_VALUE_BOOL: /* a Python bool is an int */
    case TSR_VALUE_FLOAT: return true;
    default: return false;
    }
}

static tsr_status flatten_state(flattening *f, const tsr_value *state, tsr_error *err)
{
    TSR_TRY(push_dict(f, state, TSR_STR("state"), err));
    while (f->stack.count) {
        frame *top = (frame *)f->stack.items + f->stack.count - 1;
        if (top->next == top->dict->count) {
            f->stack.count--;
            continue;
        }
        const tsr_value *key = top->dict->items[top->next], *value = top->dict->items[top->next + 1];
        tsr_str name;
        top->next += 2;
        TSR_TRY(join(f, top->prefix, key, &name, err));
        if (f->stack.count == 1) TSR_TRY(tsr_check_state(key, value, err));
        if (value->kind == TSR_VALUE_DICT) {
            TSR_TRY(push_dict(f, value, name, err));
            continue;
        }
        TSR_FAIL_IF(!is_supported(value), err, TSR_E_UNSUPPORTED,
                    "optim: '%.*s' is a %s; only tensors, ints, floats and dicts of them can be flattened",
                    TSR_STR_ARG(name), tsr_value_kind_name(value));
        TSR_TRY(put(f, name, value, err));
    }
    return TSR_OK;
}

static tsr_status flatten_group(flattening *f, const tsr_value *group, tsr_error *err)
{
    const tsr_value *params = tsr_group_params(group);
    for (size_t i = 0; i < params->count; i++) {
        tsr_str prefix, name;
        TSR_TRY(join(f, TSR_STR("param_groups"), params->items[i], &prefix, err));
        for (size_t k = 0; k < group->count; k += 2) {
            if (tsr_is_key(group->items[k], "params")) continue;
            TSR_TRY(join(f, prefix, group->items[k], &name, err));
            TSR_TRY(put(f, name, group->items[k + 1], err));
        }
    }
    return TSR_OK;
}

static tsr_status run(flattening *f, const tsr_optim_parts *parts, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(flatten_state(f, parts->state, err));
    for (size_t i = 0; i < parts->groups->count; i++) TSR_TRY(flatten_group(f, parts->groups->items[i], err));
    return tsr_tree_finish(&f->out, TSR_VALUE_DICT, out, err);
}

tsr_status tsr_optim_flatten(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                             tsr_error *err)
{
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(nested, true, &parts, err));
    flattening f = {tsr_tree_on(host, arena), tsr_vec_of(host->allocator, sizeof(frame)),
                    tsr_map_new(host->allocator, 0, err), 0};
    tsr_status status = f.places ? run(&f, &parts, out, err) : TSR_E_NOMEM;
    tsr_map_free(f.places);
    tsr_vec_free(&f.stack);
    tsr_tree_drop(&f.out);
    return status;
}
