/* Lists leaves in the order of their paths. The `order` of a path is one string: for each step 's' and the string key, 'i'
 * and the int key in sixteen digits, or 'l' and the position in sixteen digits, followed by NUL. */
#include "live/tensor/leaves.h"

#include <inttypes.h>
#include <stdlib.h>

#include "live/tensor/path.h"
#include "tessera/sys/try.h"

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
