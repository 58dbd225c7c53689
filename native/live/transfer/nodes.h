/* Which ranks share a machine: what crosses between machines is sent once to each, and spread inside. */
#ifndef TSR_STATEDICT_NODES_H
#define TSR_STATEDICT_NODES_H

#include "tessera/comm.h"

typedef struct tsr_nodes {
    uint32_t count;
    const uint32_t *of;    /* a rank's node */
    const uint32_t *ranks; /* those of node 0 in rising order, of node 1, … */
    const uint32_t *start; /* where those of a node begin; `count` + 1 of them */
} tsr_nodes;

/* `*out` is NULL, and that no error, where all ranks are on one node, or each on its own. The same on all ranks, whatever the mapping
 * of ranks to nodes. TESSERA_NODES, one number per rank ("0,0,1,1"), stands in for machines, to try a job's traffic on one of
 * them. Collective. */
tsr_status tsr_nodes_find(tsr_comm *comm, const tsr_allocator *allocator, tsr_nodes **out, tsr_error *err);
void tsr_nodes_free(tsr_nodes *nodes); /* takes NULL */

#endif
