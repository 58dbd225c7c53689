/* The memory of a state dict (tessera/statedict.h) and of its tensors.
 *
 * Example:
 *
 *     printf("%llu bytes are the dict's own\n", (unsigned long long)tsr_state_dict_owned(dict)); */
#ifndef TESSERA_SYS_STATE_DICT_MEMORY_H
#define TESSERA_SYS_STATE_DICT_MEMORY_H

#include "tessera/statedict.h"

TSR_API_BEGIN

/* The host that the dict was created with. */
const tsr_host *tsr_state_dict_host(const tsr_state_dict *dict);

/* The number of bytes that the dict has allocated for tensors. */
uint64_t tsr_state_dict_owned(const tsr_state_dict *dict);

/* The shape of the local tensor (WHOLE: of the tensor itself; TSR_E_USAGE for IN_BOXES), and its number of bytes. `*shape`
 * may be in `arena`. */
tsr_status tsr_tensor_local(const tsr_tensor *tensor, tsr_arena *arena, const uint64_t **shape, uint64_t *bytes,
                            tsr_error *err);

TSR_API_END

#endif
