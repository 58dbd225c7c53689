/* Live redistribution: tensors move in memory from one distribution to another, without a file and without a rank that
 * holds more than its own parts.
 *
 *   from [rows on 4 ranks]  ──▶ boxes that a rank has and another wants ──▶ packed, exchanged in rounds ──▶ to [columns]
 *
 * What is in one run on either side is sent from, or received into, the tensor itself. What a rank has and wants stays
 * in it. What is in memory that the processes of a machine share (tsr_create_options.share), on either side, is copied once,
 * by the rank at the other end. Replicas: a rank that has a copy itself takes that, others the copy whose
 * place in the dims that replicate the tensor is theirs.
 *
 * Example:
 *
 *     status = tsr_state_dict_redistribute(state, tsr_state_dict_root(dict), comm, 0, host, &err); */
#ifndef TESSERA_REDISTRIBUTE_H
#define TESSERA_REDISTRIBUTE_H

#include "tessera/statedict.h"

TSR_API_BEGIN

/* Moves every tensor of `from` into the one in the same place of `to`. Both have the same structure, and tensors in the same
 * places the same shape and dtype, in any distribution: over meshes of the communicator's size, in boxes, or whole. Their
 * memory must not overlap. Every rank passes the same; that is checked (see tessera/statedict.h). Errors: TSR_E_USAGE where
 * sides or ranks differ, or where `from` in boxes does not have exactly one rank's box for every element that `to` wants.
 * Besides the tensors it needs at most round_bytes (0: the default) each for sending and receiving. Collective. */
tsr_status tsr_state_dict_redistribute(const tsr_value *from, const tsr_value *to, tsr_comm *comm, size_t round_bytes,
                                       const tsr_host *host, tsr_error *err);

TSR_API_END

#endif
