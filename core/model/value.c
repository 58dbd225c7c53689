/* Value trees: constructors, deep comparison, and the check whether JSON can represent a tree.
 *
 * Trees come from untrusted pickles: they may be deep, share nodes, or contain cycles. So every walk here uses its own stack
 * of limited height and counts the nodes it visits. */
#include "tessera/value.h"

#include <math.h>
#include <stdarg.h>

#include "base/line.h"
#include "base/utf8.h"
#include "model/catalog.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/try.h"

enum { MAX_DEPTH = 256 };

const tsr_value *tsr_value_get(const tsr_value *dict, tsr_str key)
{
    for (size_t i = 0; i + 1 < dict->count; i += 2) {
        const tsr_value *k = dict->items[i];
        if (k->kind == TSR_VALUE_STR && tsr_str_equal(k->text, key)) return dict->items[i + 1];
    }
    return NULL;
}

tsr_value *tsr_value_new(tsr_arena *arena, tsr_value_kind kind, tsr_error *err)
{
    tsr_value *value = TSR_ARENA_NEW(arena, tsr_value, err);
    if (value) value->kind = kind;
    return value;
}

tsr_value *tsr_value_none(tsr_arena *arena, tsr_error *err)
{
    return tsr_value_new(arena, TSR_VALUE_NONE, err);
}

tsr_value *tsr_value_bool(tsr_arena *arena, bool boolean, tsr_error *err)
{
    tsr_value *value = tsr_value_new(arena, TSR_VALUE_BOOL, err);
    if (value) value->as.boolean = boolean;
    return value;
}

tsr_value *tsr_value_float(tsr_arena *arena, double real, tsr_error *err)
{
    tsr_value *value = tsr_value_new(arena, TSR_VALUE_FLOAT, err);
    if (value) value->as.real = real;
    return value;
}

tsr_value *tsr_value_int(tsr_arena *arena, int64_t integer, tsr_error *err)
{
    tsr_value *value = tsr_value_new(arena, TSR_VALUE_INT, err);
    if (value) value->as.integer = integer;
    return value;
}

tsr_value *tsr_value_tensor(tsr_arena *arena, const tsr_entry *entry, tsr_error *err)
{
    tsr_value *value = tsr_value_new(arena, TSR_VALUE_TENSOR, err);
    if (value) value->as.tensor = entry;
    return value;
}

tsr_value *tsr_value_str(tsr_arena *arena, tsr_str text, tsr_error *err)
{
    tsr_value *value = tsr_value_new(arena, TSR_VALUE_STR, err);
    if (value) value->text = text;
    return value;
}

tsr_value *tsr_value_items(tsr_arena *arena, tsr_value_kind kind, const tsr_value *const *items, size_t count,
                           tsr_error *err)
{
    tsr_value *value = tsr_value_new(arena, kind, err);
    if (!value) return NULL;
    value->items = items;
    value->count = count;
    return value;
}

tsr_value *tsr_value_dict(tsr_arena *arena, size_t pairs, ...)
{
    const tsr_value **items = pairs <= SIZE_MAX / 2 ? tsr_arena_array(arena, 2 * pairs, sizeof *items, NULL) : NULL;
    bool all = items != NULL;
    va_list list;
    va_start(list, pairs);
    for (size_t i = 0; all && i < pairs; i++) {
        items[2 * i] = tsr_value_str(arena, tsr_str_from(va_arg(list, const char *)), NULL);
        items[2 * i + 1] = va_arg(list, const tsr_value *);
        all = items[2 * i] && items[2 * i + 1];
    }
    va_end(list);
    return all ? tsr_value_items(arena, TSR_VALUE_DICT, items, 2 * pairs, NULL) : NULL;
}

tsr_value *tsr_value_list(tsr_arena *arena, tsr_value_kind kind, size_t count, ...)
{
    const tsr_value **items = tsr_arena_array(arena, count, sizeof *items, NULL);
    bool all = items != NULL;
    va_list list;
    va_start(list, count);
    for (size_t i = 0; all && i < count; i++) {
        items[i] = va_arg(list, const tsr_value *);
        all = items[i] != NULL;
    }
    va_end(list);
    return all ? tsr_value_items(arena, kind, items, count, NULL) : NULL;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool same_real(double a, double b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

static bool same_tensor(const tsr_entry *a, const tsr_entry *b)
{
    return a == b || (a && b && a->dtype == b->dtype && tsr_entry_same_shape(a, b));
}

/* Compares everything except the items. */
static bool same_node(const tsr_value *a, const tsr_value *b)
{
    if (a->kind != b->kind || a->count != b->count || !tsr_str_equal(a->text, b->text)) return false;
    switch (a->kind) {
    case TSR_VALUE_BOOL: return a->as.boolean == b->as.boolean;
    case TSR_VALUE_INT: return a->as.integer == b->as.integer;
    case TSR_VALUE_FLOAT: return same_real(a->as.real, b->as.real);
    case TSR_VALUE_COMPLEX:
        return same_real(a->as.complex.re, b->as.complex.re) && same_real(a->as.complex.im, b->as.complex.im);
    case TSR_VALUE_DTYPE: return a->as.dtype == b->as.dtype;
    case TSR_VALUE_TENSOR: return same_tensor(a->as.tensor, b->as.tensor);
    default: return true;
    }
}

/* Two containers that are being compared; the next item is `next` of `a`. Its partner in `b` is searched from `hint` on;
 * after that has failed a few times, `index` is used. */
typedef struct pair {
    const tsr_value *a, *b;
    size_t next, hint;
    tsr_map *index; /* text or integer of an item of `b` → its position; or NULL */
} pair;

enum { PLAIN_TRIES = 64, LARGE = 4096 /* the number of bytes from which a container is remembered */ };

typedef struct budget {
    uint32_t depth;
    uint64_t nodes;
    tsr_value_tensors tensor; /* or NULL */
    void *ctx;
    tsr_map *pairs;  /* large containers that are being compared, or were */
    tsr_arena *keys; /* memory for the keys of that map */
} budget;

static tsr_match match(const tsr_value *a, const tsr_value *b, budget *left, bool inside_key);

/* Ensures that two large containers are compared only once, because shared items could make it take forever. When the same
 * pair is met `again`, it is as equal as the first comparison will find it. False if out of memory. */
static bool meet(budget *left, const tsr_value *a, const tsr_value *b, bool *again)
{
    tsr_error ignored = {0};
    bool fresh = false;
    if (!left->keys) left->keys = tsr_arena_new(&tsr_allocator_libc, 0, &ignored);
    if (left->keys && !left->pairs) left->pairs = tsr_map_new(&tsr_allocator_libc, 0, &ignored);
    const void **key = left->pairs ? tsr_arena_array(left->keys, 2, sizeof *key, &ignored) : NULL;
    if (!key) return false;
    key[0] = a->items;
    key[1] = b->items;
    const tsr_str text = {(const char *)key, 2 * sizeof *key};
    if (tsr_map_put(left->pairs, text, 1, NULL, &fresh, &ignored) != TSR_OK) return false;
    *again = !fresh;
    return true;
}

/* The key's representation in an index; empty for other kinds of keys. It points into the key itself. */
static tsr_str index_key(const tsr_value *key)
{
    if (key->kind == TSR_VALUE_STR) return key->text;
    if (key->kind == TSR_VALUE_INT) return (tsr_str){(const char *)&key->as.integer, sizeof key->as.integer};
    return (tsr_str){NULL, 0};
}

/* Indexes the keys of `in`. Without memory for it, the search continues one by one, which is slow but correct. */
static tsr_map *index_keys(const tsr_value *in, size_t step)
{
    tsr_error ignored = {0};
    tsr_map *index = in->count <= UINT32_MAX ? tsr_map_new(&tsr_allocator_libc, in->count / step, &ignored) : NULL;
    for (size_t i = 0; index && i < in->count; i += step) {
        const tsr_str key = index_key(in->items[i]);
        if (key.data) tsr_map_put(index, key, (uint32_t)i, NULL, NULL, &ignored);
    }
    return index;
}

static bool find_in_index(pair *p, const tsr_value *key, size_t step)
{
    const tsr_str text = index_key(key);
    if (!text.data) return false;
    if (!p->index) p->index = index_keys(p->b, step);
    const uint32_t at = p->index ? tsr_map_get(p->index, text, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || p->b->items[at]->kind != key->kind) return false;
    p->hint = at;
    return true;
}

/* Compares two keys. Different keys do not make their dicts different, so pairs of containers met on the way must not be
 * remembered. */
static tsr_match match_key(const tsr_value *a, const tsr_value *b, budget *left)
{
    budget own = *left;
    own.pairs = NULL;
    own.keys = NULL;
    const tsr_match found = match(a, b, &own, true);
    left->nodes = own.nodes;
    tsr_map_free(own.pairs);
    tsr_arena_free(own.keys);
    return found;
}

/* Looks for a key of a dict, or for an item of a set, beginning at the hint. If the dicts have the same order, this takes
 * one comparison per key. */
static tsr_match find_partner(pair *p, const tsr_value *key, size_t step, budget *left)
{
    const tsr_value *in = p->b;
    for (size_t tried = 0; tried < in->count; tried += step) {
        if (tried == PLAIN_TRIES * step && find_in_index(p, key, step)) return TSR_SAME;
        size_t at = p->hint + tried < in->count ? p->hint + tried : p->hint + tried - in->count;
        tsr_match found = match_key(key, in->items[at], left);
        if (found == TSR_DIFFERENT) continue;
        p->hint = at;
        return found;
    }
    return TSR_DIFFERENT;
}

/* Sets the next two values to compare, or NULL when the containers are finished. */
static tsr_match step_pair(pair *p, bool ordered, budget *left, const tsr_value **a, const tsr_value **b)
{
    *a = *b = NULL;
    bool keyed = !ordered && (p->a->kind == TSR_VALUE_DICT || p->a->kind == TSR_VALUE_SET);
    size_t step = p->a->kind == TSR_VALUE_DICT ? 2 : 1;
    for (; keyed && p->next + step <= p->a->count; p->next += step, p->hint += step) {
        if (p->hint >= p->b->count) p->hint = 0;
        tsr_match found = find_partner(p, p->a->items[p->next], step, left);
        if (found != TSR_SAME) return found;
        if (step == 1) continue;
        *a = p->a->items[p->next + 1];
        *b = p->b->items[p->hint + 1];
        p->next += step, p->hint += step;
        return TSR_SAME;
    }
    if (keyed || p->next >= p->a->count) return TSR_SAME;
    *a = p->a->items[p->next];
    *b = p->b->items[p->next++];
    return TSR_SAME;
}

/* Keys are hashable in Python and contain no dicts, so inside a key even a dict is compared in order. Therefore this
 * recurses at most once. */
static tsr_match match_on(pair *stack, uint32_t *open, const tsr_value *a, const tsr_value *b, budget *left, bool inside_key)
{
    uint32_t height = 0;
    for (;;) {
        if (left->nodes == 0) return TSR_TOO_LARGE;
        left->nodes--;
        if (a != b) {
            if (!same_node(a, b)) return TSR_DIFFERENT;
            bool again = false;
            const bool large = a->count && (a->expanded > LARGE || b->expanded > LARGE);
            if (large && !meet(left, a, b, &again)) return TSR_TOO_LARGE;
            const bool shown = left->tensor && !inside_key && a->kind == TSR_VALUE_TENSOR && a->as.tensor && b->as.tensor;
            if (shown && !left->tensor(left->ctx, a->as.tensor, b->as.tensor)) return TSR_DIFFERENT;
            if (a->count && !again) {
                if (height == left->depth || height == MAX_DEPTH) return TSR_TOO_LARGE;
                stack[height++] = (pair){a, b, 0, 0, NULL};
                *open = height;
            }
        }
        for (a = NULL; height && !a;) {
            tsr_match found = step_pair(&stack[height - 1], inside_key, left, &a, &b);
            if (found != TSR_SAME) return found;
            if (!a) tsr_map_free(stack[--height].index), *open = height;
        }
        if (!a) return TSR_SAME;
    }
}

static tsr_match match(const tsr_value *a, const tsr_value *b, budget *left, bool inside_key)
{
    pair stack[MAX_DEPTH];
    uint32_t open = 0;
    const tsr_match found = match_on(stack, &open, a, b, left, inside_key);
    while (open) tsr_map_free(stack[--open].index);
    return found;
}

tsr_match tsr_value_match(const tsr_value *a, const tsr_value *b, uint32_t depth, uint64_t nodes)
{
    return tsr_value_match_tensors(a, b, depth, nodes, NULL, NULL);
}

tsr_match tsr_value_match_tensors(const tsr_value *a, const tsr_value *b, uint32_t depth, uint64_t nodes,
                                  tsr_value_tensors tensor, void *ctx)
{
    budget left = {depth, nodes, tensor, ctx, NULL, NULL};
    const tsr_match found = match(a, b, &left, false);
    tsr_map_free(left.pairs);
    tsr_arena_free(left.keys);
    return found;
}

static bool is_json_node(const tsr_value *value)
{
    if (value->expanded == TSR_VALUE_ENDLESS) return false;
    switch (value->kind) {
    case TSR_VALUE_NONE:
    case TSR_VALUE_BOOL:
    case TSR_VALUE_INT:
    case TSR_VALUE_LIST: return true;
    case TSR_VALUE_BIGINT: return value->text.size && value->text.size <= TSR_INTEGER_BYTES;
    case TSR_VALUE_FLOAT: return isfinite(value->as.real);
    case TSR_VALUE_STR: return tsr_utf8_check(value->text) == value->text.size;
    case TSR_VALUE_DICT:
        for (size_t i = 0; i < value->count; i += 2)
            if (value->items[i]->kind != TSR_VALUE_STR) return false;
        return value->count % 2 == 0;
    default: return false;
    }
}

bool tsr_value_is_json(const tsr_value *value, uint32_t depth, uint64_t nodes)
{
    struct {
        const tsr_value *container;
        size_t next;
    } stack[MAX_DEPTH];
    uint32_t height = 0;
    for (;; nodes--) {
        if (nodes == 0 || !is_json_node(value)) return false;
        if (value->count) {
            if (height == depth || height == MAX_DEPTH) return false;
            stack[height].container = value;
            stack[height++].next = 0;
        }
        while (height && stack[height - 1].next == stack[height - 1].container->count) height--;
        if (height == 0) return true;
        value = stack[height - 1].container->items[stack[height - 1].next++];
    }
}

bool tsr_entry_is_subclass(const tsr_entry *entry)
{
    const tsr_value *value = entry->value;
    if (entry->kind != TSR_ENTRY_OPAQUE || !value || !entry->shape || entry->dtype == TSR_DTYPE_NONE) return false;
    if (entry->is_sharded) return true;
    if (value->kind != TSR_VALUE_OBJECT || value->count != 1 || value->items[0]->kind != TSR_VALUE_DICT) return false;
    return tsr_value_get(value->items[0], TSR_STR(TSR_WRAPPER_PART)) != NULL;
}

/* ---- value json ---- */

/* Writes values as JSON: the part of the emitter that knows values. */

enum { JSON_MAX_DEPTH = 63 };

static void write_leaf(tsr_json *json, const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_BOOL: tsr_json_bool(json, value->as.boolean); break;
    case TSR_VALUE_INT: tsr_json_int(json, value->as.integer); break;
    case TSR_VALUE_BIGINT: tsr_json_integer(json, value->text); break;
    case TSR_VALUE_FLOAT: tsr_json_double(json, value->as.real); break;
    case TSR_VALUE_STR: tsr_json_str(json, value->text); break;
    default: tsr_json_null(json); break;
    }
}

static bool is_container(const tsr_value *value)
{
    return value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_DICT;
}

static void open_container(tsr_json *json, const tsr_value *value)
{
    if (value->kind == TSR_VALUE_LIST) tsr_json_array(json);
    else tsr_json_object(json);
}

static void close_container(tsr_json *json, const tsr_value *value)
{
    if (value->kind == TSR_VALUE_LIST) tsr_json_array_end(json);
    else tsr_json_object_end(json);
}

void tsr_json_value(tsr_json *json, const tsr_value *value)
{
    struct {
        const tsr_value *container;
        size_t next;
    } stack[JSON_MAX_DEPTH];
    uint32_t height = 0;
    while (json->status == TSR_OK) {
        if (is_container(value)) {
            open_container(json, value); /* beyond 63 open containers, this fails and ends the loop */
            if (json->status != TSR_OK) return;
            stack[height].container = value;
            stack[height++].next = 0;
        } else {
            write_leaf(json, value);
        }
        while (height && stack[height - 1].next == stack[height - 1].container->count)
            close_container(json, stack[--height].container);
        if (height == 0) return;
        const tsr_value *container = stack[height - 1].container;
        size_t *next = &stack[height - 1].next;
        if (container->kind == TSR_VALUE_DICT) tsr_json_key_str(json, container->items[(*next)++]->text);
        value = container->items[(*next)++];
    }
}

/* ---- value path ---- */

typedef struct frame {
    const tsr_value *value;
    size_t next; /* index of the next item */
} frame;

typedef struct search {
    tsr_vec frames; /* from the root down */
    tsr_map *seen;  /* containers that were already entered */
    const tsr_entry *tensor;
    const tsr_host *host;
    tsr_error *err;
} search;

static tsr_status enter(search *s, const tsr_value *value, bool *found)
{
    bool fresh;
    *found = value->kind == TSR_VALUE_TENSOR && value->as.tensor == s->tensor;
    if (*found || value->count == 0 || s->frames.count >= s->host->limits.depth) return TSR_OK;
    TSR_TRY(tsr_map_put(s->seen, (tsr_str){(const char *)&value->items, sizeof value->items}, 1, NULL, &fresh, s->err));
    if (!fresh) return TSR_OK;
    frame *top = tsr_vec_push(&s->frames, s->err);
    if (!top) return TSR_E_NOMEM;
    *top = (frame){value, 0};
    return TSR_OK;
}

static tsr_status descend(search *s, const tsr_value *root, bool *found)
{
    TSR_TRY(enter(s, root, found));
    while (!*found && s->frames.count) {
        frame *top = (frame *)s->frames.items + s->frames.count - 1;
        if (top->next == top->value->count) {
            s->frames.count--;
            continue;
        }
        const tsr_value *item = top->value->items[top->next++];
        if (item) TSR_TRY(enter(s, item, found));
    }
    return TSR_OK;
}

/* Appends the step that a frame took last: the key in a dict, otherwise the position. */
static tsr_str add_step(const frame *f, tsr_str path, tsr_arena *arena, tsr_error *err)
{
    const size_t at = f->next - 1;
    const tsr_value *key = f->value->kind == TSR_VALUE_DICT ? f->value->items[at & ~(size_t)1] : NULL;
    const char *dot = path.size ? "." : "";
    if (key && key->kind == TSR_VALUE_STR)
        return tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(path), dot, TSR_STR_ARG(key->text));
    const long long number = key && key->kind == TSR_VALUE_INT ? (long long)key->as.integer : (long long)(key ? at / 2 : at);
    return tsr_arena_format(arena, err, "%.*s%s%lld", TSR_STR_ARG(path), dot, number);
}

tsr_status tsr_value_path(const tsr_value *root, const tsr_entry *tensor, const tsr_host *host, tsr_arena *arena,
                          tsr_str *out, tsr_error *err)
{
    search s = {.frames = tsr_vec_of(host->allocator, sizeof(frame)), .tensor = tensor, .host = host, .err = err};
    bool found = false;
    *out = (tsr_str){"", 0};
    s.seen = tsr_map_new(host->allocator, 0, err);
    tsr_status status = s.seen ? descend(&s, root, &found) : TSR_E_NOMEM;
    for (size_t i = 0; found && status == TSR_OK && i < s.frames.count; i++) {
        *out = add_step((const frame *)s.frames.items + i, *out, arena, err);
        if (!out->data) status = TSR_E_NOMEM;
    }
    tsr_map_free(s.seen);
    tsr_vec_free(&s.frames);
    return status;
}
