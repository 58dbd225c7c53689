/* Decodes every element type. */
#include "stream/numeric.h"

#include "base/cursor.h"
#include "tessera/sys/read.h"

/* Bytes whose NaNs are counted at a time: with the host's vector functions, and with the portable ones. */
enum { COUNTED = 16 << 10, SCANNED = 128 };

static const tsr_float_form forms[] = {
    [TSR_FLOAT64] = {8, 52, 1023, true, true, 0},
    [TSR_FLOAT32] = {4, 23, 127, true, true, 0},
    [TSR_FLOAT16] = {2, 10, 15, true, true, 0},
    [TSR_BFLOAT16] = {2, 7, 127, true, true, 0},
    [TSR_FLOAT8_E4M3FN] = {1, 3, 7, true, false, 0x7f},
    [TSR_FLOAT8_E4M3FNUZ] = {1, 3, 8, true, false, 0x80},
    [TSR_FLOAT8_E5M2] = {1, 2, 15, true, true, 0},
    [TSR_FLOAT8_E5M2FNUZ] = {1, 2, 16, true, false, 0x80},
    [TSR_FLOAT8_E8M0FNU] = {1, 0, 127, false, false, 0xff},
};

const tsr_float_form *tsr_float_form_of(tsr_dtype dtype)
{
    if ((size_t)dtype >= sizeof forms / sizeof forms[0] || !forms[dtype].bytes) return NULL;
    return &forms[dtype];
}

uint32_t tsr_dtype_parts(tsr_dtype dtype)
{
    switch (tsr_dtype_describe(dtype)->kind) {
    case TSR_CLASS_FLOAT: return tsr_float_form_of(dtype) ? 1 : 0;
    case TSR_CLASS_INT:
    case TSR_CLASS_UINT:
    case TSR_CLASS_BOOL: return 1;
    case TSR_CLASS_COMPLEX: return 2;
    default: return 0;
    }
}

bool tsr_dtype_is_numeric(tsr_dtype dtype)
{
    return tsr_dtype_parts(dtype) != 0;
}

tsr_dtype tsr_dtype_part(tsr_dtype dtype)
{
    switch (dtype) {
    case TSR_COMPLEX32: return TSR_FLOAT16;
    case TSR_BCOMPLEX32: return TSR_BFLOAT16;
    case TSR_COMPLEX64: return TSR_FLOAT32;
    case TSR_COMPLEX128: return TSR_FLOAT64;
    default: return dtype;
    }
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t sign_of(const tsr_float_form *form)
{
    return form->has_sign ? UINT64_C(1) << (8 * form->bytes - 1) : 0;
}

static uint64_t infinity_of(const tsr_float_form *form)
{
    return (sign_of(form) - 1) >> form->fraction_bits << form->fraction_bits;
}

static bool is_nan(const tsr_float_form *form, uint64_t bits)
{
    if (form->has_infinity) return (bits & (sign_of(form) - 1)) > infinity_of(form);
    return bits == form->nan || (form->nan == 0x7f && bits == 0xff);
}

static double decode_bfloat16(const uint8_t *from)
{
    const uint32_t bits = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Decodes any floating-point type except float64 and float32, which need no work. */
static double decode_small(const tsr_float_form *form, uint64_t bits)
{
    const uint64_t sign = bits & sign_of(form), magnitude = bits - sign;
    double value;
    if (is_nan(form, bits)) {
        value = double_of(UINT64_C(0x7ff8) << 48);
    } else if (form->has_infinity && magnitude == infinity_of(form)) {
        value = double_of(UINT64_C(0x7ff) << 52);
    } else if (!form->has_sign) {
        value = double_of((bits + 1023 - 127) << 52); /* e8m0: 2^(bits − 127) */
    } else {
        value = double_of(magnitude << (52 - form->fraction_bits)) * double_of((uint64_t)(2046 - form->bias) << 52);
    }
    return sign ? -value : value;
}

#define DECODE(type) \
    for (size_t i = 0; i < count; i++) { \
        type item; \
        memcpy(&item, from + i * sizeof item, sizeof item); \
        to[i] = (double)item; \
    } \
    break

void tsr_decode(tsr_dtype dtype, const uint8_t *from, size_t count, double *to)
{
    const tsr_float_form *form;
    switch (dtype) {
    case TSR_FLOAT64: memcpy(to, from, count * sizeof *to); break;
    case TSR_FLOAT32: DECODE(float);
    case TSR_INT64: DECODE(int64_t);
    case TSR_INT32: DECODE(int32_t);
    case TSR_INT16: DECODE(int16_t);
    case TSR_INT8: DECODE(int8_t);
    case TSR_UINT64: DECODE(uint64_t);
    case TSR_UINT32: DECODE(uint32_t);
    case TSR_UINT16: DECODE(uint16_t);
    case TSR_UINT8: DECODE(uint8_t);
    case TSR_BOOL:
        for (size_t i = 0; i < count; i++) to[i] = from[i] != 0;
        break;
    case TSR_BFLOAT16:
        for (size_t i = 0; i < count; i++) to[i] = decode_bfloat16(from + 2 * i);
        break;
    default:
        form = tsr_float_form_of(dtype);
        for (size_t i = 0; form && i < count; i++)
            to[i] = decode_small(form, tsr_load_le(from + i * form->bytes, form->bytes));
    }
}

/* Returns the number that, added to a magnitude, carries into the sign if that may be a NaN or an infinity. */
static uint64_t lowest_of(const tsr_float_form *form)
{
    return form->has_infinity ? UINT64_C(1) << form->fraction_bits : 1;
}

/* Whether the only NaN of a type has neighbors that adding cannot tell apart: e8m0 and the fnuz types, all of one byte. */
static bool has_lone_nan(const tsr_float_form *form)
{
    return !form->has_sign || form->nan == 0x80;
}

/* Quickly finds out whether any number may have an exponent of all ones: adding the lowest bit of the exponent to the
 * magnitude then carries into the sign. This looks at all the numbers in a word at the same time, and at blocks of SCANNED
 * bytes, which compilers vectorize. */
static bool has_portable_suspects(const tsr_float_form *form, const uint8_t *from, size_t count)
{
    if (has_lone_nan(form)) return memchr(from, (int)form->nan, count) != NULL;
    const uint64_t each = UINT64_MAX / (UINT64_MAX >> (64 - 8 * form->bytes)); /* 1 in every number of a word */
    const uint64_t sign = each * sign_of(form), lowest = each * lowest_of(form);
    const size_t size = count * form->bytes;
    uint64_t word, found = 0;
    size_t at = 0;
    for (; at + SCANNED <= size && !(found & sign); at += SCANNED) {
        for (size_t i = 0; i < SCANNED; i += sizeof word) {
            memcpy(&word, from + at + i, sizeof word);
            found |= (word & ~sign) + lowest;
        }
    }
    for (; at < size && !(found & sign); at += sizeof word) {
        word = 0;
        memcpy(&word, from + at, size - at < sizeof word ? size - at : sizeof word);
        found |= (word & ~sign) + lowest;
    }
    return (found & sign) != 0;
}

/* Uses the host's vector functions on whole blocks of types whose NaNs have an exponent of all ones, and the loop above on
 * the rest. */
static bool has_suspects(const tsr_host *host, const tsr_float_form *form, const uint8_t *from, size_t count)
{
    size_t done = 0;
    if (host && host->carries && !has_lone_nan(form)) {
        done = count * form->bytes / TSR_SCAN_BLOCK * TSR_SCAN_BLOCK;
        if (done && host->carries(from, done, form->bytes, lowest_of(form))) return true;
    }
    return has_portable_suspects(form, from + done, count - done / form->bytes);
}

/* Counts numbers above `most` and numbers equal to it, without their sign; `flip` reorders them first. Compilers vectorize it. */
#define COUNT(type) \
    for (size_t i = 0; i < count; i++) { \
        type item; \
        memcpy(&item, from + i * sizeof item, sizeof item); \
        const type magnitude = (type)((item ^ flip) & (type)mask); \
        above += magnitude > (type)most; \
        equal += magnitude == (type)most; \
    } \
    break

/* The NaNs of a type are the numbers above one: above infinity, or in types without infinity, above the largest one. The only NaN
 * of the fnuz types is a negative zero, which comes last if the other bits are inverted. */
static void count_block(const tsr_float_form *form, const uint8_t *from, uint32_t count, uint64_t *nan, uint64_t *inf)
{
    const uint8_t flip = form->nan == 0x80 ? 0x7f : 0;
    const uint64_t mask = form->has_sign && !flip ? sign_of(form) - 1 : UINT64_MAX;
    const uint64_t most = form->has_infinity ? infinity_of(form) : (uint64_t)(form->nan ^ flip) - 1;
    uint32_t above = 0, equal = 0;
    switch (form->bytes) {
    case 8: COUNT(uint64_t);
    case 4: COUNT(uint32_t);
    case 2: COUNT(uint16_t);
    default: COUNT(uint8_t);
    }
    *nan += above;
    *inf += form->has_infinity ? equal : 0;
}

void tsr_count_special(const tsr_host *host, tsr_dtype dtype, const uint8_t *from, size_t count, uint64_t *nan,
                       uint64_t *inf)
{
    const tsr_float_form *form = tsr_float_form_of(dtype);
    if (!form || !has_suspects(host, form, from, count)) return;
    const size_t most = (host && host->carries ? COUNTED : SCANNED) / form->bytes;
    for (size_t at = 0, size; at < count; at += size) {
        size = count - at < most ? count - at : most;
        const uint8_t *block = from + at * form->bytes;
        if (has_suspects(host, form, block, size)) count_block(form, block, (uint32_t)size, nan, inf);
    }
}

int64_t tsr_float_ordinal(const tsr_float_form *form, const uint8_t *from)
{
    const uint64_t bits = tsr_load_le(from, form->bytes);
    const uint64_t magnitude = bits & (sign_of(form) - 1); /* all bits for a type without a sign */
    return bits & sign_of(form) ? -(int64_t)magnitude : (int64_t)magnitude;
}
