/* Which values a walk over a state dict goes into, and their children. */
#include "formats/torch/torch_containers.h"

#include "formats/torch/torch_flatten.h"
#include "tessera/sys/try.h"

#include "tessera/sys/vec.h"

enum { PARAMETERS, BUFFERS, MODULES, ATTRIBUTES_MAX = 4096 };
static const char *const module_parts[TSR_MODULE_PARTS] = {"_parameters", "_buffers", "_modules"};

static bool find_parts(const tsr_value *value, const tsr_value **state, const tsr_value *parts[TSR_MODULE_PARTS])
{
    *state = value->kind == TSR_VALUE_OBJECT && value->count > 1 ? value->items[1] : NULL;
    if (!*state || (*state)->kind != TSR_VALUE_DICT || tsr_value_pairs(*state) > ATTRIBUTES_MAX) return false;
    for (size_t i = 0; i < TSR_MODULE_PARTS; i++) {
        parts[i] = tsr_value_get(*state, tsr_str_from(module_parts[i]));
        if (!parts[i] || parts[i]->kind != TSR_VALUE_DICT) return false;
    }
    return true;
}

bool tsr_torch_is_module(const tsr_value *value)
{
    const tsr_value *state, *parts[TSR_MODULE_PARTS];
    return find_parts(value, &state, parts);
}

bool tsr_torch_is_odd_tensor(const tsr_value *value)
{
    return value->kind == TSR_VALUE_OBJECT && value->count == 1 && value->items[0]->kind == TSR_VALUE_DICT;
}

/* Whether a list that holds the value is walked into. An object's attributes are searched once. */
static tsr_status opens_list(tsr_map *lists, const tsr_value *value, bool *yes, tsr_error *err)
{
    *yes = value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_TENSOR || tsr_torch_is_odd_tensor(value);
    if (*yes || value->kind != TSR_VALUE_OBJECT || value->count < 2) return TSR_OK;
    uint32_t known = tsr_map_get(lists, tsr_torch_container_key(value), 2);
    *yes = known == 2 ? tsr_torch_is_module(value) : known == 0;
    return known == 2 ? tsr_map_put(lists, tsr_torch_container_key(value), !*yes, NULL, NULL, err) : TSR_OK;
}

bool tsr_torch_is_kept(const tsr_value *value)
{
    const bool has_class = value->ordered_dict || value->variant; /* Counter or defaultdict */
    return value->kind == TSR_VALUE_DICT && (has_class || value->as.attributes || !value->count);
}

/* A search through a list of lists. */
typedef struct search {
    const tsr_host *host;
    tsr_map *lists; /* list → 1: a leaf */
    tsr_vec stack;  /* tsr_torch_level */
    tsr_error *err;
} search;

static tsr_status mark_list(search *s, const tsr_value *list, bool leaf)
{
    uint32_t *stored;
    TSR_TRY(tsr_map_put(s->lists, tsr_torch_container_key(list), leaf, &stored, NULL, s->err));
    *stored = leaf;
    return TSR_OK;
}

/* One step of the search below a list for something that is walked into. */
static tsr_status search_list(search *s, bool *found)
{
    tsr_torch_level *top = (tsr_torch_level *)s->stack.items + s->stack.count - 1;
    if (top->next == top->container->count) {
        s->stack.count--;
        return mark_list(s, top->container, true);
    }
    const tsr_value *item = top->container->items[top->next++];
    TSR_TRY(opens_list(s->lists, item, found, s->err));
    if (*found || item->kind != TSR_VALUE_LIST || item->count == 0) return TSR_OK;
    uint32_t known = tsr_map_get(s->lists, tsr_torch_container_key(item), 2);
    *found = known == 0;
    if (known != 2) return TSR_OK;
    TSR_TRY(mark_list(s, item, true)); /* a list inside itself adds nothing */
    tsr_torch_level *pushed = tsr_vec_push(&s->stack, s->err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (tsr_torch_level){.container = item};
    return TSR_OK;
}

/* Whether a list is a leaf; each list is looked through once. */
static tsr_status is_leaf_list(const tsr_host *host, tsr_map *lists, const tsr_value *list, bool *leaf, tsr_error *err)
{
    *leaf = true;
    if (list->count == 0) return TSR_OK;
    uint32_t known = tsr_map_get(lists, tsr_torch_container_key(list), 2);
    *leaf = known != 0;
    if (known != 2) return TSR_OK;
    search s = {host, lists, tsr_vec_of(host->allocator, sizeof(tsr_torch_level)), err};
    tsr_torch_level *first = tsr_vec_push(&s.stack, err);
    tsr_status status = first ? mark_list(&s, list, true) : TSR_E_NOMEM;
    if (first) *first = (tsr_torch_level){.container = list};
    bool found = false;
    while (status == TSR_OK && s.stack.count && !found) status = search_list(&s, &found);
    for (size_t i = 0; i < s.stack.count && status == TSR_OK; i++)
        status = mark_list(&s, ((const tsr_torch_level *)s.stack.items)[i].container, false);
    *leaf = !found;
    tsr_vec_free(&s.stack);
    return status;
}

static bool is_key(const tsr_value *key)
{
    char text[TSR_TORCH_KEY];
    return key->kind == TSR_VALUE_STR || key->kind == TSR_VALUE_INT || tsr_torch_key_text(key, text);
}

/* A mapping whose keys all have a name; others stay whole. */
static bool is_mapping(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_DICT) return false;
    for (size_t i = 0; i < value->count; i += 2)
        if (!is_key(value->items[i])) return false;
    return true;
}

tsr_status tsr_torch_walks_into(const tsr_host *host, tsr_map *lists, const tsr_value *value, bool *yes, tsr_error *err)
{
    *yes = is_mapping(value) || tsr_torch_is_module(value);
    if (value->kind != TSR_VALUE_LIST) return TSR_OK;
    TSR_TRY(is_leaf_list(host, lists, value, yes, err));
    *yes = !*yes;
    return TSR_OK;
}

/* The step to what lies under a key; its text is made when an entry takes it. */
static tsr_path_item key_item(const tsr_value *key)
{
    if (key->kind == TSR_VALUE_STR) return (tsr_path_item){.kind = TSR_PATH_KEY, .key = key->text};
    if (key->kind == TSR_VALUE_INT) return (tsr_path_item){.kind = TSR_PATH_INT_KEY, .integer = key->as.integer};
    return (tsr_path_item){.kind = TSR_PATH_KEY, .value = key};
}

/* The next named child of a module: `next` counts through the pairs of its three parts. */
static const tsr_value *next_of_module(tsr_torch_level *top, tsr_path_item *item)
{
    for (;;) {
        size_t at = top->next++, which = 0;
        while (which < TSR_MODULE_PARTS && at >= tsr_value_pairs(top->parts[which]))
            at -= tsr_value_pairs(top->parts[which++]);
        if (which == TSR_MODULE_PARTS) return NULL;
        const tsr_value *key = top->parts[which]->items[2 * at], *value = top->parts[which]->items[2 * at + 1];
        if (value->kind == TSR_VALUE_NONE || !is_key(key)) continue;
        if (which == BUFFERS && top->hidden && tsr_map_get(top->hidden, key->text, 0)) continue;
        *item = key_item(key);
        return value;
    }
}

const tsr_value *tsr_torch_level_next(tsr_torch_level *top, tsr_path_item *item)
{
    const tsr_value *container = top->container;
    if (top->parts[0]) return next_of_module(top, item);
    if (container->kind == TSR_VALUE_LIST) {
        if (top->next == container->count) return NULL;
        *item = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = (int64_t)top->next};
        return container->items[top->next++];
    }
    if (top->next == tsr_value_pairs(container)) return NULL;
    size_t at = 2 * top->next++;
    *item = key_item(container->items[at]);
    return container->items[at + 1];
}

tsr_status tsr_torch_level_open(const tsr_host *host, const tsr_value *container, tsr_torch_level *out, tsr_error *err)
{
    const tsr_value *state;
    *out = (tsr_torch_level){.container = container};
    if (!find_parts(container, &state, out->parts)) {
        memset(out->parts, 0, sizeof out->parts);
        return TSR_OK;
    }
    const tsr_value *names = tsr_value_get(state, TSR_STR("_non_persistent_buffers_set"));
    if (!names || names->kind != TSR_VALUE_SET || names->count == 0) return TSR_OK;
    out->hidden = tsr_map_new(host->allocator, names->count, err);
    tsr_status status = out->hidden ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < names->count && status == TSR_OK; i++)
        if (names->items[i]->kind == TSR_VALUE_STR)
            status = tsr_map_put(out->hidden, names->items[i]->text, 1, NULL, NULL, err);
    if (status != TSR_OK) tsr_torch_level_close(out);
    return status;
}

void tsr_torch_level_close(tsr_torch_level *level)
{
    tsr_map_free(level->hidden);
    level->hidden = NULL;
}
