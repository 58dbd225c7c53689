/* Packs value trees into bytes for another rank of the same program (value_pack.h) with a description of the tensors, but
 * not their elements. Only 0-d tensors are sent with their one element.
 *
 *   tensors follow each other in the sender's imaginary memory: byte_offset counts from the first byte of the first one */
#ifndef TSR_OPTIM_TREE_PACK_H
#define TSR_OPTIM_TREE_PACK_H

#include "tessera/sys/containers.h"
#include "tessera/sys/optimizer.h"

/* A tensor of the packed tree, and where it begins in the imaginary memory. */
typedef struct tsr_packed_tensor {
    const tsr_entry *entry;
    uint64_t byte_offset, byte_length;
} tsr_packed_tensor;

/* If a tensor has a single chunk, only that chunk's rows exist (and live->bytes provides them); otherwise all rows do.
 * Appends to `bytes` (vec of char) and `tensors` (vec of tsr_packed_tensor). Fails with TSR_E_LIMIT, with TSR_E_UNSUPPORTED
 * for a tensor whose elements are not byte-aligned, or with TSR_E_NOMEM. */
tsr_status tsr_tree_pack(const tsr_value *tree, const tsr_live *live, const tsr_host *host, tsr_vec *bytes, tsr_vec *tensors,
                         tsr_error *err);

/* Where to put unpacked trees. */
typedef struct tsr_unpacked_into {
    uint32_t scalar_file; /* the "file" number of 0-d tensors */
    tsr_vec *scalars;     /* vec of char: the contents of that file; elements are appended */
    const tsr_host *host;
    tsr_arena *arena;
} tsr_unpacked_into;

/* Unpacks a tree. Every tensor's chunk, which has its rows, is in "file" `file`, except for 0-d tensors. Fails with
 * TSR_E_FORMAT for bytes that tsr_tree_pack did not write. */
tsr_status tsr_tree_unpack(tsr_str bytes, uint32_t file, const tsr_unpacked_into *into, const tsr_value **out,
                           tsr_error *err);

#endif
