/* The destination of an output: the directory that holds it, and its name there. */
#ifndef TSR_NATIVE_DESTINATION_H
#define TSR_NATIVE_DESTINATION_H

#include <limits.h>

#include "tessera/status.h"

typedef struct tsr_destination {
    char parent[PATH_MAX];
    char name[NAME_MAX + 1];
} tsr_destination;

/* Splits a path: "a/b/c" and "a/b/c/" are "c" in "a/b". A symbolic link to a directory is resolved, because the directory it
 * points to is replaced: exchanging the link itself would turn it into a directory. A link to a file is itself the
 * destination, as for rename(2). TSR_E_USAGE if the path does not end in a name, and for "-", which means standard output
 * elsewhere. */
tsr_status tsr_destination_of(const char *path, tsr_destination *out, tsr_error *err);

/* The destination as a name in itself, "." in "a/b/c", for files that cannot be made next to it. It must be a directory. */
tsr_status tsr_destination_within(const char *path, tsr_destination *out, tsr_error *err);

/* ---- stems ---- */

/* The part of a destination's name that its temporary names contain. */

#define TSR_STEM_SIZE 200u

/* Makes the stem in temporary names of the form ".STEM.tessera-TAG…". It is the destination's name, if that leaves room for
 * what follows. A longer name is cut off between two characters, and a hash of the whole name is appended, to distinguish
 * names with the same beginning. Returns `stem`. */
const char *tsr_stem_of(const char *name, char stem[TSR_STEM_SIZE + 1]);

#endif
