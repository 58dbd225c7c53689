/* Optimizer state that core's conversions cannot take as it is: DTensors of parameters that no unit manages, and state
 * whose tensor is not the one that FSDP flattened (extensions, tensor parallelism). */
#ifndef TSR_STATEDICT_FSDP_CARRY_H
#define TSR_STATEDICT_FSDP_CARRY_H

#include "live/fsdp/fsdp_cut.h"
#include "live/model/fsdp_optimizer.h"

#include "tessera/sys/flat_index.h"

/* The names of one conversion, and which unit manages each. */
typedef struct tsr_fsdp_names {
    const tsr_fsdp_optimizers *fsdp;
    const tsr_flat_index *index;
    const tsr_name_list *groups; /* parameter numbers count through all groups */
    size_t group_count;
} tsr_fsdp_names;

/* The parameter's name for a key of "state", which is a name or a number. data NULL: the key is neither. */
tsr_str tsr_fsdp_key_name(const tsr_fsdp_names *names, const tsr_value *key);
/* The unit whose flat parameter the state belongs to, and the original parameter (TSR_NO_PARAM: all originals); NULL: no
 * unit. The originals of a unit that is not sharded have state of their own, so they belong to none. */
const tsr_fsdp_node *tsr_fsdp_cut_by(const tsr_fsdp_names *names, tsr_str name, uint32_t *original);

/* State of parameters that no unit shards, as the caller passed it. */
typedef struct tsr_fsdp_carried {
    tsr_map *places; /* name → number in `states` */
    tsr_vec states;  /* const tsr_value * */
} tsr_fsdp_carried;

/* Sets the distributed tensors of such parameters aside: `*out` is `tree` ("state", "param_groups") with empty tensors in
 * their place. */
tsr_status tsr_fsdp_set_aside(const tsr_fsdp_names *names, const tsr_value *tree, tsr_fsdp_carried *carried,
                              tsr_arena *arena, const tsr_value **out, tsr_error *err);
/* The state that was set aside for a parameter; NULL: none. */
const tsr_value *tsr_fsdp_carried_find(const tsr_fsdp_carried *carried, tsr_str name);
void tsr_fsdp_carried_free(tsr_fsdp_carried *carried); /* takes a zeroed one */

/* A pending call of a unit's extensions. It is collective: all ranks of the unit must make it. */
typedef struct tsr_fsdp_call {
    const tsr_fsdp_node *node;
    tsr_str fqn;
    tsr_tensor given;
    tsr_tensor *flattened; /* gets the result's memory; or NULL, and */
    tsr_value *made;       /* gets the result as a tensor */
} tsr_fsdp_call;

/* Whether all ranks of fsdp->comm are to make the same calls; `mine` is this rank's status so far. Collective over
 * fsdp->world. */
tsr_status tsr_fsdp_calls_agree(const tsr_fsdp_optimizers *fsdp, const tsr_vec *calls, tsr_status mine, tsr_error *err);

/* How state is converted to the tensors that FSDP flattened. */
typedef struct tsr_fsdp_flattening {
    const tsr_fsdp_names *names;
    bool full; /* the states are whole tensors */
    tsr_fsdp_moves *moves;
    tsr_vec *calls;            /* of tsr_fsdp_call */
    const tsr_fsdp_node *node; /* the unit of the state that is being converted */
    uint32_t original;
    tsr_str fqn;
} tsr_fsdp_flattening;

/* `*out` is `tree` with each state replaced by the tensor that FSDP flattened. The tensors are complete once the moves
 * and the calls have been made. */
tsr_status tsr_fsdp_flatten_states(tsr_fsdp_flattening *how, const tsr_value *tree, const tsr_value **out, tsr_error *err);
/* Makes the calls. Collective over fsdp->world. */
tsr_status tsr_fsdp_flatten_calls(const tsr_fsdp_flattening *how, tsr_status mine, tsr_error *err);

/* Gives all ranks a copy of rank 0's tree in memory that `passing` owns. Collective. */
tsr_status tsr_fsdp_share_tree(tsr_comm *comm, const tsr_value **tree, tsr_state_dict *passing, tsr_error *err);

#endif
