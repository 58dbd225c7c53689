/* Cuts a box out of a chunk, whose bytes stay where they are. */
#ifndef TSR_FORMATS_COMMON_CHUNK_CUT_H
#define TSR_FORMATS_COMMON_CHUNK_CUT_H

#include "tessera/box.h"
#include "tessera/catalog.h"

/* Sets *out to the part of a chunk that is in `box`, a box of the chunk's tensor that the chunk contains. The elements have
 * `item` bytes, which must not be 0. The sizes of *out are in `arena`, and its offsets are those of the chunk: the caller sets
 * them. Errors: TSR_E_NOMEM. */
tsr_status tsr_chunk_cut(const tsr_chunk *chunk, tsr_box box, uint32_t item, tsr_arena *arena, tsr_chunk *out,
                         tsr_error *err);

#endif
