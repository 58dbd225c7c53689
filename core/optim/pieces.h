/* Builds tensors from flat ranges of other tensors, as entries whose chunks say where the bytes are. Nothing is read.
 *
 *   source (1-d slices)   rank 0: [0 ········ 14)   rank 1: [0 ········ 14)   …
 *   result [11, 3]        rows 0–3, then 2 of row 4 │ 1 of row 4, rows 5–8, 1 of row 9 │ …      boxes, each one run of
 * bytes */
#ifndef TSR_OPTIM_PIECES_H
#define TSR_OPTIM_PIECES_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/containers.h"

/* An entry under construction, filled from its first element to its last. */
typedef struct tsr_pieces {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_entry *entry;
    tsr_vec chunks;       /* tsr_chunk */
    uint64_t elements;    /* of the whole tensor */
    uint64_t flat_filled; /* number of elements filled so far */
} tsr_pieces;

/* `of` has the name, dtype and shape of the new tensor, which must live as long as the arena. */
tsr_status tsr_pieces_start(tsr_pieces *pieces, const tsr_host *host, tsr_arena *arena, const tsr_entry *of, tsr_error *err);
/* Appends elements [flat_begin, flat_end) of `source`, in row-major order. The source's chunks are raw bytes or have views,
 * which may be strided, conjugated, negated, swapped or compressed. Fails with TSR_E_FORMAT for elements that are in no
 * chunk. */
tsr_status tsr_pieces_add(tsr_pieces *pieces, const tsr_entry *source, uint64_t flat_begin, uint64_t flat_end,
                          tsr_error *err);
/* Appends `count` zeros; `file` must begin with 16 zero bytes. */
tsr_status tsr_pieces_add_zeros(tsr_pieces *pieces, uint32_t file, uint64_t count, tsr_error *err);
/* Returns the entry as a value. All of its elements must have been filled. */
tsr_status tsr_pieces_finish(tsr_pieces *pieces, const tsr_value **out, tsr_error *err);
void tsr_pieces_drop(tsr_pieces *pieces); /* accepts a finished one */

#endif
