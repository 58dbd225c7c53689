/* The entries of a checkpoint that a state dict makes, by the rule of DCP's flatten_state_dict. */
#ifndef TSR_STATEDICT_STATE_FLAT_H
#define TSR_STATEDICT_STATE_FLAT_H

#include "tessera/host.h"
#include "tessera/tensor.h"

typedef struct tsr_flat_entry {
    tsr_str fqn;
    const tsr_path_item *path;
    uint32_t path_length;
    const tsr_value *value;
    const tsr_tensor *tensor; /* or NULL: an object */
} tsr_flat_entry;

typedef struct tsr_flat {
    tsr_flat_entry *entries; /* in the order of the dict */
    size_t count;
    uint32_t *sorted; /* numbers of entries by FQN: the same order on all ranks */
} tsr_flat;

/* Everything lives in `arena`. Errors: TSR_E_USAGE for a root that is not a dict, and for two paths with one name;
 * TSR_E_UNSUPPORTED for a tensor inside an object; TSR_E_LIMIT, TSR_E_NOMEM. */
bool tsr_flat_opens(const tsr_value *value); /* a dict or list that is walked into */
bool tsr_names_tensor(const tsr_value *value);
tsr_status tsr_flat_of(const tsr_value *state, const tsr_host *host, tsr_arena *arena, tsr_flat *out, tsr_error *err);

#endif
