/* What an optimizer's state looks like after its first step (`_init_optim_state` of PyTorch 2.13 takes one with zero
 * gradients and learning rate 0, so that there is a state to load into), on paper and live; and the checks around getting
 * and loading. */
#include "base/try.h"
#include "optim/tree.h"
#include "tessera/optim.h"

static bool is_true(const tsr_value *options, const char *key)
{
    const tsr_value *v = tsr_value_get(options, tsr_str_from(key));
    if (!v) return false;
    switch (v->kind) {
    case TSR_VALUE_BOOL: return v->as.boolean;
    case TSR_VALUE_INT: return v->as.integer != 0;
    case TSR_VALUE_FLOAT: return v->as.real != 0;
    default: return v->kind != TSR_VALUE_NONE;
    }
}

static double real_option(const tsr_value *options, const char *key, double absent)
{
    const tsr_value *v = tsr_value_get(options, tsr_str_from(key));
    if (v && v->kind == TSR_VALUE_FLOAT) return v->as.real;
    return v && v->kind == TSR_VALUE_INT ? (double)v->as.integer : absent;
}

/* betas[i]: 0.9 and 0.999 where they are not told as numbers. */
static double beta(const tsr_value *options, size_t i)
{
    const tsr_value *betas = tsr_value_get(options, TSR_STR("betas"));
    bool told = betas && betas->count == 2 && betas->items[i]->kind == TSR_VALUE_FLOAT;
    return told ? betas->items[i]->as.real : i ? 0.999 : 0.9;
}

static tsr_state_spec like_parameter(const char *name, const tsr_module_tensor *param, double factor, uint32_t power)
{
    return (tsr_state_spec){tsr_str_from(name), param->dtype, param->rank, param->shape, 0, factor, power};
}

/* With weight decay the gradient of the step is decay × parameter, unless decay is decoupled from it. */
static size_t adam_state(const tsr_value *options, const tsr_module_tensor *param, bool decoupled, tsr_state_spec *out)
{
    double decay = decoupled ? 0 : real_option(options, "weight_decay", 0), square = (1 - beta(options, 1)) * decay * decay;
    size_t count = 0;
    out[count++] = (tsr_state_spec){.name = TSR_STR("step"), .dtype = TSR_FLOAT32, .value = 1};
    out[count++] = like_parameter("exp_avg", param, (1 - beta(options, 0)) * decay, 1);
    out[count++] = like_parameter("exp_avg_sq", param, square, 2);
    if (is_true(options, "amsgrad")) out[count++] = like_parameter("max_exp_avg_sq", param, square, 2);
    return count;
}

tsr_status tsr_optim_first_state(tsr_algorithm algorithm, const tsr_value *options, const tsr_module_tensor *param,
                                 tsr_state_spec *out, size_t *count, tsr_error *err)
{
    *count = 0;
    TSR_FAIL_IF(options->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, TSR_NO_POSITION,
                "optim: a param group is a %s, expected a dict", tsr_value_kind_name(options));
    if (!param->requires_grad) return TSR_OK;
    switch (algorithm) {
    case TSR_SGD:
        if (is_true(options, "momentum"))
            out[(*count)++] = like_parameter("momentum_buffer", param, real_option(options, "weight_decay", 0), 1);
        return TSR_OK;
    case TSR_ADAM: *count = adam_state(options, param, is_true(options, "decoupled_weight_decay"), out); return TSR_OK;
    case TSR_ADAMW: *count = adam_state(options, param, true, out); return TSR_OK;
    case TSR_OTHER_ALGORITHM: break;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "optim: the first state of this algorithm is the caller's to tell");
}

/* ---- a live optimizer ---- */

static bool is_untouched(const tsr_live_optimizer *o)
{
    if (o->has_state(o->ctx)) return false;
    for (size_t g = 0; g < o->group_count; g++) {
        for (size_t p = 0; p < o->groups[g].count; p++) {
            if (o->has_gradient(o->ctx, g, p)) return false;
        }
    }
    return true;
}

static tsr_status create_states(const tsr_live_optimizer *o, tsr_error *err)
{
    for (size_t g = 0; g < o->group_count; g++) {
        const tsr_live_group *group = &o->groups[g];
        for (size_t p = 0; p < group->count; p++) {
            tsr_state_spec specs[TSR_STATE_SPECS];
            size_t count;
            TSR_TRY(tsr_optim_first_state(o->algorithm, group->options, group->params[p], specs, &count, err));
            if (count) TSR_TRY(o->create(o->ctx, g, p, specs, count, err));
        }
    }
    return TSR_OK;
}

/* Sets the learning rates of the first `*done` groups, or of all, counting them in `*done`. */
static tsr_status set_rates(const tsr_live_optimizer *o, bool zero, size_t *done, tsr_error *err)
{
    size_t until = zero ? o->group_count : *done;
    tsr_status status = TSR_OK;
    for (size_t g = 0; g < until && status == TSR_OK; g++) {
        const tsr_value *lr = tsr_value_get(o->groups[g].options, TSR_STR("lr"));
        if (zero) *done = g + 1;
        if (lr) status = o->set_lr(o->ctx, g, zero ? NULL : lr, err);
    }
    return status;
}

/* One step that changes nothing but the state; what was set for it is taken back whatever happens. */
static tsr_status step_in_place(const tsr_live_optimizer *o, tsr_error *err)
{
    size_t zeroed = 0;
    TSR_FAIL_IF(!o->set_lr || !o->set_gradients || !o->step, err, TSR_E_USAGE, TSR_NO_POSITION,
                "optim: an unknown algorithm's first state takes a step of it: set_lr, set_gradients and step are needed");
    tsr_status status = o->set_gradients(o->ctx, true, err);
    if (status == TSR_OK) status = set_rates(o, true, &zeroed, err);
    if (status == TSR_OK) status = o->step(o->ctx, err);
    tsr_status restored = set_rates(o, false, &zeroed, err), gone = o->set_gradients(o->ctx, false, err);
    return status != TSR_OK ? status : restored != TSR_OK ? restored : gone;
}

tsr_status tsr_optim_init(const tsr_live_optimizer *optimizer, tsr_error *err)
{
    if (!is_untouched(optimizer)) return TSR_OK;
    return optimizer->algorithm == TSR_OTHER_ALGORITHM ? step_in_place(optimizer, err) : create_states(optimizer, err);
}

/* ---- around getting and loading ---- */

tsr_state_options tsr_state_options_default(void)
{
    return (tsr_state_options){.keep_submodule_prefixes = true, .strict = true};
}

tsr_fsdp_choice tsr_state_fsdp_choice(const tsr_state_options *options)
{
    bool full = options->full_state_dict, offload = options->cpu_offload;
    return (tsr_fsdp_choice){full, offload, full && offload, full && (offload || options->broadcast_from_rank0)};
}

tsr_status tsr_state_options_check(const tsr_state_options *options, size_t optimizer_count, bool optimizers_only,
                                   tsr_error *err)
{
    TSR_FAIL_IF(optimizers_only && optimizer_count == 0, err, TSR_E_USAGE, TSR_NO_POSITION,
                "state dict: only optimizer state is asked for, but there is no optimizer");
    TSR_FAIL_IF(options->broadcast_from_rank0 && !options->full_state_dict, err, TSR_E_USAGE, TSR_NO_POSITION,
                "state dict: broadcast_from_rank0 needs full_state_dict");
    return TSR_OK;
}

tsr_status tsr_state_dict_check(const tsr_state_options *options, const tsr_state_request *request, tsr_error *err)
{
    bool elsewhere =
        (options->cpu_offload && options->full_state_dict) || options->broadcast_from_rank0; /* only rank 0 has it */
    bool model_excused = request->submodules || options->ignore_frozen_params || !options->strict;
    TSR_FAIL_IF(request->handle_model && request->model_key_count == 0 && !model_excused && !elsewhere, err, TSR_E_FORMAT,
                TSR_NO_POSITION, "state dict: the model's state is to be saved or loaded, but it is empty");
    TSR_FAIL_IF(request->handle_optimizer && request->optimizer_is_empty && !elsewhere, err, TSR_E_FORMAT, TSR_NO_POSITION,
                "state dict: the optimizer's state is to be saved or loaded, but it is empty");
    for (size_t i = 0; i < request->model_key_count; i++) {
        tsr_str key = request->model_keys[i], flat = TSR_STR("_flat_param");
        for (size_t at = 0; at + flat.size <= key.size; at++)
            TSR_FAIL_IF(memcmp(key.data + at, flat.data, flat.size) == 0, err, TSR_E_FORMAT, TSR_NO_POSITION,
                        "state dict: '%.*s' holds _flat_param; perhaps the model is not the root module", TSR_STR_ARG(key));
    }
    return TSR_OK;
}
