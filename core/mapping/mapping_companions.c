/* Finds scales by their names. The dtype also matters: bfloat16 numbers are the weights themselves, whatever is next to
 * them. */
#include "mapping/mapping_companions.h"

#include "mapping/mapped.h"
#include "tessera/sys/try.h"

/* clang-format off */
const tsr_companion tsr_companions[] = {
    {"",         "_scale_inv",             false, false, true},  /* DeepSeek, transformers' finegrained_fp8 */
    {"",         "_scale",                 false, false, true},  /* compressed-tensors, fbgemm, ModelOpt, ComfyUI's newer files */
    {"weight",   "scale_weight",           false, false, true},  /* ComfyUI */
    {"weight",   "qscale_weight",          false, false, true},  /* Mistral */
    {"weight",   "scale",                  false, false, true},  /* DeepSeek's own files */
    {"",         "_scale_2",               false, false, false}, /* ModelOpt's NVFP4 */
    {"",         "_scales",                false, false, false}, /* EETQ */
    {"",         ".absmax",                false, false, false}, /* bitsandbytes, 4 bits */
    {"",         ".quant_state.bitsandbytes__nf4", false, false, false},
    {"",         ".quant_state.bitsandbytes__fp4", false, false, false},
    {"weight",   "SCB",                    false, false, false}, /* bitsandbytes, 8 bits */
    {"_blocks",  "_scales",                false, false, false}, /* MXFP4 of gpt-oss */
    {"_packed",  "_scale",                 true,  false, false}, /* compressed-tensors */
    {"_packed",  "_global_scale",          true,  false, false}, /* its NVFP4 */
    {"weight_packed", "weight_shape",      true,  true,  false},
    {"_data",    "_scale",                 false, false, false}, /* quanto */
    {"_qdata",   "_scale",                 false, false, false}, /* torchao in safetensors */
    {"qweight",  "scales",                 true,  false, false}, /* GPTQ, AWQ */
    {"qweight",  "qzeros",                 true,  true,  false},
    {"weight",   "scales",                 true,  false, false}, /* MLX, gpt-fast */
    {"weight",   "weights_scaling_factor", false, false, false}, /* TensorRT-LLM */
    {"W_q",      "scale",                  true,  false, false}, /* HQQ */
    {"state1",   "absmax1",                false, false, false}, /* bitsandbytes' optimizers */
    {"state2",   "absmax2",                false, false, false},
};
/* clang-format on */
const size_t tsr_companion_count = sizeof tsr_companions / sizeof tsr_companions[0];

static bool may_hold(tsr_dtype dtype, bool words)
{
    switch (dtype) {
    case TSR_FLOAT8_E4M3FN:
    case TSR_FLOAT8_E4M3FNUZ:
    case TSR_FLOAT8_E5M2:
    case TSR_FLOAT8_E5M2FNUZ:
    case TSR_FLOAT8_E8M0FNU:
    case TSR_FLOAT6_E2M3:
    case TSR_FLOAT6_E3M2:
    case TSR_FLOAT4_E2M1FN_X2:
    case TSR_FLOAT4_E2M1FN:
    case TSR_INT8:
    case TSR_UINT8: return true;
    case TSR_INT16:
    case TSR_INT32:
    case TSR_UINT32: return words;
    default: return false;
    }
}

static bool is_pair(const tsr_entry *data, const tsr_entry *scale, const tsr_companion *companion)
{
    const bool tensors = data->kind == TSR_ENTRY_TENSOR && scale->kind == TSR_ENTRY_TENSOR;
    return tensors && may_hold(data->dtype, companion->words) && (companion->packed || tsr_mapped_is_scale(scale->dtype));
}

tsr_status tsr_companion_named(const tsr_checkpoint *checkpoint, tsr_str fqn, const char *from, const char *to,
                               tsr_vec *text, const tsr_entry **out, tsr_error *err)
{
    const tsr_str old = tsr_str_from(from), new = tsr_str_from(to);
    *out = NULL;
    if (!tsr_str_ends(fqn, old)) return TSR_OK;
    const size_t stem = fqn.size - old.size;
    text->count = 0;
    TSR_TRY(tsr_vec_reserve(text, stem + new.size, err));
    if (stem) memcpy(text->items, fqn.data, stem);
    if (new.size) memcpy((char *)text->items + stem, new.data, new.size);
    *out = tsr_checkpoint_entry(checkpoint, (tsr_str){text->items, stem + new.size});
    return TSR_OK;
}

tsr_status tsr_companion_scale(const tsr_checkpoint *checkpoint, const tsr_entry *data, const tsr_companion *companion,
                               tsr_vec *text, const tsr_entry **out, tsr_error *err)
{
    *out = NULL;
    if (data->kind != TSR_ENTRY_TENSOR || !may_hold(data->dtype, companion->words)) return TSR_OK;
    TSR_TRY(tsr_companion_named(checkpoint, data->fqn, companion->data, companion->scale, text, out, err));
    if (*out && !is_pair(data, *out, companion)) *out = NULL;
    return TSR_OK;
}

tsr_status tsr_companion_data(const tsr_checkpoint *checkpoint, const tsr_entry *scale, const tsr_companion *companion,
                              tsr_vec *text, const tsr_entry **out, tsr_error *err)
{
    *out = NULL;
    TSR_TRY(tsr_companion_named(checkpoint, scale->fqn, companion->scale, companion->data, text, out, err));
    if (*out && !is_pair(*out, scale, companion)) *out = NULL;
    return TSR_OK;
}
