/* Merges several optimizers into one state dict, and splits off each one's part again (the end of `_get_optim_state_dict`,
 * and `_split_optim_state_dict`, of PyTorch 2.13). */
#include "tessera/sys/optim.h"
#include <math.h>

#include "tessera/optim.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/try.h"

typedef struct merging {
    tsr_tree state, groups;
    tsr_map *seen; /* parameter → anything */
    tsr_arena *arena;
} merging;

static tsr_status add_part(merging *m, const tsr_value *part, tsr_error *err)
{
    tsr_optim_parts p;
    TSR_TRY(tsr_optim_take_apart(part, true, &p, err));
    for (size_t i = 0; i < p.state->count; i += 2) {
        tsr_str name;
        bool fresh;
        TSR_TRY(tsr_key_text(p.state->items[i], m->arena, &name, err));
        TSR_TRY(tsr_map_put(m->seen, name, 0, NULL, &fresh, err));
        TSR_FAIL_IF(!fresh, err, TSR_E_FORMAT, "optim: two optimizers have state for '%.*s'", TSR_STR_ARG(name));
        TSR_TRY(tsr_tree_put_key(&m->state, p.state->items[i], p.state->items[i + 1], err));
    }
    for (size_t i = 0; i < p.groups->count; i++) TSR_TRY(tsr_tree_add(&m->groups, p.groups->items[i], err));
    return TSR_OK;
}

tsr_status tsr_optim_merge(const tsr_value *const *parts, size_t count, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    merging m = {tsr_tree_on(host, arena), tsr_tree_on(host, arena), tsr_map_new(host->allocator, 0, err), arena};
    const tsr_value *state = NULL, *groups = NULL;
    tsr_status status = m.seen ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = add_part(&m, parts[i], err);
    if (status == TSR_OK) status = tsr_tree_finish(&m.state, TSR_VALUE_DICT, &state, err);
    if (status == TSR_OK) status = tsr_tree_finish(&m.groups, TSR_VALUE_LIST, &groups, err);
    if (status == TSR_OK) status = tsr_tree_optim(state, groups, arena, out, err);
    tsr_map_free(m.seen);
    tsr_tree_drop(&m.groups);
    tsr_tree_drop(&m.state);
    return status;
}

/* ---- split ---- */

#define NOWHERE UINT32_MAX

typedef struct splitting {
    const tsr_optim_parts *saved;
    const tsr_params *params;
    bool strict;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_map *state_of; /* FQN → index of its pair in saved->state */
    tsr_map *group_of; /* FQN → index of its group in saved->groups */
    uint32_t *target;  /* index of a saved group → group of the optimizer, or NOWHERE */
    tsr_tree state;
} splitting;

static tsr_status index_saved(splitting *s, tsr_error *err)
{
    const tsr_value *state = s->saved->state, *groups = s->saved->groups;
    for (size_t i = 0; i < state->count; i += 2) {
        if (state->items[i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_map_put(s->state_of, state->items[i]->text, (uint32_t)i, NULL, NULL, err));
    }
    for (size_t g = 0; g < groups->count; g++) {
        const tsr_value *params = tsr_group_params(groups->items[g]);
        s->target[g] = NOWHERE;
        for (size_t i = 0; i < params->count; i++) {
            if (params->items[i]->kind == TSR_VALUE_STR)
                TSR_TRY(tsr_map_put(s->group_of, params->items[i]->text, (uint32_t)g, NULL, NULL, err));
        }
    }
    return TSR_OK;
}

/* Takes the state of a parameter under one of its names, and assigns its saved group to `group`. */
static tsr_status take_name(splitting *s, const tsr_param *param, tsr_str fqn, uint32_t group, tsr_tree *names,
                            tsr_error *err)
{
    uint32_t saved_group = tsr_map_get(s->group_of, fqn, NOWHERE);
    if (param->shared && saved_group == NOWHERE) return TSR_OK; /* it was saved under another of its names */
    TSR_TRY(tsr_tree_add(names, tsr_value_str(s->arena, fqn, err), err));
    if (saved_group != NOWHERE) s->target[saved_group] = group;
    if (!param->tensor->requires_grad) return TSR_OK;
    uint32_t at = tsr_map_get(s->state_of, fqn, NOWHERE);
    if (at != NOWHERE) return tsr_tree_put_key(&s->state, s->saved->state->items[at], s->saved->state->items[at + 1], err);
    TSR_FAIL_IF(s->strict, err, TSR_E_NOT_FOUND, "optim: no state was saved for '%.*s', which requires gradients",
                TSR_STR_ARG(fqn));
    return TSR_OK;
}

/* Assigns the only saved group without parameters to a group of the optimizer that has none. */
static tsr_status take_empty(splitting *s, uint32_t group, size_t group_count, tsr_error *err)
{
    uint32_t found = NOWHERE, count = 0;
    for (uint32_t g = 0; g < s->saved->groups->count; g++) {
        if (tsr_group_params(s->saved->groups->items[g])->count) continue;
        found = g;
        count++;
    }
    TSR_FAIL_IF(count != 1, err, TSR_E_FORMAT,
                "optim: group %u of the optimizer has no parameters, which requires exactly one such group in the saved "
                "state; found %u",
                group, count);
    TSR_FAIL_IF(s->saved->groups->count != group_count, err, TSR_E_FORMAT,
                "optim: group %u of the optimizer has no parameters, which is only supported with one optimizer; %zu groups "
                "were saved, but it has %zu",
                group, s->saved->groups->count, group_count);
    s->target[found] = group;
    return TSR_OK;
}

/* dict[key] = value. If several saved groups belong to one group of the optimizer, the last one wins, as in PyTorch. */
static tsr_status set_option(tsr_tree *dict, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    const tsr_value **items = dict->items.items;
    for (size_t i = 0; i < dict->items.count; i += 2) {
        if (!tsr_key_equal(items[i], key)) continue;
        items[i + 1] = value;
        return TSR_OK;
    }
    return tsr_tree_put_key(dict, key, value, err);
}

static tsr_status put_options(splitting *s, uint32_t group, tsr_tree *dict, tsr_error *err)
{
    for (size_t g = 0; g < s->saved->groups->count; g++) {
        const tsr_value *saved = s->saved->groups->items[g];
        for (size_t k = 0; s->target[g] == group && k < saved->count; k += 2) {
            if (!tsr_is_params(saved->items[k])) TSR_TRY(set_option(dict, saved->items[k], saved->items[k + 1], err));
        }
    }
    return TSR_OK;
}

static tsr_status split_group(splitting *s, const tsr_optimizer *optimizer, uint32_t group, tsr_tree *names, tsr_error *err)
{
    const tsr_optimizer_group *own = &optimizer->groups[group];
    for (size_t i = 0; i < own->count; i++) {
        const tsr_param *param = tsr_params_at(s->params, own->params[i]);
        for (size_t f = 0; f < param->fqn_count; f++) TSR_TRY(take_name(s, param, param->fqns[f], group, names, err));
    }
    return own->count ? TSR_OK : take_empty(s, group, optimizer->group_count, err);
}

static tsr_status build_group(splitting *s, uint32_t group, const tsr_value *names, const tsr_value **out, tsr_error *err)
{
    tsr_tree dict = tsr_tree_on(s->host, s->arena);
    tsr_status status = tsr_tree_put(&dict, TSR_STR("params"), names, err);
    if (status == TSR_OK) status = put_options(s, group, &dict, err);
    if (status == TSR_OK) status = tsr_tree_finish(&dict, TSR_VALUE_DICT, out, err);
    tsr_tree_drop(&dict);
    return status;
}

static tsr_status split(splitting *s, const tsr_optimizer *optimizer, const tsr_value **out, tsr_error *err)
{
    const tsr_value **groups = tsr_arena_array(s->arena, optimizer->group_count, sizeof *groups, err);
    if (!groups || !s->target) return TSR_E_NOMEM;
    TSR_TRY(index_saved(s, err));
    for (uint32_t g = 0; g < optimizer->group_count; g++) { /* names first, because options need the names of every group */
        tsr_tree names = tsr_tree_on(s->host, s->arena);
        tsr_status status = split_group(s, optimizer, g, &names, err);
        if (status == TSR_OK) status = tsr_tree_finish(&names, TSR_VALUE_LIST, &groups[g], err);
        tsr_tree_drop(&names);
        if (status != TSR_OK) return status;
    }
    for (uint32_t g = 0; g < optimizer->group_count; g++) TSR_TRY(build_group(s, g, groups[g], &groups[g], err));
    const tsr_value *state, *list = tsr_value_items(s->arena, TSR_VALUE_LIST, groups, optimizer->group_count, err);
    if (!list) return TSR_E_NOMEM;
    TSR_TRY(tsr_tree_finish(&s->state, TSR_VALUE_DICT, &state, err));
    return tsr_tree_optim(state, list, s->arena, out, err);
}

tsr_status tsr_optim_split(const tsr_value *saved, const tsr_split *how, const tsr_host *host, tsr_arena *arena,
                           const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts parts;
    TSR_TRY(tsr_optim_take_apart(saved, true, &parts, err));
    bool ids = true; /* also true if there is no state at all */
    for (size_t i = 0; i < parts.state->count; i += 2) ids = ids && parts.state->items[i]->kind == TSR_VALUE_INT;
    if (ids) {
        *out = saved;
        return TSR_OK;
    }
    splitting s = {&parts,
                   how->params,
                   how->strict,
                   host,
                   arena,
                   tsr_map_new(host->allocator, 0, err),
                   tsr_map_new(host->allocator, 0, err),
                   tsr_arena_array(arena, parts.groups->count, sizeof(uint32_t), err),
                   tsr_tree_on(host, arena)};
    tsr_status status = s.state_of && s.group_of ? split(&s, how->optimizer, out, err) : TSR_E_NOMEM;
    tsr_tree_drop(&s.state);
    tsr_map_free(s.group_of);
    tsr_map_free(s.state_of);
    return status;
}

/* ---- first state ---- */

/* The state of an optimizer after its first step, both computed and on a live optimizer (`_init_optim_state` of PyTorch 2.13
 * takes a step with zero gradients and learning rate 0, to create the state that a checkpoint is loaded into). Also the
 * checks before getting and loading state. */

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

static bool is_number(const tsr_value *v)
{
    return v->kind == TSR_VALUE_FLOAT || v->kind == TSR_VALUE_INT || v->kind == TSR_VALUE_BOOL;
}

static double number(const tsr_value *v)
{
    return v->kind == TSR_VALUE_FLOAT ? v->as.real : v->kind == TSR_VALUE_INT ? (double)v->as.integer : v->as.boolean;
}

static tsr_status real_option(const tsr_value *options, const char *key, double *out, tsr_error *err)
{
    const tsr_value *v = tsr_value_get(options, tsr_str_from(key));
    *out = 0;
    if (!v) return TSR_OK;
    TSR_FAIL_IF(!is_number(v), err, TSR_E_UNSUPPORTED, "optim: '%s' is a %s; the first state is only known for numbers", key,
                tsr_value_kind_name(v));
    *out = number(v);
    return TSR_OK;
}

/* betas[i]; 0.9 and 0.999 if there are none. */
static tsr_status beta(const tsr_value *options, size_t i, double *out, tsr_error *err)
{
    const tsr_value *betas = tsr_value_get(options, TSR_STR("betas"));
    *out = i ? 0.999 : 0.9;
    if (!betas) return TSR_OK;
    TSR_FAIL_IF(
        betas->count != 2 || !is_number(betas->items[i]), err, TSR_E_UNSUPPORTED,
        "optim: 'betas' is not a pair of numbers; with weight decay, the first state is only known for a pair of numbers");
    *out = number(betas->items[i]);
    return TSR_OK;
}

static tsr_state_spec like_parameter(const char *name, const tsr_module_tensor *param)
{
    return (tsr_state_spec){.name = tsr_str_from(name), .dtype = param->dtype, .ndim = param->ndim, .shape = param->shape};
}

static bool is_complex(const tsr_module_tensor *param)
{
    return param->dtype == TSR_COMPLEX64 || param->dtype == TSR_COMPLEX128;
}

/* Sets the gradient of the step: zeros. They are negative with "maximize", except for complex parameters. Unless weight
 * decay is decoupled from the gradient, decay × parameter is added. */
static tsr_status gradient_into(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *spec,
                                tsr_error *err)
{
    const bool decoupled = step->algorithm == TSR_ADAMW || is_true(step->options, "decoupled_weight_decay");
    spec->value = is_true(step->options, "maximize") && !is_complex(param) ? -0.0 : 0;
    return decoupled ? TSR_OK : real_option(step->options, "weight_decay", &spec->decay, err);
}

static tsr_status sgd_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out, size_t *count,
                            tsr_error *err)
{
    if (!is_true(step->options, "momentum")) return TSR_OK;
    out[0] = like_parameter("momentum_buffer", param);
    out[0].fused = is_true(step->options, "fused");
    *count = 1;
    TSR_TRY(gradient_into(step, param, &out[0], err));
    if (out[0].decay != 0) out[0].source = TSR_STATE_GRADIENT;
    return TSR_OK;
}

/* The mean after the step. A mean of zeros is +0, except that of negative zeros if there is no previous value. */
static tsr_status adam_mean(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_source source,
                            tsr_state_spec *spec, tsr_error *err)
{
    double b = 0;
    const bool square = source == TSR_STATE_SQUARE;
    TSR_TRY(gradient_into(step, param, spec, err));
    if (spec->decay == 0 && (square || !signbit(spec->value))) {
        spec->value = 0;
        return TSR_OK;
    }
    TSR_TRY(beta(step->options, square, &b, err));
    spec->source = source;
    spec->fused = is_true(step->options, "fused");
    const bool tensors = step->tensor_betas && !spec->fused; /* fused steps turn them into numbers */
    spec->beta = b;
    spec->weight = tensors && square ? step->second_weight : 1 - b;
    spec->beta_cast = tensors && !square;
    return TSR_OK;
}

static tsr_status adam_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out, size_t *count,
                             tsr_error *err)
{
    static const char *const names[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    const bool fused = is_true(step->options, "fused"), wide = step->default_dtype == TSR_FLOAT64 && !fused;
    const size_t most = is_true(step->options, "amsgrad") ? 3 : 2;
    out[0] = (tsr_state_spec){.name = TSR_STR("step"), .dtype = wide ? TSR_FLOAT64 : TSR_FLOAT32, .value = 1};
    out[0].scalar = true;
    out[0].on_device = fused || is_true(step->options, "capturable");
    for (size_t i = 0; i < most; i++) {
        out[i + 1] = like_parameter(names[i], param);
        TSR_TRY(adam_mean(step, param, i ? TSR_STATE_SQUARE : TSR_STATE_MEAN, &out[i + 1], err));
    }
    *count = most + 1;
    return TSR_OK;
}

tsr_status tsr_optim_first_state(const tsr_first_step *step, const tsr_module_tensor *param, tsr_state_spec *out,
                                 size_t *count, tsr_error *err)
{
    *count = 0;
    TSR_FAIL_IF(step->options->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: a param group is a %s; expected a dict",
                tsr_value_kind_name(step->options));
    if (!param->requires_grad) return TSR_OK;
    switch (step->algorithm) {
    case TSR_SGD: return sgd_state(step, param, out, count, err);
    case TSR_ADAM:
    case TSR_ADAMW: return adam_state(step, param, out, count, err);
    default: break;
    }
    return tsr_fail(err, TSR_E_USAGE, "optim: the first state of this algorithm is unknown; the caller must provide it");
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
        const tsr_first_step step = {o->algorithm, group->options, o->default_dtype, group->tensor_betas,
                                     group->second_weight};
        for (size_t p = 0; p < group->count; p++) {
            tsr_state_spec specs[TSR_STATE_SPECS];
            size_t count;
            TSR_TRY(tsr_optim_first_state(&step, group->params[p], specs, &count, err));
            if (count) TSR_TRY(o->create(o->ctx, g, p, specs, count, err));
        }
    }
    return TSR_OK;
}

/* Sets the learning rates: with `zero`, those of all groups to 0, counting the groups in `*done`; otherwise restores those
 * of the first `*done` groups. */
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

/* Takes one step that only changes the state. Restores gradients and learning rates even if the step fails. */
static tsr_status step_in_place(const tsr_live_optimizer *o, tsr_error *err)
{
    size_t zeroed = 0;
    TSR_FAIL_IF(!o->set_lr || !o->set_gradients || !o->step, err, TSR_E_USAGE,
                "optim: the first state of an unknown algorithm requires a step: provide set_lr, set_gradients and step");
    tsr_status status = o->set_gradients(o->ctx, true, err);
    if (status == TSR_OK) status = set_rates(o, true, &zeroed, err);
    if (status == TSR_OK) status = o->step(o->ctx, err);
    tsr_status restored = set_rates(o, false, &zeroed, err), gone = o->set_gradients(o->ctx, false, err);
    return status != TSR_OK ? status : restored != TSR_OK ? restored : gone;
}

tsr_status tsr_optim_init(const tsr_live_optimizer *optimizer, tsr_error *err)
{
    if (!is_untouched(optimizer)) return TSR_OK;
    return optimizer->algorithm >= TSR_OTHER_ALGORITHM ? step_in_place(optimizer, err) : create_states(optimizer, err);
}

/* ---- checks before getting and loading ---- */

tsr_state_options tsr_state_options_default(void)
{
    return (tsr_state_options){.size = sizeof(tsr_state_options), .keep_submodule_prefixes = true, .strict = true};
}

tsr_fsdp_choice tsr_state_fsdp_choice(const tsr_state_options *options)
{
    bool full = options->full_state_dict, offload = options->cpu_offload;
    return (tsr_fsdp_choice){full, offload, full && offload, full && (offload || options->broadcast_from_rank0)};
}

tsr_status tsr_state_options_check(const tsr_state_options *options, size_t optimizer_count, bool optimizers_only,
                                   tsr_error *err)
{
    TSR_FAIL_IF(optimizers_only && optimizer_count == 0, err, TSR_E_USAGE,
                "state dict: only optimizer state is requested, but there is no optimizer");
    TSR_FAIL_IF(options->broadcast_from_rank0 && !options->full_state_dict, err, TSR_E_USAGE,
                "state dict: broadcast_from_rank0 needs full_state_dict");
    return TSR_OK;
}

tsr_status tsr_state_dict_check(const tsr_state_options *options, const tsr_state_request *request, tsr_error *err)
{
    bool elsewhere =
        (options->cpu_offload && options->full_state_dict) || options->broadcast_from_rank0; /* only rank 0 has it */
    bool model_excused = request->submodules || options->ignore_frozen_params || !options->strict;
    TSR_FAIL_IF(request->handle_model && request->model_key_count == 0 && !model_excused && !elsewhere, err, TSR_E_FORMAT,
                "state dict: the model's state is to be saved or loaded, but it is empty");
    TSR_FAIL_IF(request->handle_optimizer && request->optimizer_is_empty && !elsewhere, err, TSR_E_FORMAT,
                "state dict: the optimizer's state is to be saved or loaded, but it is empty");
    for (size_t i = 0; i < request->model_key_count; i++) {
        tsr_str key = request->model_keys[i], flat = TSR_STR("_flat_param");
        for (size_t at = 0; at + flat.size <= key.size; at++)
            TSR_FAIL_IF(memcmp(key.data + at, flat.data, flat.size) == 0, err, TSR_E_FORMAT,
                        "state dict: '%.*s' holds _flat_param; perhaps the model is not the root module", TSR_STR_ARG(key));
    }
    return TSR_OK;
}
