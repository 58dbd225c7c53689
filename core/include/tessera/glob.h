/* Choosing and changing names: GLOB patterns over whole FQNs, and renames.
 *
 *   *      any run of characters within one dotted component, perhaps none
 *   **     any run of characters, dots included
 *   ?      one character (a UTF-8 code point) other than a dot
 *   [abx-z] one of these, never a dot; [!…] or [^…]: none of these; "]" first is itself; [*] [?] [[] are the literals
 *
 * A backslash is ordinary, and so is a "[" that is never closed. All functions here are pure and thread-safe.
 *
 * Example:
 *
 *     tsr_rename rename;
 *     tsr_str name;
 *     status = tsr_rename_parse(TSR_STR("model.=encoder."), &rename, &err);
 *     if (status == TSR_OK) status = tsr_rename_apply(&rename, 1, TSR_STR("model.fc.weight"), arena, &name, &err);
 *     if (status == TSR_OK && tsr_glob_match(TSR_STR("encoder.*.weight"), name)) printf("%.*s\n", TSR_STR_ARG(name)); */
#ifndef TESSERA_GLOB_H
#define TESSERA_GLOB_H

#include "tessera/memory.h"

TSR_API_BEGIN

/* Whether the pattern matches the whole of `name`. Iterative; no pattern takes more than the square
 * of the name times the length of the pattern. */
bool tsr_glob_match(tsr_str pattern, tsr_str name);

/* --rename FROM=TO. Without "*", FROM is a literal prefix of the name that TO replaces (an empty FROM: TO comes before
 * every name). With one "*" in each, FROM is the whole name and what its "*" stood for (dots included) goes where TO has
 * its own. */
typedef struct tsr_rename {
    tsr_str from_head, from_tail; /* around the "*"; without one the tail is unused */
    tsr_str to_head, to_tail;
    bool starred;
} tsr_rename;

/* Splits at the first "="; the parts borrow `text`. TSR_E_USAGE when there is no "=", or the stars do not
 * pair up. */
tsr_status tsr_rename_parse(tsr_str text, tsr_rename *out, tsr_error *err);

/* The name after the first rename that fits it, in the arena; the name itself (borrowed) when none does. Several names
 * may end up equal: the caller looks for collisions. Errors: TSR_E_NOMEM. */
tsr_status tsr_rename_apply(const tsr_rename *renames, size_t count, tsr_str name, tsr_arena *arena, tsr_str *out,
                            tsr_error *err);

TSR_API_END

#endif
