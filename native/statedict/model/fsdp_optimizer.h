/* The state of an optimizer whose parameters FSDP1's units manage, between its own form and the canonical one. */
#ifndef TSR_STATEDICT_FSDP_OPTIMIZER_H
#define TSR_STATEDICT_FSDP_OPTIMIZER_H

#include "statedict/model/fsdp_bind.h"
#include "tessera/optimizer_state.h"

typedef struct tsr_fsdp_optimizers {
    tsr_fsdp_bound *bound;
    tsr_comm *world;
    tsr_comm *comm; /* the ranks that units and their replicas are cut among: of one place in tensor parallelism; or all */
    tsr_arena *arena;
    const tsr_module_tensor **local; /* by id: parameters that units manage, as this rank's optimizer has them */
    tsr_str *names;                  /* by id: what tsr_flat_params calls it; data NULL: no parameter */
    tsr_flat_params flat;            /* without groups */
    const tsr_fsdp_node **nodes;     /* of flat.units */
    uint32_t tp_size;                /* ranks of tensor parallelism; 1: there is none */
    bool transformed;                /* some unit's states are other tensors than FSDP flattens, or cut by the program */
    const tsr_mesh *mesh;            /* of the units; NULL: none */
} tsr_fsdp_optimizers;

/* This rank's own: fills bound->held with the parts of units, too. Everything lives in `arena`. */
tsr_status tsr_fsdp_optimizers_of(const tsr_model *model, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                  tsr_fsdp_optimizers **out, tsr_error *err);
void tsr_fsdp_optimizers_free(tsr_fsdp_optimizers *fsdp); /* takes NULL */
/* All ranks learn of a failure that those of one place in tensor parallelism have agreed on. Collective. */
tsr_status tsr_fsdp_optimizers_agree(const tsr_fsdp_optimizers *fsdp, tsr_status mine, tsr_error *err);
/* Which ranks are replicas. Collective. */
tsr_status tsr_fsdp_optimizers_meet(tsr_fsdp_optimizers *fsdp, tsr_error *err);

/* The model's parameters with the names that canonical states have: of a flat parameter those of its originals. PyTorch's
 * `_get_fqns` leaves wrappers' components in some of them (activation checkpointing within or around a unit), and finds
 * nothing under such names. */
tsr_status tsr_fsdp_optimizers_params(const tsr_fsdp_optimizers *fsdp, tsr_params **out, tsr_error *err);

/* An optimizer's state in FSDP1's units: the names of its parameters, how it is wanted, and whose memory results have. */
typedef struct tsr_fsdp_state_call {
    const tsr_fsdp_optimizers *fsdp;
    tsr_group_names groups;
    const tsr_state_options *options;
    tsr_state_dict *out;
} tsr_fsdp_state_call;

/* Collective. `native` is Optimizer.state_dict(). *root: NULL where nothing is kept. */
tsr_status tsr_fsdp_optimizer_get(const tsr_fsdp_state_call *call, const tsr_value *native, const tsr_value **root,
                                  tsr_error *err);
/* Collective. `state` is keyed by FQN (NULL where another rank's counts); *native by number, this rank's part. */
tsr_status tsr_fsdp_optimizer_set(const tsr_fsdp_state_call *call, const tsr_value *state, const tsr_value **native,
                                  tsr_error *err);

#endif
