/* Tensors that change their distribution: who sends which box to whom, and the rounds in which it happens. */
#ifndef TSR_STATEDICT_TRANSFER_H
#define TSR_STATEDICT_TRANSFER_H

#include "live/tensor/pack.h"
#include "tessera/comm.h"
#include "tessera/redistribute.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/redistribute.h"
#include "tessera/tensor.h"

/* What every rank holds of a tensor before or after. */
typedef struct tsr_side {
    const tsr_tensor *tensor; /* with this rank's memory; NULL where this rank has no part in it */
    const tsr_layout *layout; /* over a mesh, or in boxes (explicit); NULL: whole, */
    const uint32_t *holders;  /* on these ranks, ascending and distinct; NULL: on all */
    uint32_t holder_count;
} tsr_side;

typedef struct tsr_transfer {
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    tsr_str name; /* for messages */
    tsr_side from, to;
} tsr_transfer;

typedef struct tsr_transfer_list {
    tsr_transfer *items;
    size_t count;
} tsr_transfer_list;

/* Runs all. The lists differ between ranks in this rank's memory only. `round_bytes` 0: the default. Collective: all ranks
 * return the same status; `mine` is this rank's so far. Temporary memory: round_bytes each for sending and receiving, where
 * a side is not one run, and 200 bytes and a few numbers for each box that this rank sends or receives. */
tsr_status tsr_transfers_run(tsr_comm *comm, tsr_transfer_list transfers, size_t round_bytes, const tsr_host *host,
                             tsr_status mine, tsr_error *err);

/* The layouts of sides from what ranks have: fills side->layout for tensors over meshes, and for those in boxes after every
 * rank has told its own; the boxes of `from` sides must tile their tensors. `sides` are in the same order on all ranks;
 * `is_source` says which they are. Collective, with the same agreement. Everything lives in `arena`. */
typedef struct tsr_side_request {
    const tsr_tensor *tensor; /* never NULL */
    bool is_source;
    tsr_side *side;
} tsr_side_request;

typedef struct tsr_side_requests {
    tsr_side_request *items;
    size_t count;
} tsr_side_requests;

tsr_status tsr_sides_resolve(tsr_comm *comm, tsr_side_requests requests, const tsr_host *host, tsr_arena *arena,
                             tsr_status mine, tsr_error *err);

typedef struct tsr_move_list {
    const tsr_move *items;
    size_t count;
} tsr_move_list;

/* What tsr_redistribute would refuse. Nothing moves. Collective. */
tsr_status tsr_redistribute_check(tsr_comm *comm, const tsr_move_list *moves, const tsr_host *host, tsr_error *err);

#endif
