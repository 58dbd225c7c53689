/* Reads boxes of tensors, and compares what was read whole with the CRC-32 that the checkpoint states of it.
 *
 *   a chunk of a DCP, a storage of a torch file    has a CRC of its own: compared when all of its elements were read
 *   a safetensors file with tessera.crc32          has one CRC: compared when all of its tensors were read
 *   a part of a chunk, a view with strides, an archive or a file without checksums, a compressed item, values that are computed
 *                                                  have none: not compared
 *
 * The boxes may be read in any order, by several threads, and in several calls.
 *
 * Example:
 *
 *     const uint64_t offsets[] = {0, 0}, sizes[] = {2, 8};
 *     float buffer[2 * 8];
 *     const tsr_box box = {2, offsets, sizes};
 *     tsr_read_check *check = NULL;
 *     status = tsr_read_check_new(checkpoint, 1, &check, &err);
 *     if (status == TSR_OK) status = tsr_read_box_checked(check, 0, entry, box, buffer, sizeof buffer, &err);
 *     if (status == TSR_OK) status = tsr_read_check_end(check, &err);
 *     tsr_read_check_free(check); */
#ifndef TESSERA_SYS_READ_CHECK_H
#define TESSERA_SYS_READ_CHECK_H

#include "tessera/read.h"

TSR_API_BEGIN

typedef struct tsr_read_check tsr_read_check;

/* For `threads` threads. Borrows the checkpoint. Reads the headers of safetensors files that state a checksum. Errors: TSR_E_IO,
 * TSR_E_NOMEM. */
tsr_status tsr_read_check_new(tsr_checkpoint *checkpoint, uint32_t threads, tsr_read_check **out, tsr_error *err);
void tsr_read_check_free(tsr_read_check *check); /* accepts NULL */

/* As tsr_read_box. Calls with the same `thread`, which is less than the number of threads, must not overlap in time. TSR_E_FORMAT, with
 * the name of the entry, if the box holds a whole chunk whose bytes do not have its CRC. */
tsr_status tsr_read_box_checked(tsr_read_check *check, uint32_t thread, const tsr_entry *entry, tsr_box box, void *buffer,
                                size_t buffer_size, tsr_error *err);
/* Compares what became whole by several reads, and forgets it. Not while boxes are being read. TSR_E_FORMAT with the name of the entry or
 * of the safetensors file; TSR_E_IO; TSR_E_NOMEM. */
tsr_status tsr_read_check_end(tsr_read_check *check, tsr_error *err);

TSR_API_END

#endif
