/* A checksum at the end of a file, in white space: for JSON documents and pickles, whose readers ignore what follows the document, and
 * which have no place for a key that those readers do not know.
 *
 *   {"sharded_backend": "torch_dist", …}␠␉␉␠␠␉…↵     32 pairs, for the bits of a CRC-32 from the highest one on: ␠␉ is 0, ␉␠ is 1
 *
 * The CRC is that of all bytes before it. A program that writes the document again does not write this, and padding is not made of such
 * pairs. None of these bytes is an opcode of a pickle. */
#ifndef TSR_FORMATS_COMMON_END_SUM_H
#define TSR_FORMATS_COMMON_END_SUM_H

#include "formats/common/reader.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/vec.h"

enum { TSR_END_SUM_SIZE = 65 };

/* Appends the checksum of the bytes in `text`. */
tsr_status tsr_end_sum_append(tsr_vec *text, const tsr_host *host, tsr_error *err);
/* Whether these bytes are a checksum, a damaged one too: one that differs in a single byte. */
bool tsr_end_sum_is(tsr_str bytes);
/* Passes on the bytes before the checksum as an extent with their CRC, if there is one; a damaged one is passed on so that it differs.
 * For TSR_NO_FILE does nothing. */
tsr_status tsr_end_sum_extent(tsr_store *store, uint32_t file,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err);

#endif
