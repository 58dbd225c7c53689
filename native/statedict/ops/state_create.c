/* PyTorch's _create_cpu_state_dict: makes a state dict of the same structure in host memory, which may be plain,
 * page-locked, or shared between processes. */
#include "statedict/tensor/state_dict.h"

#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"

/* Tensors without memory are collected, and get memory when all of them are known. */
typedef struct creation {
    tsr_vec made; /* of tensor pointers */
} creation;

/* Whether a tensor is left as it is, as in PyTorch. */
static bool is_kept(const tsr_tensor *tensor)
{
    return (tensor->spread == TSR_OVER_MESH && tensor->entry.ndim == 0) ||
           (tensor->spread == TSR_IN_BOXES && tensor->part_count == 0);
}

static tsr_status make(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                       const tsr_tensor **result, tsr_error *err)
{
    (void)companion;
    creation *c = ctx;
    if (is_kept(tensor)) return TSR_OK;
    tsr_tensor *copy, **slot = tsr_vec_push(&c->made, err);
    if (!slot) return TSR_E_NOMEM;
    TSR_TRY(tsr_state_dict_copy_tensor(out, tensor, &copy, err));
    copy->device = NULL;
    *slot = copy;
    *result = copy;
    return TSR_OK;
}

static void zero_scalars(const creation *c)
{
    tsr_tensor **made = c->made.items;
    for (size_t i = 0; i < c->made.count; i++)
        if (made[i]->entry.ndim == 0 && made[i]->spread == TSR_WHOLE)
            memset(made[i]->data, 0, tsr_dtype_size(made[i]->entry.dtype));
}

static tsr_status give_all(const creation *c, tsr_device *pin, tsr_state_dict *out, tsr_error *err)
{
    tsr_tensor **made = c->made.items;
    TSR_FAIL_IF(pin && !pin->pin, err, TSR_E_UNSUPPORTED, "the device cannot page-lock memory");
    for (size_t i = 0; i < c->made.count; i++) TSR_TRY(tsr_state_dict_give_memory(out, made[i], pin, err));
    return TSR_OK;
}

/* ---- shared memory ---- */

/* Computes the size of every leaf's first buffer, in the order that is the same on all ranks. Refuses tensors in several
 * boxes. */
static tsr_status measure_leaves(const tsr_leaves *leaves, tsr_arena *arena, uint64_t **out, tsr_error *err)
{
    *out = tsr_arena_array(arena, leaves->count, sizeof **out, err);
    if (!*out) return TSR_E_NOMEM;
    for (size_t i = 0; i < leaves->count; i++) {
        const tsr_tensor *tensor = leaves->items[i].tensor;
        void *data;
        TSR_FAIL_IF(tensor->spread == TSR_IN_BOXES && tensor->part_count > 1, err, TSR_E_UNSUPPORTED,
                    "'%.*s' has %u boxes on this rank; shared memory supports one per rank",
                    TSR_STR_ARG(leaves->items[i].path), (unsigned)tensor->part_count);
        if (tensor->spread != TSR_IN_BOXES || tensor->part_count)
            TSR_TRY(tsr_tensor_buffer(tensor, 0, arena, &data, &(*out)[i], err));
    }
    return TSR_OK;
}

static tsr_status lock_pages(tsr_state_dict *out, tsr_device *pin, void *data, uint64_t bytes, tsr_error *err)
{
    TSR_FAIL_IF(!pin->pin, err, TSR_E_UNSUPPORTED, "the device cannot page-lock memory");
    TSR_TRY(tsr_vec_reserve(&out->pinned, 1, err));
    TSR_TRY(pin->pin(pin, data, bytes, err));
    tsr_buffer *buffer = tsr_vec_push(&out->pinned, err);
    *buffer = (tsr_buffer){NULL, pin, data, bytes};
    return TSR_OK;
}

/* Assigns memory of the segment to the tensors that were made. */
static tsr_status take_shared(const tsr_leaves *leaves, uint32_t rank, tsr_device *pin, tsr_state_dict *out, tsr_error *err)
{
    for (size_t i = 0; i < leaves->count; i++) {
        tsr_tensor *tensor = (tsr_tensor *)leaves->items[i].tensor;
        uint64_t bytes;
        if (is_kept(tensor)) continue;
        void *data = tsr_shared_buffer(out->shared, rank, i, &bytes);
        tensor->meta = false;
        tensor->shared = out->shared;
        tensor->shared_index = i;
        if (tensor->spread == TSR_IN_BOXES) ((tsr_tensor_part *)tensor->parts)[0].data = data;
        else tensor->data = data;
        if (pin && bytes) TSR_TRY(lock_pages(out, pin, data, bytes, err));
    }
    return TSR_OK;
}

static tsr_status share_all(const tsr_create_options *options, tsr_status mine, tsr_state_dict *out, tsr_error *err)
{
    tsr_comm *comm = options->share;
    uint64_t *sizes = NULL;
    tsr_agreement agreement = {tsr_vec_of(out->host->allocator, 1), out->arena};
    tsr_status status = mine;
    if (status == TSR_OK) status = tsr_leaves_of(out->root, out->host, true, out->arena, &out->shared_leaves, err);
    if (status == TSR_OK) status = tsr_leaves_check(&out->shared_leaves, comm, err);
    if (status == TSR_OK) status = measure_leaves(&out->shared_leaves, out->arena, &sizes, err);
    if (status == TSR_OK) status = tsr_agreement_add_leaves(&agreement, "", &out->shared_leaves, err);
    status = tsr_agreement_check(&agreement, comm, status, out->host->allocator, err);
    if (status == TSR_OK)
        status = tsr_shared_new(comm, sizes, out->shared_leaves.count, out->host->allocator, &out->shared, err);
    if (status == TSR_OK) {
        status = take_shared(&out->shared_leaves, comm->rank, options->pin, out, err);
        status = tsr_comm_agree(comm, status, err);
    }
    return status;
}

tsr_status tsr_state_dict_create(const tsr_value *state, const tsr_create_options *options, tsr_state_dict *out,
                                 tsr_error *err)
{
    tsr_create_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_create_options, err));
    creation c = {tsr_vec_of(out->host->allocator, sizeof(tsr_tensor *))};
    const tsr_iterate how = {.whole = make, .over_mesh = make, .in_boxes = make, .ctx = &c, .any_type = true};
    tsr_status status = tsr_state_dict_iterate(state, &how, out, err);
    if (own.share) status = share_all(&own, status, out, err);
    else if (status == TSR_OK) status = give_all(&c, own.pin, out, err);
    if (status == TSR_OK) zero_scalars(&c);
    tsr_vec_free(&c.made);
    return status;
}

tsr_status tsr_state_dict_peer(const tsr_state_dict *dict, uint32_t peer, const tsr_tensor *mine, void **data,
                               uint64_t *bytes, tsr_error *err)
{
    TSR_FAIL_IF(!dict->shared, err, TSR_E_USAGE, "the state dict is not shared between processes");
    TSR_FAIL_IF(peer >= tsr_shared_ranks(dict->shared), err, TSR_E_USAGE, "rank %u is not one of the %u that share",
                (unsigned)peer, (unsigned)tsr_shared_ranks(dict->shared));
    for (size_t i = 0; i < dict->shared_leaves.count; i++) {
        if (dict->shared_leaves.items[i].tensor != mine) continue;
        *data = tsr_shared_buffer(dict->shared, peer, i, bytes);
        return TSR_OK;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%.*s' is not a tensor of the shared state dict",
                     TSR_STR_ARG(mine->entry.fqn));
}
