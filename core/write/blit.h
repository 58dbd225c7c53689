/* Copies boxes of tensors into files: the one loop that all conversions and reshards use. */
#ifndef TSR_WRITE_BLIT_H
#define TSR_WRITE_BLIT_H

#include "stream/gather.h"
#include "stream/ring.h"
#include "tessera/output.h"
#include "tessera/sys/cast.h"

/* Which bytes of a tensor of the catalog a local tensor has, if they are a contiguous run of rows; otherwise `entry` is
 * NULL. */
typedef struct tsr_row_range {
    const tsr_entry *entry;
    uint64_t byte_first; /* in row-major order */
} tsr_row_range;

/* Writes the elements of a box, contiguous in row-major order and cast to `dtype`, to [byte_offset, + byte_length) of an
 * output file. */
typedef struct tsr_blit {
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
} tsr_blit;

typedef struct tsr_blit_run {
    tsr_checkpoint *checkpoint;
    tsr_output *output;
    tsr_ring *ring;
    tsr_ahead *ahead; /* stores what is found out about the blits' chunks; or NULL */
    tsr_blit *blits;  /* blits of one entry should be consecutive */
    size_t count;
    /* The blits of a lane begin at the end of the previous lane and are written in order; the lanes' tiles take turns. NULL
     * and 0: a single lane with all blits. */
    const size_t *lane_ends;
    size_t lane_count;
    bool crc; /* compute the CRC-32 of every blit's bytes */
    const tsr_progress *progress;
    /* NULL, or called when all bytes of blits[index] are written; by one thread at a time, and in order within a lane. */
    tsr_status (*done)(void *ctx, size_t index, tsr_error *err);
    void *ctx;
} tsr_blit_run;

/* The bytes of a blit: its elements in its dtype. Fails with TSR_E_UNSUPPORTED if the entry has no dense elements or cannot
 * be cast. */
tsr_status tsr_blit_measure(const tsr_entry *entry, const uint64_t *sizes, tsr_dtype dtype, uint64_t *bytes, tsr_error *err);
tsr_status tsr_blits_write(const tsr_blit_run *run, tsr_error *err);

#endif
