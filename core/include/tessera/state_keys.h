/* Nested state dicts by dotted keys, and back.
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

/* One value of a nested state dict: its dotted name, and its path, which does not follow from the name alone ("0" may be a
 * position or a key). */
typedef struct tsr_state_key {
    tsr_str name;
    const tsr_path_item *path;
    uint32_t path_length;
    const tsr_value *value;
} tsr_state_key;
/* A nested state dict by dotted keys, by the rule of torch/distributed/_state_dict_utils.py: dicts, lists and tuples all
 * expand, keys become strings, empty containers vanish. Names and paths live in `arena`, values are shared. TSR_E_FORMAT for
 * a root that is not a dict, and when two paths give one key. Source: _flatten_state_dict. */
tsr_status tsr_state_keys(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                          size_t *count, tsr_error *err);
/* The same by the rule of DCP (checkpoint/_nested_dict.py), by which checkpoints are written: tuples are values, and so are
 * lists that hold neither tensors nor dicts at any depth. Source: flatten_state_dict. */
tsr_status tsr_state_keys_dcp(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                              size_t *count, tsr_error *err);
/* The inverse of both: a nested state dict again, in the order of `keys`, whose values and number may be others than were
 * flattened. Tuples that were expanded are lists then; list positions that no key has are None. Lives in `arena` and shares
 * the values. TSR_E_USAGE when a path leads through another value, is there twice, does not begin with a key, or makes one
 * container a list and a dict; TSR_E_LIMIT for too many missing positions. Source: _unflatten_state_dict, _set_element. */
tsr_status tsr_state_unflatten(const tsr_state_key *keys, size_t count, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
