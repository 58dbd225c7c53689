/* The state of an optimizer that has not stepped yet, so that there is something to save or to load into. */
#include <math.h>

#include "live/model/optimizer_names.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/read.h"

/* ---- optimizer first ---- */

typedef struct starting {
    tsr_model_optimizer *optimizer;
    const tsr_optimizer_names *names;
} starting;

bool tsr_optimizer_has_state(const tsr_model_optimizer *optimizer)
{
    if (optimizer->user_state && optimizer->user_state->count) return true;
    for (size_t g = 0; g < optimizer->group_count; g++)
        for (size_t p = 0; p < optimizer->groups[g].count; p++)
            if (optimizer->groups[g].params[p].state) return true;
    return false;
}

static bool has_state(void *ctx)
{
    return tsr_optimizer_has_state(((starting *)ctx)->optimizer);
}

static bool has_gradient(void *ctx, size_t group, size_t param)
{
    return ((starting *)ctx)->optimizer->groups[group].params[param].has_gradient;
}

#define AT_ONCE 256u /* elements */

static tsr_dtype real_dtype(tsr_dtype dtype)
{
    return dtype == TSR_COMPLEX64 ? TSR_FLOAT32 : dtype == TSR_COMPLEX128 ? TSR_FLOAT64 : dtype;
}

/* Rounds `value` to a real dtype. */
static float rounded(tsr_dtype dtype, float value)
{
    uint8_t bytes[sizeof value];
    if (dtype == TSR_FLOAT32) return value;
    tsr_cast(TSR_FLOAT32, dtype, (const uint8_t *)&value, 1, bytes);
    tsr_cast(dtype, TSR_FLOAT32, bytes, 1, (uint8_t *)&value);
    return value;
}

/* The weight of `lerp_`. A beta that is a tensor is cast to the parameter's dtype. */
static float weight_of(const tsr_state_spec *spec, tsr_dtype dtype)
{
    if (!spec->beta_cast) return (float)spec->weight;
    return rounded(dtype, 1 - rounded(dtype, (float)spec->beta));
}

static float single(const tsr_state_spec *spec, tsr_dtype dtype, float p)
{
    const bool within = spec->fused && spec->source != TSR_STATE_GRADIENT; /* nothing is rounded on the way */
    const float weight = weight_of(spec, dtype), zero = (float)spec->value;
    const float decay = within ? (float)spec->decay : rounded(dtype, (float)spec->decay);
    const float sum = spec->decay != 0 ? zero + decay * p : zero, g = within ? sum : rounded(dtype, sum);
    if (spec->source == TSR_STATE_SQUARE) return 0 + weight * g * g;
    if (spec->source == TSR_STATE_GRADIENT) return g;
    return fabsf(weight) < 0.5f ? 0 + weight * g : fmaf(weight - 1, g, g);
}

static double wide(const tsr_state_spec *spec, double p)
{
    const double g = spec->decay != 0 ? spec->value + spec->decay * p : spec->value;
    if (spec->source == TSR_STATE_SQUARE) return 0 + spec->weight * g * g;
    if (spec->source == TSR_STATE_GRADIENT) return g;
    return fabs(spec->weight) < 0.5 ? 0 + spec->weight * g : fma(spec->weight - 1, g, g);
}

/* Computes the elements of `spec` from the parameter's `elements`, rounding after each operation as PyTorch does. */
static void make_elements(const tsr_state_spec *spec, const uint8_t *elements, size_t count, uint8_t *out)
{
    float floats[2 * AT_ONCE];
    double doubles[2 * AT_ONCE];
    const tsr_dtype dtype = real_dtype(spec->dtype);
    const bool filled = spec->source == TSR_STATE_FILLED;
    const size_t numbers = dtype == spec->dtype ? count : 2 * count;
    if (dtype == TSR_FLOAT64) {
        if (!filled) memcpy(doubles, elements, numbers * sizeof *doubles);
        for (size_t i = 0; i < numbers; i++) doubles[i] = filled ? spec->value : wide(spec, doubles[i]);
        memcpy(out, doubles, numbers * sizeof *doubles);
        return;
    }
    if (!filled && dtype == TSR_FLOAT32) memcpy(floats, elements, numbers * sizeof *floats);
    else if (!filled) tsr_cast(dtype, TSR_FLOAT32, elements, numbers, (uint8_t *)floats);
    for (size_t i = 0; i < numbers; i++) floats[i] = filled ? (float)spec->value : single(spec, dtype, floats[i]);
    if (dtype == TSR_FLOAT32) memcpy(out, floats, numbers * sizeof *floats);
    else tsr_cast(TSR_FLOAT32, dtype, (const uint8_t *)floats, numbers, out);
}

/* Memory of a tensor, on its device. */
typedef struct buffer {
    tsr_device *device;
    void *data;
    uint64_t bytes;
    tsr_dtype dtype;
} buffer;

static tsr_status fill_buffer(const tsr_state_spec *spec, const buffer *param, const buffer *state, tsr_error *err)
{
    uint8_t in[2 * AT_ONCE * sizeof(double)], out[2 * AT_ONCE * sizeof(double)];
    const uint32_t in_size = tsr_dtype_size(param->dtype), out_size = tsr_dtype_size(state->dtype);
    for (uint64_t at = 0, count = state->bytes / out_size; at < count; at += AT_ONCE) {
        const size_t some = count - at < AT_ONCE ? (size_t)(count - at) : AT_ONCE;
        if (spec->source != TSR_STATE_FILLED)
            TSR_TRY(
                tsr_device_download(param->device, in, (const uint8_t *)param->data + at * in_size, some * in_size, err));
        make_elements(spec, in, some, out);
        TSR_TRY(tsr_device_upload(state->device, (uint8_t *)state->data + at * out_size, out, some * out_size, err));
    }
    return TSR_OK;
}

/* A tensor like the parameter, or a single number on the host or on the parameter's device. */
static tsr_status make_tensor(starting *s, const tsr_state_spec *spec, const tsr_tensor *param, const tsr_value **out,
                              tsr_error *err)
{
    const bool like = !spec->scalar;
    tsr_tensor want = like ? *param : tsr_tensor_whole(spec->dtype, spec->ndim, spec->shape, NULL);
    want.entry = (tsr_entry){.kind = TSR_ENTRY_TENSOR, .dtype = spec->dtype, .ndim = spec->ndim, .shape = want.entry.shape};
    TSR_FAIL_IF(param->meta, err, TSR_E_USAGE, "the parameter is meta: it has no state yet");
    const tsr_dtype dtype = real_dtype(spec->dtype);
    TSR_FAIL_IF(!tsr_cast_possible(TSR_FLOAT32, dtype) && dtype != TSR_FLOAT32, err, TSR_E_UNSUPPORTED,
                "the first state of a parameter of %s", tsr_dtype_describe(spec->dtype)->name);
    if (!like && spec->on_device) want.device = param->device;
    TSR_TRY(tsr_state_dict_allocate(s->optimizer->memory, &want, out, err));
    const tsr_tensor *state = tsr_tensor_of(*out);
    for (uint32_t i = 0; i < tsr_tensor_buffer_count(state); i++) {
        buffer from = {.device = param->device, .dtype = param->entry.dtype},
               to = {.device = state->device, .dtype = spec->dtype};
        if (like) TSR_TRY(tsr_tensor_buffer(param, i, s->names->arena, &from.data, &from.bytes, err));
        TSR_TRY(tsr_tensor_buffer(state, i, s->names->arena, &to.data, &to.bytes, err));
        TSR_TRY(fill_buffer(spec, &from, &to, err));
    }
    return TSR_OK;
}

static tsr_status create(void *ctx, size_t group, size_t param, const tsr_state_spec *specs, size_t count, tsr_error *err)
{
    starting *s = ctx;
    tsr_model_param *p = &s->optimizer->groups[group].params[param];
    tsr_arena *arena = tsr_state_dict_arena(s->optimizer->memory);
    const tsr_value **items = tsr_arena_array(arena, 2 * count, sizeof *items, err);
    uint32_t id;
    TSR_TRY(tsr_optimizer_param_id(s->names, p, NULL, &id, err));
    for (size_t i = 0; items && i < count; i++) {
        items[2 * i] = tsr_value_str(arena, tsr_arena_str(arena, specs[i].name, err), err);
        if (!items[2 * i]) return TSR_E_NOMEM;
        const tsr_status status = make_tensor(s, &specs[i], s->names->held[id], &items[2 * i + 1], err);
        if (status == TSR_OK) continue;
        tsr_error_context(err, "'%.*s'", TSR_STR_ARG(s->names->first[id]));
        return status;
    }
    p->state = items ? tsr_value_items(arena, TSR_VALUE_DICT, items, 2 * count, err) : NULL;
    return p->state ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status start_other(starting *s, tsr_error *err)
{
    const tsr_model_optimizer *o = s->optimizer;
    if (!o->first_state || tsr_optimizer_has_state(o)) return TSR_OK;
    for (size_t g = 0; g < o->group_count; g++)
        for (size_t p = 0; p < o->groups[g].count; p++)
            if (o->groups[g].params[p].has_gradient) return TSR_OK;
    return o->first_state(o->ctx, err);
}

/* The parameter as this rank's optimizer has it, which is this rank's part if a unit of FSDP1 manages it. */
static tsr_status param_here(const tsr_optimizer_names *names, const tsr_model_param *param, const tsr_module_tensor **out,
                             tsr_error *err)
{
    uint32_t id;
    TSR_TRY(tsr_optimizer_param_id(names, param, out, &id, err));
    if (!names->fsdp) return TSR_OK;
    if (names->fsdp->local[id]) *out = names->fsdp->local[id];
    return TSR_OK;
}

/* ---- options that are tensors ---- */

static bool is_readable(const tsr_value *value)
{
    const tsr_tensor *t = tsr_tensor_of(value);
    if (!t || t->spread != TSR_WHOLE || t->meta) return false;
    for (uint32_t i = 0; i < t->entry.ndim; i++)
        if (t->entry.shape[i] != 1) return false;
    switch (t->entry.dtype) {
    case TSR_FLOAT64:
    case TSR_FLOAT32:
    case TSR_FLOAT16:
    case TSR_BFLOAT16:
    case TSR_INT64:
    case TSR_INT32:
    case TSR_INT16:
    case TSR_INT8:
    case TSR_UINT8:
    case TSR_BOOL: return true;
    default: return false;
    }
}

static double element_of(tsr_dtype dtype, const uint8_t *bytes)
{
    double number;
    int64_t i64;
    int32_t i32;
    int16_t i16;
    switch (dtype) {
    case TSR_INT64: memcpy(&i64, bytes, sizeof i64); return (double)i64;
    case TSR_INT32: memcpy(&i32, bytes, sizeof i32); return i32;
    case TSR_INT16: memcpy(&i16, bytes, sizeof i16); return i16;
    case TSR_INT8: return (int8_t)*bytes;
    case TSR_UINT8:
    case TSR_BOOL: return *bytes;
    case TSR_FLOAT64: memcpy(&number, bytes, sizeof number); return number;
    default: tsr_cast(dtype, TSR_FLOAT64, bytes, 1, (uint8_t *)&number); return number;
    }
}

/* The element of a one-element tensor, as a number. */
static tsr_status number_of(tsr_arena *arena, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    uint8_t bytes[sizeof(double)];
    const tsr_tensor *t = tsr_tensor_of(value);
    TSR_TRY(tsr_device_download(t->device, bytes, t->data, tsr_dtype_size(t->entry.dtype), err));
    *out = tsr_value_float(arena, element_of(t->entry.dtype, bytes), err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* 1 - beta for a beta that is a tensor; computed in the tensor's dtype. */
static double rest_of(const tsr_value *beta, double number)
{
    const tsr_dtype dtype = tsr_tensor_of(beta)->entry.dtype;
    const bool narrow = dtype == TSR_FLOAT32 || dtype == TSR_FLOAT16 || dtype == TSR_BFLOAT16;
    return narrow ? rounded(dtype, 1 - (float)number) : 1 - number;
}

static tsr_status betas_of(tsr_arena *arena, const tsr_value *betas, tsr_live_group *out, const tsr_value **numbers,
                           tsr_error *err)
{
    const tsr_value **items;
    if ((betas->kind != TSR_VALUE_TUPLE && betas->kind != TSR_VALUE_LIST) || betas->count != 2 ||
        !is_readable(betas->items[0]) || !is_readable(betas->items[1]))
        return TSR_OK;
    if (!(items = tsr_arena_array(arena, 2, sizeof *items, err))) return TSR_E_NOMEM;
    for (size_t i = 0; i < 2; i++) TSR_TRY(number_of(arena, betas->items[i], &items[i], err));
    out->tensor_betas = true;
    out->second_weight = rest_of(betas->items[1], items[1]->as.real);
    *numbers = tsr_value_items(arena, betas->kind, items, 2, err);
    return *numbers ? TSR_OK : TSR_E_NOMEM;
}

/* PyTorch takes a weight decay of one element for a number only if it has no dimensions. */
static bool is_number(tsr_str key, const tsr_value *value)
{
    return is_readable(value) && (tsr_tensor_of(value)->entry.ndim == 0 || !tsr_str_equal(key, TSR_STR("weight_decay")));
}

/* The options with tensors replaced by numbers where the initial state depends on them, because core cannot read live
 * tensors. */
static tsr_status with_numbers(tsr_arena *arena, const tsr_value *options, tsr_live_group *out, tsr_error *err)
{
    out->options = options;
    if (options->kind != TSR_VALUE_DICT || !options->count) return TSR_OK;
    const tsr_value **items = tsr_arena_array(arena, options->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    memcpy(items, options->items, options->count * sizeof *items);
    for (size_t i = 0; i < options->count; i += 2) {
        if (items[i]->kind != TSR_VALUE_STR) continue;
        if (tsr_str_equal(items[i]->text, TSR_STR("betas"))) TSR_TRY(betas_of(arena, items[i + 1], out, &items[i + 1], err));
        else if (is_number(items[i]->text, items[i + 1])) TSR_TRY(number_of(arena, items[i + 1], &items[i + 1], err));
    }
    out->options = tsr_value_items(arena, TSR_VALUE_DICT, items, options->count, err);
    return out->options ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_optimizer_first(tsr_model_optimizer *optimizer, const tsr_optimizer_names *names, tsr_error *err)
{
    starting s = {optimizer, names};
    if (optimizer->algorithm >= TSR_OTHER_ALGORITHM) return start_other(&s, err);
    tsr_live_group *groups = tsr_arena_array(names->arena, optimizer->group_count, sizeof *groups, err);
    if (!groups) return TSR_E_NOMEM;
    for (size_t g = 0; g < optimizer->group_count; g++) {
        const tsr_model_group *group = &optimizer->groups[g];
        const tsr_module_tensor **params = tsr_arena_array(names->arena, group->count, sizeof *params, err);
        if (!params) return TSR_E_NOMEM;
        for (size_t p = 0; p < group->count; p++) TSR_TRY(param_here(names, &group->params[p], &params[p], err));
        groups[g] = (tsr_live_group){.params = params, .count = group->count};
        TSR_TRY(with_numbers(names->arena, group->options, &groups[g], err));
    }
    const tsr_live_optimizer live = {.algorithm = optimizer->algorithm,
                                     .default_dtype = optimizer->default_dtype,
                                     .groups = groups,
                                     .group_count = optimizer->group_count,
                                     .ctx = &s,
                                     .has_state = has_state,
                                     .has_gradient = has_gradient,
                                     .create = create};
    return tsr_optim_init(&live, err);
}
