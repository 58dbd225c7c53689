/* Finds the rule for a name. */
#ifndef TSR_PLAN_HOLDERS_H
#define TSR_PLAN_HOLDERS_H

#include "tessera/target.h"

/* Whether a rule applies to a name: its GLOB matches, and if it has stages, the name is in a layer. */
bool tsr_rule_matches(const tsr_target *target, const tsr_target_rule *rule, tsr_str fqn);

#endif
