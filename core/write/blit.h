/* Boxes of tensors on their way into files: the one loop behind every conversion and reshard. */
#ifndef TSR_WRITE_BLIT_H
#define TSR_WRITE_BLIT_H

#include "stream/gather.h"
#include "stream/ring.h"
#include "tessera/output.h"

/* Which bytes of a tensor of the catalog a local tensor is, when it is a run of its rows; `entry` is NULL when it is none.
 */
typedef struct tsr_rows {
    const tsr_entry *entry;
    uint64_t byte_first; /* in row-major order */
} tsr_rows;

/* The elements of a box, contiguous row-major, cast to `dtype`, at [byte_offset, + byte_length) of an output file. */
typedef struct tsr_blit {
    const tsr_entry *entry;
    const uint64_t *offsets; /* NULL: the whole tensor. In the gather's geometry, as sizes */
    const uint64_t *sizes;
    const uint8_t *literal; /* NULL, or the bytes themselves: nothing is read or cast */
    tsr_rows rows;          /* of `entry`, where that is a local tensor */
    tsr_dtype dtype;
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
    uint32_t crc; /* set by the run when asked for */
} tsr_blit;

typedef struct tsr_blit_run {
    tsr_checkpoint *checkpoint;
    tsr_output *output;
    tsr_ring *ring;
    tsr_ahead *ahead; /* NULL, or where what is found of the blits' chunks is kept */
    tsr_blit *blits; /* blits of one entry should follow each other */
    size_t count;
    /* Each lane's blits are written in their order, from the end of the lane before it, and the lanes' tiles in turn. NULL
     * and 0: one lane of all. */
    const size_t *lane_ends;
    size_t lane_count;
    bool crc; /* CRC-32 of every blit's bytes */
    const tsr_progress *progress;
    /* NULL, or called by one thread at a time when all bytes of blits[index] are written; in the order of its lane. */
    tsr_status (*done)(void *ctx, size_t index, tsr_error *err);
    void *ctx;
} tsr_blit_run;

/* Bytes of a blit: its elements in its dtype. TSR_E_UNSUPPORTED where the entry has no dense elements or the cast is not
 * possible. */
tsr_status tsr_blit_measure(const tsr_entry *entry, const uint64_t *sizes, tsr_dtype dtype, uint64_t *bytes, tsr_error *err);
tsr_status tsr_blits_write(const tsr_blit_run *run, tsr_error *err);

#endif
