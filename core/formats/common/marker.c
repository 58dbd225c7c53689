/* See marker.h. */
#include "formats/common/marker.h"

#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"

enum { MOST_MARKED = 255 }; /* bytes of a file name */

tsr_status tsr_marker_read(tsr_checkpoint *checkpoint, uint32_t file, tsr_str *line, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    char text[MOST_MARKED];
    const uint64_t size = store->files[file].size;
    *line = (tsr_str){NULL, 0};
    if (size == 0 || size > sizeof text) return TSR_OK;
    TSR_TRY(tsr_store_read(store, file, 0, text, (size_t)size, err));
    size_t used = (size_t)size;
    while (used && (text[used - 1] == '\n' || text[used - 1] == '\r' || text[used - 1] == ' ')) used--;
    for (size_t i = 0; i < used; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == '/') return TSR_OK;
    *line = tsr_arena_str(checkpoint->arena, (tsr_str){text, used}, err);
    return line->data ? TSR_OK : TSR_E_NOMEM;
}
