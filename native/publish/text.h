/* Helpers for building and parsing text line by line. */
#ifndef TSR_PUBLISH_TEXT_H
#define TSR_PUBLISH_TEXT_H

#include <string.h>

#include "tessera/memory.h"
#include "tessera/sys/containers.h"

static inline tsr_status tsr_text_add(tsr_vec *text, tsr_str part, tsr_error *err)
{
    return tsr_vec_append(text, part.data, part.size, err);
}

/* Whether a line begins with a key. *value is the rest of the line. */
static inline bool tsr_text_has_key(tsr_str line, tsr_str key, tsr_str *value)
{
    if (!tsr_str_starts(line, key)) return false;
    *value = tsr_str_after(line, key.size);
    return true;
}

#endif
