/* What the options --include, --exclude, --rename and --no-quantize, and the rules of a target, choose by name.
 *
 * Example:
 *
 *     const char *patterns[] = {"model.**"};
 *     const tsr_command_options options = {.selection.include = {patterns, 1}};
 *     tsr_name_choice choice;
 *     status = tsr_choice_of(catalog, &options, NULL, arena, &choice, &err);
 *     if (status == TSR_OK) status = tsr_name_choice_check(&choice, arena, &err); */
#ifndef TESSERA_SYS_CHOSEN_NAMES_H
#define TESSERA_SYS_CHOSEN_NAMES_H

#include "tessera/sys/commands.h"
#include "tessera/sys/name_choice.h"
#include "tessera/sys/target_texts.h"

TSR_API_BEGIN

/* Whether --include and --exclude keep a name; `globs` is a tsr_name_globs. The second is for callers whose context is not const. */
bool tsr_globs_select(const void *globs, tsr_str fqn);
bool tsr_globs_want(void *globs, tsr_str fqn);
/* The texts of a list, in `arena`. */
tsr_status tsr_texts_list(const tsr_texts *texts, tsr_arena *arena, const tsr_str **out, size_t *count, tsr_error *err);
/* Parses --rename, in the order in which they apply. Errors: TSR_E_USAGE; TSR_E_NOMEM. */
tsr_status tsr_renames_parse(const tsr_texts *texts, tsr_arena *arena, const tsr_rename **out, size_t *count,
                             tsr_error *err);
/* Collects what the options choose, for tsr_name_choice_check and tsr_name_choice_warnings. `target` may be NULL. In `arena`. */
tsr_status tsr_choice_of(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_target_texts *target,
                         tsr_arena *arena, tsr_name_choice *out, tsr_error *err);

TSR_API_END

#endif
