/* See optim.h. An entry's path shows what it is:
 *
 *   optim, "state", FQN or id, name        a state
 *   optim, "param_groups", 0, "params"     the parameters of a group
 *   optim, "state.FQN.name"                a state, flattened
 *   optim, "param_groups.FQN.key"          a parameter's option, flattened */
#include <inttypes.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

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
    p.name = tsr_str_after(key, dot);
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
