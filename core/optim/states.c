/* See optim_states.h. An entry's path shows what it is:
 *
 *   optim, "state", FQN or id, name        a state
 *   optim, "param_groups", 0, "params"     the parameters of a group
 *   optim, "state.FQN.name"                a state, flattened
 *   optim, "param_groups.FQN.key"          a parameter's option, flattened */
#include <inttypes.h>
#include <math.h>

#include "model/nest.h"
#include "optim/tree.h"
#include "tessera/optim.h"
#include "tessera/state_keys.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/optim_live.h"
#include "tessera/sys/optim_states.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

typedef enum role { ROLE_NONE, ROLE_STATE, ROLE_GROUP, ROLE_MEMBER } role;

typedef struct part {
    role role;
    tsr_str optimizer, parameter, name;
} part;

typedef struct found {
    uint32_t row, name;
    const tsr_entry *entry;
} found;

typedef struct states_optimizer {
    tsr_str name;
    tsr_map *rows, *names; /* text → index in the lists below */
    tsr_vec row_list;      /* of tsr_param_states */
    tsr_vec name_list;     /* of tsr_str */
    tsr_vec states;        /* of found */
} states_optimizer;

typedef struct survey {
    const tsr_catalog *catalog;
    const tsr_allocator *allocator;
    tsr_arena *arena;
    tsr_error *err;
    tsr_vec optimizers; /* of optimizer */
    tsr_map *values;    /* last key → index of the entry */
} survey;

/* The part of the FQN that stands for path items [from, to). No data if the FQN does not consist of the path joined with
 * dots. */
static tsr_str slice(const tsr_entry *entry, uint32_t from, uint32_t to)
{
    size_t at = 0, begin = 0;
    for (uint32_t i = 0; i < to; i++) {
        if (i == from) begin = at;
        at += tsr_path_item_size(&entry->path[i]) + 1;
    }
    if (from == to) return (tsr_str){entry->fqn.data, 0};
    return at <= entry->fqn.size + 1 ? (tsr_str){entry->fqn.data + begin, at - 1 - begin} : (tsr_str){NULL, 0};
}

/* Parses "state.FQN.name" and "param_groups.FQN.key". */
static part part_of_flat(tsr_str owner, tsr_str key)
{
    const tsr_str state = TSR_STR("state."), groups = TSR_STR("param_groups.");
    const tsr_str head = tsr_str_starts(key, state) ? state : groups;
    part p = {ROLE_NONE, owner, {NULL, 0}, {NULL, 0}};
    if (!tsr_str_starts(key, head)) return p;
    size_t dot = key.size;
    while (dot > head.size && key.data[dot - 1] != '.') dot--;
    if (dot <= head.size + 1) return p;
    p.role = head.size == state.size ? ROLE_STATE : ROLE_MEMBER;
    p.parameter = (tsr_str){key.data + head.size, dot - 1 - head.size};
    p.name = (tsr_str){key.data + dot, key.size - dot};
    return p;
}

static part part_of(const tsr_entry *entry)
{
    const uint32_t n = entry->path_length;
    if (!entry->path || n == 0) return part_of_flat(TSR_STR(""), entry->fqn);
    for (uint32_t k = 0; k + 2 < n; k++) {
        if (entry->path[k].kind != TSR_PATH_KEY) continue;
        if (tsr_str_equal(entry->path[k].key, TSR_STR("state")) && entry->path[k + 1].kind != TSR_PATH_INDEX)
            return (part){ROLE_STATE, slice(entry, 0, k), slice(entry, k + 1, k + 2), slice(entry, k + 2, n)};
        if (tsr_str_equal(entry->path[k].key, TSR_STR("param_groups")) && entry->path[k + 2].kind == TSR_PATH_KEY &&
            tsr_str_equal(entry->path[k + 2].key, TSR_STR("params")))
            return (part){ROLE_GROUP, slice(entry, 0, k), {NULL, 0}, {NULL, 0}};
    }
    const tsr_path_item *last = &entry->path[n - 1];
    if (last->kind != TSR_PATH_KEY) return (part){ROLE_NONE, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    return part_of_flat(slice(entry, 0, n - 1), last->key);
}

static tsr_status find_optimizer(survey *s, tsr_str name, states_optimizer **out)
{
    states_optimizer *list = s->optimizers.items;
    for (size_t i = 0; i < s->optimizers.count; i++) {
        if (!tsr_str_equal(list[i].name, name)) continue;
        *out = &list[i];
        return TSR_OK;
    }
    states_optimizer *o = tsr_vec_push(&s->optimizers, s->err);
    if (!o) return TSR_E_NOMEM;
    o->name = name;
    o->row_list = tsr_vec_of(s->allocator, sizeof(tsr_param_states));
    o->name_list = tsr_vec_of(s->allocator, sizeof(tsr_str));
    o->states = tsr_vec_of(s->allocator, sizeof(found));
    o->rows = tsr_map_new(s->allocator, 0, s->err);
    o->names = o->rows ? tsr_map_new(s->allocator, 0, s->err) : NULL;
    *out = o;
    return o->names ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status find_row(survey *s, states_optimizer *o, tsr_str parameter, bool in_group, uint32_t *out)
{
    uint32_t *index;
    bool inserted;
    TSR_TRY(tsr_map_put(o->rows, parameter, (uint32_t)o->row_list.count, &index, &inserted, s->err));
    *out = *index;
    if (inserted) {
        tsr_param_states *row = tsr_vec_push(&o->row_list, s->err);
        if (!row) return TSR_E_NOMEM;
        row->parameter = parameter;
    }
    ((tsr_param_states *)o->row_list.items)[*out].in_group |= in_group;
    return TSR_OK;
}

static tsr_status add_state(survey *s, states_optimizer *o, const part *p, const tsr_entry *entry)
{
    uint32_t row, *name;
    bool inserted;
    TSR_TRY(find_row(s, o, p->parameter, false, &row));
    TSR_TRY(tsr_map_put(o->names, p->name, (uint32_t)o->name_list.count, &name, &inserted, s->err));
    tsr_str *text = inserted ? tsr_vec_push(&o->name_list, s->err) : NULL;
    found *state = tsr_vec_push(&o->states, s->err);
    if (!state || (inserted && !text)) return TSR_E_NOMEM;
    if (text) *text = p->name;
    *state = (found){row, *name, entry};
    return TSR_OK;
}

static tsr_status add_group(survey *s, states_optimizer *o, const tsr_entry *entry)
{
    const tsr_value *list = entry->value;
    for (size_t i = 0; list && list->kind == TSR_VALUE_LIST && i < list->count; i++) {
        const tsr_value *item = list->items[i];
        uint32_t row;
        tsr_str name = item->text;
        if (item->kind == TSR_VALUE_INT) name = tsr_arena_format(s->arena, s->err, "%" PRId64, item->as.integer);
        else if (item->kind != TSR_VALUE_STR) continue;
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(find_row(s, o, name, true, &row));
    }
    return TSR_OK;
}

static tsr_status take(survey *s, const tsr_entry *entry, bool groups)
{
    const part p = part_of(entry);
    const bool is_group = p.role == ROLE_GROUP || p.role == ROLE_MEMBER;
    states_optimizer *o;
    uint32_t row;
    if (p.role == ROLE_NONE || is_group != groups || !p.optimizer.data) return TSR_OK;
    TSR_TRY(find_optimizer(s, p.optimizer, &o));
    if (p.role == ROLE_GROUP) return add_group(s, o, entry);
    if (p.role == ROLE_MEMBER) return find_row(s, o, p.parameter, true, &row);
    return tsr_map_count(o->rows) ? add_state(s, o, &p, entry) : TSR_OK;
}

/* Records names of possible parameters: the last key, and the FQN, of every tensor that does not belong to an optimizer. */
static tsr_status take_value(survey *s, uint32_t index)
{
    const tsr_entry *entry = &s->catalog->entries[index];
    const uint32_t n = entry->path_length;
    if (entry->kind != TSR_ENTRY_TENSOR || part_of(entry).role != ROLE_NONE) return TSR_OK;
    const tsr_path_item *last = entry->path && n ? &entry->path[n - 1] : NULL;
    if (last && last->kind == TSR_PATH_KEY) TSR_TRY(tsr_map_put(s->values, last->key, index, NULL, NULL, s->err));
    return tsr_map_put(s->values, entry->fqn, index, NULL, NULL, s->err);
}

static tsr_status finish(const survey *s, states_optimizer *o, tsr_optim_states *out)
{
    const size_t rows = o->row_list.count, names = o->name_list.count;
    const found *states = o->states.items;
    TSR_FAIL_IF(names && rows > SIZE_MAX / names, s->err, TSR_E_LIMIT, "%zu parameters with %zu kinds of state are too many",
                rows, names);
    tsr_param_states *list = tsr_arena_array(s->arena, rows, sizeof *list, s->err);
    tsr_str *texts = list ? tsr_arena_array(s->arena, names, sizeof *texts, s->err) : NULL;
    const tsr_entry **table = texts ? tsr_arena_array(s->arena, rows * names, sizeof(tsr_entry *), s->err) : NULL;
    if (!table) return TSR_E_NOMEM;
    if (rows) memcpy(list, o->row_list.items, rows * sizeof *list);
    if (names) memcpy(texts, o->name_list.items, names * sizeof *texts);
    for (size_t i = 0; i < o->states.count; i++) {
        const tsr_entry **cell = &table[states[i].row * names + states[i].name];
        list[states[i].row].state_count += !*cell;
        *cell = states[i].entry;
    }
    for (size_t r = 0; r < rows; r++) {
        const uint32_t at = tsr_map_get(s->values, list[r].parameter, UINT32_MAX);
        list[r].states = table + r * names;
        list[r].entry = at == UINT32_MAX ? NULL : &s->catalog->entries[at];
    }
    *out = (tsr_optim_states){o->name, texts, (uint32_t)names, list, (uint32_t)rows};
    return TSR_OK;
}

static tsr_status run(survey *s, tsr_optim_states **out, uint32_t *count)
{
    const uint64_t entries = s->catalog->entry_count;
    TSR_FAIL_IF(entries >= UINT32_MAX, s->err, TSR_E_LIMIT, "%" PRIu64 " entries are too many", entries);
    /* Groups first: they determine the order of the rows, and without groups it is not an optimizer. */
    for (uint64_t i = 0; i < entries; i++) TSR_TRY(take(s, &s->catalog->entries[i], true));
    if (s->optimizers.count == 0) return TSR_OK;
    for (uint64_t i = 0; i < entries; i++) {
        TSR_TRY(take(s, &s->catalog->entries[i], false));
        TSR_TRY(take_value(s, (uint32_t)i));
    }
    states_optimizer *list = s->optimizers.items;
    *out = tsr_arena_array(s->arena, s->optimizers.count, sizeof **out, s->err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < s->optimizers.count; i++) {
        if (list[i].row_list.count) TSR_TRY(finish(s, &list[i], &(*out)[(*count)++]));
    }
    return TSR_OK;
}

tsr_status tsr_optim_states_of(const tsr_catalog *catalog, const tsr_allocator *allocator, tsr_arena *arena,
                               tsr_optim_states **out, uint32_t *count, tsr_error *err)
{
    survey s = {
        catalog, allocator, arena, err, tsr_vec_of(allocator, sizeof(states_optimizer)), tsr_map_new(allocator, 0, err)};
    *out = NULL;
    *count = 0;
    const tsr_status status = s.values ? run(&s, out, count) : TSR_E_NOMEM;
    states_optimizer *list = s.optimizers.items;
    for (size_t i = 0; i < s.optimizers.count; i++) {
        tsr_map_free(list[i].rows);
        tsr_map_free(list[i].names);
        tsr_vec_free(&list[i].row_list);
        tsr_vec_free(&list[i].name_list);
        tsr_vec_free(&list[i].states);
    }
    tsr_vec_free(&s.optimizers);
    tsr_map_free(s.values);
    return status;
}

/* ---- keys ---- */

/* Converts between nested state dicts and dotted keys, by one of two rules. The older rule (`_flatten_state_dict` of
 * torch/distributed/_state_dict_utils.py) expands mappings, lists and tuples. In DCP's flatten_state_dict, tuples are
 * leaves, and so are lists without tensors and mappings. */

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

/* ---- first state ---- */

/* The state of an optimizer after its first step, both computed and on a live optimizer (`_init_optim_state` of PyTorch 2.13
 * takes a step with zero gradients and learning rate 0, to create the state that a checkpoint is loaded into). Also the
 * checks before getting and loading state. */

static bool is_true(const tsr_value *options, const char *key)
{
    const tsr_value *v = tsr_value_get(options, tsr_str_from(key));
    if (!v) return false;
    switch (v->kind) {
    case TSR_VALUE_BOOL: return v->as.boolean;
    case TSR_VALUE_INT: return v->as.integer != 0;
    case TSR_VALUE_FLOAT: return v->as.real != 0;
    default: return v->kind != TSR_VALUE_NONE;
    }
}

static bool is_number(const tsr_value *v)
{
    return v->kind == TSR_VALUE_FLOAT || v->kind == TSR_VALUE_INT || v->kind == TSR_VALUE_BOOL;
}

static double number(const tsr_value *v)
{
    return v->kind == TSR_VALUE_FLOAT ? v->as.real : v->kind == TSR_VALUE_INT ? (double)v->as.integer : v->as.boolean;
}

static tsr_status real_option(const tsr_value *options, const char *key, double *out, tsr_error *err)
{
    const tsr_value *v = tsr_value_get(options, tsr_str_from(key));
    *out = 0;
    if (!v) return TSR_OK;
    TSR_FAIL_IF(!is_number(v), err, TSR_E_UNSUPPORTED, "optim: '%s' is a %s; the first state is only known for numbers", key,
                tsr_value_kind_name(v));
    *out = number(v);
    return TSR_OK;
}

/* betas[i]; 0.9 and 0.999 if there are none. */
static tsr_status beta(const tsr_value *options, size_t i, double *out, tsr_error *err)
{
    const tsr_value *betas = tsr_value_get(options, TSR_STR("betas"));
    *out = i ? 0.999 : 0.9;
    if (!betas) return TSR_OK;
    TSR_FAIL_IF(
        betas->count != 2 || !is_number(betas->items[i]), err, TSR_E_UNSUPPORTED,
        "optim: 'betas' is not a pair of numbers; with weight decay, the first state is only known for a pair of numbers");
    *out = number(betas->items[i]);
    return TSR_OK;
}

static tsr_state_spec like_parameter(const char *name, const tsr_module_tensor *param)
{
    return (tsr_state_spec){.name = tsr_str_from(name), .dtype = param->dtype, .ndim = param->ndim, .shape = param->shape};
}

static bool is_complex(const tsr_module_tensor *param)
{
    return param->dtype == TSR_COMPLEX64 || param->dtype == TSR_COMPLEX128;
}

/* Sets the gradient of the step: zeros. They are negative with "maximize", except for complex parameters. Unless weight
 * decay is decoupled from the gradient, decay × parameter is added. */
static tsr_status gradient_into(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *spec,
                                tsr_error *err)
{
    const bool decoupled = step->algorithm == TSR_ADAMW || is_true(step->options, "decoupled_weight_decay");
    spec->value = is_true(step->options, "maximize") && !is_complex(param) ? -0.0 : 0;
    return decoupled ? TSR_OK : real_option(step->options, "weight_decay", &spec->decay, err);
}

static tsr_status sgd_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out, size_t *count,
                            tsr_error *err)
{
    if (!is_true(step->options, "momentum")) return TSR_OK;
    out[0] = like_parameter("momentum_buffer", param);
    out[0].fused = is_true(step->options, "fused");
    *count = 1;
    TSR_TRY(gradient_into(step, param, &out[0], err));
    if (out[0].decay != 0) out[0].source = TSR_STATE_GRADIENT;
    return TSR_OK;
}

/* The mean after the step. A mean of zeros is +0, except that of negative zeros if there is no previous value. */
static tsr_status adam_mean(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_source source,
                            tsr_state_spec *spec, tsr_error *err)
{
    double b = 0;
    const bool square = source == TSR_STATE_SQUARE;
    TSR_TRY(gradient_into(step, param, spec, err));
    if (spec->decay == 0 && (square || !signbit(spec->value))) {
        spec->value = 0;
        return TSR_OK;
    }
    TSR_TRY(beta(step->options, square, &b, err));
    spec->source = source;
    spec->fused = is_true(step->options, "fused");
    const bool tensors = step->tensor_betas && !spec->fused; /* fused steps turn them into numbers */
    spec->beta = b;
    spec->weight = tensors && square ? step->second_weight : 1 - b;
    spec->beta_cast = tensors && !square;
    return TSR_OK;
}

static tsr_status adam_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out, size_t *count,
                             tsr_error *err)
{
    static const char *const names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    const bool fused = is_true(step->options, "fused"), wide = step->default_dtype == TSR_FLOAT64 && !fused;
    const size_t most = is_true(step->options, "amsgrad") ? 3 : 2;
    out[0] = (tsr_state_spec){.name = TSR_STR("step"), .dtype = wide ? TSR_FLOAT64 : TSR_FLOAT32, .value = 1};
    out[0].scalar = true;
    out[0].on_device = fused || is_true(step->options, "capturable");
    for (size_t i = 0; i < most; i++) {
        out[i + 1] = like_parameter(names[i], param);
        TSR_TRY(adam_mean(step, param, i ? TSR_STATE_SQUARE : TSR_STATE_MEAN, &out[i + 1], err));
    }
    *count = most + 1;
    return TSR_OK;
}

tsr_status tsr_optim_first_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out,
                                 size_t *count, tsr_error *err)
{
    *count = 0;
    TSR_FAIL_IF(step->options->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: a param group is a %s; expected a dict",
                tsr_value_kind_name(step->options));
    if (!param->requires_grad) return TSR_OK;
    switch (step->algorithm) {
    case TSR_SGD: return sgd_state(step, param, out, count, err);
    case TSR_ADAM:
    case TSR_ADAMW: return adam_state(step, param, out, count, err);
    default: break;
    }
    return tsr_fail(err, TSR_E_USAGE, "optim: the first state of this algorithm is unknown; the caller must provide it");
}

/* ---- a live optimizer ---- */

static bool is_untouched(const tsr_live_optimizer *o)
{
    if (o->has_state(o->ctx)) return false;
    for (size_t g = 0; g < o->group_count; g++) {
        for (size_t p = 0; p < o->groups[g].count; p++) {
            if (o->has_gradient(o->ctx, g, p)) return false;
        }
    }
    return true;
}

static tsr_status create_states(const tsr_live_optimizer *o, tsr_error *err)
{
    for (size_t g = 0; g < o->group_count; g++) {
        const tsr_live_group *group = &o->groups[g];
        const tsr_first_step step = {o->algorithm, group->options, o->default_dtype, group->tensor_betas,
                                     group->second_weight};
        for (size_t p = 0; p < group->count; p++) {
            tsr_state_spec specs[TSR_STATE_SPECS];
            size_t count;
            TSR_TRY(tsr_optim_first_state(&step, group->params[p], specs, &count, err));
            if (count) TSR_TRY(o->create(o->ctx, g, p, specs, count, err));
        }
    }
    return TSR_OK;
}

/* Sets the learning rates: with `zero`, those of all groups to 0, counting the groups in `*done`; otherwise restores those
 * of the first `*done` groups. */
static tsr_status set_rates(const tsr_live_optimizer *o, bool zero, size_t *done, tsr_error *err)
{
    size_t until = zero ? o->group_count : *done;
    tsr_status status = TSR_OK;
    for (size_t g = 0; g < until && status == TSR_OK; g++) {
        const tsr_value *lr = tsr_value_get(o->groups[g].options, TSR_STR("lr"));
        if (zero) *done = g + 1;
        if (lr) status = o->set_lr(o->ctx, g, zero ? NULL : lr, err);
    }
    return status;
}

/* Takes one step that only changes the state. Restores gradients and learning rates even if the step fails. */
static tsr_status step_in_place(const tsr_live_optimizer *o, tsr_error *err)
{
    size_t zeroed = 0;
    TSR_FAIL_IF(!o->set_lr || !o->set_gradients || !o->step, err, TSR_E_USAGE,
                "optim: the first state of an unknown algorithm requires a step: provide set_lr, set_gradients and step");
    tsr_status status = o->set_gradients(o->ctx, true, err);
    if (status == TSR_OK) status = set_rates(o, true, &zeroed, err);
    if (status == TSR_OK) status = o->step(o->ctx, err);
    tsr_status restored = set_rates(o, false, &zeroed, err), gone = o->set_gradients(o->ctx, false, err);
    return status != TSR_OK ? status : restored != TSR_OK ? restored : gone;
}

tsr_status tsr_optim_init(const tsr_live_optimizer *optimizer, tsr_error *err)
{
    if (!is_untouched(optimizer)) return TSR_OK;
    return optimizer->algorithm >= TSR_OTHER_ALGORITHM ? step_in_place(optimizer, err) : create_states(optimizer, err);
}

/* ---- checks before getting and loading ---- */

tsr_state_options tsr_state_options_default(void)
{
    return (tsr_state_options){.size = sizeof(tsr_state_options), .keep_submodule_prefixes = true, .strict = true};
}

tsr_fsdp_choice tsr_state_fsdp_choice(const tsr_state_options *options)
{
    bool full = options->full_state_dict, offload = options->cpu_offload;
    return (tsr_fsdp_choice){full, offload, full && offload, full && (offload || options->broadcast_from_rank0)};
}

tsr_status tsr_state_options_check(const tsr_state_options *options, size_t optimizer_count, bool optimizers_only,
                                   tsr_error *err)
{
    TSR_FAIL_IF(optimizers_only && optimizer_count == 0, err, TSR_E_USAGE,
                "state dict: only optimizer state is requested, but there is no optimizer");
    TSR_FAIL_IF(options->broadcast_from_rank0 && !options->full_state_dict, err, TSR_E_USAGE,
                "state dict: broadcast_from_rank0 needs full_state_dict");
    return TSR_OK;
}

tsr_status tsr_state_dict_check(const tsr_state_options *options, const tsr_state_request *request, tsr_error *err)
{
    bool elsewhere =
        (options->cpu_offload && options->full_state_dict) || options->broadcast_from_rank0; /* only rank 0 has it */
    bool model_excused = request->submodules || options->ignore_frozen_params || !options->strict;
    TSR_FAIL_IF(request->handle_model && request->model_key_count == 0 && !model_excused && !elsewhere, err, TSR_E_FORMAT,
                "state dict: the model's state is to be saved or loaded, but it is empty");
    TSR_FAIL_IF(request->handle_optimizer && request->optimizer_is_empty && !elsewhere, err, TSR_E_FORMAT,
                "state dict: the optimizer's state is to be saved or loaded, but it is empty");
    for (size_t i = 0; i < request->model_key_count; i++) {
        tsr_str key = request->model_keys[i], flat = TSR_STR("_flat_param");
        for (size_t at = 0; at + flat.size <= key.size; at++)
            TSR_FAIL_IF(memcmp(key.data + at, flat.data, flat.size) == 0, err, TSR_E_FORMAT,
                        "state dict: '%.*s' holds _flat_param; perhaps the model is not the root module", TSR_STR_ARG(key));
    }
    return TSR_OK;
}
