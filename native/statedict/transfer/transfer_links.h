/* What one rank sends, receives and keeps. */
#ifndef TSR_STATEDICT_TRANSFER_LINKS_H
#define TSR_STATEDICT_TRANSFER_LINKS_H

#include "statedict/transfer/transfer.h"

typedef struct tsr_links {
    tsr_vec sends, receives; /* of tsr_link, sorted by (peer, transfer, order) */
    tsr_vec copies;          /* pairs: from, to; both can be reached from here */
    tsr_arena *arena;
} tsr_links;

/* Finds all. Both ends of a link find it by themselves, from the same layouts and in the same order. `direct`: where one end
 * is shared memory, the rank of the other copies; all ranks say the same. */
tsr_status tsr_links_find(const tsr_comm *comm, tsr_transfer_list transfers, bool direct, const tsr_host *host,
                          tsr_links *out, tsr_error *err);
/* Which sides lie in shared memory: equal on ranks that may find links with `direct`; 0: none. */
uint64_t tsr_links_shared(const tsr_comm *comm, tsr_transfer_list transfers);
void tsr_links_free(tsr_links *links);

#endif
