/* Casts floating types with integer arithmetic only, for kernels and for the simulated grid: the result has the same bits on
 * any processor.
 *
 *   element bits ──▶ bits of the double of the same value (exact) ──▶ element bits, rounded once to nearest even
 *
 * The rules are those of tessera/sys/read.h, which must give the same results. */
#ifndef TSR_CUDA_KERNEL_CAST_H
#define TSR_CUDA_KERNEL_CAST_H

#include <stdint.h>

#include "tessera/dtype.h"

#ifdef __CUDACC__
#define TSR_BODY static __host__ __device__ __forceinline__
#else
#define TSR_BODY static inline
#endif

#define TSR_BODY_DOUBLE_INF   ((uint64_t)0x7ff << 52)
#define TSR_BODY_DOUBLE_QUIET ((uint64_t)0x7ff8 << 48)
#define TSR_BODY_DOUBLE_SIGN  ((uint64_t)1 << 63)

/* The kinds of 8-bit types differ in what their highest codes mean. */
enum { TSR_BODY_IEEE, TSR_BODY_FN, TSR_BODY_FNUZ, TSR_BODY_SCALE };

typedef struct tsr_body_form {
    int bytes, fraction, bias, kind;
} tsr_body_form;

TSR_BODY tsr_body_form tsr_body_make_form(int bytes, int fraction, int bias, int kind)
{
    tsr_body_form form;
    form.bytes = bytes;
    form.fraction = fraction;
    form.bias = bias;
    form.kind = kind;
    return form;
}

/* The properties of a floating type. `bytes` is 0 for other types. */
TSR_BODY tsr_body_form tsr_body_form_of(int dtype)
{
    switch (dtype) {
    case TSR_FLOAT64: return tsr_body_make_form(8, 52, 1023, TSR_BODY_IEEE);
    case TSR_FLOAT32: return tsr_body_make_form(4, 23, 127, TSR_BODY_IEEE);
    case TSR_FLOAT16: return tsr_body_make_form(2, 10, 15, TSR_BODY_IEEE);
    case TSR_BFLOAT16: return tsr_body_make_form(2, 7, 127, TSR_BODY_IEEE);
    case TSR_FLOAT8_E5M2: return tsr_body_make_form(1, 2, 15, TSR_BODY_IEEE);
    case TSR_FLOAT8_E4M3FN: return tsr_body_make_form(1, 3, 7, TSR_BODY_FN);
    case TSR_FLOAT8_E4M3FNUZ: return tsr_body_make_form(1, 3, 8, TSR_BODY_FNUZ);
    case TSR_FLOAT8_E5M2FNUZ: return tsr_body_make_form(1, 2, 16, TSR_BODY_FNUZ);
    case TSR_FLOAT8_E8M0FNU: return tsr_body_make_form(1, 0, 127, TSR_BODY_SCALE);
    default: return tsr_body_make_form(0, 0, 0, TSR_BODY_IEEE);
    }
}

/* Converts a magnitude that is neither NaN nor infinite to that of a double. */
TSR_BODY uint64_t tsr_body_widen(tsr_body_form form, uint64_t magnitude)
{
    uint64_t fraction = magnitude & (((uint64_t)1 << form.fraction) - 1);
    int exponent = (int)(magnitude >> form.fraction);
    if (exponent == 0) {
        if (fraction == 0) return 0;
        for (exponent = 1; !(fraction >> form.fraction); exponent--) fraction <<= 1;
        fraction &= ((uint64_t)1 << form.fraction) - 1;
    }
    return (uint64_t)(exponent - form.bias + 1023) << 52 | fraction << (52 - form.fraction);
}

TSR_BODY uint64_t tsr_body_to_double(tsr_body_form form, uint64_t bits)
{
    uint64_t sign, magnitude, infinity;
    if (form.bytes == 8) return bits;
    if (form.kind == TSR_BODY_SCALE) return bits == 0xff ? TSR_BODY_DOUBLE_QUIET : (bits + 1023 - 127) << 52;
    sign = bits >> (8 * form.bytes - 1) << 63;
    magnitude = bits & (((uint64_t)1 << (8 * form.bytes - 1)) - 1);
    if (form.kind == TSR_BODY_FNUZ && bits == 0x80) return sign | TSR_BODY_DOUBLE_QUIET;
    if (form.kind == TSR_BODY_FN && magnitude == 0x7f) return sign | TSR_BODY_DOUBLE_QUIET;
    infinity = (((uint64_t)1 << (8 * form.bytes - 1)) - 1) >> form.fraction << form.fraction;
    if (form.kind == TSR_BODY_IEEE && magnitude >= infinity) {
        if (magnitude == infinity) return sign | TSR_BODY_DOUBLE_INF;
        /* as processors do it: float32 and bfloat16 keep the payload of a NaN, other types give the default NaN */
        if (form.bias != 127) return sign | TSR_BODY_DOUBLE_QUIET;
        return sign | TSR_BODY_DOUBLE_QUIET | (magnitude - infinity) << (52 - form.fraction);
    }
    return sign | tsr_body_widen(form, magnitude);
}

/* Adds slightly less than one half, and one more if the kept part is odd. This carries exactly if rounding to nearest even
 * rounds up. */
TSR_BODY uint64_t tsr_body_round(uint64_t significand, int cut)
{
    if (cut > 54) return 0;
    return (significand + ((uint64_t)1 << (cut - 1)) - 1 + (significand >> cut & 1)) >> cut;
}

TSR_BODY uint64_t tsr_body_narrow(tsr_body_form form, uint64_t magnitude)
{
    const int exponent = (int)(magnitude >> 52) - 1023, least = 1 - form.bias, cut = 52 - form.fraction;
    const uint64_t significand = (magnitude & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52;
    if (magnitude >> 52 == 0) return 0;
    if (exponent < least) return tsr_body_round(significand, cut + least - exponent);
    return ((uint64_t)(exponent - least) << form.fraction) + tsr_body_round(significand, cut);
}

TSR_BODY uint64_t tsr_body_to_scale(uint64_t magnitude)
{
    const int exponent = (int)(magnitude >> 52) - 1023;
    const uint64_t fraction = magnitude & (((uint64_t)1 << 52) - 1);
    if (exponent > 127) return 0xff;
    if (exponent < -127) return 0;
    return (uint64_t)(exponent + 127) + (fraction >= (exponent == -127 ? (uint64_t)1 : (uint64_t)1 << 51));
}

TSR_BODY uint64_t tsr_body_from_double(tsr_body_form form, uint64_t bits)
{
    const uint64_t magnitude = bits & (TSR_BODY_DOUBLE_SIGN - 1);
    const bool is_nan = magnitude > TSR_BODY_DOUBLE_INF, is_inf = magnitude == TSR_BODY_DOUBLE_INF;
    uint64_t sign, infinity, narrow;
    if (form.bytes == 8) return bits;
    if (form.kind == TSR_BODY_SCALE) return tsr_body_to_scale(magnitude);
    sign = bits >> 63 << (8 * form.bytes - 1);
    infinity = (((uint64_t)1 << (8 * form.bytes - 1)) - 1) >> form.fraction << form.fraction;
    narrow = is_nan || is_inf ? (uint64_t)-1 : tsr_body_narrow(form, magnitude);
    if (form.kind == TSR_BODY_IEEE) {
        if (is_nan) return sign | infinity | (uint64_t)1 << (form.fraction - 1);
        return sign | (narrow > infinity ? infinity : narrow);
    }
    if (form.kind == TSR_BODY_FN) return is_nan ? sign | 0x7f : sign | (narrow > 0x7e ? 0x7e : narrow);
    if (is_nan || narrow > 0x7f) return 0x80;
    return narrow ? sign | narrow : 0;
}

#endif
