/* FSDP1's optimizer state between live ranks, whose tensors are in memory. Ranks first exchange the structure and the
 * description of every tensor. All ranks then compute the same plan, and so find the same errors. Finally each element is
 * sent directly from the rank that has it to the ranks that keep it.
 *
 *   gather        every rank's raw state ──▶ the full state, on all ranks or one
 *   gather_rows   every rank's raw state ──▶ its rows of the full state
 *   broadcast     rank 0's full state ──▶ every rank's raw state, of any number of ranks
 *   spread        every rank's own full state, or rows of it ──▶ every rank's raw state
 *
 * Collective: every rank of call->comm calls. An error of one rank (memory, a tensor that cannot be sent) or of the states
 * (flat_params.h lists them) is the same error on all. Source of the behavior: _optim_state_dict, _allgather_state_info,
 * _convert_all_state_info, _all_gather_optim_state, _broadcast_processed_state and _broadcast_state of
 * torch/distributed/fsdp/_optim_utils.py, PyTorch 2.13. Thread rule: one thread a rank.
 *
 * Example:
 *
 *     const tsr_live_call call = {comm, host, arena, live};
 *     tsr_live_state full = {0};
 *     status = tsr_fsdp_gather(&call, flat, state, 0, &full, &err);
 *     if (status == TSR_OK && full.tree) printf("rank 0 has the full state in %zu buffers\n", full.buffer_count);
 *     tsr_live_state_free(&full); */
#ifndef TESSERA_SYS_OPTIM_COMM_H
#define TESSERA_SYS_OPTIM_COMM_H

#include "tessera/sys/flat_params.h"

TSR_API_BEGIN

/* How the bytes of a live tree's tensors are found. */
typedef struct tsr_live {
    /* All of a tensor's elements (of an entry with one chunk: the chunk's), contiguous, row-major, in the machine's order;
     * valid until the call below returns. */
    const void *(*bytes)(void *ctx, const tsr_entry *entry);
    void *ctx;
} tsr_live;

/* A tree whose tensors were received: the entry of a tensor has one chunk, in "file" i: its elements are buffers[i].data,
 * contiguous. The tree lives in the arena, the buffers until free. */
typedef struct tsr_live_buffer {
    void *data;
    size_t size;
} tsr_live_buffer;
typedef struct tsr_live_state {
    const tsr_value *tree; /* NULL: nothing is kept on this rank */
    tsr_live_buffer *buffers;
    size_t buffer_count;
    const tsr_str *carried; /* as in tsr_fsdp_full */
    size_t carried_count;
    const tsr_allocator *allocator;
} tsr_live_state;
void tsr_live_state_free(tsr_live_state *state); /* accepts a zeroed one */

#define TSR_ALL_RANKS UINT32_MAX

/* The environment of the calls below; their results live in `arena`. */
typedef struct tsr_live_call {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_live live;
} tsr_live_call;

/* `raw` is the rank's `optimizer.state_dict()`; comm->size must be the description's world size. Ranks may have other param
 * groups (flat->groups is the rank's own) and other state of parameters that FSDP does not shard; each rank gets what
 * tsr_fsdp_unshard returns for it. The state is kept on `target`, a rank (rank0_only) or TSR_ALL_RANKS. Memory: the full
 * state on ranks that keep it, nothing of it elsewhere. */
tsr_status tsr_fsdp_gather(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw, uint32_t target,
                           tsr_live_state *out, tsr_error *err);

/* `full` and call->live are rank 0's (ignored elsewhere). Each rank receives its part of the state as tsr_fsdp_shard cuts
 * it, for a world of comm->size ranks. Memory: that part. */
tsr_status tsr_fsdp_broadcast(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *full,
                              tsr_live_state *out, tsr_error *err);

/* As tsr_fsdp_gather, but each rank gets only its rows, as tsr_fsdp_shard_rows cuts them (`mesh` may be NULL). A tensor's
 * chunk states which rows of the whole its buffer holds. Memory: these rows. */
tsr_status tsr_fsdp_gather_rows(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw,
                                const tsr_mesh *mesh, tsr_live_state *out, tsr_error *err);

/* Each rank's `state` is keyed by FQN; its tensors are whole, or have one chunk with the rows that this rank holds; the
 * other rows come from other ranks. Results as those of tsr_fsdp_broadcast. Errors: also TSR_E_FORMAT for rows that no rank
 * has, and ranks whose tensors differ in shape or dtype. */
tsr_status tsr_fsdp_spread(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *state,
                           tsr_live_state *out, tsr_error *err);

TSR_API_END

#endif
