/* Which format a store holds, from content. Names help only where several files must be told apart, and in messages. */
#ifndef TSR_FORMATS_RECOGNIZE_RECOGNIZE_H
#define TSR_FORMATS_RECOGNIZE_RECOGNIZE_H

#include "formats/common/reader.h"

typedef enum tsr_content {
    TSR_CONTENT_UNKNOWN,
    TSR_CONTENT_SAFETENSORS,
    TSR_CONTENT_TORCH_ZIP,
    TSR_CONTENT_TORCH_LEGACY,
    TSR_CONTENT_JSON,
    TSR_CONTENT_FOREIGN /* known by name, and not read */
} tsr_content;

/* What one file holds, from its first bytes. *foreign names a FOREIGN file's kind ("an HDF5 file"). */
tsr_status tsr_content_of(tsr_store *store, uint32_t file, tsr_content *content, const char **foreign, tsr_error *err);

/* Chooses the reader and sets checkpoint->files. What is not recognized is TSR_E_UNSUPPORTED with the reason: a container
 * of another program by its name, a folder of several checkpoints with their list. */
tsr_status tsr_recognize(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* The form of a directory that a training framework writes, tried in the order of the table; NULL in *reader: none of them.
 * Errors: those of reading. */
tsr_status tsr_form_of_directory(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* steps.c: makes checkpoint->store the directory that options.step, or a file in the root, chooses; unchanged where there is
 * nothing to choose. Errors: those of tsr_open_options.step, and of reading. */
tsr_status tsr_enter_step(tsr_checkpoint *checkpoint, tsr_error *err);
void tsr_leave_steps(tsr_checkpoint *checkpoint);

/* part.c: leaves only the entries of options.part in the catalog, without its name. */
tsr_status tsr_keep_part(tsr_checkpoint *checkpoint, tsr_error *err);

#endif
