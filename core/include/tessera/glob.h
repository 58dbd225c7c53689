/* Choosing names: GLOB patterns over whole FQNs.
 *
 *   *      any run of characters within one dotted component, perhaps none
 *   **     any run of characters, dots included
 *   ?      one character (a UTF-8 code point) other than a dot
 *   [abx-z] one of these, never a dot; [!…] or [^…]: none of these; "]" first is itself; [*] [?] [[] are the literals
 *
 * A backslash is ordinary, and so is a "[" that is never closed. Pure and thread-safe.
 *
 * Example:
 *
 *     if (tsr_glob_match(TSR_STR("encoder.*.weight"), entry->fqn)) printf("%.*s\n", TSR_STR_ARG(entry->fqn)); */
#ifndef TESSERA_GLOB_H
#define TESSERA_GLOB_H

#include "tessera/str.h"

TSR_API_BEGIN

/* Whether the pattern matches the whole of `name`. Iterative; the time is at most the square of the name's length times the
 * length of the pattern. */
bool tsr_glob_match(tsr_str pattern, tsr_str name);

TSR_API_END

#endif
