/* --rule and --baseline of a diff. What they need is in the second file, while a diff is in the first: so the diff is lent it. */
#ifndef TSR_WASM_JUDGE_H
#define TSR_WASM_JUDGE_H

#include "handles.h"
#include "tessera/sys/policy.h"

typedef struct tessera_judge {
    tsr_policy *policy; /* NULL: nothing is left out */
    tsr_status (*apply)(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                        tsr_policy_result *result, tsr_error *err);
    void (*release)(tsr_policy *policy);
} tessera_judge;

/* jobs.c: the host of a diff; NULL with an error where there is none. */
const tsr_host *tessera_diff_host(uint32_t handle, tsr_error *err);
/* The diff's documents are written under the policy, which it frees when it is closed; on failure it is still the caller's. */
tsr_status tessera_diff_judge(uint32_t handle, const tessera_judge *judge, tsr_error *err);

#endif
