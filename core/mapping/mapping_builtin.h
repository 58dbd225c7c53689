/* The built-in maps, which the build makes from the documents in core/mapping/builtin. */
#ifndef TSR_MAPPING_MAPPING_BUILTIN_H
#define TSR_MAPPING_MAPPING_BUILTIN_H

#include <stddef.h>

extern const struct tsr_builtin_document {
    const unsigned char *text;
    size_t size;
} tsr_builtin_documents[];
/* The names in alphabetical order, each with a NUL after it, and an empty one at the end. A document may have several: these
 * bytes are a large part of a small WebAssembly module, so there is no pointer for each. */
extern const char tsr_builtin_names[];
extern const unsigned char tsr_builtin_numbers[]; /* for each name, the number of its document */

#endif
