/* Regular expressions as Python's `re` reads them, for what libraries of Python store: the patterns of PEFT's rank_pattern, and
 * DeepSpeed's patterns of parameters.
 *
 * Understood are literals, escapes, `.`, sets, groups, alternatives, repetition and anchors. Everything whose meaning depends on
 * the way in which Python searches is refused: references to groups, lookaround, atomic groups, possessive repetition and flags.
 * What is left is matched in time proportional to the product of both lengths, so that a hostile pattern does not run long.
 *
 * Example:
 *
 *     tsr_regex *regex;
 *     uint64_t work = TSR_REGEX_WORK;
 *     bool matches = false;
 *     tsr_status status = tsr_regex_compile(TSR_STR("layers\\.[12]\\..*"), &tsr_allocator_libc, arena, &regex, &err);
 *     if (status == TSR_OK) status = tsr_regex_match(regex, TSR_STR("layers.1.q_proj"), &work, &matches, &err); */
#ifndef TESSERA_SYS_REGEX_H
#define TESSERA_SYS_REGEX_H

#include "tessera/memory.h"
#include "tessera/str.h"

TSR_API_BEGIN

typedef struct tsr_regex tsr_regex;

/* Compiles a pattern, in `arena`; `allocator` is used for what is needed meanwhile. Fails with TSR_E_UNSUPPORTED and a message that names what is not understood, which includes
 * what Python does not accept; with TSR_E_LIMIT if the pattern is too large when its repetitions are written out; or with
 * TSR_E_NOMEM. */
tsr_status tsr_regex_compile(tsr_str pattern, const tsr_allocator *allocator, tsr_arena *arena, tsr_regex **out,
                             tsr_error *err);

/* How much may be matched with patterns that come from one input: steps of patterns times characters. Far more than the names of a
 * model need, and a few seconds at most. */
#define TSR_REGEX_WORK (UINT64_C(1) << 30)

/* Sets *matches to whether the pattern matches at the start of `text`, like re.match. Subtracts what that may cost from *work, which
 * starts at TSR_REGEX_WORK, and fails with TSR_E_LIMIT if less is left. The text is bytes: one that is not ASCII is
 * refused (TSR_E_UNSUPPORTED), because Python counts characters. Uses memory of the regex, so calls for one regex must not
 * overlap. */
tsr_status tsr_regex_match(tsr_regex *regex, tsr_str text, uint64_t *work, bool *matches, tsr_error *err);

TSR_API_END

#endif
