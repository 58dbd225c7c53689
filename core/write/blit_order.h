/* The order in which blits are best carried out.
 *
 *   [ tensor by tensor: those that are not read in rows ][ group 0 of files ][ group 1 ][ group 2 ]…
 *
 * A file's writers meet at its lock, on whatever node and file system, so processes and threads should each have files of
 * their own. A box that is not a run of whole rows costs reads of its neighbours' bytes, too: its tensor stays together. */
#ifndef TSR_WRITE_BLIT_ORDER_H
#define TSR_WRITE_BLIT_ORDER_H

#include "write/blit.h"

typedef struct tsr_blit_order {
    uint32_t *numbers;    /* of the blits */
    size_t grouped;       /* from this place on they go group by group */
    uint32_t group_files; /* consecutive files that make a group */
} tsr_blit_order;

/* Blits of one entry should follow each other, by rising file, and do so in each group. Lives in `arena`. */
tsr_status tsr_blits_order(const tsr_catalog *catalog, const tsr_blit *blits, size_t count, tsr_arena *arena,
                           tsr_blit_order *out, tsr_error *err);

#endif
