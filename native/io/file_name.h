/* Names of files below a destination, as they come from checkpoints and from keys of object stores. */
#ifndef TSR_IO_FILE_NAME_H
#define TSR_IO_FILE_NAME_H

#include "tessera/str.h"

/* Whether a name leads to a file below the directory that it is relative to: components between slashes, of 1 to `longest` bytes
 * each, none of them "." or "..", and no NUL. */
bool tsr_is_name_below(tsr_str name, size_t longest);

#endif
