/* --dequantize: multiplies quantized numbers by their scales in a layer below all others. What it could not multiply is
 * rejected after all layers are open. */
#include "tessera/sys/casts.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/try.h"

tsr_status tsr_dequantize_open(tsr_checkpoint *source, tsr_str dtype, tsr_dequantizing *out, tsr_error *err)
{
    tsr_dtype wanted;
    *out = (tsr_dequantizing){.layer = NULL};
    TSR_TRY(tsr_cast_parse(dtype, false, &wanted, err));
    return tsr_mapping_dequantize(source, wanted, &out->dtype, &out->layer, err);
}

tsr_status tsr_dequantize_check(const tsr_dequantizing *done, tsr_checkpoint *top, const tsr_open_options *selection,
                                tsr_error *err)
{
    const tsr_convert_options used = {.dtype = done->dtype, .want = tsr_mapping_uses, .want_ctx = done->layer};
    TSR_TRY(tsr_mapping_check_dequantized(done->layer, top, selection, err));
    return tsr_check_casts(done->layer, &used, err);
}
