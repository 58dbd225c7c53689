/* What the files of policy.c share. */
#ifndef TSR_DOCUMENTS_POLICY_PARTS_H
#define TSR_DOCUMENTS_POLICY_PARTS_H

#include "tessera/host.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/map.h"
#include "tessera/sys/policy.h"
#include "tessera/sys/vec.h"

enum { TSR_LEVEL_OFF = -1, TSR_LEVEL_USUAL = -2 };

struct tsr_policy {
    tsr_policy_scope scope;
    const tsr_host *host;
    tsr_arena *arena; /* keys */
    tsr_map *known;   /* keys of what the baseline lists */
    bool has_baseline, has_rules_off;
    int levels[TSR_MAX_RULES];         /* a tsr_level, or one of the above */
    uint64_t unlisted[TSR_MAX_RULES];  /* findings that the baseline counts and does not list */
};

/* What identifies a finding or difference from one run to the next. Absent names have no data. Bytes that are not UTF-8 count
 * as U+FFFD, because documents have that in their place. */
typedef struct tsr_known {
    tsr_str rule, file, name;
} tsr_known;

tsr_status tsr_policy_know(tsr_policy *policy, const tsr_known *known, tsr_error *err);
/* Whether the baseline lists it. `key` is reused memory. */
tsr_status tsr_policy_knows(const tsr_policy *policy, const tsr_known *known, tsr_vec *key, bool *out, tsr_error *err);
/* The level at which a finding counts, or TSR_LEVEL_OFF. */
int tsr_policy_level(const tsr_policy *policy, const tsr_rule *rule, tsr_level level);

#endif
