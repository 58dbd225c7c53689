/* Arithmetic on stored numbers. A quantized tensor holds numbers that are not the weights themselves:
 *
 *   weight (float8, int8, or packed in uint8 … uint32)  ×  weight_scale  =  the actual weight
 *
 * A cast, a sum or an adapter that used these numbers alone would give other weights without any error, so it is refused.
 * Scales are found by the names that quantization libraries use, and by the dtype of the numbers next to them. float8 weights
 * without such a scale are refused where config.json has a quantization_config.
 *
 * Example:
 *
 *     const tsr_arithmetic cast = {.dtype = TSR_BFLOAT16};
 *     status = tsr_check_arithmetic(checkpoint, &cast, &err); */
#ifndef TESSERA_SYS_SCALED_H
#define TESSERA_SYS_SCALED_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

typedef struct tsr_arithmetic {
    tsr_selection selection; /* what is changed; a scale that is not selected counts, too */
    tsr_dtype dtype;         /* what it is cast to; TSR_DTYPE_NONE: something is added to it */
    bool by_map;             /* a step of a map, which --raw-cast does not allow */
} tsr_arithmetic;

/* Refuses arithmetic on the numbers and scales of any tensor. Errors: TSR_E_UNSUPPORTED naming the first tensor and its scale;
 * those of reading config.json; TSR_E_NOMEM. */
tsr_status tsr_check_arithmetic(tsr_checkpoint *checkpoint, const tsr_arithmetic *what, tsr_error *err);
/* Refuses arithmetic on the numbers of one tensor. */
tsr_status tsr_check_arithmetic_on(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_arithmetic *what,
                                   tsr_error *err);
/* Finds the packed numbers that stand for a tensor which the checkpoint does not have: NAME.qweight or NAME.weight_packed for
 * NAME.weight. *out is NULL if there are none with a scale. */
tsr_status tsr_find_packed(tsr_checkpoint *checkpoint, tsr_str fqn, const tsr_entry **out, tsr_error *err);

TSR_API_END

#endif
