/* Changing the element type of floating values.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even, once, from the exact value (torch rounds float64 to the
 * 16- and 8-bit types by way of float32). Values that are too large become the same as in PyTorch 2.13: infinity in float32,
 * float16, bfloat16 and float8_e5m2; NaN in the fnuz types and float8_e8m0fnu; in float8_e4m3fn it saturates: ±448, for
 * infinities too. NaN stays NaN, quiet, of the same sign where the type has a signed NaN; negative zero becomes zero in
 * the fnuz types. float8_e8m0fnu drops signs, and values below its range become its least value.
 *
 * Source: torch/headeronly/util/{BFloat16,Half,Float8_*}.h. Thread-safe. (core/stream)
 *
 * Example:
 *
 *     const float values[] = {1.0f, 65536.0f};
 *     uint8_t halves[2 * sizeof(uint16_t)];
 *     tsr_cast(TSR_FLOAT32, TSR_FLOAT16, (const uint8_t *)values, 2, halves); */
#ifndef TESSERA_SYS_CAST_H
#define TESSERA_SYS_CAST_H

#include "tessera/dtype.h"

TSR_API_BEGIN

/* Whether tsr_cast can do it: both are floating types with whole bytes. */
bool tsr_cast_possible(tsr_dtype from, tsr_dtype to);
/* `count` elements; the memory must not overlap. */
void tsr_cast(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out);

/* What casts lost: values that became zero and were not, and finite values that were too large, which became infinite, NaN
 * or the largest value. */
typedef struct tsr_cast_losses {
    uint64_t zeros, overflows;
} tsr_cast_losses;
static inline void tsr_cast_losses_add(tsr_cast_losses *to, tsr_cast_losses losses)
{
    to->zeros += losses.zeros;
    to->overflows += losses.overflows;
}
/* The magnitudes of a type, as integers in the order of their values, that another type cannot represent: `zeros` of them from
 * `least` on become zero, and `overflows` from `large` on are too large. */
typedef struct tsr_lossy {
    tsr_dtype from;
    uint64_t least, zeros, large, overflows;
} tsr_lossy;
tsr_lossy tsr_lossy_of(tsr_dtype from, tsr_dtype to);
/* Adds what a cast of these elements of the type `lossy->from` loses to *losses. */
void tsr_count_losses(const tsr_lossy *lossy, const uint8_t *elements, size_t count, tsr_cast_losses *losses);
/* The same as tsr_cast, and adds what it loses to *losses. */
void tsr_cast_counted(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out,
                      tsr_cast_losses *losses);

/* Whether values of the type are numbers (not bits, quantized, float6 or packed pairs). */
bool tsr_dtype_is_numeric(tsr_dtype dtype);

TSR_API_END

#endif
