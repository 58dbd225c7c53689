/* Declarations shared by policy*.c. */
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
    tsr_arena *arena; /* for keys */
    tsr_map *known;   /* keys of everything the baseline lists */
    bool has_baseline, has_rules_off;
    int levels[TSR_MAX_RULES];        /* a tsr_level, or one of the above */
    uint64_t unlisted[TSR_MAX_RULES]; /* findings that the baseline counts but does not list */
};

/* What identifies a finding or difference across runs. Absent names have no data. Bytes that are not valid UTF-8 (lone
 * surrogates aside) are treated as U+FFFD, which documents contain in their place. */
typedef struct tsr_known {
    tsr_str rule, file, name;
} tsr_known;

tsr_status tsr_policy_know(tsr_policy *policy, const tsr_known *known, tsr_error *err);
/* Sets *out if the baseline lists it. `key` is memory that is reused. */
tsr_status tsr_policy_knows(const tsr_policy *policy, const tsr_known *known, tsr_vec *key, bool *out, tsr_error *err);
/* The level that the policy gives to a finding, or TSR_LEVEL_OFF. */
int tsr_policy_level(const tsr_policy *policy, const tsr_rule *rule, tsr_level level);

#endif
