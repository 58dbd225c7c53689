/* Compares lists of chunks as sets of boxes. */
#ifndef TSR_LAYOUT_BOX_SET_H
#define TSR_LAYOUT_BOX_SET_H

#include "tessera/catalog.h"

/* Whether two entries of one shape have the same chunk boxes, in any order. Chunks without elements are ignored, because
 * programs may store or omit the empty chunks of ranks that hold nothing. */
tsr_status tsr_box_sets_equal(const tsr_allocator *allocator, const tsr_entry *a, const tsr_entry *b, bool *equal,
                              tsr_error *err);

#endif
