/* Moves single tensors as tsr_state_dict_redistribute does (tessera/redistribute.h).
 *
 * Example:
 *
 *     const tsr_move move = {.from = by_rows, .to = by_columns};
 *     status = tsr_redistribute(comm, &move, 1, 0, host, &err); */
#ifndef TESSERA_SYS_REDISTRIBUTE_H
#define TESSERA_SYS_REDISTRIBUTE_H

#include "tessera/redistribute.h"

TSR_API_BEGIN

/* One tensor to move. Both sides have the same shape and dtype, in any distribution: over meshes of the communicator's size,
 * in boxes, or whole. `to` is filled. Their memory must not overlap. */
typedef struct tsr_move {
    const tsr_tensor *from;
    const tsr_tensor *to;
} tsr_move;

/* Moves all of these tensors. Every rank passes the same tensors in the same order, which is checked (see
 * tessera/statedict.h). Errors: TSR_E_USAGE if sides or ranks differ, or if `from` is in boxes and an element that `to`
 * wants is not in the box of exactly one rank. Besides the tensors the call needs at most round_bytes (0: the default) each
 * for sending and receiving. Shared memory stays with the communicator as after tsr_state_dict_redistribute. Collective. */
tsr_status tsr_redistribute(tsr_comm *comm, const tsr_move *moves, size_t count, size_t round_bytes, const tsr_host *host,
                            tsr_error *err);

TSR_API_END

#endif
