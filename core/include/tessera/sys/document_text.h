/* Pieces of documents as the command line and the page print them too.
 *
 * Example:
 *
 *     float one = 1;
 *     char shown[64];
 *     printf("%s\n", tsr_element_text(TSR_FLOAT32, (const uint8_t *)&one, shown, sizeof shown)); */
#ifndef TESSERA_SYS_DOCUMENT_TEXT_H
#define TESSERA_SYS_DOCUMENT_TEXT_H

#include "tessera/dtype.h"

TSR_API_BEGIN

/* One element of a tensor as text: integers exactly, floats in the fewest digits that read back as the same float32 (or
 * float64), bool as true and false, complex as (re+imj), anything else as its bytes in hex. `element` has the bytes of one
 * element, little-endian. Returns `out`; 64 bytes suffice. */
const char *tsr_element_text(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity);

TSR_API_END

#endif
