/* The part of a destination's name that its temporary names contain. */
#ifndef TSR_NATIVE_STEM_H
#define TSR_NATIVE_STEM_H

#define TSR_STEM_SIZE 200u

/* Makes the stem in temporary names of the form ".STEM.tessera-TAG…". It is the destination's name, if that leaves room for
 * what follows. A longer name is cut off between two characters, and a hash of the whole name is appended, to distinguish
 * names with the same beginning. Returns `stem`. */
const char *tsr_stem_of(const char *name, char stem[TSR_STEM_SIZE + 1]);

#endif
