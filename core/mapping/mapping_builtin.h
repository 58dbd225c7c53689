/* The table of built-in maps, which the build generates from the documents in core/mapping/builtin. */
#ifndef TSR_MAPPING_MAPPING_BUILTIN_H
#define TSR_MAPPING_MAPPING_BUILTIN_H

#include <stddef.h>

extern const struct tsr_builtin_map {
    const char *name;
    const unsigned char *text;
    size_t size;
} tsr_builtin_maps[];
extern const size_t tsr_builtin_map_count;

#endif
