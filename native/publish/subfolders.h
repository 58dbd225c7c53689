/* Directories inside an output: files named "a/b/c.pt", which only a new directory can hold, since it appears as a whole. */
#ifndef TSR_PUBLISH_SUBFOLDERS_H
#define TSR_PUBLISH_SUBFOLDERS_H

#include "publish/folder_output.h"

/* Makes the directories that the path of a file names, those that an earlier run made included. Errors: TSR_E_UNSUPPORTED where
 * the destination exists; as making directories. */
tsr_status tsr_output_make_subfolders(folder_output *output, const char *name, tsr_error *err);
/* Whether a name of the output's own directory is one of them. */
bool tsr_output_is_subfolder(const folder_output *output, const char *name);
/* Makes their names durable. */
tsr_status tsr_output_sync_subfolders(const folder_output *output, tsr_error *err);
/* Removes them; what they held is removed before. */
void tsr_output_remove_subfolders(const folder_output *output);

#endif
