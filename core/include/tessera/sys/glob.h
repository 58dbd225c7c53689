/* Renames as `convert --rename FROM=TO` takes them. Programs give tsr_convert a function of their own (tsr_convert_options.rename).
 * All functions here are pure and thread-safe.
 *
 * Example:
 *
 *     tsr_rename rename;
 *     tsr_str name;
 *     status = tsr_rename_parse(TSR_STR("model.=encoder."), &rename, &err);
 *     if (status == TSR_OK) status = tsr_rename_apply(&rename, 1, TSR_STR("model.fc.weight"), arena, &name, &err);
 *     if (status == TSR_OK) printf("%.*s\n", TSR_STR_ARG(name)); */
#ifndef TESSERA_SYS_GLOB_H
#define TESSERA_SYS_GLOB_H

#include "tessera/glob.h"
#include "tessera/memory.h"

TSR_API_BEGIN

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

/* Whether a rename changes a name. */
bool tsr_rename_fits(const tsr_rename *rename, tsr_str name);

/* The name after all renames that fit it: they apply in order, each to the result of those before it. It is in the arena, or the name
 * itself (borrowed) where none fits. Several names may become one; checking that is up to the caller. TSR_E_NOMEM. */
tsr_status tsr_rename_apply(const tsr_rename *renames, size_t count, tsr_str name, tsr_arena *arena, tsr_str *out,
                            tsr_error *err);

TSR_API_END

#endif
