#include "live/cuda/twin.h"

#include "tessera/sys/cast.h"

/* Moves one element after the other, in row-major order. */
void tsr_twin_box(const tsr_gpu_box *box)
{
    const size_t to_size = tsr_dtype_size(box->to_dtype), from_size = tsr_dtype_size(box->from_dtype);
    uint64_t at[TSR_GPU_MAX_NDIM] = {0};
    for (;;) {
        uint64_t to = 0, from = 0;
        for (uint32_t i = 0; i < box->ndim; i++) {
            to += at[i] * box->to_strides[i];
            if (box->from) from += at[i] * box->from_strides[i];
        }
        uint8_t *element = (uint8_t *)box->to + to * to_size;
        if (!box->from) memcpy(element, box->fill, to_size);
        else if (box->to_dtype == box->from_dtype) memcpy(element, (const uint8_t *)box->from + from * from_size, to_size);
        else tsr_cast(box->from_dtype, box->to_dtype, (const uint8_t *)box->from + from * from_size, 1, element);
        uint32_t i = box->ndim;
        while (i > 0 && ++at[i - 1] == box->sizes[i - 1]) at[--i] = 0;
        if (i == 0) return;
    }
}

tsr_gpu_sums tsr_twin_scan(tsr_dtype dtype, const void *data, uint64_t count)
{
    tsr_gpu_sums sums = {0};
    for (uint64_t i = 0; i < count; i++) {
        double x;
        const uint8_t *element = (const uint8_t *)data + i * tsr_dtype_size(dtype);
        if (dtype == TSR_FLOAT64) memcpy(&x, element, sizeof x);
        else tsr_cast(dtype, TSR_FLOAT64, element, 1, (uint8_t *)&x);
        if (x != x) {
            sums.nan++;
        } else if (x - x != 0) {
            sums.inf++;
        } else {
            x += 0.0; /* −0 becomes 0 */
            if (sums.finite == 0 || x < sums.min) sums.min = x;
            if (sums.finite == 0 || x > sums.max) sums.max = x;
            sums.finite++;
        }
    }
    return sums;
}
