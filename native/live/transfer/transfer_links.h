/* What one rank sends, receives and keeps. */
#ifndef TSR_STATEDICT_TRANSFER_LINKS_H
#define TSR_STATEDICT_TRANSFER_LINKS_H

#include "live/transfer/nodes.h"
#include "live/transfer/transfer.h"

typedef struct tsr_links {
    tsr_vec sends, receives; /* of tsr_link, sorted by (peer, transfer, order) */
    tsr_vec copies;          /* pairs: from, to; both can be reached from here */
    tsr_arena *arena;
} tsr_links;

/* What moves in which phase. With nodes, that which several ranks of a node want and none of it has comes to one of them first, to a
 * different one for each shard; then they give it to the others, out of the memory that it came to. */
typedef enum tsr_phase { TSR_PHASE_FIRST, TSR_PHASE_SPREAD } tsr_phase;
typedef struct tsr_route {
    const tsr_nodes *nodes; /* NULL: everything moves in the first phase */
    tsr_phase phase;
    bool direct; /* where one end is shared memory, the rank of the other copies; without nodes only */
} tsr_route;

/* Finds all. Both ends of a link find it by themselves, from the same layouts and in the same order. All ranks
 * give the same route. */
tsr_status tsr_links_find(const tsr_comm *comm, tsr_transfer_list transfers, const tsr_route *route, const tsr_host *host,
                          tsr_links *out, tsr_error *err);
/* Which sides lie in shared memory: equal on ranks that may find links with `direct`; 0: none. */
uint64_t tsr_links_shared(const tsr_comm *comm, tsr_transfer_list transfers);
void tsr_links_free(tsr_links *links);

#endif
