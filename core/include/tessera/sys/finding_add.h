/* Adding findings, for readers and checks. Programs read them (tessera/findings.h).
 *
 * Example:
 *
 *     const tsr_place place = {.file = TSR_STR("model.safetensors"), .byte_offset = 8};
 *     status = tsr_finding_add(findings, "values/nan", place, &err, "%d NaN", 3); */
#ifndef TESSERA_SYS_FINDING_ADD_H
#define TESSERA_SYS_FINDING_ADD_H

#include "tessera/findings.h"

TSR_API_BEGIN

/* The table of all rules, sorted by id. */
const tsr_rule *tsr_rules(size_t *count);
const tsr_rule *tsr_rule_find(const char *id);
#define TSR_MAX_RULES 256 /* for arrays with an item per rule */
/* The rule that a wrong id most likely meant, or NULL. */
const tsr_rule *tsr_rule_suggest(const char *wrong);

/* Where a finding is: any part may be empty. */
typedef struct tsr_place {
    tsr_str file;
    uint64_t byte_offset;
    tsr_str fqn;
} tsr_place;
#define TSR_NOWHERE (TSR_LITERAL(tsr_place){{NULL, 0}, TSR_NO_POSITION, {NULL, 0}})

/* Whether a failure to read something may be a finding. Other failures are about this process or this build, and not about what it
 * reads: they end the call. */
static inline bool tsr_may_be_finding(tsr_status status)
{
    return status != TSR_E_NOMEM && status != TSR_E_CANCELLED && status != TSR_E_NOT_BUILT;
}

/* Adds a finding, whose message is formatted as by printf. Copies what it is given, of a name at most 4096 bytes. `rule_id`
 * must be in the table. The first form takes the rule's usual level. */
tsr_status tsr_finding_add(tsr_findings *findings, const char *rule_id, tsr_place place, tsr_error *err, const char *format,
                           ...) TSR_PRINTF_LIKE(5, 6);

/* Adds a finding for an error that one part of a checkpoint caused, under `rule_id`. Errors of input and output are the rule
 * file/io instead, once per message, as a file that cannot be opened fails for everything in it. Returns errors that may not be
 * findings (tsr_may_be_finding). */
tsr_status tsr_finding_add_failure(tsr_findings *findings, const char *rule_id, tsr_place place, const tsr_error *failure,
                                   tsr_error *err);

/* A rule, and how bad it is this time. */
typedef struct tsr_rated_rule {
    const char *id;
    tsr_level level;
} tsr_rated_rule;
tsr_status tsr_finding_add_at(tsr_findings *findings, tsr_rated_rule given, tsr_place place, tsr_error *err,
                              const char *format, ...) TSR_PRINTF_LIKE(5, 6);

/* Counts findings of a rule of the table that are known of but not listed, as those beyond the bound. */
void tsr_findings_count_more(tsr_findings *findings, const tsr_rule *rule, tsr_level level, uint64_t count);
/* How many findings of a rule and a level were only counted. */
uint64_t tsr_findings_unlisted(const tsr_findings *findings, const tsr_rule *rule, tsr_level level);
/* Adds copies of all findings of `more`, in their order, and counts those that it did not list. */
tsr_status tsr_findings_take(tsr_findings *findings, const tsr_findings *more, tsr_error *err);

TSR_API_END

#endif
