/* Names of files with which a checkpoint is found in a directory of a server that cannot list it. Each framework writes some
 * files under fixed names; the others follow from the contents of these. */
#ifndef TSR_IO_REMOTE_NAMES_H
#define TSR_IO_REMOTE_NAMES_H

#include "tessera/memory.h"

/* Files that most checkpoints have, to be requested one after the other. Ends with NULL. */
extern const char *const tsr_remote_first[];
/* Whether a file of tsr_remote_first may belong to a checkpoint of the Trainer. */
bool tsr_remote_is_model(const char *name);
/* Files that the Trainer and accelerate write next to a model. Ends with NULL. */
extern const char *const tsr_remote_of_trainer[];
/* The same next to an adapter, without what tsr_remote_other has. */
extern const char *const tsr_remote_of_adapter[];
/* Files to request, all together, if there are none of tsr_remote_first. Ends with NULL. */
extern const char *const tsr_remote_other[];
/* An adapter of PEFT, which the Trainer saves in the model's place. Asked for last. */
extern const char *const tsr_remote_adapters[];

enum { TSR_REMOTE_MARKED = 8, TSR_REMOTE_MARKER_SIZE = 255 };
/* Those files of tsr_remote_other that name the directory of the newest checkpoint, in order of precedence. Ends with
 * NULL. */
extern const char *const tsr_remote_markers[];
/* Lists the files to request for the checkpoint that a marker with these bytes names. *count is 0 if the bytes name no
 * directory. Errors: TSR_E_NOMEM. */
tsr_status tsr_remote_marked(tsr_str bytes, tsr_arena *arena, tsr_str out[TSR_REMOTE_MARKED], size_t *count, tsr_error *err);

#endif
