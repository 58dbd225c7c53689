/* Reading values in pieces, and casting them. */
#ifndef TESSERA_SYS_READ_H
#define TESSERA_SYS_READ_H

#include "tessera/checkpoint.h"
#include "tessera/dtype.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim_load.h"

TSR_API_BEGIN

/* Changing the element type of floating values.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even, once, from the exact value (torch rounds float64 to the
 * 16- and 8-bit types by way of float32). Values that are too large become the same as in PyTorch 2.13: infinity in float32,
 * float16, bfloat16 and float8_e5m2; NaN in the fnuz types and float8_e8m0fnu; in float8_e4m3fn it saturates: ±448, for
 * infinities too. NaN stays NaN, quiet, of the same sign where the type has a signed NaN; negative zero becomes zero in
 * the fnuz types. float8_e8m0fnu drops signs, and values below its range become its least value.
 *
 * Source: torch/headeronly/util/{BFloat16,Half,Float8_*}.h. Thread-safe. (core/stream)
 *
 * Example:
 *
 *     const float values[] = {1.0f, 65536.0f};
 *     uint8_t halves[2 * sizeof(uint16_t)];
 *     tsr_cast(TSR_FLOAT32, TSR_FLOAT16, (const uint8_t *)values, 2, halves); */

/* Whether tsr_cast can do it: both are floating types with whole bytes. */
bool tsr_cast_possible(tsr_dtype from, tsr_dtype to);
/* `count` elements; the memory must not overlap. */
void tsr_cast(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out);

/* What casts lost: values that became zero and were not, and finite values that were too large, which became infinite, NaN
 * or the largest value. */
typedef struct tsr_cast_losses {
    uint64_t zeros, overflows;
} tsr_cast_losses;
static inline void tsr_cast_losses_add(tsr_cast_losses *to, tsr_cast_losses losses)
{
    to->zeros += losses.zeros;
    to->overflows += losses.overflows;
}
/* The magnitudes of a type, as integers in the order of their values, that another type cannot represent: `zeros` of them from
 * `least` on become zero, and `overflows` from `large` on are too large. */
typedef struct tsr_lossy {
    tsr_dtype from;
    uint64_t least, zeros, large, overflows;
} tsr_lossy;
tsr_lossy tsr_lossy_of(tsr_dtype from, tsr_dtype to);
/* Adds what a cast of these elements of the type `lossy->from` loses to *losses. */
void tsr_count_losses(const tsr_lossy *lossy, const uint8_t *elements, size_t count, tsr_cast_losses *losses);
/* The same as tsr_cast, and adds what it loses to *losses. */
void tsr_cast_counted(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out,
                      tsr_cast_losses *losses);

/* Whether values of the type are numbers (not bits, quantized, float6 or packed pairs). */
bool tsr_dtype_is_numeric(tsr_dtype dtype);

/* Further ways to read tensor bytes: runs of elements, and boxes that are streamed to consumers which work on.
 *
 * Example:
 *
 *     float head[4];
 *     const tsr_run run = {.first = 0, .count = 4};
 *     status = tsr_read_run(checkpoint, entry, &run, head, sizeof head, &err);
 *     if (status == TSR_OK) printf("%g\n", head[0]); */

/* Elements [first, first + count) of a box of a tensor in the box's row-major order, into `buffer` of exactly their bytes;
 * `offsets` and `sizes` NULL: of the whole tensor. As tsr_read_box otherwise. */
typedef struct tsr_run {
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t first, count;
} tsr_run;
tsr_status tsr_read_run(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_run *run, void *buffer,
                        size_t buffer_size, tsr_error *err);

/* For consumers that are still at work on bytes when `each` has returned (copies under way). Called after every group of
 * tiles: must return when all tiles that were handed over before the previous call need their memory no longer; those handed
 * over since then may. At the end it is called once more, so that nothing is under way. Not called after a failure. */
typedef tsr_status tsr_settle_tiles(void *ctx, tsr_error *err);

typedef struct tsr_tile_sink {
    tsr_each_tile *each;      /* with the `ctx` of the tile's box */
    tsr_settle_tiles *settle; /* or NULL */
    void *ctx;                /* for settle */
} tsr_tile_sink;

/* A box of a tensor, in elements (offsets and sizes NULL: the whole tensor), and what its tiles are handed over with. */
typedef struct tsr_streamed_box {
    const tsr_entry *entry;
    const uint64_t *offsets, *sizes;
    void *ctx;
} tsr_streamed_box;

/* As tsr_stream_tensor, for `count` boxes one after another, each in its row-major order. The threads go on to the next box
 * while tiles of the last one are still handed over. */
tsr_status tsr_stream_boxes(tsr_checkpoint *checkpoint, const tsr_streamed_box *boxes, size_t count, tsr_ring *ring,
                            const tsr_tile_sink *sink, tsr_error *err);

/* Bytes of a tensor entry as these functions deliver it; the shape (`ndim` numbers, in the checkpoint's memory) that they
 * count in is the entry's own except for float4 of a safetensors container. TSR_E_UNSUPPORTED for entries without dense
 * elements. */
tsr_status tsr_tensor_bytes(const tsr_entry *entry, uint64_t *bytes, tsr_error *err);

/* Tensors that are far larger than their stored bytes. A file of a kilobyte can hold a tensor of 2^40 elements: with a
 * stride of 0, with strides that overlap, or as many chunks that name the same bytes. Listing such a tensor costs nothing;
 * reading it takes as long as if all of it were stored.
 *
 * A job over values adds the tensors that it will read and then asks whether it may start. A tensor counts if its elements
 * repeat stored ones more than TSR_REPEATS_MOST times; all tensors that count may have limits.repetition bytes together.
 * Tensors that repeat less, but overlap so much that all of them together repeat stored bytes more often than that, count
 * only from 64 times the limit on. The decompressed size of compressed bytes counts as stored, and so do holes of sparse
 * files. A tensor that is computed, such as one that a map casts, is stored as what it is computed from.
 *
 * Example:
 *
 *     tsr_repeats repeats;
 *     tsr_repeats_open(&repeats, checkpoint);
 *     status = tsr_repeats_add(&repeats, entry, NULL, NULL, NULL, &err);
 *     if (status == TSR_OK) status = tsr_repeats_check(&repeats, &err);
 *     tsr_repeats_close(&repeats); */

#define TSR_REPEATS_MOST  1024u
#define TSR_REPEATS_NAMED 4u

/* The tensors that have been added; plain memory, opened by tsr_repeats_open. */
typedef struct tsr_repeats {
    tsr_checkpoint *checkpoint;
    tsr_vec spans;      /* of stored bytes: what the tensors are made of */
    tsr_map *seen;      /* containers of objects that were looked into */
    tsr_str holder;     /* the object whose tensors are being added, or empty */
    uint64_t to_locate; /* bytes of compressed items that may still be read to learn their strides */
    uint64_t total;     /* bytes of all tensors */
    uint64_t repeated;  /* bytes of those that count */
    uint64_t count;     /* of those */
    struct {
        tsr_str fqn;
        const struct tsr_entry *entry;
        uint64_t bytes, stored;
    } named[TSR_REPEATS_NAMED]; /* the first of those */
} tsr_repeats;

/* Borrows the checkpoint. */
void tsr_repeats_open(tsr_repeats *repeats, tsr_checkpoint *checkpoint);
void tsr_repeats_close(tsr_repeats *repeats);

/* Adds a tensor, or the box [offsets, offsets + sizes) of it in elements (both NULL: all of it); of an object, the tensors
 * inside. `counts` (may be NULL) says whether the tensor is one of those that count. Reads nothing, except of compressed
 * items that seem too small for their elements. Errors: TSR_E_NOMEM, and those of tsr_checkpoint_locate. */
tsr_status tsr_repeats_add(tsr_repeats *repeats, const tsr_entry *entry, const uint64_t *offsets, const uint64_t *sizes,
                           bool *counts, tsr_error *err);
/* Adds the tensors of a value tree, each once. */
tsr_status tsr_repeats_add_value(tsr_repeats *repeats, const tsr_value *value, tsr_error *err);
/* Whether the added tensors exceed host->limits.repetition. */
bool tsr_repeats_too_many(tsr_repeats *repeats);
/* TSR_E_LIMIT, with names and sizes, if they do. */
tsr_status tsr_repeats_check(tsr_repeats *repeats, tsr_error *err);

/* All of that for the selected tensors of a checkpoint. */
tsr_status tsr_repeats_check_catalog(tsr_checkpoint *checkpoint, const tsr_selection *selection, tsr_error *err);

/* All of that for one tensor, or the box [offsets, offsets + sizes) of it in elements (both NULL: all of it). */
tsr_status tsr_repeats_check_box(tsr_checkpoint *checkpoint, const tsr_entry *entry, const uint64_t *offsets,
                                 const uint64_t *sizes, tsr_error *err);

/* Reads boxes of tensors, and compares what was read whole with the CRC-32 that the checkpoint states of it.
 *
 *   a chunk of a DCP, a storage of a torch file    has a CRC of its own: compared when all of its elements were read
 *   a safetensors file with tessera.crc32          has one CRC: compared when all of its tensors were read
 *   a part of a chunk, a view with strides, an archive or a file without checksums, a compressed item, values that are computed
 *                                                  have none: not compared
 *
 * The boxes may be read in any order, by several threads, and in several calls.
 *
 * Example:
 *
 *     const uint64_t offsets[] = {0, 0}, sizes[] = {2, 8};
 *     float buffer[2 * 8];
 *     const tsr_box box = {2, offsets, sizes};
 *     tsr_read_check *check = NULL;
 *     status = tsr_read_check_new(checkpoint, 1, &check, &err);
 *     if (status == TSR_OK) status = tsr_read_box_checked(check, 0, entry, box, buffer, sizeof buffer, &err);
 *     if (status == TSR_OK) status = tsr_read_check_end(check, &err);
 *     tsr_read_check_free(check); */

typedef struct tsr_read_check tsr_read_check;

/* For `threads` threads. Borrows the checkpoint. Reads the headers of safetensors files that state a checksum. Errors: TSR_E_IO,
 * TSR_E_NOMEM. */
tsr_status tsr_read_check_new(tsr_checkpoint *checkpoint, uint32_t threads, tsr_read_check **out, tsr_error *err);
void tsr_read_check_free(tsr_read_check *check); /* accepts NULL */

/* Returns an entry whose tensor can be read. An entry of the catalog is returned as it is. A tensor inside an object becomes a
 * copy in `arena`, because its chunks without a view are raw bytes, whatever they would mean in its container. NULL if memory
 * is short. */
const tsr_entry *tsr_entry_readable(tsr_checkpoint *checkpoint, tsr_arena *arena, const tsr_entry *entry, tsr_error *err);

/* As tsr_read_box. Calls with the same `thread`, which is less than the number of threads, must not overlap in time. TSR_E_FORMAT, with
 * the name of the entry, if the box holds a whole chunk whose bytes do not have its CRC. */
tsr_status tsr_read_box_checked(tsr_read_check *check, uint32_t thread, const tsr_entry *entry, tsr_box box, void *buffer,
                                size_t buffer_size, tsr_error *err);
/* Compares what became whole by several reads, and forgets it. Not while boxes are being read. TSR_E_FORMAT with the name of the entry or
 * of the safetensors file; TSR_E_IO; TSR_E_NOMEM. */
tsr_status tsr_read_check_end(tsr_read_check *check, tsr_error *err);

/* Sharded optimizer state into memory: the reads that tsr_optim_load plans for a rank, carried out. (core/stream)
 *
 * Example:
 *
 *     const tsr_optim_sink into_memory = {.buffer = give_buffer, .ctx = arena};
 *     status = tsr_optim_read_all(checkpoint, reads, read_count, &into_memory, NULL, &err); */

/* Where the elements go. `buffer` is called once per tensor, in order and by the calling thread, before anything is read; it
 * gives `bytes` bytes for the rank's part, contiguous row-major (`read->sizes`, or the one element), or NULL: TSR_E_NOMEM.
 * It is not called for boxes without elements, nor for objects, whose value is entry->value. */
typedef struct tsr_optim_sink {
    void *(*buffer)(void *ctx, const tsr_optim_read *read, size_t bytes);
    void *ctx;
} tsr_optim_sink;

/* Reads with the host's threads, each box straight into its buffer, from whatever chunks the checkpoint has. `progress` may
 * be NULL. Errors as tsr_read_box, of the first read in order that failed; TSR_E_CANCELLED. Source:
 * load_sharded_optimizer_state_dict of torch/distributed/checkpoint/optimizer.py, PyTorch 2.13. */
tsr_status tsr_optim_read_all(tsr_checkpoint *checkpoint, const tsr_optim_read *reads, size_t count,
                              const tsr_optim_sink *sink, const tsr_progress *progress, tsr_error *err);

TSR_API_END

#endif
