/* Chooses the order in which blits are processed.
 *
 *   [ tensor by tensor: those that are not read in rows ][ group 0 of files ][ group 1 ][ group 2 ]…
 *
 * Writers of the same file wait for its lock, on any node and file system, so each process and thread should have its own
 * files. If a box is not a contiguous run of rows, reading it also reads bytes of its neighbors, so its tensor is kept
 * together. */
#ifndef TSR_WRITE_BLIT_ORDER_H
#define TSR_WRITE_BLIT_ORDER_H

#include "write/blit.h"

typedef struct tsr_blit_order {
    uint32_t *numbers;    /* indexes of the blits */
    size_t grouped;       /* from this position on, they are ordered by group */
    uint32_t group_files; /* number of consecutive files in a group */
} tsr_blit_order;

/* Blits of one entry should be consecutive and in ascending order of files; they keep that order in each group. Allocates in
 * `arena`. */
tsr_status tsr_blits_order(const tsr_catalog *catalog, const tsr_blit *blits, size_t count, tsr_arena *arena,
                           tsr_blit_order *out, tsr_error *err);

#endif
