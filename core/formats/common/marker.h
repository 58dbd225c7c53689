/* The marker files of training frameworks, such as DeepSpeed's `latest`: one line that names the newest checkpoint. */
#ifndef TSR_FORMATS_COMMON_MARKER_H
#define TSR_FORMATS_COMMON_MARKER_H

#include "formats/common/reader.h"

/* Reads a small file that has only one line, if that line may name a directory; otherwise *line is empty. The line is allocated in
 * the checkpoint's arena. Errors: those of reading, TSR_E_NOMEM. */
tsr_status tsr_marker_read(tsr_checkpoint *checkpoint, uint32_t file, tsr_str *line, tsr_error *err);

#endif
