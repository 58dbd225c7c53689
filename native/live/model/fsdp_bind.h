/* A tsr_model with FSDP1 units, in the form that fsdp_state.h needs. */
#ifndef TSR_STATEDICT_FSDP_BIND_H
#define TSR_STATEDICT_FSDP_BIND_H

#include "live/fsdp/fsdp_model.h"
#include "live/model/model_names.h"

typedef struct tsr_fsdp_bound {
    const tsr_model *model;
    const tsr_host *host;
    tsr_arena *arena; /* for the fields below */
    tsr_tensor_ids ids;
    tsr_tensor **held;      /* by id: the model's tensors */
    tsr_state_dict *out;    /* owns the result's leaves and extra state; NULL without a result */
    tsr_state_dict *leaves; /* `out`, or a state dict of its own */
    tsr_fsdp_model *units;
} tsr_fsdp_bound;

/* Whether the tree has FSDP1 nodes. */
bool tsr_fsdp_is_in(const tsr_modules *modules);
/* Binds this rank's model; the ranks compare their results afterwards. `given` has the model, the host, the arena and
 * `out`. */
tsr_status tsr_fsdp_bind(const tsr_fsdp_bound *given, tsr_comm *comm, tsr_fsdp_bound **bound, tsr_error *err);
void tsr_fsdp_unbind(tsr_fsdp_bound *bound); /* takes NULL */

/* Sets all units to FULL or SHARDED, according to the options. */
tsr_status tsr_fsdp_choose(const tsr_fsdp_bound *bound, const tsr_state_options *options, tsr_error *err);

/* Lists what units save, with canonical names. `raw` is FSDP1's key; the `tensor` of an original is a whole meta tensor.
 * The index is made as by tsr_model_items_of. */
tsr_status tsr_fsdp_model_items(const tsr_fsdp_bound *bound, tsr_arena *arena, tsr_model_items *out, tsr_error *err);

/* tsr_full_or_cpu for the state dict of a model with units. Only tensors that units do not manage can still be
 * distributed, even in a FULL state dict. */
tsr_status tsr_fsdp_full_or_cpu(const tsr_value *root, tsr_comm *comm, const tsr_state_options *options, tsr_state_dict *out,
                                tsr_error *err);

#endif
