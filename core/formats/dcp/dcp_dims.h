/* Stores sizes and offsets so that equal ones are mostly stored once. */
#ifndef TSR_FORMATS_DCP_DCP_DIMS_H
#define TSR_FORMATS_DCP_DCP_DIMS_H

#include "tessera/sys/vec.h"

enum { TSR_DCP_DIMS_CACHE = 1 << 15 };

/* Begins as zeros except for `dims`. The caches are bounded and forget older values. */
typedef struct tsr_dcp_dims_store {
    tsr_vec *dims;                      /* of a tsr_dcp_metadata; borrowed */
    uint32_t cache[TSR_DCP_DIMS_CACHE]; /* 1 + id */
    uint32_t before[2];                 /* 1 + id of the last dims, and of those before them */
} tsr_dcp_dims_store;

/* Sets *id to the id of `ndim` values, which are stored if they are new. Errors, at `position` of the pickle: TSR_E_FORMAT for a
 * negative value, TSR_E_LIMIT for too many different ones. */
tsr_status tsr_dcp_dims_add(tsr_dcp_dims_store *store, const int64_t *values, int ndim, uint64_t position, uint32_t *id,
                            tsr_error *err);

#endif
