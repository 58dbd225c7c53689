/* Boxes of local memory as one stream of bytes, which can be packed and unpacked in slices of any size. */
#ifndef TSR_LIVE_TENSOR_PACK_H
#define TSR_LIVE_TENSOR_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "tessera/box.h"
#include "tessera/device.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"

/* ---- rows ---- */

/* Copies of runs at equal distances: the rows of a box. */

typedef struct tsr_rows {
    uint8_t *to;
    const uint8_t *from;
    uint64_t to_stride, from_stride; /* bytes from the beginning of one run to that of the next */
    uint64_t run;                    /* bytes of each run */
    uint64_t count;                  /* runs to copy */
    uint64_t reach;                  /* runs at `from_stride` that will be read, now or soon: those to copy, and more */
    bool past_caches;                /* nobody on this core reads soon what is written */
} tsr_rows;

void tsr_rows_copy(const tsr_rows *rows);

/* ---- pack ---- */

/* A box in a contiguous row-major buffer. Sizes are in elements. */
typedef struct tsr_link {
    uint32_t peer;     /* rank of the other end */
    uint32_t transfer; /* with `order`: the position in the stream, the same at both ends */
    uint64_t order;
    uint32_t ndim, itemsize;
    const uint64_t *offsets; /* offsets in the buffer */
    const uint64_t *sizes;
    const uint64_t *buffer_sizes;
    uint8_t *data; /* start of the buffer */
    tsr_device *device;
    uint64_t bytes;
} tsr_link;

/* A position in the stream that consecutive links form. */
typedef struct tsr_stream {
    const tsr_link *links;
    size_t count;
    size_t at;         /* index of the current link */
    uint64_t left;     /* bytes left in the stream */
    uint64_t run_done; /* bytes of the current run that are done */
    tsr_box_walk walk;
    bool past_caches; /* what is packed is not read on this core */
} tsr_stream;

tsr_stream tsr_stream_of(const tsr_link *links, size_t count);
/* The address of the next `bytes` bytes of the stream, if they are contiguous in host memory, or with `devices` in any
 * memory; otherwise NULL. */
uint8_t *tsr_stream_peek(const tsr_stream *stream, bool devices, uint64_t bytes);
/* These advance the stream by `bytes` bytes, which it must have: the first only skips them, the others copy them out and in.
 * Copies of devices may be in progress until the devices are synchronized. `on`: the device with the memory at `to` or
 * `from` and of all links; NULL: host memory. */
void tsr_stream_skip(tsr_stream *stream, uint64_t bytes);
tsr_status tsr_stream_pack(tsr_stream *stream, uint8_t *to, tsr_device *on, uint64_t bytes, tsr_error *err);
tsr_status tsr_stream_unpack(tsr_stream *stream, const uint8_t *from, tsr_device *on, uint64_t bytes, tsr_error *err);

/* Copies from one box to another of the same sizes, bit by bit: at most `bytes` more with each call, of devices at least one run, until walk.runs_left is 0. */
typedef struct tsr_link_copying {
    const tsr_link *from, *to;
    tsr_box_walk walk;
    uint64_t run_done; /* bytes of the present run */
} tsr_link_copying;

tsr_link_copying tsr_link_copy_start(const tsr_link *from, const tsr_link *to);
tsr_status tsr_link_copy_some(tsr_link_copying *copying, uint64_t bytes, tsr_error *err);

#endif
