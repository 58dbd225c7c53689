/* Whether a class or function that a pickle names exists: Python's loader raises where it does not. */
#ifndef TSR_FORMATS_PICKLE_KNOWN_NAMES_H
#define TSR_FORMATS_PICKLE_KNOWN_NAMES_H

#include "tessera/str.h"

typedef enum tsr_name_state {
    TSR_NAME_EXISTS,
    TSR_NAME_MISSING,   /* the module is known, and has no such name */
    TSR_NAME_UNCHECKED, /* of PyTorch or numpy, in a module that is not known */
    TSR_NAME_FOREIGN    /* of another package, about which nothing is known */
} tsr_name_state;

/* Knows PyTorch 2.13, numpy 1.26 and 2.4, and Python, in the modules that checkpoints name. Of the names that do not
 * exist, it takes about one in 1,000 for an existing one (tests/golden/make_known_names.py). */
tsr_name_state tsr_name_state_of(tsr_str module, tsr_str name);

#endif
