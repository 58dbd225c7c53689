/* Tensor bytes: any box of a tensor, or the whole tensor in order, as contiguous row-major little-endian bytes, whatever
 * the chunks, strides, conjugate and negative bits, byte order or compression of the checkpoint it comes from.
 *
 *   tensor ── tiles (boxes that are contiguous in row-major order) ──▶ ring of reused buffers ──▶ consumer, in order
 *               ▲ each chunk's part of a tile is one read where it can be, scattered into the tile
 *
 * Shapes are counted as in torch: a float4 tensor that safetensors lists as [3, 8] is read as [3, 4] packed bytes; float6
 * tensors, whose elements are not byte-aligned, are runs of bytes and can only be read whole. Memory is that of the ring plus
 * the located views of the tensors in work; nothing grows with the tensor's size.
 *
 * Example:
 *
 *     const uint64_t offsets[] = {0, 0}, sizes[] = {2, 8};
 *     float corner[2 * 8];
 *     status = tsr_read_box(checkpoint, entry, (tsr_box){entry->ndim, offsets, sizes}, corner, sizeof corner, &err);
 *     if (status == TSR_OK) printf("%g\n", corner[0]); */
#ifndef TESSERA_READ_H
#define TESSERA_READ_H

#include "tessera/box.h"
#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* The reused buffers of streaming jobs, and the host whose threads fill them. One job at a time uses a ring; different
 * rings are independent. */
typedef struct tsr_ring tsr_ring;

/* The default is 4 MiB for each of the host's threads, but at least 16 and at most 256 MiB. */
#define TSR_RING_THREAD_BYTES  ((size_t)4 << 20)
#define TSR_RING_DEFAULT_BYTES ((size_t)16 << 20)
#define TSR_RING_DEFAULT_MOST  ((size_t)256 << 20)
#define TSR_RING_LEAST_BYTES   ((size_t)256 << 10)

/* `max_bytes`: all buffers together (0: the default; smaller than TSR_RING_LEAST_BYTES counts as that). The
 * buffers are allocated when first needed, and only as large as needed. Borrows `host`. Errors: TSR_E_NOMEM. */
tsr_status tsr_ring_new(const tsr_host *host, size_t max_bytes, tsr_ring **out, tsr_error *err);
void tsr_ring_free(tsr_ring *ring); /* accepts NULL */

/* Reports the progress of a long job, in bytes. `step` is called by one thread at a time, not always the same one; false stops
 * the job with TSR_E_CANCELLED. A NULL tsr_progress, or a NULL step, is allowed wherever one is taken. */
typedef struct tsr_progress {
    bool (*step)(void *ctx, uint64_t byte_done, uint64_t byte_total);
    void *ctx;
} tsr_progress;

/* Reads a box of a tensor, in elements, into `buffer`, whose size must be exactly that of the box. Reads little more than the
 * bytes of the box. Errors: TSR_E_USAGE (box beyond the tensor, wrong buffer size), TSR_E_FORMAT (elements that no chunk or
 * more than one chunk holds; damaged items), TSR_E_NOT_FOUND (missing data file), TSR_E_IO. Thread-safe. */
tsr_status tsr_read_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_box box, void *buffer, size_t buffer_size,
                        tsr_error *err);

/* Receives the next bytes of a tensor; `byte_at` counts from its first byte. Called in order, by one thread at a time but
 * not always the same one. A non-zero status stops the job and is returned by it. */
typedef tsr_status tsr_each_tile(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err);

/* Streams the whole tensor in order. While `each` handles one tile, the host's threads read the next ones. Errors: as
 * tsr_read_box. */
tsr_status tsr_stream_tensor(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_ring *ring, tsr_each_tile *each,
                             void *ctx, tsr_error *err);

TSR_API_END

#endif
