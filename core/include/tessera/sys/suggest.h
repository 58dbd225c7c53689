/* Suggests the word that a user most likely meant instead of an unknown one.
 *
 * Example:
 *
 *     const char *const levels[] = {"error", "warning", "note", NULL};
 *     const char *meant = tsr_suggest("eror", levels, sizeof *levels);
 *     if (meant) printf("did you mean %s?\n", meant); */
#ifndef TESSERA_SYS_SUGGEST_H
#define TESSERA_SYS_SUGGEST_H

#include "tessera/str.h"

TSR_API_BEGIN

/* The word that `wrong` most likely meant, by edit distance, or NULL where none is near. `words` points to the first of
 * NULL-terminated `const char *`, `step` bytes apart: an array of them, or of structs that begin with one. */
const char *tsr_suggest(const char *wrong, const void *words, size_t step);

TSR_API_END

#endif
