/* The exchange between ranks that tsr_fsdp_gather, tsr_fsdp_broadcast and tsr_fsdp_spread have in common. The data-only
 * conversions work on trees whose chunks name a rank, and a position in that rank's imaginary memory. Their results show which
 * bytes a rank needs from which other ranks:
 *
 *   rank r   wants (rank s, offset, size) …  ──▶ requests to s ──▶ s looks up its tensors ──▶ elements */
#ifndef TSR_OPTIM_LIVE_EXCHANGE_H
#define TSR_OPTIM_LIVE_EXCHANGE_H

#include "optim/flat_unit.h"
#include "optim/tree_pack.h"

typedef struct tsr_live_request {
    uint64_t byte_offset, byte_length; /* in the sender's imaginary memory */
} tsr_live_request;

/* The state of one call. */
typedef struct tsr_live_exchange {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
    const tsr_live *live;
    tsr_live_state *out;
    tsr_vec bytes;           /* this rank's tree, packed */
    tsr_vec tensors;         /* tsr_packed_tensor: tensors of this rank that others can request */
    tsr_vec scalars;         /* elements of 0-d tensors */
    tsr_vec wants;           /* what this rank requests, in the order of the walk */
    size_t *counts;          /* number of requests to every rank, then from every rank */
    tsr_live_request *asked; /* requests to others, rank by rank, then those from others */
    size_t asked_size;
    tsr_message *messages;
    size_t message_size;
} tsr_live_exchange;

/* Clears *out. End it with tsr_live_end, whatever happens in between. */
tsr_live_exchange tsr_live_start(const tsr_live_call *call, tsr_live_state *out);
void tsr_live_end(tsr_live_exchange *m);
/* What the data-only conversions need. It borrows `m`. */
tsr_fsdp_context tsr_live_context(tsr_live_exchange *m);
/* The file that the chunks of 0-d tensors name, whose elements are packed with the tree. */
uint32_t tsr_live_scalar_file(const tsr_live_exchange *m);
/* Gives every rank the trees of all ranks, one per rank, in the arena. Collective. */
tsr_status tsr_live_share_trees(tsr_live_exchange *m, const tsr_value *mine, const tsr_value ***out, tsr_error *err);
/* Receives the tensors of `tree` into m->out, which owns their memory. NULL if this rank needs nothing. Collective. */
tsr_status tsr_live_fetch(tsr_live_exchange *m, const tsr_value *tree, tsr_error *err);

#endif
