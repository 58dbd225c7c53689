/* Subdirectories of an output, for files named "a/b/c.pt". Only a directory that is made can have them. */
#ifndef TSR_PUBLISH_SUBFOLDERS_H
#define TSR_PUBLISH_SUBFOLDERS_H

#include "publish/folder_output.h"

/* Creates the directories in the path of a file; those that an earlier run created are accepted. Errors: TSR_E_UNSUPPORTED
 * if the destination exists, except with TSR_EXISTING_EITHER, and those of making directories. */
tsr_status tsr_output_make_subfolders(folder_output *output, const char *name, tsr_error *err);
/* Whether a name in the output's directory is one of these directories. */
bool tsr_output_is_subfolder(const folder_output *output, const char *name);
/* Syncs them as subdirectories of `folder`, which makes the names in them durable. */
tsr_status tsr_output_sync_subfolders(const folder_output *output, int folder, tsr_error *err);
/* Makes the same ones in another directory, except those that it has. */
tsr_status tsr_output_copy_subfolders(const folder_output *output, int folder, tsr_error *err);
/* Removes them. Their files must have been removed before. */
void tsr_output_remove_subfolders(const folder_output *output);

#endif
