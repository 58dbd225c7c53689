/* Look-ups that both directions of the flat-parameter conversions share. */
#ifndef TSR_OPTIM_FLAT_UNIT_H
#define TSR_OPTIM_FLAT_UNIT_H

#include "tessera/sys/flat_params.h"
#include "tessera/sys/map.h"

/* A parameter as the optimizer has it: one id. */
typedef struct tsr_flat_key {
    tsr_str raw;               /* name in the document's param_groups */
    tsr_str fqn;               /* not a flat parameter: its canonical name */
    const tsr_flat_unit *unit; /* NULL: not managed by FSDP */
    uint32_t param;            /* of the unit; TSR_NO_PARAM: the flat parameter itself */
} tsr_flat_key;

/* All ids, and how names lead to them (`_get_param_key_to_param` and its inverse). */
typedef struct tsr_flat_keys {
    tsr_flat_key *keys; /* by id */
    uint32_t count;
    tsr_map *by_raw; /* raw name → id */
    tsr_map *by_fqn; /* FQN → id; all originals of a flat parameter lead to its id */
} tsr_flat_keys;

/* Names are allocated in `arena`. TSR_E_FORMAT when a name stands for two ids. */
tsr_status tsr_flat_keys_open(const tsr_flat_params *flat, const tsr_host *host, tsr_arena *arena, tsr_flat_keys *out,
                              tsr_error *err);
void tsr_flat_keys_close(tsr_flat_keys *keys); /* takes a zeroed one */

/* The name without FSDP's and activation checkpointing's components (torch's clean_tensor_name). In `arena`. */
tsr_status tsr_flat_clean_name(tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* One parameter's state by name. */
typedef struct tsr_named {
    tsr_str name;
    const tsr_value *key, *value;
} tsr_named;

#define TSR_MAX_STATES 4096u /* names in one parameter's state */

/* The pairs of a parameter's state in order of their names. TSR_E_LIMIT beyond TSR_MAX_STATES. */
tsr_status tsr_sorted_state(const tsr_value *state, tsr_arena *arena, tsr_named **out, size_t *count, tsr_error *err);

typedef enum tsr_state_form { TSR_FORM_TENSOR, TSR_FORM_SCALAR_TENSOR, TSR_FORM_OTHER } tsr_state_form;
/* A tensor of one dimension or more, a 0-d tensor, or anything else. */
tsr_state_form tsr_form_of(const tsr_value *value);

/* The id a state dict's key means: an int below count, or (optimizers that save names) a raw name; UINT32_MAX otherwise. */
uint32_t tsr_flat_keys_find(const tsr_flat_keys *keys, const tsr_value *key);

#endif
