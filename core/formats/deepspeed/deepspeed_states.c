/* See deepspeed_states.h. */
#include "formats/deepspeed/deepspeed_states.h"

#include "formats/common/joined_entries.h"
#include "formats/deepspeed/deepspeed_engine.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

typedef enum state_form { ABSENT, WHOLE, FLAT, ODD } state_form;

/* One key of a segment's states, on all ranks. */
typedef struct state {
    const tsr_ds_weights *weights;
    uint32_t segment;
    tsr_str key;
} state;

static const tsr_ds_sharers *sharers_of(const state *s)
{
    return &s->weights->segments[s->segment].sharers;
}

static const tsr_value *held_by(const state *s, uint32_t rank)
{
    const tsr_value *dict = tsr_ds_state_of(s->weights, rank, s->segment);
    return dict ? tsr_value_get(dict, s->key) : NULL;
}

/* Tensors are FLAT if each is as long as its rank's float32 tensor, or if all are equally long because of padding. */
static state_form form_of(const state *s)
{
    const tsr_ds_sharers *sharers = sharers_of(s);
    const tsr_ds_buffer *fp32 = &s->weights->segments[s->segment].fp32;
    const tsr_value *first = NULL;
    uint64_t length = UINT64_MAX;
    bool lean = true, padded = true;
    for (uint32_t r = 0; r < sharers->world; r++) {
        const tsr_value *value = held_by(s, r);
        const tsr_entry *tensor = tsr_ds_tensor(value);
        if (!sharers->optims[r]) continue;
        if (!value) return ABSENT;
        if (!first) first = value;
        if (!tensor || tensor->ndim != 1) continue;
        if (length == UINT64_MAX) length = tensor->shape[0];
        lean = lean && tensor->shape[0] == fp32->pieces[r].count;
        padded = padded && tensor->shape[0] == length && length >= fp32->pieces[r].count;
    }
    if (!first) return ABSENT;
    const tsr_entry *tensor = tsr_ds_tensor(first);
    if (!tensor || tensor->ndim == 0) return WHOLE;
    return length != UINT64_MAX && (lean || padded) ? FLAT : ODD;
}

/* Reports a rank that lacks a key which another rank has: the files are from different saves. */
static tsr_status check_absent(const state *s, tsr_error *err)
{
    const tsr_ds_sharers *sharers = sharers_of(s);
    uint32_t with = UINT32_MAX, without = UINT32_MAX;
    for (uint32_t r = 0; r < sharers->world; r++) {
        if (!sharers->optims[r]) continue;
        *(held_by(s, r) ? &with : &without) = r;
    }
    if (with == UINT32_MAX || without == UINT32_MAX) return TSR_OK;
    const tsr_ds_files *files = s->weights->files;
    const tsr_str name = tsr_ds_file_name(files, sharers->optims[without]);
    return tsr_ds_report(files->checkpoint, name, err, "%.*s: has no '%.*s' for param group %u, but %.*s has",
                         TSR_STR_ARG(name), TSR_STR_ARG(s->key), sharers->group,
                         TSR_STR_ARG(tsr_ds_file_name(files, sharers->optims[with])));
}

static tsr_status add_flat(const state *s, tsr_ds_rows *rows, tsr_error *err)
{
    const tsr_ds_weights *w = s->weights;
    const tsr_ds_sharers *sharers = sharers_of(s);
    tsr_ds_buffer buffer;
    uint64_t longest = w->segments[s->segment].slice;
    TSR_TRY(tsr_ds_buffer_new(w->files->checkpoint->arena, sharers->world, &buffer, err));
    for (uint32_t r = 0; r < sharers->world; r++) {
        const tsr_entry *tensor = tsr_ds_tensor(held_by(s, r));
        if (tensor && tensor->ndim == 1 && tensor->shape[0] > longest) longest = tensor->shape[0];
    }
    for (uint32_t r = 0; r < sharers->world; r++) {
        const tsr_entry *tensor = tsr_ds_tensor(held_by(s, r));
        tsr_status status =
            tsr_ds_buffer_add(&buffer, tensor, tensor && tensor->ndim == 1 ? tensor->shape[0] : longest, err);
        if (status != TSR_OK)
            return tsr_error_context(err, "%.*s, '%.*s'", TSR_STR_ARG(tsr_ds_file_name(w->files, sharers->optims[r])),
                                     TSR_STR_ARG(s->key)),
                   status;
    }
    return tsr_ds_weights_place(w, s->segment, &buffer, s->key, rows, err);
}

static const tsr_value *first_of(const state *s)
{
    const tsr_value *value = NULL;
    for (uint32_t r = 0; r < sharers_of(s)->world && !value; r++) value = held_by(s, r);
    return value;
}

static tsr_status add_whole(const state *s, tsr_ds_rows *rows, tsr_error *err)
{
    const tsr_ds_segment *segment = &s->weights->segments[s->segment];
    const tsr_value *value = first_of(s);
    for (uint32_t i = 0; i < segment->count; i++)
        TSR_TRY(tsr_ds_rows_add(rows, s->weights->weights[segment->first + i].name, s->key, value, err));
    return TSR_OK;
}

/* The name under which the states of a group itself are listed: the group's number, preceded by the ranks if groups of other
 * ranks have the same number. */
static tsr_str odd_name(const state *s, tsr_error *err)
{
    tsr_arena *arena = s->weights->files->checkpoint->arena;
    const tsr_ds_sharers *sharers = sharers_of(s);
    if (sharers->expert_ranks > 1)
        return tsr_arena_format(arena, err, "expp_rank_%u.%u", sharers->expert_rank, sharers->group);
    if (s->weights->files->column_count == 1) return tsr_arena_format(arena, err, "%u", sharers->group);
    return tsr_arena_format(arena, err, "mp_rank_%02u.%u", s->weights->column->model_rank, sharers->group);
}

/* Adds a tensor whose length differs between ranks, as in optimizers that compress or factor their states. */
static tsr_status add_odd(const state *s, tsr_ds_rows *odd, tsr_error *err)
{
    const tsr_ds_sharers *sharers = sharers_of(s);
    tsr_arena *arena = s->weights->files->checkpoint->arena;
    const tsr_entry **tensors = tsr_arena_array(arena, sharers->world, sizeof *tensors, err);
    tsr_entry *entry = TSR_ARENA_NEW(arena, tsr_entry, err);
    if (!tensors || !entry) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < sharers->world; r++) tensors[r] = tsr_ds_tensor(held_by(s, r));
    TSR_TRY(tsr_entry_list_per_rank(entry, tensors, sharers->world, arena, err));
    const tsr_str group = odd_name(s, err);
    const tsr_value *value = tsr_value_tensor(arena, sharers->world == 1 ? tensors[0] : entry, err);
    return group.data && value ? tsr_ds_rows_add(odd, group, s->key, value, err) : TSR_E_NOMEM;
}

static tsr_status add_state(const state *s, tsr_ds_rows *rows, tsr_ds_rows *odd, tsr_error *err)
{
    switch (form_of(s)) {
    case FLAT: return add_flat(s, rows, err);
    case WHOLE: return add_whole(s, rows, err);
    case ODD: return add_odd(s, odd, err);
    case ABSENT: break;
    }
    return check_absent(s, err);
}

static tsr_status add_segment(const tsr_ds_weights *w, uint32_t segment, tsr_ds_rows *rows, tsr_ds_rows *odd, tsr_error *err)
{
    const tsr_value *dict = NULL;
    for (uint32_t r = 0; r < w->segments[segment].sharers.world && !dict; r++) dict = tsr_ds_state_of(w, r, segment);
    for (size_t i = 0; i < tsr_ds_count(dict); i++) {
        const tsr_value *key = dict->items[2 * i];
        if (key->kind != TSR_VALUE_STR) continue;
        const state s = {w, segment, key->text};
        TSR_TRY(add_state(&s, rows, odd, err));
    }
    return TSR_OK;
}

tsr_status tsr_ds_states_add(const tsr_ds_weights *weights, tsr_ds_rows *states, tsr_ds_rows *odd, tsr_error *err)
{
    for (uint32_t s = 0; s < weights->segment_count; s++) TSR_TRY(add_segment(weights, s, states, odd, err));
    return TSR_OK;
}

/* ---- param groups ---- */

/* The first segment of a group; the segments are sorted by group. */
static uint32_t first_segment(const tsr_ds_weights *w, uint32_t group)
{
    uint32_t low = 0, high = w->segment_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (w->segments[middle].sharers.group < group) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool is_of_group(const tsr_ds_weights *w, uint32_t segment, uint32_t group)
{
    return segment < w->segment_count && w->segments[segment].sharers.group == group;
}

/* Appends the names of a group's parameters at names[*count]. If `names` is NULL, only counts them. */
static tsr_status add_names(const tsr_ds_weights *w, uint32_t group, const tsr_value **names, size_t *count, tsr_error *err)
{
    for (uint32_t s = first_segment(w, group); is_of_group(w, s, group); s++)
        for (uint32_t k = 0; k < w->segments[s].count; k++, ++*count) {
            if (!names) continue;
            names[*count] = tsr_value_str(w->files->checkpoint->arena, w->weights[w->segments[s].first + k].name, err);
            if (!names[*count]) return TSR_E_NOMEM;
        }
    return TSR_OK;
}

/* The names of the parameters in all groups whose numbers `params` lists; NULL if it lists anything else. */
static tsr_status names_of(const tsr_ds_weights *w, const tsr_value *params, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = w->files->checkpoint->arena;
    uint64_t number;
    size_t count = 0;
    *out = NULL;
    if (!params || params->kind != TSR_VALUE_LIST || params->count > w->group_count) return TSR_OK;
    for (size_t i = 0; i < params->count; i++) {
        if (!tsr_ds_number(params->items[i], &number) || number >= w->group_count) return TSR_OK;
        TSR_TRY(add_names(w, (uint32_t)number, NULL, &count, err));
        if (count > w->count) return TSR_OK;
    }
    const tsr_value **names = tsr_arena_array(arena, count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    count = 0;
    for (size_t i = 0; i < params->count; i++)
        TSR_TRY(add_names(w, (uint32_t)params->items[i]->as.integer, names, &count, err));
    *out = tsr_value_items(arena, TSR_VALUE_LIST, names, count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status name_group(const tsr_ds_weights *w, const tsr_value **group, tsr_error *err)
{
    tsr_arena *arena = w->files->checkpoint->arena;
    const tsr_value *names;
    if (tsr_ds_kind_or_null(*group, TSR_VALUE_DICT) == NULL) return TSR_OK;
    TSR_TRY(names_of(w, tsr_ds_get(*group, "params"), &names, err));
    if (!names) return TSR_OK;
    const tsr_value **items = tsr_arena_array(arena, (*group)->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i + 1 < (*group)->count; i += 2) {
        const tsr_value *key = (*group)->items[i];
        const bool params = key->kind == TSR_VALUE_STR && tsr_str_equal(key->text, TSR_STR("params"));
        items[i] = key;
        items[i + 1] = params ? names : (*group)->items[i + 1];
    }
    *group = tsr_value_items(arena, TSR_VALUE_DICT, items, (*group)->count, err);
    return *group ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_name_groups(const tsr_ds_weights *weights, const tsr_value *groups, const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = weights->files->checkpoint->arena;
    const tsr_value **items = tsr_arena_array(arena, groups->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < groups->count; i++) {
        items[i] = groups->items[i];
        TSR_TRY(name_group(weights, &items[i], err));
    }
    *out = tsr_value_items(arena, TSR_VALUE_LIST, items, groups->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_param_groups(const tsr_ds_weights *weights, const tsr_value **out, tsr_error *err)
{
    const tsr_value *groups = NULL;
    *out = NULL;
    for (uint32_t r = 0; r < weights->column->world && !groups; r++)
        groups = tsr_ds_list(tsr_ds_base_state(weights->files, weights->column->optims[r]), "param_groups");
    return groups ? tsr_ds_name_groups(weights, groups, out, err) : TSR_OK;
}

/* The union of two lists of names; NULL if out of memory. */
static const tsr_value *join_names(const tsr_ds_files *files, const tsr_value *a, const tsr_value *b, tsr_error *err)
{
    size_t count = a->count;
    tsr_map *names = tsr_map_new(files->checkpoint->host->allocator, a->count, err);
    const tsr_value **items =
        names ? tsr_arena_array(files->checkpoint->arena, a->count + b->count, sizeof *items, err) : NULL;
    tsr_status status = items ? tsr_ds_add_names(a, names, err) : TSR_E_NOMEM;
    if (status == TSR_OK && a->count) memcpy(items, a->items, a->count * sizeof *items);
    for (size_t i = 0; i < b->count && status == TSR_OK; i++)
        if (b->items[i]->kind != TSR_VALUE_STR || !tsr_map_get(names, b->items[i]->text, 0)) items[count++] = b->items[i];
    tsr_map_free(names);
    return status == TSR_OK ? tsr_value_items(files->checkpoint->arena, TSR_VALUE_LIST, items, count, err) : NULL;
}

static tsr_status join_group(const tsr_ds_files *files, const tsr_value **group, const tsr_value *more, tsr_error *err)
{
    const tsr_value *a = tsr_ds_list(*group, "params"), *b = tsr_ds_list(more, "params");
    if (!a || !b) return TSR_OK;
    const tsr_value *joined = join_names(files, a, b, err);
    const tsr_value **items = joined ? tsr_arena_array(files->checkpoint->arena, (*group)->count, sizeof *items, err) : NULL;
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < (*group)->count; i++) items[i] = (*group)->items[i] == a ? joined : (*group)->items[i];
    *group = tsr_value_items(files->checkpoint->arena, TSR_VALUE_DICT, items, (*group)->count, err);
    return *group ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_join_groups(const tsr_ds_files *files, const tsr_value **groups, const tsr_value *more, tsr_error *err)
{
    const tsr_value *first = *groups;
    if (!first || !more) {
        if (more) *groups = more;
        return TSR_OK;
    }
    const tsr_value **items = tsr_arena_array(files->checkpoint->arena, first->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t g = 0; g < first->count; g++) {
        items[g] = first->items[g];
        TSR_TRY(join_group(files, &items[g], tsr_ds_item(more, g), err));
    }
    *groups = tsr_value_items(files->checkpoint->arena, TSR_VALUE_LIST, items, first->count, err);
    return *groups ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_optim(const tsr_ds_files *files, const tsr_ds_optim_contents *contents, const tsr_value **out,
                        tsr_error *err)
{
    tsr_arena *arena = files->checkpoint->arena;
    tsr_ds_rows *odd = contents->odd;
    const tsr_value *rest = contents->rest;
    const tsr_value *tree = rest ? tsr_value_items(arena, TSR_VALUE_DICT, NULL, 0, err) : NULL;
    const tsr_value *by_name = tree ? tsr_ds_rows_tree(contents->states, err) : NULL;
    const tsr_value *by_group = odd && by_name ? tsr_ds_rows_tree(odd, err) : NULL;
    if (!by_name || (odd && !by_group)) return TSR_E_NOMEM;
    tree = tsr_ds_with(arena, tree, TSR_STR("state"), by_name->count ? by_name : NULL, err);
    if (tree) tree = tsr_ds_with(arena, tree, TSR_STR("param_groups"), contents->groups, err);
    if (tree) tree = tsr_ds_with(arena, tree, TSR_STR("group_state"), by_group && by_group->count ? by_group : NULL, err);
    for (size_t i = 0; tree && i + 1 < rest->count; i += 2)
        if (rest->items[i]->kind == TSR_VALUE_STR)
            tree = tsr_ds_with(arena, tree, rest->items[i]->text, rest->items[i + 1], err);
    *out = tree;
    return tree ? TSR_OK : TSR_E_NOMEM;
}
