/* Recognizes torch.save files by their first bytes, and what several of them in one directory are. */
#ifndef TSR_FORMATS_TORCH_TORCH_KINDS_H
#define TSR_FORMATS_TORCH_TORCH_KINDS_H

#include "formats/common/reader.h"

/* The name of the first member of a zip archive that begins with these bytes; empty if it is not a zip archive. */
tsr_str tsr_first_member(tsr_str head);
/* The reader for a file of torch.save, of either form, that begins with these bytes; NULL for any other file. */
const tsr_reader *tsr_torch_kind(tsr_str head, uint64_t size);
/* Chooses the reader for a directory whose root has these files of torch.save, unless they are several checkpoints. Only in a
 * directory that is `alone`, without checkpoints below it, can they be a single file, or shards without their index. */
tsr_status tsr_torch_choose(tsr_checkpoint *checkpoint, tsr_numbered_files *files, bool alone, const tsr_reader **reader,
                            tsr_error *err);

#endif
