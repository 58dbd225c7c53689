/* See name_list.h. */
#include "formats/common/name_list.h"

#include <string.h>

static void append(tsr_name_list *list, const char *text, size_t size)
{
    memcpy(list->text + list->used, text, size);
    list->used += size;
    list->text[list->used] = '\0';
}

void tsr_name_list_add(tsr_name_list *list, tsr_str name)
{
    const size_t most = TSR_NAMES_BYTES / 2, size = name.size < most ? name.size : most;
    /* Nothing is shown after the first name that did not fit: the list is the first names, in order. */
    const bool full = list->shown == TSR_NAMES_SHOWN || list->shown < list->count || list->used + size + 4 > TSR_NAMES_BYTES;
    list->count++;
    if (full) return;
    append(list, ", '", list->used ? 3 : 0);
    if (list->shown++ == 0) append(list, "'", 1);
    if (size) append(list, name.data, size);
    append(list, "'", 1);
}

const char *tsr_name_list_rest(const tsr_name_list *list)
{
    return list->shown < list->count ? ", …" : "";
}
