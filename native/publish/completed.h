/* Finds out whether a destination already holds what a job would write, so that a finished job can be run again.
 *
 * The job runs as usual, but its output writes nothing: it compares all that the job would write with the files of the
 * destination. Neither names nor sizes nor anything kept next to the output decide this, only the bytes. A job with other
 * options, or with a source of other values, therefore differs. */
#ifndef TSR_NATIVE_COMPLETED_H
#define TSR_NATIVE_COMPLETED_H

#include "tessera/output.h"

/* Opens the output over what is at `path`, a local path or the URL of an object store. As soon as something is found that the
 * job would not write, its functions fail with TSR_E_EXISTS, which names the file. `create` expects a file of the destination
 * with the same size; `write_at` compares bytes. `publish` compares what was not written, which would be zeros, and returns
 * TSR_OK if all of the output is there. Without a marker, a directory must not have further files that hold tensors, because
 * readers would take them for part of the checkpoint; all other files are ignored. Keeps `host` and `path`. Errors:
 * TSR_E_EXISTS also if there is nothing at `path`; those of reading. */
tsr_status tsr_completed_open(const tsr_host *host, const char *path, tsr_output **out, tsr_error *err);
/* How many files were created so far, and their bytes at the destination. */
uint32_t tsr_completed_count(const tsr_output *output, uint64_t *bytes);

#endif
