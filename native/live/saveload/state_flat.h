/* Lists the checkpoint entries that a state dict becomes, by the rules of DCP's flatten_state_dict. */
#ifndef TSR_STATEDICT_STATE_FLAT_H
#define TSR_STATEDICT_STATE_FLAT_H

#include "tessera/host.h"
#include "tessera/tensor.h"

typedef struct tsr_flat_entry {
    tsr_str fqn;
    const tsr_path_item *path;
    uint32_t path_length;
    const tsr_value *value;
    const tsr_tensor *tensor; /* NULL: the entry is an object */
} tsr_flat_entry;

typedef struct tsr_flat {
    tsr_flat_entry *entries; /* in the order of the dict */
    size_t count;
    uint32_t *sorted; /* indices of entries by FQN: this order is the same on all ranks */
} tsr_flat;

/* The first two describe values; the third makes the list in `arena`. Errors: TSR_E_USAGE if the root is not a dict, or if
 * two paths have the same name; TSR_E_UNSUPPORTED for a tensor inside an object; TSR_E_LIMIT, TSR_E_NOMEM. */
bool tsr_flat_opens(const tsr_value *value); /* whether it is a dict or list whose items become separate entries */
bool tsr_names_tensor(const tsr_value *value);
tsr_status tsr_flat_of(const tsr_value *state, const tsr_host *host, tsr_arena *arena, tsr_flat *out, tsr_error *err);

#endif
