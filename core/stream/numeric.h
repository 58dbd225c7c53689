/* Element bytes as numbers. */
#ifndef TSR_STREAM_NUMERIC_H
#define TSR_STREAM_NUMERIC_H

#include "tessera/dtype.h"
#include "tessera/host.h"

/* How a floating type of at most 64 bits is built: sign, exponent, fraction from high to low bits. */
typedef struct tsr_float_form {
    uint8_t bytes;
    uint8_t fraction_bits;
    int16_t bias;
    bool has_sign;
    bool has_infinity; /* exponent all ones: infinity (fraction 0) and NaNs, as IEEE 754 */
    uint64_t nan;      /* without infinities: the one NaN, or with fn types the NaN of either sign, sign cleared */
} tsr_float_form;

/* NULL for types that are no plain floating type (complex, float6, packed float4 included). */
const tsr_float_form *tsr_float_form_of(tsr_dtype dtype);

/* Numbers an element consists of: 2 for complex, 1 for other numeric types, 0 for the rest. */
uint32_t tsr_dtype_parts(tsr_dtype dtype);
/* The type of the parts: float32 for complex64; the type itself where it has one part. */
tsr_dtype tsr_dtype_part(tsr_dtype dtype);

/* `count` numbers of a type with one part; exact but for integers beyond 2^53. */
void tsr_decode(tsr_dtype dtype, const uint8_t *from, size_t count, double *to);

/* How many of `count` numbers of a type with one part are NaN, and infinite. Adds to both. `host` may be NULL. */
void tsr_count_special(const tsr_host *host, tsr_dtype dtype, const uint8_t *from, size_t count, uint64_t *nan,
                       uint64_t *inf);

/* The bits of a floating number as a whole number that grows with the value (both zeros give 0): the difference of two is
 * their distance in units in the last place. */
int64_t tsr_float_ordinal(const tsr_float_form *form, const uint8_t *bits);

#endif
