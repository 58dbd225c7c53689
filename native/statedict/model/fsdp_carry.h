/* What core's conversions of optimizer state are not given as it is: state that is distributed in ways of its own, and state
 * that FSDP flattens as another tensor than the program has. */
#ifndef TSR_STATEDICT_FSDP_CARRY_H
#define TSR_STATEDICT_FSDP_CARRY_H

#include "statedict/fsdp/fsdp_cut.h"
#include "statedict/model/fsdp_optimizer.h"

#include "tessera/sys/flat_index.h"

/* Names of one direction: who manages what. */
typedef struct tsr_fsdp_names {
    const tsr_fsdp_optimizers *fsdp;
    const tsr_flat_index *index;
    const tsr_name_list *groups; /* numbers count through them */
    size_t group_count;
} tsr_fsdp_names;

/* The parameter's name for a key of "state": a name, or a number. data NULL: neither. */
tsr_str tsr_fsdp_key_name(const tsr_fsdp_names *names, const tsr_value *key);
/* The unit whose flat parameter the state is cut from, and the original (TSR_NO_PARAM: all of them); NULL: none. Originals
 * of a unit that is not sharded keep their own. */
const tsr_fsdp_node *tsr_fsdp_cut_by(const tsr_fsdp_names *names, tsr_str name, uint32_t *original);

/* State of parameters that no unit cuts, as it was given. */
typedef struct tsr_fsdp_carried {
    tsr_map *places; /* name → number in `states` */
    tsr_vec states;  /* const tsr_value * */
} tsr_fsdp_carried;

/* `tree` ("state", "param_groups") with tensors without elements in place of the distributed ones of such parameters. */
tsr_status tsr_fsdp_set_aside(const tsr_fsdp_names *names, const tsr_value *tree, tsr_fsdp_carried *carried,
                              tsr_arena *arena, const tsr_value **out, tsr_error *err);
/* What was set aside under a name; NULL: nothing. */
const tsr_value *tsr_fsdp_carried_find(const tsr_fsdp_carried *carried, tsr_str name);
void tsr_fsdp_carried_free(tsr_fsdp_carried *carried); /* takes a zeroed one */

/* A call of a unit's extensions that is still to be made: all ranks of the unit must come to it. */
typedef struct tsr_fsdp_call {
    const tsr_fsdp_node *node;
    tsr_str fqn;
    tsr_tensor given;
    tsr_tensor *flattened; /* for its memory, or */
    tsr_value *made;       /* for its tensor */
} tsr_fsdp_call;

/* Whether all ranks of fsdp->comm are to make the same calls; `mine` is this rank's status so far. Collective over
 * fsdp->world. */
tsr_status tsr_fsdp_calls_agree(const tsr_fsdp_optimizers *fsdp, const tsr_vec *calls, tsr_status mine, tsr_error *err);

/* What is needed to give states the form that FSDP flattens. */
typedef struct tsr_fsdp_flattening {
    const tsr_fsdp_names *names;
    bool full; /* the states are */
    tsr_fsdp_moves *moves;
    tsr_vec *calls;            /* of tsr_fsdp_call */
    const tsr_fsdp_node *node; /* of the state at work */
    uint32_t original;
    tsr_str fqn;
} tsr_fsdp_flattening;

/* `tree` with states as FSDP flattens them in place of those that the program has: complete once the moves and the calls are
 * made. */
tsr_status tsr_fsdp_flatten_states(tsr_fsdp_flattening *how, const tsr_value *tree, const tsr_value **out, tsr_error *err);
/* Makes the calls. Collective over fsdp->world. */
tsr_status tsr_fsdp_flatten_calls(const tsr_fsdp_flattening *how, tsr_status mine, tsr_error *err);

/* Rank 0's tree on all ranks, with memory that `passing` owns. Collective. */
tsr_status tsr_fsdp_share_tree(tsr_comm *comm, const tsr_value **tree, tsr_state_dict *passing, tsr_error *err);

#endif
