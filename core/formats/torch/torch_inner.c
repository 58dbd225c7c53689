/* Names for the tensors inside an object: the path from the object's root, so that a message or a listing can point at one.
 * Each container is looked into once, however many hold it, and a name is only written where a tensor takes it. */
#include "formats/torch/torch_flatten.h"
#include "tessera/sys/try.h"

#include "tessera/sys/vec.h"

enum { LONGEST_NAME = 1024 }; /* deeper tensors are not named */

typedef struct level {
    const tsr_value *container;
    size_t next;
    size_t named; /* bytes of the name before this container's items */
} level;

typedef struct naming {
    tsr_map *seen;
    tsr_vec levels;
    tsr_vec name; /* char */
    tsr_arena *arena;
    tsr_error *err;
} naming;

static bool holds_more(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT:
    case TSR_VALUE_OBJECT: return value->count > 0;
    default: return false;
    }
}

/* The text for the step to item `index`: a key, a position, or the name of an object's part. */
static tsr_str step_name(const tsr_value *in, size_t index, char digits[24])
{
    static const char *const parts[] = {"args", "state", "items", "dict"};
    if (in->kind == TSR_VALUE_DICT && in->items[index - 1]->kind == TSR_VALUE_STR) return in->items[index - 1]->text;
    if (in->kind == TSR_VALUE_OBJECT && index < sizeof parts / sizeof parts[0]) return tsr_str_from(parts[index]);
    size_t rest = in->kind == TSR_VALUE_DICT ? index / 2 : index, at = 24;
    do digits[--at] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    return (tsr_str){digits + at, 24 - at};
}

/* Makes `name` the first `keep` bytes and one more step; false when that is too long. */
static tsr_status add_step(naming *n, size_t keep, tsr_str step, bool *fits)
{
    *fits = step.size <= LONGEST_NAME;
    n->name.count = keep;
    if (!*fits) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(&n->name, step.size + 1, n->err));
    char *text = n->name.items;
    if (keep) text[n->name.count++] = '.';
    memcpy(text + n->name.count, step.data, step.size);
    n->name.count += step.size;
    return TSR_OK;
}

static tsr_status enter(naming *n, const tsr_value *container)
{
    bool fresh;
    const tsr_str key = {(const char *)&container->items, sizeof container->items};
    if (!holds_more(container) || n->name.count > LONGEST_NAME) return TSR_OK;
    TSR_TRY(tsr_map_put(n->seen, key, 1, NULL, &fresh, n->err));
    if (!fresh) return TSR_OK;
    level *pushed = tsr_vec_push(&n->levels, n->err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (level){container, container->kind == TSR_VALUE_DICT ? 1 : 0, n->name.count};
    return TSR_OK;
}

static tsr_status visit(naming *n, const tsr_value *in, size_t index, size_t named)
{
    const tsr_value *item = in->items[index];
    char digits[24];
    bool fits;
    if (item->kind != TSR_VALUE_TENSOR && !holds_more(item)) return TSR_OK;
    if (in->kind == TSR_VALUE_OBJECT && in->count == 1 && item->kind == TSR_VALUE_DICT) {
        n->name.count = named; /* the dictionary of a tensor's parts adds no step of its own */
        return enter(n, item);
    }
    TSR_TRY(add_step(n, named, step_name(in, index, digits), &fits));
    if (!fits) return TSR_OK;
    if (item->kind != TSR_VALUE_TENSOR) return enter(n, item);
    tsr_entry *entry = (tsr_entry *)item->as.tensor; /* made by the reader of this very tree */
    if (entry->fqn.data) return TSR_OK;
    entry->fqn = tsr_arena_str(n->arena, (tsr_str){n->name.items, n->name.count}, n->err);
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_torch_name_inner(const tsr_value *object, const tsr_host *host, tsr_map *seen, tsr_arena *arena,
                                tsr_error *err)
{
    naming n = {seen, tsr_vec_of(host->allocator, sizeof(level)), tsr_vec_of(host->allocator, 1), arena, err};
    tsr_status status = enter(&n, object);
    while (status == TSR_OK && n.levels.count) {
        level *top = (level *)n.levels.items + n.levels.count - 1;
        const level at = *top;
        top->next += at.container->kind == TSR_VALUE_DICT ? 2 : 1;
        if (at.next >= at.container->count) n.levels.count--;
        else status = visit(&n, at.container, at.next, at.named);
    }
    tsr_vec_free(&n.levels);
    tsr_vec_free(&n.name);
    return status;
}
