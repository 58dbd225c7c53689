/* Threads the leaves into a tree of nodes, parents before children; then builds each node's items.
 *
 *   ("model","a.w")  ("optim","state",0)        root ─ "model" ─ "a.w"
 *                                                    └ "optim" ─ "state" ─ 0
 *
 * Children are found in one hash map, by their parent's number and their key, so that wide dicts need no search. */
#include "tessera/sys/catalog.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#define NO_NODE UINT32_MAX

typedef struct node {
    tsr_value *value; /* that of a container; for a leaf its value, which is not modified */
    const tsr_leaf *leaf;
    const tsr_path_item *step;  /* from its parent to the node */
    uint32_t first, last, next; /* children, and the next sibling */
    uint32_t count;
    bool is_list;
    const tsr_value *like; /* for a dict: the value whose class and attributes it gets; or NULL */
} node;

typedef struct nest {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_arena *keys;
    tsr_map *map;
    tsr_vec nodes;
    uint64_t missing; /* total number of list positions without a leaf */
    tsr_error *err;
} nest;

static node *node_at(const nest *n, uint32_t number)
{
    return (node *)n->nodes.items + number;
}

static tsr_status new_node(nest *n, const tsr_path_item *step, uint32_t *number)
{
    node *fresh = n->nodes.count < NO_NODE ? tsr_vec_push(&n->nodes, n->err) : NULL;
    if (!fresh) return TSR_E_NOMEM;
    *number = (uint32_t)(n->nodes.count - 1);
    *fresh = (node){.step = step, .first = NO_NODE, .last = NO_NODE, .next = NO_NODE};
    return TSR_OK;
}

/* The key of a child in the map: parent, kind of step, and the key or number. */
static tsr_str key_of(nest *n, uint32_t parent, const tsr_path_item *step)
{
    const bool text = step->kind == TSR_PATH_KEY;
    const tsr_str own = text ? step->key : (tsr_str){(const char *)&step->integer, sizeof step->integer};
    char *key = tsr_arena_array(n->keys, sizeof parent + 1 + own.size, 1, n->err);
    if (!key) return (tsr_str){NULL, 0};
    memcpy(key, &parent, sizeof parent);
    key[sizeof parent] = (char)(step->value ? -1 : (int)step->kind); /* 1.5 is not "1.5" */
    if (own.size) memcpy(key + sizeof parent + 1, own.data, own.size);
    return (tsr_str){key, sizeof parent + 1 + own.size};
}

static tsr_status child(nest *n, uint32_t parent, const tsr_path_item *step, const tsr_leaf *leaf, uint32_t *out)
{
    const bool is_list = step->kind == TSR_PATH_INDEX;
    node *above = node_at(n, parent);
    TSR_FAIL_IF(above->leaf, n->err, TSR_E_USAGE, "'%.*s' is inside '%.*s', which is not a container",
                TSR_STR_ARG(leaf->name), TSR_STR_ARG(above->leaf->name));
    TSR_FAIL_IF(above->count && above->is_list != is_list, n->err, TSR_E_USAGE,
                "'%.*s': its container would be both a list and a dict", TSR_STR_ARG(leaf->name));
    const tsr_str key = key_of(n, parent, step);
    uint32_t *known, fresh;
    bool inserted;
    if (!key.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(n->map, key, NO_NODE, &known, &inserted, n->err));
    if (!inserted) {
        *out = *known;
        return TSR_OK;
    }
    TSR_TRY(new_node(n, step, &fresh));
    above = node_at(n, parent);
    *known = *out = fresh;
    if (above->last == NO_NODE) {
        above->first = fresh;
    } else {
        node_at(n, above->last)->next = fresh;
    }
    above->last = fresh;
    above->is_list = is_list;
    above->count++;
    return TSR_OK;
}

/* Makes a dict that has no leaves. */
static tsr_status thread_empty(nest *n, const tsr_leaf *mapping)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < mapping->path_length; i++) TSR_TRY(child(n, at, &mapping->path[i], mapping, &at));
    return TSR_OK;
}

/* Marks the dict at the mapping's path, if it exists. */
static tsr_status liken(nest *n, const tsr_leaf *mapping)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < mapping->path_length && at != NO_NODE; i++) {
        const tsr_str key = key_of(n, at, &mapping->path[i]);
        if (!key.data) return TSR_E_NOMEM;
        at = tsr_map_get(n->map, key, NO_NODE);
    }
    if (at != NO_NODE && !node_at(n, at)->leaf && !node_at(n, at)->is_list) node_at(n, at)->like = mapping->value;
    return TSR_OK;
}

static tsr_status thread(nest *n, const tsr_leaf *leaf)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < leaf->path_length; i++) TSR_TRY(child(n, at, &leaf->path[i], leaf, &at));
    node *end = node_at(n, at);
    TSR_FAIL_IF(end->leaf || end->count, n->err, TSR_E_USAGE, "'%.*s' has the same path as another entry",
                TSR_STR_ARG(leaf->name));
    end->leaf = leaf;
    end->value = (tsr_value *)leaf->value;
    return TSR_OK;
}

/* ---- containers ---- */

static tsr_status fill_dict(nest *n, node *container)
{
    const tsr_value **items = tsr_arena_array(n->arena, 2 * (size_t)container->count, sizeof *items, n->err);
    if (!items) return TSR_E_NOMEM;
    size_t i = 0;
    for (uint32_t c = container->first; c != NO_NODE; c = node_at(n, c)->next) {
        const tsr_path_item *step = node_at(n, c)->step;
        items[i] = step->value                  ? step->value
                   : step->kind == TSR_PATH_KEY ? tsr_value_str(n->arena, step->key, n->err)
                                                : tsr_value_int(n->arena, step->integer, n->err);
        if (!items[i]) return TSR_E_NOMEM;
        items[i + 1] = node_at(n, c)->value;
        i += 2;
    }
    container->value->items = items;
    container->value->count = i;
    if (!container->like) return TSR_OK;
    container->value->ordered_dict = container->like->ordered_dict;
    /* A defaultdict whose items are entries becomes a dict, because torch.load(weights_only=True), the default, rejects
     * defaultdicts. */
    if (container->like->variant == TSR_VARIANT_COUNTER) container->value->variant = TSR_VARIANT_COUNTER;
    container->value->as.attributes = container->like->as.attributes;
    return TSR_OK;
}

static tsr_status fill_list(nest *n, node *container)
{
    uint64_t length = 0;
    for (uint32_t c = container->first; c != NO_NODE; c = node_at(n, c)->next) {
        const int64_t index = node_at(n, c)->step->integer;
        TSR_FAIL_IF(index < 0, n->err, TSR_E_USAGE, "the list position %lld is out of range", (long long)index);
        if ((uint64_t)index >= length) length = (uint64_t)index + 1;
    }
    n->missing += length - container->count;
    const uint64_t most = n->host->limits.expansion / sizeof(const tsr_value *);
    TSR_FAIL_IF(length - container->count > most || n->missing > most, n->err, TSR_E_LIMIT,
                "a list has %llu positions, but only %u of them are present", (unsigned long long)length,
                (unsigned)container->count);
    const tsr_value **items = tsr_arena_array(n->arena, (size_t)length, sizeof *items, n->err);
    const tsr_value *none = tsr_value_new(n->arena, TSR_VALUE_NONE, n->err);
    if (!items || !none) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < length; i++) items[i] = none;
    for (uint32_t c = container->first; c != NO_NODE; c = node_at(n, c)->next)
        items[node_at(n, c)->step->integer] = node_at(n, c)->value;
    container->value->items = items;
    container->value->count = (size_t)length;
    container->value->kind = TSR_VALUE_LIST;
    return TSR_OK;
}

static tsr_status build(nest *n, const tsr_leaf *leaves, size_t count, const tsr_value **out)
{
    uint32_t root;
    n->map = tsr_map_new(n->host->allocator, count, n->err);
    n->keys = tsr_arena_new(n->host->allocator, 0, n->err);
    if (!n->map || !n->keys) return TSR_E_NOMEM;
    TSR_TRY(new_node(n, NULL, &root));
    for (size_t i = 0; i < count; i++) {
        if (!leaves[i].mapping) TSR_TRY(thread(n, &leaves[i]));
        if (leaves[i].mapping && leaves[i].value->count == 0) TSR_TRY(thread_empty(n, &leaves[i]));
    }
    for (size_t i = 0; i < count; i++) {
        if (leaves[i].mapping) TSR_TRY(liken(n, &leaves[i]));
    }
    for (uint32_t i = 0; i < n->nodes.count; i++) {
        if (node_at(n, i)->leaf) continue;
        node_at(n, i)->value = tsr_value_new(n->arena, TSR_VALUE_DICT, n->err);
        if (!node_at(n, i)->value) return TSR_E_NOMEM;
    }
    for (uint32_t i = 0; i < n->nodes.count; i++) {
        node *container = node_at(n, i);
        if (!container->leaf) TSR_TRY(container->is_list ? fill_list(n, container) : fill_dict(n, container));
    }
    *out = node_at(n, root)->value;
    return TSR_OK;
}

tsr_status tsr_nest(const tsr_leaf *leaves, size_t count, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                    tsr_error *err)
{
    nest n = {.host = host, .arena = arena, .nodes = tsr_vec_of(host->allocator, sizeof(node)), .err = err};
    const tsr_status status = build(&n, leaves, count, out);
    tsr_vec_free(&n.nodes);
    tsr_map_free(n.map);
    tsr_arena_free(n.keys);
    return status;
}

/* ---- renamed entries ---- */

/* An item as it appears in a name. */
static tsr_str spelled(const tsr_path_item *item, tsr_arena *arena, tsr_error *err)
{
    return item->kind == TSR_PATH_KEY ? item->key : tsr_arena_format(arena, err, "%lld", (long long)item->integer);
}

/* Removes `item` and its dot from the beginning of `name`. Returns false if the name does not begin with them. */
static bool take_front(tsr_str *name, tsr_str item)
{
    if (name->size <= item.size || !tsr_str_starts(*name, item) || name->data[item.size] != '.') return false;
    *name = tsr_str_after(*name, item.size + 1);
    return true;
}

/* Removes `item` from the end of `name`: with its dot, or as all that is left. */
static bool take_back(tsr_str *name, tsr_str item)
{
    if (tsr_str_equal(*name, item)) {
        *name = (tsr_str){NULL, 0};
        return true;
    }
    if (name->size <= item.size || !tsr_str_ends(*name, item) || name->data[name->size - item.size - 1] != '.') return false;
    *name = (tsr_str){name->data, name->size - item.size - 1};
    return true;
}

tsr_status tsr_renamed_path(const tsr_entry *entry, tsr_str name, tsr_arena *arena, const tsr_path_item **path,
                            uint32_t *path_length, tsr_error *err)
{
    const uint32_t length = entry->path ? entry->path_length : 0;
    *path = entry->path;
    *path_length = entry->path_length;
    if (entry->path && tsr_str_equal(name, entry->fqn)) return TSR_OK;
    tsr_path_item *items = tsr_arena_array(arena, (size_t)length + 1, sizeof *items, err);
    tsr_str *texts = items ? tsr_arena_array(arena, length, sizeof *texts, err) : NULL;
    if (!texts) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < length; i++) {
        texts[i] = spelled(&entry->path[i], arena, err);
        if (!texts[i].data && texts[i].size) return TSR_E_NOMEM;
    }
    uint32_t back = length, front = 0, used = 0;
    tsr_str rest = name;
    while (back > 0 && rest.data && take_back(&rest, texts[back - 1])) back--;
    while (front < back && rest.data && take_front(&rest, texts[front])) items[used++] = entry->path[front++];
    if (rest.data || (!used && back == length))
        items[used++] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = rest.data ? rest : name};
    for (uint32_t i = back; i < length; i++) items[used++] = entry->path[i];
    *path = items;
    *path_length = used;
    return TSR_OK;
}
