/* Value trees as bytes for another rank of the same program: the structure and what tensors are, not their elements. 0-d
 * tensors are the exception: their one element goes along.
 *
 *   bytes   [kind u8][what the kind needs]…        numbers little-endian, containers as their count and items
 *   tensors lie one after another in the sender's imaginary memory: byte_offset counts from the first one's first byte
 */
#ifndef TSR_OPTIM_TREE_PACK_H
#define TSR_OPTIM_TREE_PACK_H

#include "tessera/sys/optim_comm.h"
#include "tessera/sys/vec.h"

/* A tensor of the packed tree and where it begins. */
typedef struct tsr_packed_tensor {
    const tsr_entry *entry;
    uint64_t byte_offset, byte_length;
} tsr_packed_tensor;

/* Of a tensor with one chunk only the chunk's rows are there (live->bytes gives those), of others all.
 * Appends to `bytes` (vec of char) and `tensors` (vec of tsr_packed_tensor). Errors: TSR_E_LIMIT, TSR_E_UNSUPPORTED for a
 * tensor whose dtype has no whole bytes, TSR_E_NOMEM. */
tsr_status tsr_tree_pack(const tsr_value *tree, const tsr_live *live, const tsr_host *host, tsr_vec *bytes, tsr_vec *tensors,
                         tsr_error *err);

/* Where trees are unpacked. */
typedef struct tsr_unpacked_into {
    uint32_t scalar_file; /* the "file" of 0-d tensors */
    tsr_vec *scalars;     /* vec of char: its bytes; they are appended */
    const tsr_host *host;
    tsr_arena *arena;
} tsr_unpacked_into;

/* The tree again: every tensor's chunk, its rows, is in "file" `file`, but for 0-d tensors. TSR_E_FORMAT for bytes that no
 * tsr_tree_pack made. */
tsr_status tsr_tree_unpack(tsr_str bytes, uint32_t file, const tsr_unpacked_into *into, const tsr_value **out,
                           tsr_error *err);

#endif
