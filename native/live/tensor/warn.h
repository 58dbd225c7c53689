/* Passes warnings from a call to the calling program. */
#ifndef TSR_STATEDICT_WARN_H
#define TSR_STATEDICT_WARN_H

#include "tessera/memory.h"
#include "tessera/statedict.h"

void tsr_warn(const tsr_warnings *warnings, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

/* Counts names of the same kind, for a single warning about all of them. */
typedef struct tsr_name_tally {
    size_t count;
    tsr_str first; /* borrowed */
} tsr_name_tally;

void tsr_name_tally_add(tsr_name_tally *tally, tsr_str name);
/* Warns "WHAT: 'a' and 2 others". Does nothing if the tally is empty. */
void tsr_name_tally_warn(const tsr_name_tally *tally, const tsr_warnings *warnings, const char *what);

#endif
