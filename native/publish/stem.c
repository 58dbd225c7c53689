/* See stem.h. */
#include "publish/stem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *tsr_stem_of(const char *name, char stem[TSR_STEM_SIZE + 1])
{
    enum { HASH_SIZE = 17 }; /* "~" and 16 digits */
    const size_t size = strlen(name);
    size_t kept = size <= TSR_STEM_SIZE ? size : TSR_STEM_SIZE - HASH_SIZE;
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3;
    /* Do not cut a UTF-8 character: some file systems reject that. */
    while (kept < size && ((uint8_t)name[kept] & 0xc0) == 0x80) kept--;
    memcpy(stem, name, kept);
    stem[kept] = '\0';
    if (kept < size) snprintf(stem + kept, TSR_STEM_SIZE + 1 - kept, "~%016" PRIx64, hash);
    return stem;
}
