/* How a pipeline judges findings and differences: changed levels of rules (--rule), and a baseline of known findings
 * (--baseline). Pure: findings in, findings out. Applying a policy does not change it, and several threads may apply it at
 * the same time.
 *
 * Example:
 *
 *     tsr_policy *policy = tsr_policy_new(TSR_POLICY_VALIDATE, host, &err);
 *     tsr_policy_result result = {0};
 *     status = policy ? tsr_policy_rule(policy, "values/nan=error", &err) : TSR_E_NOMEM;
 *     if (status == TSR_OK)
 *         status = tsr_policy_findings(policy, tsr_checkpoint_findings(checkpoint), findings, &result, &err);
 *     tsr_policy_free(policy); */
#ifndef TESSERA_SYS_POLICY_H
#define TESSERA_SYS_POLICY_H

#include "tessera/diff.h"
#include "tessera/findings.h"

TSR_API_BEGIN

typedef struct tsr_policy tsr_policy;

/* The command whose rules and documents a policy accepts. */
typedef enum tsr_policy_scope {
    TSR_POLICY_VALIDATE, /* every rule but diff's; a baseline is a tessera.findings/1 document */
    TSR_POLICY_DIFF      /* the rules diff/…; a baseline is a tessera.diff/1 document */
} tsr_policy_scope;

/* Whether policies of the scope accept the rule. Each rule belongs to exactly one scope. */
bool tsr_policy_has_rule(tsr_policy_scope scope, const tsr_rule *rule);

/* A policy that changes nothing yet. Borrows the host. NULL: no memory. */
tsr_policy *tsr_policy_new(tsr_policy_scope scope, const tsr_host *host, tsr_error *err);
void tsr_policy_free(tsr_policy *policy); /* accepts NULL */

/* Adds a rule "ID=LEVEL": ID is a rule, or a prefix followed by '*', which means every rule with that prefix; LEVEL is
 * error, warning, note or off. Where several fit a rule, the last one given counts. TSR_E_USAGE, with a suggestion, for an
 * unknown rule or level and for a pattern that fits no rule of the scope. */
tsr_status tsr_policy_rule(tsr_policy *policy, const char *text, tsr_error *err);

/* Treats the findings or differences of an earlier document as known. Several documents add up. TSR_E_FORMAT with the place
 * in the document for text that is not one of the scope; TSR_E_LIMIT; TSR_E_NOMEM. The text is not kept. */
tsr_status tsr_policy_baseline(tsr_policy *policy, tsr_str text, tsr_error *err);

/* Leaves out findings about names that the selection does not keep. It is borrowed. */
void tsr_policy_names(tsr_policy *policy, tsr_selection names);

/* Counts the findings that a policy left out and those that remain. Several results add up. */
typedef struct tsr_policy_result {
    uint64_t left_out;                /* listed by the baseline */
    uint64_t turned_off;              /* of rules that are off */
    bool has_baseline, has_rules_off; /* whether these two have a meaning */
    uint64_t pairs;                   /* diff: entries on both sides of which no difference is left */
    uint64_t totals[TSR_ERROR + 1];   /* diff: differences that are left, by level */
} tsr_policy_result;

/* Adds the findings of `from` that remain to `to`, with their new levels. The baseline lists a finding if rule, file and
 * name are equal. Findings that neither side lists, because a rule had too many, are compared by number. */
tsr_status tsr_policy_findings(const tsr_policy *policy, const tsr_findings *from, tsr_findings *to,
                               tsr_policy_result *result, tsr_error *err);

/* The differences of a diff that remain. The baseline lists a difference if its name and its kind are equal. `to` lives in
 * `arena` and borrows `from`; its pairs keep their positions. */
tsr_status tsr_policy_diff(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                           tsr_policy_result *result, tsr_error *err);

TSR_API_END

#endif
