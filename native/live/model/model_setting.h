/* tsr_set_model_state_dict in two steps, so that tsr_set_state_dict writes nothing unless the optimizers' state fits, too. */
#ifndef TSR_STATEDICT_MODEL_SETTING_H
#define TSR_STATEDICT_MODEL_SETTING_H

#include "live/fsdp/fsdp_load.h"
#include "live/model/fsdp_bind.h"
#include "tessera/redistribute.h"
#include "tessera/sys/redistribute.h"

typedef struct tsr_model_setting {
    const tsr_model *model;
    tsr_call call;
    const tsr_state_options *options; /* the call's */
    const tsr_host *host;
    tsr_comm *comm;
    tsr_arena *passing, *arena;
    const tsr_value *state; /* NULL: this rank receives another rank's state */
    tsr_unmatched_keys *unmatched, own;
    tsr_model_items items;
    tsr_fsdp_bound *bound;    /* of a tree with FSDP1's units */
    tsr_fsdp_loading loading; /* of them */
    const tsr_value **values; /* by item; NULL: none */
    bool *matched;            /* by item */
    tsr_dtype *dtypes;        /* of a broadcast into units, by item: rank 0's */
    tsr_move *moves;          /* tensors with different layouts in the state dict and in the model */
    size_t move_count;
    bool any_moves; /* on any rank */
    bool nothing;   /* no rank has anything to load */
    tsr_state_dict *scratch;
} tsr_model_setting;

/* Checks everything that can be wrong, and changes nothing in the model. Collective, with the same status on all ranks.
 * `setting` must be closed with tsr_model_setting_close whatever this returns. It borrows `model`, `state` and what
 * `call` points to. */
tsr_status tsr_model_setting_open(tsr_model_setting *setting, const tsr_model *model, const tsr_value *state,
                                  const tsr_state_call *call, tsr_error *err);
/* Loads the state that was checked. Collective. */
tsr_status tsr_model_setting_write(tsr_model_setting *setting, tsr_error *err);
void tsr_model_setting_close(tsr_model_setting *setting);

#endif
