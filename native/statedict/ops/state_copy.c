/* D3, D4: to the host, and into another state dict. */
#include "statedict/tensor/state_dict.h"

tsr_status tsr_state_dict_offload(const tsr_value *state, tsr_comm *comm, const uint32_t *ranks_only,
                                  size_t ranks_only_count, bool any_type, tsr_state_dict *out, tsr_error *err)
{
    const tsr_iterate how = {
        .comm = comm, .ranks_only = ranks_only, .ranks_only_count = ranks_only_count, .any_type = any_type, .offload = true};
    return tsr_state_dict_iterate(state, &how, out, err);
}

tsr_status tsr_state_dict_copy(const tsr_value *state, const tsr_value *target, bool any_type, tsr_state_dict *out,
                               tsr_error *err)
{
    const tsr_iterate how = {.companion = target, .any_type = any_type};
    return tsr_state_dict_iterate(state, &how, out, err);
}
