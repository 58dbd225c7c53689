/* See tessera/sys/layers.h. */
#include "tessera/sys/layers.h"

#include "tessera/sys/casts.h"
#include "tessera/sys/chosen_names.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/merge.h"
#include "tessera/sys/try.h"

bool tsr_options_are_layered(const tsr_command_options *options)
{
    return options->map || options->dequantize || options->lora || options->quantize;
}

tsr_status tsr_layering_check(const tsr_layering *wanted, tsr_error *err)
{
    const tsr_command_options *o = wanted->options;
    TSR_FAIL_IF(o->inverse && !wanted->map.data, err, TSR_E_USAGE, "--inverse needs --map MAP");
    TSR_FAIL_IF(!o->quantize && o->no_quantize.count, err, TSR_E_USAGE, "--no-quantize needs --quantize");
    TSR_FAIL_IF(o->quantize && o->raw_cast, err, TSR_E_USAGE, "--raw-cast and --quantize cannot be used together");
    return TSR_OK;
}

void tsr_layers_add(tsr_layers *layers, tsr_checkpoint *layer)
{
    layers->items[layers->count++] = layers->top = layer;
}

void tsr_layers_close(tsr_layers *layers)
{
    while (layers->count) tsr_checkpoint_close(layers->items[--layers->count]);
}

static tsr_status fold(tsr_layers *layers, const tsr_layering *wanted, tsr_error *err)
{
    tsr_lora_options options = TSR_OPTIONS(tsr_lora_options);
    tsr_checkpoint *layer;
    options.name = wanted->adapter_name;
    TSR_TRY(tsr_cast_parse(tsr_str_from(wanted->options->dtype), false, &options.dtype, err));
    const tsr_status status = tsr_lora_fold(layers->top, wanted->adapter, &options, &layer, err);
    if (status == TSR_OK) tsr_layers_add(layers, layer);
    else if (!wanted->adapter_name.size) tsr_error_context(err, "adapter");
    return status;
}

static tsr_status parse_map(const tsr_checkpoint *source, const tsr_layering *wanted, tsr_arena *arena,
                            const tsr_mapping_rules **rules, tsr_error *err)
{
    tsr_status status = tsr_mapping_parse(wanted->map, tsr_checkpoint_host(source), arena, rules, err);
    if (status == TSR_OK && wanted->options->inverse) status = tsr_mapping_invert(*rules, arena, rules, err);
    if (status != TSR_OK) tsr_error_context(err, "%s", wanted->map_called);
    return status;
}

static tsr_status apply_map(tsr_layers *layers, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    tsr_checkpoint *layer;
    TSR_TRY(parse_map(layers->top, wanted, arena, &rules, err));
    TSR_TRY(tsr_mapping_open(layers->top, rules, &layer, err));
    tsr_layers_add(layers, layer);
    return tsr_mapping_compare_layers(layer, err);
}

static bool is_used(void *ctx, tsr_str fqn)
{
    const tsr_open_options *used = ((const tsr_layering *)ctx)->used;
    return !used || !used->selects || used->selects(used->selects_ctx, fqn);
}

static bool is_quantized(void *ctx, tsr_str fqn)
{
    const tsr_name_globs kept = {.exclude = ((const tsr_layering *)ctx)->options->no_quantize};
    return tsr_globs_select(&kept, fqn);
}

tsr_status tsr_layers_quantize(tsr_layers *layers, const tsr_layering *wanted, tsr_error *err)
{
    tsr_quantize_options options = TSR_OPTIONS(tsr_quantize_options);
    tsr_checkpoint *layer;
    if (!wanted->options->quantize) return TSR_OK;
    options.want = is_used;
    options.quantize = is_quantized;
    options.want_ctx = options.quantize_ctx = (void *)(uintptr_t)wanted;
    TSR_TRY(tsr_cast_parse(tsr_str_from(wanted->options->dtype), false, &options.dtype, err));
    if (options.dtype != TSR_DTYPE_NONE)
        TSR_TRY(tsr_check_casts(layers->top, &(tsr_convert_options){.dtype = options.dtype}, err));
    TSR_TRY(tsr_mapping_quantize(layers->top, &options, &layers->quantized, &layer, err));
    tsr_layers_add(layers, layer);
    return TSR_OK;
}

tsr_status tsr_layers_open(tsr_layers *layers, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err)
{
    const tsr_command_options *options = wanted->options;
    tsr_dequantizing done = {.layer = NULL};
    TSR_TRY(tsr_layering_check(wanted, err));
    if (options->dequantize) {
        TSR_TRY(tsr_dequantize_open(layers->top, tsr_str_from(options->dtype), &done, err));
        tsr_layers_add(layers, done.layer);
        layers->products = done.dtype;
    }
    if (wanted->adapter) TSR_TRY(fold(layers, wanted, err));
    if (wanted->map.data) TSR_TRY(apply_map(layers, wanted, arena, err));
    if (done.layer) TSR_TRY(tsr_dequantize_check(&done, layers->top, wanted->used, err));
    if (!wanted->lists) TSR_TRY(tsr_mapping_check_tied(layers->top, err));
    return tsr_layers_quantize(layers, wanted, err);
}

tsr_status tsr_layers_cast(const tsr_command_options *options, tsr_dtype *out, tsr_error *err)
{
    *out = TSR_DTYPE_NONE;
    return options->quantize ? TSR_OK : tsr_cast_parse(tsr_str_from(options->dtype), options->raw_cast, out, err);
}
