/* Lists the leaves of a nested value in the order of their paths. That order is the same on all ranks, regardless of the
 * order of dicts. Also lets the ranks agree on their leaves. */
#ifndef TSR_STATEDICT_LEAVES_H
#define TSR_STATEDICT_LEAVES_H

#include "tessera/comm.h"
#include "tessera/sys/vec.h"
#include "tessera/tensor.h"

typedef struct tsr_leaf_at {
    tsr_str path;  /* for messages */
    tsr_str order; /* unique for each path; leaves are sorted by it */
    const tsr_value *value;
    const tsr_tensor *tensor; /* NULL if the leaf is not a tensor */
} tsr_leaf_at;

typedef struct tsr_leaves {
    tsr_leaf_at *items;
    size_t count;
} tsr_leaves;

/* Lists all leaves, or only tensors. Everything lives in `arena`. */
tsr_status tsr_leaves_of(const tsr_value *state, const tsr_host *host, bool tensors_only, tsr_arena *arena, tsr_leaves *out,
                         tsr_error *err);

/* Checks that distributed tensors are distributed over as many ranks as the communicator has, and that this rank is the same
 * in both. */
tsr_status tsr_leaves_check(const tsr_leaves *leaves, const tsr_comm *comm, tsr_error *err);

/* What ranks must have in common: a list of named items for them to compare. */
typedef struct tsr_agreement {
    tsr_vec bytes;
    tsr_arena *arena;
} tsr_agreement;
tsr_status tsr_agreement_add(tsr_agreement *agreement, tsr_str order, tsr_str path, tsr_str words, tsr_error *err);
/* Adds tensors with dtype, shape and distribution, other leaves only with their paths. `kind` distinguishes lists: "" or
 * "local ". */
tsr_status tsr_agreement_add_leaves(tsr_agreement *agreement, const char *kind, const tsr_leaves *leaves, tsr_error *err);
/* Compares the lists of all ranks. Items must have been added in ascending `order`. Every rank passes its own status so far,
 * and all get the same result: the failure of the lowest rank, or TSR_E_USAGE with the first item that differs and its value
 * on both ranks. Frees the list. */
tsr_status tsr_agreement_check(tsr_agreement *agreement, tsr_comm *comm, tsr_status mine, const tsr_allocator *allocator,
                               tsr_error *err);

#endif
