/* Live optimizers of a model: the names of their parameters, their state dicts keyed by parameter number, and their
 * initial state. */
#ifndef TSR_LIVE_MODEL_OPTIMIZER_NAMES_H
#define TSR_LIVE_MODEL_OPTIMIZER_NAMES_H

#include "live/fsdp/fsdp_model.h"
#include "live/model/model_names.h"
#include "tessera/optimizer_state.h"
#include "tessera/statedict.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim.h"

/* ---- optimizer take ---- */

/* Converts loaded values to what an optimizer keeps: in its own memory, with the dtype and device that
 * Optimizer.load_state_dict gives them (`_process_value_according_to_param_policy` of PyTorch 2.13). */

typedef struct tsr_taking {
    tsr_state_dict *memory; /* of what is not there yet */
    tsr_arena *passing;
    const tsr_tensor *param; /* the parameter whose state it is; NULL: options, which are not cast */
    bool is_step;            /* it is the value of "step" */
    bool step_moves;         /* capturable or fused: step is float32 on the parameter's device */
    bool in_place;           /* values are cast to the dtype of existing tensors and copied into them */
    const tsr_map *lent;     /* memory from which other values have yet to be loaded; NULL: none */
} tsr_taking;

/* Adds the memory of all tensors in a value, which must outlive the map. */
tsr_status tsr_optimizer_lend(const tsr_value *value, tsr_map *lent, tsr_error *err);
/* Copies `given` into the tensors that are already `there` if they fit, otherwise into new memory; NULL on failure. The
 * depth of `given` has been checked by earlier walks. */
const tsr_value *tsr_optimizer_take(const tsr_taking *taking, const tsr_value *given, const tsr_value *there,
                                    tsr_error *err);

/* ---- fsdp optimizer ---- */

/* Converts the state of an optimizer whose parameters FSDP1's units manage between the optimizer's own form and the
 * canonical one. */

typedef struct tsr_fsdp_optimizers {
    tsr_fsdp_bound *bound;
    tsr_comm *world;
    tsr_comm *comm; /* the ranks that units and replicas are sharded over: those of one tensor parallel coordinate */
    tsr_arena *arena;
    const tsr_module_tensor **local; /* by id: the parameters that units manage, as this rank's optimizer has them */
    tsr_str *names;                  /* by id: its name in tsr_flat_params; data NULL: not a parameter */
    tsr_flat_params flat;            /* its groups are not set */
    const tsr_fsdp_node **nodes;     /* one per unit of flat.units */
    uint32_t tp_size;                /* number of tensor parallel ranks; 1: no tensor parallelism */
    bool transformed;                /* some unit's state is not the tensors that FSDP flattens, or the program shards it */
    const tsr_mesh *mesh;            /* the units' mesh; NULL: none */
} tsr_fsdp_optimizers;

/* Tells all ranks of a failure on which the ranks with one tensor parallel coordinate have agreed. Collective. */
tsr_status tsr_fsdp_optimizers_agree(const tsr_fsdp_optimizers *fsdp, tsr_status mine, tsr_error *err);
/* Finds out which ranks are replicas. Collective. */
tsr_status tsr_fsdp_optimizers_meet(tsr_fsdp_optimizers *fsdp, tsr_error *err);

/* The model's parameters with their names in canonical state dicts; a flat parameter has the names of its originals.
 * PyTorch's `_get_fqns` leaves wrappers' components in some names (activation checkpointing inside or around a unit), and
 * then finds nothing under them. */
tsr_status tsr_fsdp_optimizers_params(const tsr_fsdp_optimizers *fsdp, tsr_params **out, tsr_error *err);

/* A call on an optimizer's state in FSDP1's units: the names of its parameters, the options, and the owner of the
 * results. */
typedef struct tsr_fsdp_state_call {
    const tsr_fsdp_optimizers *fsdp;
    tsr_group_names groups;
    const tsr_state_options *options;
    tsr_state_dict *out;
} tsr_fsdp_state_call;

/* Collective. `native` is Optimizer.state_dict(). *root is NULL on ranks that keep nothing. */
tsr_status tsr_fsdp_optimizer_get(const tsr_fsdp_state_call *call, const tsr_value *native, const tsr_value **root,
                                  tsr_error *err);
/* Collective. `state` is keyed by FQN (NULL on ranks that receive another rank's). *native is this rank's part, keyed by
 * number. */
tsr_status tsr_fsdp_optimizer_set(const tsr_fsdp_state_call *call, const tsr_value *state, const tsr_value **native,
                                  tsr_error *err);

/* ---- optimizer names ---- */

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
/* Finds a parameter, and its tensor in the module tree (`out` may be NULL). TSR_E_USAGE when it is not one of the model's. */
tsr_status tsr_optimizer_param_id(const tsr_optimizer_names *names, const tsr_model_param *param,
                                  const tsr_module_tensor **out, uint32_t *id, tsr_error *err);

/* The names of each group's parameters in the descriptions of FSDP1's units. They live in `arena`. */
tsr_status tsr_optimizer_unit_names(const tsr_optimizer_names *names, const tsr_model_optimizer *optimizer, tsr_arena *arena,
                                    tsr_name_list **out, tsr_error *err);

/* Gives an optimizer without state and gradients the state that it would have after its first step. */
tsr_status tsr_optimizer_first(tsr_model_optimizer *optimizer, const tsr_optimizer_names *names, tsr_error *err);

/* Optimizer.state_dict(): parameters by number. Nodes live in `arena`. */
tsr_status tsr_optimizer_native(const tsr_model_optimizer *optimizer, tsr_arena *arena, const tsr_value **out,
                                tsr_error *err);

/* Whether it has state of any parameter, or of none. */
bool tsr_optimizer_has_state(const tsr_model_optimizer *optimizer);

/* ---- optimizer write ---- */

/* Loading one optimizer's state on this rank, once it is keyed by number and each rank has its part. */

typedef struct tsr_loaded_state {
    const tsr_optimizer_names *names; /* with the arena of what passes */
    tsr_model_optimizer *optimizer;
    const tsr_value *state; /* what is loaded: {"state": …, "param_groups": […]} */
    bool full;              /* its tensors are whole, to be spread later */
    bool in_place;          /* as of tsr_taking */
    const tsr_map *lent;    /* of all states that are loaded (tsr_optimizer_lend) */
} tsr_loaded_state;

/* TSR_E_LIMIT for a value that is nested too deeply, or with `*visited`, which counts on, has too many values. */
tsr_status tsr_optimizer_bounded(const tsr_value *value, const tsr_host *host, uint64_t *visited, tsr_error *err);
/* TSR_E_FORMAT unless the param groups have as many parameters as the optimizer's, and options. */
tsr_status tsr_optimizer_check_groups(const tsr_model_optimizer *optimizer, const tsr_value *state, tsr_error *err);
/* Whether the states fit the parameters, and what the optimizer holds; for checked groups. Writes nothing. */
tsr_status tsr_optimizer_check_states(const tsr_loaded_state *loaded, tsr_error *err);
/* Replaces the optimizer's states, options and state of no parameter. */
tsr_status tsr_optimizer_write(const tsr_loaded_state *loaded, tsr_error *err);

/* Gives all ranks a copy of rank 0's tree in memory that `passing` owns. Collective. */
tsr_status tsr_fsdp_share_tree(tsr_comm *comm, const tsr_value **tree, tsr_state_dict *passing, tsr_error *err);

#endif
