/* Live optimizers of a model: names of their parameters, their state dicts by number, their first states. */
#ifndef TSR_STATEDICT_OPTIMIZER_NAMES_H
#define TSR_STATEDICT_OPTIMIZER_NAMES_H

#include "statedict/model/fsdp_optimizer.h"
#include "tessera/optimizer_state.h"

typedef struct tsr_optimizer_names {
    const tsr_model *model;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_tensor_ids ids;
    tsr_tensor **held;         /* by id */
    tsr_str *first;            /* by id: the first canonical name of a parameter; data NULL: none */
    tsr_fsdp_optimizers *fsdp; /* of a tree with FSDP1's units; `ids` and `held` are its own */
} tsr_optimizer_names;

tsr_status tsr_optimizer_names_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_optimizer_names *out, tsr_error *err);
void tsr_optimizer_names_free(tsr_optimizer_names *names);
/* The tree's tensor of a parameter, by pointer or by name; NULL: none. */
const tsr_module_tensor *tsr_optimizer_param_of(const tsr_optimizer_names *names, const tsr_model_param *param);
/* TSR_E_USAGE when it is no parameter of the model. */
tsr_status tsr_optimizer_param_id(const tsr_optimizer_names *names, const tsr_model_param *param, uint32_t *id,
                                  tsr_error *err);

/* The names that FSDP1's descriptions have for the parameters of each group. In `arena`. */
tsr_status tsr_optimizer_unit_names(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, tsr_arena *arena,
                                    tsr_name_list **out, tsr_error *err);

/* The state that an optimizer has after its first step, where it has none and no gradient. */
tsr_status tsr_optimizer_first(tsr_model_optimizer *optimizer, const tsr_optimizer_names *names, tsr_error *err);

/* Optimizer.state_dict(): parameters by number. Nodes live in `arena`. */
tsr_status tsr_optimizer_native(const tsr_model_optimizer *optimizer, tsr_arena *arena, const tsr_value **out,
                                tsr_error *err);

/* Optimizer.load_state_dict() of a state dict keyed by number; with `in_place` as named optimizers call it: values become of
 * the type of the tensors that they replace. This rank alone; nothing is written unless all of it fits. */
tsr_status tsr_optimizer_load_numbered(const tsr_optimizer_names *names, tsr_model_optimizer *optimizer,
                                       const tsr_value *state, bool in_place, tsr_error *err);

/* Adds the keys of `given` that `*tree` does not have to it; both are keyed by number and were walked before. With
 * `tensors_only` TSR_E_FORMAT, naming the key, for anything but tensors with dimensions. */
tsr_status tsr_optimizer_add(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, const tsr_value *given,
                             bool tensors_only, const tsr_value **tree, tsr_error *err);

/* The part of flat state that is of the parameters in `lists`: a flat state dict may be that of other optimizers and of
 * other stages of a pipeline, too. */
tsr_status tsr_optimizer_own_keys(const tsr_value *flat, const tsr_name_list *lists, size_t count, tsr_arena *arena,
                                  const tsr_value **out, tsr_error *err);
/* What flat state must have for an optimizer; `names` are its groups'. check_flat: every option of its groups, under the
 * first name of each, as PyTorch looks for them. check_held, of what came of it: under `name` every state that the optimizer
 * holds of a parameter (`held`, may be NULL). TSR_E_NOT_FOUND with the key. */
tsr_status tsr_optimizer_check_flat(const tsr_value *flat, const tsr_model_optimizer *optimizer, const tsr_name_list *names,
                                    const tsr_host *host, tsr_arena *arena, tsr_error *err);
tsr_status tsr_optimizer_check_held(const tsr_value *nested, tsr_str name, const tsr_value *held, tsr_error *err);
/* tsr_unflatten.same for trees of live tensors; `arena` is its ctx. */
tsr_status tsr_optimizer_same_tensor(void *arena, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);

#endif
