/* Functions that `tessera optim` needs in addition to the conversions of tessera/sys/flat_params.h.
 *
 * Example:
 *
 *     const tsr_fsdp_context context = {.host = host, .arena = arena};
 *     tsr_name_list names;
 *     status = tsr_fsdp_differences(flat, &state, 0, &context, &names, &err);
 *     if (status == TSR_OK) printf("%zu names differ\n", names.count); */
#ifndef TESSERA_SYS_FSDP_OPTIM_H
#define TESSERA_SYS_FSDP_OPTIM_H

#include "tessera/sys/flat_params.h"

TSR_API_BEGIN

/* What tsr_fsdp_unshard gives `rank` and some other rank differently, by name ("expert.weight.exp_avg",
 * "param_groups[0].lr", a key of no parameter): one full state cannot hold both. In the order of `rank`'s state, then of the
 * others'; each name once. Names live in the context's arena. Errors: as tsr_fsdp_unshard; those of `same`. */
tsr_status tsr_fsdp_differences(const tsr_flat_params *flat, const tsr_value *const *ranks, uint32_t rank,
                                const tsr_fsdp_context *context, tsr_name_list *out, tsr_error *err);

/* A flat state dict of "state.FQN.NAME" keys without param_groups, as safetensors hold it → the nested full state that
 * tsr_fsdp_shard takes, without param_groups. FQNs are those of the description's param groups. Errors: TSR_E_FORMAT for any
 * other key. */
tsr_status tsr_fsdp_nest_state(const tsr_flat_params *params, const tsr_value *flat, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
