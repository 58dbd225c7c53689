/* See fragments.h. */
#include "write/fragments.h"

#include "tessera/sys/box.h"
#include "tessera/sys/try.h"

void tsr_fragments_of_box(const tsr_entry *entry, const uint64_t *fragments, const uint64_t *offsets, const uint64_t *sizes,
                          uint64_t *stored_offsets, uint64_t *stored_sizes)
{
    uint64_t flat = 1;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        const uint64_t step = entry->shape[d] / fragments[d];
        stored_offsets[d] = offsets && step ? offsets[d] / step : 0;
        stored_sizes[d] = sizes && step ? sizes[d] / step : fragments[d];
        flat *= step;
    }
    stored_offsets[entry->ndim] = 0;
    stored_sizes[entry->ndim] = flat;
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void tsr_fragment_steps(uint32_t ndim, uint64_t *steps, tsr_box box)
{
    if (tsr_box_is_empty(box)) return;
    for (uint32_t d = 0; d < ndim; d++)
        steps[d] = greatest_divisor(greatest_divisor(steps[d], tsr_box_offset(box, d)), box.sizes[d]);
}

tsr_status tsr_fragment_boxes(const tsr_entry *entry, const uint64_t *fragments, tsr_box box,
                              tsr_status (*each)(void *ctx, tsr_box box, tsr_error *err), void *ctx, tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    uint32_t d;
    if (tsr_box_is_empty(box)) return each(ctx, box, err);
    for (uint32_t k = 0; k < box.ndim; k++) {
        offsets[k] = tsr_box_offset(box, k);
        sizes[k] = k ? entry->shape[k] / fragments[k] : box.sizes[k];
    }
    do {
        TSR_TRY(each(ctx, (tsr_box){box.ndim, offsets, sizes}, err));
        for (d = box.ndim; d > 0; d--) { /* moves along dim d - 1 */
            offsets[d - 1] += sizes[d - 1];
            if (offsets[d - 1] < tsr_box_offset(box, d - 1) + box.sizes[d - 1]) break;
            offsets[d - 1] = tsr_box_offset(box, d - 1);
        }
    } while (d > 0);
    return TSR_OK;
}
