/* Live redistribution: tensors move in memory from one distribution to another, without a file, and no rank holds more than its
 * own shards.
 *
 *   from [rows on 4 ranks]  ──▶ boxes that one rank has and another wants ──▶ packed, exchanged in rounds ──▶ to [columns]
 *
 * Data that is contiguous on one side is sent from, or received into, the tensor itself. Data that a rank both has and wants
 * does not leave the rank. If either side is in memory that the processes of a machine share (tsr_create_options.share), the
 * rank at the other end copies the data once. Of several replicas a rank uses its own if it has one, otherwise the one with the
 * same coordinates as the rank in the mesh dims that replicate the tensor.
 *
 * Example:
 *
 *     status = tsr_state_dict_redistribute(state, tsr_state_dict_root(dict), comm, 0, host, &err); */
#ifndef TESSERA_REDISTRIBUTE_H
#define TESSERA_REDISTRIBUTE_H

#include "tessera/statedict.h"

TSR_API_BEGIN

/* Moves every tensor of `from` into the tensor at the same position of `to`. Both must have the same structure, and tensors
 * at the same positions the same shape and dtype, in any distribution: over meshes of the communicator's size, in boxes, or
 * whole. Their memory must not overlap. Every rank passes the same arguments, which is checked (see tessera/statedict.h).
 * Errors: TSR_E_USAGE if the two sides or the ranks differ, or if `from` is in boxes and an element that `to` wants is not
 * in the box of exactly one rank. Besides the tensors the call needs at most round_bytes (0: the default) each for sending
 * and receiving. If all ranks are on one machine, up to 4 MiB of shared memory per rank stay with the communicator until it
 * is closed. Collective. */
tsr_status tsr_state_dict_redistribute(const tsr_value *from, const tsr_value *to, tsr_comm *comm, size_t round_bytes,
                                       const tsr_host *host, tsr_error *err);

TSR_API_END

#endif
