/* Containers that other programs write, and that would be refused without their name, or would open as something that they
 * are not. The texts end a message: "FILE is …", "the directory is …". To add a form, add a row to a table of foreign.c. */
#ifndef TSR_FORMATS_RECOGNIZE_FOREIGN_H
#define TSR_FORMATS_RECOGNIZE_FOREIGN_H

#include <cjson/cJSON.h>

#include "formats/common/reader.h"

/* Decides by the names of files, once nothing in the directory could be opened. NULL if no form is recognized. */
const char *tsr_foreign_directory(const tsr_store *store);
/* What a file in the root marks the directory as, whatever else is in it; *what is NULL if there is no such file. Such a
 * directory may hold files that could be opened, but they are not the model. Fails only if reading fails. */
tsr_status tsr_foreign_form(tsr_checkpoint *checkpoint, const char **what, tsr_error *err);
/* What an index is if its files do not hold the tensors that it names, or NULL. */
const char *tsr_foreign_index(const cJSON *index);
/* Reads the beginning of a safetensors header. *foreign is NULL, or what the file is if its tensors are not those of a model,
 * although the format is right. */
tsr_status tsr_foreign_safetensors(tsr_store *store, uint32_t file, const tsr_host *host, const char **foreign,
                                   tsr_error *err);

#endif
