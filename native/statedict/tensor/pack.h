/* Boxes of local memory as one stream of bytes, in any slices. */
#ifndef TSR_STATEDICT_PACK_H
#define TSR_STATEDICT_PACK_H

#include "tessera/box.h"
#include "tessera/device.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/box_walk.h"

/* A box in a buffer: sizes in elements, contiguous row-major. */
typedef struct tsr_link {
    uint32_t peer;     /* who has the other end */
    uint32_t transfer; /* with `order`: the place in the stream, the same at both ends */
    uint64_t order;
    uint32_t ndim, itemsize;
    const uint64_t *offsets; /* in the buffer */
    const uint64_t *sizes;
    const uint64_t *buffer_sizes;
    uint8_t *data; /* of the buffer */
    tsr_device *device;
    uint64_t bytes;
} tsr_link;

/* A place in the stream that links make, one behind the other. */
typedef struct tsr_stream {
    const tsr_link *links;
    size_t count;
    size_t at;         /* link */
    uint64_t left;     /* bytes of the stream */
    uint64_t run_done; /* bytes of the present run */
    tsr_box_walk walk;
} tsr_stream;

tsr_stream tsr_stream_of(const tsr_link *links, size_t count);
/* The next `bytes` bytes of the stream where they lie, if that is one run of host memory, or with `devices` of any; else
 * NULL. */
uint8_t *tsr_stream_peek(const tsr_stream *stream, bool devices, uint64_t bytes);
/* Moves on over `bytes` bytes, which the stream has: without touching them, copying them out, copying them in. Copies of
 * devices may be under way until those are synchronized. `on`: the device that `to` or `from`, and all links, lie on; NULL:
 * they are host memory. */
void tsr_stream_skip(tsr_stream *stream, uint64_t bytes);
tsr_status tsr_stream_pack(tsr_stream *stream, uint8_t *to, tsr_device *on, uint64_t bytes, tsr_error *err);
tsr_status tsr_stream_unpack(tsr_stream *stream, const uint8_t *from, tsr_device *on, uint64_t bytes, tsr_error *err);

/* From one box to another of the same sizes. */
tsr_status tsr_link_copy(const tsr_link *from, const tsr_link *to, tsr_error *err);

#endif
