/* Warnings of a call to its program. */
#ifndef TSR_STATEDICT_WARN_H
#define TSR_STATEDICT_WARN_H

#include "tessera/memory.h"
#include "tessera/statedict.h"

void tsr_warn(const tsr_warnings *warnings, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

/* Names of one kind, which make one warning however many there are. */
typedef struct tsr_name_tally {
    size_t count;
    tsr_str first; /* borrowed */
} tsr_name_tally;

void tsr_name_tally_add(tsr_name_tally *tally, tsr_str name);
/* "WHAT: 'a' and 2 others"; nothing for a tally without names. */
void tsr_name_tally_warn(const tsr_name_tally *tally, const tsr_warnings *warnings, const char *what);

#endif
