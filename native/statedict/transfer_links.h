/* What one rank sends, receives and keeps. */
#ifndef TSR_STATEDICT_TRANSFER_LINKS_H
#define TSR_STATEDICT_TRANSFER_LINKS_H

#include "statedict/transfer.h"

typedef struct tsr_links {
    tsr_vec sends, receives; /* of tsr_link, sorted by (peer, transfer, order) */
    tsr_vec kept;            /* pairs: from, to, both here */
    tsr_arena *arena;
} tsr_links;

/* Finds all. Both ends of a link find it by themselves, from the same layouts and in the same order. */
tsr_status tsr_links_find(uint32_t own, uint32_t ranks, const tsr_transfer *transfers, size_t count, const tsr_host *host,
                          tsr_links *out, tsr_error *err);
void tsr_links_free(tsr_links *links);

#endif
