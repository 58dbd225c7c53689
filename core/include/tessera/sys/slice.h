/* Parts of tensors as people write them: "w[0:2,:,3]".
 *
 * Example:
 *
 *     const uint64_t shape[] = {8, 6};
 *     tsr_slice slice;
 *     status = tsr_slice_parse(TSR_STR("0:2,-1"), 2, shape, &slice, &err);
 *     if (status == TSR_OK) printf("%llu rows\n", (unsigned long long)slice.shape[0]); */
#ifndef TESSERA_SYS_SLICE_H
#define TESSERA_SYS_SLICE_H

#include "tessera/box.h"

TSR_API_BEGIN

/* A part of a tensor as text gives it, "w[0:2,:,3]". */
typedef struct tsr_slice {
    uint64_t offsets[TSR_MAX_NDIM];
    uint64_t sizes[TSR_MAX_NDIM];
    uint64_t shape[TSR_MAX_NDIM]; /* of the result: dims taken by a number are gone */
    uint32_t ndim;                /* of the result */
} tsr_slice;

/* The part of `text` before a trailing "[…]", which goes to *inside ({NULL, 0} when there is none). */
tsr_str tsr_slice_split(tsr_str text, tsr_str *inside);
/* `inside` as Python's basic indexing without steps: numbers, a:b with either side open, negative from the end, "..." once.
 * Errors: TSR_E_USAGE, which names the wrong part and the allowed values. An absent slice (data NULL) is the whole
 * tensor. */
tsr_status tsr_slice_parse(tsr_str inside, uint32_t ndim, const uint64_t *shape, tsr_slice *out, tsr_error *err);

TSR_API_END

#endif
