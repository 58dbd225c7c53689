/* Copies boxes of tensors into files: the one loop that all conversions and reshards use. */
#ifndef TSR_WRITE_WRITE_ITEM_H
#define TSR_WRITE_WRITE_ITEM_H

#include "stream/gather.h"
#include "stream/tile_job.h"
#include "tessera/output.h"
#include "tessera/sys/read.h"

/* Which bytes of a tensor of the catalog a local tensor has, if they are a contiguous run of rows; otherwise `entry` is
 * NULL. */
typedef struct tsr_row_range {
    const tsr_entry *entry;
    uint64_t byte_first; /* in row-major order */
} tsr_row_range;

/* Writes the elements of a box, contiguous in row-major order and cast to `dtype`, to [byte_offset, + byte_length) of an
 * output file. */
typedef struct tsr_write_item {
    const tsr_entry *entry;
    const uint64_t *offsets; /* in the gather's elements, like sizes; NULL for the whole tensor */
    const uint64_t *sizes;
    const uint8_t *literal; /* the bytes to write, so that nothing is read or cast; or NULL */
    tsr_row_range rows;     /* for a local tensor `entry` */
    tsr_dtype dtype;
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
    uint32_t crc;           /* set by the run if `crc` is requested */
    tsr_cast_losses losses; /* added to by the run */
} tsr_write_item;

typedef struct tsr_write_items_run {
    tsr_checkpoint *checkpoint;
    tsr_output *output;
    tsr_ring *ring;
    tsr_ahead *ahead;            /* stores what is found out about the write items' chunks; or NULL */
    tsr_write_item *write_items; /* write items of one entry should be consecutive */
    size_t count;
    /* The write items of a lane begin at the end of the previous lane and are written in order; the lanes' tiles take turns. NULL
     * and 0: a single lane with all write items. */
    const size_t *lane_ends;
    size_t lane_count;
    bool crc; /* compute the CRC-32 of every write item's bytes */
    const tsr_progress *progress;
    /* NULL, or called when all bytes of write_items[index] are written; by one thread at a time, and in order within a lane. */
    tsr_status (*done)(void *ctx, size_t index, tsr_error *err);
    void *ctx;
} tsr_write_items_run;

/* The bytes of a write item: its elements in its dtype. Fails with TSR_E_UNSUPPORTED if the entry has no dense elements or cannot
 * be cast. */
tsr_status tsr_write_item_measure(const tsr_entry *entry, const uint64_t *sizes, tsr_dtype dtype, uint64_t *bytes,
                                  tsr_error *err);
tsr_status tsr_write_items(const tsr_write_items_run *run, tsr_error *err);

/* Chooses the order in which write items are processed.
 *
 *   [ tensor by tensor: those that are not read in rows ][ group 0 of files ][ group 1 ][ group 2 ]…
 *
 * Writers of the same file wait for its lock, on any node and file system, so each process and thread should have its own
 * files. If a box is not a contiguous run of rows, reading it also reads bytes of its neighbors, so its tensor is kept
 * together. */

typedef struct tsr_write_order {
    uint32_t *numbers;    /* indexes of the write items */
    size_t grouped;       /* from this position on, they are ordered by group */
    uint32_t group_files; /* number of consecutive files in a group */
} tsr_write_order;

/* Write items of one entry should be consecutive and in ascending order of files; they keep that order in each group. Allocates in
 * `arena`. */
tsr_status tsr_order_write_items(const tsr_catalog *catalog, const tsr_write_item *write_items, size_t count,
                                 tsr_arena *arena, tsr_write_order *out, tsr_error *err);

/* What a container's writer provides for a work: the boxes that go into its files, and the bytes around them. */

/* An output, addressed by the numbers that files have in a tsr_conversion. */
typedef struct tsr_sink {
    tsr_output *output;
    const uint32_t *numbers; /* the output's number of each file; NULL if the numbers are the same */
} tsr_sink;

static inline tsr_status tsr_sink_write(const tsr_sink *sink, uint32_t file, uint64_t at, const void *data, size_t size,
                                        tsr_error *err)
{
    return sink->output->write_at(sink->output, sink->numbers ? sink->numbers[file] : file, at, data, size, err);
}

/* Files that are laid out together. `write_items` (whose `file` is an index into the conversion's files) are written in any order
 * and in pieces; the two functions write everything else. */
typedef struct tsr_stage {
    tsr_write_item *write_items;
    size_t count;
    /* NULL, or writes what only needs write_items[i].crc, which is set. Called once for every write item, in any order. */
    tsr_status (*behind)(const struct tsr_stage *stage, size_t i, const tsr_sink *sink, tsr_error *err);
    /* Writes the rest, which may need all CRCs. */
    tsr_status (*rest)(const struct tsr_stage *stage, const tsr_sink *sink, tsr_error *err);
    void *ctx;
    tsr_write_order order; /* order of the write items; set by the work, not by the writer */
} tsr_stage;

/* The write item at a position of the order. */
static inline tsr_write_item *tsr_stage_item(const tsr_stage *stage, size_t place)
{
    return &stage->write_items[stage->order.numbers[place]];
}

typedef struct tsr_writer {
    uint32_t stage_count;
    bool crc; /* CRCs of write items are needed */
    /* Lays out a stage in `arena`. The result is the same each time. */
    tsr_status (*stage)(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err);
    /* NULL, or writes the file that describes the others, after all stages are complete. Sets the marker to its number. */
    tsr_status (*finish)(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err);
    uint32_t marker; /* if there is no `finish`: the file that becomes visible last, in the conversion's files; or
                      * TSR_NO_FILE */
    void *ctx;
} tsr_writer;

#endif
