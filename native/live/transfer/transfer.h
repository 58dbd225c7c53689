/* Tensors that change their distribution: who sends which box to whom, and the rounds in which it happens. */
#ifndef TSR_LIVE_TRANSFER_TRANSFER_H
#define TSR_LIVE_TRANSFER_TRANSFER_H

#include "live/tensor/pack.h"
#include "tessera/comm.h"
#include "tessera/redistribute.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/statedict.h"
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

/* ---- nodes ---- */

/* Which ranks share a machine: what crosses between machines is sent once to each, and spread inside. */
typedef struct tsr_nodes {
    uint32_t count;
    const uint32_t *of;    /* a rank's node */
    const uint32_t *ranks; /* those of node 0 in rising order, of node 1, … */
    const uint32_t *start; /* where those of a node begin; `count` + 1 of them */
} tsr_nodes;

/* ---- transfer links ---- */

/* What one rank sends, receives and keeps. */

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

/* ---- window ---- */

/* Streams between processes of one machine through shared memory. A copy in and a copy out of a slot are quicker than a kernel
 * that copies pages from one process to another. */

#define TSR_WINDOW_BYTES ((uint64_t)4 << 20) /* most that a rank's segment has for all others together */

/* A digest of the machine that this process runs on, as far as can be told. */
uint64_t tsr_machine(void);

/* What a window of these ranks has for each pair of them. */
uint64_t tsr_window_bytes(uint32_t ranks, uint64_t most_bytes);

/* What a rank does while it cannot move anything, a little with every call, and the rest in the end. */
typedef struct tsr_idle {
    bool (*work)(void *ctx); /* whether something is left */
    void *ctx;
} tsr_idle;

/* Moves every byte of the streams, one each by peer, all of host memory, in both directions. What is sent to a rank is what
 * that rank receives. A window of the same size that the communicator has kept is used again, and the communicator keeps it if
 * it can. `*done` stays false, and that is no error, where ranks are on several machines or cannot share memory, and where
 * `most_bytes`, of each rank for one other, are too few. Collective, with the same `most_bytes`. A rank that dies keeps the
 * others waiting: the communicator's watchdog ends them. Errors: TSR_E_IO when nothing has moved for a minute. */
tsr_status tsr_window_move(tsr_comm *comm, uint64_t most_bytes, const tsr_allocator *allocator, tsr_stream *out,
                           tsr_stream *in, const tsr_idle *idle, bool *done, tsr_error *err);

#endif
