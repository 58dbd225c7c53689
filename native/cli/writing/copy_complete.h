/* Finds out whether the source of a copy has all files that its checkpoint names. */
#ifndef TSR_CLI_WRITING_COPY_COMPLETE_H
#define TSR_CLI_WRITING_COPY_COMPLETE_H

#include "tessera/host.h"
#include "tessera/store.h"

/* TSR_E_NOT_FOUND with the names of files that the metadata or index of the checkpoint names and the store does not list. If the
 * directory is not a checkpoint, the checkpoints directly below it are examined. What cannot be opened as a checkpoint passes: it
 * can be copied nevertheless. May change which files the store lists. */
tsr_status cli_copy_check_complete(const tsr_host *host, tsr_store *store, tsr_error *err);

#endif
