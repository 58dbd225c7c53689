/* Options that choose or rename entries by name (--include, --exclude, --rename, --no-quantize, the rules of --target) and have no
 * effect. A mistyped pattern would otherwise go unnoticed.
 *
 * Example:
 *
 *     const tsr_str include = TSR_STR("modle.**");
 *     const tsr_name_choice choice = {.catalog = catalog, .include = &include, .include_count = 1};
 *     status = tsr_name_choice_check(&choice, arena, &err);
 *     if (status == TSR_E_USAGE) printf("%s\n", err.message); */
#ifndef TESSERA_SYS_NAME_CHOICE_H
#define TESSERA_SYS_NAME_CHOICE_H

#include "tessera/catalog.h"
#include "tessera/sys/glob.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

/* The options that were given. Everything is borrowed. */
typedef struct tsr_name_choice {
    const tsr_catalog *catalog;
    const tsr_str *include, *exclude, *no_quantize;
    size_t include_count, exclude_count, no_quantize_count;
    const tsr_rename *renames;
    size_t rename_count;
    const tsr_str *rules; /* the patterns of a target */
    size_t rule_count;
} tsr_name_choice;

/* Appends a warning to `warnings`, a vec of tsr_str in `arena`, for each option that has no effect (for many rules
 * of a target, one about the rest). It shows a pattern or a name that may have been meant. Errors: TSR_E_NOMEM. */
tsr_status tsr_name_choice_warnings(const tsr_name_choice *choice, tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

/* Fails with TSR_E_USAGE if the catalog has entries and no pattern of `include` matches any: an output without entries is then not
 * what is wanted. Otherwise TSR_E_NOMEM. */
tsr_status tsr_name_choice_check(const tsr_name_choice *choice, tsr_arena *arena, tsr_error *err);

TSR_API_END

#endif
