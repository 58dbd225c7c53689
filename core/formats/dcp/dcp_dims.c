/* See dcp_dims.h. */
#include "formats/dcp/dcp_dims.h"

#include "formats/dcp/dcp_metadata.h"
#include "tessera/sys/try.h"

static bool same_dims(const tsr_vec *dims, uint32_t id, const int64_t *values, int ndim)
{
    const uint64_t *known = (const uint64_t *)dims->items + id;
    int same = (uint32_t)known[0] == (uint32_t)ndim ? 0 : -1;
    while (same >= 0 && same < ndim && known[1 + same] == (uint64_t)values[same]) same++;
    return same == ndim;
}

static tsr_status new_dims(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                           tsr_error *err)
{
    tsr_vec *dims = store->dims;
    TSR_FAIL_AT(dims->count + TSR_DCP_MAX_NDIM + 1 >= TSR_DCP_DIMS_FLAG, err, TSR_E_LIMIT, position,
                "dcp: too many sizes and offsets (more than %u words)", TSR_DCP_DIMS_FLAG);
    TSR_TRY(tsr_vec_reserve(dims, (size_t)ndim + 1, err));
    uint64_t *words = (uint64_t *)dims->items + dims->count;
    words[0] = (uint64_t)ndim;
    memcpy(words + 1, values, (size_t)ndim * sizeof *values);
    *id = (uint32_t)dims->count;
    dims->count += (size_t)ndim + 1;
    return TSR_OK;
}

static tsr_status look_up_dims(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                               tsr_error *err)
{
    uint64_t hash = (uint64_t)ndim;
    for (int i = 0; i < ndim; i++) {
        if (values[i] < 0)
            return tsr_raise(err, TSR_E_FORMAT, position, "dcp: sizes or offsets contain the negative value %lld",
                             (long long)values[i]);
        hash = (hash ^ (uint64_t)values[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ hash >> 29;
    }
    uint32_t *slot = &store->cache[hash >> 40 & (TSR_DCP_DIMS_CACHE - 1)];
    *id = *slot - 1;
    if (*slot && same_dims(store->dims, *id, values, ndim)) return TSR_OK;
    TSR_TRY(new_dims(store, values, ndim, position, id, err));
    *slot = *id + 1;
    return TSR_OK;
}

/* Offsets and sizes alternate, and tensors often have the same ones as the tensor before. So the dims that followed the same
 * dims last time are tried before the cache. */
tsr_status tsr_dcp_dims_add(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                            tsr_error *err)
{
    tsr_vec *dims = store->dims;
    uint64_t *two_ago = store->before[1] ? (uint64_t *)dims->items + store->before[1] - 1 : NULL;
    uint32_t guess = two_ago ? tsr_dcp_high(*two_ago) : 0;
    if (guess && same_dims(dims, guess - 1, values, ndim)) {
        *id = guess - 1;
    } else {
        TSR_TRY(look_up_dims(store, values, ndim, position, id, err));
        two_ago = (uint64_t *)dims->items + store->before[1] - (store->before[1] != 0);
        if (store->before[1]) *two_ago = (uint32_t)*two_ago | (uint64_t)(*id + 1) << 32;
    }
    store->before[1] = store->before[0];
    store->before[0] = *id + 1;
    return TSR_OK;
}
