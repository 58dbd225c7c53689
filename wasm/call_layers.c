/* Opens the layers over a call's checkpoint that --dequantize, --lora, --map and --quantize ask for, in this order. */
#include "tessera/mapping.h"
#include "tessera/sys/merge.h"

#include "request.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/mapping.h"

bool tessera_call_is_layered(const call *c)
{
    static const char *const options[CALL_LAYERS] = {"dequantize", "lora", "map", "quantize"};
    for (unsigned i = 0; i < CALL_LAYERS; i++)
        if (tessera_option_given(&c->request, options[i])) return true;
    return false;
}

static void add_layer(call *c, tsr_checkpoint *layer)
{
    c->layers[c->layer_count++] = c->checkpoint = layer;
}

/* ---- --map ---- */

static bool is_document(tsr_str text)
{
    size_t at = 0;
    while (at < text.size && strchr(" \t\r\n", text.data[at])) at++;
    return at < text.size && text.data[at] == '{';
}

tsr_str tessera_call_map_text(const call *c)
{
    const tsr_str given = tessera_option_text(&c->request, "map");
    return is_document(given) ? given : tsr_mapping_builtin(given);
}

static tsr_status parse_map(call *c, tsr_str given, const tsr_mapping_rules **rules, tsr_error *err)
{
    const bool document = is_document(given);
    const tsr_str text = tessera_call_map_text(c);
    if (!text.size) return tsr_mapping_unknown(given, err);
    tsr_status status = tsr_mapping_parse(text, &c->host, c->arena, rules, err);
    if (status == TSR_OK && tessera_option_given(&c->request, "inverse"))
        status = tsr_mapping_invert(*rules, c->arena, rules, err);
    if (status != TSR_OK && document) tsr_error_context(err, "--map");
    else if (status != TSR_OK) tsr_error_context(err, "--map %.*s", TSR_STR_ARG(given));
    return status;
}

static tsr_status apply_map(call *c, tsr_error *err)
{
    const tsr_str given = tessera_option_text(&c->request, "map");
    const tsr_mapping_rules *rules;
    tsr_status status = given.data ? parse_map(c, given, &rules, err) : TSR_OK;
    if (status != TSR_OK || !given.data) return status;
    tsr_checkpoint *mapped;
    status = tsr_mapping_open(c->checkpoint, rules, &mapped, err);
    if (status != TSR_OK) return status;
    add_layer(c, mapped);
    return tsr_mapping_compare_layers(mapped, err);
}

/* ---- --dequantize ---- */

static tsr_status dequantize(call *c, tsr_dequantizing *out, tsr_error *err)
{
    if (!tessera_option_given(&c->request, "dequantize")) return TSR_OK;
    const tsr_status status = tsr_dequantize_open(c->source, tessera_option_text(&c->request, "dtype"), out, err);
    if (status == TSR_OK) add_layer(c, out->layer);
    return status;
}

static tsr_status check_dequantized(call *c, const tsr_dequantizing *done, tsr_error *err)
{
    const tsr_open_options options = {.selects = tessera_selects, .selects_ctx = &c->request};
    if (!tessera_option_given(&c->request, "dequantize")) return TSR_OK;
    return tsr_dequantize_check(done, c->checkpoint, &options, err);
}

/* ---- --lora ---- */

static tsr_status fold(call *c, tsr_error *err)
{
    tsr_lora_options options = TSR_OPTIONS(tsr_lora_options);
    tsr_checkpoint *layer;
    if (!c->adapter) return TSR_OK;
    tsr_status status = tsr_cast_parse(tessera_option_text(&c->request, "dtype"), false, &options.dtype, err);
    if (status != TSR_OK) return status;
    status = tsr_lora_fold(c->checkpoint, c->adapter->checkpoint, &options, &layer, err);
    if (status == TSR_OK) add_layer(c, layer);
    else tsr_error_context(err, "adapter");
    return status;
}

/* ---- --quantize ---- */

static bool is_wanted(void *ctx, tsr_str fqn)
{
    return tessera_selects(ctx, fqn);
}

static bool is_quantized(void *ctx, tsr_str fqn)
{
    return !tessera_option_matches(ctx, "no-quantize", fqn);
}

static tsr_status check_quantize(const request *r, unsigned *scheme, tsr_error *err)
{
    const tsr_status status = tessera_option_choice(r, "quantize", "fp8-block", scheme, err);
    if (status != TSR_OK) return status;
    if (!*scheme && tessera_option_given(r, "no-quantize"))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--no-quantize needs --quantize");
    if (*scheme && tessera_option_given(r, "raw-cast"))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--raw-cast and --quantize cannot be used together");
    return TSR_OK;
}

static tsr_status quantize(call *c, tsr_error *err)
{
    tsr_quantize_options options = TSR_OPTIONS(tsr_quantize_options);
    tsr_quantized made;
    tsr_checkpoint *layer;
    if (!tessera_option_given(&c->request, "quantize")) return TSR_OK;
    options.want = is_wanted;
    options.quantize = is_quantized;
    options.want_ctx = options.quantize_ctx = &c->request;
    tsr_status status = tsr_cast_parse(tessera_option_text(&c->request, "dtype"), false, &options.dtype, err);
    if (status == TSR_OK && options.dtype != TSR_DTYPE_NONE)
        status = tsr_check_casts(c->checkpoint, &(tsr_convert_options){.dtype = options.dtype}, err);
    if (status == TSR_OK) status = tsr_mapping_quantize(c->checkpoint, &options, &made, &layer, err);
    if (status == TSR_OK) add_layer(c, layer);
    return status;
}

/* ---- all of them ---- */

tsr_status tessera_call_dtype(const call *c, tsr_dtype *out, tsr_error *err)
{
    *out = TSR_DTYPE_NONE;
    if (tessera_option_given(&c->request, "quantize")) return TSR_OK;
    return tsr_cast_parse(tessera_option_text(&c->request, "dtype"), tessera_option_given(&c->request, "raw-cast"), out,
                          err);
}

tsr_status tessera_call_add_layers(call *c, tsr_error *err)
{
    unsigned scheme;
    tsr_dequantizing done;
    tsr_status status = check_quantize(&c->request, &scheme, err);
    if (status == TSR_OK && tessera_option_given(&c->request, "inverse") && !tessera_option_given(&c->request, "map"))
        status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--inverse needs --map MAP");
    if (status == TSR_OK) status = dequantize(c, &done, err);
    if (status == TSR_OK) status = fold(c, err);
    if (status == TSR_OK) status = apply_map(c, err);
    if (status == TSR_OK) status = check_dequantized(c, &done, err);
    return status == TSR_OK ? quantize(c, err) : status;
}
