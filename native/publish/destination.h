/* The destination of an output: the directory that holds it, and its name there. */
#ifndef TSR_NATIVE_DESTINATION_H
#define TSR_NATIVE_DESTINATION_H

#include "tessera/output.h"
#include "tessera/status.h"

#include <limits.h>

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

/* Finds out whether a destination already holds what a job would write, so that a finished job can be run again.
 *
 * The job runs as usual, but its output writes nothing: it compares all that the job would write with the files of the
 * destination. Neither names nor sizes nor anything kept next to the output decide this, only the bytes. A job with other
 * options, or with a source of other values, therefore differs. */

/* Opens the output over what is at `path`, a local path or the URL of an object store. As soon as something is found that the
 * job would not write, its functions fail with TSR_E_EXISTS, which names the file. `create` expects a file of the destination
 * with the same size; `write_at` compares bytes. `publish` compares what was not written, which would be zeros, and returns
 * TSR_OK if all of the output is there. Without a marker, a directory must not have further files that hold tensors, because
 * readers would take them for part of the checkpoint; all other files are ignored. Keeps `host` and `path`. Errors:
 * TSR_E_EXISTS also if there is nothing at `path`; those of reading. */
tsr_status tsr_completed_open(const tsr_host *host, const char *path, tsr_output **out, tsr_error *err);
/* How many files were created so far, and their bytes at the destination. */
uint32_t tsr_completed_count(const tsr_output *output, uint64_t *bytes);

#endif
