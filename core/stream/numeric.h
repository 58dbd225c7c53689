/* Reads the bytes of elements as numbers. */
#ifndef TSR_STREAM_NUMERIC_H
#define TSR_STREAM_NUMERIC_H

#include "tessera/dtype.h"
#include "tessera/host.h"

/* The layout of a floating-point type of at most 64 bits: sign, exponent and fraction, from high to low bits. */
typedef struct tsr_float_form {
    uint8_t bytes;
    uint8_t fraction_bits;
    int16_t bias;
    bool has_sign;
    bool has_infinity; /* as in IEEE 754: an exponent of all ones means infinity (fraction 0) or a NaN */
    uint64_t nan;      /* if there are no infinities: the only NaN, or for fn types the NaN without its sign */
} tsr_float_form;

/* Returns NULL for types that are not plain floating-point types, such as complex, float6 and packed float4. */
const tsr_float_form *tsr_float_form_of(tsr_dtype dtype);

/* Returns how many numbers an element consists of: 2 for complex types, 1 for other numeric types, 0 otherwise. */
uint32_t tsr_dtype_parts(tsr_dtype dtype);
/* Returns the type of these numbers: float32 for complex64, and the type itself if it has one part. */
tsr_dtype tsr_dtype_part(tsr_dtype dtype);

/* Decodes `count` numbers of a type with one part. The results are exact, except integers beyond 2^53. */
void tsr_decode(tsr_dtype dtype, const uint8_t *from, size_t count, double *to);

/* Counts how many of `count` numbers of a type with one part are NaN, and how many are infinite, and adds them to *nan and
 * *inf. `host` may be NULL. */
void tsr_count_special(const tsr_host *host, tsr_dtype dtype, const uint8_t *from, size_t count, uint64_t *nan,
                       uint64_t *inf);

/* Returns an integer that increases with the value of a floating-point number; it is 0 for both zeros. The difference of two
 * such integers is the distance of the numbers in units in the last place. */
int64_t tsr_float_ordinal(const tsr_float_form *form, const uint8_t *bits);

#endif
