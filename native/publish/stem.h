/* How the names begin that are made for a destination. */
#ifndef TSR_NATIVE_STEM_H
#define TSR_NATIVE_STEM_H

#define TSR_STEM_SIZE 200u

/* The part of a destination's name that temporary names hold: ".STEM.tessera-TAG…". It is the name itself where there is room for
 * what follows; of longer names the beginning, cut between two characters, and a hash of all of it, so that names that begin
 * alike stay apart. Returns `stem`. */
const char *tsr_stem_of(const char *name, char stem[TSR_STEM_SIZE + 1]);

#endif
