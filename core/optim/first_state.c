/* What an optimizer's state looks like after its first step (`_init_optim_state` of PyTorch 2.13 takes one with zero
 * gradients and learning rate 0, so that there is a state to load into), and the checks around getting and loading. */
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

static tsr_state_spec like_parameter(const char *name, const tsr_module_tensor *param)
{
    return (tsr_state_spec){tsr_str_from(name), param->dtype, param->rank, param->shape, 0};
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
        if (is_true(options, "momentum")) out[(*count)++] = like_parameter("momentum_buffer", param);
        return TSR_OK;
    case TSR_ADAM:
    case TSR_ADAMW:
        out[(*count)++] = (tsr_state_spec){TSR_STR("step"), TSR_FLOAT32, 0, NULL, 1};
        out[(*count)++] = like_parameter("exp_avg", param);
        out[(*count)++] = like_parameter("exp_avg_sq", param);
        if (is_true(options, "amsgrad")) out[(*count)++] = like_parameter("max_exp_avg_sq", param);
        return TSR_OK;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "optim: the first state of this algorithm is the caller's to tell");
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
