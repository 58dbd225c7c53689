/* Whether tensors that a map calls copies of each other are. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_EQUAL_H
#define TSR_FORMATS_SHARDS_SHARDS_EQUAL_H

#include "formats/common/reader.h"

typedef struct tsr_shards_equality {
    tsr_checkpoint *checkpoint;
    uint64_t bytes_left; /* that may still be read: many views of one storage must not cost more than a few times the files' bytes */
} tsr_shards_equality;

tsr_shards_equality tsr_shards_equality_of(tsr_checkpoint *checkpoint);
/* Whether two chunks of equal sizes, of tensors of `entry`'s dtype and number of dims, have the same elements: by the CRC-32s
 * that the files state, otherwise by the bytes. TSR_E_LIMIT when that would read too much; errors of reading. */
tsr_status tsr_shards_equal_chunks(tsr_shards_equality *equality, const tsr_entry *entry, const tsr_chunk *a, const tsr_chunk *b,
                                   bool *same, tsr_error *err);
/* Whether two dense tensors have the same dtype, shape and elements. */
tsr_status tsr_shards_equal(tsr_shards_equality *equality, const tsr_entry *a, const tsr_entry *b, bool *same, tsr_error *err);

#endif
