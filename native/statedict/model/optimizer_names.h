/* Live optimizers of a model: the names of their parameters, their state dicts keyed by parameter number, and their
 * initial state. */
#ifndef TSR_STATEDICT_OPTIMIZER_NAMES_H
#define TSR_STATEDICT_OPTIMIZER_NAMES_H

#include "statedict/model/fsdp_optimizer.h"
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
/* Finds a parameter's tensor in the module tree by pointer or by name; NULL: none. */
const tsr_module_tensor *tsr_optimizer_param_of(const tsr_optimizer_names *names, const tsr_model_param *param);
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

/* Adds to `*tree` the keys of `given` that it lacks. Both are keyed by number, and their depth has been checked. With
 * `tensors_only`, returns TSR_E_FORMAT with the key for anything but tensors that have dimensions. */
tsr_status tsr_optimizer_add(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, const tsr_value *given,
                             bool tensors_only, const tsr_value **tree, tsr_error *err);

/* The part of a flat state dict that belongs to the parameters in `lists`. The state dict may contain other optimizers,
 * and other stages of a pipeline, as well. */
tsr_status tsr_optimizer_own_keys(const tsr_value *flat, const tsr_name_list *lists, size_t count, tsr_arena *arena,
                                  const tsr_value **out, tsr_error *err);
/* Check that a flat state dict has what an optimizer needs; TSR_E_NOT_FOUND with the missing key. check_flat: every
 * option of its groups, under the first of the group's `names`, where PyTorch looks for it. check_held, after
 * unflattening: under `name`, every state that the optimizer holds for that parameter (`held`, may be NULL). */
tsr_status tsr_optimizer_check_flat(const tsr_value *flat, const tsr_model_optimizer *optimizer, const tsr_name_list *names,
                                    const tsr_host *host, tsr_arena *arena, tsr_error *err);
tsr_status tsr_optimizer_check_held(const tsr_value *nested, tsr_str name, const tsr_value *held, tsr_error *err);
/* tsr_unflatten.same for trees of live tensors; `arena` is its ctx. */
tsr_status tsr_optimizer_same_tensor(void *arena, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);

#endif
