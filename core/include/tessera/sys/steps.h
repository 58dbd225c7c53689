/* The directory of one step as a store, for what reads files of a step that need not be a whole checkpoint. (core/formats/recognize)
 *
 * Example:
 *
 *     tsr_checkpoint *step;
 *     status = tsr_step_open(store, host, TSR_STR("1000"), &step, &err);
 *     if (status == TSR_OK) printf("%u files\n", (unsigned)tsr_checkpoint_store(step)->file_count);
 *     tsr_checkpoint_close(step); */
#ifndef TESSERA_SYS_STEPS_H
#define TESSERA_SYS_STEPS_H

#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint_files.h"

TSR_API_BEGIN

/* Chooses a directory below `store` by `step` (see tsr_open_options.step), or, if that is not given (NULL data), by a
 * `latest` file; without either, the store itself. Interrupted saves can also be chosen. Nothing of the checkpoint is read:
 * the result has no entries, and tsr_checkpoint_store gives the files. Borrows `store` and `host` until
 * tsr_checkpoint_close. Errors: those of tsr_open_options.step. */
tsr_status tsr_step_open(tsr_store *store, const tsr_host *host, tsr_str step, tsr_checkpoint **out, tsr_error *err);

TSR_API_END

#endif
