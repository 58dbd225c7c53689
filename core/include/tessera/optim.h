/* Optimizer state in all its forms, as value trees (value.h) whose tensors are TSR_VALUE_TENSOR leaves: nothing here reads
 * or holds tensor bytes.
 *
 *   native     {"state": {0: {"step": t, "exp_avg": t}}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
 *   nested     the same, keyed by canonical FQN
 *   flat       {"state.fc.weight.step": t, "param_groups.fc.weight.lr": 0.1, …}
 *
 * Results live in `arena` and share the leaves, strings and untouched containers of what they were made from. Walks are
 * bounded by host->limits.depth and .expansion. Errors, unless a function says more: TSR_E_FORMAT for a state dict without
 * its parts or with keys that contradict each other, TSR_E_UNSUPPORTED for values the form cannot hold, TSR_E_LIMIT,
 * TSR_E_NOMEM; messages name the parameter. Thread rule: one arena, one thread.
 *
 * Source of the behaviour: torch/distributed/checkpoint/state_dict.py of PyTorch 2.13.
 *
 * Example:
 *
 *     const tsr_name_list *names;
 *     const tsr_value *named;
 *     size_t count;
 *     status = tsr_optim_name_groups(state, modules, NULL, 0, host, arena, &names, &count, &err);
 *     if (status == TSR_OK) status = tsr_optim_to_fqn(state, names, count, host, arena, &named, &err); */
#ifndef TESSERA_OPTIM_H
#define TESSERA_OPTIM_H

#include "tessera/catalog.h"
#include "tessera/fqn.h"

TSR_API_BEGIN

/* Nested (or native: ids become their decimals) → flat, as `_flatten_optim_state_dict`: dicts in a parameter's state are
 * flattened all the way down, everything else there must be a tensor, an int or a float; values of groups are kept whole,
 * once a parameter. Two unequal values under one flat name are an error. */
tsr_status tsr_optim_flatten(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                             tsr_error *err);

/* What the optimizer would tell when flat state is unflattened. All of it may be left out. */
typedef struct tsr_unflatten {
    /* Which FQNs exist and which of them require gradients; those have a state even if it is empty. NULL: FQNs are those of
     * the param_groups keys, whose last component is the option's name. */
    const tsr_params *params;
    /* The FQNs of each group; parameters of one group must agree in every option. NULL: parameters with equal options are
     * one group, in order of first appearance. */
    const tsr_name_list *groups;
    size_t group_count;
    /* Whether two tensors of one dtype and shape hold equal values: options may be tensors, and each parameter has its own.
     * NULL: only if they are the same bytes of one file. */
    tsr_status (*same)(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
    void *ctx;
} tsr_unflatten;
/* Flat → nested, as `_unflatten_optim_state_dict` does with a live optimizer. Errors: also those of `same`. */
tsr_status tsr_optim_unflatten(const tsr_value *flat, const tsr_unflatten *how, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

/* Native → nested: the names of every group's parameters in the order of its "params" (`_get_optim_state_dict`). State of an
 * id that no group lists is an error, as is an id in two groups. */
tsr_status tsr_optim_to_fqn(const tsr_value *native, const tsr_name_list *names, size_t group_count, const tsr_host *host,
                            tsr_arena *arena, const tsr_value **out, tsr_error *err);
/* Nested → native: parameters are numbered over the groups in order, as `Optimizer.state_dict()` does. */
tsr_status tsr_optim_to_id(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err);

/* The names that tsr_optim_to_fqn wants: `listed` (may be NULL) as it is; else each group's own "param_names" (optimizers
 * built with named parameters save them), canonicalized; else, for a single group, the model's parameters in order, all of
 * them or those that require gradients, whichever has the group's number. Otherwise TSR_E_USAGE. */
tsr_status tsr_optim_name_groups(const tsr_value *native, const tsr_modules *modules, const tsr_name_list *listed,
                                 size_t listed_count, const tsr_host *host, tsr_arena *arena, const tsr_name_list **out,
                                 size_t *out_count, tsr_error *err);

/* Several nested state dicts as one: states side by side, groups one after another. Two states of one parameter are an
 * error. */
tsr_status tsr_optim_merge(const tsr_value *const *parts, size_t count, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

/* A live optimizer as far as names go: groups of parameters, by index into a tsr_params. */
typedef struct tsr_optimizer_group {
    const size_t *params;
    size_t count;
} tsr_optimizer_group;
typedef struct tsr_optimizer {
    const tsr_optimizer_group *groups;
    size_t group_count;
} tsr_optimizer;

/* The part of a nested state dict that one optimizer wants (`_split_optim_state_dict`): groups are matched by FQN; of a
 * shared parameter the saved name is taken; frozen parameters have no state; a state dict keyed by ids (or without any
 * state) is passed through. Errors: TSR_E_NOT_FOUND for a parameter without saved state when `strict`; TSR_E_FORMAT when a
 * group without parameters has not exactly one counterpart. (PyTorch 2.13 gives such a group the options of the last
 * saved group, whichever is empty: here it gets its own.) */
tsr_status tsr_optim_split(const tsr_value *saved, const tsr_params *params, const tsr_optimizer *optimizer, bool strict,
                           const tsr_host *host, tsr_arena *arena, const tsr_value **out, tsr_error *err);

/* ---- around getting and loading ---- */

/* What an optimizer holds for a parameter after one step with zero gradients and learning rate 0, of which
 * `_init_optim_state` makes sure before state is loaded. At most TSR_STATE_SPECS entries. Without weight decay all elements
 * are `value`. Weight decay pulls the parameter's elements p into the state, and each operation rounds as PyTorch's kernels
 * on the CPU do. They compute in float64 for float64, else in float32 (op), and round to the parameter's dtype; complex
 * numbers are pairs of real ones:
 *
 *   gradient   g = (dtype)((dtype)decay × p); for the others with `fused` g = decay × p, which stays in op
 *   mean       |weight| < 0.5: weight × g; else fma(weight − 1, g, g)
 *   square     (weight × g) × g
 */
typedef enum tsr_algorithm { TSR_SGD, TSR_ADAM, TSR_ADAMW, TSR_OTHER_ALGORITHM } tsr_algorithm;
#define TSR_STATE_SPECS 4u
typedef enum tsr_state_source {
    TSR_STATE_FILLED = 0, /* with `value` */
    TSR_STATE_GRADIENT,
    TSR_STATE_MEAN,
    TSR_STATE_SQUARE
} tsr_state_source;
typedef struct tsr_state_spec {
    tsr_str name;
    tsr_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
    double value;
    tsr_state_source source;
    double decay, weight;
    bool fused;
    bool scalar;    /* not of the parameter's shape: "step" */
    bool on_device; /* a scalar on the parameter's device; otherwise on the host */
} tsr_state_spec;
typedef struct tsr_first_step {
    tsr_algorithm algorithm;
    const tsr_value *options; /* the param group */
    tsr_dtype default_dtype;  /* torch.get_default_dtype(): TSR_FLOAT64, or any other for float32 */
} tsr_first_step;
/* A frozen parameter has none. TSR_E_USAGE for algorithms not listed; TSR_E_UNSUPPORTED for a weight decay, or with it
 * betas, that are tensors. */
tsr_status tsr_optim_first_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out,
                                 size_t *count, tsr_error *err);

/* A live optimizer, as its program lends it. Parameters are named by group and place in it. */
typedef struct tsr_live_group {
    const tsr_value *options; /* the param group's dict; without "lr" none is touched */
    const tsr_module_tensor *const *params;
    size_t count;
} tsr_live_group;
typedef struct tsr_live_optimizer {
    tsr_algorithm algorithm;
    tsr_dtype default_dtype; /* as in tsr_first_step */
    const tsr_live_group *groups;
    size_t group_count;
    void *ctx;
    bool (*has_state)(void *ctx); /* of any parameter */
    bool (*has_gradient)(void *ctx, size_t group, size_t param);
    /* SGD, Adam, AdamW: makes a parameter's state as `specs` say. Not called where there is none. */
    tsr_status (*create)(void *ctx, size_t group, size_t param, const tsr_state_spec *specs, size_t count, tsr_error *err);
    /* TSR_OTHER_ALGORITHM: the parts of one step. `lr` NULL is 0; gradients are zeros for all parameters that require them,
     * or (`zeros` false) gone. */
    tsr_status (*set_lr)(void *ctx, size_t group, const tsr_value *lr, tsr_error *err);
    tsr_status (*set_gradients)(void *ctx, bool zeros, tsr_error *err);
    tsr_status (*step)(void *ctx, tsr_error *err);
} tsr_live_optimizer;
/* `_init_optim_state`: nothing is done, quietly, where there is state or a gradient already. Parameters do not change, and
 * learning rates and gradients are as before afterwards, also when a callback fails (its error is returned). TSR_E_USAGE for
 * TSR_OTHER_ALGORITHM without its callbacks. */
tsr_status tsr_optim_init(const tsr_live_optimizer *optimizer, tsr_error *err);

/* StateDictOptions. Its dsd_fqn_modifiers is a property of the module tree: tsr_module.modifiers are what the method of that
 * name says, and a tree without any is what other names give. */
typedef struct tsr_state_options {
    bool full_state_dict;
    bool cpu_offload;
    bool ignore_frozen_params;
    bool keep_submodule_prefixes;
    bool strict;
    bool broadcast_from_rank0;
    bool flatten_optimizer_state_dict;
} tsr_state_options;
/* All false but keep_submodule_prefixes and strict. */
tsr_state_options tsr_state_options_default(void);

/* What the options make of FSDP modules (`_verify_options`): FULL_STATE_DICT or SHARDED_STATE_DICT, and their settings. */
typedef struct tsr_fsdp_choice {
    bool full;
    bool offload_to_cpu;
    bool model_rank0_only, optimizer_rank0_only; /* full: only rank 0 keeps it */
} tsr_fsdp_choice;
tsr_fsdp_choice tsr_state_fsdp_choice(const tsr_state_options *options);

/* The refusals of `_verify_options`: TSR_E_USAGE. */
tsr_status tsr_state_options_check(const tsr_state_options *options, size_t optimizer_count, bool optimizers_only,
                                   tsr_error *err);

/* What is about to be saved or loaded. */
typedef struct tsr_state_request {
    bool handle_model, handle_optimizer;
    bool submodules; /* only some submodules are asked for */
    const tsr_str *model_keys;
    size_t model_key_count;
    bool optimizer_is_empty;
} tsr_state_request;
/* `_verify_state_dict`: state that must be there is not empty, and no model key holds "_flat_param". TSR_E_FORMAT. */
tsr_status tsr_state_dict_check(const tsr_state_options *options, const tsr_state_request *request, tsr_error *err);

/* One value of a nested state dict: its dotted name, and the path that the name alone does not tell ("0" may be a position
 * or a key). */
typedef struct tsr_state_key {
    tsr_str name;
    const tsr_path_item *path;
    uint32_t path_length;
    const tsr_value *value;
} tsr_state_key;
/* A nested state dict by dotted keys, by the rule of torch/distributed/_state_dict_utils.py: dicts, lists and tuples all
 * expand, keys become strings, empty containers vanish. Names and paths live in `arena`, values are shared. TSR_E_FORMAT for
 * a root that is not a dict, and when two paths give one key. Source: _flatten_state_dict. */
tsr_status tsr_state_keys(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                          size_t *count, tsr_error *err);
/* The same by the rule of DCP (checkpoint/_nested_dict.py), by which checkpoints are written: tuples are values, and so are
 * lists that hold neither tensors nor dicts at any depth. Source: flatten_state_dict. */
tsr_status tsr_state_keys_dcp(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                              size_t *count, tsr_error *err);
/* The inverse of both: a nested state dict again, in the order of `keys`, whose values and number may be others than were
 * flattened. Tuples that were expanded are lists then; list positions that no key has are None. Lives in `arena` and shares
 * the values. TSR_E_USAGE when a path leads through another value, is there twice, does not begin with a key, or makes one
 * container a list and a dict; TSR_E_LIMIT for too many missing positions. Source: _unflatten_state_dict, _set_element. */
tsr_status tsr_state_unflatten(const tsr_state_key *keys, size_t count, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
