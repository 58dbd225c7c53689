/* A checksum at the end of a file, in white space: for JSON documents and pickles, whose readers ignore what follows the document, and
 * which have no place for a key that those readers do not know.
 *
 *   {"sharded_backend": "torch_dist", …}␠␉␉␠␠␉…↵     32 pairs, for the bits of a CRC-32 from the highest one on: ␠␉ is 0, ␉␠ is 1
 *
 * The CRC is that of all bytes before it. A program that writes the document again does not write this, and padding is not made of such
 * pairs. None of these bytes is an opcode of a pickle.
 *
 * Example:
 *
 *     tsr_vec document = tsr_vec_of(host->allocator, 1);
 *     status = tsr_vec_append(&document, "{}", 2, &err);
 *     if (status == TSR_OK) status = tsr_end_sum_append(&document, host, &err); */
#ifndef TESSERA_SYS_END_SUM_H
#define TESSERA_SYS_END_SUM_H

#include "tessera/host.h"
#include "tessera/sys/containers.h"

TSR_API_BEGIN

enum { TSR_END_SUM_SIZE = 65 };

/* Appends the checksum of the bytes in `text`. `host` may be NULL. */
tsr_status tsr_end_sum_append(tsr_vec *text, const tsr_host *host, tsr_error *err);

TSR_API_END

#endif
