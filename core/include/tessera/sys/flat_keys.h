/* Look-ups shared by both directions of the flat-parameter conversions.
 *
 * Example:
 *
 *     tsr_flat_keys keys = {0};
 *     status = tsr_flat_keys_open(flat, host, arena, &keys, &err);
 *     if (status == TSR_OK) printf("%u parameters\n", (unsigned)keys.count);
 *     tsr_flat_keys_close(&keys); */
#ifndef TESSERA_SYS_FLAT_KEYS_H
#define TESSERA_SYS_FLAT_KEYS_H

#include "tessera/sys/flat_params.h"
#include "tessera/sys/map.h"

TSR_API_BEGIN

/* A parameter of the optimizer, identified by one id. */
typedef struct tsr_flat_key {
    tsr_str raw;               /* name in the document's param_groups */
    tsr_str fqn;               /* the canonical name if it is not a flat parameter */
    const tsr_flat_unit *unit; /* NULL if it is not managed by FSDP */
    uint32_t param;            /* index in the unit; TSR_NO_PARAM for the flat parameter itself */
} tsr_flat_key;

/* All ids, and maps from names to ids (`_get_param_key_to_param` and its inverse). */
typedef struct tsr_flat_keys {
    tsr_flat_key *keys; /* indexed by id */
    uint32_t count;
    tsr_map *by_raw; /* raw name → id */
    tsr_map *by_fqn; /* FQN → id; all originals of a flat parameter map to its id */
} tsr_flat_keys;

/* Allocates names in `arena`. Fails with TSR_E_FORMAT if a name refers to two ids. */
tsr_status tsr_flat_keys_open(const tsr_flat_params *flat, const tsr_host *host, tsr_arena *arena, tsr_flat_keys *out,
                              tsr_error *err);
void tsr_flat_keys_close(tsr_flat_keys *keys); /* accepts a zeroed one */

/* Removes the components that FSDP and activation checkpointing add to a name, like PyTorch's clean_tensor_name. Allocates
 * in `arena`. */
tsr_status tsr_flat_clean_name(tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* One entry of a parameter's state. */
typedef struct tsr_named {
    tsr_str name;
    const tsr_value *key, *value;
} tsr_named;

#define TSR_MAX_STATES 4096u /* names in one parameter's state */

typedef enum tsr_state_form { TSR_FORM_TENSOR, TSR_FORM_SCALAR_TENSOR, TSR_FORM_OTHER } tsr_state_form;
/* Whether a value is a tensor with dimensions, a 0-d tensor, or anything else. */
tsr_state_form tsr_form_of(const tsr_value *value);

/* The id for a key of a state dict: an int below `count`, or the raw name if the optimizer saves names. UINT32_MAX for any
 * other key. */
uint32_t tsr_flat_keys_find(const tsr_flat_keys *keys, const tsr_value *key);

TSR_API_END

#endif
