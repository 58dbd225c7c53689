/* Converts the state of an optimizer whose parameters FSDP1's units manage between the optimizer's own form and the
 * canonical one. */
#ifndef TSR_STATEDICT_FSDP_OPTIMIZER_H
#define TSR_STATEDICT_FSDP_OPTIMIZER_H

#include "live/model/fsdp_bind.h"
#include "tessera/optimizer_state.h"

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

/* Describes this rank's units, and adds their parts to bound->held. Everything lives in `arena`. */
tsr_status tsr_fsdp_optimizers_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_fsdp_optimizers **out, tsr_error *err);
void tsr_fsdp_optimizers_free(tsr_fsdp_optimizers *fsdp); /* takes NULL */
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

#endif
