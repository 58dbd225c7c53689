/* A tensor opened for reading: its chunks are located, sorted, and checked against their files, so that any box of it can be
 * gathered. It does not change after opening, so threads may share it, unless it is `serial`. */
#ifndef TSR_STREAM_GATHER_H
#define TSR_STREAM_GATHER_H

#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/store.h"

/* Finds chunks of DCP items, and the CRCs that the items state, in threads before they are needed. Each chunk takes a few
 * small reads that depend on each other, which take longer than the data itself on a file server. A store that fetches ahead is
 * told of them first.
 *
 * Chunks that cannot be found here are left to tsr_checkpoint_locate and tsr_checkpoint_crc, which report the reason. A
 * tsr_ahead is used by one thread, but gathers of all threads may look chunks up between two calls of tsr_ahead_seek. */

typedef struct tsr_ahead tsr_ahead;

/* *out is NULL if the chunks have views, so that nothing must be found. Errors: TSR_E_NOMEM. */
tsr_status tsr_ahead_new(tsr_checkpoint *checkpoint, tsr_ahead **out, tsr_error *err);
void tsr_ahead_free(tsr_ahead *ahead); /* accepts NULL, as do all functions below, unless stated otherwise */

/* Requests the chunks of a catalog's entry that intersect `box` (NULL: all chunks), unless too many are kept already. */
tsr_status tsr_ahead_want(tsr_ahead *ahead, const tsr_entry *entry, const tsr_box *box, tsr_error *err);
/* Finds all requested chunks that were not looked for yet. */
void tsr_ahead_seek(tsr_ahead *ahead);
/* Returns the number of requested chunks that were not looked for yet. */
size_t tsr_ahead_waiting(const tsr_ahead *ahead);
/* Whether the store fetches ahead; and whether it might drop what it fetched for the first of the requested chunks if more were requested
 * before they are read. */
bool tsr_ahead_fetches(const tsr_ahead *ahead);
bool tsr_ahead_is_full(const tsr_ahead *ahead);
/* How many chunks a store fetches ahead at a time. Of each it fetches at most 256 KiB, and it keeps 16 MiB or more. */
enum { TSR_FETCHED_AT_ONCE = 32 };
/* Forgets everything if too many are kept. No gather that uses `ahead` may be open. */
tsr_status tsr_ahead_make_room(tsr_ahead *ahead, tsr_error *err);
/* Returns what was found, or NULL. Its strides are valid until it is forgotten. */
const tsr_found *tsr_ahead_find(const tsr_ahead *ahead, const tsr_chunk *chunk);

/* Copies strided blocks of elements, and applies the changes that turn stored elements into their values. */

/* One dim of a block: `size` steps, which are `from` bytes apart in storage and `to` bytes apart at the destination. */
typedef struct tsr_axis {
    uint64_t size;
    uint64_t from;
    uint64_t to;
} tsr_axis;

/* Reads at any position of a zstd stream in a range of a file. Reads at rising positions take one pass in total; going back
 * starts over. One thread at a time. */

typedef struct tsr_unzstd tsr_unzstd;

/* A located chunk. Offsets, sizes and strides are in elements, and never NULL. */
typedef struct tsr_located {
    const uint64_t *offsets;
    const uint64_t *sizes;
    const uint64_t *strides;
    const tsr_chunk *chunk;
    tsr_view view;
    tsr_stated_crc crc;   /* of the whole chunk, if the gather was opened for it */
    uint64_t first, last; /* row-major numbers of its first and last element in the tensor */
    uint64_t span;        /* bytes in storage from the beginning of its first element to the end of its last */
    tsr_unzstd *stream;   /* the decoder of a compressed part, while it is in use */
} tsr_located;

typedef struct tsr_gather {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    tsr_arena *arena;
    tsr_dtype dtype; /* packed: float4 is counted in pairs, and float6 is uint8 here */
    uint32_t ndim;
    uint32_t itemsize;
    const uint64_t *shape;
    uint64_t elements;
    uint64_t bytes;
    tsr_located *parts; /* those with elements, sorted by `first` */
    uint64_t *furthest; /* furthest[i] is the largest `last` of parts[0..i] */
    size_t part_count;
    const tsr_ahead *ahead; /* chunks that were found in advance, or NULL */
    tsr_ahead *own_ahead;   /* only while the gather is being opened; or NULL */
    bool wants_crcs;
    bool serial; /* there are compressed parts: gather boxes in rising order, from one thread at a time */
} tsr_gather;

/* The dtype and shape of a tensor as they are in a gather: float4 is counted in pairs, and float6 is uint8 in one dim. */
typedef struct tsr_packed {
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t elements;
    uint64_t shape[TSR_MAX_NDIM];
} tsr_packed;
/* Computes the dtype and shape that a gather of this entry has, without locating anything. Errors: TSR_E_UNSUPPORTED if the
 * entry is not a dense tensor; TSR_E_LIMIT for too many dims; TSR_E_FORMAT for a size that is too large or not a whole
 * number of bytes. */
tsr_status tsr_gather_pack(const tsr_entry *entry, tsr_packed *out, tsr_error *err);
/* Computes where a box of `whole` is in the bytes of `whole` in row-major order. Returns false if it is not contiguous
 * there. */
bool tsr_find_run(tsr_dtype dtype, tsr_box whole, tsr_box box, uint64_t *byte_first, uint64_t *byte_length);
/* Locates the chunks of `entry` that intersect `box`. If it is NULL, locates all chunks, which must tile the tensor exactly.
 * Close *out with tsr_gather_close; on failure it is NULL. Errors: TSR_E_FORMAT for chunks that overlap, do not tile, or
 * reach beyond the tensor or the file; those of tsr_gather_pack and of locating. */
tsr_status tsr_gather_open(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, tsr_gather **out,
                           tsr_error *err);
/* Like tsr_gather_open, with chunks that were found in advance (NULL: none). `ahead` must be kept until the gather is
 * closed. */
tsr_status tsr_gather_open_found(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box,
                                 const tsr_ahead *ahead, tsr_gather **out, tsr_error *err);
/* Like tsr_gather_open, with the CRC that is stated of each chunk. */
tsr_status tsr_gather_open_crcs(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, tsr_gather **out,
                                tsr_error *err);
/* Like tsr_gather_open, with `count` given chunks of the entry, such as its replicas. They need not tile the tensor. */
tsr_status tsr_gather_open_chunks(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunks,
                                  uint64_t count, tsr_gather **out, tsr_error *err);
void tsr_gather_close(tsr_gather *gather); /* accepts NULL */

/* The scratch memory that tsr_gather_box needs in addition to the destination. 4 KiB are sufficient; up to 512 KiB lead to
 * fewer and larger reads. */
#define TSR_SCRATCH_LEAST ((size_t)4 << 10)
#define TSR_SCRATCH_BEST  ((size_t)512 << 10)

/* Reads the elements of `box`, which must be inside the tensor, into `to` as contiguous elements in row-major order, with
 * the swap, conjugation and negation of views applied. TSR_E_FORMAT if elements are in no part, or in two; errors of
 * reading. */
tsr_status tsr_gather_box(const tsr_gather *gather, tsr_box box, void *to, void *scratch, size_t scratch_size,
                          tsr_error *err);

#endif
