/* Findings: what is wrong, odd or worth knowing about a checkpoint. Rules are stable ids "area/what".
 *
 * Example:
 *
 *     for (size_t i = 0; i < tsr_findings_count(findings); i++) {
 *         const tsr_finding *finding = tsr_findings_at(findings, i);
 *         printf("%s: %.*s\n", finding->rule->id, TSR_STR_ARG(finding->message));
 *     } */
#ifndef TESSERA_FINDINGS_H
#define TESSERA_FINDINGS_H

#include "tessera/memory.h"

TSR_API_BEGIN

typedef enum tsr_level { TSR_NOTE = 0, TSR_WARNING = 1, TSR_ERROR = 2 } tsr_level;
const char *tsr_level_name(tsr_level level); /* "note", "warning", "error" */

typedef struct tsr_rule {
    const char *id;      /* "layout/hole" */
    tsr_level level;     /* the usual level; that of a finding may be another */
    const char *summary; /* one line: what the rule checks */
    const char *help;    /* cause and cure, a sentence or two */
} tsr_rule;

typedef struct tsr_finding {
    const tsr_rule *rule;
    tsr_level level;
    tsr_str message;
    tsr_str file;         /* relative name, or empty */
    uint64_t byte_offset; /* or TSR_NO_POSITION */
    tsr_str fqn;          /* or empty (data NULL) */
} tsr_finding;

typedef struct tsr_findings tsr_findings;

/* Creates an empty list. At most `max_per_rule` findings of one rule are stored (0: 1000); the others are only counted.
 * Borrows `allocator`. NULL and TSR_E_NOMEM on failure. */
tsr_findings *tsr_findings_new(const tsr_allocator *allocator, uint32_t max_per_rule, tsr_error *err);
void tsr_findings_free(tsr_findings *findings); /* accepts NULL */

/* Stored findings in order of discovery, owned by the list. `index` is below the count. */
size_t tsr_findings_count(const tsr_findings *findings);
const tsr_finding *tsr_findings_at(const tsr_findings *findings, size_t index);
/* The number of findings of a level, including those that were not stored. */
uint64_t tsr_findings_total(const tsr_findings *findings, tsr_level level);

TSR_API_END

#endif
