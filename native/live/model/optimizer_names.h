/* Live optimizers of a model: the names of their parameters, their state dicts keyed by parameter number, and their
 * initial state. */
#ifndef TSR_STATEDICT_OPTIMIZER_NAMES_H
#define TSR_STATEDICT_OPTIMIZER_NAMES_H

#include "live/model/fsdp_optimizer.h"
#include "tessera/optimizer_state.h"

typedef struct tsr_optimizer_names {
    const tsr_model *model;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_tensor_ids ids;
    tsr_tensor **held;         /* by id: the model's tensors */
    tsr_str *first;            /* by id: the first canonical name of a parameter; data NULL: none */
    tsr_fsdp_optimizers *fsdp; /* NULL without FSDP1 units; otherwise it owns `ids` and `held` */
} tsr_optimizer_names;

tsr_status tsr_optimizer_names_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_optimizer_names *out, tsr_error *err);
void tsr_optimizer_names_free(tsr_optimizer_names *names);
/* TSR_E_USAGE when it is not a parameter of the model. */
tsr_status tsr_optimizer_param_id(const tsr_optimizer_names *names, const tsr_model_param *param, uint32_t *id,
                                  tsr_error *err);

/* The names of each group's parameters in the descriptions of FSDP1's units. They live in `arena`. */
tsr_status tsr_optimizer_unit_names(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, tsr_arena *arena,
                                    tsr_name_list **out, tsr_error *err);

/* Gives an optimizer without state and gradients the state that it would have after its first step. */
tsr_status tsr_optimizer_first(tsr_model_optimizer *optimizer, const tsr_optimizer_names *names, tsr_error *err);

/* Optimizer.state_dict(): parameters by number. Nodes live in `arena`. */
tsr_status tsr_optimizer_native(const tsr_model_optimizer *optimizer, tsr_arena *arena, const tsr_value **out,
                                tsr_error *err);

/* Optimizer.load_state_dict() with a state dict keyed by number. With `in_place`, as named optimizers call it, values are
 * cast to the dtype of the tensors that they replace. No communication; nothing is written unless everything fits. */
tsr_status tsr_optimizer_load_numbered(const tsr_optimizer_names *names, tsr_model_optimizer *optimizer,
                                       const tsr_value *state, bool in_place, tsr_error *err);

#endif
