/* Nests flat optimizer state (`_unflatten_optim_state_dict` of PyTorch 2.13).
 *
 *     param_groups . blocks.0.up.weight . lr          state . blocks.0.up.weight . inner.0
 *                    └──── FQN ───────┘   └ option            └──── FQN ───────┘   └ path in the state
 *
 * Both the FQN and what follows it may contain any number of dots, so the longest known FQN is used. The options of each
 * parameter are collected first; parameters with the same options then form a group. */
#include <inttypes.h>

#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

/* ---- flatten ---- */

/* Flattens nested optimizer state (`_flatten_optim_state_dict` of PyTorch 2.13).
 *
 *     {"state": {"w": {"step": 1, "inner": {0: t}}},            state.w.step             1
 *      "param_groups": [{"params": ["w", "b"], "lr": 0.1}]}  →  state.w.inner.0          t
 *                                                               param_groups.w.lr        0.1
 *                                                               param_groups.b.lr        0.1
 *
 * In PyTorch, a later value overwrites an earlier one of the same name; here they are rejected if they differ. */

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

/* Whether two tensors consist of the same bytes of one file. */
static bool same_bytes(const tsr_entry *a, const tsr_entry *b)
{
    if (a == b) return true;
    if (a->chunk_count != 1 || b->chunk_count != 1 || a->chunks->file != b->chunks->file) return false;
    const tsr_view *x = a->chunks->view, *y = b->chunks->view;
    bool plain = (!x || !x->strides) && (!y || !y->strides); /* scalars and contiguous tensors, such as options */
    return plain && (x ? x->byte_offset : a->chunks->byte_offset) == (y ? y->byte_offset : b->chunks->byte_offset);
}

/* Whether two values are equal, as far as this is known without reading: tensors must consist of the same bytes. */
static bool same_value(const tsr_value *a, const tsr_value *b)
{
    if (a == b) return true;
    if (tsr_value_match(a, b, 64, 4096) != TSR_SAME) return false;
    return a->kind != TSR_VALUE_TENSOR || same_bytes(a->as.tensor, b->as.tensor);
}

static tsr_status put(flattening *f, tsr_str key, const tsr_value *value, tsr_error *err)
{
    uint32_t *place;
    bool fresh;
    TSR_TRY(count_node(f, err));
    TSR_TRY(tsr_map_put(f->places, key, (uint32_t)(f->out.items.count / 2), &place, &fresh, err));
    if (fresh) return tsr_tree_put(&f->out, key, value, err);
    const tsr_value *earlier = ((const tsr_value **)f->out.items.items)[2 * (size_t)*place + 1];
    bool same = same_value(earlier, value);
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
            if (tsr_is_params(group->items[k])) continue;
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

/* ---- unflatten ---- */

#define GROUPS   TSR_STR("param_groups.")
#define STATE    TSR_STR("state.")
#define NO_GROUP UINT32_MAX

/* An option of a parameter, or a node of its state: either a value, or a dict of the nodes below it. */
typedef struct item {
    tsr_str name;
    const tsr_value *value; /* NULL: a dict that was not built yet */
    uint32_t first, last;   /* children; 0 if there are none */
    uint32_t next;          /* next sibling; 0 if it is the last */
} item;

typedef struct param {
    tsr_str fqn;
    uint32_t options; /* item that has the options; 0 if there is none */
    uint32_t state;   /* item that has the state; 0 if there is none */
    bool grouped;
} param;

typedef struct unflatten_group {
    tsr_vec members; /* uint32_t: params */
    uint64_t hash;   /* of the options */
    uint32_t next;   /* next group with the same hash */
} unflatten_group;

typedef struct unflattening {
    const tsr_unflatten *how;
    const tsr_params *known; /* or NULL */
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec params; /* param, in order of their first option */
    tsr_vec items;  /* item; the first is unused, and children come after their parents */
    tsr_vec groups; /* group */
    tsr_map *by_fqn;
    tsr_map *by_path; /* "state.FQN.a.b", a prefix of a key → item */
    tsr_map *by_hash; /* hash's bytes → first group */
} unflattening;

static param *param_at(const unflattening *u, uint32_t index)
{
    return (param *)u->params.items + index;
}
static item *item_at(const unflattening *u, uint32_t index)
{
    return (item *)u->items.items + index;
}

/* ---- keys ---- */

static bool is_fqn(const unflattening *u, tsr_str text, bool option)
{
    if (u->known) return tsr_params_find(u->known, text) != SIZE_MAX;
    return option || tsr_map_get(u->by_fqn, text, UINT32_MAX) != UINT32_MAX;
}

/* Splits "FQN.rest" after the longest known FQN. Tries at most as many dots as values may be nested. */
static bool split_key(const unflattening *u, tsr_str text, bool option, tsr_str *fqn, tsr_str *rest)
{
    size_t tries = u->host->limits.depth;
    for (size_t at = text.size; at-- > 0 && tries;) {
        if (text.data[at] != '.') continue;
        tries--;
        *fqn = (tsr_str){text.data, at};
        if (!is_fqn(u, *fqn, option)) continue;
        *rest = tsr_str_after(text, at + 1);
        return true;
    }
    return false;
}

static tsr_status find_param(unflattening *u, tsr_str fqn, uint32_t *out, tsr_error *err)
{
    uint32_t *place;
    bool fresh;
    TSR_TRY(tsr_map_put(u->by_fqn, fqn, (uint32_t)u->params.count, &place, &fresh, err));
    *out = *place;
    param *p = fresh ? tsr_vec_push(&u->params, err) : param_at(u, *out);
    if (!p) return TSR_E_NOMEM;
    if (fresh) p->fqn = fqn;
    return TSR_OK;
}

/* Adds an item as a child of `above` (0 for none). */
static tsr_status new_item(unflattening *u, tsr_str name, const tsr_value *value, uint32_t above, uint32_t *out,
                           tsr_error *err)
{
    *out = (uint32_t)u->items.count;
    item *i = tsr_vec_push(&u->items, err);
    if (!i) return TSR_E_NOMEM;
    *i = (item){.name = name, .value = value};
    if (!above) return TSR_OK;
    item *parent = item_at(u, above);
    if (parent->last) item_at(u, parent->last)->next = *out;
    else parent->first = *out;
    parent->last = *out;
    return TSR_OK;
}

/* Walks from the state, which the first `head` bytes of `key` name, down to where the value belongs, and creates the dicts
 * on the way. */
static tsr_status add_state(unflattening *u, uint32_t above, tsr_str key, size_t head, const tsr_value *value,
                            tsr_error *err)
{
    for (size_t at = head; at <= key.size;) {
        const char *dot = at < key.size ? memchr(key.data + at, '.', key.size - at) : NULL;
        size_t end = dot ? (size_t)(dot - key.data) : key.size;
        uint32_t *place;
        bool fresh;
        TSR_TRY(tsr_map_put(u->by_path, (tsr_str){key.data, end}, (uint32_t)u->items.count, &place, &fresh, err));
        uint32_t here = *place;
        TSR_FAIL_IF(!fresh && (!dot || item_at(u, here)->value), err, TSR_E_FORMAT,
                    "optim: '%.*s' occurs twice, or both as a value and as a dict", (int)end, key.data);
        if (fresh) TSR_TRY(new_item(u, (tsr_str){key.data + at, end - at}, dot ? NULL : value, above, &here, err));
        above = here;
        at = end + 1;
    }
    return TSR_OK;
}

static tsr_status read_pair(unflattening *u, tsr_str key, const tsr_value *value, bool option, tsr_error *err)
{
    size_t head = option ? GROUPS.size : STATE.size;
    tsr_str text = {key.data + head, key.size - head}, fqn, rest;
    TSR_FAIL_IF(!split_key(u, text, option, &fqn, &rest), err, TSR_E_FORMAT,
                u->known ? "optim: '%.*s' does not begin with a parameter of the module tree"
                         : "optim: '%.*s' does not belong to a parameter of the param_groups keys",
                TSR_STR_ARG(key));
    uint32_t index, ignored;
    TSR_TRY(find_param(u, fqn, &index, err));
    uint32_t *top = option ? &param_at(u, index)->options : &param_at(u, index)->state;
    if (!*top) TSR_TRY(new_item(u, fqn, option ? value : NULL, 0, top, err)); /* options never become a dict */
    return option ? new_item(u, rest, value, *top, &ignored, err) : add_state(u, *top, key, head + fqn.size + 1, value, err);
}

/* Reads the options first: without a module tree, they show which FQNs exist. */
static tsr_status read_keys(unflattening *u, const tsr_value *flat, tsr_error *err)
{
    TSR_FAIL_IF(flat->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: expected a flat dict, found %s",
                tsr_value_kind_name(flat));
    for (int option = 1; option >= 0; option--) {
        for (size_t i = 0; i < flat->count; i += 2) {
            const tsr_value *key = flat->items[i];
            bool text = key->kind == TSR_VALUE_STR, is_option = text && tsr_str_starts(key->text, GROUPS);
            TSR_FAIL_IF(
                !text || (!is_option && !tsr_str_starts(key->text, STATE)), err, TSR_E_FORMAT,
                "optim: '%.*s' is not a key of a flat optimizer state: it begins with neither 'state.' nor 'param_groups.'",
                TSR_STR_ARG(text ? key->text : TSR_STR("(not a string)")));
            if (is_option == option) TSR_TRY(read_pair(u, key->text, flat->items[i + 1], option, err));
        }
    }
    for (uint32_t i = 0; i < u->params.count; i++)
        TSR_FAIL_IF(!param_at(u, i)->options, err, TSR_E_FORMAT, "optim: there is state for '%.*s', but no param_groups key",
                    TSR_STR_ARG(param_at(u, i)->fqn));
    return TSR_OK;
}

/* ---- groups ---- */

typedef struct comparison {
    const tsr_unflatten *how;
    tsr_status status;
    tsr_error *err;
} comparison;

static bool same_tensors(void *ctx, const tsr_entry *a, const tsr_entry *b)
{
    comparison *c = ctx;
    bool equal = same_bytes(a, b);
    if (!equal && c->how->same) c->status = c->how->same(c->how->ctx, a, b, &equal, c->err);
    return c->status == TSR_OK && equal;
}

static tsr_status same_option(const unflattening *u, const item *a, const item *b, bool *same, tsr_error *err)
{
    const tsr_limits *limits = &u->host->limits;
    comparison c = {u->how, TSR_OK, err};
    *same = tsr_value_match_tensors(a->value, b->value, limits->depth, limits->expansion, same_tensors, &c) == TSR_SAME;
    return c.status;
}

static const item *option_named(const unflattening *u, const param *p, tsr_str name)
{
    uint32_t i = item_at(u, p->options)->first;
    while (i && !tsr_str_equal(item_at(u, i)->name, name)) i = item_at(u, i)->next;
    return i ? item_at(u, i) : NULL;
}

/* Finds the first option in which two parameters differ. `*one` is that of the first parameter (NULL if there is none),
 * `*other` that of the second. If only one of them has the option, both are set to it. Options may be in any order. */
static tsr_status differing_option(const unflattening *u, const param *a, const param *b, const item **one,
                                   const item **other, tsr_error *err)
{
    for (uint32_t i = item_at(u, a->options)->first; i; i = item_at(u, i)->next) {
        bool same = false;
        *one = item_at(u, i);
        *other = option_named(u, b, (*one)->name);
        if (*other) TSR_TRY(same_option(u, *one, *other, &same, err));
        else *other = *one;
        if (!same) return TSR_OK;
    }
    for (uint32_t i = item_at(u, b->options)->first; i; i = item_at(u, i)->next) {
        *one = *other = item_at(u, i);
        if (!option_named(u, a, (*one)->name)) return TSR_OK;
    }
    *one = *other = NULL;
    return TSR_OK;
}

/* A hash that does not depend on the order of the options. */
static uint64_t hash_options(const unflattening *u, const param *p)
{
    uint64_t sum = 0;
    for (uint32_t i = item_at(u, p->options)->first; i; i = item_at(u, i)->next) {
        const tsr_value *v = item_at(u, i)->value;
        uint64_t hash = tsr_hash_bytes(item_at(u, i)->name.data, item_at(u, i)->name.size, (uint64_t)v->kind);
        if (v->kind == TSR_VALUE_INT || v->kind == TSR_VALUE_BOOL)
            hash += (uint64_t)(v->kind == TSR_VALUE_INT ? v->as.integer : v->as.boolean);
        if (v->kind == TSR_VALUE_FLOAT && v->as.real == v->as.real)
            hash = tsr_hash_bytes(&v->as.real, sizeof v->as.real, hash);
        sum += hash;
    }
    return sum;
}

static tsr_status new_group(unflattening *u, unflatten_group **out, tsr_error *err)
{
    *out = tsr_vec_push(&u->groups, err);
    if (!*out) return TSR_E_NOMEM;
    **out = (unflatten_group){tsr_vec_of(u->host->allocator, sizeof(uint32_t)), 0, NO_GROUP};
    return TSR_OK;
}

static tsr_status join_group(unflattening *u, unflatten_group *g, uint32_t index, tsr_error *err)
{
    uint32_t *member = tsr_vec_push(&g->members, err);
    if (!member) return TSR_E_NOMEM;
    *member = index;
    param_at(u, index)->grouped = true;
    return TSR_OK;
}

/* Adds a parameter to the group whose members have the same options, or to a new group. */
static tsr_status group_by_options(unflattening *u, uint32_t index, tsr_error *err)
{
    uint64_t *hash = TSR_ARENA_NEW(u->arena, uint64_t, err);
    if (!hash) return TSR_E_NOMEM;
    *hash = hash_options(u, param_at(u, index));
    uint32_t *first;
    bool fresh;
    TSR_TRY(tsr_map_put(u->by_hash, (tsr_str){(const char *)hash, sizeof *hash}, (uint32_t)u->groups.count, &first, &fresh,
                        err));
    for (uint32_t i = fresh ? NO_GROUP : *first; i != NO_GROUP; i = ((unflatten_group *)u->groups.items)[i].next) {
        unflatten_group *g = (unflatten_group *)u->groups.items + i;
        const item *one, *other;
        TSR_TRY(differing_option(u, param_at(u, *(uint32_t *)g->members.items), param_at(u, index), &one, &other, err));
        if (!one) return join_group(u, g, index, err);
    }
    unflatten_group *g;
    TSR_TRY(new_group(u, &g, err));
    if (!fresh) {
        g->next = *first;
        *first = (uint32_t)u->groups.count - 1;
    }
    return join_group(u, g, index, err);
}

static tsr_status group_as_listed(unflattening *u, const tsr_name_list *list, tsr_error *err)
{
    unflatten_group *g;
    TSR_TRY(new_group(u, &g, err));
    for (size_t i = 0; i < list->count; i++) {
        uint32_t index = tsr_map_get(u->by_fqn, list->names[i], UINT32_MAX);
        TSR_FAIL_IF(index == UINT32_MAX, err, TSR_E_FORMAT, "optim: '%.*s' of the listed groups has no param_groups key",
                    TSR_STR_ARG(list->names[i]));
        param *p = param_at(u, index);
        TSR_FAIL_IF(p->grouped, err, TSR_E_FORMAT, "optim: '%.*s' is in two of the listed groups", TSR_STR_ARG(p->fqn));
        TSR_TRY(join_group(u, g, index, err));
        const param *first = param_at(u, *(uint32_t *)g->members.items);
        const item *ours, *theirs;
        TSR_TRY(differing_option(u, first, p, &ours, &theirs, err));
        TSR_FAIL_IF(ours && ours == theirs, err, TSR_E_FORMAT,
                    "optim: '%.*s' and '%.*s' are in the same group, but only one of them has '%.*s'",
                    TSR_STR_ARG(first->fqn), TSR_STR_ARG(p->fqn), TSR_STR_ARG(ours->name));
        TSR_FAIL_IF(
            ours, err, TSR_E_FORMAT, "optim: '%.*s' and '%.*s' are in the same group, but differ in '%.*s': %.*s and %.*s",
            TSR_STR_ARG(first->fqn), TSR_STR_ARG(p->fqn), TSR_STR_ARG(ours->name),
            TSR_STR_ARG(tsr_value_brief(ours->value, u->arena)), TSR_STR_ARG(tsr_value_brief(theirs->value, u->arena)));
    }
    return TSR_OK;
}

static tsr_status make_groups(unflattening *u, const tsr_name_list *groups, size_t group_count, tsr_error *err)
{
    for (size_t i = 0; groups && i < group_count; i++) TSR_TRY(group_as_listed(u, &groups[i], err));
    for (uint32_t i = 0; i < u->params.count; i++) {
        const param *p = param_at(u, i);
        TSR_FAIL_IF(groups && !p->grouped, err, TSR_E_FORMAT, "optim: '%.*s' is not in any of the listed groups",
                    TSR_STR_ARG(p->fqn));
        if (!p->grouped) TSR_TRY(group_by_options(u, i, err));
    }
    return TSR_OK;
}

/* ---- output ---- */

/* Builds the dict of an item's children, all of which have been built. */
static tsr_status build_dict(unflattening *u, const item *above, const tsr_value **out, tsr_error *err)
{
    tsr_tree tree = tsr_tree_on(u->host, u->arena);
    tsr_status status = TSR_OK;
    for (uint32_t i = above ? above->first : 0; i && status == TSR_OK; i = item_at(u, i)->next)
        status = tsr_tree_put(&tree, item_at(u, i)->name, item_at(u, i)->value, err);
    if (status == TSR_OK) status = tsr_tree_finish(&tree, TSR_VALUE_DICT, out, err);
    tsr_tree_drop(&tree);
    return status;
}

/* Children come after their parents, so going from the last item to the first builds all children in time. */
static tsr_status build_dicts(unflattening *u, tsr_error *err)
{
    for (uint32_t i = (uint32_t)u->items.count; i-- > 1;) {
        if (!item_at(u, i)->value) TSR_TRY(build_dict(u, item_at(u, i), &item_at(u, i)->value, err));
    }
    return TSR_OK;
}

static tsr_status put_state(unflattening *u, const param *p, tsr_tree *state, tsr_error *err)
{
    const tsr_value *dict = p->state ? item_at(u, p->state)->value : NULL;
    if (!dict) TSR_TRY(build_dict(u, NULL, &dict, err));
    return tsr_tree_put(state, p->fqn, dict, err);
}

/* With a module tree, a parameter that requires gradients has state, even if it is empty; without one, if there is any. */
static tsr_status wants_state(const unflattening *u, const param *p, bool *out, tsr_error *err)
{
    *out = p->state != 0;
    if (!u->known) return TSR_OK;
    const bool frozen = !tsr_params_at(u->known, tsr_params_find(u->known, p->fqn))->tensor->requires_grad;
    if (frozen && p->state && u->how->frozen) return u->how->frozen(u->how->ctx, p->fqn, err);
    *out = !frozen;
    return TSR_OK;
}

static tsr_status put_group(unflattening *u, const unflatten_group *g, tsr_tree *state, tsr_tree *groups, tsr_error *err)
{
    tsr_tree names = tsr_tree_on(u->host, u->arena), dict = tsr_tree_on(u->host, u->arena);
    const tsr_value *built = NULL;
    const uint32_t *members = g->members.items;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < g->members.count && status == TSR_OK; i++) {
        const param *p = param_at(u, members[i]);
        status = tsr_tree_add(&names, tsr_value_str(u->arena, p->fqn, err), err);
        bool wanted = false;
        if (status == TSR_OK) status = wants_state(u, p, &wanted, err);
        if (wanted && status == TSR_OK) status = put_state(u, p, state, err);
    }
    if (status == TSR_OK) status = tsr_tree_finish(&names, TSR_VALUE_LIST, &built, err);
    if (status == TSR_OK) status = tsr_tree_put(&dict, TSR_STR("params"), built, err);
    for (uint32_t i = g->members.count ? item_at(u, param_at(u, members[0])->options)->first : 0; i && status == TSR_OK;
         i = item_at(u, i)->next)
        status = tsr_tree_put(&dict, item_at(u, i)->name, item_at(u, i)->value, err);
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, &built, err);
    if (status == TSR_OK) status = tsr_tree_add(groups, built, err);
    tsr_tree_drop(&dict);
    tsr_tree_drop(&names);
    return status;
}

static tsr_status put_all(unflattening *u, const tsr_value **out, tsr_error *err)
{
    tsr_tree state = tsr_tree_on(u->host, u->arena), groups = tsr_tree_on(u->host, u->arena);
    const tsr_value *state_dict = NULL, *group_list = NULL;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < u->groups.count && status == TSR_OK; i++)
        status = put_group(u, (unflatten_group *)u->groups.items + i, &state, &groups, err);
    if (status == TSR_OK) status = tsr_tree_finish(&state, TSR_VALUE_DICT, &state_dict, err);
    if (status == TSR_OK) status = tsr_tree_finish(&groups, TSR_VALUE_LIST, &group_list, err);
    if (status == TSR_OK) status = tsr_tree_optim(state_dict, group_list, u->arena, out, err);
    tsr_tree_drop(&groups);
    tsr_tree_drop(&state);
    return status;
}

static tsr_status unflatten_run(unflattening *u, const tsr_value *flat, const tsr_value **out, tsr_error *err)
{
    if (!u->by_fqn || !u->by_path || !u->by_hash || !tsr_vec_push(&u->items, err)) return TSR_E_NOMEM;
    TSR_TRY(read_keys(u, flat, err));
    TSR_TRY(make_groups(u, u->how->groups, u->how->group_count, err));
    TSR_TRY(build_dicts(u, err));
    return put_all(u, out, err);
}

tsr_status tsr_optim_unflatten(const tsr_value *flat, const tsr_unflatten *how, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err)
{
    const tsr_allocator *a = host->allocator;
    unflattening u = {how,
                      how->params,
                      host,
                      arena,
                      tsr_vec_of(a, sizeof(param)),
                      tsr_vec_of(a, sizeof(item)),
                      tsr_vec_of(a, sizeof(unflatten_group)),
                      tsr_map_new(a, 0, err),
                      tsr_map_new(a, 0, err),
                      tsr_map_new(a, 0, err)};
    tsr_status status = unflatten_run(&u, flat, out, err);
    for (size_t i = 0; i < u.groups.count; i++) tsr_vec_free(&((unflatten_group *)u.groups.items)[i].members);
    tsr_map_free(u.by_hash);
    tsr_map_free(u.by_path);
    tsr_map_free(u.by_fqn);
    tsr_vec_free(&u.groups);
    tsr_vec_free(&u.items);
    tsr_vec_free(&u.params);
    return status;
}
