/* Devices, streams and kernels of CUDA. */
#ifndef TESSERA_SYS_GPU_H
#define TESSERA_SYS_GPU_H

#include "tessera/comm.h"
#include "tessera/device.h"
#include "tessera/dtype.h"
#include "tessera/gpu.h"
#include "tessera/read.h"
#include "tessera/sys/store.h"

TSR_API_BEGIN

/* Lists the available GPUs, simulates GPUs, and finds the GPU that is the memory of a state dict (tessera/device.h).
 * (native/live/cuda)
 *
 * Example:
 *
 *     tsr_gpu_info info;
 *     status = tsr_gpu_about(gpu, &info, &err);
 *     if (status == TSR_OK) printf("%s\n", info.name); */

/* What a simulated device runs in place of a kernel: a CPU function with the same results (fast), or the kernel's own code
 * on a simulated grid of threads. */
typedef enum tsr_gpu_simulation { TSR_SIMULATE_TWINS, TSR_SIMULATE_GRID } tsr_gpu_simulation;
/* Makes a simulated device with `memory_bytes` of memory. Borrows `host`. To be closed with tsr_gpu_close. Errors:
 * TSR_E_NOMEM. */
tsr_status tsr_gpu_simulate(const tsr_host *host, size_t memory_bytes, tsr_gpu_simulation how, tsr_gpu **out,
                            tsr_error *err);

typedef struct tsr_gpu_runtime {
    bool is_built;            /* the build has CUDA */
    uint32_t runtime_version; /* 13000: 13.0; 0 if the build has no CUDA */
    uint32_t driver_version;  /* the highest CUDA version that the driver supports; 0: no driver */
    uint32_t devices;
    char reason[160]; /* why there are no devices; empty if there are */
} tsr_gpu_runtime;

typedef struct tsr_gpu_info {
    char name[128];
    bool is_simulated;
    uint32_t ordinal;
    uint32_t major, minor; /* compute capability */
    uint64_t memory_bytes, free_bytes;
} tsr_gpu_info;

/* Describes the CUDA support of this build and this machine. Never fails. */
void tsr_gpu_runtime_describe(tsr_gpu_runtime *out);
/* The properties of CUDA device `ordinal`. Fails with TSR_E_NOT_FOUND and the reason if there is no such device. */
tsr_status tsr_gpu_describe(uint32_t ordinal, tsr_gpu_info *out, tsr_error *err);
tsr_status tsr_gpu_about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err);

/* Streams and events of a GPU, its memory, and copies to and from it. tessera/gpu.h opens the devices.
 *
 * Example:
 *
 *     tsr_gpu_stream *stream;
 *     status = tsr_gpu_stream_new(gpu, &stream, &err);
 *     if (status == TSR_OK) status = tsr_gpu_copy(stream, device_memory, text.data, text.size, &err);
 *     if (status == TSR_OK) status = tsr_gpu_stream_wait(stream, &err); */

typedef struct tsr_gpu_stream tsr_gpu_stream;
typedef struct tsr_gpu_event tsr_gpu_event;

/* Allocates device memory, aligned to at least 256 bytes; NULL for 0 bytes. */
tsr_status tsr_gpu_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err);
/* Waits for the device's work first. Accepts NULL. */
void tsr_gpu_free(tsr_gpu *device, void *memory);

/* Allocates page-locked host memory, page-aligned and zeroed; NULL for 0 bytes. Copies to and from it run at full speed and
 * concurrently with other work, and kernels can access it. */
tsr_status tsr_gpu_host_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err);
void tsr_gpu_host_free(tsr_gpu *device, void *memory); /* accepts NULL */
/* Page-lock host memory of the caller, and undo that; tsr_gpu_unpin first waits for the device's work. */
tsr_status tsr_gpu_pin(tsr_gpu *device, void *memory, size_t size, tsr_error *err);
void tsr_gpu_unpin(tsr_gpu *device, void *memory);

/* Kinds of memory, by address. */
typedef enum tsr_gpu_place { TSR_PLACE_PAGEABLE, TSR_PLACE_PINNED, TSR_PLACE_DEVICE } tsr_gpu_place;
/* The kind of memory that an address belongs to; pageable if the device does not know it. */
tsr_gpu_place tsr_gpu_place_of(tsr_gpu *device, const void *memory);

/* A stream does its work in the order in which it was given; different streams run concurrently. */
tsr_status tsr_gpu_stream_new(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err);
void tsr_gpu_stream_free(tsr_gpu_stream *stream); /* waits first; accepts NULL */
/* Returns when all work given to the stream is done, with the first error of that work. */
tsr_status tsr_gpu_stream_wait(tsr_gpu_stream *stream, tsr_error *err);

/* A point in a stream's work that hosts can wait for; not recorded yet. */
tsr_status tsr_gpu_event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err);
void tsr_gpu_event_free(tsr_gpu_event *event); /* accepts NULL */
/* Makes the event mark the end of all work that `stream` was given so far. */
tsr_status tsr_gpu_event_record(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err);
tsr_status tsr_gpu_event_wait(tsr_gpu_event *event, tsr_error *err); /* returns immediately if never recorded */

/* Copies `size` bytes between memory of any kinds, in the order of the stream. The two must not overlap. */
tsr_status tsr_gpu_copy(tsr_gpu_stream *stream, void *to, const void *from, size_t size, tsr_error *err);
/* Copies `rows` rows of `row_bytes` bytes. On each side, a row begins `*_pitch` ≥ row_bytes bytes after the previous one. */
typedef struct tsr_gpu_rows {
    void *to;
    size_t to_pitch;
    const void *from;
    size_t from_pitch;
    size_t row_bytes, rows;
} tsr_gpu_rows;
tsr_status tsr_gpu_copy_2d(tsr_gpu_stream *stream, const tsr_gpu_rows *what, tsr_error *err);

/* Kernels that move and cast tensor elements in a GPU's memory.
 *
 * Example:
 *
 *     const uint64_t count = 1024, one = 1;
 *     const tsr_gpu_box zeros = {.to = device_memory, .to_dtype = TSR_FLOAT32, .from_dtype = TSR_FLOAT32,
 *                                .ndim = 1, .sizes = &count, .to_strides = &one};
 *     tsr_gpu_stream *stream;
 *     status = tsr_gpu_stream_new(gpu, &stream, &err);
 *     if (status == TSR_OK) status = tsr_gpu_move_boxes(stream, &zeros, 1, &err);
 *     if (status == TSR_OK) status = tsr_gpu_stream_wait(stream, &err); */

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

/* Loads checkpoints into device memory, through a ring of pinned memory that is reused: the host's threads gather tensors in
 * one half of it while the other is copied. Functions return when everything is done; after an error, too, no copy is in
 * progress. No memory is needed besides the ring, whatever the sizes. Thread rule: one thread at a time per pipe.
 * (native/live/cuda)
 *
 * Example:
 *
 *     const tsr_gpu_load load = {.entry = entry, .dtype = TSR_BFLOAT16, .to = device_memory};
 *     tsr_gpu_pipe *pipe;
 *     status = tsr_gpu_pipe_new(gpu, 0, &pipe, &err);
 *     if (status == TSR_OK) status = tsr_gpu_load_tensors(pipe, checkpoint, &load, 1, NULL, &err);
 *     if (status == TSR_OK) tsr_gpu_pipe_free(pipe); */

typedef struct tsr_gpu_pipe tsr_gpu_pipe;

#define TSR_GPU_RING_DEFAULT_BYTES ((size_t)96 << 20)
#define TSR_GPU_RING_LEAST_BYTES   ((size_t)256 << 10)

/* Makes a pipe with `ring_bytes` of pinned memory, at least TSR_GPU_RING_LEAST_BYTES (0: the default). The memory is
 * allocated when it is first needed. */
tsr_status tsr_gpu_pipe_new(tsr_gpu *gpu, size_t ring_bytes, tsr_gpu_pipe **out, tsr_error *err);
void tsr_gpu_pipe_free(tsr_gpu_pipe *pipe); /* accepts NULL */

/* A tensor of a checkpoint, or a box of it, and the device memory to load it into, which is contiguous and row-major. */
typedef struct tsr_gpu_load {
    const tsr_entry *entry;
    const uint64_t *offsets, *sizes; /* in elements; both NULL: the whole tensor */
    tsr_dtype dtype;                 /* type to cast the elements to (tsr_cast); TSR_DTYPE_NONE: no cast */
    void *to;                        /* must be aligned to the size of an element */
} tsr_gpu_load;

/* Loads tensors of any checkpoint into device memory. The host's threads gather chunks of any shape, strides, byte order and
 * compression in the ring, from where they are copied; casts happen on the device. Errors: those of tsr_read_box, with the
 * FQN; TSR_E_UNSUPPORTED for casts that are not possible; TSR_E_CANCELLED from `progress`, which may be NULL and counts the
 * bytes of the checkpoint. */
tsr_status tsr_gpu_load_tensors(tsr_gpu_pipe *pipe, tsr_checkpoint *checkpoint, const tsr_gpu_load *loads, size_t count,
                                const tsr_progress *progress, tsr_error *err);

/* Collectives on device memory: a communicator (tessera/comm.h) whose calls accept device addresses wherever they accept
 * host addresses, in any mixture, which may differ between ranks.
 *
 *   staged   device ─▶ pinned slot ─▶ the communicator below ─▶ pinned slot ─▶ device, piece by piece: while one piece is
 *            sent between ranks, the next is copied from the device and the previous one to it
 *   direct   addresses are passed unchanged to the communicator below, for libraries that accept them
 *            (tsr_mpi_takes_device_memory of tessera/comm_mpi.h)
 *   nccl     NCCL moves data that is in device memory on all ranks; other data is staged
 *
 * Errors and failing ranks are as in tessera/comm.h: a rank whose device fails poisons the call. (native/live/cuda)
 *
 * Example:
 *
 *     const tsr_gpu_comm_options by_nccl = {.way = TSR_GPU_COMM_NCCL};
 *     tsr_comm *of_devices;
 *     status = tsr_gpu_comm_new(comm, gpu, &by_nccl, &of_devices, &err); */

typedef enum tsr_gpu_comm_way { TSR_GPU_COMM_STAGED = 0, TSR_GPU_COMM_DIRECT, TSR_GPU_COMM_NCCL } tsr_gpu_comm_way;

#define TSR_GPU_STAGE_DEFAULT_BYTES ((size_t)32 << 20)
#define TSR_GPU_STAGE_LEAST_BYTES   ((size_t)64 << 10)

typedef struct tsr_gpu_comm_options {
    tsr_gpu_comm_way way;
    size_t stage_bytes; /* bytes of pinned memory, at least TSR_GPU_STAGE_LEAST_BYTES; 0: the default */
} tsr_gpu_comm_options;

/* Makes a communicator. Collective over `below`, which still belongs to the caller, and must not be used while the new one
 * is in use. `options` may be NULL and must be the same on all ranks. Errors: TSR_E_UNSUPPORTED, with the reason, on all
 * ranks (this build has no CUDA, or NCCL's library is missing); TSR_E_NOMEM, TSR_E_IO. */
tsr_status tsr_gpu_comm_new(tsr_comm *below, tsr_gpu *gpu, const tsr_gpu_comm_options *options, tsr_comm **out,
                            tsr_error *err);

/* Version that NCCL's library reports (22203: 2.22.3), or 0 with the reason why it cannot be used. */
uint32_t tsr_gpu_nccl_version(char *reason, size_t capacity);

TSR_API_END

#endif
