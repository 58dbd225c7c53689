/* The other forms of optimizer state, and the ways back (tessera/optim.h, which has the conventions and errors).
 *
 * Example:
 *
 *     const tsr_value *flat, *nested;
 *     const tsr_unflatten how = {0};
 *     status = tsr_optim_flatten(state, host, arena, &flat, &err);
 *     if (status == TSR_OK) status = tsr_optim_unflatten(flat, &how, host, arena, &nested, &err); */
#ifndef TESSERA_SYS_OPTIM_FORMS_H
#define TESSERA_SYS_OPTIM_FORMS_H

#include "tessera/optim.h"

TSR_API_BEGIN

/* Nested → flat, as `_flatten_optim_state_dict` does. Native state is accepted too: its ids are written in decimal. Dicts
 * in a parameter's state are flattened at all depths; any other value there must be a tensor, an int or a float. Values of
 * groups are not flattened, and repeated for each parameter. Two different values under the same flat name are an error. */
tsr_status tsr_optim_flatten(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                             tsr_error *err);

/* Information from the optimizer for unflattening flat state. Every field is optional. */
typedef struct tsr_unflatten {
    /* The FQNs that exist, and which of them require gradients: those get a state even if it is empty. NULL: FQNs are taken
     * from the param_groups keys, whose last component is the option's name. */
    const tsr_params *params;
    /* The FQNs of each group; all parameters of a group must have the same options. NULL: parameters with the same options
     * form a group, in order of first appearance. */
    const tsr_name_list *groups;
    size_t group_count;
    /* Compares the values of two tensors of the same dtype and shape. It is needed because options may be tensors, of which
     * each parameter has its own. NULL: tensors are equal only if they are the same bytes of the same file. */
    tsr_status (*same)(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
    void *ctx;
    /* Called for each parameter that has state although it does not require gradients; its state is kept. NULL: such state is
     * left out, as PyTorch does. */
    tsr_status (*frozen)(void *ctx, tsr_str fqn, tsr_error *err);
} tsr_unflatten;
/* Flat → nested, as `_unflatten_optim_state_dict` does with a live optimizer. Errors: also those of `same`. */
tsr_status tsr_optim_unflatten(const tsr_value *flat, const tsr_unflatten *how, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

/* Nested → native: parameters are numbered consecutively over the groups, as in `Optimizer.state_dict()`. */
tsr_status tsr_optim_to_id(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err);

TSR_API_END

#endif
