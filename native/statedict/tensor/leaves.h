/* The leaves of a nested value in the order of their paths, which is the same on all ranks whatever the order of dicts;
 * and the agreement of ranks about them. */
#ifndef TSR_STATEDICT_LEAVES_H
#define TSR_STATEDICT_LEAVES_H

#include "tessera/comm.h"
#include "tessera/sys/vec.h"
#include "tessera/tensor.h"

typedef struct tsr_leaf_at {
    tsr_str path;  /* for people */
    tsr_str order; /* distinct for distinct paths; leaves are sorted by it */
    const tsr_value *value;
    const tsr_tensor *tensor; /* or NULL */
} tsr_leaf_at;

typedef struct tsr_leaves {
    tsr_leaf_at *items;
    size_t count;
} tsr_leaves;

/* All leaves, or with `tensors_only` those; everything lives in `arena`. */
tsr_status tsr_leaves_of(const tsr_value *state, const tsr_host *host, bool tensors_only, tsr_arena *arena, tsr_leaves *out,
                         tsr_error *err);

/* Whether distributed tensors are over as many ranks as the communicator has, this one in its place. */
tsr_status tsr_leaves_check(const tsr_leaves *leaves, const tsr_comm *comm, tsr_error *err);

/* What ranks must have in common: a list of named items, which the ranks compare. */
typedef struct tsr_agreement {
    tsr_vec bytes;
    tsr_arena *arena;
} tsr_agreement;
tsr_status tsr_agreement_add(tsr_agreement *agreement, tsr_str order, tsr_str path, tsr_str words, tsr_error *err);
/* Tensors with dtype, shape and distribution; other leaves by their path alone. `kind` keeps lists apart: "" or "local ". */
tsr_status tsr_agreement_add_leaves(tsr_agreement *agreement, const char *kind, const tsr_leaves *leaves, tsr_error *err);
/* Items must have been added in ascending `order`. Every rank calls this with its own status so far; all get the same
 * result: the lowest rank's failure, or TSR_E_USAGE with the first item that differs and its value on both ranks. Frees the
 * list. */
tsr_status tsr_agreement_check(tsr_agreement *agreement, tsr_comm *comm, tsr_status mine, const tsr_allocator *allocator,
                               tsr_error *err);

#endif
