/* Finds out whether the source of a copy is complete. */
#ifndef TSR_CLI_WRITING_COPY_COMPLETE_H
#define TSR_CLI_WRITING_COPY_COMPLETE_H

#include "cli/program/cli.h"
#include "tessera/store.h"

/* TSR_E_NOT_FOUND with the names of files that the metadata or index of a checkpoint names and that are missing; TSR_E_UNSUPPORTED for
 * an interrupted save. Examines `source`, which is open as `store`, and every directory listed below it that has a `.metadata` or an
 * index. Warns of those that cannot be opened as checkpoints: they can be copied nevertheless. May change which files the store lists. */
tsr_status cli_copy_check_complete(cli *program, const char *source, tsr_store *store, tsr_error *err);

#endif
