/* Names of files in a directory: the numbers in them, and which of them are there. */
#ifndef TSR_FORMATS_COMMON_FILE_NAMES_H
#define TSR_FORMATS_COMMON_FILE_NAMES_H

#include "formats/common/reader.h"

/* The part of a path after its last slash. */
tsr_str tsr_last_path_part(tsr_str path);
/* Whether a text contains `part`, which is not empty. */
bool tsr_name_holds(tsr_str text, tsr_str part);
/* Whether the path has two directories or more. */
bool tsr_is_deeper(tsr_str path);

#define TSR_NO_NUMBER UINT64_MAX
/* The decimal number that [from, to) of a name consists of; TSR_NO_NUMBER if it is not a number, or has more than 18 digits. */
uint64_t tsr_number_between(tsr_str name, size_t from, size_t to);
/* The number of at most nine digits between `before` and `after`, which are all the rest of the name; otherwise TSR_NO_NUMBER. */
uint64_t tsr_number_in(tsr_str name, tsr_str before, tsr_str after);
/* Lists the files in the root that have such names, sorted by their numbers. */
tsr_status tsr_list_numbered(tsr_checkpoint *checkpoint, tsr_str before, tsr_str after, tsr_numbered_files *out,
                             tsr_error *err);
/* Sorts by numbers, and files with the same number as the store does. */
void tsr_sort_numbered(tsr_numbered_files *files);
/* Makes these files, in this order, checkpoint->files. */
tsr_status tsr_choose_files(tsr_checkpoint *checkpoint, const tsr_numbered_file *files, uint32_t count, tsr_error *err);

bool tsr_has_file(const tsr_store *store, const char *name);
/* Whether there are files below a directory of the root. */
bool tsr_has_directory(const tsr_store *store, const char *name);
/* Whether the root has a file with one of the names, which end with NULL. In a name, '*' stands for a number. */
bool tsr_has_any(const tsr_store *store, const char *const *names);

#endif
