/* Boxes of a checkpoint's tensors, read straight into them where they are one run of host memory. */
#ifndef TSR_STATEDICT_PIECE_READS_H
#define TSR_STATEDICT_PIECE_READS_H

#include "statedict/saveload/halves.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

typedef struct tsr_piece_reader {
    const tsr_host *host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_halves halves; /* of the buffer, which what is not one run of host memory passes through */
} tsr_piece_reader;

/* Opens the checkpoint at `path`. `buffer_bytes` 0: 16 MiB. Borrows `host` until close, which is called after a failure,
 * too. Errors: those of opening a checkpoint. */
tsr_status tsr_piece_reader_open(tsr_piece_reader *reader, const char *path, size_t buffer_bytes, const tsr_host *host,
                                 tsr_error *err);
/* All copies are done, and the files are those that were opened. */
tsr_status tsr_piece_reader_end(tsr_piece_reader *reader, tsr_error *err);
void tsr_piece_reader_close(tsr_piece_reader *reader); /* takes a zeroed one */

/* Reads the box of `piece`, in the offsets of `entry`, into its memory. Copies to a device may be under way until
 * tsr_piece_reader_end. Errors as tsr_read_box. */
tsr_status tsr_piece_read(tsr_piece_reader *reader, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                          tsr_error *err);

#endif
