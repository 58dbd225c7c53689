/* Recognizes what wrote a directory by the names of its files. Only names in the directory and directly below it count,
 * because only some stores list deeper ones. */
#ifndef TSR_FORMATS_RECOGNIZE_DIRECTORY_NAMES_H
#define TSR_FORMATS_RECOGNIZE_DIRECTORY_NAMES_H

#include "tessera/store.h"

/* The part of a path after its last slash. */
tsr_str tsr_last_path_part(tsr_str path);
/* Whether a text contains `part`, which is not empty. */
bool tsr_name_holds(tsr_str text, tsr_str part);
/* Whether the path has two directories or more. */
bool tsr_is_deeper(tsr_str path);

bool tsr_has_deepspeed_files(const tsr_store *store);
/* Whether the directory contains files of a training framework, several of which make up one checkpoint. Then a torch.save
 * file next to their directories is not the checkpoint. */
bool tsr_has_training_files(const tsr_store *store);
/* Whether a directory below contains a DCP. */
bool tsr_has_dcp_below(const tsr_store *store);

#endif
