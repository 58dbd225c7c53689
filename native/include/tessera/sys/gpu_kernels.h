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

/* Many contiguous pieces, which must not overlap. Adjacent ones become one; one piece, or pieces at regular distances, are
 * one copy; the rest is one kernel. All `to` are in one kind of memory (tsr_gpu_place), and so are all `from`. The array
 * may go when the call returns. */
tsr_status tsr_gpu_move_runs(tsr_gpu_stream *stream, const tsr_gpu_run *runs, size_t count, tsr_error *err);

#define TSR_GPU_MAX_RANK 8u /* dimensions of a box */

/* A strided block of elements: element (i, j, …) is i·strides[0] + j·strides[1] + … elements behind the first. Packing a
 * shard, unpacking one, transposing, filling and casting are all this. */
typedef struct tsr_gpu_box {
    void *to;
    const void *from;               /* NULL: every element becomes `fill` */
    tsr_dtype to_dtype, from_dtype; /* different: floating types, cast as tsr_cast does. Whole bytes, 1 to 16 an element */
    uint32_t ndim;
    const uint64_t *sizes;
    const uint64_t *to_strides;   /* no two elements at one place */
    const uint64_t *from_strides; /* unused by fills */
    uint8_t fill[16];             /* one element, little-endian */
} tsr_gpu_box;

/* Many boxes in one kernel; those that are runs go as tsr_gpu_move_runs has them, and one whose rows are long as one
 * 2-D copy. Memory as there, but pageable memory only where it comes to a copy. The arrays may go when the call returns.
 * TSR_E_UNSUPPORTED: element types without whole bytes, casts that tsr_cast cannot do. */
tsr_status tsr_gpu_move_boxes(tsr_gpu_stream *stream, const tsr_gpu_box *boxes, size_t count, tsr_error *err);

/* One original of a flat parameter, or padding. */
typedef struct tsr_gpu_span {
    void *param; /* NULL: padding */
    uint64_t numel;
} tsr_gpu_span;

/* The part [flat_begin, flat_end) of the flat parameter that `spans`, one after the other, make up, between its originals
 * and `flat` (flat_end − flat_begin elements). Gathering writes `padding` (one element) for padding and for the
 * elements after the last span; scattering skips both. Element types as in boxes.
 * Source: FlatParamHandle.flatten_tensors and _get_unflat_views of PyTorch 2.13. */
typedef struct tsr_gpu_flat {
    tsr_dtype dtype;
    const tsr_gpu_span *spans;
    size_t span_count;
    uint64_t flat_begin, flat_end;
} tsr_gpu_flat;
tsr_status tsr_gpu_flat_gather(tsr_gpu_stream *stream, const tsr_gpu_flat *what, void *flat, const void *padding,
                               tsr_error *err);
tsr_status tsr_gpu_flat_scatter(tsr_gpu_stream *stream, const tsr_gpu_flat *what, const void *flat, tsr_error *err);

/* CRC-32 of device or pinned memory, as tsr_crc32 from 0. Waits for the stream. */
tsr_status tsr_gpu_checksum(tsr_gpu_stream *stream, const void *data, size_t size, uint32_t *crc, tsr_error *err);

typedef struct tsr_gpu_sums {
    uint64_t nan, inf, finite;
    double min, max; /* of the finite numbers; 0 when there are none; never −0 */
} tsr_gpu_sums;

/* Over `count` elements of a floating type in device or pinned memory. Waits for the stream. TSR_E_UNSUPPORTED: other
 * types. */
tsr_status tsr_gpu_scan(tsr_gpu_stream *stream, tsr_dtype dtype, const void *data, uint64_t count, tsr_gpu_sums *sums,
                        tsr_error *err);

TSR_API_END

#endif
