/* PyTorch's _offload_state_dict_to_cpu and _copy_state_dict: copy a state dict to the host, and into another state dict. */
#include "statedict/tensor/state_dict.h"

#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"

tsr_status tsr_state_dict_offload(const tsr_value *state, tsr_comm *comm, const tsr_offload_options *options,
                                  tsr_state_dict *out, tsr_error *err)
{
    tsr_offload_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_offload_options, err));
    const tsr_iterate how = {.comm = comm,
                             .ranks_only = own.ranks_only,
                             .ranks_only_count = own.ranks_only_count,
                             .any_type = own.any_type,
                             .offload = true};
    return tsr_state_dict_iterate(state, &how, out, err);
}

tsr_status tsr_state_dict_copy(const tsr_value *state, const tsr_value *target, bool any_type, tsr_state_dict *out,
                               tsr_error *err)
{
    const tsr_iterate how = {.companion = target, .any_type = any_type};
    return tsr_state_dict_iterate(state, &how, out, err);
}
