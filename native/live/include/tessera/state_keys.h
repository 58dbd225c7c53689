/* Converts nested state dicts to dotted keys, and back.
 *
 * Example:
 *
 *     tsr_state_key *keys;
 *     size_t count;
 *     status = tsr_state_keys(state, host, arena, &keys, &count, &err);
 *     for (size_t i = 0; status == TSR_OK && i < count; i++) printf("%.*s\n", TSR_STR_ARG(keys[i].name)); */
#ifndef TESSERA_STATE_KEYS_H
#define TESSERA_STATE_KEYS_H

#include "tessera/catalog.h"
#include "tessera/host.h"

TSR_API_BEGIN

/* One value of a nested state dict, with its dotted name and its path. The name does not determine the path: "0" may be a
 * list position or a key. */
typedef struct tsr_state_key {
    tsr_str name;
    const tsr_path_item *path;
    uint32_t path_length;
    const tsr_value *value;
} tsr_state_key;
/* Flattens a nested state dict as torch/distributed/_state_dict_utils.py does: dicts, lists and tuples are all expanded,
 * keys become strings, and empty containers are left out. Names and paths live in `arena`; values are shared. Errors:
 * TSR_E_FORMAT for a root that is not a dict, and if two paths give the same key. Source: _flatten_state_dict. */
tsr_status tsr_state_keys(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                          size_t *count, tsr_error *err);
/* The same by DCP's rule (checkpoint/_nested_dict.py), which is used to write checkpoints: tuples are not expanded, nor are
 * lists that contain neither tensors nor dicts at any depth. Source: flatten_state_dict. */
tsr_status tsr_state_keys_dcp(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                              size_t *count, tsr_error *err);
/* The inverse of both: makes a nested state dict, in the order of `keys`. Keys may have been added, removed or given other
 * values since they were flattened. Tuples that were expanded become lists, and list positions without a key become None.
 * The result lives in `arena` and shares the values. Errors: TSR_E_USAGE if a path leads through another value, occurs
 * twice, does not start with a key, or needs a container to be both a list and a dict; TSR_E_LIMIT for too many missing
 * positions. Source: _unflatten_state_dict, _set_element. */
tsr_status tsr_state_unflatten(const tsr_state_key *keys, size_t count, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
