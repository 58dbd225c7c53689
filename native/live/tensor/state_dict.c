/* The owner of a state dict: nodes in an arena, a root that grows, and the memory of tensors. Also its leaves, what ranks agree on
 * before they do something with it, and values as bytes for other ranks. */
#include "live/tensor/state_dict.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "live/tensor/value_pack.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* ---- path ---- */

/* Paths and keys of nested values. */

tsr_str tsr_step_text(const tsr_step *step, tsr_arena *arena, tsr_error *err)
{
    if (!step) return TSR_STR("");
    const tsr_str up = tsr_step_text(step->up, arena, err);
    if (!up.data) return up;
    const char *dot = up.size ? "." : "";
    if (!step->key) return tsr_arena_format(arena, err, "%.*s[%zu]", TSR_STR_ARG(up), step->index);
    if (step->key->kind == TSR_VALUE_STR)
        return tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(up), dot, TSR_STR_ARG(step->key->text));
    if (step->key->kind == TSR_VALUE_INT)
        return tsr_arena_format(arena, err, "%.*s%s%" PRId64, TSR_STR_ARG(up), dot, step->key->as.integer);
    return tsr_arena_format(arena, err, "%.*s%s(%s)", TSR_STR_ARG(up), dot, tsr_python_type(step->key));
}

enum { MAX_DEPTH = 256 };

tsr_status tsr_step_check(const tsr_step *step, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    const uint32_t depth = host->limits.depth < MAX_DEPTH ? host->limits.depth : MAX_DEPTH;
    TSR_FAIL_IF(step->depth > depth, err, TSR_E_LIMIT, "state dict: nested deeper than %" PRIu32, depth);
    if (!step->key || step->key->kind == TSR_VALUE_INT ||
        (step->key->kind == TSR_VALUE_STR && !memchr(step->key->text.data, 0, step->key->text.size)))
        return TSR_OK;
    const tsr_str text = tsr_step_text(step, arena, err);
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "state dict: the key '%.*s' is neither a string without NUL characters nor an int", TSR_STR_ARG(text));
}

tsr_status tsr_step_context(const tsr_step *step, tsr_arena *arena, tsr_status status, tsr_error *err)
{
    const tsr_str text = tsr_step_text(step, arena, NULL);
    if (text.size) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(text));
    return status;
}

/* Whether both are the same string, or both the same int. */
static bool same_key(const tsr_value *a, const tsr_value *b)
{
    if (a->kind != b->kind) return false;
    return a->kind == TSR_VALUE_STR ? tsr_str_equal(a->text, b->text)
                                    : a->kind == TSR_VALUE_INT && a->as.integer == b->as.integer;
}

size_t tsr_dict_pair(const tsr_value *dict, const tsr_value *key, size_t hint)
{
    const size_t pairs = tsr_value_pairs(dict);
    for (size_t tried = 0; tried < pairs; tried++) {
        const size_t at = (hint + tried) % pairs;
        if (same_key(dict->items[2 * at], key)) return at;
    }
    return TSR_NO_PAIR;
}

const tsr_value *tsr_dict_find(const tsr_value *dict, const tsr_value *key, size_t hint)
{
    const size_t at = tsr_dict_pair(dict, key, hint);
    return at == TSR_NO_PAIR ? NULL : dict->items[2 * at + 1];
}

const tsr_value *tsr_dict_of_pairs(const tsr_vec *pairs, tsr_arena *arena, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, pairs->count, sizeof *items, err);
    if (!items) return NULL;
    if (pairs->count) memcpy(items, pairs->items, pairs->count * sizeof *items);
    return tsr_value_items(arena, TSR_VALUE_DICT, items, pairs->count, err);
}

bool tsr_is_list(const tsr_value *value)
{
    return value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE;
}

const char *tsr_python_type(const tsr_value *value)
{
    static const char *const names[] = {"None",       "bool",  "int",    "int",    "float", "complex",
                                        "str",        "bytes", "list",   "tuple",  "set",   "dict",
                                        "torch.Size", "dtype", "device", "tensor", "class", "object"};
    return names[value->kind];
}

/* ---- leaves ---- */

/* Lists leaves in the order of their paths. The `order` of a path is one string: for each step 's' and the string key, 'i'
 * and the int key in sixteen digits, or 'l' and the position in sixteen digits, followed by NUL. */

typedef struct listing {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec leaves;
    bool tensors_only;
} listing;

static tsr_status list(listing *l, const tsr_value *value, const tsr_step *at, tsr_str order, tsr_error *err);

static tsr_str order_below(const listing *l, tsr_str order, const tsr_step *step, tsr_error *err)
{
    const tsr_value *key = step->key;
    const bool text = key && key->kind == TSR_VALUE_STR;
    tsr_str last = {NULL, 0};
    if (text) last = key->text;
    else
        last = tsr_arena_format(l->arena, err, "%016" PRIx64,
                                key ? (uint64_t)key->as.integer ^ (UINT64_C(1) << 63) : (uint64_t)step->index);
    char *room = tsr_arena_array(l->arena, order.size + last.size + 2, 1, err);
    if (!room || (!text && !last.data)) return (tsr_str){NULL, 0};
    if (order.size) memcpy(room, order.data, order.size);
    room[order.size] = !key ? 'l' : text ? 's' : 'i';
    if (last.size) memcpy(room + order.size + 1, last.data, last.size);
    return (tsr_str){room, order.size + last.size + 2}; /* the last byte is NUL */
}

static tsr_status list_items(listing *l, const tsr_value *value, const tsr_step *at, tsr_str order, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT;
    for (size_t i = 0; i < value->count; i += dict ? 2 : 1) {
        const tsr_step step = {at, dict ? value->items[i] : NULL, i, at ? at->depth + 1 : 1};
        TSR_TRY(tsr_step_check(&step, l->host, l->arena, err));
        const tsr_str below = order_below(l, order, &step, err);
        if (!below.data) return TSR_E_NOMEM;
        TSR_TRY(list(l, value->items[i + dict], &step, below, err));
    }
    return TSR_OK;
}

static tsr_status list(listing *l, const tsr_value *value, const tsr_step *at, tsr_str order, tsr_error *err)
{
    if (value->kind == TSR_VALUE_DICT || tsr_is_list(value)) return list_items(l, value, at, order, err);
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (l->tensors_only && !tensor) return TSR_OK;
    tsr_leaf_at *leaf = tsr_vec_push(&l->leaves, err);
    const tsr_str path = tsr_step_text(at, l->arena, err);
    if (!leaf || !path.data) return TSR_E_NOMEM;
    *leaf = (tsr_leaf_at){path, order, value, tensor};
    return TSR_OK;
}

static int by_order(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_leaf_at *)a)->order, ((const tsr_leaf_at *)b)->order);
}

tsr_status tsr_leaves_of(const tsr_value *state, const tsr_host *host, bool tensors_only, tsr_arena *arena, tsr_leaves *out,
                         tsr_error *err)
{
    listing l = {host, arena, tsr_vec_of(host->allocator, sizeof(tsr_leaf_at)), tensors_only};
    tsr_status status = list(&l, state, NULL, TSR_STR(""), err);
    tsr_leaf_at *items = status == TSR_OK ? tsr_arena_array(arena, l.leaves.count, sizeof *items, err) : NULL;
    if (status == TSR_OK && !items) status = TSR_E_NOMEM;
    if (status == TSR_OK && l.leaves.count) {
        memcpy(items, l.leaves.items, l.leaves.count * sizeof *items);
        qsort(items, l.leaves.count, sizeof *items, by_order);
    }
    *out = (tsr_leaves){items, l.leaves.count};
    tsr_vec_free(&l.leaves);
    return status;
}

tsr_status tsr_leaves_check(const tsr_leaves *leaves, const tsr_comm *comm, tsr_error *err)
{
    for (size_t i = 0; i < leaves->count; i++) {
        const tsr_tensor *tensor = leaves->items[i].tensor;
        if (!tensor || tensor->spread != TSR_OVER_MESH) continue;
        TSR_FAIL_IF(tsr_mesh_ranks(tensor->mesh) != comm->size || tensor->mesh_rank != comm->rank, err, TSR_E_USAGE,
                    "'%.*s' is on rank %" PRIu64 " of a mesh of %" PRIu64 ", but this is rank %" PRIu32 " of %" PRIu32
                    "; use the communicator of the mesh's ranks, or add the dims of the other ranks to its mesh, with "
                    "replicate placements",
                    TSR_STR_ARG(leaves->items[i].path), tensor->mesh_rank, tsr_mesh_ranks(tensor->mesh), comm->rank,
                    comm->size);
    }
    return TSR_OK;
}

/* ---- agreement ---- */

/* Ranks compare what they must have in common: first digests, and the whole texts only if the digests differ.
 *
 *   an item:  | order size u64 | order | path size u64 | path | words size u64 | words | */

typedef struct item {
    tsr_str order, path, words;
} item;

static tsr_status add_text(tsr_agreement *agreement, tsr_str text, tsr_error *err)
{
    const uint64_t size = text.size;
    TSR_TRY(tsr_vec_reserve(&agreement->bytes, sizeof size + text.size, err));
    char *to = (char *)agreement->bytes.items + agreement->bytes.count;
    memcpy(to, &size, sizeof size);
    if (text.size) memcpy(to + sizeof size, text.data, text.size);
    agreement->bytes.count += sizeof size + text.size;
    return TSR_OK;
}

tsr_status tsr_agreement_add(tsr_agreement *agreement, tsr_str order, tsr_str path, tsr_str words, tsr_error *err)
{
    TSR_TRY(add_text(agreement, order, err));
    TSR_TRY(add_text(agreement, path, err));
    return add_text(agreement, words, err);
}

tsr_status tsr_agreement_add_leaves(tsr_agreement *agreement, const char *kind, const tsr_leaves *leaves, tsr_error *err)
{
    for (size_t i = 0; i < leaves->count; i++) {
        const tsr_leaf_at *leaf = &leaves->items[i];
        char *room = tsr_arena_array(agreement->arena, strlen(kind) + leaf->order.size, 1, err);
        const tsr_str path = tsr_arena_format(agreement->arena, err, "%s'%.*s'", kind, TSR_STR_ARG(leaf->path));
        const tsr_str words = leaf->tensor                          ? tsr_tensor_words(leaf->tensor, agreement->arena, err)
                              : leaf->value->kind == TSR_VALUE_NONE ? TSR_STR("None")
                                                                    : TSR_STR("no tensor");
        if (!room || !path.data || !words.data) return TSR_E_NOMEM;
        memcpy(room, kind, strlen(kind));
        if (leaf->order.size) memcpy(room + strlen(kind), leaf->order.data, leaf->order.size);
        TSR_TRY(tsr_agreement_add(agreement, (tsr_str){room, strlen(kind) + leaf->order.size}, path, words, err));
    }
    return TSR_OK;
}

static bool next_item(tsr_str *blob, item *out)
{
    return tsr_take_sized(blob, &out->order) && tsr_take_sized(blob, &out->path) && tsr_take_sized(blob, &out->words);
}

/* Finds the first item in which two ranks differ, and returns it as each of them has it. words.data is NULL if a rank lacks
 * it. */
static bool first_difference(tsr_str a, tsr_str b, item *x, item *y)
{
    for (;;) {
        const bool has_a = next_item(&a, x), has_b = next_item(&b, y);
        if (!has_a && !has_b) return false;
        const int order = !has_a ? 1 : !has_b ? -1 : tsr_str_compare(x->order, y->order);
        if (order == 0 && tsr_str_equal(x->words, y->words)) continue;
        if (order < 0) *y = (item){x->order, x->path, {NULL, 0}};
        if (order > 0) *x = (item){y->order, y->path, {NULL, 0}};
        return true;
    }
}

static tsr_status raise_difference(const tsr_comm_blobs *blobs, tsr_error *err)
{
    item mine = {0}, theirs = {0}, x, y;
    uint32_t rank = 0;
    for (uint32_t r = 1; r < blobs->count; r++) {
        if (!first_difference(blobs->blobs[0], blobs->blobs[r], &x, &y)) continue;
        if (rank && tsr_str_compare(x.order, mine.order) >= 0) continue;
        mine = x;
        theirs = y;
        rank = r;
    }
    if (!rank) return TSR_OK; /* cannot happen: equal texts have equal digests */
    const tsr_str none = TSR_STR("missing");
    const tsr_str a = mine.words.data ? mine.words : none, b = theirs.words.data ? theirs.words : none;
    return tsr_fail(err, TSR_E_USAGE, "ranks 0 and %" PRIu32 " differ: %.*s is %.*s on rank 0, but %.*s on rank %" PRIu32,
                    rank, TSR_STR_ARG(mine.path), TSR_STR_ARG(a), TSR_STR_ARG(b), rank);
}

static tsr_status compare_in_full(tsr_comm *comm, tsr_str mine, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_comm_blobs blobs = {0};
    TSR_TRY(tsr_comm_gather_blobs((tsr_ranks){comm, allocator}, mine, &blobs, err));
    const tsr_status status = raise_difference(&blobs, err);
    tsr_comm_blobs_free(&blobs);
    return status;
}

/* Whether all ranks have the same digest. Compares the largest digest with the largest complement, which needs no memory for
 * the digests of all ranks. */
static tsr_status all_equal(tsr_comm *comm, uint64_t digest, bool *equal, tsr_error *err)
{
    uint64_t most = digest, least = ~digest;
    TSR_TRY(comm->largest(comm, &most, err));
    TSR_TRY(comm->largest(comm, &least, err));
    *equal = *equal && most == ~least;
    return TSR_OK;
}

tsr_status tsr_agreement_check(tsr_agreement *agreement, tsr_comm *comm, tsr_status mine, const tsr_allocator *allocator,
                               tsr_error *err)
{
    const tsr_str text = {agreement->bytes.items, agreement->bytes.count};
    bool equal = true;
    tsr_status status = tsr_comm_agree(comm, mine, err);
    for (uint64_t seed = 1; status == TSR_OK && seed <= 2; seed++)
        status = all_equal(comm, tsr_hash_bytes(text.data, text.size, seed), &equal, err);
    if (status == TSR_OK && !equal) status = compare_in_full(comm, text, allocator, err);
    tsr_vec_free(&agreement->bytes);
    return status;
}

/* ---- dict ---- */

tsr_status tsr_state_dict_new(const tsr_host *host, tsr_state_dict **out, tsr_error *err)
{
    *out = NULL;
    tsr_state_dict *dict = tsr_alloc(host->allocator, 1, sizeof *dict, err);
    if (!dict) return TSR_E_NOMEM;
    *dict = (tsr_state_dict){.host = host,
                             .pairs = tsr_vec_of(host->allocator, sizeof(const tsr_value *)),
                             .buffers = tsr_vec_of(host->allocator, sizeof(tsr_buffer)),
                             .pinned = tsr_vec_of(host->allocator, sizeof(tsr_buffer)),
                             .made = {.kind = TSR_VALUE_DICT}};
    dict->root = &dict->made;
    dict->arena = tsr_arena_new(host->allocator, 0, err);
    dict->index = dict->arena ? tsr_map_new(host->allocator, 0, err) : NULL;
    if (!dict->index) {
        tsr_state_dict_free(dict);
        return TSR_E_NOMEM;
    }
    *out = dict;
    return TSR_OK;
}

static void free_buffer(const tsr_state_dict *dict, const tsr_buffer *buffer)
{
    if (buffer->pinned) buffer->pinned->unpin(buffer->pinned, buffer->data, buffer->bytes);
    if (buffer->device) buffer->device->free(buffer->device, buffer->data, buffer->bytes);
    else tsr_free(dict->host->allocator, buffer->data, (size_t)buffer->bytes, 1);
}

void tsr_state_dict_free(tsr_state_dict *dict)
{
    if (!dict) return;
    const tsr_buffer *buffers = dict->buffers.items;
    for (size_t i = 0; i < dict->buffers.count; i++) free_buffer(dict, &buffers[i]);
    const tsr_buffer *pinned = dict->pinned.items;
    for (size_t i = 0; i < dict->pinned.count; i++)
        pinned[i].pinned->unpin(pinned[i].pinned, pinned[i].data, pinned[i].bytes);
    tsr_shared_free(dict->shared);
    tsr_vec_free(&dict->buffers);
    tsr_vec_free(&dict->pinned);
    tsr_vec_free(&dict->pairs);
    tsr_map_free(dict->index);
    tsr_arena_free(dict->arena);
    tsr_free(dict->host->allocator, dict, 1, sizeof *dict);
}

const tsr_host *tsr_state_dict_host(const tsr_state_dict *dict)
{
    return dict->host;
}
tsr_arena *tsr_state_dict_arena(tsr_state_dict *dict)
{
    return dict->arena;
}
const tsr_value *tsr_state_dict_root(const tsr_state_dict *dict)
{
    return dict->root;
}
uint64_t tsr_state_dict_owned(const tsr_state_dict *dict)
{
    return dict->owned;
}
void tsr_state_dict_set_root(tsr_state_dict *dict, const tsr_value *root)
{
    dict->root = root;
}

/* ---- a root made with put ---- */

const tsr_value *tsr_state_dict_get(const tsr_state_dict *dict, tsr_str key)
{
    if (dict->root != &dict->made) return dict->root->kind == TSR_VALUE_DICT ? tsr_value_get(dict->root, key) : NULL;
    const uint32_t at = tsr_map_get(dict->index, key, UINT32_MAX);
    return at == UINT32_MAX ? NULL : ((const tsr_value *const *)dict->pairs.items)[at];
}

static tsr_status add_pair(tsr_state_dict *dict, tsr_str key, const tsr_value *value, tsr_error *err)
{
    const tsr_str own = tsr_arena_str(dict->arena, key, err);
    const tsr_value *name = own.data ? tsr_value_str(dict->arena, own, err) : NULL;
    if (!name) return TSR_E_NOMEM;
    TSR_TRY(tsr_vec_reserve(&dict->pairs, 2, err));
    TSR_TRY(tsr_map_put(dict->index, own, (uint32_t)dict->pairs.count + 1, NULL, NULL, err));
    const tsr_value **pair = (const tsr_value **)dict->pairs.items + dict->pairs.count;
    pair[0] = name;
    pair[1] = value;
    dict->pairs.count += 2;
    dict->made.items = dict->pairs.items;
    dict->made.count = dict->pairs.count;
    return TSR_OK;
}

tsr_status tsr_state_dict_put(tsr_state_dict *dict, tsr_str key, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(dict->root != &dict->made, err, TSR_E_USAGE,
                "state dict: '%.*s' cannot be added to a tree that this library did not create", TSR_STR_ARG(key));
    const uint32_t at = tsr_map_get(dict->index, key, UINT32_MAX);
    if (at == UINT32_MAX) return add_pair(dict, key, value, err);
    ((const tsr_value **)dict->pairs.items)[at] = value;
    return TSR_OK;
}

/* ---- tensors ---- */

static tsr_status copy_array(tsr_arena *arena, const void **array, size_t count, size_t size, tsr_error *err)
{
    void *copy = tsr_arena_array(arena, count, size, err);
    if (!copy) return TSR_E_NOMEM;
    if (count) memcpy(copy, *array, count * size);
    *array = copy;
    return TSR_OK;
}

static tsr_status copy_mesh(tsr_state_dict *dict, tsr_tensor *tensor, tsr_error *err)
{
    tsr_mesh *mesh = TSR_ARENA_NEW(dict->arena, tsr_mesh, err);
    if (!mesh) return TSR_E_NOMEM;
    *mesh = *tensor->mesh;
    TSR_TRY(copy_array(dict->arena, (const void **)&mesh->shape, mesh->dim_count, sizeof *mesh->shape, err));
    if (mesh->names) {
        TSR_TRY(copy_array(dict->arena, (const void **)&mesh->names, mesh->dim_count, sizeof *mesh->names, err));
        for (uint32_t i = 0; i < mesh->dim_count; i++) {
            tsr_str *name = (tsr_str *)&mesh->names[i];
            *name = tsr_arena_str(dict->arena, *name, err);
            if (!name->data) return TSR_E_NOMEM;
        }
    }
    tensor->mesh = mesh;
    return copy_array(dict->arena, (const void **)&tensor->placements, mesh->dim_count, sizeof *tensor->placements, err);
}

static tsr_status copy_parts(tsr_state_dict *dict, tsr_tensor *tensor, tsr_error *err)
{
    TSR_TRY(copy_array(dict->arena, (const void **)&tensor->parts, tensor->part_count, sizeof *tensor->parts, err));
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        tsr_tensor_part *part = (tsr_tensor_part *)&tensor->parts[i];
        TSR_TRY(copy_array(dict->arena, (const void **)&part->offsets, tensor->entry.ndim, sizeof *part->offsets, err));
        TSR_TRY(copy_array(dict->arena, (const void **)&part->sizes, tensor->entry.ndim, sizeof *part->sizes, err));
    }
    return TSR_OK;
}

static tsr_status copy_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err)
{
    tsr_tensor *copy = TSR_ARENA_NEW(dict->arena, tsr_tensor, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *tensor;
    if (copy->entry.fqn.size) copy->entry.fqn = tsr_arena_str(dict->arena, copy->entry.fqn, err);
    if (tensor->entry.fqn.size && !copy->entry.fqn.data) return TSR_E_NOMEM;
    TSR_TRY(copy_array(dict->arena, (const void **)&copy->entry.shape, copy->entry.ndim, sizeof *copy->entry.shape, err));
    if (copy->spread == TSR_OVER_MESH) TSR_TRY(copy_mesh(dict, copy, err));
    if (copy->spread == TSR_IN_BOXES) TSR_TRY(copy_parts(dict, copy, err));
    *out = copy;
    return TSR_OK;
}

tsr_status tsr_state_dict_copy_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_tensor **out, tsr_error *err)
{
    tsr_tensor *nested;
    TSR_TRY(copy_tensor(dict, tensor, out, err));
    if (!tensor->nested) return TSR_OK;
    TSR_TRY(copy_tensor(dict, tensor->nested, &nested, err));
    nested->nested = NULL; /* nesting stops at the second level */
    (*out)->nested = nested;
    return TSR_OK;
}

const tsr_value *tsr_state_dict_leaf(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_error *err)
{
    return tsr_value_tensor(dict->arena, &tensor->entry, err);
}

static tsr_status check_pieces(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_error *err)
{
    uint64_t bytes;
    return tsr_tensor_held(tensor, dict->arena, &bytes, err);
}

tsr_status tsr_state_dict_tensor(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err)
{
    tsr_tensor *copy;
    if (!tensor->nested) TSR_TRY(check_pieces(dict, tensor, err));
    TSR_TRY(tsr_state_dict_copy_tensor(dict, tensor, &copy, err));
    *out = tsr_state_dict_leaf(dict, copy, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_state_dict_allocate(tsr_state_dict *dict, const tsr_tensor *tensor, const tsr_value **out, tsr_error *err)
{
    tsr_tensor *copy;
    TSR_TRY(check_pieces(dict, tensor, err));
    TSR_TRY(tsr_state_dict_copy_tensor(dict, tensor, &copy, err));
    TSR_TRY(tsr_state_dict_give_memory(dict, copy, NULL, err));
    *out = tsr_state_dict_leaf(dict, copy, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_state_dict_duplicate(tsr_state_dict *dict, const tsr_tensor *tensor, tsr_device *device,
                                    const tsr_value **out, tsr_error *err)
{
    tsr_tensor like = *tensor;
    like.device = device;
    TSR_TRY(tsr_state_dict_allocate(dict, &like, out, err));
    TSR_TRY(tsr_tensor_copy(tensor, tsr_tensor_of(*out), dict->arena, err));
    TSR_TRY(tsr_device_wait(tensor->device, err));
    return tsr_device_wait(device, err);
}

bool tsr_list_is_plain(const tsr_value *list, uint32_t depth)
{
    for (size_t i = 0; i < list->count && depth; i++) {
        const tsr_value *value = list->items[i];
        if (value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_TENSOR) return false;
        if (value->kind == TSR_VALUE_LIST && !tsr_list_is_plain(value, depth - 1)) return false;
    }
    return true;
}

/* ---- memory ---- */

static tsr_status allocate(tsr_state_dict *dict, tsr_device *device, tsr_device *pin, uint64_t bytes, void **out,
                           tsr_error *err)
{
    tsr_buffer *buffer;
    *out = NULL;
    if (bytes == 0) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(&dict->buffers, 1, err));
    if (device) TSR_TRY(device->alloc(device, bytes, out, err));
    else *out = tsr_alloc(dict->host->allocator, (size_t)bytes, 1, err);
    if (!*out) return TSR_E_NOMEM;
    buffer = tsr_vec_push(&dict->buffers, err);
    *buffer = (tsr_buffer){device, NULL, *out, bytes};
    dict->owned += bytes;
    if (!pin) return TSR_OK;
    TSR_TRY(pin->pin(pin, *out, bytes, err));
    buffer->pinned = pin;
    return TSR_OK;
}

tsr_status tsr_state_dict_give_memory(tsr_state_dict *dict, tsr_tensor *tensor, tsr_device *pin, tsr_error *err)
{
    tensor->meta = false;
    tensor->shared = NULL;
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(tensor); i++) {
        void *data;
        uint64_t bytes;
        TSR_TRY(tsr_tensor_buffer(tensor, i, dict->arena, &data, &bytes, err));
        TSR_TRY(allocate(dict, tensor->device, pin, bytes, &data, err));
        if (tensor->spread == TSR_IN_BOXES) ((tsr_tensor_part *)tensor->parts)[i].data = data;
        else tensor->data = data;
    }
    return TSR_OK;
}

/* ---- value pack ---- */

/* A tensor is | dtype u32 | ndim u32 | whole u8 | shape: u64 each | its bytes, if it is whole |. */

static tsr_status pack_bytes(const tsr_tensor *tensor, tsr_vec *out, tsr_error *err)
{
    uint64_t bytes;
    TSR_FAIL_IF(!tsr_entry_bytes(&tensor->entry, &bytes), err, TSR_E_UNSUPPORTED,
                "the tensor's elements are not whole bytes");
    TSR_FAIL_IF(tensor->meta || (bytes && !tensor->data), err, TSR_E_USAGE, "the tensor has no memory");
    if (!tensor->device || !bytes) return tsr_vec_append(out, tensor->data, (size_t)bytes, err);
    TSR_TRY(tsr_vec_reserve(out, (size_t)bytes, err));
    TSR_TRY(tensor->device->to_host(tensor->device, (char *)out->items + out->count, tensor->data, bytes, err));
    TSR_TRY(tsr_device_wait(tensor->device, err));
    out->count += (size_t)bytes;
    return TSR_OK;
}

static tsr_status pack_tensor(void *ctx, const tsr_value *value, size_t depth, tsr_vec *out, tsr_error *err)
{
    const uint32_t tensors_at = *(const uint32_t *)ctx;
    TSR_FAIL_IF(!tensors_at, err, TSR_E_UNSUPPORTED, "a tensor inside a nested value cannot be broadcast");
    const tsr_tensor *tensor = tsr_tensor_of(value);
    const tsr_entry *entry = &tensor->entry;
    const bool whole = depth > tensors_at || entry->ndim == 0;
    TSR_FAIL_IF(tensor->spread != TSR_WHOLE, err, TSR_E_UNSUPPORTED, "the tensor is distributed; expected a whole tensor");
    TSR_TRY(tsr_pack_number(out, entry->dtype, 4, err));
    TSR_TRY(tsr_pack_number(out, entry->ndim, 4, err));
    TSR_TRY(tsr_pack_number(out, whole, 1, err));
    for (uint32_t d = 0; d < entry->ndim; d++) TSR_TRY(tsr_pack_number(out, entry->shape[d], 8, err));
    return whole ? pack_bytes(tensor, out, err) : TSR_OK;
}

tsr_status tsr_value_pack(const tsr_value *value, uint32_t tensors_at, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    return tsr_pack_tree(value, host, pack_tensor, &tensors_at, out, err);
}

static tsr_status unpack_bytes(tsr_packed_bytes *from, tsr_tensor *tensor, tsr_error *err)
{
    uint64_t bytes;
    const uint8_t *data = tsr_entry_bytes(&tensor->entry, &bytes) ? tsr_packed_take(from, bytes) : NULL;
    TSR_FAIL_IF(!data, err, TSR_E_FORMAT, "a rank sent a truncated tensor");
    tensor->data = tsr_arena_array(from->arena, (size_t)bytes, 1, err);
    if (!tensor->data) return TSR_E_NOMEM;
    if (bytes) memcpy(tensor->data, data, (size_t)bytes);
    return TSR_OK;
}

static tsr_status unpack_tensor(void *ctx, tsr_packed_bytes *from, tsr_value *value, tsr_error *err)
{
    (void)ctx;
    tsr_tensor *tensor = TSR_ARENA_NEW(from->arena, tsr_tensor, err);
    const uint64_t dtype = tsr_packed_number(from, 4), ndim = tsr_packed_number(from, 4), whole = tsr_packed_number(from, 1);
    TSR_FAIL_IF(dtype >= TSR_DTYPE_COUNT || ndim > TSR_MAX_NDIM, err, TSR_E_FORMAT, "a rank sent an invalid tensor");
    uint64_t *shape = tsr_arena_array(from->arena, (size_t)ndim, sizeof *shape, err);
    if (!tensor || !shape) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < ndim; d++) shape[d] = tsr_packed_number(from, 8);
    *tensor = tsr_tensor_whole((tsr_dtype)dtype, (uint32_t)ndim, shape, NULL);
    tensor->meta = !whole;
    value->as.tensor = &tensor->entry;
    return whole ? unpack_bytes(from, tensor, err) : TSR_OK;
}

tsr_status tsr_value_unpack(tsr_str bytes, const tsr_host *host, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    return tsr_unpack_tree(bytes, host, unpack_tensor, NULL, arena, out, err);
}

/* ---- replace tensors ---- */

tsr_status tsr_tensors_replace(tsr_replacing how, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    const tsr_tensor *made = NULL;
    *out = value;
    if (value->kind == TSR_VALUE_TENSOR) {
        TSR_TRY(how.each(how.ctx, tsr_tensor_of(value), &made, err));
        if (made) *out = tsr_value_tensor(how.arena, &made->entry, err);
        return *out ? TSR_OK : TSR_E_NOMEM;
    }
    if (value->count == 0) return TSR_OK;
    TSR_FAIL_IF(how.depth-- == 0, err, TSR_E_LIMIT, "the state is nested too deeply");
    tsr_value *copy = tsr_value_new(how.arena, value->kind, err);
    const tsr_value **items = tsr_arena_array(how.arena, value->count, sizeof *items, err);
    if (!copy || !items) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    for (size_t i = 0; i < value->count; i++) TSR_TRY(tsr_tensors_replace(how, value->items[i], &items[i], err));
    *out = copy;
    return TSR_OK;
}

/* ---- warn ---- */

void tsr_warn(const tsr_warnings *warnings, const char *format, ...)
{
    char text[TSR_ERROR_MESSAGE_SIZE];
    va_list arguments;
    if (!warnings->warn) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    warnings->warn(warnings->ctx, text);
}

void tsr_name_tally_add(tsr_name_tally *tally, tsr_str name)
{
    if (tally->count++ == 0) tally->first = name;
}

void tsr_name_tally_warn(const tsr_name_tally *tally, const tsr_warnings *warnings, const char *what)
{
    const size_t more = tally->count - 1;
    if (tally->count == 0) return;
    if (more == 0) tsr_warn(warnings, "%s: '%.*s'", what, TSR_STR_ARG(tally->first));
    else tsr_warn(warnings, "%s: '%.*s' and %zu other%s", what, TSR_STR_ARG(tally->first), more, more == 1 ? "" : "s");
}
