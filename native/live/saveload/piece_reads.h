/* Reads boxes of a checkpoint's tensors, directly into their memory if that is contiguous host memory. */
#ifndef TSR_STATEDICT_PIECE_READS_H
#define TSR_STATEDICT_PIECE_READS_H

#include "live/saveload/halves.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

typedef struct tsr_piece_reader {
    const tsr_host *host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_halves halves; /* the buffer for all other memory */
} tsr_piece_reader;

/* Opens the checkpoint at `path`. `buffer_bytes` 0: 16 MiB. Borrows `host` until close, which must also be called after a
 * failure. Errors: those of opening a checkpoint. */
tsr_status tsr_piece_reader_open(tsr_piece_reader *reader, const char *path, size_t buffer_bytes, const tsr_host *host,
                                 tsr_error *err);
/* Waits for all copies, and checks that the files have not changed since they were opened. */
tsr_status tsr_piece_reader_end(tsr_piece_reader *reader, tsr_error *err);
void tsr_piece_reader_close(tsr_piece_reader *reader); /* accepts a zeroed one */

/* Reads the box of `piece`, whose offsets are those in `entry`, into the piece's memory. Copies to a device may be in
 * progress until tsr_piece_reader_end. Errors: as tsr_read_box. */
tsr_status tsr_piece_read(tsr_piece_reader *reader, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                          tsr_error *err);

#endif
