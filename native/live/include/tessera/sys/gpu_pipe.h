/* Copies data between device memory and files, checkpoints or pageable host memory, through a ring of pinned memory that is
 * reused:
 *
 *   file ──▶ [ slot 0 | slot 1 | slot 2 | slot 3 ] ──▶ device        one slot is filled while others are being copied,
 *   file ◀── [ slot 0 | slot 1 | slot 2 | slot 3 ] ◀── device        and the other way round
 *
 * The host's threads fill and empty slots in parallel. Functions return when everything is done; after an error, too, no
 * copy is in progress. No memory is needed besides the ring, whatever the sizes. Thread rule: one thread at a time per pipe.
 * (native/live/cuda)
 *
 * Example:
 *
 *     const tsr_gpu_load load = {.entry = entry, .dtype = TSR_BFLOAT16, .to = device_memory};
 *     tsr_gpu_pipe *pipe;
 *     status = tsr_gpu_pipe_new(gpu, 0, &pipe, &err);
 *     if (status == TSR_OK) status = tsr_gpu_load_tensors(pipe, checkpoint, &load, 1, NULL, &err);
 *     if (status == TSR_OK) tsr_gpu_pipe_free(pipe); */
#ifndef TESSERA_SYS_GPU_PIPE_H
#define TESSERA_SYS_GPU_PIPE_H

#include "tessera/gpu.h"
#include "tessera/output.h"
#include "tessera/read.h"
#include "tessera/sys/store_read.h"

TSR_API_BEGIN

typedef struct tsr_gpu_pipe tsr_gpu_pipe;

#define TSR_GPU_RING_DEFAULT_BYTES ((size_t)96 << 20)
#define TSR_GPU_RING_LEAST_BYTES   ((size_t)256 << 10)

/* Makes a pipe with `ring_bytes` of pinned memory, at least TSR_GPU_RING_LEAST_BYTES (0: the default). The memory is
 * allocated when it is first needed. */
tsr_status tsr_gpu_pipe_new(tsr_gpu *gpu, size_t ring_bytes, tsr_gpu_pipe **out, tsr_error *err);
void tsr_gpu_pipe_free(tsr_gpu_pipe *pipe); /* accepts NULL */

/* From now on, GPUDirect Storage reads contiguous bytes of a file in a folder, without passing through host memory, if the
 * file system supports it; other bytes go through the ring as before. TSR_E_UNSUPPORTED, with the reason: no libcufile.so.0,
 * no driver for it, a simulated device. */
tsr_status tsr_gpu_pipe_use_direct(tsr_gpu_pipe *pipe, tsr_error *err);

/* Copy pageable host memory to device memory, and back. */
tsr_status tsr_gpu_put(tsr_gpu_pipe *pipe, void *to, const void *from, size_t size, tsr_error *err);
tsr_status tsr_gpu_get(tsr_gpu_pipe *pipe, void *to, const void *from, size_t size, tsr_error *err);

/* The first reads a part of a store's file into device memory; the second writes device memory into a part of an output's
 * file. Errors: also those of the store and the output. */
tsr_status tsr_gpu_read_file(tsr_gpu_pipe *pipe, tsr_range from, void *to, tsr_error *err);
typedef struct tsr_output_range {
    tsr_output *output;
    uint32_t file;
    uint64_t byte_offset;
    size_t byte_length;
} tsr_output_range;
tsr_status tsr_gpu_write_file(tsr_gpu_pipe *pipe, tsr_output_range to, const void *from, tsr_error *err);

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

TSR_API_END

#endif
