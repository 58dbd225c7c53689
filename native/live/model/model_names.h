/* The items of a live model's state dict, in the order of `model.state_dict()` and with canonical names; and what getting
 * and setting share. */
#ifndef TSR_LIVE_MODEL_MODEL_NAMES_H
#define TSR_LIVE_MODEL_MODEL_NAMES_H

#include "live/fsdp/fsdp_model.h"
#include "live/tensor/state_dict.h"
#include "tessera/model_state.h"
#include "tessera/redistribute.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/statedict.h"

typedef struct tsr_model_item {
    tsr_str raw; /* the name in nn.Module.state_dict(), with the components of all wrappers */
    tsr_str fqn;
    bool renamed;       /* PyTorch finds it under another key of model.state_dict() */
    bool unit;          /* a unit of FSDP1 manages it */
    tsr_tensor *tensor; /* NULL: extra state */
} tsr_model_item;

typedef struct tsr_model_items {
    tsr_model_item *items;
    size_t count;
    tsr_map *index; /* FQN → index in `items` */
} tsr_model_items;

void tsr_model_items_free(tsr_model_items *items); /* takes a zeroed one */

/* Numbers the tensors of a module tree. Tensors with the same identity (shared ones) have the same number. */
typedef struct tsr_tensor_ids {
    tsr_map *map;
    const tsr_module_tensor **keys;
    uint32_t count; /* number of ids */
} tsr_tensor_ids;
#define TSR_NO_ID UINT32_MAX
tsr_status tsr_tensor_ids_of(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_tensor_ids *out,
                             tsr_error *err);
uint32_t tsr_tensor_ids_get(const tsr_tensor_ids *ids, const tsr_module_tensor *const *of);
void tsr_tensor_ids_free(tsr_tensor_ids *ids);

/* The model's live tensors by id; NULL where the model has none. */
tsr_status tsr_model_held(const tsr_model *model, const tsr_tensor_ids *ids, tsr_arena *arena, tsr_tensor ***out,
                          tsr_error *err);

/* The canonical name of a raw name, which must have exactly one. *renamed (may be NULL): a component was removed other
 * than that of activation checkpointing, which is never part of a state dict's keys. */
tsr_status tsr_model_fqn(const tsr_modules *modules, tsr_str raw, tsr_arena *arena, tsr_str *fqn, bool *renamed,
                         tsr_error *err);

/* Adds the canonical names that getting leaves out with ignore_frozen_params: as in PyTorch the first name of a frozen
 * parameter, and all originals of a flat one. */
tsr_status tsr_model_frozen(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_map *names,
                            tsr_error *err);

/* Fails on all ranks if one of them has failed so far, or if their options or numbers of optimizers differ. Collective. */
tsr_status tsr_options_agree(tsr_comm *comm, const char *call, const tsr_state_options *options, size_t optimizers,
                             tsr_status mine, tsr_error *err);
/* A call with its missing fields filled in. */
typedef struct tsr_call {
    tsr_state_call given; /* its comm is never NULL */
    tsr_state_options options;
    tsr_comm *self; /* a communicator made for a call without one; or NULL */
} tsr_call;
/* Errors: those of TSR_OPTIONS_COPY, and of making a communicator of one process. */
tsr_status tsr_call_open(tsr_call *call, const tsr_state_call *given, const tsr_host *host, tsr_error *err);
void tsr_call_close(tsr_call *call);

/* Checks a model's state dict that is about to be saved or loaded. */
tsr_status tsr_model_verify(const tsr_state_options *options, const tsr_value *state, bool submodules, tsr_arena *arena,
                            tsr_error *err);

/* ---- fsdp bind ---- */

/* A tsr_model with FSDP1 units, in the form that fsdp_state.h needs. */

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

/* Lists the model's items: those of its tree, or, with FSDP1 units, what they save, after they have been bound to *bound and set
 * to FULL or SHARDED according to the options. *bound stays NULL without units. `raw` is then FSDP1's key, and the `tensor` of
 * an original is a whole meta tensor. The ranks compare their results afterwards. Errors: those of tsr_get_model_state_dict. */
tsr_status tsr_model_items_open(const tsr_fsdp_bound *given, tsr_comm *comm, const tsr_state_options *options,
                                tsr_fsdp_bound **bound, tsr_model_items *out, tsr_error *err);

#endif
