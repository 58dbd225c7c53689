/* Flattens a value tree. The walk keeps a stack of containers; values may be shared, so that a small pickle can stand for a
 * huge tree: the budget of limits.expansion ends that. */
#include "formats/torch_flatten.h"

#include "base/try.h"
#include "tessera/map.h"

/* The mappings of a module's state: the walk takes them one after the other. */
enum { PARAMETERS, BUFFERS, MODULES, MODULE_PARTS, ATTRIBUTES_MAX = 4096, LONG_PATH = 64, LONG_NAME = 256 };
static const char *const module_parts[MODULE_PARTS] = {"_parameters", "_buffers", "_modules"};

typedef struct level {
    const tsr_value *container;
    size_t next;
    const tsr_value *parts[MODULE_PARTS]; /* of a module, else NULL */
    tsr_map *hidden;                      /* names of buffers that are not persistent, or NULL */
} level;

typedef struct flatten {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec levels;  /* level */
    tsr_vec path;    /* tsr_path_item: one a level */
    tsr_vec entries; /* tsr_entry */
    tsr_vec mappings; /* tsr_mapping */
    tsr_map *names;  /* FQN → entry */
    tsr_map *lists;  /* address of a list's items → 1: a leaf */
    uint64_t visited;
    tsr_map *inner;  /* containers inside leaves, looked into for tensors */
    tsr_error *err;
} flatten;

static bool find_parts(const tsr_value *value, const tsr_value **state, const tsr_value *parts[MODULE_PARTS])
{
    *state = value->kind == TSR_VALUE_OBJECT && value->count > 1 ? value->items[1] : NULL;
    if (!*state || (*state)->kind != TSR_VALUE_DICT || tsr_value_pairs(*state) > ATTRIBUTES_MAX) return false;
    for (size_t i = 0; i < MODULE_PARTS; i++) {
        parts[i] = tsr_value_get(*state, tsr_str_from(module_parts[i]));
        if (!parts[i] || parts[i]->kind != TSR_VALUE_DICT) return false;
    }
    return true;
}

static bool is_module(const tsr_value *value)
{
    const tsr_value *state, *parts[MODULE_PARTS];
    return find_parts(value, &state, parts);
}

/* Quantized, sparse, nested tensors and the like, which torch_value.c shows as named parts. */
static bool is_odd_tensor(const tsr_value *value)
{
    return value->kind == TSR_VALUE_OBJECT && value->count == 1 && value->items[0]->kind == TSR_VALUE_DICT;
}

static bool opens_list(const tsr_value *value)
{
    return value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_TENSOR || is_odd_tensor(value) || is_module(value);
}

static tsr_str list_key(const tsr_value *list)
{
    return (tsr_str){(const char *)&list->items, sizeof list->items};
}

static tsr_status mark_list(flatten *f, const tsr_value *list, bool leaf)
{
    uint32_t *stored;
    TSR_TRY(tsr_map_put(f->lists, list_key(list), leaf, &stored, NULL, f->err));
    *stored = leaf;
    return TSR_OK;
}

/* One step of the search below a list for something that is walked into. */
static tsr_status search_list(flatten *f, tsr_vec *stack, bool *found)
{
    level *top = (level *)stack->items + stack->count - 1;
    if (top->next == top->container->count) {
        stack->count--;
        return mark_list(f, top->container, true);
    }
    const tsr_value *item = top->container->items[top->next++];
    *found = opens_list(item);
    if (*found || item->kind != TSR_VALUE_LIST || item->count == 0) return TSR_OK;
    uint32_t known = tsr_map_get(f->lists, list_key(item), 2);
    *found = known == 0;
    if (known != 2) return TSR_OK;
    TSR_TRY(mark_list(f, item, true)); /* a list inside itself adds nothing */
    level *pushed = tsr_vec_push(stack, f->err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (level){.container = item};
    return TSR_OK;
}

/* Whether a list is a leaf; each list is looked through once. */
static tsr_status is_leaf_list(flatten *f, const tsr_value *list, bool *leaf)
{
    *leaf = true;
    if (list->count == 0) return TSR_OK;
    uint32_t known = tsr_map_get(f->lists, list_key(list), 2);
    *leaf = known != 0;
    if (known != 2) return TSR_OK;
    tsr_vec stack = tsr_vec_of(f->host->allocator, sizeof(level));
    level *first = tsr_vec_push(&stack, f->err);
    tsr_status status = first ? mark_list(f, list, true) : TSR_E_NOMEM;
    if (first) *first = (level){.container = list};
    bool found = false;
    while (status == TSR_OK && stack.count && !found) status = search_list(f, &stack, &found);
    for (size_t i = 0; i < stack.count && status == TSR_OK; i++)
        status = mark_list(f, ((const level *)stack.items)[i].container, false);
    *leaf = !found;
    tsr_vec_free(&stack);
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

static tsr_status walks_into(flatten *f, const tsr_value *value, bool *yes)
{
    *yes = is_mapping(value) || is_module(value);
    if (value->kind == TSR_VALUE_DICT && !*yes) f->visited += value->count;
    if (value->kind != TSR_VALUE_LIST) return TSR_OK;
    TSR_TRY(is_leaf_list(f, value, yes));
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

/* The text of the key of the walk's last step, where it is no str. */
static tsr_status spell_key(flatten *f)
{
    char text[TSR_TORCH_KEY];
    tsr_path_item *item = (tsr_path_item *)f->path.items + f->path.count - 1;
    if (!item->value) return TSR_OK;
    tsr_torch_key_text(item->value, text);
    item->key = tsr_arena_str(f->arena, tsr_str_from(text), f->err);
    f->visited += item->key.size / 16; /* it is kept for every way that leads here */
    return item->key.data ? TSR_OK : TSR_E_NOMEM;
}

/* The next named child of a module: `next` counts through the pairs of its three parts. */
static const tsr_value *next_of_module(level *top, tsr_path_item *item)
{
    for (;;) {
        size_t at = top->next++, which = 0;
        while (which < MODULE_PARTS && at >= tsr_value_pairs(top->parts[which])) at -= tsr_value_pairs(top->parts[which++]);
        if (which == MODULE_PARTS) return NULL;
        const tsr_value *key = top->parts[which]->items[2 * at], *value = top->parts[which]->items[2 * at + 1];
        if (value->kind == TSR_VALUE_NONE || !is_key(key)) continue;
        if (which == BUFFERS && top->hidden && tsr_map_get(top->hidden, key->text, 0)) continue;
        *item = key_item(key);
        return value;
    }
}

static const tsr_value *next_child(level *top, tsr_path_item *item)
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

/* Path items as text: joined by '.' for the name, or quoted and bracketed for messages. */
static tsr_status join(flatten *f, const tsr_path_item *path, size_t count, const char *open, const char *between,
                       const char *close, tsr_str *out)
{
    tsr_vec text = tsr_vec_of(f->host->allocator, 1);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        char digits[24];
        size_t at = sizeof digits;
        uint64_t rest = path[i].integer < 0 ? 0 - (uint64_t)path[i].integer : (uint64_t)path[i].integer;
        do digits[--at] = (char)('0' + rest % 10); while ((rest /= 10) > 0);
        if (path[i].integer < 0) digits[--at] = '-';
        tsr_str item = path[i].kind == TSR_PATH_KEY ? path[i].key : (tsr_str){digits + at, sizeof digits - at};
        tsr_str parts[] = {tsr_str_from(i ? between : ""), tsr_str_from(open), item, tsr_str_from(close)};
        for (size_t k = 0; k < 4 && status == TSR_OK; k++) {
            status = tsr_vec_reserve(&text, parts[k].size + 1, f->err);
            if (status != TSR_OK) break;
            if (parts[k].size) memcpy((char *)text.items + text.count, parts[k].data, parts[k].size);
            text.count += parts[k].size;
        }
    }
    if (status == TSR_OK) *out = tsr_arena_str(f->arena, (tsr_str){text.items ? text.items : "", text.count}, f->err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}

static tsr_status refuse_twins(flatten *f, const tsr_entry *first, const tsr_entry *second)
{
    tsr_str a, b;
    TSR_TRY(join(f, first->path, first->path_length, "[", "", "]", &a));
    TSR_TRY(join(f, second->path, second->path_length, "[", "", "]", &b));
    return tsr_raise(f->err, TSR_E_FORMAT, TSR_NO_POSITION, "torch: the paths %.*s and %.*s both give the name '%.*s'",
                     TSR_STR_ARG(a), TSR_STR_ARG(b), TSR_STR_ARG(second->fqn));
}

typedef struct place {
    tsr_str fqn;
    tsr_path_item *path;
    uint32_t path_length;
} place;

/* The name and the path of the walk's place. A module's state_dict() is flat: what lies below a module is one key. */
static tsr_status take_path(flatten *f, place *out)
{
    const tsr_path_item *items = f->path.items;
    const level *levels = f->levels.items;
    size_t count = f->path.count, kept = 0;
    tsr_path_item *path = tsr_arena_array(f->arena, count, sizeof *path, f->err);
    if (!path) return TSR_E_NOMEM;
    for (; kept < count && !levels[kept].parts[0]; kept++) path[kept] = items[kept];
    if (kept < count) {
        path[kept] = (tsr_path_item){.kind = TSR_PATH_KEY};
        TSR_TRY(join(f, items + kept, count - kept, "", ".", "", &path[kept].key));
        kept++;
    }
    out->path = path;
    out->path_length = (uint32_t)kept;
    TSR_TRY(join(f, path, kept, "", ".", "", &out->fqn));
    if (out->fqn.size > LONG_NAME) f->visited += out->fqn.size / 4;     /* a long key may be part of many names */
    if (f->path.count > LONG_PATH) f->visited += 4 * f->path.count;     /* and so may a long path */
    return TSR_OK;
}

static tsr_status add_leaf(flatten *f, const tsr_value *value)
{
    TSR_FAIL_IF(f->entries.count >= f->host->limits.entries || f->entries.count >= UINT32_MAX - 1, f->err, TSR_E_LIMIT,
                TSR_NO_POSITION, "torch: more than %zu entries (limit entries)", f->entries.count);
    tsr_entry entry = {0};
    if (value->kind == TSR_VALUE_TENSOR) entry = *value->as.tensor;
    else TSR_TRY(tsr_torch_leaf(value, f->host, f->inner, f->arena, &entry, f->err));
    place at;
    TSR_TRY(take_path(f, &at));
    entry.fqn = at.fqn;
    entry.path = at.path;
    entry.path_length = at.path_length;
    uint32_t *existing;
    bool inserted;
    TSR_TRY(tsr_map_put(f->names, entry.fqn, (uint32_t)f->entries.count, &existing, &inserted, f->err));
    if (!inserted) return refuse_twins(f, (const tsr_entry *)f->entries.items + *existing, &entry);
    tsr_entry *added = tsr_vec_push(&f->entries, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = entry;
    return TSR_OK;
}

/* A mapping that the entries below it do not tell all of. Those inside modules are parts of these. */
static tsr_status keep_mapping(flatten *f, const tsr_value *value)
{
    place at;
    const level *above = f->levels.count ? (const level *)f->levels.items + f->levels.count - 1 : NULL;
    const bool telling = value->kind == TSR_VALUE_DICT && (value->ordered_dict || value->as.attributes || !value->count);
    if (!telling || (above && above->parts[0])) return TSR_OK;
    TSR_TRY(take_path(f, &at));
    tsr_mapping *added = tsr_vec_push(&f->mappings, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = (tsr_mapping){at.fqn, at.path, at.path_length, f->entries.count, value};
    return TSR_OK;
}

static tsr_status enter(flatten *f, const tsr_value *value)
{
    TSR_TRY(keep_mapping(f, value));
    const tsr_value *state;
    level *pushed = tsr_vec_push(&f->levels, f->err);
    if (!pushed) return TSR_E_NOMEM;
    pushed->container = value;
    if (!find_parts(value, &state, pushed->parts)) {
        memset(pushed->parts, 0, sizeof pushed->parts);
        return TSR_OK;
    }
    const tsr_value *names = tsr_value_get(state, TSR_STR("_non_persistent_buffers_set"));
    if (!names || names->kind != TSR_VALUE_SET || names->count == 0) return TSR_OK;
    f->visited += names->count;
    pushed->hidden = tsr_map_new(f->host->allocator, names->count, f->err);
    if (!pushed->hidden) return TSR_E_NOMEM;
    for (size_t i = 0; i < names->count; i++)
        if (names->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_map_put(pushed->hidden, names->items[i]->text, 1, NULL, NULL,
                                                                        f->err));
    return TSR_OK;
}

static void leave(flatten *f)
{
    tsr_map_free(((level *)f->levels.items)[--f->levels.count].hidden);
}

static tsr_status visit(flatten *f, const tsr_value *value)
{
    bool deeper;
    TSR_FAIL_IF(++f->visited > f->host->limits.expansion, f->err, TSR_E_LIMIT, TSR_NO_POSITION,
                "torch: shared values stand for more than %llu nodes (limit expansion)",
                (unsigned long long)f->host->limits.expansion);
    TSR_TRY(walks_into(f, value, &deeper));
    if (!deeper) return add_leaf(f, value);
    TSR_FAIL_IF(f->levels.count >= f->host->limits.depth, f->err, TSR_E_LIMIT, TSR_NO_POSITION,
                "torch: containers nest deeper than %u (limit depth)", f->host->limits.depth);
    return enter(f, value);
}

static tsr_status walk(flatten *f, const tsr_value *root)
{
    TSR_TRY(visit(f, root));
    while (f->levels.count) {
        tsr_path_item item;
        const tsr_value *child = next_child((level *)f->levels.items + f->levels.count - 1, &item);
        if (!child) {
            leave(f);
            if (f->path.count) f->path.count--;
            continue;
        }
        tsr_path_item *pushed = tsr_vec_push(&f->path, f->err);
        if (!pushed) return TSR_E_NOMEM;
        *pushed = item;
        TSR_TRY(spell_key(f));
        size_t levels = f->levels.count;
        TSR_TRY(visit(f, child));
        if (f->levels.count == levels) f->path.count--;
    }
    return TSR_OK;
}

static tsr_status keep(flatten *f, tsr_torch_flat *out)
{
    out->entry_count = f->entries.count;
    out->mapping_count = f->mappings.count;
    out->entries = tsr_arena_array(f->arena, f->entries.count, sizeof *out->entries, f->err);
    out->mappings = tsr_arena_array(f->arena, f->mappings.count, sizeof *out->mappings, f->err);
    if (!out->entries || !out->mappings) return TSR_E_NOMEM;
    if (f->entries.count) memcpy(out->entries, f->entries.items, f->entries.count * sizeof *out->entries);
    if (f->mappings.count) memcpy(out->mappings, f->mappings.items, f->mappings.count * sizeof *out->mappings);
    return TSR_OK;
}

tsr_status tsr_torch_flatten(const tsr_value *root, const tsr_host *host, tsr_arena *arena, tsr_torch_flat *out,
                             tsr_error *err)
{
    const tsr_allocator *allocator = host->allocator;
    flatten f = {.host = host,
                 .arena = arena,
                 .err = err,
                 .levels = tsr_vec_of(allocator, sizeof(level)),
                 .path = tsr_vec_of(allocator, sizeof(tsr_path_item)),
                 .entries = tsr_vec_of(allocator, sizeof(tsr_entry)),
                 .mappings = tsr_vec_of(allocator, sizeof(tsr_mapping))};
    *out = (tsr_torch_flat){0};
    f.names = tsr_map_new(allocator, 0, err);
    f.lists = f.names ? tsr_map_new(allocator, 0, err) : NULL;
    f.inner = f.lists ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = f.inner ? walk(&f, root) : TSR_E_NOMEM;
    if (status == TSR_OK) status = keep(&f, out);
    while (f.levels.count) leave(&f);
    tsr_map_free(f.names);
    tsr_map_free(f.lists);
    tsr_map_free(f.inner);
    tsr_vec_free(&f.levels);
    tsr_vec_free(&f.path);
    tsr_vec_free(&f.entries);
    tsr_vec_free(&f.mappings);
    return status;
}
