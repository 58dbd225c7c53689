/* Casts elements: one decoder to double, which is exact for every floating-point type, one encoder from double, and direct
 * conversions for common pairs.
 *
 *   double:   [s][exponent 11][fraction 52]      1.f · 2^e
 *   target:   [s][exponent  ·][fraction m ]      the fraction is cut at m bits and rounded by the bits cut off; a carry
 *                                                out of the fraction increments the exponent, which is the correct result */
#include "tessera/sys/read.h"

#include "base/cursor.h"
#include "stream/numeric.h"

enum { BLOCK = 512, BYTE_VALUES = 256, COUNTED = 2048 }; /* elements at a time; a counted block stays in the caches */

bool tsr_cast_possible(tsr_dtype from, tsr_dtype to)
{
    return tsr_float_form_of(from) && tsr_float_form_of(to);
}

static uint64_t round_even(uint64_t significand, unsigned cut)
{
    if (cut > 54) return 0;
    const uint64_t kept = significand >> cut, lost = significand & ((UINT64_C(1) << cut) - 1),
                   half = UINT64_C(1) << (cut - 1);
    return kept + (lost > half || (lost == half && (kept & 1)));
}

static uint64_t infinity_bits(const tsr_float_form *form)
{
    const unsigned bits = 8u * form->bytes - 1;
    return ((UINT64_C(1) << bits) - 1) >> form->fraction_bits << form->fraction_bits;
}

/* Encodes the magnitude of a finite double, whose bits are `magnitude`. If it is too large, the result is larger than the
 * largest finite magnitude of the type. */
static uint64_t encode_magnitude(const tsr_float_form *form, uint64_t magnitude)
{
    const int exponent = (int)(magnitude >> 52) - 1023, least = 1 - form->bias;
    if (magnitude >> 52 == 0) return 0; /* zero, or a double subnormal: too small for any type */
    const uint64_t significand = (magnitude & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    const unsigned cut = 52u - form->fraction_bits;
    if (exponent < least) return round_even(significand, cut + (unsigned)(least - exponent));
    return ((uint64_t)(exponent - least) << form->fraction_bits) + round_even(significand, cut);
}

static uint64_t encode_signed(const tsr_float_form *form, uint64_t bits)
{
    const uint64_t sign = bits >> 63 << (8 * form->bytes - 1), magnitude = bits & (UINT64_MAX >> 1);
    const uint64_t infinity = infinity_bits(form);
    if (magnitude > UINT64_C(0x7ff) << 52) {
        if (form->nan == 0x80) return 0x80;
        return sign | (form->has_infinity ? infinity | UINT64_C(1) << (form->fraction_bits - 1) : form->nan);
    }
    uint64_t encoded = magnitude == UINT64_C(0x7ff) << 52 ? UINT64_MAX : encode_magnitude(form, magnitude);
    if (form->has_infinity) return sign | (encoded > infinity ? infinity : encoded);
    if (form->nan == 0x7f) return sign | (encoded > 0x7e ? 0x7e : encoded);
    return encoded > 0x7f ? 0x80 : encoded ? sign | encoded : 0; /* fnuz */
}

/* Encodes only the exponent. Fractions of one half and more are rounded up. At the smallest value any fraction is, as in
 * torch, where such values are float32 subnormals. */
static uint8_t encode_e8m0(uint64_t bits)
{
    const uint64_t magnitude = bits & (UINT64_MAX >> 1), fraction = magnitude & ((UINT64_C(1) << 52) - 1);
    const int exponent = (int)(magnitude >> 52) - 1023;
    if (exponent > 127) return 0xff; /* too large, infinite or NaN */
    if (exponent < -127) return 0;
    const uint64_t up_from = exponent == -127 ? 1 : UINT64_C(1) << 51;
    return (uint8_t)(exponent + 127 + (fraction >= up_from));
}

static void store(uint8_t *out, uint64_t bits, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) out[i] = (uint8_t)(bits >> (8 * i));
}

static void encode(tsr_dtype to, const double *values, size_t count, uint8_t *out)
{
    const tsr_float_form *form = tsr_float_form_of(to);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if (to == TSR_FLOAT64) {
            store(out + 8 * i, bits, 8);
        } else if (form->has_sign) {
            store(out + i * form->bytes, encode_signed(form, bits), form->bytes);
        } else {
            out[i] = encode_e8m0(bits);
        }
    }
}

static void float32_to_bfloat16(const uint8_t *from, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + 4 * i, 4);
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        const uint16_t rounded = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
        const uint16_t half = nan ? (uint16_t)((bits >> 16 & 0x8000u) | 0x7fc0u) : rounded;
        memcpy(out + 2 * i, &half, 2);
    }
}

static void bfloat16_to_float32(const uint8_t *from, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, 2);
        const bool nan = (half & 0x7fffu) > 0x7f80u;
        const uint32_t bits = nan ? (half & 0x8000u) << 16 | 0x7fc00000u : (uint32_t)half << 16;
        memcpy(out + 4 * i, &bits, 4);
    }
}

/* Selects one of two values without a branch, because a branch would prevent compilers from vectorizing the loop. */
static uint32_t choose(bool first, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)first;
    return (a & mask) | (b & ~mask);
}

/* Encodes a magnitude below the smallest normal number. The result is a multiple of the smallest subnormal number. That is the
 * last place of floats from `anchor` on, so the addition rounds to it. */
static uint32_t subnormal_code(uint32_t magnitude, float anchor)
{
    float value;
    memcpy(&value, &magnitude, sizeof value);
    value += anchor;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0xfff;
}

static void float32_to_float8_e4m3fn(const uint8_t *from, size_t count, uint8_t *out)
{
    enum {
        LEAST_NORMAL = 0x3c800000,
        INFINITE = 0x7f800000,
        REBIASED = (127 - 7) << 3,
        LARGEST = 0x7e,
        NOT_A_NUMBER = 0x7f
    };
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + 4 * i, 4);
        const uint32_t magnitude = bits & 0x7fffffffu, rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1)) >> 20;
        const uint32_t code = choose(magnitude < LEAST_NORMAL, subnormal_code(magnitude, 0x1p14f), rounded - REBIASED);
        const uint32_t finite = choose(code > LARGEST, LARGEST, code);
        out[i] = (uint8_t)((bits >> 24 & 0x80u) | choose(magnitude > INFINITE, NOT_A_NUMBER, finite));
    }
}

static void float32_to_float16(const uint8_t *from, size_t count, uint8_t *out)
{
    enum {
        LEAST_NORMAL = 0x38800000,
        INFINITE = 0x7f800000,
        REBIASED = (127 - 15) << 10,
        LARGEST = 0x7c00,
        NOT_A_NUMBER = 0x7e00
    };
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + 4 * i, 4);
        const uint32_t magnitude = bits & 0x7fffffffu, rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1)) >> 13;
        const uint32_t code = choose(magnitude < LEAST_NORMAL, subnormal_code(magnitude, 0.5f), rounded - REBIASED);
        const uint32_t number = choose(code > LARGEST, LARGEST, code);
        const uint16_t half = (uint16_t)((bits >> 16 & 0x8000u) | choose(magnitude > INFINITE, NOT_A_NUMBER, number));
        memcpy(out + 2 * i, &half, 2);
    }
}

static void float16_to_float32(const uint8_t *from, size_t count, uint8_t *out)
{
    enum { LEAST_NORMAL = 0x400, REBIASED = (127 - 15) << 23, INFINITE = 0x7c00, NOT_A_NUMBER = 0x7fc00000 };
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, 2);
        const uint32_t magnitude = half & 0x7fffu;
        const float subnormal = (float)(int32_t)magnitude * 0x1p-24f;
        uint32_t small;
        memcpy(&small, &subnormal, sizeof small);
        const uint32_t finite = choose(magnitude < LEAST_NORMAL, small, (magnitude << 13) + REBIASED);
        const uint32_t number = choose(magnitude == INFINITE, 0x7f800000u, finite);
        const uint32_t bits = choose(magnitude > INFINITE, NOT_A_NUMBER, number) | (half & 0x8000u) << 16;
        memcpy(out + 4 * i, &bits, 4);
    }
}

static void float8_e4m3fn_to_float32(const uint8_t *from, size_t count, uint8_t *out)
{
    enum { LEAST_NORMAL = 8, REBIASED = (127 - 7) << 23, LARGEST = 0x7e, NOT_A_NUMBER = 0x7fc00000 };
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = from[i] & 0x7fu;
        const float subnormal = (float)(int32_t)magnitude * 0x1p-9f;
        uint32_t small;
        memcpy(&small, &subnormal, sizeof small);
        const uint32_t finite = choose(magnitude < LEAST_NORMAL, small, (magnitude << 20) + REBIASED);
        const uint32_t bits = choose(magnitude > LARGEST, NOT_A_NUMBER, finite) | (from[i] & 0x80u) << 24;
        memcpy(out + 4 * i, &bits, 4);
    }
}

static void float8_e8m0fnu_to_float32(const uint8_t *from, size_t count, uint8_t *out)
{
    enum { SUBNORMAL = 1 << 22, NOT_A_NUMBER = 0x7fc00000 };
    for (size_t i = 0; i < count; i++) {
        const uint32_t exponent = from[i];
        const uint32_t bits = exponent == 0 ? SUBNORMAL : exponent == 0xff ? NOT_A_NUMBER : exponent << 23;
        memcpy(out + 4 * i, &bits, 4);
    }
}

/* Converts directly, without float64, if the pair is one that large checkpoints need. Returns false otherwise. */
static bool cast_directly(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    if (from == TSR_FLOAT32 && to == TSR_BFLOAT16) float32_to_bfloat16(elements, count, out);
    else if (from == TSR_BFLOAT16 && to == TSR_FLOAT32) bfloat16_to_float32(elements, count, out);
    else if (from == TSR_FLOAT32 && to == TSR_FLOAT16) float32_to_float16(elements, count, out);
    else if (from == TSR_FLOAT16 && to == TSR_FLOAT32) float16_to_float32(elements, count, out);
    else if (from == TSR_FLOAT32 && to == TSR_FLOAT8_E4M3FN) float32_to_float8_e4m3fn(elements, count, out);
    else if (from == TSR_FLOAT8_E4M3FN && to == TSR_FLOAT32) float8_e4m3fn_to_float32(elements, count, out);
    else if (from == TSR_FLOAT8_E8M0FNU && to == TSR_FLOAT32) float8_e8m0fnu_to_float32(elements, count, out);
    else return false;
    return true;
}

/* Converts every element through float32. Widening is exact, so only the second conversion rounds. */
static bool cast_by_float32(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    const size_t from_size = tsr_dtype_size(from), to_size = tsr_dtype_size(to);
    uint8_t values[BLOCK * sizeof(float)];
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t n = count - i < BLOCK ? count - i : BLOCK;
        if (!cast_directly(from, TSR_FLOAT32, elements + i * from_size, n, values)) return false;
        if (!cast_directly(TSR_FLOAT32, to, values, n, out + i * to_size)) return false;
    }
    return true;
}

/* Converts every element through float64. */
static void cast_each(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    const size_t from_size = tsr_dtype_size(from), to_size = tsr_dtype_size(to);
    double values[BLOCK];
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t n = count - i < BLOCK ? count - i : BLOCK;
        tsr_decode(from, elements + i * from_size, n, values);
        encode(to, values, n, out + i * to_size);
    }
}

#define LOOK_UP(type) \
    for (size_t i = 0; i < count; i++) memcpy(out + i * sizeof(type), table + elements[i] * sizeof(type), sizeof(type)); \
    break

/* Converts each of the 256 values of a one-byte element once, and then looks elements up. */
static void cast_by_table(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    uint8_t bytes[BYTE_VALUES], table[BYTE_VALUES * sizeof(uint64_t)];
    for (size_t i = 0; i < BYTE_VALUES; i++) bytes[i] = (uint8_t)i;
    cast_each(from, to, bytes, BYTE_VALUES, table);
    switch (tsr_dtype_size(to)) {
    case 1: LOOK_UP(uint8_t);
    case 2: LOOK_UP(uint16_t);
    case 4: LOOK_UP(uint32_t);
    default: LOOK_UP(uint64_t);
    }
}

void tsr_cast(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out)
{
    if (cast_directly(from, to, elements, count, out)) return;
    if (tsr_dtype_size(from) == 1 && count >= 2 * BYTE_VALUES) cast_by_table(from, to, elements, count, out);
    else if (!cast_by_float32(from, to, elements, count, out)) cast_each(from, to, elements, count, out);
}

/* ---- losses ---- */

/* The largest magnitude that is a finite number. */
static uint64_t largest_of(const tsr_float_form *form)
{
    if (form->has_infinity) return infinity_bits(form) - 1;
    return form->nan == 0x80 ? 0x7f : form->nan - 1;
}

static uint64_t double_of_magnitude(tsr_dtype from, uint64_t magnitude)
{
    uint8_t bytes[2 * sizeof(uint64_t)]; /* as large as the largest element */
    double value;
    uint64_t bits;
    store(bytes, magnitude, tsr_dtype_size(from));
    tsr_decode(from, bytes, 1, &value);
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool becomes_zero(tsr_dtype to, uint64_t bits)
{
    const tsr_float_form *form = tsr_float_form_of(to);
    return to != TSR_FLOAT64 && form->has_sign && !encode_magnitude(form, bits);
}

static bool is_too_large(tsr_dtype to, uint64_t bits)
{
    const tsr_float_form *form = tsr_float_form_of(to);
    if (to == TSR_FLOAT64) return false;
    return form->has_sign ? encode_magnitude(form, bits) > largest_of(form) : encode_e8m0(bits) == 0xff;
}

/* Finds the first magnitude in [first, end) for which `is` has the value `wanted`, or `end`. It has that value from there on. */
static uint64_t find_edge(tsr_dtype from, tsr_dtype to, bool (*is)(tsr_dtype to, uint64_t bits), bool wanted, uint64_t first,
                          uint64_t end)
{
    while (first < end) {
        const uint64_t middle = first + (end - first) / 2;
        if (is(to, double_of_magnitude(from, middle)) == wanted) end = middle;
        else first = middle + 1;
    }
    return first;
}

tsr_lossy tsr_lossy_of(tsr_dtype from, tsr_dtype to)
{
    const tsr_float_form *form = tsr_float_form_of(from);
    const uint64_t least = form->has_sign, end = largest_of(form) + 1;
    tsr_lossy l = {.from = from, .least = least, .large = find_edge(from, to, is_too_large, true, least, end)};
    l.zeros = find_edge(from, to, becomes_zero, false, least, end) - least;
    l.overflows = end - l.large;
    return l;
}

/* The exponents of a type's least and largest magnitude. */
static int least_exponent(const tsr_float_form *form)
{
    return form->has_sign ? 1 - form->bias - form->fraction_bits : -form->bias;
}

static int largest_exponent(const tsr_float_form *form)
{
    return (int)(largest_of(form) >> form->fraction_bits) - form->bias;
}

/* Whether it is obvious that a cast loses nothing. */
static bool is_wider(tsr_dtype from, tsr_dtype to)
{
    const tsr_float_form *a = tsr_float_form_of(from), *b = tsr_float_form_of(to);
    const int large_a = largest_exponent(a), large_b = largest_exponent(b);
    const bool holds_large =
        large_b > large_a || (large_b == large_a && b->fraction_bits >= a->fraction_bits && b->has_infinity);
    return least_exponent(b) <= least_exponent(a) && holds_large;
}

/* Whether results contain anything but magnitudes in [1, largest): only then may something have been lost. The comparison is
 * one of signed numbers, which every processor can make in vectors. */
#define FIND_ODD(type, signed_type) \
    do { \
        const type mask = (type)-1 >> 1, bias = (type)~mask - (type)1; \
        const signed_type limit = (signed_type)((type)~mask + (type)(largest - 2)); \
        signed_type most = limit; \
        for (size_t i = 0; i < count; i++) { \
            type magnitude; \
            memcpy(&magnitude, results + i * sizeof(type), sizeof(type)); \
            const signed_type place = (signed_type)(type)((magnitude & mask) + bias); \
            most = place > most ? place : most; \
        } \
        return most > limit; \
    } while (0)

static bool has_odd(tsr_dtype dtype, const uint8_t *results, size_t count)
{
    const tsr_float_form *form = tsr_float_form_of(dtype);
    const uint64_t largest = largest_of(form);
    if (!form->has_sign) return true;
    switch (form->bytes) {
    case 1: FIND_ODD(uint8_t, int8_t);
    case 2: FIND_ODD(uint16_t, int16_t);
    default: FIND_ODD(uint32_t, int32_t);
    }
}

/* The sums have the elements' type, which COUNTED must not exceed. */
#define COUNT_LOSSES(type, mask) \
    do { \
        type zeros = 0, overflows = 0; \
        for (size_t i = 0; i < count; i++) { \
            type magnitude; \
            memcpy(&magnitude, elements + i * sizeof(type), sizeof(type)); \
            magnitude &= (type)(mask); \
            zeros = (type)(zeros + ((type)(magnitude - (type)l->least) < (type)l->zeros)); \
            overflows = (type)(overflows + ((type)(magnitude - (type)l->large) < (type)l->overflows)); \
        } \
        losses->zeros += zeros; \
        losses->overflows += overflows; \
    } while (0)

static void count_bytes(const tsr_lossy *l, uint8_t mask, const uint8_t *elements, size_t count, tsr_cast_losses *losses)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t magnitude = elements[i] & mask;
        losses->zeros += magnitude - l->least < l->zeros;
        losses->overflows += magnitude - l->large < l->overflows;
    }
}

static void count_block(const tsr_lossy *l, const uint8_t *elements, size_t count, tsr_cast_losses *losses)
{
    const tsr_float_form *form = tsr_float_form_of(l->from);
    switch (form->bytes) {
    case 1: count_bytes(l, form->has_sign ? 0x7f : 0xff, elements, count, losses); break;
    case 2: COUNT_LOSSES(uint16_t, 0x7fff); break;
    case 4: COUNT_LOSSES(uint32_t, 0x7fffffff); break;
    default: COUNT_LOSSES(uint64_t, UINT64_MAX >> 1); break;
    }
}

void tsr_count_losses(const tsr_lossy *lossy, const uint8_t *elements, size_t count, tsr_cast_losses *losses)
{
    const uint32_t size = tsr_dtype_size(lossy->from);
    if (!lossy->zeros && !lossy->overflows) return;
    for (size_t i = 0; i < count; i += COUNTED)
        count_block(lossy, elements + i * size, count - i < COUNTED ? count - i : COUNTED, losses);
}

/* Losses leave traces in the results: zeros, and magnitudes that are not below the largest. Only blocks with such results are
 * counted. */
void tsr_cast_counted(tsr_dtype from, tsr_dtype to, const uint8_t *elements, size_t count, uint8_t *out,
                      tsr_cast_losses *losses)
{
    const uint32_t from_size = tsr_dtype_size(from), to_size = tsr_dtype_size(to);
    const bool wider = is_wider(from, to), whole = wider || from_size == 1;
    tsr_lossy l = {.from = TSR_DTYPE_NONE};
    if (whole) tsr_cast(from, to, elements, count, out);
    for (size_t i = 0; i < count && !wider; i += COUNTED) {
        const size_t n = count - i < COUNTED ? count - i : COUNTED;
        const uint8_t *block = elements + i * from_size;
        uint8_t *results = out + i * to_size;
        if (!whole) tsr_cast(from, to, block, n, results);
        if (!has_odd(to, results, n)) continue;
        if (l.from == TSR_DTYPE_NONE) l = tsr_lossy_of(from, to);
        tsr_count_losses(&l, block, n, losses);
    }
}
