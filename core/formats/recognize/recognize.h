/* Recognizes the format of a store by content. Names only matter when several files must be told apart, and in messages. */
#ifndef TSR_FORMATS_RECOGNIZE_RECOGNIZE_H
#define TSR_FORMATS_RECOGNIZE_RECOGNIZE_H

#include "formats/common/reader.h"

typedef enum tsr_content {
    TSR_CONTENT_UNKNOWN,
    TSR_CONTENT_SAFETENSORS,
    TSR_CONTENT_TORCH_ZIP,
    TSR_CONTENT_TORCH_LEGACY,
    TSR_CONTENT_JSON,
    TSR_CONTENT_FOREIGN /* recognized as another program's file, which cannot be read */
} tsr_content;

/* The content of a file, judged by its first bytes. For a FOREIGN file, *foreign describes it ("an HDF5 file"). */
tsr_status tsr_content_of(tsr_store *store, uint32_t file, tsr_content *content, const char **foreign, tsr_error *err);

/* Chooses the reader and sets checkpoint->files. If nothing is recognized, fails with TSR_E_UNSUPPORTED and the reason: for
 * a container of another program, its name; for a directory with several checkpoints, their list. */
tsr_status tsr_recognize(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* Recognizes a directory that a training framework wrote, trying the formats in the order of the table. *reader is NULL if
 * it is none of them. Fails only if reading fails. */
tsr_status tsr_form_of_directory(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);

/* steps.c: sets checkpoint->store to the directory that options.step, or a marker file in the root, chooses. Does nothing if
 * there is nothing to choose. Fails as described at tsr_open_options.step, or if reading fails. */
tsr_status tsr_enter_step(tsr_checkpoint *checkpoint, tsr_error *err);

/* part.c: keeps only the entries of options.part in the catalog, and removes the part's name from theirs. */
tsr_status tsr_keep_part(tsr_checkpoint *checkpoint, tsr_error *err);

#endif
