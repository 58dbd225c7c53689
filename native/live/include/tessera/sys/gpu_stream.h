/* Streams and events of a GPU, its memory, and copies to and from it. tessera/gpu.h opens the devices.
 *
 * Example:
 *
 *     tsr_gpu_stream *stream;
 *     status = tsr_gpu_stream_new(gpu, &stream, &err);
 *     if (status == TSR_OK) status = tsr_gpu_copy(stream, device_memory, text.data, text.size, &err);
 *     if (status == TSR_OK) status = tsr_gpu_stream_wait(stream, &err); */
#ifndef TESSERA_SYS_GPU_STREAM_H
#define TESSERA_SYS_GPU_STREAM_H

#include "tessera/gpu.h"

TSR_API_BEGIN

typedef struct tsr_gpu_stream tsr_gpu_stream;
typedef struct tsr_gpu_event tsr_gpu_event;

/* Allocates device memory, aligned to at least 256 bytes; NULL for 0 bytes. */
tsr_status tsr_gpu_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err);
/* Waits for the device's work first. Accepts NULL. */
void tsr_gpu_free(tsr_gpu *device, void *memory);

enum {
    TSR_HOST_PINNED = 1, /* page-locked: copies run at full speed and concurrently with other work; kernels can access it */
    TSR_HOST_SHARED = 2  /* processes forked later see the same bytes */
};
/* Allocates host memory with the flags above, page-aligned and zeroed; NULL for 0 bytes. */
tsr_status tsr_gpu_host_alloc(tsr_gpu *device, size_t size, unsigned flags, void **out, tsr_error *err);
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

/* A point in a stream's work that hosts and other streams can wait for; not recorded yet. */
tsr_status tsr_gpu_event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err);
void tsr_gpu_event_free(tsr_gpu_event *event); /* accepts NULL */
/* Makes the event mark the end of all work that `stream` was given so far. */
tsr_status tsr_gpu_event_record(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err);
tsr_status tsr_gpu_event_wait(tsr_gpu_event *event, tsr_error *err); /* returns immediately if never recorded */
/* Work given to `stream` from now on happens after the event. */
tsr_status tsr_gpu_stream_after(tsr_gpu_stream *stream, tsr_gpu_event *event, tsr_error *err);

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

TSR_API_END

#endif
