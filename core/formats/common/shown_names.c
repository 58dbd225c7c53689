/* See shown_names.h. */
#include "formats/common/shown_names.h"

#include <string.h>

static void append(tsr_shown_names *list, const char *text, size_t size)
{
    memcpy(list->text + list->used, text, size);
    list->used += size;
    list->text[list->used] = '\0';
}

void tsr_shown_names_add(tsr_shown_names *list, tsr_str name)
{
    const size_t most = TSR_NAMES_BYTES / 2, size = name.size < most ? name.size : most;
    /* Once a name did not fit, no later one is shown, so that the list is always the first names in order. */
    const bool full = list->shown == TSR_NAMES_SHOWN || list->shown < list->count || list->used + size + 4 > TSR_NAMES_BYTES;
    list->count++;
    if (full) return;
    append(list, ", '", list->used ? 3 : 0);
    if (list->shown++ == 0) append(list, "'", 1);
    if (size) append(list, name.data, size);
    append(list, "'", 1);
}

const char *tsr_shown_names_rest(const tsr_shown_names *list)
{
    return list->shown < list->count ? ", …" : "";
}
