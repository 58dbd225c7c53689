/* A tsr_model with FSDP1's units, as fsdp_state.h wants it. */
#ifndef TSR_STATEDICT_FSDP_BIND_H
#define TSR_STATEDICT_FSDP_BIND_H

#include "statedict/fsdp/fsdp_model.h"
#include "statedict/model/model_names.h"

typedef struct tsr_fsdp_bound {
    const tsr_model *model;
    const tsr_host *host;
    tsr_arena *arena; /* of what follows */
    tsr_tensor_ids ids;
    tsr_tensor **held;      /* by id, as the model has them */
    tsr_state_dict *out;    /* where leaves and values of extra state go that a result keeps; NULL: there is none */
    tsr_state_dict *leaves; /* `out`, or one of its own */
    tsr_fsdp_model *units;
} tsr_fsdp_bound;

/* Whether the tree has FSDP1 nodes. */
bool tsr_fsdp_is_in(const tsr_modules *modules);
/* This rank's own judgement. `given` has the model, the host, the arena and `out`. */
tsr_status tsr_fsdp_bind(const tsr_fsdp_bound *given, tsr_comm *comm, tsr_fsdp_bound **bound, tsr_error *err);
void tsr_fsdp_unbind(tsr_fsdp_bound *bound); /* takes NULL */

/* FULL or SHARDED for all units, as the options say. */
tsr_status tsr_fsdp_choose(const tsr_fsdp_bound *bound, const tsr_state_options *options, tsr_error *err);

/* What units save, with canonical names: `raw` is the key among FSDP1's, `tensor` whole and meta for originals. The
 * index as tsr_model_items_of. */
tsr_status tsr_fsdp_model_items(const tsr_fsdp_bound *bound, tsr_arena *arena, tsr_model_items *out, tsr_error *err);

/* tsr_full_or_cpu for what units gave: only what they do not manage can still be distributed, and be in the FULL state. */
tsr_status tsr_fsdp_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
                                tsr_error *err);

#endif
