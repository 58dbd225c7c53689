/* Kernels that move, cast, flatten and check tensor elements in a GPU's memory.
 *
 * Example:
 *
 *     tsr_gpu_stream *stream;
 *     tsr_gpu_sums sums;
 *     status = tsr_gpu_stream_new(gpu, &stream, &err);
 *     if (status == TSR_OK) status = tsr_gpu_scan(stream, TSR_FLOAT32, device_memory, 1024, &sums, &err);
 *     if (status == TSR_OK) printf("%llu NaN\n", (unsigned long long)sums.nan); */
#ifndef TESSERA_SYS_GPU_KERNELS_H
#define TESSERA_SYS_GPU_KERNELS_H

#include "tessera/dtype.h"
#include "tessera/sys/gpu_stream.h"

TSR_API_BEGIN

/* A contiguous copy. */
typedef struct tsr_gpu_run {
    void *to;
    const void *from;
    size_t bytes;
} tsr_gpu_run;

/* Performs many contiguous copies, which must not overlap. Adjacent ones are merged. A single one, or copies at regular
 * distances, become one copy; otherwise one kernel is launched. All `to` must be in the same kind of memory (tsr_gpu_place),
 * and so must all `from`. The array is not used after the call returns. */
tsr_status tsr_gpu_move_runs(tsr_gpu_stream *stream, const tsr_gpu_run *runs, size_t count, tsr_error *err);

#define TSR_GPU_MAX_NDIM 8u /* the most dimensions of a box */

/* A strided block of elements: element (i, j, …) is i·strides[0] + j·strides[1] + … elements after the first. Packing or
 * unpacking a shard, transposing, filling and casting can all be described in this way. */
typedef struct tsr_gpu_box {
    void *to;
    const void *from; /* NULL: every element becomes `fill` */
    /* If they differ, both are floating types, and elements are cast as by tsr_cast; elements have 1 to 16 whole bytes. */
    tsr_dtype to_dtype, from_dtype;
    uint32_t ndim;
    const uint64_t *sizes;
    const uint64_t *to_strides;   /* no two elements may have the same address */
    const uint64_t *from_strides; /* not used when filling */
    uint8_t fill[16];             /* one element, little-endian */
} tsr_gpu_box;

/* Moves many boxes with one kernel. Boxes that are contiguous are copied as by tsr_gpu_move_runs, and a single box with long
 * rows by one 2-D copy. The same kinds of memory are allowed, but pageable memory only if no kernel is needed. The arrays
 * are not used after the call returns. TSR_E_UNSUPPORTED: elements that are not byte-aligned, and casts that tsr_cast cannot
 * do. */
tsr_status tsr_gpu_move_boxes(tsr_gpu_stream *stream, const tsr_gpu_box *boxes, size_t count, tsr_error *err);

/* One original parameter of a flat parameter, or padding. */
typedef struct tsr_gpu_span {
    void *param; /* NULL: padding */
    uint64_t numel;
} tsr_gpu_span;

/* Describes the elements [flat_begin, flat_end) of a flat parameter that consists of `spans`, one after the other. The
 * functions copy them between the original parameters and `flat` (flat_end − flat_begin elements). Gathering writes
 * `padding` (one element) for padding and for the elements after the last span; scattering skips both. Element types are as
 * for boxes. Source: FlatParamHandle.flatten_tensors and _get_unflat_views of PyTorch 2.13. */
typedef struct tsr_gpu_flat {
    tsr_dtype dtype;
    const tsr_gpu_span *spans;
    size_t span_count;
    uint64_t flat_begin, flat_end;
} tsr_gpu_flat;
tsr_status tsr_gpu_flat_gather(tsr_gpu_stream *stream, const tsr_gpu_flat *what, void *flat, const void *padding,
                               tsr_error *err);
tsr_status tsr_gpu_flat_scatter(tsr_gpu_stream *stream, const tsr_gpu_flat *what, const void *flat, tsr_error *err);

/* Computes the CRC-32 of device or pinned memory, as tsr_crc32 does with the initial value 0. Waits for the stream. */
tsr_status tsr_gpu_checksum(tsr_gpu_stream *stream, const void *data, size_t size, uint32_t *crc, tsr_error *err);

typedef struct tsr_gpu_sums {
    uint64_t nan, inf, finite;
    double min, max; /* of the finite numbers; 0 if there are none; never −0 */
} tsr_gpu_sums;

/* Scans `count` elements of a floating type in device or pinned memory. Waits for the stream. TSR_E_UNSUPPORTED for other
 * types. */
tsr_status tsr_gpu_scan(tsr_gpu_stream *stream, tsr_dtype dtype, const void *data, uint64_t count, tsr_gpu_sums *sums,
                        tsr_error *err);

TSR_API_END

#endif
