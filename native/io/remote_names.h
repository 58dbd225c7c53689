/* The files by which a directory on a server that lists nothing is found: what each framework always writes under a fixed name. The
 * others follow from what is in these. */
#ifndef TSR_IO_REMOTE_NAMES_H
#define TSR_IO_REMOTE_NAMES_H

#include "tessera/memory.h"

/* What most checkpoints begin with, to be asked for one after the other. Ends with NULL. */
extern const char *const tsr_remote_first[];
/* Whether a file of tsr_remote_first may be a part of what the Trainer wrote. */
bool tsr_remote_is_model(const char *name);
/* Files of the Trainer next to a model. Ends with NULL. */
extern const char *const tsr_remote_of_trainer[];
/* Where none of tsr_remote_first is there: to be asked for together. Ends with NULL. */
extern const char *const tsr_remote_other[];

enum { TSR_REMOTE_MARKED = 8, TSR_REMOTE_MARKER_SIZE = 255 };
/* Those of tsr_remote_other that name the directory of the newest checkpoint, in the order in which they count. Ends with NULL. */
extern const char *const tsr_remote_markers[];
/* The files by which the checkpoint is found that a marker with these bytes names. *count may be 0: they name no directory.
 * TSR_E_NOMEM. */
tsr_status tsr_remote_marked(tsr_str bytes, tsr_arena *arena, tsr_str out[TSR_REMOTE_MARKED], size_t *count, tsr_error *err);

#endif
