/* Around getting and loading the state of live optimizers: what one of several wants, and the state after a first step.
 *
 * Example:
 *
 *     const tsr_first_step first = {.algorithm = TSR_ADAM, .options = state};
 *     tsr_state_spec specs[TSR_STATE_SPECS];
 *     size_t count;
 *     status = tsr_optim_first_state(&first, &(tsr_module_tensor){.dtype = TSR_FLOAT32}, specs, &count, &err);
 *     if (status == TSR_OK) printf("%zu tensors\n", count); */
#ifndef TESSERA_SYS_OPTIM_LIVE_H
#define TESSERA_SYS_OPTIM_LIVE_H

#include "tessera/optim.h"
#include "tessera/optimizer_state.h"

TSR_API_BEGIN

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
typedef struct tsr_split {
    const tsr_params *params;
    const tsr_optimizer *optimizer;
    bool strict;
} tsr_split;
tsr_status tsr_optim_split(const tsr_value *saved, const tsr_split *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

/* What an optimizer holds for a parameter after one step with zero gradients and learning rate 0, of which
 * `_init_optim_state` makes sure before state is loaded. At most TSR_STATE_SPECS entries. Without weight decay all elements
 * are `value`. Weight decay pulls the parameter's elements p into the state, and each operation rounds as PyTorch's kernels
 * on the CPU do. They compute in float64 for float64, otherwise in float32 (op), and round to the parameter's dtype; complex
 * numbers are pairs of real ones:
 *
 *   gradient   g = (dtype)((dtype)decay × p); for the others with `fused` g = decay × p, which stays in op
 *   mean       |weight| < 0.5: weight × g; otherwise fma(weight − 1, g, g)
 *   square     (weight × g) × g
 */
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
    uint32_t ndim;
    const uint64_t *shape;
    double value;
    tsr_state_source source;
    double decay, weight;
    double beta; /* 1 - weight */
    bool fused;
    bool
        beta_cast; /* the beta was a tensor: it, and then 1 - beta in place of weight, are rounded to the state's real type */
    bool scalar;   /* not of the parameter's shape: "step" */
    bool on_device; /* a scalar on the parameter's device; otherwise on the host */
} tsr_state_spec;
typedef struct tsr_first_step {
    tsr_algorithm algorithm;
    const tsr_value *options; /* the param group */
    tsr_dtype default_dtype;  /* torch.get_default_dtype(): TSR_FLOAT64, or any other for float32 */
    bool tensor_betas;        /* the betas in `options` are elements of tensors, which are rounded in other places */
    double second_weight;     /* then: 1 - the second of them, rounded to its type */
} tsr_first_step;
/* A frozen parameter has none. TSR_E_USAGE for algorithms not listed; TSR_E_UNSUPPORTED for a weight decay, or with it
 * betas, that are tensors: a caller that can read them gives their elements. */
tsr_status tsr_optim_first_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out,
                                 size_t *count, tsr_error *err);

/* A live optimizer, as its program lends it. Parameters are named by group and place in it. */
typedef struct tsr_live_group {
    const tsr_value *options; /* the param group's dict; without "lr" none is touched */
    const tsr_module_tensor *const *params;
    size_t count;
    bool tensor_betas;    /* as in tsr_first_step */
    double second_weight; /* as there */
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
    /* TSR_OTHER_ALGORITHM and those after it: the parts of one step. `lr` NULL is 0; gradients are zeros for all parameters
     * that require them, or (`zeros` false) gone. */
    tsr_status (*set_lr)(void *ctx, size_t group, const tsr_value *lr, tsr_error *err);
    tsr_status (*set_gradients)(void *ctx, bool zeros, tsr_error *err);
    tsr_status (*step)(void *ctx, tsr_error *err);
} tsr_live_optimizer;
/* `_init_optim_state`: does nothing, without an error, if there is already state or a gradient. Parameters do not change,
 * and learning rates and gradients are as before afterwards, also when a callback fails (its error is returned). TSR_E_USAGE
 * for any other algorithm without its callbacks. */
tsr_status tsr_optim_init(const tsr_live_optimizer *optimizer, tsr_error *err);

/* The state dict type that the options give FSDP modules (`_verify_options`): FULL_STATE_DICT or SHARDED_STATE_DICT, and
 * settings. */
typedef struct tsr_fsdp_choice {
    bool full;
    bool offload_to_cpu;
    bool model_rank0_only, optimizer_rank0_only; /* full: only rank 0 keeps it */
} tsr_fsdp_choice;
tsr_fsdp_choice tsr_state_fsdp_choice(const tsr_state_options *options);

/* The refusals of `_verify_options`: TSR_E_USAGE. */
tsr_status tsr_state_options_check(const tsr_state_options *options, size_t optimizer_count, bool optimizers_only,
                                   tsr_error *err);

/* A request to save or load, before it starts. */
typedef struct tsr_state_request {
    bool handle_model, handle_optimizer;
    bool submodules; /* only some submodules are asked for */
    const tsr_str *model_keys;
    size_t model_key_count;
    bool optimizer_is_empty;
} tsr_state_request;
/* `_verify_state_dict`: state that must be there is not empty, and no model key holds "_flat_param". TSR_E_FORMAT. */
tsr_status tsr_state_dict_check(const tsr_state_options *options, const tsr_state_request *request, tsr_error *err);

/* Several nested state dicts as one: states side by side, groups one after another. Two states of one parameter are an
 * error. */
tsr_status tsr_optim_merge(const tsr_value *const *parts, size_t count, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
