/* Checks whether tensors that a map declares to be copies are equal. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_EQUAL_H
#define TSR_FORMATS_SHARDS_SHARDS_EQUAL_H

#include "formats/common/reader.h"

typedef struct tsr_shards_equality {
    tsr_checkpoint *checkpoint;
    /* How many bytes may still be read: many views of one storage must not cost more than a few times the files' bytes. */
    uint64_t bytes_left;
} tsr_shards_equality;

tsr_shards_equality tsr_shards_equality_of(tsr_checkpoint *checkpoint);
/* Whether two chunks have the same elements. They must have equal sizes and belong to tensors of `entry`'s dtype and ndim.
 * Uses the CRC-32s stated in the files, otherwise compares the bytes. Fails with TSR_E_LIMIT if that would read too much, or
 * if reading fails. */
tsr_status tsr_shards_equal_chunks(tsr_shards_equality *equality, const tsr_entry *entry, const tsr_chunk *a,
                                   const tsr_chunk *b, bool *same, tsr_error *err);
/* Whether two dense tensors have the same dtype, shape and elements. */
tsr_status tsr_shards_equal(tsr_shards_equality *equality, const tsr_entry *a, const tsr_entry *b, bool *same,
                            tsr_error *err);

#endif
