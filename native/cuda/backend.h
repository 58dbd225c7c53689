/* What a kind of device must do. The functions of tessera/gpu.h check, plan and pass on to one of these. */
#ifndef TSR_CUDA_BACKEND_H
#define TSR_CUDA_BACKEND_H

#include "cuda/kernel_table.h"
#include "tessera/gpu.h"
#include "tessera/sys/gpu_device.h"
#include "tessera/sys/gpu_kernels.h"
#include "tessera/sys/try.h"

typedef struct tsr_backend {
    void (*close)(tsr_gpu *device);
    tsr_status (*about)(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err);
    tsr_status (*alloc)(tsr_gpu *device, size_t size, void **out, tsr_error *err);
    void (*free)(tsr_gpu *device, void *memory);
    tsr_status (*host_alloc)(tsr_gpu *device, size_t size, unsigned flags, void **out, tsr_error *err);
    void (*host_free)(tsr_gpu *device, void *memory);
    tsr_status (*pin)(tsr_gpu *device, void *memory, size_t size, tsr_error *err);
    void (*unpin)(tsr_gpu *device, void *memory);
    tsr_gpu_place (*place_of)(tsr_gpu *device, const void *memory);
    /* Bytes from `memory` to the end of its allocation: SIZE_MAX for pageable memory, 0 when that is not known. */
    size_t (*reach)(tsr_gpu *device, const void *memory);
    tsr_status (*stream_new)(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err);
    void (*stream_free)(tsr_gpu_stream *stream);
    tsr_status (*stream_wait)(tsr_gpu_stream *stream, tsr_error *err);
    tsr_status (*event_new)(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err);
    void (*event_free)(tsr_gpu_event *event);
    tsr_status (*event_record)(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err);
    tsr_status (*event_wait)(tsr_gpu_event *event, tsr_error *err);
    tsr_status (*stream_after)(tsr_gpu_stream *stream, tsr_gpu_event *event, tsr_error *err);
    tsr_status (*copy_2d)(tsr_gpu_stream *stream, const tsr_gpu_rows *what, tsr_error *err);
    /* NULL, or what takes the place of planning: one box as it came, checked. */
    tsr_status (*twin_box)(tsr_gpu_stream *stream, const tsr_gpu_box *box, tsr_error *err);
    tsr_status (*runs)(tsr_gpu_stream *stream, const tsr_kernel_run *runs, uint32_t count, uint32_t units, tsr_error *err);
    tsr_status (*boxes)(tsr_gpu_stream *stream, const tsr_kernel_box *boxes, uint32_t count, uint32_t units, tsr_error *err);
    tsr_status (*checksum)(tsr_gpu_stream *stream, const void *data, size_t size, uint32_t *crc, tsr_error *err);
    tsr_status (*scan)(tsr_gpu_stream *stream, tsr_dtype dtype, const void *data, uint64_t count, tsr_kernel_scan *out,
                       tsr_error *err);
} tsr_backend;

/* Every back end's structs begin with these. */
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

/* Mapped pages, shared with children or not; NULL when there are none. `free_pages` needs the same size. */
void *tsr_pages_new(size_t size, bool shared);
void tsr_pages_free(void *pages, size_t size);

/* The CRC of `size` bytes from those of its groups of segments, and of the last, short segment if there is one. */
uint32_t tsr_segments_crc(const uint32_t *groups, uint32_t last, uint64_t size);
/* How many segments, full segments and groups of full segments there are. */
typedef struct tsr_segments {
    uint64_t count, full, groups;
} tsr_segments;
tsr_segments tsr_segments_of(uint64_t size);
void tsr_segments_tables(uint32_t *tables);  /* 8 × 256 */
uint32_t tsr_segments_power(uint64_t bytes); /* x^(8·bytes) */

#endif
