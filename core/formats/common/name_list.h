/* The first of many names as text for one message: "'a', 'b', 'c', …". */
#ifndef TSR_FORMATS_COMMON_NAME_LIST_H
#define TSR_FORMATS_COMMON_NAME_LIST_H

#include "tessera/str.h"

enum { TSR_NAMES_SHOWN = 8, TSR_NAMES_BYTES = 400 };

typedef struct tsr_name_list {
    char text[TSR_NAMES_BYTES + 8]; /* NUL-terminated */
    size_t used;
    uint64_t shown, count;
} tsr_name_list;

/* Counts a name, and shows it if there is room. Starts from a zeroed list. */
void tsr_name_list_add(tsr_name_list *list, tsr_str name);
/* ", …" when names were left out, otherwise nothing. */
const char *tsr_name_list_rest(const tsr_name_list *list);

#endif
