/* A tensor opened for reading: its chunks located, sorted, and checked against their files, so that any box of it can be
 * gathered. Read-only after opening, hence shared by threads, unless `serial`. */
#ifndef TSR_STREAM_GATHER_H
#define TSR_STREAM_GATHER_H

#include "stream/ahead.h"
#include "stream/strided.h"
#include "stream/unzstd.h"
#include "tessera/checkpoint.h"

/* One located chunk. Offsets, sizes and strides in elements, never NULL. */
typedef struct tsr_located {
    const uint64_t *offsets;
    const uint64_t *sizes;
    const uint64_t *strides;
    tsr_view view;
    uint64_t first, last; /* row-major numbers of its first and last element in the tensor */
    uint64_t span;        /* bytes from its first element to behind its last in storage */
    tsr_unzstd *stream;   /* compressed parts, while in use */
} tsr_located;

typedef struct tsr_gather {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    tsr_arena *arena;
    tsr_dtype dtype; /* packed: float4 counts pairs; float6 is uint8 here */
    uint32_t ndim;
    uint32_t itemsize;
    const uint64_t *shape;
    uint64_t elements;
    uint64_t bytes;
    tsr_located *parts;    /* with elements, by `first` */
    uint64_t *furthest; /* furthest[i]: largest `last` of parts[0..i] */
    size_t part_count;
    const tsr_ahead *ahead; /* what was found before; or NULL */
    tsr_ahead *own_ahead;   /* while it is opened; or NULL */
    bool serial;            /* compressed parts: boxes in rising order, one thread at a time */
} tsr_gather;

/* Dtype and shape as gathers count them, without locating anything. `shape` has room for TSR_MAX_NDIM. */
tsr_status tsr_gather_geometry(const tsr_entry *entry, tsr_dtype *dtype, uint32_t *ndim, uint64_t *shape, uint64_t *elements,
                               tsr_error *err);
/* Where a box of `whole` lies in its row-major bytes; false when it is no run of them. */
bool tsr_find_run(tsr_dtype dtype, tsr_box whole, tsr_box box, uint64_t *byte_first, uint64_t *byte_length);
/* Locates the chunks of `entry` that meet `box` (NULL: all of them, and they must tile the tensor exactly). */
tsr_status tsr_gather_open(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, tsr_gather **out,
                           tsr_error *err);
/* The same with what was found ahead (NULL: nothing), which must be kept until the gather is closed. */
tsr_status tsr_gather_open_found(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_box *box, const tsr_ahead *ahead,
                                 tsr_gather **out, tsr_error *err);
/* The same over `count` given chunks of the entry, for instance its replicas; no tiling is asked for. */
tsr_status tsr_gather_open_chunks(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunks,
                                  uint64_t count, tsr_gather **out, tsr_error *err);
void tsr_gather_close(tsr_gather *gather); /* takes NULL */

/* The entry as a gather can read it: one of the catalog as it is; a tensor inside an object has raw chunks, whatever its
 * container makes of chunks without a view: a copy in `arena`. */
const tsr_entry *tsr_gather_readable(tsr_checkpoint *checkpoint, tsr_arena *arena, const tsr_entry *entry, tsr_error *err);

/* Where in its file the element at `at` lies; TSR_NO_POSITION when that is no plain place. */
uint64_t tsr_gather_position(const tsr_gather *gather, const uint64_t *at);

/* The scratch memory that tsr_gather_box needs in addition to the destination. 4 KiB work; more results in fewer, larger
 * reads up to 512 KiB. */
#define TSR_SCRATCH_LEAST ((size_t)4 << 10)
#define TSR_SCRATCH_BEST  ((size_t)512 << 10)

/* The elements of `box` (inside the tensor), resolved, into `to`, contiguous row-major. Elements in no part, or in two,
 * are TSR_E_FORMAT. */
tsr_status tsr_gather_box(const tsr_gather *gather, tsr_box box, void *to, void *scratch, size_t scratch_size,
                          tsr_error *err);

#endif
