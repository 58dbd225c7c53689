/* What the files of a pipe share. */
#ifndef TSR_CUDA_PIPE_H
#define TSR_CUDA_PIPE_H

#include "live/cuda/backend.h"
#include "tessera/sys/gpu_pipe.h"

#define PIPE_SLOTS 4u

typedef struct pipe_slot {
    uint8_t *memory; /* pinned */
    tsr_gpu_event *copied;
} pipe_slot;

/* Reads files directly into device memory, not through host memory. TSR_E_UNSUPPORTED: this is not possible for this file,
 * but may be for others. */
typedef struct direct_reader {
    void *ctx;
    tsr_status (*read)(void *ctx, int fd, uint64_t offset, void *to, size_t size, tsr_error *err); /* NULL: there is none */
    void (*close)(void *ctx);
} direct_reader;

struct tsr_gpu_pipe {
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    size_t ring_bytes, slot_bytes;
    pipe_slot slots[PIPE_SLOTS]; /* `memory` is NULL until needed */
    tsr_allocator pinned;        /* allocator of the ring into which checkpoints are read */
    tsr_host pinned_host;
    tsr_ring *ring; /* NULL until needed, as half_sent */
    tsr_gpu_event *half_sent[2];
    direct_reader direct;
};

/* TSR_E_UNSUPPORTED if it is not possible. Nothing was read then, and the ring can be used. */
tsr_status tsr_pipe_direct(tsr_gpu_pipe *pipe, tsr_range from, void *to, tsr_error *err);

#endif
