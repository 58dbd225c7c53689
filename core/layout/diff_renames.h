/* Which removed tensor probably became which added one. */
#ifndef TSR_LAYOUT_DIFF_RENAMES_H
#define TSR_LAYOUT_DIFF_RENAMES_H

#include "tessera/diff.h"
#include "tessera/host.h"

/* One side's unmatched entry under the name that counts, with its dtype and shape as torch counts them. */
typedef struct tsr_unmatched {
    const tsr_entry *entry;
    tsr_str name;
    uint64_t kind; /* hash of dtype and shape; equal for equal ones */
    bool taken;
} tsr_unmatched;

typedef struct tsr_unmatched_list {
    tsr_unmatched *items;
    size_t count;
} tsr_unmatched_list;

/* Fills diff->renamed from tensors only in A and only in B. A suggestion needs equal dtype and shape, and a relation of
 * the names that holds for one pair only: one is the other behind a prefix; they differ in one component; or they alone
 * share dtype, shape and last component. O(n log n) in the components of all names. */
tsr_status tsr_diff_suggest_renames(const tsr_host *host, tsr_arena *arena, tsr_unmatched_list removed,
                                    tsr_unmatched_list added, tsr_diff *diff, tsr_error *err);

#endif
