/* Device memory: where it is, copies to and from it, and the kernels that move, cast and check tensor elements there.
 *
 *   device ── streams: work in order, done when waited for ── events: a point in a stream's work
 *
 * A device is a CUDA device, or a simulated one for programs and tests without a GPU: its memory cannot be touched
 * directly (the processor traps), nothing in its streams happens before somebody waits for it, freed and fresh memory is
 * filled with rubbish, and every address is checked against what was allocated. Results are the same bits on both.
 *
 * CUDA itself is loaded by the runtime when first asked for: a program starts without a driver, and
 * tsr_gpu_runtime_describe says why there is no device.
 *
 * Pointers are plain addresses (unified addressing): device memory, pinned host memory, or any other host memory
 * ("pageable"), which only copies take. Memory given to a stream must stay as it is until the work was waited for.
 * Errors: TSR_E_NOMEM when device or pinned memory is exhausted (everything stays usable), TSR_E_IO for what CUDA reports,
 * with its name and what was being done, TSR_E_USAGE for addresses or shapes that make no sense, TSR_E_UNSUPPORTED.
 * Thread rule: a device may be used by several threads, a stream by one at a time. (native/cuda)
 *
 * Example:
 *
 *     tsr_gpu *device_0;
 *     tsr_gpu_info info;
 *     status = tsr_gpu_open(host, 0, &device_0, &err);
 *     if (status == TSR_OK) status = tsr_gpu_about(device_0, &info, &err);
 *     if (status == TSR_OK) printf("%s\n", info.name); */
#ifndef TESSERA_GPU_H
#define TESSERA_GPU_H

#include "tessera/dtype.h"
#include "tessera/host.h"

TSR_API_BEGIN

typedef struct tsr_gpu tsr_gpu;
typedef struct tsr_gpu_stream tsr_gpu_stream;
typedef struct tsr_gpu_event tsr_gpu_event;

/* ---- what there is ---- */

typedef struct tsr_gpu_runtime {
    bool is_built;            /* with CUDA */
    uint32_t runtime_version; /* 13000: 13.0; 0 when not built */
    uint32_t driver_version;  /* the highest CUDA version that the driver can do; 0: no driver */
    uint32_t devices;
    char reason[160]; /* why there are no devices; empty when there are */
} tsr_gpu_runtime;

typedef struct tsr_gpu_info {
    char name[128];
    bool is_simulated;
    uint32_t ordinal;
    uint32_t major, minor; /* compute capability */
    uint64_t memory_bytes, free_bytes;
} tsr_gpu_info;

/* What of CUDA this build and this machine have; never fails. */
void tsr_gpu_runtime_describe(tsr_gpu_runtime *out);
/* Of CUDA device `ordinal`; TSR_E_NOT_FOUND, with the reason, when there is none. */
tsr_status tsr_gpu_describe(uint32_t ordinal, tsr_gpu_info *out, tsr_error *err);

/* ---- devices ---- */

/* TSR_E_NOT_FOUND, with the reason, when there is no such CUDA device. Borrows `host`. */
tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err);

/* What stands in for kernels: their CPU twins (fast), or the kernels' own code over a simulated grid of threads. */
typedef enum tsr_gpu_simulation { TSR_SIMULATE_TWINS, TSR_SIMULATE_GRID } tsr_gpu_simulation;
tsr_status tsr_gpu_simulate(const tsr_host *host, size_t memory_bytes, tsr_gpu_simulation how, tsr_gpu **out,
                            tsr_error *err);
/* All its streams, events and memory must have been given back. Takes NULL. */
void tsr_gpu_close(tsr_gpu *device);
tsr_status tsr_gpu_about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err);

/* ---- memory ---- */

/* At least 256-byte aligned; 0 bytes give NULL. */
tsr_status tsr_gpu_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err);
/* Waits for the device's work first. Takes NULL. */
void tsr_gpu_free(tsr_gpu *device, void *memory);

enum {
    TSR_HOST_PINNED = 1, /* page-locked: copies run at full speed and beside other work; kernels reach it */
    TSR_HOST_SHARED = 2  /* processes forked later see the same bytes */
};
/* Host memory by the flags above, page aligned, zeroed; 0 bytes give NULL. */
tsr_status tsr_gpu_host_alloc(tsr_gpu *device, size_t size, unsigned flags, void **out, tsr_error *err);
void tsr_gpu_host_free(tsr_gpu *device, void *memory); /* takes NULL */
/* Page-locks host memory of the caller's, and the end of that, which waits for the device's work first. */
tsr_status tsr_gpu_pin(tsr_gpu *device, void *memory, size_t size, tsr_error *err);
void tsr_gpu_unpin(tsr_gpu *device, void *memory);

typedef enum tsr_gpu_place { TSR_PLACE_PAGEABLE, TSR_PLACE_PINNED, TSR_PLACE_DEVICE } tsr_gpu_place;
/* What kind of memory an address is of; pageable when the device does not know it. */
tsr_gpu_place tsr_gpu_place_of(tsr_gpu *device, const void *memory);

/* ---- streams and events ---- */

/* A stream does what it is given in that order; streams go on beside each other. */
tsr_status tsr_gpu_stream_new(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err);
void tsr_gpu_stream_free(tsr_gpu_stream *stream); /* waits first; takes NULL */
/* Returns when all work given to the stream is done, with the first error of that work. */
tsr_status tsr_gpu_stream_wait(tsr_gpu_stream *stream, tsr_error *err);

/* A point in a stream's work that hosts and other streams can wait for; not recorded yet. */
tsr_status tsr_gpu_event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err);
void tsr_gpu_event_free(tsr_gpu_event *event); /* takes NULL */
/* From now on it stands for all work that `stream` was given so far. */
tsr_status tsr_gpu_event_record(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err);
tsr_status tsr_gpu_event_wait(tsr_gpu_event *event, tsr_error *err); /* at once when never recorded */
/* Work given to `stream` from now on happens after the event. */
tsr_status tsr_gpu_stream_after(tsr_gpu_stream *stream, tsr_gpu_event *event, tsr_error *err);

/* ---- copies ---- */

/* `size` bytes between memory of any kinds, in the stream's order; the two do not overlap. */
tsr_status tsr_gpu_copy(tsr_gpu_stream *stream, void *to, const void *from, size_t size, tsr_error *err);
/* `rows` rows of `row_bytes`, whose beginnings are `*_pitch` ≥ row_bytes bytes apart. */
tsr_status tsr_gpu_copy_2d(tsr_gpu_stream *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                           size_t row_bytes, size_t rows, tsr_error *err);

/* ---- kernels ---- */

typedef struct tsr_gpu_run {
    void *to;
    const void *from;
    size_t bytes;
} tsr_gpu_run;

/* Many contiguous pieces, which must not overlap. Adjacent ones become one; one piece, or pieces at regular distances, are
 * one copy; the rest is one kernel. All `to` lie in one kind of memory (tsr_gpu_place), and so do all `from`. The array
 * may go when the call returns. */
tsr_status tsr_gpu_move_runs(tsr_gpu_stream *stream, const tsr_gpu_run *runs, size_t count, tsr_error *err);

#define TSR_GPU_MAX_RANK 8u

/* A strided block of elements: element (i, j, …) is i·strides[0] + j·strides[1] + … elements behind the first. Packing a
 * shard, unpacking one, transposing, filling and casting are all this. */
typedef struct tsr_gpu_box {
    void *to;
    const void *from;               /* NULL: every element becomes `fill` */
    tsr_dtype to_dtype, from_dtype; /* different: floating types, cast as tsr_cast does. Whole bytes, 1 to 16 an element */
    uint32_t rank;
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

/* The part [flat_begin, flat_end) of the flat parameter that `spans`, one behind the other, make up, between its originals
 * and `flat` (flat_end − flat_begin elements). Gathering writes `padding` (one element) for padding and for what lies
 * behind the last span; scattering skips both. Element types as in boxes.
 * Source: FlatParamHandle.flatten_tensors and _get_unflat_views of PyTorch 2.13. */
tsr_status tsr_gpu_flat_gather(tsr_gpu_stream *stream, tsr_dtype dtype, const tsr_gpu_span *spans, size_t count,
                               uint64_t flat_begin, uint64_t flat_end, void *flat, const void *padding, tsr_error *err);
tsr_status tsr_gpu_flat_scatter(tsr_gpu_stream *stream, tsr_dtype dtype, const tsr_gpu_span *spans, size_t count,
                                uint64_t flat_begin, uint64_t flat_end, const void *flat, tsr_error *err);

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
