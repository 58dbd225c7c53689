/* Where an output goes: a directory that holds the destination, and its name in it. */
#ifndef TSR_NATIVE_DESTINATION_H
#define TSR_NATIVE_DESTINATION_H

#include <limits.h>

#include "tessera/status.h"

typedef struct tsr_destination {
    char parent[PATH_MAX];
    char name[NAME_MAX + 1];
} tsr_destination;

/* "a/b/c" and "a/b/c/" are "c" in "a/b". A symbolic link to a directory stands for that directory, which is replaced where it
 * is: exchanging the link would turn it into a directory. A link to a file is itself the destination, as for rename(2).
 * TSR_E_USAGE where the path ends in no name. */
tsr_status tsr_destination_of(const char *path, tsr_destination *out, tsr_error *err);

#endif
