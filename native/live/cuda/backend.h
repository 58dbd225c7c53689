/* The interface that each kind of device implements. The functions of tessera/gpu.h check and plan, and then call one of
 * these. */
#ifndef TSR_LIVE_CUDA_BACKEND_H
#define TSR_LIVE_CUDA_BACKEND_H

#include "live/cuda/kernel_table.h"
#include "tessera/gpu.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/try.h"

typedef struct tsr_backend {
    void (*close)(tsr_gpu *device);
    tsr_status (*about)(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err);
    tsr_status (*alloc)(tsr_gpu *device, size_t size, void **out, tsr_error *err);
    void (*free)(tsr_gpu *device, void *memory);
    tsr_status (*host_alloc)(tsr_gpu *device, size_t size, void **out, tsr_error *err);
    void (*host_free)(tsr_gpu *device, void *memory);
    tsr_status (*pin)(tsr_gpu *device, void *memory, size_t size, tsr_error *err);
    void (*unpin)(tsr_gpu *device, void *memory);
    tsr_gpu_place (*place_of)(tsr_gpu *device, const void *memory);
    /* Number of bytes from `memory` to the end of its allocation: SIZE_MAX for pageable memory, 0 if unknown. */
    size_t (*reach)(tsr_gpu *device, const void *memory);
    tsr_status (*stream_new)(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err);
    void (*stream_free)(tsr_gpu_stream *stream);
    tsr_status (*stream_wait)(tsr_gpu_stream *stream, tsr_error *err);
    tsr_status (*event_new)(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err);
    void (*event_free)(tsr_gpu_event *event);
    tsr_status (*event_record)(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err);
    tsr_status (*event_wait)(tsr_gpu_event *event, tsr_error *err);
    tsr_status (*copy_2d)(tsr_gpu_stream *stream, const tsr_gpu_rows *what, tsr_error *err);
    /* Moves one checked box exactly as it was given, in place of planning it. May be NULL. */
    tsr_status (*twin_box)(tsr_gpu_stream *stream, const tsr_gpu_box *box, tsr_error *err);
    tsr_status (*runs)(tsr_gpu_stream *stream, const tsr_kernel_run *runs, uint32_t count, uint32_t units, tsr_error *err);
    tsr_status (*boxes)(tsr_gpu_stream *stream, const tsr_kernel_box *boxes, uint32_t count, uint32_t units, tsr_error *err);
} tsr_backend;

/* The structs of every back end begin with these. */
struct tsr_gpu {
    const tsr_backend *ops;
    const tsr_host *host;
};
struct tsr_gpu_stream {
    tsr_gpu *device;
};
struct tsr_gpu_event {
    tsr_gpu *device;
};

/* ---- nccl ---- */

/* NCCL, if its library is found at run time. */

typedef struct nccl_ranks nccl_ranks;

/* Collective over `below`, with which rank 0 distributes the id. */
tsr_status tsr_nccl_open(tsr_comm *below, tsr_gpu *gpu, nccl_ranks **out, tsr_error *err);
void tsr_nccl_close(nccl_ranks *ranks); /* accepts NULL */

/* As in tsr_comm, but only for device memory. The operations are done on return. */
tsr_status tsr_nccl_all_gather(nccl_ranks *ranks, const void *mine, const size_t *sizes, void *all, tsr_error *err);
tsr_status tsr_nccl_broadcast(nccl_ranks *ranks, void *data, size_t size, uint32_t root, tsr_error *err);
tsr_status tsr_nccl_exchange(nccl_ranks *ranks, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                             size_t receive_count, tsr_error *err);

#endif
