/* Guesses which removed tensor became which added one. */
#ifndef TSR_LAYOUT_DIFF_RENAMES_H
#define TSR_LAYOUT_DIFF_RENAMES_H

#include "tessera/diff.h"
#include "tessera/host.h"

/* An unmatched entry of one side, with the name by which it is compared, and its dtype and shape in PyTorch's elements. */
typedef struct tsr_unmatched {
    const tsr_entry *entry;
    tsr_str name;
    uint64_t kind; /* hash of dtype and shape */
    bool taken;
} tsr_unmatched;

typedef struct tsr_unmatched_list {
    tsr_unmatched *items;
    size_t count;
} tsr_unmatched_list;

/* Fills diff->renamed from the tensors that are only in A and only in B. A suggestion requires the same dtype and shape, and
 * names with a relation that no other pair has: one is the other with a prefix; they differ in one component; or no others
 * have the same dtype, shape and last component. O(n log n) in the number of components of all names. */
tsr_status tsr_diff_suggest_renames(const tsr_host *host, tsr_arena *arena, tsr_unmatched_list removed,
                                    tsr_unmatched_list added, tsr_diff *diff, tsr_error *err);

#endif
