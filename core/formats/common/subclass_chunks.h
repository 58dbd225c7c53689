/* Tensor subclasses (torchao's quantized tensors, say) of which several boxes are stored: catalog.h describes how an entry lists
 * them. */
#ifndef TSR_FORMATS_COMMON_SUBCLASS_CHUNKS_H
#define TSR_FORMATS_COMMON_SUBCLASS_CHUNKS_H

#include "tessera/catalog.h"

/* Gives an opaque entry its `count` boxes and what each of them holds; both arrays are sorted, and kept. A single box that
 * covers the tensor makes it a whole one, whose value is what the box holds. */
tsr_status tsr_entry_set_pieces(tsr_entry *entry, tsr_chunk *chunks, const tsr_value **values, uint64_t count,
                                tsr_arena *arena, tsr_error *err);

#endif
