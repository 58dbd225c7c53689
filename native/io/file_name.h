/* Checks names of files below a destination, which come from checkpoints and from keys of object stores. */
#ifndef TSR_IO_FILE_NAME_H
#define TSR_IO_FILE_NAME_H

#include "tessera/str.h"

/* Whether a relative name leads to a file below its directory: it must consist of components of 1 to `longest` bytes,
 * separated by slashes, none of which is "." or "..", and must not contain NUL. */
bool tsr_is_name_below(tsr_str name, size_t longest);

#endif
