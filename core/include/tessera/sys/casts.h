/* The dtype that a conversion casts to, as an option states it, and whether the cast would lose the meaning of quantized numbers.
 *
 * Example:
 *
 *     tsr_convert_options options = {.to = TSR_TO_DCP};
 *     status = tsr_cast_parse(TSR_STR("bfloat16"), options.raw_cast, &options.dtype, &err);
 *     if (status == TSR_OK) status = tsr_check_casts(checkpoint, &options, &err); */
#ifndef TESSERA_SYS_CASTS_H
#define TESSERA_SYS_CASTS_H

#include "tessera/convert.h"

TSR_API_BEGIN

/* The dtype of --dtype (data NULL: not given, TSR_DTYPE_NONE). TSR_E_USAGE for a name that is not a dtype's, and for --raw-cast
 * without it. */
tsr_status tsr_cast_parse(tsr_str dtype, bool raw_cast, tsr_dtype *out, tsr_error *err);
/* --dequantize: the layer that multiplies scaled numbers, and the dtype of its products. */
typedef struct tsr_dequantizing {
    tsr_checkpoint *layer;
    tsr_dtype dtype;
} tsr_dequantizing;
/* Refuses such a dtype, and a cast of quantized numbers that have a scale, or of the scale (tessera/sys/mapping.h).
 * tsr_convert does this first; it is here for what only plans a job. Of the options `want`, `dtype` and `raw_cast` count. */
tsr_status tsr_check_casts(tsr_checkpoint *checkpoint, const tsr_convert_options *options, tsr_error *err);

/* Compares the entries that a conversion writes, or would write after a dry run, with a contract (tessera/validate.h):
 * names, kinds, dtypes and shapes. TSR_E_FORMAT with the first differences, as the errors of tsr_validate_contract;
 * TSR_E_NOMEM. */
tsr_status tsr_conversion_check(const tsr_conversion *conversion, const tsr_contract *expected, const tsr_host *host,
                                tsr_error *err);

TSR_API_END

#endif
