/* The first of many names, formatted for a message: "'a', 'b', 'c', …". */
#ifndef TSR_FORMATS_COMMON_SHOWN_NAMES_H
#define TSR_FORMATS_COMMON_SHOWN_NAMES_H

#include "tessera/str.h"

enum { TSR_NAMES_SHOWN = 8, TSR_NAMES_BYTES = 400 };

typedef struct tsr_shown_names {
    char text[TSR_NAMES_BYTES + 8]; /* NUL-terminated */
    size_t used;
    uint64_t shown, count;
} tsr_shown_names;

/* Counts a name, and appends it if there is room. The list must be zeroed before the first call. */
void tsr_shown_names_add(tsr_shown_names *list, tsr_str name);
/* ", …" when names were left out, otherwise nothing. */
const char *tsr_shown_names_rest(const tsr_shown_names *list);

#endif
